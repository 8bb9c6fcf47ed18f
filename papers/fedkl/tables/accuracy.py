"""Accuracies with and without a key-lock, by client and under another key (FedKL I, III)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from gradleak.claims.statistics import wilson, z_value
from gradleak.errors import ArtifactError
from gradleak.runtime.artifacts import again, read_csv
from gradleak.runtime.tidy import TABLES, Row, cell, frame

KEYS = ["model", "training", "network", "dataset", "split", "lock", "client"]
COLUMNS = [*TABLES, *KEYS, "error", "tested"]
LEVEL = 0.95
# Names of clients: the only network of a central training, the server's, the mean over clients, and
# a key that no client has.
CENTRAL, SERVER, MEAN, RANDOM = "central", "server", "mean", "random"
# Minimum number of epochs for a correlation of two curves.
FEWEST = 3


def table(cases: Sequence[Mapping[str, Any]], images: str, scale: str) -> pd.DataFrame:
    """Tidy table: rows are regimes and keys as in Tables I and III, columns networks on data sets.

    Parameters
    ----------
    cases
        For each training of each network: files ``summary`` and ``curve``; ``column``, the label of
        network and data; ``model``, ``training``, ``network``, ``dataset``, ``split`` and ``lock``
        (``with`` or ``without``).
    images, scale
        Values of these columns.

    Returns
    -------
    pandas.DataFrame
        In percent: ``accuracy`` on `tested` images used neither for training nor for choosing the
        epoch, the mean over seeds (and over clients for ``mean``); ``gap``, that minus the random
        key's; ``change``, with the lock minus without it, in the same regime. ``low`` and ``high``
        are 95 % binomial intervals (Wilson; of a difference, of independent shares), ``error`` half
        of that over z: all networks are tested on the same few images, so more seeds or clients do
        not reduce it. ``curve_correlation`` correlates the accuracies of two central trainings over
        epochs, and ``epochs_above`` is the share of epochs in which the lock is above. `n` counts
        trainings, of which `n_ok` gave a number; a failed one leaves none.

    Raises
    ------
    ArtifactError
        If a summary has no row of its network, or two for one client and seed.
    """
    found = [_Case(case) for case in cases]
    rows = [row for case in found for row in [*case.accuracies(), *case.gaps()]]
    rows += _changes(rows)
    rows += [row for pair in _pairs(found) for row in _curves(*pair)]
    return frame(rows, COLUMNS, images, scale).astype({"tested": "Int64"})


class _Case:
    """A network of one training: its clients' accuracies over seeds."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        self.case = case
        path, model = case["summary"], case["model"]
        text = read_csv(path, dtype=str, keep_default_na=False)
        own = text[text["model"] == model]
        if own.empty:
            raise ArtifactError(f"{path} has no row of {model}; {again(path)}.")
        accuracy = pd.to_numeric(own["test_accuracy"], errors="coerce")
        summary = own.assign(test_accuracy=accuracy, test=own["test"].astype(int))
        self.central = bool((summary["regime"] == CENTRAL).any())
        # The client of a central training also goes by that name.
        called = summary["client"].where(
            summary["regime"] != CENTRAL, (CENTRAL + "_" + summary["client"]).str.rstrip("_")
        )
        if summary.assign(called=called).duplicated(["called", "seed"]).any():
            raise ArtifactError(
                f"{path} has two rows of one client and draw of {model}; {again(path)}."
            )
        self.clients = {str(name): rows for name, rows in summary.groupby(called, sort=False)}
        # Clients that hold a key.
        self.numbered = sorted((name for name in self.clients if name.isdigit()), key=int)

    def head(self, client: str, metric: str) -> Row:
        """Columns that identify the network and the metric."""
        keys = {key: self.case[key] for key in ("column", *KEYS) if key != "client"}
        row = _words(self.case["lock"], client)
        return {"row": row, **keys, "client": client, "metric": metric}

    def accuracies(self) -> Iterator[Row]:
        """Yield rows ``accuracy`` of each client, and of the mean over clients that hold a key."""
        for client, own in self.clients.items():
            yield {**self.head(client, "accuracy"), **_share(own)}
        if self.numbered:
            mean = _share(pd.concat([self.clients[name] for name in self.numbered]))
            mean["note"] = f"mean over {len(self.numbered)} clients; {mean['note']}"
            yield {**self.head(MEAN, "accuracy"), **mean}

    def gaps(self) -> Iterator[Row]:
        """Yield rows ``gap``: accuracies minus that of the random key."""
        if RANDOM not in self.clients or not self.numbered:
            return
        rows = {row["client"]: row for row in self.accuracies()}
        base = rows[RANDOM]
        note = "accuracy less that of the random key"
        for client in [*self.numbered, MEAN]:
            yield {**self.head(client, "gap"), **_difference(rows[client], base), "note": note}
        same = {key: base[key] for key in ("n", "n_ok", "tested")}
        same |= dict.fromkeys(("ours", "low", "high", "error"), 0.0)
        yield {**self.head(RANDOM, "gap"), **same, "note": "the random key itself"}


def _words(lock: str, client: str) -> str:
    """Label of a row, as in Tables I and III."""
    if client.startswith(CENTRAL):
        other = client.removeprefix(CENTRAL).replace("_", ", ")
        return f"Centralized {'w/ KL' if lock == 'with' else 'w/o KL'}{other}"
    if lock == "without":
        return "FedAvg" if client == SERVER else f"FedAvg, {client}"
    name = {MEAN: "Average", RANDOM: "Random", SERVER: "Server"}.get(client, f"Client {client}")
    return f"FedKL, {name}"


def _share(own: pd.DataFrame) -> Row:
    """Accuracy in percent, a mean over trainings, with its binomial interval."""
    tested, missing = int(own["test"].iloc[0]), int(own["test_accuracy"].isna().sum())
    out: Row = {"n": len(own), "n_ok": len(own) - missing, "tested": tested}
    out["note"] = f"{tested} test images, best epoch or round of {own['epochs'].iloc[0]}"
    dropped = pd.to_numeric(own.get("dropped", pd.Series(dtype=str)), errors="coerce").sum()
    if dropped:
        out["note"] += f"; a client did not answer in {int(dropped)} rounds"
    if missing:
        out["note"] += f"; {missing} of {len(own)} trainings failed, so there is none"
        return out | dict.fromkeys(("ours", "low", "high", "error"), np.nan)
    share = float(own["test_accuracy"].mean())
    low, high = (100 * end for end in wilson(share, tested, LEVEL))
    error = (high - low) / (2 * z_value(LEVEL))
    return {**out, "ours": 100 * share, "low": low, "high": high, "error": error}


def _difference(one: Row, other: Row) -> Row:
    """`one` minus `other`, as independent shares."""
    gap = one["ours"] - other["ours"]
    error = float(np.hypot(one["error"], other["error"]))
    half = z_value(LEVEL) * error
    counted = {key: one[key] + other[key] for key in ("n", "n_ok")}
    ends = {"ours": gap, "low": gap - half, "high": gap + half, "error": error}
    return {**counted, "tested": one["tested"], **ends}


def _changes(rows: Sequence[Row]) -> list[Row]:
    """Rows ``change``: accuracy with the lock minus without it, central or federated."""
    places = {
        (row["network"], row["dataset"], row["split"], row["lock"], row["client"]): row
        for row in rows
        if row["metric"] == "accuracy"
    }
    out = []
    for (*place, lock, client), row in places.items():
        beside = {CENTRAL: CENTRAL, MEAN: SERVER}.get(client)
        plain = places.get((*place, "without", beside))
        if lock == "with" and plain is not None:
            note = f"against {plain['row']}"
            out.append({**row, "metric": "change", **_difference(row, plain), "note": note})
    return out


def _pairs(cases: Sequence[_Case]) -> Iterator[tuple[_Case, _Case]]:
    """Yield central trainings of a network without and with the lock."""
    keys = ("network", "dataset", "split", "training")
    for locked, plain in product(cases, repeat=2):
        locks = locked.case["lock"], plain.case["lock"]
        same = all(plain.case[key] == locked.case[key] for key in keys)
        if locked.central and locks == ("with", "without") and same:
            yield plain, locked


def _curves(plain: _Case, locked: _Case) -> Iterator[Row]:
    """Compare the accuracies of two trainings over epochs, seed by seed."""
    one, other = (_curve(case.case) for case in (plain, locked))
    both = one.merge(other, on=["seed", "epoch"], suffixes=("_without", "_with"))
    pairs = [
        (own["accuracy_without"].to_numpy(), own["accuracy_with"].to_numpy())
        for _, own in both.groupby("seed")
    ]
    long = [pair for pair in pairs if len(pair[0]) >= FEWEST and all(np.ptp(v) > 0 for v in pair)]
    correlations = [float(np.corrcoef(*pair)[0, 1]) for pair in long]
    epochs = int(both["epoch"].nunique())
    for metric, values, words in (
        ("curve_correlation", correlations, "correlation with the training without the lock"),
        ("epochs_above", [float((w > p).mean()) for p, w in pairs], "share of epochs above it"),
    ):
        mean = float(np.mean(values)) if values else np.nan
        interval = min(values, default=np.nan), max(values, default=np.nan)
        note = f"{words}, {epochs} epochs, validation images"
        head = locked.head(CENTRAL, metric)
        yield cell(head, metric, mean, note, interval, (len(pairs), len(values)))


def _curve(case: Mapping[str, Any]) -> pd.DataFrame:
    text = read_csv(case["curve"], dtype=str, keep_default_na=False)
    own = text[(text["model"] == case["model"]) & (text.get("client", "") == "")]
    accuracy = pd.to_numeric(own["validation_accuracy"], errors="coerce")
    kept = own.assign(accuracy=accuracy, epoch=own["epoch"].astype(int))
    return kept[["seed", "epoch", "accuracy"]].dropna()


def make(
    files: Mapping[str, Any], words: Mapping[str, Any], case: Mapping[str, str]
) -> pd.DataFrame:
    """Make the table from files: ``summaries`` and ``curves`` of the trainings in ``curves``."""
    each = zip(files["summaries"], files["curves"], words["curves"], strict=True)
    return table([{"summary": one, "curve": other, **entry} for one, other, entry in each], **case)
