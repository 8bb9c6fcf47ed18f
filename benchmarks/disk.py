"""Disk space that a whole run takes, computed from config.yaml before anything is made."""

import csv
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path

from benchmarks.pipeline import copy_tree, snakemake
from benchmarks.runner import last_line
from gradleak.config import loader as gradleak_config
from gradleak.config import yaml_checks
from gradleak.config.schema import Config, Experiment
from gradleak.data.catalogue import info, resolve
from gradleak.errors import ArtifactError, GradleakError
from gradleak.models.chain import Chain, LinearLayer
from gradleak.pipeline.resources import SCALES, parameters, passing_gradients
from gradleak.runtime.provenance import TREE

COLUMNS = ("scale", "paper", "kind", "files", "megabytes")
# Bytes of a number; target sets store pixels as bytes, closed-form attacks solve in float64.
SINGLE, DOUBLE = 4, 8
MEGABYTE = 1e6


@dataclass(frozen=True)
class Expected:
    """A file of a run that holds arrays."""

    paper: str
    kind: str  # folder of `results/`; ``gradients, passing`` for those that do not stay
    size: int  # bytes of its arrays, without headers of a few hundred bytes


def expected(config: Config, path: str) -> Expected | None:
    """Expected size of a file below ``results/``; None without arrays worth counting."""
    small = ".secret." in path or ".clients/" in path
    if small or not path.endswith(".safetensors"):
        return None
    _, kind, _, *names = Path(path.removesuffix(".safetensors")).parts
    if kind == "targets":
        return Expected(_paper(config, names[0]), kind, _pixels(config, names[0]))
    if kind in ("models", "servers", "training"):
        # Seeds in a model's file: the most that an experiment asks for.
        seeds = (e.seeds for e in config.experiments.values() if names[-1] in e.models)
        draws = 1 if kind == "training" else max(seeds, default=1)
        # One kind of server may send networks of several papers.
        whose = names[-1] if kind == "servers" else names[0]
        return Expected(_paper(config, whose), kind, SINGLE * draws * parameters(config, names[-1]))
    if kind not in ("gradients", "reconstructions"):
        return None
    entry = config.experiments[names[0]]
    if kind == "gradients":
        passing = ", passing" * (names[0] in passing_gradients(config))
        return Expected(entry.paper, f"{kind}{passing}", _gradient(config, entry, names[1]))
    return Expected(entry.paper, kind, _reconstruction(config, entry, names[1], names[3]))


def _paper(config: Config, name: str) -> str:
    """Paper from the first word of an id; ids of COPA's networks have no such word."""
    first = name.partition("_")[0]
    return first if first in config.papers else "copa"


def _batches(config: Config, targets: str) -> int:
    entry = config.targets[targets]
    if entry.indices is None:
        assert entry.count is not None
        return entry.count * (1 + entry.relabel)
    return len(entry.indices) // entry.batch


def _pixels(config: Config, targets: str) -> int:
    entry = config.targets[targets]
    known = info(resolve(entry.dataset, config.images))
    side = known.height if entry.size is None else entry.size
    if entry.resize == "repeat":
        side = min(side, known.height)  # repeated pixels are stored once
    images = _batches(config, targets) * entry.batch
    return images * known.channels * side**2


def _chains(config: Config, model: str) -> list[Chain]:
    """Networks in a model's file; none for a family, which is small."""
    return [config.chain(name) for name in config.members(model) if name in config.models]


def _gradient(config: Config, entry: Experiment, model: str) -> int:
    chains = _chains(config, model)
    if entry.kept == "classifier":
        linear = (e for c in chains for e in c.layers if isinstance(e, LinearLayer))
        numbers = sum(layer.outputs * (layer.inputs + layer.bias) for layer in linear)
    else:
        # A lock's key and weights never leave its client.
        locks = sum(locked.lock.parameters(locked.filters) for c in chains for locked in c.locked)
        numbers = parameters(config, model) - locks * (entry.lock in ("withheld", "key"))
    size = DOUBLE if entry.precision == "float64" else SINGLE
    return size * entry.seeds * _batches(config, entry.targets) * numbers


def _reconstruction(config: Config, entry: Experiment, model: str, attack: str) -> int:
    # MKOR stores images in the precision of the gradient, all other attacks solve in float64.
    single = config.attacks[attack].method.startswith("mkor") and entry.precision == "float32"
    batch = config.targets[entry.targets].batch
    chains = _chains(config, model)
    numbers = batch * sum(prod(chain.input) for chain in chains)
    if config.attacks[attack].method in ("copa", "rgap"):
        # They also store the input of the first fully connected layer.
        linear = ((e for e in chain.layers if isinstance(e, LinearLayer)) for chain in chains)
        numbers += sum(next(layers).inputs for layers in linear)
    rounds = entry.seeds * _batches(config, entry.targets)
    return (SINGLE if single else DOUBLE) * rounds * numbers


def planned(overrides: dict[str, str]) -> list[str]:
    """Files that `snakemake all` would make from nothing; raise `ArtifactError` if it fails."""
    with tempfile.TemporaryDirectory(prefix="gradleak-disk-") as name:
        copy_tree(TREE, Path(name), overrides)
        done = snakemake(Path(name), "--summary", "--", "all")
    if done.returncode:
        raise ArtifactError(
            f"Snakemake could not list what it would make ({last_line(done.stderr)}); try "
            "`snakemake --summary all`."
        )
    return [line.partition("\t")[0] for line in done.stdout.splitlines()[1:]]


def table(config: Config, paths: Iterable[str]) -> list[dict[str, str | int | float]]:
    """Rows of `COLUMNS`: total size of the files of each paper and kind."""
    number, size = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for path in paths:
        found = expected(config, path)
        if found is not None:
            number[found.paper, found.kind] += 1
            size[found.paper, found.kind] += found.size
    return [
        dict(zip(COLUMNS, (config.scale, *key, number[key], size[key] / MEGABYTE), strict=True))
        for key in sorted(size)
    ]


def main() -> None:
    """Write the disk space of each scale, with real images, as CSV to standard output."""
    try:
        raw = yaml_checks.read(TREE / "config.yaml")
        writer = csv.DictWriter(sys.stdout, COLUMNS)
        writer.writeheader()
        for scale in SCALES:
            overrides = {"scale": scale, "images": "real"}
            config = gradleak_config.load({**raw, **overrides})
            writer.writerows(table(config, planned(overrides)))
    except GradleakError as error:
        sys.exit(f"gradleak: {error}")


if __name__ == "__main__":
    main()
