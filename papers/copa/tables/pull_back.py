"""The pull-back constraint (COPA appendix B): where it is defined, and its two forms in numbers."""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pandas as pd
from scipy import linalg

from gradleak.data import targets
from gradleak.data.targets import TargetSet
from gradleak.models import files as model_files
from gradleak.models.chain import Chain
from gradleak.models.files import ModelFile
from gradleak.operators.convolution import CONDITION_LIMIT, Convolution
from gradleak.operators.shape import ConvShape
from gradleak.runtime.tidy import Given, Row

COLUMNS = [
    *("model", "filters", "layer", "position", "rows", "columns", "rank", "case", "defined"),
    *("appendix_b", "algorithm_1", "constraints", "difference", "residual", "rejected"),
    *("projector", "images", "scale"),
]
FIRST, DEFINED = "first layer", "rank = columns < rows"
FULL, DEFICIENT = "rank = rows", "rank-deficient"
RANDOM = 4  # vectors Z that satisfy no constraint


class PullBack:
    """Eq. (15) to (18) for one W (m, n) of rank r: W = R·[Σ; 0]·S^T with R = [left, rest].

    ``left`` (m, r), ``values`` (r,) and ``right`` (n, r) come from the eigenvectors of the smaller
    of W^T W and W W^T, and ``rest`` (m, m − r) from the Householder reflections of ``left``. Where
    r = n < m this is the paper's decomposition; else Σ has the r singular values above 0.
    """

    def __init__(self, convolution: Convolution) -> None:
        self.convolution, matrix = convolution, convolution.matrix
        tall = convolution.is_tall
        gram = matrix.T @ matrix if tall else matrix @ matrix.T
        squares, vectors = linalg.eigh(gram.toarray(), driver="evd")
        kept = squares > squares[-1] / CONDITION_LIMIT**2
        self.values, vectors = np.sqrt(squares[kept]), vectors[:, kept]
        others = (matrix if tall else matrix.T) @ (vectors / self.values)
        self.left, self.right = (others, vectors) if tall else (vectors, others)
        self.rank = int(self.values.size)
        self._reflections, _ = linalg.qr(self.left, mode="raw")

    def eq17(self, z: np.ndarray) -> np.ndarray:
        """W·(Σ·S^T)^-1·P·R^-1·Z − Z, for Z (m, k)."""
        return self.convolution.apply(self.right @ ((self.left.T @ z).T / self.values).T) - z

    def eq18(self, z: np.ndarray) -> np.ndarray:
        """R·diag(0, I)·R^T·Z, for Z (m, k)."""
        turned = self._reflect(z, "T")
        turned[: self.rank] = 0.0
        return self._reflect(turned, "N")

    def _reflect(self, z: np.ndarray, transpose: str) -> np.ndarray:
        factors, scales = self._reflections
        work = 64 * z.shape[1]
        return linalg.lapack.dormqr("L", transpose, factors, scales, z, work)[0]


@cache
def _of(weight: bytes, shape: ConvShape) -> PullBack:
    """Constraint of one weight; variants 1 and 3 share their first layer's."""
    size = (shape.filters, shape.channels, *shape.kernel)
    return PullBack(Convolution(np.frombuffer(weight).reshape(size), shape))


def _length(z: np.ndarray) -> np.ndarray:
    return np.linalg.norm(z, axis=0)


def measured(found: PullBack, z: np.ndarray) -> Row:
    """Both forms on random vectors, and eq. (20) on linear outputs `z` (m, k) of that W.

    ``difference``: length of (17) plus (18), which have opposite signs, relative to (18).
    ``residual``: (18) of `z`, relative to `z`. ``rejected``: the same of a random vector.
    ``projector``: how far (18) is from `Convolution.project`, by which COPA computes it.
    """
    rows, columns = found.convolution.shape
    constraints = rows - found.rank
    row: Row = {"constraints": constraints}
    if not constraints:
        return row
    random = np.random.default_rng(0).standard_normal((rows, RANDOM))
    second = found.eq18(random)
    row["difference"] = (_length(found.eq17(random) + second) / _length(second)).max()
    row["residual"] = (_length(found.eq18(z)) / _length(z)).max()
    row["rejected"] = (_length(second) / _length(random)).min()
    if found.rank == columns:
        ours = np.stack([one - found.convolution.project(one) for one in random.T], axis=1)
        row["projector"] = (_length(ours - second) / _length(second)).max()
    return row


def equations(rank: int, rows: int, columns: int) -> Row:
    """Equation that solves the next layer by appendix B, and by Algorithm 1 as printed."""
    defined = rank == columns < rows
    case = DEFINED if defined else FULL if rank == rows else DEFICIENT
    printed = 5 if rank < rows else 7  # |X| of the next layer is the number of rows
    head: Row = {"rows": rows, "columns": columns, "rank": rank, "case": case}
    chosen = {"appendix_b": 7 if defined else 5, "algorithm_1": printed}
    return {**head, "defined": int(defined), **chosen}


def layer_rows(chain: Chain, weights: dict[str, np.ndarray], images: np.ndarray) -> Iterator[Row]:
    """One row for each convolution of `chain`; `images` are (k, C, H, W)."""
    x, before = images.reshape(len(images), -1).T, None
    for position, layer in enumerate(chain.convolutions, 1):
        head: Row = {"model": chain.name, "layer": layer.name, "position": position}
        if before is None:
            yield head | {"case": FIRST, "defined": 0, "appendix_b": 6, "algorithm_1": 6}
        else:
            sizes = before[0].rank, *before[0].convolution.shape
            yield head | equations(*sizes) | measured(*before)
        weight = weights[f"{layer.name}.weight"].astype(np.float64)
        if layer is chain.convolutions[-1]:
            return
        found = _of(weight.tobytes(), layer.shape)
        z = found.convolution.apply(x)
        before = found, z
        bias = np.repeat(weights[f"{layer.name}.bias"], layer.shape.positions) if layer.bias else 0
        x = layer.activation.forward((z.T + bias).T)


def table(models: ModelFile, target: TargetSet, equal: Given) -> list[Row]:
    """Rows of every chain under its first seed, at the first image of each batch.

    Chains named in `equal` have second rows, with the first layer's filters all equal.
    """
    images = np.stack([target.inputs(batch)[0] for batch in range(len(target.images))])
    rows = []
    for chain in models.chains:
        weights = models.of(chain, 0)
        rows += [{"filters": "drawn", **row} for row in layer_rows(chain, weights, images)]
        if chain.name in equal:
            first = f"{chain.convolutions[0].name}.weight"
            weights[first] = np.broadcast_to(weights[first][:1], weights[first].shape)
            rows += [{"filters": "equal", **row} for row in layer_rows(chain, weights, images)]
    return rows


def make(files: Given, words: Given, case: Given) -> pd.DataFrame:
    """Make the table from ``models`` and ``targets``; `words` names networks as ``equal``."""
    target = targets.read(files["targets"])
    read = map(model_files.read, files["models"])
    rows = [row for one in read for row in table(one, target, words["equal"])]
    return pd.DataFrame(rows).assign(**case).reindex(columns=COLUMNS)
