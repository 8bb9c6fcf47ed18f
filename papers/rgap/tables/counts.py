"""Sentences of R-GAP that follow from sizes: skips cut one by one, padding, depth."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from gradleak.analysis.rank_analysis import analyse, critical, largest_alone
from gradleak.models.chain import Chain, LinearLayer
from gradleak.operators.shape import ConvShape
from gradleak.runtime.tidy import TABLES, Given, Row, cell, frame

COLUMNS = [*TABLES, "model", "place"]
# Forward passes that a gradient and the derivative of a distance of gradients take together.
PASSES = 9


def cuts(row: str, model: str, chains: list[Chain]) -> Iterator[Row]:
    """RA-i of a residual network, and its change by cutting the skip of each block alone.

    `chains` are the network and, in the order of its blocks, the variants. ``change`` counts with
    virtual constraints, as Table 4 does, ``change_alone`` without those from before a block.
    """
    whole, *variants = [analyse(chain) for chain in chains]
    base, alone = critical(whole).index, largest_alone(whole).alone
    head = {"row": row, "model": model}
    yield cell({**head, "column": "every skip"}, "ra", base, "RA-i")
    yield cell({**head, "column": "every skip"}, "ra_alone", alone, "without virtual constraints")
    for number, counted in enumerate(variants, 1):
        own = {**head, "column": f"block {number} cut", "place": number}
        yield cell(own, "change", critical(counted).index - base, "of RA-i")
        said = "of RA-i without virtual constraints from before a layer or its block"
        yield cell(own, "change_alone", largest_alone(counted).alone - alone, said)


def multiplications(row: str, chain: Chain, gradients: int) -> Iterator[Row]:
    """Multiplications of R-GAP with dense least squares, and of a search with `gradients`.

    A dense least-squares problem of m equations and n unknowns takes about n² (m − n/3) of them by
    Householder's QR; padded pixels are unknowns, each with an equation, as in R-GAP. A gradient
    takes three forward passes, and its derivative, which the search needs, twice that again.
    Fully connected layers are divisions for R-GAP and are left out there.
    """
    dense = forward = 0.0
    for layer in chain.convolutions:
        shape = layer.shape
        forward += _weights(shape) * shape.positions
        unknowns = _padded(shape).unknowns
        equations = layer.output + _weights(shape) + unknowns - shape.unknowns
        dense += unknowns**2 * (equations - unknowns / 3)
    linear = chain.layers[len(chain.convolutions) :]
    forward += sum(
        layer.inputs * layer.outputs for layer in linear if isinstance(layer, LinearLayer)
    )
    search = gradients * PASSES * forward
    head = {"row": row, "model": chain.name}
    yield cell({**head, "column": "R-GAP, dense"}, "multiplications", dense, "least squares by QR")
    told = f"{gradients} gradients at {PASSES} forward passes"
    yield cell({**head, "column": "DLG"}, "multiplications", search, told)
    said = "how many times as many DLG takes"
    yield cell({**head, "column": "DLG"}, "times_rgap", search / dense, said)


def _weights(shape: ConvShape) -> int:
    return shape.filters * shape.channels * shape.kernel[0] * shape.kernel[1]


def _padded(shape: ConvShape) -> ConvShape:
    """Return the convolution of an image that has its padding already."""
    size = tuple(n + 2 * p for n, p in zip(shape.size, shape.padding, strict=True))
    return replace(shape, padding=(0, 0), size=(size[0], size[1]))


def padding(row: str, chain: Chain) -> Iterator[Row]:
    """Unknowns that a network's padding adds, less the constraints it adds: a padded pixel is 0.

    Unknowns are those of a layer of the padded size; constraints are the places outside the image.
    """
    for place, layer in enumerate(chain.convolutions, 1):
        shape = layer.shape
        if not any(shape.padding):
            continue
        (down, across), (height, width) = shape.padding, shape.size
        wide = _padded(shape)
        outside = np.ones((shape.channels, *wide.size), dtype=bool)
        outside[:, down : down + height, across : across + width] = False
        more = wide.unknowns - shape.unknowns
        head = {"row": row, "model": chain.name, "column": layer.name, "place": place}
        yield cell(head, "padding_unknowns", more, "unknowns that padding adds")
        yield cell(head, "padding_left", more - outside.sum(), "less the constraints that it adds")


def depth(row: str, chain: Chain) -> Iterator[Row]:
    """Test if the layer next to the data has the smallest RA-i of a network's convolutions."""
    counted = analyse(chain)[: len(chain.convolutions)]
    if len(counted) < 2:
        return
    first, rest = counted[0], counted[1:]
    head = {"row": row, "model": chain.name, "column": "first convolution"}
    smaller = float(first.index < np.median([each.index for each in rest]))
    yield cell(head, "first_smaller", smaller, "1 if its RA-i is below the median of the others'")
    fewer = float(all(first.virtual <= each.virtual for each in rest))
    yield cell(head, "first_fewer", fewer, "1 if no other has fewer virtual constraints")


def make(files: Given, words: Given, case: Given) -> pd.DataFrame:
    """Make the table; it needs no files.

    ``networks`` of `words` are descriptions of chains by label; ``cut`` has, by label, the
    ``model`` and its ``chains``, see `cuts`; ``timed`` are labels of networks whose multiplications
    are counted, with a search of ``gradients``. The last row of ``depth`` is the share of all
    networks.
    """
    chains = {row: Chain.from_description(text) for row, text in words["networks"].items()}
    rows = [line for row, chain in chains.items() for line in padding(row, chain)]
    for row in words["timed"]:
        rows += multiplications(row, chains[row], int(words["gradients"]))
    depths = [line for row, chain in chains.items() for line in depth(row, chain)]
    for row, entry in words["cut"].items():
        described = [Chain.from_description(text) for text in entry["chains"]]
        rows += cuts(row, entry["model"], described)
    rows += depths
    head = {"row": "all networks", "column": "first convolution"}
    for metric in ("first_smaller", "first_fewer"):
        found = [line["ours"] for line in depths if line["metric"] == metric]
        counts = (len(found), len(found))
        rows.append(cell(head, metric, float(np.mean(found)), "share of networks", counts=counts))
    return frame(rows, COLUMNS, **case)
