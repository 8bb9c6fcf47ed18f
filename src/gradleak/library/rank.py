"""`gradleak.rank`: how much of an image the layers of a network determine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

from gradleak.library.network import read_network
from gradleak.models.losses import BINARY
from gradleak.reading.gradients import deltas
from gradleak.reading.structure import structure

COLUMNS = {
    "layer": "layer",
    "kind": "kind",
    "unknowns": "unknowns",
    "weights": "weights",
    "outputs": "outputs",
    "virtual": "virtual",
    "index": "ra_i",
    "rank": "rank_u",
    "rank_kind": "rank_kind",
    "free": "free",
    "condition": "condition",
    "note": "note",
}


@dataclass(frozen=True)
class Ranks:
    """Counts and ranks of a network's layers."""

    layers: pd.DataFrame = field(repr=False)  # a row for each layer with weights
    ra_i: int | None  # RA-i of the network, the largest of its layers'; None without one
    critical: str  # the layer of that RA-i
    c: float | None  # c(M), at most 0; None where it is not defined
    why_no_c: str


def rank(
    model: nn.Module,
    input_shape: Sequence[int],
    *,
    loss: str = "cross_entropy",
    mode: str = "training",
    seed: int = 0,
) -> Ranks:
    """Count unknowns and constraints of each layer, and compute ranks.

    ``RA-i = |x| − |W| − |z| − |V|`` (R-GAP section 4): above 0, a layer leaves directions of its
    input free. rank U is that of the system [W; K] which R-GAP and COPA solve (COPA eq. 4), and
    ``c(M) = Σ_i (d − (i − 1)) / d · (rank U_i − |x_i|)`` over d convolutions (COPA eq. 8): 0 if
    all have full rank.

    Parameters
    ----------
    model, input_shape
        The network, which is not modified, and (C, H, W) of one image.
    loss, mode
        As in `gradleak.capture`.
    seed
        Of the image, uniform in [0, 1], at which the gradient constraint K is taken.

    Returns
    -------
    Ranks
        ``layers`` has the amounts of the first equation as ``unknowns``, ``weights``, ``outputs``,
        ``virtual``, ``ra_i``; ``rank_u``, how that is known (``exact``, ``measured``,
        ``at most``), ``free`` unknowns at least, and the ``condition`` number of U where it was
        computed.

    Raises
    ------
    GradleakError
        If torch.fx cannot trace the network, or it does not take images of this shape.
    """
    network = read_network(model, input_shape, loss=loss, mode=mode)
    reading = network.traced
    image = np.random.default_rng(seed).random(network.size, dtype=np.float32)
    names = [layer.name for layer in reading.layers if layer.is_linear]
    label = 1 if loss in BINARY else 0
    # A batch norm in training mode would have one value a channel in some networks.
    found = deltas(network.module, image, label, loss, "evaluation", names)
    counted = structure(reading, network.converted, network.why_no_chain, found)
    rows: list[dict[str, Any]] = [
        {column: getattr(row, key) for key, column in COLUMNS.items()} for row in counted.layers
    ]
    return Ranks(
        pd.DataFrame(rows, columns=list(COLUMNS.values())),
        counted.index,
        counted.critical,
        counted.security,
        counted.security_note,
    )
