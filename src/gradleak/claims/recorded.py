"""Judge a recorded run again: ``python -m gradleak.claims.recorded docs/results``.

The folder holds for each paper what its verdicts rest on: `evidence.zip` with scores, c(M) and
ranks at their paths, and the tables. Judging takes a minute and needs no run. ``--write`` replaces
the claims files, summary.csv and laptop.csv, after a change of claims or of how they are judged.

A record may have `parts` at a larger scale, made by ``results/parts/...``, each a folder with the
scores of one experiment, or of some of its attacks, and their means, or with tables of one
training. A claim is judged by those if they have all that it reads.

``laptop.csv`` holds what all papers' claims came to at laptop scale, for those who run that:
``--compare results`` tells which verdicts of a run of theirs are not those of a record.
"""

import argparse
import json
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from gradleak.claims import paper_table, tally
from gradleak.claims.evaluate import Larger, evaluate
from gradleak.claims.evidence import Evidence
from gradleak.claims.load import load, load_explanations
from gradleak.claims.means import FILE as MEANS
from gradleak.claims.means import means
from gradleak.errors import ArtifactError, GradleakError
from gradleak.runtime.artifacts import FilePath, again, read_csv, write_csv
from gradleak.settings.fields import SCALES

EVIDENCE, RUN, ARTIFACTS = "evidence.zip", "run.json", "artifacts.csv"
PARTS = "parts"  # folder of a record
FILES = dict(zip(tally.KINDS, ("claims.csv", "claims_ours.csv", "claims_parts.csv"), strict=True))
# Files that are not evidence, beside the tables of a paper or a part.
NO_TABLES = (*FILES.values(), ARTIFACTS, MEANS, "speed.csv")
# Verdicts at this scale, by claim, are kept after a paper was recorded at a larger one.
SMALL, BRIEF = "laptop", ["paper", "id", "verdict", "ours", "low", "high", "n"]
# Columns of artifacts.csv that files of one job share.
TOOK = ["threads", "seconds", "cpu_seconds", "peak_mib", "gpu"]


def judge(folder: FilePath, claims: FilePath) -> pd.DataFrame:
    """Judge the claims of a paper by its recorded run in `folder`.

    Raises `ArtifactError` or `ConfigError` if a file is missing or damaged.
    """
    place, source = Path(folder), Path(claims)
    told = run(place)
    file, why = load(source), source.with_name("explanations.yaml")
    explained = load_explanations(why, file) if why.exists() else None
    given = _whole(place), told["images"], told["scale"]
    return evaluate(file, *given, explanations=explained, larger=_larger(place))


def tables(folder: FilePath, claims: FilePath) -> dict[str, pd.DataFrame]:
    """A record's tables that show the paper's numbers beside ours, by file name, as of today.

    Raises as `judge`.
    """
    place, file = Path(folder), load(Path(claims))
    told, evidence, larger = run(place), _whole(place), _larger(place)
    names = {claim.cell.table for claim in file.claims if claim.cell is not None}
    out = {}
    for name in sorted(name for name in names if (place / f"{name}.csv").exists()):
        found = paper_table.table(file, evidence, name, told["images"], told["scale"], larger)
        out[f"{name}.csv"] = found[found["paper"].notna()]
    return out


def parts(folder: FilePath) -> list[Path]:
    """Folders of the parts of a record, the largest scale first."""
    found = sorted(path.parent for path in Path(folder, PARTS).glob(f"*/{EVIDENCE}"))
    return sorted(found, key=lambda part: -SCALES.index(run(part)["scale"]))


def means_of(part: FilePath) -> pd.DataFrame:
    """Means of a part's scores, see `gradleak.claims.means`; raises as `judge`."""
    place = Path(part)
    with _unpacked(place / EVIDENCE) as unpacked:
        return means(Evidence.read(**_layers([unpacked])), str(run(place)["images"]))


def run(folder: Path) -> dict[str, Any]:
    """Read what a record says of its run; raise `ArtifactError` if that is missing or damaged."""
    path = folder / RUN
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        words = f"{path} cannot be read ({error}); restore or record it."
        raise ArtifactError(words) from error


@contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as place:
        try:
            with zipfile.ZipFile(path) as archive:
                archive.extractall(place)
        except (OSError, zipfile.BadZipFile) as error:
            words = f"{path} cannot be read ({error}); restore or record it."
            raise ArtifactError(words) from error
        yield Path(place)


def _whole(folder: Path) -> Evidence:
    """Evidence of a record without its parts."""
    found = _tables(folder)
    index = [path for path in found if path.stem.endswith("_index")]
    with _unpacked(folder / EVIDENCE) as unpacked:
        return Evidence.read(**_layers([unpacked]), index=index, tables=found)


def _larger(folder: Path) -> Larger:
    """Evidence of a record's parts by scale, the largest first."""
    scales: dict[str, list[Path]] = {}
    for part in parts(folder):
        told, own = run(part), run(folder)["images"]
        if told["images"] != own:
            raise ArtifactError(
                f"{part} is of images: {told['images']}, and the record beside it of images: "
                f"{own}; take it out."
            )
        scales.setdefault(told["scale"], []).append(part)
    out = []
    for scale, places in scales.items():
        with ExitStack() as stack:
            unpacked = [stack.enter_context(_unpacked(place / EVIDENCE)) for place in places]
            _check_apart(dict(zip(places, unpacked, strict=True)))
            tables = [path for place in places for path in _tables(place)]
            out.append((Evidence.read(**_layers(unpacked), tables=tables), str(scale)))
    return out


def _check_apart(places: Mapping[Path, Path]) -> None:
    """Refuse parts, by folder with what they were unpacked to, that hold the same file."""
    held: dict[str, Path] = {}
    for part, unpacked in places.items():
        for path in sorted(unpacked.rglob("*.csv")):
            name = path.relative_to(unpacked).as_posix()
            if (other := held.setdefault(name, part)) != part:
                raise ArtifactError(f"{other} and {part} both hold {name}; take one of them out.")


def _tables(folder: Path) -> list[Path]:
    """Tables in a folder of a record that are evidence."""
    return [path for path in sorted(folder.glob("*.csv")) if path.name not in NO_TABLES]


def _layers(unpacked: list[Path]) -> dict[str, list[Path]]:
    """Files of scores, c(M) and ranks in folders, by kind."""
    kinds = ("scores", "security", "rank")
    return {
        kind: [path for one in unpacked for path in sorted(one.glob(f"results/{kind}/**/*.csv"))]
        for kind in kinds
    }


def write(folder: FilePath, judged: pd.DataFrame, shown: Mapping[str, pd.DataFrame]) -> None:
    """Write the claims files of a paper's record, and the tables `shown` by file name."""
    for kind, name in FILES.items():
        write_csv(Path(folder, name), tally.of_kind(judged, kind))
    for name, table in shown.items():
        write_csv(Path(folder, name), table)


def summary(folder: FilePath) -> pd.DataFrame:
    """Two rows for each paper of a record: counts of claims by verdict, of tests, results and jobs.

    ``cpu_minutes`` are those of all jobs behind the paper's figures and tables.
    """
    places = sorted(path.parent for path in Path(folder).glob(f"*/{EVIDENCE}"))
    frames = [tally.read(place / name) for place in places for name in FILES.values()]
    return tally.summary(pd.concat(frames), {place.name: _sizes(place) for place in places})


def brief(folder: FilePath) -> pd.DataFrame:
    """Verdicts of all papers' claims at scale `SMALL`.

    Those of claims judged at another scale are the ones that ``laptop.csv`` has already.
    """
    path = Path(folder, f"{SMALL}.csv")
    kept = tally.read(path, BRIEF) if path.exists() else pd.DataFrame(columns=BRIEF)
    frames = []
    for place in sorted(found.parent for found in Path(folder).glob(f"*/{EVIDENCE}")):
        own = pd.concat([tally.read(place / name) for name in FILES.values()])
        now = own.loc[own["scale"] == SMALL, BRIEF]
        before = kept[kept["id"].isin({*own["id"]} - {*now["id"]})]
        both = pd.concat([part for part in (now, before) if len(part)] or [now]).set_index("id")
        frames.append(both.reindex(own["id"][own["id"].isin(both.index)]).reset_index()[BRIEF])
    return pd.concat(frames, ignore_index=True)


def compare(made: FilePath, folder: FilePath) -> list[str]:
    """Sentences on how the claims files of a run in `made` differ from the records in `folder`.

    One for each of the run's papers, and one for each verdict that is another. Raises
    `ArtifactError` if none of them is recorded on the run's images at its scale.
    """
    columns = ("paper", "id", "verdict", "images", "scale")
    frame = pd.concat([tally.read(Path(made, name), columns) for name in FILES.values()])
    if frame.empty:
        raise ArtifactError(f"{made} has no claims to compare; {again(Path(made, 'claims.csv'))}.")
    images, scale = str(frame["images"].iloc[0]), str(frame["scale"].iloc[0])
    records = {path.parent.name: path.parent for path in Path(folder).glob(f"*/{EVIDENCE}")}
    if not records:
        raise ArtifactError(f"{folder} holds no paper's {EVIDENCE}; name a record.")
    known = {
        name: pd.concat([tally.read(place / file) for file in FILES.values()])
        for name, place in sorted(records.items())
    }
    cases = {
        name: (str(kept["images"].iloc[0]), tally.scales(kept)) for name, kept in known.items()
    }
    small, out, found = brief(folder), list[str](), False
    for name in sorted(known.keys() & set(frame["paper"])):
        own, kept = frame[frame["paper"] == name], known[name]
        kept = small[small["paper"] == name] if scale == SMALL else kept[kept["scale"] == scale]
        if images == cases[name][0] and len(kept):
            out += _compared(name, *(one.set_index("id")["verdict"] for one in (own, kept)))
            found = True
        else:
            out.append(f"{name}: recorded on images: {cases[name][0]} at scale: {cases[name][1]}")
    if not found:
        which = ", ".join(f"{name} ({' '.join(one)})" for name, one in cases.items())
        raise ArtifactError(
            f"{made} is of images: {images} at scale: {scale}, of which {folder} has no record; "
            f"recorded are {which}, and verdicts at scale: {SMALL}."
        )
    return out


def _compared(paper: str, verdicts: pd.Series, known: pd.Series) -> list[str]:
    """Sentences on how verdicts of a paper, by claim, differ from those `known`."""
    both = verdicts.index[verdicts.index.isin(known.index)]
    other = both[verdicts[both] != known[both]]
    told = f"{paper}: {len(both) - len(other)} of {len(known)} verdicts as recorded"
    for count, what in (
        (len(known) - len(both), "recorded but not in this run"),
        (len(verdicts) - len(both), "in this run but not recorded"),
    ):
        told += f", {count} {what}" if count else ""
    pairs = zip(other, known[other], verdicts[other], strict=True)
    return [told, *(f"{claim}: recorded as {before}, here {now}" for claim, before, now in pairs)]


def _sizes(place: Path) -> dict[str, float]:
    """Figures, tables, jobs and their CPU time; outputs of one job have one cost."""
    files = [read_csv(one / ARTIFACTS) for one in (place, *parts(place))]
    made = pd.concat(files).drop_duplicates("artifact")
    jobs = made.drop_duplicates(["rule", *TOOK])
    paths = made["artifact"]
    return {
        "figures": int((paths.str.startswith("figures/") & paths.str.endswith(".pdf")).sum()),
        "tables": int(paths.str.startswith("results/tables/").sum()),
        "jobs": len(jobs),
        "cpu_minutes": round(jobs["cpu_seconds"].sum() / 60, 1),
    }


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns 1 if the recorded verdicts are not today's."""
    parser = argparse.ArgumentParser(prog="python -m gradleak.claims.recorded", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("docs/results"))
    parser.add_argument("--papers", type=Path, default=Path("papers"), help="their claims")
    what = parser.add_mutually_exclusive_group()
    words = "replace the recorded verdicts, summary.csv and laptop.csv"
    what.add_argument("--write", action="store_true", help=words)
    words = "tell how the claims files of a run in this folder differ from the record"
    what.add_argument("--compare", type=Path, metavar="RESULTS", help=words)
    given = parser.parse_args(arguments)
    try:
        if given.compare:
            print("\n".join(compare(given.compare, given.folder)))
            return 0
        changed = [
            _again(path.parent, given) for path in sorted(given.folder.glob(f"*/{EVIDENCE}"))
        ]
        if not changed:
            raise ArtifactError(f"{given.folder} holds no paper's {EVIDENCE}; name a record.")
        if given.write:
            write_csv(given.folder / "summary.csv", summary(given.folder))
            write_csv(given.folder / f"{SMALL}.csv", brief(given.folder))
    except GradleakError as error:
        print(error, file=sys.stderr)
        return 2
    return int(any(changed) and not given.write)


def _again(place: Path, given: argparse.Namespace) -> bool:
    """Judge a paper again, and tell which verdicts are not those recorded."""
    judged = judge(place, given.papers / place.name / "claims.yaml")
    now = judged.set_index("id")["verdict"]
    files = [place / name for name in FILES.values() if (place / name).exists()]
    before = pd.concat(map(tally.read, files)).set_index("id")["verdict"] if files else now[:0]
    print(f"{place.name}: {', '.join(f'{n} {v}' for v, n in now.value_counts().items())}")
    both = sorted({str(name) for name in (*now.index, *before.index)})
    changed = [name for name in both if now.get(name) != before.get(name)]
    for name in changed:
        print(f"{name}: recorded as {before.get(name)}, now {now.get(name)}")
    if given.write:
        write(place, judged, tables(place, given.papers / place.name / "claims.yaml"))
        for part in parts(place):
            if (part / MEANS).exists():
                write_csv(part / MEANS, means_of(part))
    return bool(changed)


if __name__ == "__main__":
    sys.exit(main())
