"""Files as the pipeline writes them, with made-up answers, for the figures of R-GAP."""

import itertools

import numpy as np
import pandas as pd

from figure_files import REASON, Files, rows, run, target_set
from gradleak.analysis.rank_analysis import analyse, critical, largest_alone
from gradleak.data import targets
from gradleak.models.chain import Chain
from gradleak.models.resnet import specs
from gradleak.runtime.artifacts import write_csv
from gradleak.scoring.metrics.image import combination, mse
from papers.rgap.figures import fig4
from papers.rgap.tables import resnets


def noisy(*levels):
    """Answers that are the images with noise of these levels; None is a failed one."""
    kinds = ["answer", *(f"start {place}" for place in range(1, len(levels)))]

    def noise(images, rng, level):
        return None if level is None else images + level * rng.standard_normal(images.shape)

    return lambda images, rng: [
        (kind, noise(images, rng, level)) for kind, level in zip(kinds, levels, strict=True)
    ]


class Factory(Files):
    """Writes files of one experiment; an attack answers a batch by [(kind, images or None)]."""

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
                    runs.append(run(chain.name, batch, reason, answer=answer, kind=kind))
                    if found is not None:
                        images[chain.name][0, batch, answer, : len(found)] = found
                    scores += self._scores(runs[-1], found, twin_scale)
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
        same = {"title": "A figure", "names": {}, "attacks": dict(attacks)}
        return {**same, "chains": [chain.describe() for chain in self.chains], **more}


# Figure 4: a small ResNet-18, and two with a skip cut.
NETWORKS = {"base": "ResNet18", "cut3": "Variant 1", "cut8": "Variant 2"}
SETTINGS = {"trained": "Trained, evaluation mode", "untrained": "Untrained, training mode"}
TESTED = 200


def resnet(name, *cut):
    return Chain(name, (3, 16, 16), specs("resnet18", 4, 10, cut=cut))


RESNETS = [resnet("base"), resnet("cut3", 3), resnet("cut8", 8)]


def usual():
    """Answers in each setting; one run of variant 1 fails in the first."""
    makers = itertools.chain([noisy(None)], itertools.repeat(noisy(0.2)))
    once = lambda images, rng: next(makers)(images, rng)  # noqa: E731
    return {
        "trained": {"base": noisy(0.1), "cut3": once, "cut8": noisy(0.1)},
        "untrained": {"base": noisy(0.01), "cut3": noisy(0.02), "cut8": noisy(0.01)},
    }


def resnets_figure(folder, made_up=None, batches=2):
    """Files and words of the figure; `made_up` names the settings and their answers."""
    answers = usual() if made_up is None else made_up
    originals, points, factories = target_set(batches, shape=(3, 16, 16)), [], []
    for setting, makers in answers.items():
        (folder / setting).mkdir()
        factories.append(Factory(folder / setting, originals, RESNETS))
        factories[-1].attack("ig", makers, result=setting)
        points += factories[-1].files["scores"]
    made, columns = factories[0], {name: SETTINGS[name] for name in answers}
    made.files |= {"points": points, "table": str(folder / "table.csv")}
    write_csv(made.files["table"], summary(points, columns))
    return fig4, made, made.words({"ig": "IG"}, networks=NETWORKS, columns=columns)


def summary(points, columns):
    """The table, with accuracies of 60, 70 and 80 %."""
    counts = [analyse(chain) for chain in RESNETS]
    indices = {"network_ra": [critical(rows).index for rows in counts]}
    indices["network_ra_alone"] = [largest_alone(rows).alone for rows in counts]
    rank = pd.DataFrame({"model": list(NETWORKS), **indices})
    shares = {"test_accuracy": [0.6, 0.7, 0.8], "test": TESTED, "epochs": 3}
    trained = pd.DataFrame({"model": list(NETWORKS), **shares})
    scores = pd.concat([pd.read_csv(path) for path in points])
    words = {"networks": NETWORKS, "columns": columns}
    return resnets.table(scores, trained, rank, words, images="embedded", scale="smoke")
