"""Run one attack on every gradient of a gradient file."""

from __future__ import annotations

import importlib
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
from tqdm import tqdm

from gradleak.artifacts import read_tensors, write_json, write_tensors
from gradleak.attacks.base import Attack, AttackerView, Reconstruction
from gradleak.errors import NumericsError
from gradleak.models import files

# Attacks are looked up by name, not imported here: the code hash of a rule then holds the one
# attack that it runs, and an edit of one attack leaves the results of the others as they are.
ATTACKS = {
    "rgap": ("gradleak.attacks.rgap", "RGap"),
    "copa": ("gradleak.attacks.copa", "Copa"),
}


def build(settings: dict[str, Any]) -> Attack:
    """Attack from an entry of ``attacks`` in config.yaml."""
    options = {key: value for key, value in settings.items() if key != "method"}
    module, name = ATTACKS[settings["method"]]
    attack: Attack = getattr(importlib.import_module(module), name)(**options)
    return attack


class Views:
    """Attacker's views of every run in a gradient file, as (view, seed, target) in file order.

    Parameters
    ----------
    model_path, gradient_path
        Files of one experiment and model.
    most_seeds
        Take no more than this many draws of weights.
    """

    def __init__(self, model_path: str, gradient_path: str, most_seeds: int | None = None) -> None:
        self._models = files.read(model_path)
        self._gradients, self._shared = read_tensors(gradient_path)
        self._labels = self._gradients.pop("label", None)
        self.images = int(self._shared["images"])
        self.seeds = min(int(self._shared["seeds"]), most_seeds or sys.maxsize)
        self._runs = list(files.runs(self._models.chains, self.seeds, self.images))

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[tuple[AttackerView, int, int]]:
        for chain, seed, batch in self._runs:
            view = AttackerView(
                chain,
                self._models.of(chain, seed),
                files.select(self._gradients, chain.name, seed, batch),
                None if self._labels is None else int(self._labels[batch]),
                self._shared["low"],
                self._shared["high"],
            )
            yield view, seed, batch


def attack_all(model_path: str, gradient_path: str, settings: dict[str, Any]) -> Results:
    """Attack every chain, seed and target.

    A run that the attack cannot do stays in the results, as ``failed`` with its reason or as
    ``not_applicable``, with NaN for an image.
    """
    todo = Views(model_path, gradient_path)
    seeds, images = todo.seeds, todo.images
    attack = build(settings)
    out = Results({}, [], [])
    for view, seed, batch in tqdm(todo, disable=None, desc=settings["method"], unit="image"):
        chain = view.chain
        key = f"{chain.name}/image"
        out.images.setdefault(key, np.full((seeds, images, *chain.input), np.nan))
        begin = time.perf_counter()
        record, found = _run_one(attack, view, run_seed(seed, batch))
        if found is not None:
            out.images[key][seed, batch] = found.image
            if found.fc_input is not None:
                out.keep(f"{chain.name}/fc_input", (seeds, images), (seed, batch), found.fc_input)
        out.seconds.append(time.perf_counter() - begin)
        out.runs.append({"model": chain.name, "seed": seed, "batch": batch, **record})
    return out


def run_seed(seed: int, batch: int) -> int:
    """Seed of the attack's own randomness: another for each draw of weights and each image."""
    return 100_003 * seed + batch


def _run_one(
    attack: Attack, view: AttackerView, seed: int
) -> tuple[dict[str, Any], Reconstruction | None]:
    reason = attack.applies(view.chain)
    if reason is not None:
        return {"status": "not_applicable", "reason": reason}, None
    try:
        found = attack.run(view, seed)
    except NumericsError as error:
        return {"status": "failed", "reason": str(error)}, None
    except np.linalg.LinAlgError as error:
        return {"status": "failed", "reason": f"Linear algebra gave up: {error}."}, None
    if not np.all(np.isfinite(found.image)):
        return {"status": "failed", "reason": "The reconstruction holds NaN or infinity."}, None
    record = {
        "status": "ok",
        "reason": "",
        "stop": found.stop,
        "label": found.label,
        "layers": [asdict(layer) for layer in found.layers],
    }
    return record, found


class Results:
    """Images ``{chain}/image`` (seeds, targets, C, H, W), one record a run, seconds a run.

    Where an attack finds it, ``{chain}/fc_input`` (seeds, targets, n) stands beside the images.
    """

    def __init__(
        self, images: dict[str, np.ndarray], runs: list[dict[str, Any]], seconds: list[float]
    ) -> None:
        self.images = images
        self.runs = runs
        self.seconds = seconds

    def keep(
        self, key: str, runs: tuple[int, int], place: tuple[int, int], value: np.ndarray
    ) -> None:
        """Store one run's value in a tensor over all runs, NaN where there is none."""
        if key not in self.images:
            self.images[key] = np.full((*runs, *value.shape), np.nan)
        self.images[key][place] = value

    def summary(self) -> str:
        """One line for the log: runs by status, and seconds."""
        counts = Counter(run["status"] for run in self.runs)
        parts = [f"{number} {status}" for status, number in sorted(counts.items())]
        return f"{', '.join(parts)}; {sum(self.seconds):.1f} s in {len(self.runs)} runs"

    def save(self, path: str, timing: str, provenance: dict[str, Any]) -> None:
        """Write the reconstruction file and, apart from it, what varies from run to run."""
        write_tensors(path, self.images, {"runs": self.runs, "provenance": provenance})
        write_json(timing, {"seconds": self.seconds})


def read(path: str) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """Images and run records of a reconstruction file."""
    images, metadata = read_tensors(path)
    return images, metadata["runs"]
