"""Evidence: our scores, security, rank and index tables, and how a query selects from them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gradleak import columns
from gradleak.artifacts import read_csv
from gradleak.claims.queries import LAYERED, Answers, Side, Where
from gradleak.errors import ArtifactError

LAYER_COLUMNS = {
    "security": ["model", "layer", "contribution"],
    "rank": ["model", "layer", "unknowns", "weights", "outputs"],
}
# Columns of the rank table that another image changes; of the others the first image's count.
PER_IMAGE = ("condition", "condition_padding")
# Metrics that each image of a batch has; of the others a batch has one.
OF_IMAGES = (
    "mse",
    "psnr",
    "psnr_255",
    "psnr_scaled",
    "psnr_class_mean",
    "ssim",
    "ssim_gauss",
    "rmse_255",
    "psnr_rmse",
    "ssim_255",
    "lpips_alex",
    "lpips_squeeze",
    "lpips_vgg",
    "lpips_alex_255",
    "lpips_vgg_255",
    "coefficient",
    "duplicates",
)
# The metric that each class of a batch has, and what its rows say of classes that nobody missed:
# not in the batch and not answered, or answered for nothing.
OF_CLASSES = "count"
NOT_THERE = ("absent", "phantom")
MISSED = "missed"
# A metric that could not be computed, of an answer that is there: no run failed.
NOT_AVAILABLE = "not_available"
# What a score file of an attack with one answer may leave out.
ONE_ANSWER = {"answer": "0", "kind": "answer"}
STATUSES = ("ok", "failed", "not_applicable", NOT_AVAILABLE, MISSED, *NOT_THERE)
PSNR_PEAKS = {"psnr": 1.0, "psnr_255": 255.0, "psnr_scaled": 1.0, "psnr_class_mean": 1.0}
# FedKL's PSNR takes an RMSE on 0 to 255 for an MSE; that of an MSE of 1e-30 is 255e-15.
PSNR_PEAKS["psnr_rmse"] = float(np.sqrt(255e-15))
Paths = Iterable[str | os.PathLike[str]]


class NotJudged(Exception):
    """A claim cannot be judged; the message says for want of what."""


def _read(path: str | os.PathLike[str], columns: list[str]) -> pd.DataFrame:
    return read_csv(path, columns, dtype=str, keep_default_na=False)


def _numbers(frame: pd.DataFrame, column: str, source: object) -> pd.Series:
    """Read a column as floats, NaN where it is empty; text that is no number is an error."""
    numbers = pd.to_numeric(frame[column], errors="coerce")
    text = frame[column].str.strip().str.lower()
    wrong = numbers.isna() & ~text.isin(["", "nan"])
    if wrong.any():
        line = int(np.flatnonzero(wrong)[0])
        raise ArtifactError(
            f"{source}, line {line + 2}, column '{column}': {frame[column].iloc[line]!r} is no "
            f"number; delete the file and ask Snakemake for it again."
        )
    return numbers.astype(float)


def _read_scores(path: str | os.PathLike[str]) -> pd.DataFrame:
    frame = _read(path, columns.SCORES)
    for key, value in ONE_ANSWER.items():
        if key not in frame:
            frame[key] = value
    frame["value"] = _numbers(frame, "value", path)
    unknown = ~frame["status"].isin(STATUSES)
    empty = (frame["status"] == "ok") & frame["value"].isna()
    for wrong, words in (
        (unknown, f"status is not one of {', '.join(STATUSES)}"),
        (empty, "status is ok but there is no value"),
    ):
        if wrong.any():
            line = int(np.flatnonzero(wrong)[0]) + 2
            raise ArtifactError(
                f"{path}, line {line}: {words}; delete the file and ask Snakemake for it again."
            )
    return frame


def _read_layers(path: str | os.PathLike[str], table: str) -> pd.DataFrame:
    """One row per (model, seed, index, layer), with the layer's place in its model.

    ``result`` is the experiment, which the file's folder is named after.
    """
    frame = _read(path, LAYER_COLUMNS[table])
    frame["result"] = Path(path).parent.name
    places = frame.groupby(_layer_keys(frame), sort=False).cumcount() + 1
    frame["position"] = places.astype(str)
    if table == "rank":
        sizes = {key: _numbers(frame, key, path) for key in ("unknowns", "weights", "outputs")}
        local = sizes["unknowns"] - sizes["weights"] - sizes["outputs"]
        frame["local"] = local.astype(str)
    return frame


def _layer_keys(frame: pd.DataFrame) -> list[str]:
    return [key for key in ("result", "model", "seed", "index") if key in frame]


def _read_index(path: str | os.PathLike[str]) -> pd.DataFrame:
    """One row per network; a tidy table (row, column, metric, ours) is spread out."""
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


@dataclass(frozen=True, eq=False)
class Evidence:
    """Tidy tables of our results; all columns but ``value`` are text.

    Attributes
    ----------
    scores
        A row per run and metric.
    security, rank
        A row per (result, model, seed, index, layer), with ``position`` = the layer's place from
        1; in `rank` also ``local`` = |x| − |W| − |z|.
    index
        A row per network: ``network``, ``c``, ``mse_copa``, ``mse_rgap``, …
    tables
        Other tables of our results, by the name of their file.
    selections
        Selections made so far, since many claims share them.
    """

    scores: pd.DataFrame = field(default_factory=pd.DataFrame)
    security: pd.DataFrame = field(default_factory=pd.DataFrame)
    rank: pd.DataFrame = field(default_factory=pd.DataFrame)
    index: pd.DataFrame = field(default_factory=pd.DataFrame)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    selections: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def read(
        cls,
        scores: Paths = (),
        security: Paths = (),
        index: Paths = (),
        rank: Paths = (),
        tables: Paths = (),
    ) -> Evidence:
        """Read lists of CSV files; an empty list is evidence that is missing.

        Raises
        ------
        ArtifactError
            If a file is missing, is no table, lacks a column or holds text for a number.
        """

        def joined(parts: list[pd.DataFrame]) -> pd.DataFrame:
            return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()

        return cls(
            scores=joined([_read_scores(path) for path in scores]),
            security=joined([_read_layers(path, "security") for path in security]),
            rank=joined([_read_layers(path, "rank") for path in rank]),
            index=joined([_read_index(path) for path in index]),
            tables={Path(path).stem: _read(path, []) for path in tables},
        )


def _mask(frame: pd.DataFrame, where: Where) -> pd.Series:
    mask = pd.Series(True, index=frame.index)
    for key, wanted in where.items():
        if key not in frame:
            raise NotJudged(f"data: our results have no column '{key}'")
        values = wanted if isinstance(wanted, list) else [wanted]
        mask &= frame[key].isin([str(value) for value in values])
    return mask


def describe(where: Where) -> str:
    """Put a selection in words, for a reason."""
    return ", ".join(
        f"{key} {' or '.join(map(str, value)) if isinstance(value, list) else value}"
        for key, value in where.items()
    )


def runs(
    evidence: Evidence, where: Where, metric: str, images: str, answers: Answers = "own"
) -> pd.DataFrame:
    """Select runs: ``model``, ``seed``, ``batch``, ``index``, ``answer``, ``value``, ``ok``.

    A run that failed or could not be applied has NaN as its value, also of a metric that failed
    runs have no row of. So has an image that the attack did not find, which ``missed`` tells apart.
    A PSNR is capped at that of an MSE of 1e-30, so that an exact
    reconstruction does not give infinity.

    Parameters
    ----------
    evidence, metric, images
        Where to look, and for what.
    where
        Columns and their values. Without ``answer`` or ``kind`` in it, `answers` decides.
    answers
        ``own``: what the attack chose. ``all``: its other starts and twins too.

    Raises
    ------
    NotJudged
        If nothing is there, a listed model, attack or result has no run, or the metric needs
        weights of a network that are not there.
    ArtifactError
        If a run is there twice.
    """
    frame = evidence.scores
    if frame.empty:
        raise NotJudged("data: there are no scores")
    if answers == "own" and not {"answer", "kind"} & where.keys():
        where = {**where, "answer": "0"}
    kept = (frame["images"] == images) & ~frame["status"].isin(NOT_THERE)
    frame = frame[_mask(frame, where) & kept]
    found = _with_failures(frame, metric, "attack" in where)
    for key, wanted in where.items():
        for item in wanted if isinstance(wanted, list) else [wanted]:
            if not (found[key] == str(item)).any():
                raise NotJudged(
                    f"data: no {metric} on {images} images for {describe({**where, key: item})}"
                )
    if found.empty:
        raise NotJudged(f"data: no {metric} on {images} images")
    lacking = found[found["status"] == NOT_AVAILABLE]
    if not lacking.empty:
        raise NotJudged(f"weights: {str(lacking['reason'].iloc[0]).rstrip('.')}")
    _once(found, metric)
    ok = found["status"] == "ok"
    value = found["value"].where(ok)
    if metric in PSNR_PEAKS:
        value = value.clip(upper=10 * np.log10(PSNR_PEAKS[metric] ** 2 / 1e-30))
    place = found[["model", "seed", "batch", "index", "answer"]]
    missed = found["status"] == MISSED
    return place.assign(value=value, ok=ok, missed=missed).reset_index(drop=True)


def _once(found: pd.DataFrame, metric: str) -> None:
    """Refuse a run that is there twice."""
    if metric == OF_CLASSES:
        return  # Two classes may have the same name, as ImageNet's cranes.
    twice = found.duplicated([*columns.RUN, "answer"])
    if twice.any():
        row = found[twice].iloc[0]
        raise ArtifactError(
            f"Scores hold two values of {metric} for {row['attack']} on {row['model']}, seed "
            f"{row['seed']}, index {row['index']}; hand over one file of each, or name the "
            f"difference (such as precision) in the claim's where."
        )


def _with_failures(frame: pd.DataFrame, metric: str, one_attack: bool) -> pd.DataFrame:
    """Rows of `metric`, and one for every failed run that has none.

    Where no attack is named, only failures of attacks that have this metric elsewhere count. A
    class that was missed is no failure of an image, nor an image that was missed one of its batch.
    """
    found = frame[frame["metric"] == metric]
    worked = frame["status"].isin(("ok", NOT_AVAILABLE))
    failed = frame[~worked & (frame["metric"] != OF_CLASSES)]
    if metric not in OF_IMAGES:
        failed = failed[failed["status"] != MISSED]
    if failed.empty:
        return found
    run = [*columns.RUN, "answer"]
    if metric not in OF_IMAGES:
        run = [key for key in run if key != "index"]
    if not one_attack:
        failed = failed[failed["attack"].isin(found["attack"].unique())]
    failed = failed.drop_duplicates(run)
    lacking = ~failed.set_index(run).index.isin(found.set_index(run).index)
    return pd.concat([found, failed[lacking]])


def table_values(evidence: Evidence, side: Side) -> np.ndarray:
    """Values of a column of a table; of layers summed over a model's if `total`.

    Raises
    ------
    NotJudged
        If the column or the selection is not there, or a value is empty.
    ArtifactError
        If a layer is there twice, or a value is no number.
    """
    layered = side.table in LAYERED
    tables = vars(evidence) if layered else evidence.tables
    frame = tables.get(side.table, pd.DataFrame())
    name = f"{side.table} table" if layered else f"table {side.table}"
    if frame.empty:
        raise NotJudged(f"data: there is no {name}")
    if side.column not in frame:
        raise NotJudged(f"data: the {name} has no column '{side.column}'")
    found = frame[_mask(frame, side.where)]
    if found.empty:
        raise NotJudged(f"data: the {name} has nothing for {describe(side.where)}")
    numbers = (
        _numbers_of_layers(found, side, name) if layered else _numbers(found, side.column, name)
    )
    if numbers.isna().any():
        raise NotJudged(f"data: column '{side.column}' of the {name} is empty in places")
    return numbers.to_numpy()


def _numbers_of_layers(found: pd.DataFrame, side: Side, name: str) -> pd.Series:
    """A column of a table of layers, which may hold each layer once."""
    keys: list[Any] = _layer_keys(found)
    if found.duplicated([*keys, "layer"]).any():
        row = found[found.duplicated([*keys, "layer"])].iloc[0]
        raise ArtifactError(
            f"The {name} holds layer {row['layer']} of {row['model']} twice; hand over one "
            f"file of each model."
        )
    if side.table == "rank" and side.column not in PER_IMAGE:
        found = found.drop_duplicates([key for key in [*keys, "layer"] if key != "index"])
    numbers = _numbers(found, side.column, name)
    if side.total:
        numbers = numbers.groupby([found[key] for key in keys]).sum(min_count=1)
    return numbers


def networks(evidence: Evidence, x: str, y: str) -> tuple[np.ndarray, np.ndarray, int]:
    """Two columns of the index table and how many networks have both.

    Networks without `x` are left out; an empty `y` is a failed attack and counts as infinite.

    Raises
    ------
    NotJudged
        If the table or a column is not there.
    """
    frame = evidence.index
    if frame.empty:
        raise NotJudged("data: there is no index table")
    for column in (x, y):
        if column not in frame:
            raise NotJudged(f"data: the index table has no column '{column}'")
    first = _numbers(frame, x, "index table")
    second = _numbers(frame, y, "index table")[first.notna()]
    n_ok = int(second.notna().sum())
    return first[first.notna()].to_numpy(), second.fillna(np.inf).to_numpy(), n_ok
