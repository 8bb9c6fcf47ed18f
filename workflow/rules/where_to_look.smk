# The last lines of a run: where to look.
import atexit
import sys

from gradleak.run_output import hints

# Targets after which one line says it, as after the default one; after others stand their paths.
LOOKED_AT = {"all", "figures", "tables", "claims", "results/report.html"}
THE_PAGE, THE_CLAIMS = "results/report.html", "results/claims.csv"


def where_to_look(targets):
    """One line on what there is to look at; empty where something else was asked for."""
    if targets and not set(targets) <= LOOKED_AT:
        return ""
    page = THE_PAGE in targets or is_current(THE_PAGE)
    there = [THE_PAGE] if page else []
    there += [THE_CLAIMS] if Path(THE_CLAIMS).exists() else []
    made = [path for path in FIGURES if Path(path).exists()]
    if made:
        there.append(f"figures/ ({len(made)} of {len(FIGURES)} figures)")
    if not there:
        return ""
    more = "" if page else f" `snakemake {THE_PAGE}` puts them on one page."
    return f"Look at {', '.join(there)}.{more}"


def is_current(page):
    """Whether a page is as new as all that it shows: `all` does not make it anew."""
    if not Path(page).exists():
        return False
    shown = [path for path in (*FIGURES, *TABLES, THE_CLAIMS) if Path(path).exists()]
    made = Path(page).stat().st_mtime_ns
    return all(Path(path).stat().st_mtime_ns <= made for path in shown)


def last_lines():
    """Where what was asked for lies."""
    targets = workflow.dag_settings.targets
    line = where_to_look(targets)
    return [line] if line else hints.shortened(hints.asked_for(workflow.dag.targetjobs, targets))


def tell_at_the_end():
    """Print the last lines when Snakemake has printed its own."""
    for line in last_lines():
        print(line, file=sys.stderr)


# Not after a dry run, nor in the processes of single jobs.
onsuccess:
    if workflow.is_main_process:
        atexit.register(tell_at_the_end)


# Where nothing is to be done Snakemake calls no handler.
if OUTPUT is not None:
    OUTPUT.ending = last_lines
