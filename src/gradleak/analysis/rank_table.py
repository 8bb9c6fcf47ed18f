"""Ranks and condition numbers of real layers beside the counts of R-GAP's rank analysis."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import linalg

from gradleak.analysis.copa_index import behind, layer_system, reported_rank
from gradleak.analysis.rank_analysis import analyse, critical, largest_alone
from gradleak.data.targets import TargetSet
from gradleak.errors import NotApplicable, NumericsError
from gradleak.models.chain import Chain, ConvLayer
from gradleak.models.files import ModelFile, runs
from gradleak.models.losses import BINARY, LOSSES
from gradleak.models.numpy_autodiff import Weights, deltas, margin_label, unknown_keys
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.system import LayerSystem

COLUMNS = [
    *("model", "seed", "index", "layer", "unknowns", "weights", "outputs", "carried", "virtual"),
    *("virtual_printed", "ra", "ra_printed", "ra_alone", "network_ra", "critical"),
    *("network_ra_alone", "inputs", "rank", "rank_method", "pixels", "rank_gradient"),
    *("gradient_alone", "condition", "condition_padding", "note"),
]
# Singular values of K₀, rows scaled to length 1, below this share of the largest count as 0.
GRADIENT_TOLERANCE = 1e-10
# Largest side of K₀ that is decomposed; beyond, its rank is left empty.
DENSE_SIDE = 2500

Labels = Literal["dataset", "opposite", "same"]


@dataclass(frozen=True)
class Measured:
    """Measurements of one convolution for one image."""

    inputs: int  # n, columns of U = [W; K]
    rank: int | None = None  # rank U
    rank_method: str = ""  # ``structural`` or ``numerical``
    pixels: int | None = None  # H·W
    rank_gradient: int | None = None  # rank of K₀, the gradient constraint on one channel
    # rank K₀ = H·W: the gradient alone gives x, without z (R-CONV)
    gradient_alone: bool | None = None
    # largest over smallest non-zero singular value of U, with the pixels as unknowns
    condition: float = float("nan")
    # the same with the padding as unknowns too, each with a row that says it is 0 (as in the paper)
    condition_padding: float = float("nan")
    note: str = ""  # why a value is missing, or what it leaves out


def gradient_rank(gradient: GradientConstraint) -> int:
    """Rank of K₀ (O·kh·kw, H·W), rows at length 1; `NumericsError` if both exceed `DENSE_SIDE`."""
    block = gradient.block.reshape(-1, gradient.block.shape[-1])
    block = block[:, block.any(axis=0)]
    lengths = np.linalg.norm(block, axis=1)
    block = block[lengths > 0] / lengths[lengths > 0, None]
    if not block.size:
        return 0
    if min(block.shape) > DENSE_SIDE:
        raise NumericsError(
            f"K₀ has {block.shape[0]} rows and {block.shape[1]} pixels, too many to find its rank; "
            "use a smaller input."
        )
    values = linalg.svdvals(block, check_finite=False)
    return int(np.sum(values > GRADIENT_TOLERANCE * values[0]))


def measured(
    chain: Chain,
    weights: Weights,
    image: np.ndarray,
    label: int,
    *,
    loss: str = "cross_entropy",
    ranks: bool = True,
    conditions: bool = True,
) -> dict[str, Measured]:
    """Measure rank and condition number of every convolution at one image (C, H, W), by layer.

    dJ/dZ is that of the true image: this is an analysis, not an attack. A skip changes dJ/dZ,
    but U is that of the layer alone, so the ranks of layers under a skip are less informative;
    `note` says so. Values that cannot be computed are empty, and `note` says why: all of them in
    a network with norms, projections or pools other than 2x2.

    `label` is a class, or −1 or 1 for a margin loss; `ranks` and `conditions` choose what is
    computed. Raises `NotApplicable` if the loss needs one output and the network has several.
    """
    if loss not in LOSSES:
        raise NotApplicable(
            f"{chain.name}: the loss '{loss}' is not known; choose one of {', '.join(LOSSES)}."
        )
    if loss in BINARY and chain.classes != 1:
        raise NotApplicable(
            f"{chain.name}: the {loss} loss takes one output, but the network has {chain.classes}; "
            "use cross_entropy or end it with fc: 1."
        )
    if unknown := unknown_keys(chain):
        note = f"ranks are not measured of a network with {unknown}"
        return {a.name: Measured(a.shape.unknowns, note=note) for a in chain.convolutions}
    found = deltas(chain, weights, image, label, loss)
    return {
        layer.name: _measured(chain, layer, layer_system(layer, weights, found), ranks, conditions)
        for layer in chain.convolutions
    }


def _measured(
    chain: Chain, layer: ConvLayer, system: LayerSystem, ranks: bool, conditions: bool
) -> Measured:
    facts: dict[str, Any] = {}
    notes: list[str] = []
    if not system.gradient.delta.any():
        notes.append("dJ/dZ is 0, so only the weights constrain this layer")
    place = chain.layers.index(layer)
    if any(end - other.skip < place <= end for end, other in enumerate(chain.convolutions)):
        notes.append("U ignores the skip")
    if ranks:
        facts["pixels"] = layer.shape.size[0] * layer.shape.size[1]
        with _noting(notes):
            facts["rank"], facts["rank_method"], _ = reported_rank(system, behind(chain, layer))
        with _noting(notes):
            facts["rank_gradient"] = gradient_rank(system.gradient)
            facts["gradient_alone"] = facts["rank_gradient"] == facts["pixels"]
    if conditions:
        with _noting(notes):
            facts["condition"] = system.condition()
        with _noting(notes):
            if any(layer.shape.padding):
                facts["condition_padding"] = system.condition(padding="unknowns")
            elif "condition" in facts:
                facts["condition_padding"] = facts["condition"]
    return Measured(layer.shape.unknowns, **facts, note="; ".join(notes))


@contextmanager
def _noting(notes: list[str]) -> Iterator[None]:
    try:
        yield
    except NumericsError as error:
        notes.append(str(error).rstrip("."))


def table(
    models: ModelFile,
    targets: TargetSet,
    *,
    labels: Labels,
    loss: str,
    seeds: int,
    images: int = 1,
    conditions: bool = True,
) -> pd.DataFrame:
    """One row for each chain, seed, image and layer; columns as in docs/rank_analysis.md.

    Counts are in every row. Ranks are measured at the first image only, condition numbers (if
    `conditions`) at the first `images`; fully connected layers have a row at the first image and no
    ranks, as their gradient always gives x. `labels` are the data set's, or the sign of the one
    output, −1 or 1 (``same``), or its opposite; `loss` is one of `gradleak.models.losses.LOSSES`.

    Raises `NotApplicable` if images share gradients in batches, if there are fewer than `images`,
    or if the loss does not fit a network's outputs.
    """
    batches, size = targets.images.shape[:2]
    if size != 1:
        raise NotApplicable(
            f"targets: {size} images share a gradient, and the rank analysis is one of single "
            "images; set batch: 1."
        )
    if images > batches:
        raise NotApplicable(
            f"targets: condition numbers are wanted at {images} images and there are {batches}; "
            "lower one or raise the other."
        )
    rows: list[dict[str, Any]] = []
    for chain, seed, number in runs(models.chains, seeds, images if conditions else 1):
        weights, image = models.of(chain, seed), targets.inputs(number)[0]
        label, first = int(targets.labels[number, 0]), number == 0
        # A sign takes a forward pass, too.
        if labels != "dataset" and not unknown_keys(chain):
            label = margin_label(chain, weights, image, labels)
        options = {"ranks": first, "conditions": conditions}
        found = measured(chain, weights, image, label, loss=loss, **options)
        head = {"seed": seed, "index": int(targets.indices[number, 0])}
        rows += [head | row for row in _rows(chain, found, every=first)]
    return pd.DataFrame(rows, columns=COLUMNS)


def _rows(chain: Chain, found: dict[str, Measured], every: bool) -> Iterator[dict[str, Any]]:
    """Counts of each layer beside its measurements; with `every`, fully connected layers too."""
    counts = analyse(chain)
    worst, alone = critical(counts), largest_alone(counts).alone
    for row in counts:
        if row.layer not in found and not every:
            continue
        facts = asdict(found[row.layer]) if row.layer in found else {"note": ""}
        facts["note"] = "; ".join(note for note in (row.note, facts["note"]) if note)
        yield (
            {"model": chain.name, **asdict(row), "ra": row.index, "ra_printed": row.index_printed}
            | {"ra_alone": row.alone, "network_ra": worst.index, "critical": row is worst}
            | {"network_ra_alone": alone, **facts}
        )
