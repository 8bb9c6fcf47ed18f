"""Files of R-GAP's Figure 4 with made-up answers: a small ResNet-18 and two with a skip cut."""

import itertools

import pandas as pd

from gradleak.analysis.rank_analysis import analyse, critical, largest_alone
from gradleak.models.chain import Chain
from gradleak.models.resnet import specs
from gradleak.runtime.artifacts import write_csv
from papers.rgap.figures import fig4
from papers.rgap.tables import resnets
from rgap_files import Factory, noisy, target_set

NETWORKS = {"base": "ResNet18", "cut3": "Variant 1", "cut8": "Variant 2"}
SETTINGS = {"trained": "Trained, evaluation mode", "untrained": "Untrained, training mode"}
TESTED = 200


def network(name, *cut):
    return Chain(name, (3, 16, 16), specs("resnet18", 4, 10, cut=cut))


CHAINS = [network("base"), network("cut3", 3), network("cut8", 8)]


def failing_once():
    makers = itertools.chain([noisy(None)], itertools.repeat(noisy(0.2)))
    return lambda images, rng: next(makers)(images, rng)


def usual():
    """Answers in each setting; one run of variant 1 fails in the first."""
    return {
        "trained": {"base": noisy(0.1), "cut3": failing_once(), "cut8": noisy(0.1)},
        "untrained": {"base": noisy(0.01), "cut3": noisy(0.02), "cut8": noisy(0.01)},
    }


def build(folder, made_up=None, batches=2):
    """Files and words of the figure; `made_up` names the settings and their answers."""
    answers = usual() if made_up is None else made_up
    originals, points, factories = target_set(batches, shape=(3, 16, 16)), [], []
    for setting, makers in answers.items():
        (folder / setting).mkdir()
        factory = Factory(folder / setting, originals, CHAINS)
        factory.attack("ig", makers, result=setting)
        points += factory.files["scores"]
        factories.append(factory)
    made = factories[0]
    columns = {name: SETTINGS[name] for name in answers}
    made.files |= {"points": points, "table": str(folder / "table.csv")}
    write_csv(made.files["table"], summary(points, columns))
    return fig4, made, made.words({"ig": "IG"}, networks=NETWORKS, columns=columns)


def summary(points, columns):
    """The table, with accuracies of 60, 70 and 80 %."""
    counts = [analyse(chain) for chain in CHAINS]
    indices = {"network_ra": [critical(rows).index for rows in counts]}
    indices["network_ra_alone"] = [largest_alone(rows).alone for rows in counts]
    rank = pd.DataFrame({"model": list(NETWORKS), **indices})
    shares = {"test_accuracy": [0.6, 0.7, 0.8], "test": TESTED, "epochs": 3}
    trained = pd.DataFrame({"model": list(NETWORKS), **shares})
    scores = pd.concat([pd.read_csv(path) for path in points])
    words = {"networks": NETWORKS, "columns": columns}
    return resnets.table(scores, trained, rank, words, images="embedded", scale="smoke")
