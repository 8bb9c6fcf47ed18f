"""Attacks of the comparison with peers, one by one: their time, their result, and the file of runs.

Each attack is written to the file as soon as it is done, so that a comparison which is cut short
goes on from there.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.kept import Kept
from benchmarks.peers_cases import LABELS, Client
from benchmarks.peers_tools import Tool
from gradleak.library.score import score

Record = dict[str, Any]
# What a run is of, by which it is found again.
KEYS = ("case", "tool", "version", "method", "image", "images", "budget")
RESULTS = ("iterations", "seconds", "psnr", "ssim", "right")
FIELDS = (*KEYS, "status", "reason", *RESULTS)
NUMBERS = ("image", "budget", *RESULTS)
OK, FAILED, ABSENT = "ok", "failed", "not installed"
# Calibration begins with so many iterations, and takes so many times more until it has used this
# share of the budget. Differences in time below another share are noise.
FIRST, GROWTH, SHARE, NOISE = 3, 3, 0.15, 0.02
LONGEST = 200  # characters of a reason


class Runs(Kept):
    """Table of runs in a file that grows by a line for each."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, FIELDS, KEYS, NUMBERS)

    def iterations(self, row: Mapping[str, Any]) -> int | None:
        """Number that fills the budget by the times of earlier clients; None for the first.

        At most twice the first client's and at least half of it: a search that converges early
        seems faster than it is.
        """
        keys = [key for key in KEYS if key != "image"]
        found = [r for r in self.rows if r["status"] == OK and all(r[k] == row[k] for k in keys)]
        if not found or not found[0]["iterations"] > 0:
            return None
        first = found[0]["iterations"]
        each = float(np.median([one["seconds"] / one["iterations"] for one in found]))
        return max(1, round(float(np.clip(row["budget"] / each, first / 2, 2 * first))))


def seconds(run: Callable[[], Any]) -> float:
    """CPU time of this process that a call takes."""
    begin = time.process_time()
    run()
    return time.process_time() - begin


def calibrated(run: Callable[[int], Any], budget: float, most: int) -> int:
    """Iterations, 1 to `most`, with which `run` takes about `budget` seconds of CPU time.

    Where a search converges, its further iterations cost little; the slowest count, so that a
    client on which it does not converge takes no longer.
    """
    run(FIRST)  # compiles and caches
    count, took, each = FIRST, seconds(partial(run, FIRST)), 0.0
    while True:
        more = GROWTH * count
        longer = seconds(partial(run, more))
        slope = (longer - took) / (more - count)
        converged = slope < each / 10
        if longer - took >= NOISE * budget:
            each = max(each, slope)
        if longer >= SHARE * budget or more >= most or converged:
            break
        count, took = more, longer
    each = each or slope
    left = (budget - longer) / each if each > 0 else most
    return int(np.clip(more + left, 1, most))


def attack(
    tool: Tool, method: str, client: Client, budget: float, iterations: int | None, seed: int
) -> Record:
    """Attack one client, and measure: the fields of a run that are no keys.

    `iterations` is None to calibrate them. A tool may raise whatever it likes: that is a failure,
    told by its first line.
    """
    out: Record = {"status": OK, "reason": ""}
    try:
        with torch.random.fork_rng(devices=[]):
            out |= _attacked(tool, method, client, budget, iterations, seed)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        out |= {"status": FAILED, "reason": f"{type(error).__name__}: {lines[0]}"[:LONGEST]}
    return out


def _attacked(
    tool: Tool, method: str, client: Client, budget: float, iterations: int | None, seed: int
) -> Record:
    if method == LABELS:
        return _labels(tool, client)
    run = partial(tool.images, method, client, seed=seed)
    out: Record = {}
    if method in tool.searches:
        count = iterations or calibrated(run, budget, tool.searches[method])
        run, out["iterations"] = partial(run, count), count
    else:
        run = partial(run, None)
    begin = time.process_time()
    found = run()
    out["seconds"] = time.process_time() - begin
    # Every attacker knows the range of images.
    scores = score(client.images, found.detach().clamp(0.0, 1.0))
    return out | {"psnr": float(scores["psnr"].mean()), "ssim": float(scores["ssim"].mean())}


def _labels(tool: Tool, client: Client) -> Record:
    begin = time.process_time()
    found = tool.labels(client)
    taken = time.process_time() - begin
    return {"seconds": taken, "right": int(sorted(found) == sorted(client.classes.tolist()))}
