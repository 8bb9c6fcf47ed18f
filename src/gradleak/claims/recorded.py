"""Judge a recorded run again: ``python -m gradleak.claims.recorded docs/results``.

The folder holds for each paper what its verdicts rest on: `evidence.zip` with scores, c(M) and
ranks at their paths, and the tables. Judging takes seconds and needs no run. ``--write`` replaces
the claims files and the counts of summary.csv, after a change of claims or of how they are judged.
"""

import argparse
import json
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from gradleak.claims import tally
from gradleak.claims.evaluate import evaluate
from gradleak.claims.evidence import Evidence
from gradleak.claims.load import load, load_explanations
from gradleak.errors import ArtifactError, GradleakError
from gradleak.runtime.artifacts import read_csv, write_csv

EVIDENCE = "evidence.zip"
SIZES = ("figures", "tables", "jobs", "cpu_minutes")  # columns of summary.csv about the run
FILES = {"paper": "claims.csv", "ours": "claims_ours.csv"}  # by whose claims they hold
# Files that are not evidence, beside the tables of a paper.
NO_TABLES = (*FILES.values(), "artifacts.csv", "speed.csv")


def judge(folder: Path, papers: Path) -> pd.DataFrame:
    """Judge the claims in ``papers/*/claims.yaml`` by a recorded run, all papers in one table.

    Papers that the record has no evidence of are left out. Raises `ArtifactError` or `ConfigError`
    if a file is missing or damaged.
    """
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    found = []
    for path in sorted(papers.glob("*/claims.yaml")):
        claims = load(path)
        if not (folder / claims.paper / EVIDENCE).exists():
            continue
        why = path.with_name("explanations.yaml")
        explained = load_explanations(why, claims) if why.exists() else None
        with _unpacked(folder / claims.paper) as place:
            evidence = _evidence(place, folder / claims.paper)
            case = run["images"], run["scale"]
            found.append(evaluate(claims, evidence, *case, explanations=explained))
    if not found:
        raise ArtifactError(f"{folder} holds no paper's {EVIDENCE}; name the folder of a record.")
    return pd.concat(found, ignore_index=True)


@contextmanager
def _unpacked(folder: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as place:
        try:
            with zipfile.ZipFile(folder / EVIDENCE) as archive:
                archive.extractall(place)
        except (OSError, zipfile.BadZipFile) as error:
            raise ArtifactError(
                f"{folder / EVIDENCE} cannot be read ({error}); restore or record it."
            ) from error
        yield Path(place)


def _evidence(unpacked: Path, folder: Path) -> Evidence:
    scores, security, rank = (
        sorted(unpacked.glob(f"results/{kind}/**/*.csv")) for kind in ("scores", "security", "rank")
    )
    tables = [path for path in sorted(folder.glob("*.csv")) if path.name not in NO_TABLES]
    index = [path for path in tables if path.stem.endswith("_index")]
    return Evidence.read(scores, security, index, rank, tables)


def write(folder: Path, judged: pd.DataFrame) -> None:
    """Replace the claims files of a recorded run, and the counts in its summary.csv."""
    old = read_csv(folder / "summary.csv")
    sizes = {str(row["paper"]): {key: row[key] for key in SIZES} for row in old.to_dict("records")}
    for paper in judged["paper"].unique():
        for whose, name in FILES.items():
            own = judged[(judged["paper"] == paper) & (judged["whose"] == whose)]
            write_csv(folder / paper / name, own)
    kept = old[~old["paper"].isin(judged["paper"])]
    write_csv(folder / "summary.csv", pd.concat([tally.summary(judged, sizes), kept]))


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns 1 if the recorded verdicts are not today's."""
    parser = argparse.ArgumentParser(prog="python -m gradleak.claims.recorded", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("docs/results"))
    parser.add_argument("--papers", type=Path, default=Path("papers"), help="their claims")
    parser.add_argument("--write", action="store_true", help="replace the recorded verdicts")
    given = parser.parse_args(arguments)
    try:
        judged = judge(given.folder, given.papers)
        if given.write:
            write(given.folder, judged)
        names = FILES.values()
        papers = judged["paper"].unique()
        files = [given.folder / paper / name for paper in papers for name in names]
        before = pd.concat(map(tally.read, files)).set_index("id")["verdict"]
    except GradleakError as error:
        print(error, file=sys.stderr)
        return 2
    now = judged.set_index("id")["verdict"]
    print(judged.groupby(["paper", "whose", "verdict"], sort=False).size().to_string())
    changed = sorted(set(now.items()) ^ set(before.items()))
    for name in dict.fromkeys(name for name, _ in changed):
        print(f"{name}: recorded as {before.get(name)}, now {now.get(name)}")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
