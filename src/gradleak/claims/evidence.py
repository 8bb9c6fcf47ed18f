"""Evidence: tables of our scores, security, ranks and index, and how queries select from them."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from gradleak.claims.metrics import OF_CLASSES, OF_IMAGES, PEAKS
from gradleak.claims.outcome import NotJudged
from gradleak.claims.statement import LAYERED, Answers, Side, Where, describe, items
from gradleak.claims.statistics import MSE_FLOOR
from gradleak.errors import ArtifactError
from gradleak.runtime import tidy
from gradleak.runtime.artifacts import read_csv

NETWORK = ["model", "seed", "index"]
LAYER = ["result", *NETWORK, "layer"]
ANSWER = [*tidy.RUN, "answer"]
LAYER_COLUMNS = {
    "security": [*NETWORK, "layer", "contribution"],
    "rank": [*NETWORK, "layer", "unknowns", "weights", "outputs"],
}
# Columns of the rank table that depend on the image; of all others the first image's count.
PER_IMAGE = ("condition", "condition_padding")
# Statuses in rows of `OF_CLASSES` for classes that were not missed: absent from the batch and not
# reconstructed, or reconstructed without need.
NOT_THERE = ("absent", "phantom")
MISSED = "missed"
# A metric that could not be computed for an existing reconstruction; the run did not fail.
NOT_AVAILABLE = "not_available"
STATUSES = ("ok", "failed", "not_applicable", NOT_AVAILABLE, MISSED, *NOT_THERE)
AGAIN = "delete the file and ask Snakemake for it again"
Paths = Iterable[str | Path]


def _read(path: str | Path, columns: list[str]) -> pd.DataFrame:
    return read_csv(path, columns, dtype=str, keep_default_na=False)


def _numbers(frame: pd.DataFrame, column: str, source: object) -> pd.Series:
    """Read a column as floats, NaN where empty; raise an error for text that is not a number."""
    numbers = pd.to_numeric(frame[column], errors="coerce")
    text = frame[column].str.strip().str.lower()
    wrong = np.flatnonzero(numbers.isna() & ~text.isin(["", "nan"]))
    if wrong.size:
        raise ArtifactError(
            f"{source}, line {wrong[0] + 2}, column '{column}': {frame[column].iloc[wrong[0]]!r} "
            f"is no number; {AGAIN}."
        )
    return numbers.astype(float)


def _read_scores(path: str | Path) -> pd.DataFrame:
    frame = _read(path, [*tidy.SCORES, "answer", "kind"])
    frame["value"] = _numbers(frame, "value", path)
    faults = {
        f"status is not one of {', '.join(STATUSES)}": ~frame["status"].isin(STATUSES),
        "status is ok but there is no value": (frame["status"] == "ok") & frame["value"].isna(),
    }
    for words, wrong in faults.items():
        if wrong.any():
            raise ArtifactError(f"{path}, line {np.flatnonzero(wrong)[0] + 2}: {words}; {AGAIN}.")
    return frame


def _read_layers(path: str | Path, table: str) -> pd.DataFrame:
    """Read one row per layer, with its position; the file's folder is named after the result."""
    frame = _read(path, LAYER_COLUMNS[table])
    frame["result"] = Path(path).parent.name
    frame["position"] = (frame.groupby(NETWORK, sort=False).cumcount() + 1).astype(str)
    if table == "rank":
        x, w, z = (_numbers(frame, key, path) for key in ("unknowns", "weights", "outputs"))
        frame["local"] = (x - w - z).astype(str)
    return frame


def _read_index(path: str | Path) -> pd.DataFrame:
    """Read one row per network; a tidy table (row, column, metric, ours) is pivoted."""
    frame = _read(path, [])
    if "network" in frame:
        return frame[frame["network"] != ""]
    if not {"row", "column", "metric", "ours"} <= set(frame):
        raise ArtifactError(
            f"{path} has no column 'network'; delete it and ask Snakemake for it again."
        )
    names = frame["metric"] + "_" + frame["column"].str.lower()
    frame["name"] = names.where(frame["metric"] != frame["column"], frame["metric"])
    wide = frame.pivot_table(index="row", columns="name", values="ours", aggfunc="first")
    return wide.rename_axis(index="network", columns=None).reset_index().fillna("")


def _joined(parts: Iterable[pd.DataFrame]) -> pd.DataFrame:
    found = list(parts)
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


@dataclass(frozen=True, eq=False)
class Evidence:
    """Tidy tables of our results; all columns but ``value`` are text."""

    scores: pd.DataFrame = field(default_factory=pd.DataFrame)  # one row per run and metric
    # By file name. Tables of layers (security, rank) have a row per result, model, seed, index and
    # layer, with its ``position`` from 1; rank also has ``local`` = |x| − |W| − |z|.
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    # By file name, with one row per network: ``network``, ``c``, ``mse_copa``, ``mse_rgap``, …
    index: dict[str, pd.DataFrame] = field(default_factory=dict)
    images: str = ""  # image source of the runs: embedded or real
    # Cache of selections, since many claims share them.
    selections: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def read(
        cls, scores: Paths = (), security: Paths = (), index: Paths = (), rank: Paths = (),
        tables: Paths = (),
    ) -> Self:  # fmt: skip
        """Read lists of CSV files; an empty list is missing evidence. Tables of a name are joined.

        Raises `ArtifactError` if a file is missing or not a table, lacks a column or has text for a
        number.
        """
        each: dict[str, list[pd.DataFrame]] = {}
        for path in tables:
            each.setdefault(Path(path).stem, []).append(_read(path, []))
        found = {name: _joined(parts).fillna("") for name, parts in each.items()}
        for name, paths in (("security", security), ("rank", rank)):
            found[name] = _joined(_read_layers(path, name) for path in paths)
        networks = {Path(path).stem: _read_index(path) for path in index}
        return cls(_joined(map(_read_scores, scores)), found, networks)

    def on(self, images: str) -> Self:
        """Restrict to runs on ``embedded`` or ``real`` images."""
        return replace(self, images=images)

    def runs(self, where: Where, metric: str, answers: Answers = "own") -> pd.DataFrame:
        """Select runs: ``model, seed, batch, index, answer, value, ok, missed``.

        Failed or inapplicable runs have the value NaN, also where they have no row, and so do
        images that the attack did not find, marked in ``missed``. PSNR is capped at the value for
        an MSE of 1e-30. Without ``answer`` or ``kind`` in `where`, `answers` applies: ``own`` is
        the attack's choice, ``all`` includes its other restarts and twins.

        Raises `NotJudged` if a selected value has no runs, or the metric needs network weights that
        are missing, and `ArtifactError` if a run is duplicated.
        """
        frame = self.scores
        if frame.empty:
            raise NotJudged("data: there are no scores")
        if answers == "own" and not {"answer", "kind"} & where.keys():
            where = {**where, "answer": "0"}
        kept = (frame["images"] == self.images) & ~frame["status"].isin(NOT_THERE)
        found = _with_failures(frame[_mask(frame, where) & kept], metric, "attack" in where)
        for key, wanted in where.items():
            for item in items(wanted):
                if not (found[key] == item).any():
                    lacking = describe({**where, key: item})
                    raise NotJudged(f"data: no {metric} on {self.images} images for {lacking}")
        if found.empty:
            raise NotJudged(f"data: no {metric} on {self.images} images")
        reasons = found.loc[found["status"] == NOT_AVAILABLE, "reason"]
        if not reasons.empty:
            raise NotJudged(f"weights: {str(reasons.iloc[0]).rstrip('.')}")
        # Two classes may have the same name, as ImageNet's cranes.
        if metric != OF_CLASSES and len(twice := found[found.duplicated(ANSWER)]):
            row = twice.iloc[0]
            raise ArtifactError(
                f"Scores hold two values of {metric} for {row['attack']} on {row['model']}, seed "
                f"{row['seed']}, index {row['index']}; hand over one file of each, or name the "
                f"difference (such as precision) in the claim's where."
            )
        ok = found["status"] == "ok"
        value = found["value"].where(ok)
        if metric in PEAKS:
            value = value.clip(upper=10 * np.log10(PEAKS[metric] ** 2 / MSE_FLOOR))
        place = found[["model", "seed", "batch", "index", "answer"]]
        missed = found["status"] == MISSED
        return place.assign(value=value, ok=ok, missed=missed).reset_index(drop=True)

    def column(self, side: Side) -> np.ndarray:
        """Values of a column of a table; summed over a model's layers if ``total``.

        Raises `NotJudged` if they are missing or one is empty, and `ArtifactError` if a layer is
        duplicated, or a value is not a number.
        """
        layered = side.table in LAYERED
        frame = self.tables.get(side.table, pd.DataFrame())
        name = f"{side.table} table" if layered else f"table {side.table}"
        if frame.empty:
            raise NotJudged(f"data: there is no {name}")
        if side.column not in frame:
            raise NotJudged(f"data: the {name} has no column '{side.column}'")
        found = frame[_mask(frame, side.where)]
        if found.empty:
            raise NotJudged(f"data: the {name} has nothing for {describe(side.where)}")
        if layered and len(twice := found[found.duplicated(LAYER)]):
            row = twice.iloc[0]
            raise ArtifactError(
                f"The {name} holds layer {row['layer']} of {row['model']} twice; hand over one "
                f"file of each model."
            )
        if side.table == "rank" and side.column not in PER_IMAGE:
            found = found.drop_duplicates([key for key in LAYER if key != "index"])
        numbers = _numbers(found, side.column, name)
        if side.total:
            numbers = numbers.groupby([found[key] for key in LAYER[:-1]]).sum(min_count=1)
        if numbers.isna().any():
            raise NotJudged(f"data: column '{side.column}' of the {name} is empty in places")
        return numbers.to_numpy()

    def networks(self, x: str, y: str, table: str) -> tuple[np.ndarray, np.ndarray, int]:
        """Return two columns of an index table and the number of networks that have both.

        Networks without `x` are left out; an empty `y` is a failed attack and counts as infinite.
        """
        frame = self.index.get(table, pd.DataFrame())
        if frame.empty:
            raise NotJudged(f"data: there is no table {table}")
        for column in (x, y):
            if column not in frame:
                raise NotJudged(f"data: table {table} has no column '{column}'")
        first, second = (_numbers(frame, column, f"table {table}") for column in (x, y))
        first, second = first[first.notna()], second[first.notna()]
        return first.to_numpy(), second.fillna(np.inf).to_numpy(), int(second.notna().sum())


def _mask(frame: pd.DataFrame, where: Where) -> pd.Series:
    mask = pd.Series(True, index=frame.index)
    for key, wanted in where.items():
        if key not in frame:
            raise NotJudged(f"data: our results have no column '{key}'")
        mask &= frame[key].isin(items(wanted))
    return mask


def _with_failures(frame: pd.DataFrame, metric: str, one_attack: bool) -> pd.DataFrame:
    """Rows of `metric`, and one for every failed run that has none."""
    found = frame[frame["metric"] == metric]
    worked = frame["status"].isin(("ok", NOT_AVAILABLE))
    # A missed class is not a failure of an image, and a missed image is not one of its batch.
    failed = frame[~worked & (frame["metric"] != OF_CLASSES)]
    run = ANSWER
    if metric not in OF_IMAGES:
        failed = failed[failed["status"] != MISSED]
        run = [key for key in ANSWER if key != "index"]
    if failed.empty:
        return found
    if not one_attack:  # only failures of attacks that have this metric elsewhere count
        failed = failed[failed["attack"].isin(found["attack"].unique())]
    failed = failed.drop_duplicates(run)
    lacking = ~failed.set_index(run).index.isin(found.set_index(run).index)
    return pd.concat([found, failed[lacking]])
