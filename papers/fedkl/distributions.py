"""Activations behind the first norm, with and without key-lock (FedKL Figure 4)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import pandas as pd
import torch
from torch.nn import functional

from gradleak.client import client_keys
from gradleak.data import arrays
from gradleak.errors import ArtifactError, ConfigError
from gradleak.models import files
from gradleak.models.build import load
from gradleak.models.chain import Chain
from gradleak.runtime.tidy import TABLES, Given, Row, frame
from gradleak.training.data import Images, split_of

COLUMNS = [*TABLES, "left", "right", "model"]
# Values are counted in bins of 1/FINE between ±REACH; tables give the density in bins of 1/COARSE
# between ±SPAN. All are powers of two, so that edges are exact.
FINE, REACH, COARSE, SPAN = 1024, 64, 16, 16
BATCH = 16  # images at a time: 800,000 values each behind ResNet-18's first layer
# Names of distributions: û of the plain network, γ·û + β of either, û of the locked one.
REFERENCE, WITHOUT, WITH, OWN = "reference", "w/o KL", "w/ KL", "reference, w/ KL"


@dataclass
class Spread:
    """Distribution of values that arrive in parts."""

    # int64 (2 · REACH · FINE,), bins from −REACH on; the outermost take values beyond
    counts: np.ndarray = field(default_factory=lambda: np.zeros(2 * REACH * FINE, np.int64))
    # float64 (4,): Σ v^p for p = 0, 1, 2, 3
    sums: np.ndarray = field(default_factory=lambda: np.zeros(4))
    outside: int = 0  # number of values beyond ±SPAN

    def add(self, values: torch.Tensor) -> None:
        """Add values."""
        flat = values.detach().double().flatten()
        places = ((flat + REACH) * FINE).floor_().clamp_(0, len(self.counts) - 1)
        found = torch.bincount(places.long(), minlength=len(self.counts))
        self.counts += found.cpu().numpy()
        self.sums += [len(flat), *(float((flat**power).sum()) for power in (1, 2, 3))]
        self.outside += int((flat.abs() > SPAN).sum())

    @property
    def mean(self) -> float:
        """Mean of all values."""
        return float(self.sums[1] / self.sums[0])

    @property
    def sd(self) -> float:
        """Standard deviation of all values."""
        return float(np.sqrt(max(self.sums[2] / self.sums[0] - self.mean**2, 0.0)))

    @property
    def skewness(self) -> float:
        """E(v − mean)³ / sd³; NaN if all values are equal."""
        if self.sd == 0:
            return float("nan")
        mean, (second, third) = self.mean, self.sums[2:] / self.sums[0]
        return float((third - 3 * mean * second + 2 * mean**3) / self.sd**3)

    def distance(self, other: Self) -> float:
        """1-Wasserstein distance ∫ |F − G|, exact to 1/FINE for values within ±REACH."""
        one, two = (np.cumsum(each.counts) / each.sums[0] for each in (self, other))
        return float(np.abs(one - two).sum() / FINE)

    def density(self) -> tuple[np.ndarray, np.ndarray]:
        """Left edges of the bins of 1/COARSE between ±SPAN, and the density in each."""
        inner = self.counts[(REACH - SPAN) * FINE : (REACH + SPAN) * FINE]
        # Values beyond ±REACH are in the outermost fine bins, which are left out here.
        counts = inner.reshape(-1, FINE // COARSE).sum(axis=1)
        return -SPAN + np.arange(len(counts)) / COARSE, counts * COARSE / self.sums[0]


@dataclass(frozen=True)
class Norm:
    """Output of the norm behind a network's first convolution, over all images and positions."""

    normalised: Spread  # û = (z − mean) / sqrt(variance + ε) with running statistics
    scaled: Spread  # γ·û + β
    off: float  # share of the channels with γ = 0, whose output is the same for all images


@torch.no_grad()
def first_norm(chain: Chain, weights: Mapping[str, np.ndarray], images: Images) -> Norm:
    """Distributions behind the first convolution of a trained network, norms in evaluation mode.

    `weights` include a client's key and lock if the network is locked. Raises `ConfigError` if
    there is no norm behind the first convolution, or a key is missing, and `ArtifactError` if the
    network was not trained, so that there are no running statistics.
    """
    layer = chain.convolutions[0] if chain.convolutions else None
    if layer is None or not layer.normed:
        raise ConfigError(
            f"models.{chain.name}: there is no norm behind the first convolution; choose a model "
            "with norm: batch or a lock there."
        )
    if f"{layer.name}_norm.running_mean" not in weights:
        raise ArtifactError(
            f"{chain.name} has no running statistics; take the weights of a training."
        )
    module = load(chain, weights, torch.float32).to(images.device)
    norm = module.get_submodule(f"{layer.name}_norm")
    assert isinstance(norm, torch.nn.BatchNorm2d)
    scale, shift = (norm.weight, norm.bias) if layer.lock is None else module.unlocked(layer.name)
    normalised, scaled = Spread(), Spread()
    for inputs, _ in images.batches(BATCH):
        z = module.get_submodule(layer.name)(inputs)
        u = functional.batch_norm(z, norm.running_mean, norm.running_var, eps=norm.eps)
        normalised.add(u)
        scaled.add(torch.addcmul(shift[:, None, None], scale[:, None, None], u))
    return Norm(normalised, scaled, float((scale == 0).float().mean()))


def make(files: Given, words: Given, case: Given) -> pd.DataFrame:
    """Make the table of distributions, four for each network and data set.

    ``cases`` of `words` have ``row`` (a name); ``dataset`` (id) and ``settings`` (the entry of
    ``trainings``, amounts as numbers), which define the validation images; and ``networks``, the
    names of the network without and with a lock. Files of each: ``data``, model files ``plain`` and
    ``locked``, and ``clients``, the folder of the latter's private files. `case` has the columns
    ``images`` and ``scale``.

    Columns are ``reference`` (û of the plain network), ``w/o KL`` (its γ·û + β), ``w/ KL`` (the
    same of the locked one with its first client's γ and β) and ``reference, w/ KL`` (û of the
    locked one). Metrics: ``mean``, ``sd``, ``skewness``; ``asymmetry``, the absolute skewness;
    ``wasserstein``, the 1-Wasserstein distance to the reference; ``zero_scale``, the share of
    channels with γ = 0; ``outside``, the share of values beyond ±16; ``density`` in bins of 1/16
    from ``left`` to ``right``. ``n`` counts images; the first seed is used.
    """
    paths = (files[key] for key in ("data", "plain", "locked", "clients"))
    each = zip(words["cases"], *paths, strict=True)
    return frame([row for one in each for row in _rows(*one)], COLUMNS, **case)


def _rows(case: Given, data: str, plain: str, locked: str, clients: str) -> Iterator[Row]:
    settings, (name, locked_name) = case["settings"], case["networks"]
    dataset = arrays.load(data, case["dataset"], settings["split"])
    pictures = split_of(dataset, settings, torch.device("cpu")).validation
    sent = _network(plain, name), _network(locked, locked_name, f"{clients}/0.safetensors")
    one, other = (first_norm(*network, pictures) for network in sent)
    head = {"row": case["row"], "n": len(pictures), "n_ok": len(pictures)}
    for column, model, spread, off in (
        (REFERENCE, name, one.normalised, None),
        (WITHOUT, name, one.scaled, one.off),
        (WITH, locked_name, other.scaled, other.off),
        (OWN, locked_name, other.normalised, None),
    ):
        for facts in _facts(spread, one.normalised, off):
            yield {**head, "column": column, "model": model, **facts}


def _facts(spread: Spread, reference: Spread, off: float | None) -> Iterator[Row]:
    said = {
        "mean": (spread.mean, "over images, channels and positions"),
        "sd": (spread.sd, "standard deviation"),
        "skewness": (spread.skewness, "third central moment over sd cubed"),
        "asymmetry": (abs(spread.skewness), "skewness without its sign"),
        "wasserstein": (spread.distance(reference), "1-Wasserstein distance to the reference"),
        "outside": (spread.outside / spread.sums[0], f"share of values beyond ±{SPAN}"),
    }
    if off is not None:
        said["zero_scale"] = (off, "share of channels with a scale of 0")
    for metric, (value, note) in said.items():
        yield {"metric": metric, "ours": value, "note": note}
    lefts, density = spread.density()
    for left, value in zip(lefts, density, strict=True):
        yield {"metric": "density", "ours": value, "left": left, "right": left + 1 / COARSE}


def _network(
    path: str, name: str, client: str | None = None
) -> tuple[Chain, dict[str, np.ndarray]]:
    """Chain of a model file and its weights for the first seed, with a client's private part."""
    found = files.read(path)
    for chain in found.chains:
        if chain.name == name:
            kept = {} if client is None else client_keys.read(client).of(chain, 0)
            return chain, {**found.of(chain, 0), **kept}
    raise ArtifactError(f"{path} has no {name}; delete it and ask Snakemake for it again.")
