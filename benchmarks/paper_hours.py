"""Arithmetic of searches and trainings at a scale, and the hours that a GPU would take for it.

``python -m benchmarks.paper_hours`` prints the table of docs/gpu.md.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pandas as pd
import torch
from torch.utils.flop_counter import FlopCounterMode

from gradleak.attacks.optimization.class_fishing import ClassFishing
from gradleak.attacks.optimization.dlg import Dlg
from gradleak.attacks.optimization.engine.generators import FIRST, Layout
from gradleak.attacks.optimization.ggl import Ggl
from gradleak.attacks.optimization.grnn import Grnn
from gradleak.attacks.optimization.inverting import CosineSearch
from gradleak.config import loader as gradleak_config
from gradleak.config import yaml_checks
from gradleak.config.schema import Config
from gradleak.config.training import ConditionalVaeConfig
from gradleak.models.chain import Chain, ConvLayer
from gradleak.pipeline.work import training_images
from gradleak.settings.fields import SCALES
from gradleak.training.generators.conditional_vae import Autoencoder, Sizes

# Passes through a network in forward passes: training takes one and a backward pass of two; a step
# of a search these three, and as many for the tangent of the gradients, where images do not move
# in the first layer and each other layer is met twice.
TRAINING, SEARCH = 3, 7
# Operations per second of an H200 with 15 jobs of small networks side by side (docs/gpu.md).
RATE = 8e12
# Classes of a generator: they change a small part of its operations.
CLASSES = 1000
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
    """Operations of a forward pass of GRNN's generator, for one image."""
    blocks = Layout(chain.input, chain.classes, attack.latent).blocks
    sides = (FIRST * 2**number for number in range(len(blocks)))
    return sum(18.0 * a * b * side**2 for (a, b), side in zip(blocks, sides, strict=True))


def batch_of(config: Config, experiment: str, attack: str) -> int:
    """Images that a search moves at once: a client's batch, of which class fishing has one."""
    if isinstance(config.attacks[attack], ClassFishing):
        return 1
    return config.targets[config.experiments[experiment].targets].batch


def of_attack(config: Config, experiment: str, model: str, attack: str) -> float:
    """Operations of an attack with all its steps, 0 for closed forms and Gauss-Newton."""
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
        total += each * batch_of(config, experiment, attack) * gradients * steps * entry.starts
    return total


def of_training(config: Config, training: str, model: str) -> float:
    """Operations of a training with all its epochs, or rounds of a federation."""
    own = config.trainings[training]
    share = 1.0
    if own.federated is not None:
        share = own.federated.share * own.federated.local_epochs
    chains = [config.chain(name) for name in config.members(model)]
    images = training_images(config, training) * share * config.drawn(model, training)
    return TRAINING * sum(map(forward, chains)) * images


def of_generator(config: Config, name: str) -> float:
    """Operations of the training of a generator of ours, as PyTorch counts one image."""
    own = config.generators[name]
    if not isinstance(own, ConditionalVaeConfig) or own.images is None:
        return 0.0
    with torch.device("meta"):
        side = own.size or 32
        sizes = Sizes((3, side, side), CLASSES, own.latent, own.width)
        module = Autoencoder(sizes)
        given = torch.zeros(1, *sizes.shape), torch.zeros(1, dtype=torch.long)
        noise = torch.zeros(1, own.latent)
        with FlopCounterMode(display=False) as counter:
            module(*given, noise)
    return TRAINING * float(counter.get_total_flops()) * own.images * own.epochs


def jobs(config: Config, files: Iterable[str]) -> Iterator[dict[str, object]]:
    """A row for each attack and training that has steps, from the files that a run makes.

    ``target`` is what to ask Snakemake for: the page of an attack's experiment, or a file.
    """
    for path in sorted(set(files)):
        match Path(path).parts:
            case ("results", "scores", _, experiment, model, _, attack):
                attack = attack.removesuffix(".csv")
                count = of_attack(config, experiment, model, attack)
                kind, target = str(config.attacks[attack].method), f"experiments/{experiment}.html"
            case ("results", "training", _, training, file) if file.endswith(".curve.csv"):
                count = of_training(config, training, file.removesuffix(".curve.csv"))
                kind, target = "training", path.removeprefix("results/")
            case ("results", "generators", _, file) if file.endswith(".safetensors"):
                count = of_generator(config, file.removesuffix(".safetensors"))
                kind, target = "training", path.removeprefix("results/")
            case _:
                continue
        if count:
            yield {"target": f"results/{target}", "kind": kind, "operations": count}


def made(scale: str) -> list[str]:
    """Files that ``snakemake all`` makes at a scale, by Snakemake's summary of them."""
    words = f"-m snakemake --summary --config images=real scale={scale} -- all"
    command = [sys.executable, *words.split()]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.split("\t")[0] for line in told.splitlines()[1:]]


def table(rows: pd.DataFrame, rate: float) -> str:
    """A line for each target of at least `LEAST` hours, one for the others, and one for all."""
    own = rows.groupby("target", sort=False).agg(
        operations=("operations", "sum"), kinds=("kind", lambda k: ", ".join(dict.fromkeys(k)))
    )
    own["hours"] = own["operations"] / rate / 3600
    own = own.sort_values("operations", ascending=False, kind="stable")
    shown, others = own[own["hours"] >= LEAST], own[own["hours"] < LEAST]
    cells = [
        [f"`{target}`", row["kinds"], _digits(row["operations"] / 1e15), _digits(row["hours"])]
        for target, row in shown.iterrows()
    ]
    sums = (others["operations"].sum() / 1e15, others["hours"].sum())
    if len(others):
        cells.append([f"{len(others)} shorter", "", *map(_digits, sums)])
    sums = (own["operations"].sum() / 1e15, own["hours"].sum())
    cells.append(["all", "", *map(_digits, sums)])
    head = ["target", "by", "10^15 operations", "hours"]
    lines = [head, ["---"] * len(head), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _digits(number: float) -> str:
    """Two digits of a number: it is an estimate."""
    return f"{float(f'{number:.2g}'):,g}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser("python -m benchmarks.paper_hours", description=__doc__)
    parser.add_argument("--scale", choices=SCALES, default="paper")
    parser.add_argument("--rate", type=float, default=RATE, help="operations per second")
    given = parser.parse_args()
    raw = yaml_checks.read("config.yaml") | {"scale": given.scale, "images": "real"}
    config = gradleak_config.load(raw)
    print(table(pd.DataFrame(jobs(config, made(given.scale))), given.rate))


if __name__ == "__main__":
    main()
