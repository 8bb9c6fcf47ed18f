"""Sizes that follow from VGG-16 and MKOR's paths through it (sections 3.4.2 and 4)."""

import math

import numpy as np
import pandas as pd

from gradleak.models.chain import Chain
from gradleak.models.files import read
from gradleak.runtime.tidy import Given
from gradleak.servers.plan import DIRECTIONS, plan

COLUMNS = ["model", "quantity", "value"]


def sizes(chain: Chain) -> dict[str, float]:
    """Sizes by name, of the features of a chain whose convolutions carry MKOR's paths."""
    paths, last = plan(chain), chain.convolutions[-1]
    channels = last.shape.filters
    features = channels * last.grid[0] * last.grid[1]
    side = math.isqrt(features // chain.input[0])
    # Regions of one colour's maxima that contain each pixel along an axis.
    maxima = paths.sign > 0
    own = maxima & (paths.colour == 0)
    places = paths.first[own, 0, None] + paths.stride * np.arange(last.grid[0])
    pixels = np.arange(chain.input[1])[:, None]
    starts = np.unique(places)
    covered = ((pixels >= starts) & (pixels < starts + paths.side)).sum(axis=1)
    groups = chain.input[0] * (2 if (paths.sign < 0).any() else 1)
    shifts = round(math.log(len(paths.sign) / groups, len(DIRECTIONS)))
    return {
        "features": features,
        "largest_side": side,
        "four_direction_layers": shifts,
        "considered_share": len(paths.sign) / channels,
        "describers": int(covered.max()) ** 2,
        "lowest_resolution": last.grid[0],
        "highest_resolution": len(starts),
    }


def make(files: Given, words: Given, case: Given) -> pd.DataFrame:
    """Make the table from the networks of files ``models``."""
    chains = [chain for path in files["models"] for chain in read(path).chains]
    rows = [(chain.name, *item) for chain in chains for item in sizes(chain).items()]
    return pd.DataFrame(rows, columns=COLUMNS)
