"""Files as the pipeline writes them, with made-up answers, for the figures of R-GAP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from figure_files import REASON, Files, rows, run, target_set
from gradleak.analysis.rank_analysis import analyse, critical
from gradleak.data import targets
from gradleak.data.targets import TargetSet
from gradleak.models.chain import Chain
from gradleak.runtime.artifacts import write_csv
from gradleak.scoring.metrics.image import combination, mse

__all__ = ["Factory", "Maker", "noisy", "target_set"]

# What an attack answers to a batch (K, C, H, W): one entry (kind, images or None) for each answer.
Maker = Callable[[np.ndarray, np.random.Generator], list[tuple[str, np.ndarray | None]]]


def noisy(*levels: float | None) -> Maker:
    """Answers that are the images with noise of these levels; None is a failed one."""

    def make(images: np.ndarray, rng: np.random.Generator) -> list[tuple[str, np.ndarray | None]]:
        return [
            (
                f"start {place}" if place else "answer",
                None if level is None else images + level * rng.standard_normal(images.shape),
            )
            for place, level in enumerate(levels)
        ]

    return make


class Factory(Files):
    """Writes files of one experiment into a folder."""

    def __init__(self, folder: Path, originals: TargetSet, chains: Iterable[Chain]) -> None:
        super().__init__(folder)
        self.originals, self.chains = originals, list(chains)
        self.rng = np.random.default_rng(1)
        self.files["targets"] = str(folder / "targets.safetensors")
        targets.save(self.files["targets"], originals, {})

    def attack(
        self,
        attack: str,
        makers: Mapping[str, Maker] | Maker,
        *,
        defence: str = "none",
        batches: int | None = None,
        twin_scale: float | None = None,
    ) -> None:
        """Files of one attack; `makers` by model, or one for all."""
        images, runs, scores = {}, [], []
        for chain in self.chains:
            maker = makers if callable(makers) else makers[chain.name]
            count = batches or len(self.originals.images)
            given = [maker(self.originals.inputs(b), self.rng) for b in range(count)]
            most = max(len(answers) for answers in given)
            size = max(
                [len(i) for answers in given for _, i in answers if i is not None], default=1
            )
            stack = np.full((1, count, most, size, *chain.input), np.nan)
            for batch, answers in enumerate(given):
                for answer, (kind, found) in enumerate(answers):
                    reason = REASON if found is None else ""
                    record = run(chain.name, batch, reason, answer=answer, kind=kind)
                    if found is not None:
                        stack[0, batch, answer, : len(found)] = found
                    runs.append(record)
                    scores += self._scores(record, found, twin_scale)
            images[chain.name] = stack
        same = {"paper": "rgap", "result": "rgap_x", "attack": attack, "defence": defence}
        self.save(images, runs, [{**same, **row} for row in scores])

    def _scores(
        self, record: dict[str, Any], found: np.ndarray | None, twin_scale: float | None
    ) -> list[dict[str, Any]]:
        originals = self.originals.inputs(record["batch"])
        scores = []
        for position, original in enumerate(originals):
            values: dict[str, float | None] = {"mse": None, "psnr": None}
            if found is not None:
                one = min(found, key=lambda image: mse(original, image))
                values["mse"] = mse(original, one)
                if len(found) < len(originals):
                    weights, r2 = combination(originals, found[0])
                    values |= {"coefficient": weights[position]} | ({} if position else {"r2": r2})
                if twin_scale is not None:
                    twin = twin_scale * original
                    error = np.linalg.norm(one - twin) / np.linalg.norm(twin)
                    values |= {"twin_scale": twin_scale, "mse_twin": mse(twin, one)}
                    values["twin_error"] = float(error)
            index = int(self.originals.indices[record["batch"], position])
            scores += rows(record, index, values)
        return scores

    def rank(self) -> None:
        """File of the rank analysis, ranks made up."""
        found = []
        for chain in self.chains:
            counts = analyse(chain)
            worst = critical(counts)
            for count in counts:
                row = {"model": chain.name, "layer": count.layer, "inputs": count.unknowns}
                row |= {"seed": 0, "index": 0, "critical": count is worst}
                rank = count.unknowns - 5 if count.layer.startswith("conv") else None
                found.append({**row, "rank": rank})
        path = str(self.folder / "rank.csv")
        write_csv(path, pd.DataFrame(found))
        self.files["rank"] = [path]

    def words(self, attacks: Mapping[str, str], **more: Any) -> dict[str, Any]:
        described = [chain.describe() for chain in self.chains]
        return {"chains": described, "names": {}, "attacks": dict(attacks), **more}
