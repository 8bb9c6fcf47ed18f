"""A lock's share of a network's parameters (FedKL Table III) and of its multiplications."""

from dataclasses import replace
from math import prod

import pandas as pd

from gradleak.models.chain import Chain, LinearLayer, LinearSpec
from gradleak.runtime.tidy import TABLES, Given, cell, frame

COLUMNS = [*TABLES, "network", "classes", "input"]
# Table III's shares are for networks with 100 classes, its accuracies on MNIST and CIFAR-10 for
# networks with 10.
CLASSES = (10, 100)


def counts(chain: Chain) -> dict[str, tuple[float, str]]:
    """Counts of a locked network's parameters, each with a description."""
    lock = sum(layer.lock.parameters(layer.filters) for layer in chain.locked)
    statistics = 2 * sum(part.shape.filters for part in chain.parts if part.normed)
    share = 100 * lock / (chain.parameters + statistics)
    first = chain.locked[0]
    own, locks = multiplications(chain)
    return {
        "parameters": (chain.parameters, "weights and biases, with the lock's"),
        "lock": (lock, "weights and biases of the lock"),
        "statistics": (statistics, "running means and variances of all norms"),
        "share": (share, "percent: the lock's of all parameters and running statistics"),
        "channels": (first.filters, "channels of the locked convolution"),
        "key": (first.lock.key, "values of the key"),
        "multiplications": (own, "of convolutions and fully connected layers, one image, forward"),
        "lock_multiplications": (locks, "of the lock, forward, once a batch"),
        "cost": (100 * locks / own, "percent: the lock's over the others', one image, forward"),
    }


def multiplications(chain: Chain) -> tuple[int, int]:
    """Multiplications of one image's forward pass without the locks, and those of the locks.

    Backward, both take as many again for the gradient in the weights, and the convolutions and
    fully connected layers also for that in their inputs. Norms and activations are not counted.
    """
    own = sum(prod(part.size) * prod(part.shape.output) for part in chain.parts)
    own += sum(prod(layer.size) for layer in chain.layers if isinstance(layer, LinearLayer))
    return own, sum(2 * layer.filters * layer.lock.key for layer in chain.locked)


def make(files: Given, words: Given, case: Given) -> pd.DataFrame:
    """Make the table: rows are networks, columns numbers of classes; it needs no files.

    ``cases`` of `words` have ``network``, its label ``row``, a description ``chain`` with a lock,
    and an ``input`` (C, H, W) if different from the chain's. `case` has the columns ``images`` and
    ``scale``, on which the numbers do not depend.
    """
    rows = []
    for entry in words["cases"]:
        chain = Chain.from_description(entry["chain"])
        shape, (*others, last) = tuple(entry.get("input") or chain.input), chain.specs
        assert isinstance(last, LinearSpec)
        for classes in CLASSES:
            own = replace(chain, input=shape, specs=(*others, replace(last, outputs=classes)))
            head = {key: entry[key] for key in ("row", "network")}
            head |= {"column": f"{classes} classes", "classes": classes}
            head["input"] = "x".join(map(str, shape))
            rows += [cell(head, metric, *value) for metric, value in counts(own).items()]
    return frame(rows, COLUMNS, **case)
