"""Our attacks beside those of breaching and LeakPro: the same clients, the same CPU time.

``results/benchmarks/peers.csv`` has a row for each case, tool and method:

``case``
    Client: network, what it shares (one gradient of an image or a batch, or the update of three
    local steps at a rate), and ``_trained`` if the weights are. Labels are granted, except in
    ``labels4`` to ``labels16``, where they are what is inferred.
``tool``, ``version``, ``method``
    Attack. Ours has the version and a hash of its code.
``status``, ``reason``
    ``ok`` if any run gave an image, ``failed``, or ``not installed``, and why.
``n``, ``n_ok``
    Clients attacked, and those where the attack ended with an image, over which all means are.
``psnr``, ``ssim``
    Means over clients, of a batch its own mean, by `gradleak.score`, of images clipped to [0, 1];
    ``_low``, ``_high``: 95 % interval of the mean (Student's t).
``right``
    Number of batches with all labels right.
``seconds``, ``iterations``
    Mean CPU seconds of an attack, on one thread, and iterations that it was allowed. Those of a
    search are chosen so that it takes ``budget`` seconds, by trial on the first client and by the
    time of earlier clients then. Closed forms take what they take. Iterations of L-BFGS are up to
    20 gradients in the peers, one in ours.
``best``, ``ahead``
    Whether it is our best method of the case, by mean PSNR, of those that take at most 1.5 budgets
    on average; otherwise how far that one is ahead in dB, as a mean over the same clients, with
    its interval.
``images``, ``budget``
    ``embedded`` or ``real``, and CPU seconds.

Each attack is kept in ``results/benchmarks/peers/runs.csv`` as it ends. A rerun does those that are
missing there, or that were made by other code of ours or another version of a peer.
``python -m benchmarks.peers`` prints the table of the runs so far.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd
import threadpoolctl
import torch
from torch import nn

from benchmarks import kept
from benchmarks.client_networks import Images, trained, untrained
from benchmarks.peers_breaching import Breaching
from benchmarks.peers_cases import BREACHING, CASES, LEAKPRO, OURS, Case, client
from benchmarks.peers_leakpro import LeakPro
from benchmarks.peers_runs import FIELDS, NUMBERS, Record, Runs, attack
from benchmarks.peers_table import table
from benchmarks.peers_tools import Ours, Tool
from benchmarks.runner import arguments
from gradleak.data import arrays
from gradleak.runtime.progress import progress

RUNS = Path("results/benchmarks/peers/runs.csv")
TOOLS: Mapping[str, Tool] = {OURS: Ours(), BREACHING: Breaching(), LEAKPRO: LeakPro()}


@dataclass(frozen=True)
class Amounts:
    """Amounts of the comparison."""

    clients: int  # of each case
    budget: Mapping[str, float]  # CPU seconds of a search, by `Case.kind`
    images: int  # to train on
    epochs: int


@dataclass(frozen=True)
class Comparison:
    """Tools, cases, and the images that clients have."""

    source: str  # of the images: embedded or real
    train: Images
    test: Images
    amounts: Amounts
    folder: Path  # of runs and trained weights
    cases: Sequence[Case] = CASES
    tools: Mapping[str, Tool] = field(default_factory=lambda: TOOLS)

    def run(self) -> pd.DataFrame:
        """Attack the first client of each case, then the second, and so on: the final table.

        Attacks that `folder` has already are not made again.
        """
        with one_thread():
            runs = Runs(self.folder / RUNS.name)
            numbers = range(self.amounts.clients)
            todo = [(number, case) for number in numbers for case in self.cases]
            wanted = set()
            for number, case in progress(todo, "clients"):
                keys = self._keys(case, number)
                wanted |= {runs.key(row) for row in keys}
                self._attack(case, number, [row for row in keys if not runs.has(row)], runs)
        rows = [row for row in runs.rows if runs.key(row) in wanted]
        _, absent = self._versions
        return table(pd.DataFrame(rows, columns=list(FIELDS)), self.cases, absent)

    @cached_property
    def _versions(self) -> tuple[dict[tuple[str, str], str], dict[str, str]]:
        """Version of each tool and method, and why tools are absent."""
        found: dict[tuple[str, str], str] = {}
        absent: dict[str, str] = {}
        wanted = {(t, m) for case in self.cases for t, ms in case.methods.items() for m in ms}
        for name, method in sorted(wanted):
            try:
                if name not in absent:
                    found[name, method] = self.tools[name].version(method)
            except ImportError as error:
                absent[name] = str(error)
        return found, absent

    def _keys(self, case: Case, number: int) -> list[Record]:
        """Keys of the runs on a client, by `KEYS`, for the tools there are."""
        versions, _ = self._versions
        of_all: Record = {"image": number, "images": self.source}
        of_all["budget"] = self.amounts.budget[case.kind]
        rows = [
            {"case": case.name, "tool": tool, "version": versions[tool, method], "method": method}
            for tool, methods in case.methods.items()
            for method in methods
            if (tool, method) in versions
        ]
        return [row | of_all for row in rows]

    def _attack(self, case: Case, number: int, keys: Sequence[Record], runs: Runs) -> None:
        if not keys:
            return
        attacked = client(case, self._model(case, number), self.test, number)
        for row in keys:
            known, given = self.tools[row["tool"]], runs.iterations(row)
            options = {"budget": row["budget"], "iterations": given, "seed": number}
            runs.add(row | attack(known, row["method"], attacked, **options))

    def _model(self, case: Case, number: int) -> nn.Module:
        if not case.trained:
            return untrained(case.network, number)
        settings = {"images": self.amounts.images, "epochs": self.amounts.epochs}
        path = self.folder / f"{case.network}.safetensors"
        known = {**settings, "source": self.source}
        return trained(case.network, self.train, self.test, known, path)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch and BLAS use one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpoolctl.threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def read_images(path: str, dataset: str, split: str) -> Images:
    """Read the images of a data set's split."""
    found = arrays.load(path, dataset, split)
    return Images(found.images, found.labels)


def main(path: Path) -> None:
    """Print the table of a file of runs."""
    runs = pd.DataFrame(kept.read(path, FIELDS, NUMBERS), columns=list(FIELDS))
    latest = runs.drop_duplicates(["case", "tool", "method", "image"], keep="last")
    shown = table(latest, CASES).drop(columns=["version", "images", "budget"])
    print(shown.to_string(index=False, na_rep="", float_format="{:.2f}".format))


if __name__ == "__main__":
    (runs,) = arguments(__doc__, "[runs]")
    main(runs or RUNS)
