"""MKOR where the client transforms its images first (Gao et al. 2021, MKOR section 4)."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd

from gradleak.data.targets import read as read_targets
from gradleak.models.files import read
from gradleak.runtime.tidy import Given
from papers.mkor.batches import METRICS, Setting, means, plain

COLUMNS = ["model", "transformation", "metric", "value", "batches"]
SHIFT = 3  # pixels

# Operations of the policies that Gao et al. search among, on pixels 0 to 255 (B, K, C, H, W).
TRANSFORMATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "none": lambda x: x,
    "inverted": lambda x: 255 - x,
    "contrast": lambda x: np.round(0.5 * (x - 128.0) + 128.0),
    "brightness": lambda x: np.clip(x + 64.0, 0.0, 255.0),
    "rotated": lambda x: np.rot90(x, axes=(3, 4)),
    "mirrored": lambda x: x[..., ::-1],
    "shifted": lambda x: np.roll(x, SHIFT, axis=(3, 4)),
}


def make(files: Given, words: Given, case: Given) -> pd.DataFrame:
    """Make the table: a row for each network in ``models`` of `words`, transformation and metric.

    A client applies the transformation to all images of ``targets`` and takes the gradient of the
    result; reconstructions are compared with the transformed images. `value` is a mean over images.
    """
    original, setting = read_targets(files["targets"]), Setting.of(words["setting"])
    models, rows = read(files["models"][0]), []
    for chain in (chain for chain in models.chains if chain.name in words["models"]):
        sent = setting.send(chain, models.of(chain, 0))
        for name, change in TRANSFORMATIONS.items():
            images = np.ascontiguousarray(change(original.images.astype(float)).astype(np.uint8))
            targets = replace(original, images=images)
            found = pd.DataFrame(means(setting, sent, targets, plain(setting, targets)))
            rows += [(chain.name, name, m, float(found[m].mean()), len(found)) for m in METRICS]
    return pd.DataFrame(rows, columns=COLUMNS)
