"""Label inference from gradients (iDLG; COPA section 2; R-GAP section 3.1.1)."""

from collections import Counter
from collections.abc import Container

import numpy as np

from gradleak.attacks.base import AttackerView
from gradleak.errors import NumericsError


def recover_label(view: AttackerView) -> int:
    """Return the class whose row of dJ/dW has the sign opposite to all others.

    With J = -log softmax(a(z))[y] and a' > 0, dJ/dz_k = (p_k − [k = y])·a'(z_k) is negative for
    k = y only. The bias gradient is dJ/dz itself; without a bias, row k of dJ/dW is
    dJ/dz_k · x, so the true row has a negative inner product with every other row.

    Raises `NumericsError` if not exactly one class stands out.
    """
    candidates = _opposite_rows(view)
    if candidates.size != 1:
        raise NumericsError(
            f"The signs of the last layer's gradient name {candidates.size} classes instead of "
            "one; grant the label (label: granted)."
        )
    return int(candidates[0])


def _opposite_rows(view: AttackerView) -> np.ndarray:
    layer = view.chain.layers[-1]
    bias = view.gradients.get(f"{layer.name}.bias")
    if bias is not None:
        return np.flatnonzero(bias < 0)
    rows = view.gradients[f"{layer.name}.weight"].astype(np.float64)
    if rows.shape[0] == 2:
        raise NumericsError(
            "Without a bias the label of two classes cannot be told from signs; grant it."
        )
    products = rows @ rows.T
    np.fill_diagonal(products, -1.0)
    return np.flatnonzero(np.all(products < 0, axis=1))


def class_of(view: AttackerView) -> int | None:
    """Return the class to attack under cross-entropy: granted, or recovered from signs.

    A batch is attacked as if it were one image. Its class is the most frequent granted one (the
    first of several), and None where none was granted and the last layer's bias makes it unneeded.

    Raises `NumericsError` if a granted label is not a class of the network, a single image's label
    contradicts the signs, or the signs do not determine it.
    """
    has_bias = view.chain.layers[-1].bias
    _check_labels(view, range(view.chain.classes), f"has classes 0 to {view.chain.classes - 1}")
    if view.batch > 1:
        if view.labels:
            return Counter(view.labels).most_common(1)[0][0]
        return None if has_bias else recover_label(view)
    if view.label is None:
        return recover_label(view)
    if has_bias:
        named = _opposite_rows(view)
        if named.size == 1 and named[0] != view.label:
            raise NumericsError(
                f"Label {view.label} was granted, but the signs of the last layer's gradient name "
                f"class {named[0]}: the label contradicts the gradient; grant the true one or none."
            )
    return view.label


def check_margin_labels(view: AttackerView) -> None:
    """Raise `NumericsError` for granted labels of a margin loss other than −1 and 1."""
    _check_labels(view, (-1, 1), f"is attacked through the {view.loss} loss, whose y is -1 or 1")


def _check_labels(view: AttackerView, known: Container[int], words: str) -> None:
    wrong = [label for label in view.labels or () if label not in known]
    if wrong:
        raise NumericsError(
            f"Label {wrong[0]} was granted, but {view.chain.name} {words}; grant one of these or "
            "none."
        )


def contradiction(label: int) -> NumericsError:
    """Return the error for a granted label y of a margin loss that the gradient rules out."""
    return NumericsError(
        f"The granted label y = {label} contradicts the gradient, which only y = {-label} can "
        "give; grant the true one or none."
    )


def plausible_sign(view: AttackerView, gradient: np.ndarray) -> int | None:
    """Return the label y ∈ {−1, 1} for which ∇w = y·ℓ'(μ)·x gives an x plausible for its source.

    ℓ' < 0, so y = 1 gives x the sign of −∇w; ∇w (n,) is `gradient`, of the last layer. Outputs of
    ReLU or Sigmoid, and images whose range has no negative numbers, are positive (R-GAP section
    3.1.1): the result is the y that gives more of them the right sign. LeakyReLU shrinks negative
    values, so the larger side is probably, not certainly, the positive one. Identity and Tanh give
    no information: None.
    """
    before = [layer.activation for layer in view.chain.layers[-2:-1]]
    shrinks = any(one.name == "leaky_relu" and 0.0 < one.slope < 1.0 for one in before)
    if not is_positive(view) and not shrinks:
        return None
    above = float(np.linalg.norm(np.maximum(-gradient, 0.0)))
    below = float(np.linalg.norm(np.maximum(gradient, 0.0)))
    return 1 if above >= below else -1


def is_positive(view: AttackerView) -> bool:
    """True if the last layer's input cannot be negative."""
    layers = view.chain.layers
    if len(layers) == 1:
        return view.low >= 0
    return layers[-2].activation.name in ("relu", "sigmoid")
