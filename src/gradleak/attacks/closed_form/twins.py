"""Choice among several reconstructions from one gradient (R-GAP appendix B)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gradleak.attacks.base import AttackerView, Reconstruction
from gradleak.attacks.closed_form.last_layer import DECISIVE, SMALL

# Root mean square distance outside the input range that errors may cause, as a fraction of it.
OUTSIDE = 0.05


def choose(found: Sequence[Reconstruction], view: AttackerView) -> Reconstruction:
    """Return the most plausible reconstruction, with the others as its twins.

    The rule uses only the attacker's view, in this order:

    1. A reconstruction whose worst layer residual is more than `DECISIVE` times another's (and
       above rounding) is refuted and comes last, with that as its ``failure``; so does one that
       the attack itself considers failed.
    2. A reconstruction in the input range, to `OUTSIDE` of that range in the root mean square,
       comes before one outside it; of two outside, the nearer one first.
    3. Of two inside, the one with more contrast (standard deviation) comes first: the twin of an
       image that the network already fits is a faint copy of it. Both fit then, and ``stop`` says
       so.
    """
    if len(found) == 1:
        return found[0]
    worst = [max(layer.residual for layer in one.layers) for one in found]
    limit = max(DECISIVE * min(worst), SMALL)
    span = view.high - view.low
    ranked = []
    for one, residual in zip(found, worst, strict=True):
        refuted = residual > limit or bool(one.failure)
        beyond = one.images - np.clip(one.images, view.low, view.high)
        outside = float(np.sqrt(np.mean(np.square(beyond)))) / span
        inside = outside <= OUTSIDE
        order = (refuted, not inside, -float(one.images.std()) if inside else outside)
        better = f"A twin fits the layers better (residual {residual:.1g})." if refuted else ""
        ranked.append((order, replace(one, kind="twin", failure=one.failure or better)))
    ranked.sort(key=lambda pair: pair[0])
    fitting = sum(not refuted and not outside for (refuted, outside, _), _ in ranked)
    chosen = ranked[0][1]
    verdict = f"{fitting} answers fit" if fitting > 1 else "its twin is less plausible"
    others = tuple(one for _, one in ranked[1:])
    return replace(chosen, kind="answer", stop=f"{chosen.stop}; {verdict}", others=others)
