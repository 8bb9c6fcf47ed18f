"""Files as the pipeline writes them, with made-up answers, for the figures of R-GAP."""

import numpy as np
import pandas as pd

from figure_files import REASON, Files, rows, run, target_set
from gradleak.analysis.rank_analysis import analyse, critical
from gradleak.data import targets
from gradleak.runtime.artifacts import write_csv
from gradleak.scoring.metrics.image import combination, mse

__all__ = ["Factory", "noisy", "target_set"]


def noisy(*levels):
    """Answers that are the images with noise of these levels; None is a failed one."""
    kinds = ["answer", *(f"start {place}" for place in range(1, len(levels)))]

    def noise(images, rng, level):
        return None if level is None else images + level * rng.standard_normal(images.shape)

    return lambda images, rng: [
        (kind, noise(images, rng, level)) for kind, level in zip(kinds, levels, strict=True)
    ]


class Factory(Files):
    """Writes files of one experiment into a folder.

    An attack answers to a batch (K, C, H, W): (kind, images or None) for each answer.
    """

    def __init__(self, folder, originals, chains):
        super().__init__(folder)
        self.originals, self.chains = originals, list(chains)
        self.rng = np.random.default_rng(1)
        self.files["targets"] = str(folder / "targets.safetensors")
        targets.save(self.files["targets"], originals, {})

    def attack(
        self, attack, makers, *, defence="none", batches=None, twin_scale=None, result="rgap_x"
    ):
        """Files of one attack; `makers` by model, or one for all."""
        images, runs, scores = {}, [], []
        for chain in self.chains:
            maker = makers if callable(makers) else makers[chain.name]
            count = batches or len(self.originals.images)
            given = [maker(self.originals.inputs(b), self.rng) for b in range(count)]
            sizes = [len(i) for answers in given for _, i in answers if i is not None]
            shape = count, max(map(len, given)), max(sizes, default=1), *chain.input
            images[chain.name] = np.full((1, *shape), np.nan)
            for batch, answers in enumerate(given):
                for answer, (kind, found) in enumerate(answers):
                    reason = REASON if found is None else ""
                    record = run(chain.name, batch, reason, answer=answer, kind=kind)
                    if found is not None:
                        images[chain.name][0, batch, answer, : len(found)] = found
                    runs.append(record)
                    scores += self._scores(record, found, twin_scale)
        same = {"paper": "rgap", "result": result, "attack": attack, "defence": defence}
        self.save(images, runs, [{**same, **row} for row in scores])

    def _scores(self, record, found, twin_scale):
        originals = self.originals.inputs(record["batch"])
        for position, original in enumerate(originals):
            values = {"mse": None, "psnr": None}
            if found is not None:
                one = min(found, key=lambda image: mse(original, image))
                values["mse"] = mse(original, one)
                if len(found) < len(originals):
                    weights, r2 = combination(originals, found[0])
                    values |= {"coefficient": weights[position]} | ({} if position else {"r2": r2})
                if twin_scale is not None:
                    twin = twin_scale * original
                    values |= {"twin_scale": twin_scale, "mse_twin": mse(twin, one)}
                    values["twin_error"] = np.linalg.norm(one - twin) / np.linalg.norm(twin)
            yield from rows(record, int(self.originals.indices[record["batch"], position]), values)

    def rank(self):
        """File of the rank analysis, ranks made up."""
        found = []
        for chain in self.chains:
            counts = analyse(chain)
            for count in counts:
                rank = count.unknowns - 5 if count.layer.startswith("conv") else None
                worst = count is critical(counts)
                found.append((chain.name, count.layer, count.unknowns, 0, 0, worst, rank))
        self.files["rank"] = [str(self.folder / "rank.csv")]
        columns = ["model", "layer", "inputs", "seed", "index", "critical", "rank"]
        write_csv(self.files["rank"][0], pd.DataFrame(found, columns=columns))

    def words(self, attacks, **more):
        described = [chain.describe() for chain in self.chains]
        return {
            "title": "A figure",
            "chains": described,
            "names": {},
            "attacks": dict(attacks),
            **more,
        }
