"""Last lines of a run: where to find the results."""

import atexit
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from gradleak.pipeline.run_output import hints

PAGE, CLAIMS = "results/report.html", "results/claims.csv"
# Targets followed by one summary line, like the default one; others by their paths.
LOOKED_AT = {"all", "figures", "tables", "claims", PAGE}


def where_to_look(targets: Collection[str], figures: Sequence[str], tables: Sequence[str]) -> str:
    """One line on the results to look at; empty if something else was requested."""
    if targets and not set(targets) <= LOOKED_AT:
        return ""
    page = PAGE in targets or _is_current([*figures, *tables, CLAIMS])
    there = [PAGE] * page + [CLAIMS] * Path(CLAIMS).exists()
    if made := [path for path in figures if Path(path).exists()]:
        there.append(f"figures/ ({len(made)} of {len(figures)} figures)")
    more = "" if page else f" `snakemake {PAGE}` puts them on one page."
    return f"Look at {', '.join(there)}.{more}" if there else ""


def _is_current(results: Sequence[str]) -> bool:
    """Return whether the page is newer than its contents: `all` does not rebuild it."""
    times = [path.stat().st_mtime_ns for path in map(Path, results) if path.exists()]
    return Path(PAGE).exists() and max(times, default=0) <= Path(PAGE).stat().st_mtime_ns


def last_lines(workflow: Any, figures: Sequence[str], tables: Sequence[str]) -> list[str]:
    """Locations of the requested results."""
    targets = workflow.dag_settings.targets
    line = where_to_look(targets, figures, tables)
    return [line] if line else hints.shortened(hints.asked_for(workflow.dag.targetjobs, targets))


def tell_at_the_end(workflow: Any, figures: Sequence[str], tables: Sequence[str]) -> None:
    """Print the last lines when Snakemake has printed its own."""
    atexit.register(
        lambda: print(*last_lines(workflow, figures, tables), sep="\n", file=sys.stderr)
    )
