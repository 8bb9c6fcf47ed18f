"""Mean features of each class from the gradient of the classifier (MKOR eq. 4 to 9).

The gradient of the first fully connected layer is G = Σ_m c_m δ_m z̄_mᵀ / K over the classes m of
the batch, with c_m images and mean features z̄_m, if the images of a class have the same δ_m.
Under raw logits δ_m reaches the nodes of class m alone, and one division gives z̄_m (eq. 9). Under
cross-entropy every δ_m = M(p − e_m) mixes all classes, and G = A z̄ is solved by least squares.
If all N classes are present, Σ_n (p − e_m)_n = 0 leaves one direction v free, the same for all
features: z̄ + v s, which `gradleak.attacks.mkor.free_direction` fixes. One large output bias puts
nearly all of v on one class.
"""

from dataclasses import dataclass

import numpy as np

from gradleak.attacks.base import Arrays
from gradleak.attacks.mkor.class_system import ClassSystem
from gradleak.attacks.mkor.head import Head
from gradleak.errors import NumericsError
from gradleak.models.losses import RAW
from gradleak.servers.secret import Secret

# Image counts further from whole numbers than this were scaled, or are noisy.
UNEVEN = 0.2
# A path that passes less than this fraction of what the median path passes is closed.
CLOSED = 0.25
# A class whose ∂ℓ/∂b is below this fraction of what its paths pass was lost on the way.
LOST = 0.02
# A class of lower probability is in no float32 gradient: the softmax is saturated.
SATURATED = 1e-38
# Least number of rows used per class, if there are so many.
FEWEST = 2
# An equation with an error of more than this many times the median is excluded, judged on about
# this many features.
OUTLIER = 4.0
SAMPLE = 1024
# A row of the first layer is used if its δ varies by at most this fraction over the references.
STEADY = 0.05


@dataclass(frozen=True)
class ClassMeans:
    """Information in the gradient on each class that is present."""

    classes: np.ndarray  # classes found (N',), ascending
    counts: np.ndarray  # images of each (N',)
    # Mean input of the first fully connected layer, (N', n) float64; NaN where the gradient has no
    # information on it.
    features: np.ndarray
    # v (N',), along which the features are undetermined; None if there is none.
    direction: np.ndarray | None
    note: str  # description of the solution method
    scale: float = 1.0  # factor by which the gradient was scaled (`class_counts`)


def class_means(
    head: Head,
    gradients: Arrays,
    batch: int,
    secret: Secret,
    how: tuple[str, str],
    at: np.ndarray | None = None,
    counts: np.ndarray | None = None,
) -> ClassMeans:
    """Return class means of a batch of K = `batch` images; `NumericsError` if it shows none.

    `how` are rows and coupling of `gradleak.attacks.mkor.attack.Mkor`. δ is computed at features
    `at` (N', n) of the classes, or of a gray image. `counts` (N,) default to those of
    `class_counts`.
    """
    (rows, coupling), references = how, secret.values["references"]
    at = references[1:2] if at is None else at
    told, scale = class_counts(head, gradients, batch, references[1:2])
    counts = told if counts is None else counts
    classes = np.flatnonzero(counts)
    if not len(classes):
        raise NumericsError(
            "The gradient shows no image of any class; it was changed too much on its way."
        )
    gradient = gradients[f"{head.first.name}.weight"]
    # A feature nonzero in every image has no zero column, unless it was pruned.
    pruned = ~gradient.any(axis=0) & (references.min(axis=0) > 0)
    if rows == "path" and (coupling == "ignore" or head.loss == RAW):
        features = _divided(head, gradients, secret, classes, scale * counts[classes] / batch)
        features[:, pruned] = np.nan
        there = ~np.isnan(features).all(axis=1)
        if not there.any():
            raise NumericsError(
                "No path of any class came through dropout; give the server more paths."
            )
        counts = counts[classes][there]
        return ClassMeans(classes[there], counts, features[there], None, "eq. (9)")
    open_ = head.loss != RAW and len(classes) == head.classes
    build = _by_path if rows == "path" else _all_rows
    equations, matrix = build(head, secret, gradient, at, classes)
    matrix = matrix * (scale * counts[classes] / batch)
    system = ClassSystem(matrix, open_)
    if rows == "all":
        kept = _agreeing(system, equations)
        if len(kept) < len(equations):
            system, equations = ClassSystem(matrix[kept], open_), equations[kept]
    features = system.solve(equations)
    features[:, pruned] = np.nan
    note = f"{len(equations)} rows for {len(classes)} classes"
    return ClassMeans(classes, counts[classes], features, system.direction, note, scale)


def class_counts(
    head: Head, gradients: Arrays, batch: int, gray: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return the number of images of each class (N,), and the scale of the gradient.

    c = K(p − ∂ℓ/∂b / scale), with p of a gray image (eq. 4). Under raw logits ∂ℓ/∂b sums to −scale.
    Under cross-entropy it sums to 0 whatever the scale. If a scale of 1 gives no whole numbers, it
    is estimated from the absent classes, whose entries p·scale are the largest.

    Raises `NumericsError` if the last layer has no bias and the loss mixes all classes into its
    rows, if the softmax saturates, or if the entries cannot be those of raw logits.
    """
    last = head.layers[-1].name
    bias = gradients.get(f"{last}.bias")
    if bias is None:
        if head.loss != RAW:
            raise NumericsError(
                f"{last} has no bias, and under cross-entropy its rows do not tell which classes "
                "are in the batch; give it a bias."
            )
        # A class with its own row counts as one image: the scale stays unknown (section 6).
        size = np.linalg.norm(gradients[f"{last}.weight"].astype(np.float64), axis=1)
        return (size > 1e-6 * size.max()).astype(int), 1.0
    entries = bias.astype(np.float64)
    if head.loss == RAW:
        scale = -float(entries.sum())
        if scale <= 0:
            raise NumericsError(
                f"The gradient of {last}.bias sums to {-scale:.2g}, but raw logits give −1 or, if "
                "it was clipped, a value below 0; too much noise was added to it."
            )
        return _whole(-batch * entries / scale)[0], scale
    p = head.probabilities(gray)[0]
    if p.min() < SATURATED:
        raise NumericsError(
            f"The softmax of a gray image gives class {int(p.argmax())} alone, so the gradient is "
            "of this class, whatever the images; the server has to send a smaller beta or output "
            "bias."
        )
    counts, off = _whole(batch * (p - entries))
    scale = float((entries / p).max())
    if off > UNEVEN and scale > 0:
        other, other_off = _whole(batch * (p - entries / scale))
        if other_off < min(off, UNEVEN):
            return other, scale
    return counts, 1.0


def _whole(values: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the nearest numbers of images, and the largest distance of a value from them."""
    found = np.maximum(np.rint(values), 0).astype(int)
    return found, float(np.abs(values - found).max())


def _divided(
    head: Head, gradients: Arrays, secret: Secret, classes: np.ndarray, shares: np.ndarray
) -> np.ndarray:
    """Eq. (9): a class's row of ∂ℓ/∂W over its ∂ℓ/∂b, or the row alone; NaN for a lost class."""
    nodes, path = _nodes(head, secret)
    nodes, path = nodes[classes], path[classes]
    row = gradients[f"{head.first.name}.weight"]
    bias = gradients.get(f"{head.first.name}.bias")
    total = _sum_of_paths(row, nodes, path)
    if bias is None:
        return -total
    below = _sum_of_paths(bias[:, None], nodes, path)
    # A class with all paths cut by dropout holds only leakage from the others.
    expected = np.median(np.abs(_passed(head, secret))) * shares
    lost = np.abs(below[:, 0]) < LOST * expected
    found: np.ndarray = total / np.where(lost[:, None], np.nan, below)
    return found


def _sum_of_paths(rows: np.ndarray, nodes: np.ndarray, path: np.ndarray) -> np.ndarray:
    """Return Σ_j rows[nodes_nj] / path_nj of each class n, (N, columns) float64."""
    out = np.zeros((len(nodes), rows.shape[1]))
    for place, product in zip(nodes.T, path.T, strict=True):
        out += rows[place] / product[:, None]
    return out


def _nodes(head: Head, secret: Secret) -> tuple[np.ndarray, np.ndarray]:
    """Rows (N, m) of each class and the products of weights behind them."""
    if "nodes" in secret.values:
        return secret.values["nodes"], secret.values["path"]
    if len(head.layers) == 1:
        each = np.arange(head.classes)
        return each[:, None], np.ones((head.classes, 1))
    raise NumericsError(
        "The server left the classifier untouched, so no class has nodes of its own; set rows: all."
    )


def _passed(head: Head, secret: Secret) -> np.ndarray:
    """Factor that activations pass on each class's paths (N,): 1 for ReLU, less for Sigmoid."""
    nodes, path = _nodes(head, secret)
    each, gray = np.arange(head.classes), secret.values["references"][1:2]
    sent = head.deltas(gray, each)[each[:, None], nodes] / path
    found: np.ndarray = sent.sum(axis=1) / (head.probabilities(gray)[0] - 1.0)
    return found


def _by_path(
    head: Head, secret: Secret, gradient: np.ndarray, at: np.ndarray, classes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Sums of each class's rows (N, n), one equation each, and p − e of `classes` (N, N')."""
    nodes, path = _nodes(head, secret)
    passed = _passed(head, secret)
    closed = np.abs(passed) < CLOSED * np.median(np.abs(passed))
    if closed.any():
        raise NumericsError(
            f"The path of class {int(np.argmax(closed))} is closed by an activation "
            f"({int(closed.sum())} such); set rows: all, or lower the server's beta."
        )
    p = head.probabilities(at)
    columns = np.broadcast_to(p, (len(classes), p.shape[1])).T.copy()
    columns[classes, np.arange(len(classes))] -= 1.0
    return _sum_of_paths(gradient, nodes, path) / passed[:, None], columns


def _all_rows(
    head: Head, secret: Secret, gradient: np.ndarray, at: np.ndarray, classes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """All rows (R, n) whose δ hardly depends on the image, and δ of `classes` (R, N')."""
    references = secret.values["references"]
    black, gray, white = (head.deltas(references[k : k + 1], np.arange(1))[0] for k in range(3))
    size = np.abs(gray)
    change = np.maximum(np.abs(black - gray), np.abs(white - gray))
    alive = np.flatnonzero(size > 0)
    if not len(alive):
        raise NumericsError(
            "A gray image closes every node of the first fully connected layer, so nothing "
            "comes back to it; the server has to send other weights."
        )
    share = change[alive] / size[alive]
    # If few rows are steady, the steadiest of them, enough to outweigh noise.
    limit = max(STEADY, float(np.sort(share)[: FEWEST * head.classes][-1]))
    kept = alive[share <= limit]
    rows = gradient if len(kept) == gradient.shape[0] else gradient[kept]
    return rows, head.deltas(at, classes)[:, kept].T


def _agreeing(system: ClassSystem, rows: np.ndarray) -> np.ndarray:
    """Indices of equations that agree with a first solution; half-active nodes do not."""
    some = rows[:, :: max(1, rows.shape[1] // SAMPLE)].astype(np.float64)
    off = np.linalg.norm(some - system.matrix @ system.solve(some), axis=1)
    order = np.argsort(off, kind="stable")
    fewest = min(len(off), FEWEST * system.matrix.shape[1])
    limit = max(OUTLIER * float(np.median(off)), float(off[order[fewest - 1]]))
    return np.flatnonzero(off <= limit)
