"""Phong's bias attack on a fully connected first layer (R-GAP Theorem 1, eq. 3)."""

from typing import ClassVar, Literal

import numpy as np

from gradleak.attacks.base import Attack, AttackerView, LayerFacts, Reconstruction
from gradleak.errors import NumericsError
from gradleak.models.chain import Chain, ConvLayer


class Phong(Attack):
    """Recover the input of a first layer W x + b = z from any row j: x = ∇W_j / ∇b_j.

    It needs no weights, label or loss. A batch gives a mixture of its images.
    """

    # Rows with |∇b_j| up to this fraction of the largest are left out and counted: a unit that ReLU
    # switched off has ∇b_j = 0.
    least: ClassVar[float] = 1e-6

    method: Literal["phong"] = "phong"
    # The plain mean as in Theorem 1, in which dividing by a small ∇b_j amplifies a row's noise;
    # least squares over all rows, which weights row j by (∇b_j)²; or the first row alone, eq. (3).
    rows: Literal["average", "weighted", "single"] = "average"

    def applies(self, chain: Chain) -> str | None:
        """See `gradleak.attacks.base.Attack`."""
        first = chain.layers[0]
        if isinstance(first, ConvLayer):
            return (
                f"{chain.name}: {first.name} is a convolution, and the bias attack needs a fully "
                "connected first layer; use rgap."
            )
        if not first.bias:
            return f"{chain.name}: {first.name} has no bias, which the attack divides by; use rgap."
        return None

    def run(self, view: AttackerView, seed: int) -> Reconstruction:
        """See `gradleak.attacks.base.Attack`; deterministic, `seed` is ignored.

        ``stop`` reports the number of rows used and their spread: the root mean square over the
        image of the weighted standard deviation over rows.
        """
        from gradleak.attacks.closed_form.fully_connected import from_delta

        name = view.chain.layers[0].name
        gradient = view.gradients[f"{name}.weight"].astype(np.float64)
        delta = view.gradients[f"{name}.bias"].astype(np.float64)
        if not (np.all(np.isfinite(gradient)) and np.all(np.isfinite(delta))):
            raise NumericsError(
                f"The gradient of {name} holds NaN or infinity; the client must resend it."
            )
        used = np.abs(delta) > self.least * np.abs(delta).max()
        if not used.any():
            raise NumericsError(
                f"The bias gradient of {name} is zero, so no row can be divided by it; the "
                "gradient carries nothing about the image."
            )
        copies = gradient[used] / delta[used, None]
        weights = {
            "average": np.ones(len(copies)),
            "weighted": np.square(delta[used]),
            "single": np.eye(len(copies))[0],
        }[self.rows]
        weights /= weights.sum()
        x = from_delta(gradient[used], delta[used]) if self.rows == "weighted" else weights @ copies
        spread = float(np.sqrt(np.mean(weights @ np.square(copies - x))))
        misfit = np.linalg.norm(np.outer(delta, x) - gradient) / np.linalg.norm(gradient)
        stop = f"closed form, {len(copies)} of {delta.size} rows, spread {spread:.2g}"
        facts = LayerFacts(name, "9", float(misfit), 0, stop)
        return Reconstruction(x.reshape(1, *view.chain.input), stop, (facts,), fc_input=x)
