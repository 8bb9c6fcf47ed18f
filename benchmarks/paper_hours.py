"""Arithmetic of searches and trainings at a scale, and the hours that a GPU would take for it.

``python -m benchmarks.paper_hours`` prints the table of docs/gpu.md.
"""

from __future__ import annotations

import argparse
import math
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pandas as pd

from gradleak.attacks.optimization.dlg import Dlg
from gradleak.attacks.optimization.ggl import Ggl
from gradleak.attacks.optimization.grnn import Grnn
from gradleak.attacks.optimization.inverting import CosineSearch
from gradleak.config import loader as gradleak_config
from gradleak.config import yaml_checks
from gradleak.config.schema import Config
from gradleak.models.chain import Chain, ConvLayer

# Passes through a network in forward passes: training takes one and a backward pass of two; a step
# of a search these three, and as many for the tangent of the gradients, where images do not move
# in the first layer and each other layer is met twice.
TRAINING, SEARCH = 3, 7
# Operations per second of an H200 with 15 jobs of small networks side by side (docs/gpu.md).
RATE = 8e12
# Hours from which an experiment or a training has a line of its own.
LEAST = 0.1


def forward(chain: Chain) -> float:
    """Floating-point operations of a forward pass of one image: two for each product."""
    total = 0.0
    for layer in chain.layers:
        if isinstance(layer, ConvLayer):
            total += sum(2.0 * math.prod(p.size) * p.shape.positions for p in layer.parts)
        else:
            total += 2.0 * math.prod(layer.size)
    return total


def generator(attack: Grnn, chain: Chain) -> float:
    """Those of a forward pass of GRNN's generator."""
    from gradleak.attacks.optimization.engine.generators import FIRST, Layout

    blocks = Layout(chain.input, chain.classes, attack.latent).blocks
    sides = (FIRST * 2**number for number in range(len(blocks)))
    return sum(18.0 * a * b * side**2 for (a, b), side in zip(blocks, sides, strict=True))


def of_attack(config: Config, experiment: str, model: str, attack: str) -> float:
    """Those of an attack with all its steps, 0 if it takes none: closed forms, Gauss-Newton."""
    own, entry = config.experiments[experiment], config.attacks[attack]
    if isinstance(entry, Ggl):
        steps, passes = float(entry.generations) * entry.population, TRAINING
    elif isinstance(entry, CosineSearch | Grnn | Dlg):
        steps, passes = float(entry.iterations), SEARCH
    else:
        return 0.0
    targets = config.targets[own.targets]
    there = targets.count or len(targets.indices or ()) // targets.batch
    gradients = min(there, getattr(entry, "images", None) or there) * own.seeds
    total = 0.0
    for chain in (config.chain(name) for name in config.members(model) if name in config.models):
        each = passes * forward(chain)
        if isinstance(entry, Grnn):
            each += TRAINING * generator(entry, chain)
        total += each * targets.batch * gradients * steps * entry.starts
    return total


def of_training(config: Config, training: str, model: str) -> float:
    """Those of a training with all its epochs."""
    own = config.trainings[training]
    chains = [config.chain(name) for name in config.members(model)]
    return TRAINING * sum(map(forward, chains)) * own.train * own.epochs


def jobs(config: Config, files: Iterable[str]) -> Iterator[dict[str, object]]:
    """A row for each attack and training that has steps, from the files that a run makes."""
    for path in sorted(set(files)):
        match Path(path).parts:
            case ("results", "scores", _, experiment, model, _, attack):
                attack = attack.removesuffix(".csv")
                count = of_attack(config, experiment, model, attack)
                what, kind = experiment, str(config.attacks[attack].method)
            case ("results", "training", _, training, file) if file.endswith(".curve.csv"):
                count = of_training(config, training, file.removesuffix(".curve.csv"))
                what, kind = training, "training"
            case _:
                continue
        if count:
            yield {"what": what, "kind": kind, "operations": count}


def made(scale: str) -> list[str]:
    """Files that ``snakemake all`` makes at a scale, by Snakemake's summary of them."""
    command = ["snakemake", "--summary", "--config", "images=real", f"scale={scale}", "--", "all"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.split("\t")[0] for line in told.splitlines()[1:]]


def table(rows: pd.DataFrame, rate: float) -> str:
    """A line for each experiment and training of at least `LEAST` hours, and one for the others."""
    own = rows.groupby("what", sort=False).agg(
        operations=("operations", "sum"), kinds=("kind", lambda k: ", ".join(dict.fromkeys(k)))
    )
    own["hours"] = own["operations"] / rate / 3600
    shown, others = own[own["hours"] >= LEAST], own[own["hours"] < LEAST]
    cells = [
        [f"`{what}`", row["kinds"], _digits(row["operations"] / 1e15), _digits(row["hours"])]
        for what, row in shown.sort_values("operations", ascending=False).iterrows()
    ]
    sums = (others["operations"].sum() / 1e15, others["hours"].sum())
    cells.append([f"{len(others)} others", "", *map(_digits, sums)])
    head = ["experiment or training", "by", "10^15 operations", "hours"]
    lines = [head, ["---"] * len(head), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _digits(number: float) -> str:
    """Two digits of a number: it is an estimate."""
    return f"{float(f'{number:.2g}'):,g}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser("python -m benchmarks.paper_hours", description=__doc__)
    parser.add_argument("--scale", default="paper")
    parser.add_argument("--rate", type=float, default=RATE, help="operations per second")
    given = parser.parse_args()
    config = gradleak_config.load({**yaml_checks.read("config.yaml"), "scale": given.scale})
    print(table(pd.DataFrame(jobs(config, made(given.scale))), given.rate))


if __name__ == "__main__":
    main()
