"""Layers whose dℓ/dz R-GAP's walk recovers from the gradients alone."""

from contextlib import suppress

import numpy as np

from gradleak.attacks.base import AttackerView
from gradleak.attacks.closed_form.invertible import inapplicable
from gradleak.attacks.closed_form.layerwise import ConvolutionCache, LayerAnswer, LayerTask, walk
from gradleak.attacks.closed_form.rgap import AGREEMENT, minimum_norm
from gradleak.errors import NumericsError
from gradleak.models.activations import INSIDE, NAMES


class _Enough(Exception):
    """Ends the walk at a layer that it cannot solve, or once all wanted layers are known."""


def known_deltas(view: AttackerView, cache: ConvolutionCache) -> dict[str, np.ndarray]:
    """Return δ = dℓ/dz (O, P) of the last convolutions, as far as R-GAP's walk recovers them.

    The δ of a layer follows from the inputs of all layers behind it. It is thus known for every
    convolution back to the first one, counted from the last, whose input is not fixed by its
    equations (R-GAP section 3.1) or contradicts them. Empty if not even the last one's is known.
    """
    found: dict[str, np.ndarray] = {}
    if inapplicable(view.chain, NAMES) is not None:
        return found

    def solve(task: LayerTask) -> LayerAnswer:
        name = task.layer.name
        if name in found:
            raise _Enough  # the walk of the twin
        found[name] = task.system.gradient.delta
        if task.free:
            raise _Enough
        answer = minimum_norm(task, rows="balanced")
        if answer.facts.residual > AGREEMENT:
            raise _Enough
        return answer

    # Layers found before an error stay valid.
    with suppress(_Enough, NumericsError, np.linalg.LinAlgError):
        walk(view, cache, solve, precision="float64", margin=INSIDE, linear=True)
    return found
