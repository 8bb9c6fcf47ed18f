"""gradleak: gradient leakage, four papers replicated as one pipeline, and its attacks as functions.

    shared = gradleak.capture(model, images, labels)         # a gradient, by parameter
    found = gradleak.invert(shared, model, (3, 32, 32))      # images from it, here by R-GAP
    gradleak.score(images, found)                            # MSE, PSNR, SSIM

``capture`` with a ``Recipe`` gives the ``Update`` of a client that takes several steps, and
``check`` says what does not fit in what a client shared. ``rank`` counts what a network's layers
leave open, ``defend`` changes a gradient before it is shared, ``poison`` makes weights as a
malicious server would, ``inspect`` looks for such weights, and ``audit`` attacks a network in every
way. ``gradleak.adapters`` has a mod for Flower and
Opacus' budget.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gradleak.runtime.version import __version__

if TYPE_CHECKING:
    from gradleak.client.local_training import Recipe as Recipe
    from gradleak.library.attacker import Inversion as Inversion
    from gradleak.library.capture import capture as capture
    from gradleak.library.check import Check as Check
    from gradleak.library.check import check as check
    from gradleak.library.defend import defend as defend
    from gradleak.library.inspect import Inspection as Inspection
    from gradleak.library.inspect import inspect as inspect
    from gradleak.library.invert import invert as invert
    from gradleak.library.poison import poison as poison
    from gradleak.library.rank import Ranks as Ranks
    from gradleak.library.rank import rank as rank
    from gradleak.library.score import score as score
    from gradleak.library.update import Update as Update
    from gradleak_audit.api import audit as audit

_HOMES = {
    "audit": "gradleak_audit.api",
    "capture": "gradleak.library.capture",
    "check": "gradleak.library.check",
    "Check": "gradleak.library.check",
    "defend": "gradleak.library.defend",
    "inspect": "gradleak.library.inspect",
    "Inspection": "gradleak.library.inspect",
    "invert": "gradleak.library.invert",
    "Inversion": "gradleak.library.attacker",
    "poison": "gradleak.library.poison",
    "rank": "gradleak.library.rank",
    "Ranks": "gradleak.library.rank",
    "Recipe": "gradleak.client.local_training",
    "score": "gradleak.library.score",
    "Update": "gradleak.library.update",
}
__all__ = [
    "Check",
    "Inspection",
    "Inversion",
    "Ranks",
    "Recipe",
    "Update",
    "__version__",
    "audit",
    "capture",
    "check",
    "defend",
    "inspect",
    "invert",
    "poison",
    "rank",
    "score",
]


def __getattr__(name: str) -> Any:
    """Import a function, and with it PyTorch, on first use.

    By name: import statements would put the code of all of them into every code hash.
    """
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'gradleak' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
