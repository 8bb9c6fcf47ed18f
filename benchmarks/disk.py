"""Disk space that a whole run takes, computed from config.yaml before anything is made."""

import sys
import tempfile
from collections.abc import Iterable
from math import prod
from pathlib import Path

import pandas as pd

from benchmarks.pipeline import copy_tree, snakemake
from benchmarks.runner import arguments, last_line
from gradleak.config import loader as gradleak_config
from gradleak.config import yaml_checks
from gradleak.config.schema import Config
from gradleak.data.catalogue import info, resolve
from gradleak.errors import ArtifactError, GradleakError
from gradleak.models.chain import LinearLayer
from gradleak.pipeline.resources import passing_gradients
from gradleak.pipeline.work import parameters
from gradleak.runtime.provenance import TREE
from gradleak.settings.fields import SCALES

# Bytes of a number; target sets store pixels as bytes, closed-form attacks solve in float64.
SINGLE, DOUBLE = 4, 8


def expected(config: Config, path: str) -> tuple[str, str, int] | None:
    """Paper, kind and bytes of a file's arrays; None for a file without arrays worth counting.

    Kinds are folders of `results/`, and ``gradients, passing`` for those that do not stay.
    """
    if ".secret." in path or ".clients/" in path or not path.endswith(".safetensors"):
        return None
    match Path(path).with_suffix("").parts:
        case "results", "targets", _, name:
            return _paper(config, name), "targets", _pixels(config, name)
        case "results", ("models" | "servers" | "training") as kind, _, *names:
            model = names[-1]
            draws = config.drawn(model, names[0] if kind == "training" else None)
            # One kind of server may send networks of several papers.
            paper = _paper(config, model if kind == "servers" else names[0])
            return paper, kind, SINGLE * draws * parameters(config, model)
        case "results", ("gradients" | "reconstructions") as kind, _, name, model, _, *attack:
            passing = ", passing" * (kind == "gradients" and name in passing_gradients(config))
            size = _attacked(config, name, model, *attack)
            return config.experiments[name].paper, f"{kind}{passing}", size
    return None


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
    return _batches(config, targets) * entry.batch * known.channels * side**2


def _attacked(config: Config, name: str, model: str, attack: str | None = None) -> int:
    """Bytes of the gradients of an experiment and model, or of an attack's reconstructions."""
    entry = config.experiments[name]
    single = entry.precision == "float32"
    # A family of networks is small, so it counts nothing.
    chains = [config.chain(member) for member in config.members(model) if member in config.models]
    linear = [[e for e in chain.layers if isinstance(e, LinearLayer)] for chain in chains]
    if attack is not None:
        method = config.attacks[attack].method
        numbers = config.targets[entry.targets].batch * sum(prod(chain.input) for chain in chains)
        if method in ("copa", "rgap"):
            # They also store the input of the first fully connected layer.
            numbers += sum(layers[0].inputs for layers in linear)
        # MKOR stores images in the precision of the gradient, all other attacks solve in float64.
        single &= method.startswith("mkor")
    elif entry.kept == "classifier":
        numbers = sum(e.outputs * (e.inputs + e.bias) for layers in linear for e in layers)
    else:
        # A lock's key and weights never leave its client.
        locks = sum(locked.lock.parameters(locked.filters) for c in chains for locked in c.locked)
        numbers = parameters(config, model) - locks * (entry.lock in ("withheld", "key"))
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


def table(config: Config, paths: Iterable[str]) -> pd.DataFrame:
    """Number and total size of the files of each paper and kind: a row for each."""
    found = [one for path in paths if (one := expected(config, path)) is not None]
    sizes = pd.DataFrame(found, columns=["paper", "kind", "bytes"]).groupby(["paper", "kind"])
    rows = sizes["bytes"].agg(files="size", megabytes=lambda size: size.sum() / 1e6).reset_index()
    rows.insert(0, "scale", config.scale)
    return rows


def main() -> None:
    """Write the disk space of each scale, with real images, as CSV to standard output."""
    try:
        raw, tables = yaml_checks.read(TREE / "config.yaml"), []
        for scale in SCALES:
            overrides = {"scale": scale, "images": "real"}
            config = gradleak_config.load({**raw, **overrides})
            tables.append(table(config, planned(overrides)))
        pd.concat(tables).to_csv(sys.stdout, index=False)
    except GradleakError as error:
        sys.exit(f"gradleak: {error}")


if __name__ == "__main__":
    arguments(__doc__)
    main()
