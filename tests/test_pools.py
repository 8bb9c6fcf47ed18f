"""Pools by name: their windows, and the names of windows."""

import pytest
import torch

from gradleak.errors import ConfigError
from gradleak.models.build import pooled
from gradleak.models.pools import NAMED, Window, is_common, window_of


@pytest.mark.parametrize(
    "window", [Window("max", 3, 3), Window("average", 4, 3, 2), *NAMED.values()]
)
def test_a_name_gives_its_windows_and_their_number(window):
    assert window_of(window.pool) == window
    for length in range(4, 12):
        found = pooled(torch.zeros(1, 1, length, length), window.pool)
        assert found.shape[2:] == (window.count(length), window.count(length))


def test_common_pools_are_of_blocks():
    assert [name for name in ("none", "global", *NAMED) if is_common(name)] == [
        "none",
        "max",
        "average",
    ]
    assert window_of("none") is window_of("global") is None
    assert Window("max", 2, 2).loses(5) and not Window("max", 2, 2).loses(6)
    assert Window("average", 2, 3).loses(8) and not Window("max", 3, 2, 1).loses(7)


@pytest.mark.parametrize(
    "name", ["median", "max:3", "max:3:3:x", "min:2:2:0", "max:0:1:0", "max:3:0:0"]
)
def test_what_is_no_pool_is_refused(name):
    with pytest.raises(ConfigError, match=r"pool: .* is none; give none, global, max"):
        window_of(name)
