"""Files as the pipeline writes them, with made-up answers, for the figures of R-GAP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gradleak import targets
from gradleak.artifacts import write_csv, write_tensors
from gradleak.metrics.image import combination, mse
from gradleak.models.chain import Chain
from gradleak.rank_analysis import analyse, critical

REASON = "No start came below the objective that a success has."


def target_set(
    batches: int = 2, size: int = 1, shape: tuple[int, int, int] = (3, 8, 8)
) -> targets.TargetSet:
    rng = np.random.default_rng(0)
    count = batches * size
    return targets.TargetSet(
        rng.integers(0, 256, (batches, size, *shape), dtype=np.uint8),
        np.arange(count).reshape(batches, size) % 10,
        np.arange(count).reshape(batches, size),
        0.0,
        tuple(f"batch {k}" for k in range(batches)),
        {
            "dataset": "photos10",
            "split": "test",
            "origin": "embedded",
        },
        {k: f"class {k}" for k in range(10)},
    )


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


class Factory:
    """Writes files of one experiment into a folder."""

    def __init__(self, folder: Path, originals: targets.TargetSet, chains: Iterable[Chain]) -> None:
        self.folder, self.originals, self.chains = folder, originals, list(chains)
        self.rng = np.random.default_rng(1)
        self.files: dict[str, Any] = {
            "targets": str(folder / "targets.safetensors"),
            "reconstructions": [],
            "scores": [],
        }
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
        images, runs, rows = {}, [], []
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
                    place = {"model": chain.name, "seed": 0, "batch": batch, "answer": answer}
                    status = "ok" if found is not None else "failed"
                    facts = {
                        "kind": kind,
                        "status": status,
                        "reason": "" if found is not None else REASON,
                    }
                    if found is not None:
                        stack[0, batch, answer, : len(found)] = found
                    runs.append(place | facts)
                    rows += self._scores(attack, defence, place | facts, found, twin_scale)
            images[f"{chain.name}/images"] = stack
        name = self.folder / f"{defence}-{attack}"
        write_tensors(f"{name}.safetensors", images, {"runs": runs})
        write_csv(f"{name}.csv", pd.DataFrame(rows))
        self.files["reconstructions"].append(f"{name}.safetensors")
        self.files["scores"].append(f"{name}.csv")

    def _scores(
        self,
        attack: str,
        defence: str,
        record: dict[str, Any],
        found: np.ndarray | None,
        twin_scale: float | None,
    ) -> list[dict[str, Any]]:
        originals = self.originals.inputs(record["batch"])
        rows = []
        for position, original in enumerate(originals):
            values: dict[str, float | None] = {"mse": None, "psnr": None}
            if found is not None:
                one = min(found, key=lambda image: mse(original, image))
                values["mse"] = mse(original, one)
                if len(found) < len(originals):
                    weights, r2 = combination(originals, found[0])
                    values |= {"coefficient": weights[position]} | ({} if position else {"r2": r2})
                if twin_scale is not None:
                    values |= {
                        "twin_scale": twin_scale,
                        "mse_twin": mse(twin_scale * original, one),
                        "twin_error": float(
                            np.linalg.norm(one - twin_scale * original)
                            / np.linalg.norm(twin_scale * original)
                        ),
                    }
            for metric, value in values.items():
                rows.append(
                    {
                        "paper": "rgap", "result": "rgap_x", "attack": attack, "defence": defence,
                        "images": "embedded", "targets": "t", "precision": "float32",
                        "index": int(self.originals.indices[record["batch"], position]),
                        "label": "x", "name": "x", "metric": metric,
                        "value": "" if value is None else value,
                        **record,
                    }
                )  # fmt: skip
        return rows

    def rank(self) -> None:
        """File of the rank analysis, ranks made up."""
        rows = []
        for chain in self.chains:
            counts = analyse(chain)
            worst = critical(counts)
            for count in counts:
                rows.append(
                    {
                        "model": chain.name,
                        "seed": 0,
                        "index": 0,
                        "layer": count.layer,
                        "unknowns": count.unknowns,
                        "weights": count.weights,
                        "ra": count.index,
                        "network_ra": worst.index,
                        "critical": count is worst,
                        "inputs": count.unknowns,
                        "rank": count.unknowns - 5 if count.layer.startswith("conv") else None,
                    }
                )
        path = str(self.folder / "rank.csv")
        write_csv(path, pd.DataFrame(rows))
        self.files["rank"] = [path]

    def words(self, attacks: Mapping[str, str], **more: Any) -> dict[str, Any]:
        described = [chain.describe() for chain in self.chains]
        return {"chains": described, "names": {}, "attacks": dict(attacks), **more}
