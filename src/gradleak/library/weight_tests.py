"""Tests of the weights of single layers: structure that no initialization or training leaves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

FRESH, TRAINED, SHAPED = "looks fresh", "looks trained", "looks shaped"
# Verdicts rest on these limits. Benchmarks record how often honest networks pass them.
ZERO = 1e-3  # a weight or row is zero below this share of the layer's RMS, or of its largest row
ZEROS = 0.6  # share of zero weights
HELD = 0.99, 0.4  # share of a row's square norm in its largest weight: of one row, of several
CHANCE = 1e-8, 1e-20  # of such a weight in a row of random direction, for the same two
SEVERAL = 3, 0.03  # rows at least, and share of the layer's
PARALLEL = 1e-3, 1e-5  # 1 − |cos| of two rows, of at least WIDE inputs and of fewer
WIDE, NARROW = 32, 8  # rows of fewer inputs are parallel by chance
DEPENDENT = 1e-12  # eigenvalues of W Wᵀ over the largest
ROW = 30.0  # largest over median row norm
BIAS = 10.0  # largest |bias| over median row norm
REGULAR = 0.2  # √m times the Kolmogorov-Smirnov distance of m biases from a distribution
PAIRED, SAME = 64, 2e-6  # positive weights that are compared with negative; equal log-ratios
LARGE = 60.0  # median row norm; 1/√3 for PyTorch's default
KEPT, REPLACED = 0.99, 0.5  # cosines of rows to those of the round before
DISTRIBUTED = 1e-4  # p of the KS test above which a layer looks fresh
SAMPLE = 20_000  # weights that this test takes
SOLVED = 1024  # rows or inputs up to which ranks are computed
FEW = 16  # biases for the test of their spacing; weights of each sign for that of pairs

Statistics = dict[str, float]


@dataclass(frozen=True)
class Layer:
    """Weights of one layer as a matrix."""

    name: str
    weight: np.ndarray  # (rows, inputs), one row for each output
    bias: np.ndarray | None  # (rows,)
    fans: tuple[int, int]  # fan-in and fan-out, which initializations scale with


def layer_of(name: str, weight: np.ndarray, bias: np.ndarray | None) -> Layer:
    """A layer of weights (outputs, inputs, …) and biases."""
    matrix = weight.reshape(len(weight), -1)
    receptive = matrix.shape[1] // weight.shape[1]
    return Layer(name, matrix, bias, (matrix.shape[1], len(weight) * receptive))


def initializations(layer: Layer) -> dict[str, tuple[str, float]]:
    """Known initial distributions: family, and limit or standard deviation."""
    into, out = layer.fans
    return {
        "PyTorch default": ("uniform", into**-0.5),
        "Kaiming uniform": ("uniform", (6 / into) ** 0.5),
        "Kaiming normal": ("norm", (2 / into) ** 0.5),
        "Kaiming normal, fan-out": ("norm", (2 / out) ** 0.5),
        "Xavier uniform": ("uniform", (6 / (into + out)) ** 0.5),
        "Xavier normal": ("norm", (2 / (into + out)) ** 0.5),
        "LeCun normal or orthogonal": ("norm", into**-0.5),
        "DLG's uniform": ("uniform", 0.5),
    }


def initial(layer: Layer) -> tuple[str, float]:
    """Initialization that the weights are most likely of, and p of its Kolmogorov-Smirnov test.

    Besides `initializations`, uniform and normal weights of any scale, if they are a thousand.
    """
    every = -(-layer.weight.size // SAMPLE)
    values = layer.weight.ravel()[::every].astype(np.float64)
    known = initializations(layer)
    if values.size >= 1000 and np.ptp(values):
        known["uniform"] = "uniform", float(np.abs(values).max())
        known["normal"] = "norm", float(values.std())
    found = []
    for name, (family, size) in known.items():
        place = (-size, 2 * size) if family == "uniform" else (0.0, size)
        p = stats.kstest(values, family, args=place, method="asymp").pvalue
        found.append((float(p), name))
    # The first of equals, as max would give the last by name.
    p, name = max(found, key=lambda one: one[0])
    return (name, p) if p > DISTRIBUTED else ("", p)


def statistics(layer: Layer) -> Statistics:
    """Statistics of one layer's weights, those of `gradleak.inspect`."""
    weight = layer.weight
    squares = np.einsum("mn,mn->m", weight, weight, dtype=np.float64)
    rms = float(np.sqrt(squares.sum() / weight.size))
    norms = np.sqrt(squares)
    alive = norms > ZERO * norms.max()
    rows = weight if alive.all() else weight[alive]
    typical = float(np.median(norms[alive])) if alive.any() else 0.0
    parallel, dependent = _parallel(rows), _dependent(weight)
    out: Statistics = {
        "zeros": float(np.mean(np.abs(weight) <= ZERO * rms)),
        "zero_rows": 1.0 - float(alive.mean()),
        "passing": float(_passing(rows, squares[alive])),
        "parallel": float(parallel),
        "dependent": float(dependent),
        "size": typical,
        "row_norm": float(norms.max()) / typical if typical else 1.0,
        "mirrored": float(sum(_mirrored(row) for row in rows)),
        "bias": np.nan,
        "regular": np.nan,
    }
    if layer.bias is not None:
        out["bias"] = float(np.abs(layer.bias).max()) / typical if typical else np.nan
        out["regular"] = _regular(layer.bias.astype(np.float64))
    return out


def _passing(rows: np.ndarray, squares: np.ndarray) -> int:
    """Number of rows that one weight holds, more than chance and training explain.

    The square share s of one of n weights, in a row of random direction, is Beta(1/2, (n − 1)/2)
    distributed. One row has to be all but one-hot; several may be held less.
    """
    m, n = rows.shape
    if n < NARROW:
        return 0
    share = np.abs(rows).max(axis=1).astype(np.float64) ** 2 / squares
    chance = rows.size * stats.beta.sf(np.minimum(share, 1.0), 0.5, (n - 1) / 2)
    one = int(((share > HELD[0]) & (chance < CHANCE[0])).sum())
    some = int(((share > HELD[1]) & (chance < CHANCE[1])).sum())
    return max(one, some if some >= max(SEVERAL[0], SEVERAL[1] * m) else 0)


def _parallel(rows: np.ndarray) -> int:
    """Number of rows that are proportional to another one.

    Two rows alone are those of a softmax over two classes, which training makes opposite.
    """
    m, n = rows.shape
    if m < 3 or n < NARROW:
        return 0
    limit = PARALLEL[n < WIDE]
    columns = np.random.default_rng(0).permutation(n)[:SOLVED]
    near = _unit(rows[:, columns])
    cosines = np.abs(near @ near.T)
    np.fill_diagonal(cosines, 0.0)
    chosen = np.flatnonzero(cosines.max(axis=1) > 1.0 - 10 * limit)
    if not len(chosen):
        return 0
    unit = _unit(rows[chosen])
    cosines = np.abs(unit @ unit.T)
    np.fill_diagonal(cosines, 0.0)
    return int((cosines.max(axis=1) > 1.0 - limit).sum())


def _unit(rows: np.ndarray) -> np.ndarray:
    rows = rows.astype(np.float64)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)


def _dependent(weight: np.ndarray) -> float:
    """Number of missing ranks; NaN for layers that are too large."""
    if min(weight.shape) > SOLVED:
        return np.nan
    matrix = weight.astype(np.float64)
    gram = matrix @ matrix.T if len(matrix) <= matrix.shape[1] else matrix.T @ matrix
    values = np.linalg.eigvalsh(gram)
    return float((values <= DEPENDENT * values[-1]).sum())


def _mirrored(row: np.ndarray) -> bool:
    """True if a row's weights come in pairs x and −s x for one factor s, in any order.

    The logarithms of the absolute ratios of positive to negative weights then agree for many pairs.
    """
    up, down = row[row > 0], -row[row < 0]
    if abs(len(up) - len(down)) > 1 or min(len(up), len(down)) < FEW:
        return False
    # Numbers of low precision have equal ratios by chance.
    if len(np.unique(np.abs(row))) < 0.9 * len(row):
        return False
    some = up[:PAIRED].astype(np.float64)
    ratios = np.log(some[:, None] / down.astype(np.float64))
    _, counts = np.unique(np.round(ratios / SAME), return_counts=True)
    return bool(counts.max() >= max(FEW // 2, len(some) // 4))


def _regular(bias: np.ndarray) -> float:
    """√m D of biases that are closer to a distribution than chance puts them; NaN for few.

    D is the Kolmogorov-Smirnov distance from the normal, uniform and Laplace distribution of their
    mean and deviation, the smallest counts. Quantiles have about 1/(2m), random biases 0.5/√m.
    """
    if len(bias) < FEW or not bias.std():
        return np.nan
    z = (bias - bias.mean()) / bias.std()
    root = 3.0**0.5
    families: dict[str, tuple[float, float]] = {
        "norm": (0.0, 1.0), "uniform": (-root, 2 * root), "laplace": (0.0, 0.5**0.5)
    }  # fmt: skip
    found = (stats.kstest(z, name, args=args).statistic for name, args in families.items())
    return float(len(bias) ** 0.5 * min(found))


def replaced(layers: Iterable[Layer], before: Mapping[str, Layer]) -> dict[str, float]:
    """Number of rows of another direction than in the round before, by layer.

    0 in all layers unless the median row of one of them is kept: training moves them together.
    """
    cosines = {}
    for layer in layers:
        now, old = _unit(layer.weight), _unit(before[layer.name].weight)
        # A row that was 0 had no direction.
        cosines[layer.name] = np.where(old.any(axis=1), np.einsum("mn,mn->m", now, old), 1.0)
    kept = max(float(np.median(values)) for values in cosines.values()) > KEPT
    return {name: float(kept * (values < REPLACED).sum()) for name, values in cosines.items()}


def reasons(found: Mapping[str, float], rows: int) -> Iterator[str]:
    """Signs of an attacker in the statistics of a layer, a sentence each."""

    def of(count: float) -> str:
        return f"{count:.0f} of {rows} rows"

    # A layer of zeros alone is initialized so, and passes nothing on.
    if found["zeros"] > ZEROS and found["zero_rows"] < 1:
        yield f"{found['zeros']:.0%} of the weights are 0"
    if found["passing"]:
        yield f"{of(found['passing'])} pass on one input each"
    if found["parallel"]:
        yield f"{of(found['parallel'])} are proportional to another"
    # Weight decay takes one rank from the last layer: softmax does not see what classes share.
    if found["dependent"] > 1 and not found["parallel"] and found["zero_rows"] <= 0:
        yield f"the rank is {found['dependent']:.0f} short"
    if found["size"] > LARGE:
        yield f"rows have norms of {found['size']:.3g}, where initializations have about 1"
    if found["row_norm"] > ROW:
        yield f"a row is {found['row_norm']:.3g} times as large as the median one"
    if found["bias"] > BIAS:
        yield f"a bias is {found['bias']:.3g} times the norm of a row"
    if found["regular"] < REGULAR:
        yield "the biases lie at quantiles of a distribution"
    if found["mirrored"]:
        yield f"{of(found['mirrored'])} have weights in pairs of opposite sign and one ratio"
    if found.get("replaced"):
        yield f"{of(found['replaced'])} turned since the round before, where others were kept"
