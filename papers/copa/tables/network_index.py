"""Index of networks: c(M) against reconstruction error, and their rank correlation."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from gradleak.claims.statistics import prediction_interval, spearman
from gradleak.errors import ArtifactError
from gradleak.runtime.tidy import TABLES as TABLE_COLUMNS
from gradleak.runtime.tidy import Given, Row, cell, finite, frame, read_all

DETAILS = ["family", "convolutions", "image", "c", "exact", "layers"]
COLUMNS = [*TABLE_COLUMNS, *DETAILS]
LEVEL = 0.95
# Numbers of layers, the last fully connected.
WORDS = {1: "two", 2: "three", 3: "four", 4: "five", 5: "six"}
ALL = "all networks"


def networks(security: pd.DataFrame) -> pd.DataFrame:
    """One row per network: c(M) (eq. 8), whether all its ranks are structural, and its sizes.

    `security` is that of ``gradleak.analysis.copa_index``. ``c`` is the mean over seeds,
    ``expansion`` the number of outputs of the first layer per input, ``layers`` the sizes as text.
    """
    rows = {}
    for name, layers in security.groupby("model", sort=True):
        one = layers[layers["seed"] == layers["seed"].min()]
        parts = [f"{e.channels} k{e.kernel} s{e.stride} p{e.padding}" for e in one.itertuples()]
        last = one.iloc[-1]
        outputs = [*one["unknowns"][1:], one["fc_inputs"].iloc[0]]
        rows[str(name)] = {
            "family": str(name).rpartition("_")[0],
            "convolutions": len(one),
            "c": layers.groupby("seed")["contribution"].sum().mean(),
            "exact": bool((layers["rank_method"] == "structural").all()),
            "expansion": outputs[0] / one["unknowns"].iloc[0],
            "layers": "; ".join([*parts, f"fc {last['fc_inputs']} to {last['fc_outputs']}"]),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("network")


def errors(scores: pd.DataFrame) -> pd.DataFrame:
    """MSE of each run, infinite if it failed, so that it takes the last rank."""
    found = scores[scores["metric"] == "mse"].rename(columns={"model": "network"})
    value = pd.to_numeric(found["value"], errors="coerce").where(found["status"] == "ok", np.inf)
    return found.assign(value=value.fillna(np.inf))


def table(scores: pd.DataFrame, security: pd.DataFrame, **case: str) -> pd.DataFrame:
    """Tidy table: rows of each network, then the rank correlations.

    A network has rows for c(M), for its expansion and for each attack: ``ours`` is the median MSE
    over images and seeds with failed runs as infinite (empty if the median is), ``low`` and
    ``high`` the 95 % prediction interval over successful runs. A summary has Spearman's correlation
    of c(M) with that median, or with the median over seeds for one image, and its bootstrap
    interval; its ``n`` is the number of networks and ``n_ok`` that of those with a finite error.

    Raises `ArtifactError` if scores and security do not have the same networks.
    """
    sizes, runs = networks(security), errors(scores)
    if odd := sorted(set(sizes.index) ^ set(runs["network"])):
        raise ArtifactError(
            f"Scores and security files disagree on network '{odd[0]}'; delete both and ask "
            "Snakemake for them again."
        )
    rows = [*_network_rows(sizes, runs), *_summary_rows(sizes, runs)]
    return frame(rows, COLUMNS, **case).astype({"convolutions": "Int64"})


def _network_rows(sizes: pd.DataFrame, runs: pd.DataFrame) -> Iterator[Row]:
    for name, network in sizes.iterrows():
        same: Row = {"row": name, **network.filter(DETAILS)}
        note = "all ranks structural" if network["exact"] else "rank of a layer numerical"
        yield cell({**same, "column": "c"}, "c", network["c"], note)
        yield cell({**same, "column": "expansion"}, "expansion", network["expansion"])
        for attack in runs["attack"].unique():
            found = runs[(runs["network"] == name) & (runs["attack"] == attack)]
            good = found["value"][np.isfinite(found["value"])]
            reasons = "; ".join(sorted(set(found["reason"]) - {""}))
            note, middle = f"failed: {reasons}" if reasons else "", finite(found["value"].median())
            interval = prediction_interval(good, log=True, level=LEVEL)
            counts = len(found), len(good)
            yield cell({**same, "column": attack}, "mse", middle, note, interval, counts)


def _summary_rows(sizes: pd.DataFrame, runs: pd.DataFrame) -> Iterator[Row]:
    depths = sizes["convolutions"]
    groups = {ALL: sizes} | {
        f"{WORDS.get(n, str(n + 1))}-layer networks": sizes[depths == n]
        for n in sorted(set(depths))
    }
    note = "c(M) with MSE over networks; bootstrap interval; a failed network counts as worst"
    for attack, of_attack in runs.groupby("attack", sort=False):
        for words, group in groups.items():
            for index in [None, *sorted(set(of_attack["index"]))]:
                chosen = of_attack if index is None else of_attack[of_attack["index"] == index]
                value = chosen.groupby("network")["value"].median().reindex(group.index)
                rho, low, high, _ = spearman(group["c"].to_numpy(), value.to_numpy(), LEVEL)
                head = {"row": words, "column": attack, "image": "all"}
                if index is not None:
                    head |= {"row": f"{words}, image {index}", "image": str(index)}
                counts = len(group), int(np.isfinite(value).sum())
                yield cell(head, "spearman", rho, note, (low, high), counts)


def make(files: Given, words: Given, case: Given) -> pd.DataFrame:
    """Make the table from files: ``scores`` and ``security``."""
    return table(read_all(files["scores"]), read_all(files["security"]), **case)
