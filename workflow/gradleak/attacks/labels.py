"""Label recovery from the signs of the last layer's gradient (iDLG; COPA section 2)."""

from __future__ import annotations

import numpy as np

from gradleak.attacks.base import AttackerView
from gradleak.errors import NumericsError


def recover_label(view: AttackerView) -> int:
    """Class whose row of dJ/dW has the sign opposite to all others.

    With J = -log softmax(a(z))[y] and a' > 0, dJ/dz_k = (p_k − [k = y])·a'(z_k) is negative for
    k = y only. The bias gradient is dJ/dz itself; without a bias, row k of dJ/dW is
    dJ/dz_k · x, so the true row has a negative inner product with every other row.

    Raises
    ------
    NumericsError
        If not exactly one class stands out.
    """
    layer = view.chain.layers[-1]
    bias = view.gradients.get(f"{layer.name}.bias")
    if bias is not None:
        candidates = np.flatnonzero(bias < 0)
    else:
        rows = view.gradients[f"{layer.name}.weight"].astype(np.float64)
        products = rows @ rows.T
        np.fill_diagonal(products, -1.0)
        candidates = np.flatnonzero(np.all(products < 0, axis=1))
        if rows.shape[0] == 2:
            raise NumericsError(
                "Without a bias the label of two classes cannot be told from signs; grant it."
            )
    if candidates.size != 1:
        raise NumericsError(
            f"The signs of the last layer's gradient name {candidates.size} classes instead of "
            "one; grant the label (label: granted)."
        )
    return int(candidates[0])
