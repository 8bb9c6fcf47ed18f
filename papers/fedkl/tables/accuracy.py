"""Accuracies with and without a key-lock, by client and under another key (FedKL I, III)."""

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pandas as pd

from gradleak.claims.statistics import wilson, z_value
from gradleak.errors import ArtifactError
from gradleak.runtime.artifacts import again, read_csv
from gradleak.runtime.tidy import TABLES, Given, Row, cell, frame

KEYS = ["model", "training", "network", "dataset", "split", "lock", "client"]
COLUMNS = [*TABLES, *KEYS, "error", "tested", "trainings", "least", "most"]
LEVEL = 0.95
# Names of clients: the only network of a central training, the server's, the mean over clients, and
# a key that no client has.
CENTRAL, SERVER, MEAN, RANDOM = "central", "server", "mean", "random"
# Minimum number of epochs for a correlation of two curves.
FEWEST = 3


def make(files: Given, words: Given, case: Given) -> pd.DataFrame:
    """Make the table: rows are regimes and keys as in Tables I and III, columns networks on data.

    Files ``summaries`` and ``curves`` are those of the trainings in ``curves`` of `words`: their
    ``column``, the label of network and data; ``model``, ``training``, ``network``, ``dataset``,
    ``split`` and ``lock`` (``with`` or ``without``). `case` has the columns ``images`` and
    ``scale``.

    In percent: ``accuracy`` on `tested` images used neither for training nor for choosing the
    epoch, the mean over seeds (and clients for ``mean``); ``gap``, that minus the random key's;
    ``change``, with the lock minus without it, in the same regime. ``low`` and ``high`` are 95 %
    binomial intervals (Wilson; of a difference, of independent shares), ``error`` half of that over
    z: all networks are tested on the same few images, so more seeds or clients do not reduce it.
    ``curve_correlation`` correlates the accuracies of two central trainings over epochs, and
    ``epochs_above`` is the share of epochs in which the lock is above. `n` counts networks, of
    which `n_ok` gave a number; a failed one leaves none. ``trainings`` is how many initial weights
    were trained, ``least`` and ``most`` what the worst and the best of these gave (the mean over
    clients, who share theirs).

    Raises `ArtifactError` if a summary has no row of its network, or two for one client and seed.
    """
    each = zip(words["curves"], files["summaries"], files["curves"], strict=True)
    cases = [_Case(*one) for one in each]
    rows = [row for own in cases for row in [*own.accuracies(), *own.gaps(), *own.losses()]]
    rows += _changes(rows)
    rows += [row for pair in _pairs(cases) for row in _compared(*pair)]
    for row in rows:
        each = row.get("each", np.array([np.nan]))
        row |= {"least": float(each.min()), "most": float(each.max())}
    return frame(rows, COLUMNS, **case).astype({"tested": "Int64", "trainings": "Int64"})


class _Case:
    """A network of one training: its clients' accuracies over seeds."""

    def __init__(self, case: Given, path: str, curve: str) -> None:
        self.case, self.curve, model = case, curve, case["model"]
        summary = _read(path, model, "test_accuracy", "test")
        if summary.empty:
            raise ArtifactError(f"{path} has no row of {model}; {again(path)}.")
        self.central = bool((summary["regime"] == CENTRAL).any())
        # The client of a central training also goes by that name.
        central = (CENTRAL + "_" + summary["client"]).str.rstrip("_")
        called = summary["client"].where(summary["regime"] != CENTRAL, central)
        if summary.assign(called=called).duplicated(["called", "seed"]).any():
            raise ArtifactError(
                f"{path} has two rows of one client and draw of {model}; {again(path)}."
            )
        self.clients = {str(name): rows for name, rows in summary.groupby(called, sort=False)}
        # Clients that hold a key.
        self.numbered = sorted((name for name in self.clients if name.isdigit()), key=int)

    def head(self, client: str, metric: str) -> Row:
        keys = {key: self.case[key] for key in ("column", *KEYS) if key != "client"}
        return {"row": _words(keys["lock"], client), **keys, "client": client, "metric": metric}

    def accuracies(self) -> Iterator[Row]:
        """Yield rows ``accuracy`` of each client, and of the mean over clients that hold a key."""
        for client, own in self.clients.items():
            yield {**self.head(client, "accuracy"), **_share(own)}
        if self.numbered:
            mean = _share(pd.concat([self.clients[name] for name in self.numbered]))
            mean["note"] = f"mean over {len(self.numbered)} clients; {mean['note']}"
            yield {**self.head(MEAN, "accuracy"), **mean}

    def gaps(self) -> Iterator[Row]:
        if RANDOM not in self.clients or not self.numbered:
            return
        rows = {row["client"]: row for row in self.accuracies()}
        base, note = rows[RANDOM], {"note": "accuracy less that of the random key"}
        for client in [*self.numbered, MEAN]:
            yield self.head(client, "gap") | _difference(rows[client], base) | note
        same = {key: base[key] for key in ("n", "n_ok", "tested", "trainings")}
        same |= dict.fromkeys(("ours", "low", "high", "error"), 0.0)
        same["each"] = np.zeros(base["trainings"])
        yield {**self.head(RANDOM, "gap"), **same, "note": "the random key itself"}

    def losses(self) -> Iterator[Row]:
        """Yield rows ``loss`` of each client, and of the mean over clients that hold a key."""
        curve = _read(self.curve, self.case["model"], "validation_loss", "epoch")
        if "client" not in curve:
            curve = curve.assign(client="")
        found = curve.set_index(["client", "seed", "epoch"])["validation_loss"]
        each: dict[str, list[float]] = {}
        for client, own in self.clients.items():
            best = pd.to_numeric(own["best_epoch"])
            places = zip(own["client"], own["seed"], best, strict=True)
            each[client] = [float(found.get(place, np.nan)) for place in places]
        if self.numbered:
            each[MEAN] = [value for client in self.numbered for value in each[client]]
        for client, values in each.items():
            good, note = np.array(values), "validation images, at the epoch or round chosen"
            counts = len(good), int(np.isfinite(good).sum())
            yield cell(self.head(client, "loss"), "loss", float(good.mean()), note, counts=counts)


def _words(lock: str, client: str) -> str:
    if client.startswith(CENTRAL):
        other = client.removeprefix(CENTRAL).replace("_", ", ")
        return f"Centralized {'w/ KL' if lock == 'with' else 'w/o KL'}{other}"
    if lock == "without":
        return "FedAvg" if client == SERVER else f"FedAvg, {client}"
    name = {MEAN: "Average", RANDOM: "Random", SERVER: "Server"}.get(client, f"Client {client}")
    return f"FedKL, {name}"


def _share(own: pd.DataFrame) -> Row:
    tested, missing = int(own["test"].iloc[0]), int(own["test_accuracy"].isna().sum())
    out: Row = {"n": len(own), "n_ok": len(own) - missing, "tested": tested}
    # NaN where one of its clients failed.
    out["each"] = np.array(
        [100 * each.mean(skipna=False) for _, each in own.groupby("seed")["test_accuracy"]]
    )
    out["trainings"] = len(out["each"])
    out["note"] = f"{tested} test images, best epoch or round of {own['epochs'].iloc[0]}"
    dropped = pd.to_numeric(own.get("dropped", pd.Series(dtype=str)), errors="coerce").sum()
    if dropped:
        out["note"] += f"; a client did not answer in {int(dropped)} rounds"
    if missing:
        out["note"] += f"; {missing} of {len(own)} trainings failed, so there is none"
        return out | dict.fromkeys(("ours", "low", "high", "error"), np.nan)
    share = float(own["test_accuracy"].mean())
    low, high = (100 * end for end in wilson(share, tested, LEVEL))
    out |= {"ours": 100 * share, "low": low, "high": high}
    return {**out, "error": (high - low) / (2 * z_value(LEVEL))}


def _difference(one: Row, other: Row) -> Row:
    """`one` minus `other`, as independent shares."""
    gap, error = one["ours"] - other["ours"], float(np.hypot(one["error"], other["error"]))
    half = z_value(LEVEL) * error
    counted = {key: one[key] for key in ("tested", "trainings")}
    counted |= {key: one[key] + other[key] for key in ("n", "n_ok")}
    if one["trainings"] == other["trainings"]:  # of the same seeds
        counted["each"] = one["each"] - other["each"]
    return {**counted, "ours": gap, "low": gap - half, "high": gap + half, "error": error}


def _changes(rows: Sequence[Row]) -> list[Row]:
    """Rows ``change``: accuracy with the lock minus without it, central or federated."""
    keys, out = ("network", "dataset", "split", "lock", "client"), []
    places = {tuple(row[key] for key in keys): row for row in rows if row["metric"] == "accuracy"}
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
        pair = locked.case, plain.case
        same = all(pair[0][key] == pair[1][key] for key in keys)
        if locked.central and same and [one["lock"] for one in pair] == ["with", "without"]:
            yield plain, locked


def _compared(plain: _Case, locked: _Case) -> Iterator[Row]:
    """Compare the accuracies of two trainings over epochs, seed by seed."""
    both = _curve(plain).merge(_curve(locked), on=["seed", "epoch"])
    pairs = [own.filter(like="accuracy").to_numpy().T for _, own in both.groupby("seed")]
    long = [pair for pair in pairs if len(pair[0]) >= FEWEST and all(np.ptp(v) > 0 for v in pair)]
    correlations = [float(np.corrcoef(*pair)[0, 1]) for pair in long]
    epochs = int(both["epoch"].nunique())
    for metric, values, words in (
        ("curve_correlation", correlations, "correlation with the training without the lock"),
        ("epochs_above", [float((w > p).mean()) for p, w in pairs], "share of epochs above it"),
    ):
        mean = float(np.mean(values)) if values else np.nan
        interval = min(values, default=np.nan), max(values, default=np.nan)
        note, counts = f"{words}, {epochs} epochs, validation images", (len(pairs), len(values))
        yield cell(locked.head(CENTRAL, metric), metric, mean, note, interval, counts)


def _curve(case: _Case) -> pd.DataFrame:
    own = _read(case.curve, case.case["model"], "validation_accuracy", "epoch")
    own = own[own.get("client", pd.Series("", own.index)) == ""]
    found = own.rename(columns={"validation_accuracy": "accuracy"})
    return found[["seed", "epoch", "accuracy"]].dropna()


def _read(path: str, model: str, accuracy: str, count: str) -> pd.DataFrame:
    """Rows of a model as text, but for an accuracy, NaN if it is none, and a whole number."""
    text = read_csv(path, dtype=str, keep_default_na=False)
    own = text[text["model"] == model]
    numbers = pd.to_numeric(own[accuracy], errors="coerce")
    return own.assign(**{accuracy: numbers, count: own[count].astype(int)})
