"""Pools of a chain's convolutions: by name, or by kind, side, stride and padding of the windows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from gradleak.errors import ConfigError

Kind = Literal["max", "average"]
POOL = 2  # side of the blocks that most pools take, and their stride
NONE, GLOBAL = "none", "global"
# Of 2x2 blocks, which every part of gradleak knows.
BLOCKS = ("max", "average")


@dataclass(frozen=True)
class Window:
    """Square windows of a pool; what they do not reach at the far side is left out.

    A mean counts the zeros of the padding, as in `torch.nn.AvgPool2d`.
    """

    kind: Kind
    side: int
    stride: int
    padding: int = 0

    @property
    def pool(self) -> str:
        """Name of the pool in a chain: ``max``, ``average``, ``max3`` or ``max:3:3:0``."""
        known = {window: name for name, window in NAMED.items()}
        return known.get(self, f"{self.kind}:{self.side}:{self.stride}:{self.padding}")

    def count(self, length: int) -> int:
        """Number of windows along an axis of this length."""
        return (length + 2 * self.padding - self.side) // self.stride + 1

    def loses(self, length: int) -> bool:
        """True if a part of an axis of this length is in no window."""
        last = (self.count(length) - 1) * self.stride - self.padding + self.side
        return last < length or self.stride > self.side


NAMED: Mapping[str, Window] = MappingProxyType(
    {
        "max": Window("max", POOL, POOL),
        "average": Window("average", POOL, POOL),
        "max3": Window("max", 3, POOL, 1),
    }
)


def window_of(pool: str) -> Window | None:
    """Return the windows of a pool; None for ``none`` and ``global``.

    Raises `ConfigError` for a name that is none.
    """
    if pool in (NONE, GLOBAL):
        return None
    if pool in NAMED:
        return NAMED[pool]
    found = re.fullmatch(r"(max|average):([1-9]\d*):([1-9]\d*):(\d+)", pool)
    if found is None:
        raise ConfigError(
            f"pool: {pool!r} is none; give none, global, {', '.join(NAMED)}, or kind, side, stride "
            "and padding as in max:3:3:0."
        )
    kind, *sizes = found.groups()
    return Window(kind, *map(int, sizes))  # type: ignore[arg-type]


def is_common(pool: str) -> bool:
    """True without a pool and for 2x2 blocks, which closed forms and plain passes know."""
    return pool == NONE or pool in BLOCKS
