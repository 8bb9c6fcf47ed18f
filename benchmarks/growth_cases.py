"""Cases that `benchmarks.growth` measures, with their theory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Status of a measurement; a refusal is the library's own.
OK, REFUSED, FAILED, LONG, LARGE = "ok", "refused", "failed", "too long", "too large"


@dataclass(frozen=True)
class Case:
    """Something whose cost grows.

    Attributes
    ----------
    axis
        What grows: ``side``, ``depth``, ``batch``, ``jobs``.
    per
        What the seconds are of: a ``step`` of an iterative attack, an ``attack``, a ``call``, a
        ``run``.
    task, options
        ``module:function`` of this folder, and its options.
    seconds, memory
        What theory says of both, a key of `benchmarks.growth_fits.THEORY`; empty for nothing.
    warm
        Size of what runs first and is not measured; 0 for nothing.
    more
        Sizes beside those of the axis.
    bound
        ``module:function`` of the most MiB that a size may take, where sizes tell; empty if they
        do not. Extrapolation does not know that a factor in float32 takes the place of a dense one.
    """

    axis: str
    per: str
    task: str
    seconds: str = ""
    memory: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    warm: int = 16
    more: tuple[int, ...] = ()
    bound: str = ""


def _search(
    attack: str, few: int, many: int, theory: str, bound: str = "", **settings: Any
) -> Case:
    """Case of an iterative attack, measured with few and with many steps."""
    options = {"attack": attack, "few": few, "many": many, "settings": settings}
    return Case("side", "step", "growth_attacks:stepped", theory, theory, options, bound=bound)


BATCH = "n (n + 3072)"
SOLVING = "growth_attacks:solving_mib"
SMALL = (16, 24)  # sides at which a dense matrix still fits
CASES: Mapping[str, Case] = {
    "gradient": Case("side", "call", "growth_attacks:capture", "n", "n"),
    "R-GAP": Case("side", "attack", "growth_attacks:rgap", "n^1.5", "n log n", bound=SOLVING),
    # W's factor is made once, and solved with in each step.
    "COPA": _search("copa", 5, 45, "n log n", SOLVING),
    # From noise, since R-GAP's reconstruction would leave nothing to do.
    "Gauss-Newton": _search("gauss_newton", 2, 4, "n log n", start="normal", layers=False),
    "DLG": _search("dlg", 10, 60, "n"),
    "Inverting Gradients": _search("inverting_gradients", 10, 60, "n"),
    "GRNN": _search("grnn", 5, 25, "n"),
    "rank and c(M)": Case("side", "call", "growth_attacks:rank", "n", "n"),
    "layer, ours": Case(
        "side", "call", "growth_attacks:layer_solved", "n^1.5", "n log n", more=SMALL
    ),
    "layer, dense": Case("side", "call", "growth_attacks:layer_dense", "n^3", "n^2", more=SMALL),
    "rank and c(M) by depth": Case("depth", "call", "growth_attacks:rank_of_depth", warm=2),
    "gradient of a batch": Case("batch", "call", "growth_attacks:capture_batch", "n^2", BATCH),
    "MKOR": Case("batch", "attack", "growth_attacks:mkor", "n^2", BATCH),
    "snakemake -n": Case("jobs", "run", "growth_jobs:planned", "n", "n"),
    "snakemake": Case("jobs", "run", "growth_jobs:made", "n", "n"),
    # A single size, the number of its jobs.
    "snakemake -n, this workflow": Case("jobs", "run", "growth_jobs:planned_here", warm=0),
}
ALONE = "snakemake -n, this workflow"
WORDS = ("what", "axis", "size", "per", "status", "reason", "steps")
NUMBERS = (
    *("n", "seconds", "once_s", "jobs_s", "cpu_s", "mib", "peak_mib", "distance", "c"),
    *("predicted_s", "predicted_mib"),
)
COLUMNS = (*WORDS, *NUMBERS)
# What grows with an image's side grows with its pixels.
POWER = {"side": 2.0}
