# The last line of a run: where to look.
import atexit
import sys

# Targets after which a person is told, besides the default one.
LOOKED_AT = {"all", "figures", "tables", "claims", "results/report.html"}
THE_PAGE, THE_CLAIMS = "results/report.html", "results/claims.csv"


def where_to_look(targets):
    """One line on what there is to look at; empty where something else was asked for."""
    if targets and not LOOKED_AT & set(targets):
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


# Not after a dry run, nor in the processes of single jobs. Snakemake still says where its log is:
# the line waits for its end. Where nothing is to be done Snakemake calls no handler.
onsuccess:
    if workflow.is_main_process:
        line = where_to_look(workflow.dag_settings.targets)
        if line:
            atexit.register(print, line, file=sys.stderr)
