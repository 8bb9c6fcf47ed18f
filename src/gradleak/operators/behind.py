"""Layers behind a convolution and their constraints on its dJ/dZ (docs/rank.md)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradleak.operators.shape import ConvShape, Pair, Seen

# Arithmetic modulo a prime whose square fits into int64; independence there implies independence.
PRIME = 2**31 - 1
# Largest number of products delta_o t^u to test for independence; time grows with its cube.
PRODUCTS = 400


@dataclass(frozen=True)
class Behind:
    """The layers behind a convolution."""

    shapes: tuple[ConvShape, ...] = ()  # the convolutions behind it, the next one first
    # True if dJ/dZ passes only these, fully connected layers, and activations with slopes that are
    # never 0. If not, dJ/dZ may have further zeros, as behind a ReLU.
    smooth: bool = True

    def seen(self, shape: ConvShape) -> Seen:
        """Positions where dJ/dZ of a layer of `shape` may be nonzero: those that windows reach.

        No gradient comes back to positions between the windows of a stride above the kernel, or in
        a rim that no window covers.
        """
        last = self.shapes[-1] if self.shapes else shape
        height, width = last.output
        seen: Seen = np.ones(height, dtype=bool), np.ones(width, dtype=bool)
        for layer in reversed(self.shapes):
            down, across = layer.axes
            seen = down.reached(seen[0]), across.reached(seen[1])
        return seen

    def filters(self, shape: ConvShape) -> int:
        """Number of rows of dJ/dZ that can be unit vectors at any positions seen, the rest 0.

        It is the fewest filters from the layer on: each such row passes its own filter in each
        layer behind, by a kernel with a single entry.
        """
        return min(one.filters for one in (shape, *self.shapes)) if self.smooth else 0

    def are_independent(self, shape: ConvShape, box: Pair) -> bool:
        """True if the products delta_o t^u, u in `box`, are independent for almost every dJ/dZ.

        One instance proves it, in whole numbers modulo `PRIME`. False says only that none was
        found, or that there are more than `PRODUCTS`.
        """
        count = shape.filters * box[0] * box[1]
        height, width = shape.output
        space = (height + box[0] - 1, width + box[1] - 1)
        if not self.smooth or count > min(PRODUCTS, space[0] * space[1]):
            return False
        delta = self._instance(shape)
        products = np.zeros((shape.filters, *box, *space), dtype=np.int64)
        for u, v in np.ndindex(*box):
            products[:, u, v, u : u + height, v : v + width] = delta
        rows = products.reshape(count, -1)
        # More columns than these add little to the probability and much to the time.
        chosen = np.random.default_rng(1).permutation(rows.shape[1])[: 2 * count]
        return _has_full_row_rank(rows[:, chosen])

    def _instance(self, shape: ConvShape) -> npt.NDArray[np.int64]:
        """Draw dJ/dZ (O, Ph, Pw) modulo `PRIME` for random weights behind and slopes of 1."""
        draw = np.random.default_rng(0)
        last = self.shapes[-1] if self.shapes else shape
        delta = draw.integers(1, PRIME, (last.filters, *last.output))
        for layer in reversed(self.shapes):
            (down, across), (height, width) = layer.padding, layer.size
            size = (layer.channels, height + 2 * down, width + 2 * across)
            padded = np.zeros(size, dtype=np.int64)
            for i, j in np.ndindex(*layer.kernel):
                ends = zip((i, j), layer.stride, layer.output, strict=True)
                rows, columns = (slice(k, k + step * count, step) for k, step, count in ends)
                for one in delta:
                    weight = draw.integers(1, PRIME, (layer.channels, 1, 1))
                    padded[:, rows, columns] = (padded[:, rows, columns] + weight * one) % PRIME
            delta = padded[:, down : down + height, across : across + width]
        return delta


def _has_full_row_rank(matrix: npt.NDArray[np.int64]) -> bool:
    """True if the rows are independent modulo `PRIME`, by elimination in place."""
    for i, row in enumerate(matrix):
        pivots = np.flatnonzero(row)
        if not pivots.size:
            return False
        column = pivots[0]
        row[:] = row * pow(int(row[column]), -1, PRIME) % PRIME
        below = matrix[i + 1 :]
        below -= below[:, column, None] * row % PRIME
        below %= PRIME
    return True
