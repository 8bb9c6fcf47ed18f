"""A lock's share of a network's parameters (FedKL Table III)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from gradleak.models.chain import Chain, LinearSpec
from gradleak.runtime.tidy import TABLES, cell, frame

COLUMNS = [*TABLES, "network", "classes", "input"]
# Table III's shares are for networks with 100 classes, its accuracies on MNIST and CIFAR-10 for
# networks with 10.
CLASSES = (10, 100)


def statistics(chain: Chain) -> int:
    """Count running means and variances of all norms."""
    return 2 * sum(part.shape.filters for part in chain.parts if part.normed)


def counts(chain: Chain) -> dict[str, tuple[float, str]]:
    """Counts of a locked network's parameters, each with a description.

    ``share`` is lock / (parameters + running statistics), in percent.
    """
    lock = sum(layer.lock.parameters(layer.filters) for layer in chain.locked)
    kept = statistics(chain)
    first = chain.locked[0]
    return {
        "parameters": (chain.parameters, "weights and biases, with the lock's"),
        "lock": (lock, "weights and biases of the lock"),
        "statistics": (kept, "running means and variances of all norms"),
        "share": (
            100 * lock / (chain.parameters + kept),
            "percent: the lock's of all parameters and running statistics",
        ),
        "channels": (first.filters, "channels of the locked convolution"),
        "key": (first.lock.key, "values of the key"),
    }


def with_classes(chain: Chain, classes: int) -> Chain:
    """Change the number of outputs of a network."""
    last = chain.specs[-1]
    assert isinstance(last, LinearSpec)
    return replace(chain, specs=(*chain.specs[:-1], replace(last, outputs=classes)))


def table(cases: Sequence[Mapping[str, Any]], images: str, scale: str) -> pd.DataFrame:
    """Tidy table: rows are networks, columns numbers of classes.

    Parameters
    ----------
    cases
        For each network: ``network``, its label ``row``, description ``chain`` with a lock, and an
        ``input`` (C, H, W) if different from the chain's.
    images, scale
        Values of these columns; the numbers do not depend on them.
    """
    rows = []
    for case in cases:
        chain = Chain.from_description(case["chain"])
        shape = tuple(case.get("input") or chain.input)
        chain = replace(chain, input=shape)
        for classes in CLASSES:
            head = {"row": case["row"], "column": f"{classes} classes", "network": case["network"]}
            head |= {"classes": classes, "input": "x".join(map(str, shape))}
            found = counts(with_classes(chain, classes))
            rows += [cell(head, metric, *value) for metric, value in found.items()]
    return frame(rows, COLUMNS, images, scale)


def make(
    files: Mapping[str, Any], words: Mapping[str, Any], case: Mapping[str, str]
) -> pd.DataFrame:
    """Make the table of the networks in ``cases`` of `words`; it needs no files."""
    return table(words["cases"], **case)
