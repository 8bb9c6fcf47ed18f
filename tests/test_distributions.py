"""Distributions behind the first norm, with and without key-lock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gradleak.client import client_keys
from gradleak.client.client_keys import ClientFile
from gradleak.data import arrays
from gradleak.data.arrays import Dataset
from gradleak.errors import ArtifactError, ConfigError
from gradleak.models import files
from gradleak.models.activations import Activation
from gradleak.models.build import with_statistics
from gradleak.models.chain import Chain, ConvSpec, LinearSpec
from gradleak.models.initial import draw_key, initial_weights
from gradleak.models.locking import with_lock
from gradleak.models.locks import Lock, private, public
from gradleak.training.data import Images, divide
from papers.fedkl.distributions import COARSE, FINE, REACH, SPAN, Spread, first_norm, make

RELU = Activation("relu")
SPECS = (ConvSpec(4, (3, 3), padding=(1, 1), activation=RELU, norm="batch"), LinearSpec(10))
PLAIN = Chain("plain", (3, 32, 32), SPECS)
CLIENT = "0.safetensors"
RUN = {"images": "embedded", "scale": "smoke"}
LOCKED = Chain("locked", (3, 32, 32), with_lock(SPECS, ["conv1"], Lock(8, RELU)))
TRAINING = {"train": 20, "validation": 7, "test": 5, "seed": 3, "offset": -0.5, "std": 0.25}
TRAINING |= {"size": None, "resize": "repeat"}


def weights_of(chain: Chain) -> dict[str, np.ndarray]:
    """Weights with running statistics and a norm that has learnt something."""
    rng = np.random.default_rng(len(chain.name))
    found = with_statistics(chain, {**initial_weights(chain, 0), **draw_key(chain, 0, 0)})
    limits = {"running_mean": (-1, 1), "running_var": (0.5, 2), "weight": (-2, 2), "bias": (-1, 1)}
    for name, (low, high) in limits.items():
        if f"conv1_norm.{name}" in found:
            found[f"conv1_norm.{name}"] = rng.uniform(low, high, 4).astype(np.float32)
    return found


def data() -> Dataset:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 3, 32, 32), dtype=np.uint8)
    classes = [str(k) for k in range(10)]
    return Dataset(images, np.arange(40) % 10, classes, "photos10", "train", "embedded")


def pictures() -> Images:
    counts = {part: TRAINING[part] for part in ("train", "validation", "test")}
    options = {"seed": 3, "offset": -0.5, "std": 0.25, "device": torch.device("cpu")}
    return divide(data(), counts, **options).validation


def by_hand(chain: Chain, weights: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """û and γ·û + β (N, O, H, W) as the equations have them, with loops over the kernel."""
    found = pictures()
    x = found.inputs(found.pixels).numpy().astype(np.float64)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    kernel, z = weights["conv1.weight"].astype(np.float64), 0.0
    for i in range(3):
        for j in range(3):
            part = padded[:, :, i : i + 32, j : j + 32]
            z = z + np.einsum("oc,nchw->nohw", kernel[:, :, i, j], part)
    mean, variance = (weights[f"conv1_norm.running_{k}"][:, None, None] for k in ("mean", "var"))
    u = (z - mean) / np.sqrt(variance + 1e-5)
    if chain.locked:
        key = weights["conv1_key"]
        scale, shift = (
            np.maximum(weights[f"conv1_lock_{k}.weight"] @ key + weights[f"conv1_lock_{k}.bias"], 0)
            for k in ("scale", "shift")
        )
    else:
        scale, shift = weights["conv1_norm.weight"], weights["conv1_norm.bias"]
    return u, scale[:, None, None] * u + shift[:, None, None]


# Quarters of a bin, so that no value is rounded into another bin.
VALUES = st.lists(
    st.integers(-50 * 4 * FINE, 50 * 4 * FINE).map(lambda k: k / (4 * FINE)),
    min_size=2,
    max_size=40,
)


@settings(deadline=None, max_examples=30)
@given(VALUES, VALUES)
def test_spread_agrees_with_scipy(one: list[float], other: list[float]) -> None:
    spreads = Spread(), Spread()
    for spread, values in zip(spreads, (one, other), strict=True):
        for part in (values[:1], values[1:]):
            spread.add(torch.tensor(part, dtype=torch.float64))
    distance = stats.wasserstein_distance(one, other)
    assert spreads[0].distance(spreads[1]) == pytest.approx(distance, abs=1 / FINE)
    assert spreads[0].distance(spreads[1]) == spreads[1].distance(spreads[0])
    assert spreads[0].distance(spreads[0]) == 0
    assert spreads[0].mean == pytest.approx(np.mean(one), abs=1e-9)
    assert spreads[0].sd == pytest.approx(np.std(one), rel=1e-6, abs=1e-5)
    if np.std(one) > 0.1:
        assert spreads[0].skewness == pytest.approx(stats.skew(one), rel=1e-5, abs=1e-5)
    lefts, density = spreads[0].density()
    edges = np.append(lefts, lefts[-1] + 1 / COARSE)
    inner = [value for value in one if -SPAN <= value < SPAN]
    counts = np.histogram(inner, edges)[0]
    np.testing.assert_allclose(density, counts * COARSE / len(one))
    assert spreads[0].outside == sum(abs(value) > SPAN for value in one)


def test_values_beyond_the_reach_are_counted_at_its_edge() -> None:
    near, far = Spread(), Spread()
    near.add(torch.tensor([0.0, 0.0]))
    far.add(torch.tensor([-1e6, 1e6]))
    assert far.distance(near) == pytest.approx(REACH, abs=1 / FINE)
    assert far.density()[1].sum() == 0 and far.outside == 2
    constant = Spread()
    constant.add(torch.full((3,), 0.5))
    assert constant.sd == 0 and np.isnan(constant.skewness)


def test_channels_that_a_lock_turns_off_are_counted() -> None:
    off = {"conv1_lock_scale.bias": np.array([-99, 9, -99, -99], np.float32)}
    assert first_norm(LOCKED, weights_of(LOCKED) | off, pictures()).off == 0.75
    assert first_norm(PLAIN, weights_of(PLAIN), pictures()).off == 0


def test_networks_without_a_norm_statistics_or_a_key_are_refused() -> None:
    bare = Chain("bare", (3, 32, 32), (ConvSpec(4, (3, 3)), LinearSpec(10)))
    with pytest.raises(ConfigError, match=r"models\.bare: there is no norm behind the first conv"):
        first_norm(bare, initial_weights(bare, 0), pictures())
    fcn = Chain("fcn", (3, 32, 32), (LinearSpec(10),))
    with pytest.raises(ConfigError, match="no norm behind"):
        first_norm(fcn, initial_weights(fcn, 0), pictures())
    with pytest.raises(ArtifactError, match="plain has no running statistics"):
        first_norm(PLAIN, initial_weights(PLAIN, 0), pictures())
    with pytest.raises(ConfigError, match="conv1 is locked, but no key is given"):
        first_norm(LOCKED, {**public(weights_of(LOCKED))}, pictures())


def case(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Files of one network with and without lock, two draws of each."""
    entry = {"row": "ResNet-20, CIFAR-10", "dataset": "photos10"}
    entry |= {"settings": {**TRAINING, "split": "train"}, "networks": [PLAIN.name, LOCKED.name]}
    made = {name: str(folder / f"{name}.safetensors") for name in ("data", "plain", "locked")}
    arrays.save(made["data"], data())
    for chain in (PLAIN, LOCKED):
        shared, kept = (
            {f"{chain.name}/{key}": np.stack([value, 0 * value]) for key, value in part.items()}
            for part in (public(weights_of(chain)), private(weights_of(chain)))
        )
        files.save(made[chain.name], [chain], shared, {})
        ClientFile(0, (chain.name,), kept, str(folder / CLIENT)).save({})
    return {**{k: [path] for k, path in made.items()}, "clients": [str(folder)]}, {"cases": [entry]}


def test_table_has_four_distributions_of_the_first_draw(tmp_path: Path) -> None:
    found = make(*case(tmp_path), RUN)
    assert set(found["images"]) == {"embedded"} and set(found["scale"]) == {"smoke"}
    assert found["n"].eq(7).all()
    assert len(found.columns) == 16
    columns = ["reference", "w/o KL", "w/ KL", "reference, w/ KL"]
    assert list(dict.fromkeys(found["column"])) == columns
    values = dict(zip(columns, [*by_hand(PLAIN, weights_of(PLAIN)), None, None], strict=True))
    own, scaled = by_hand(LOCKED, weights_of(LOCKED))
    values |= {"w/ KL": scaled, "reference, w/ KL": own}
    for column, true in values.items():
        rows = found[found["column"] == column]
        said = rows[rows["metric"] != "density"].set_index("metric")["ours"]
        assert said["mean"] == pytest.approx(true.mean(), abs=1e-5)
        assert said["sd"] == pytest.approx(true.std(), rel=1e-5)
        skewness = stats.skew(true.ravel())
        assert said["skewness"] == pytest.approx(skewness, rel=1e-3, abs=1e-4)
        assert said["asymmetry"] == pytest.approx(abs(skewness), rel=1e-3, abs=1e-4)
        distance = stats.wasserstein_distance(true.ravel(), values["reference"].ravel())
        assert said["wasserstein"] == pytest.approx(distance, abs=2 / FINE)
        assert ("zero_scale" in said) == column.startswith("w/")
        density = rows[rows["metric"] == "density"]
        assert len(density) == 2 * SPAN * COARSE
        width = density["right"] - density["left"]
        np.testing.assert_allclose(width, 1 / COARSE)
        assert (density["ours"] * width).sum() == pytest.approx(1 - said["outside"])
    assert set(found.loc[found["column"].str.contains("w/ KL"), "model"]) == {"locked"}


def test_files_that_lack_something_are_named(tmp_path: Path) -> None:
    given, words = case(tmp_path)
    other = {"cases": [words["cases"][0] | {"networks": ["other", LOCKED.name]}]}
    with pytest.raises(ArtifactError, match="has no other; delete it"):
        make(given, other, RUN)
    path = tmp_path / CLIENT
    kept = {k: v for k, v in client_keys.read(str(path)).weights.items() if "key" not in k}
    ClientFile(0, ("locked",), kept, str(path)).save({})
    with pytest.raises(ArtifactError, match="client 0 has no key for conv1 of locked; delete it"):
        make(given, words, RUN)
    path.unlink()
    with pytest.raises(ArtifactError, match=r"0\.safetensors is missing"):
        make(given, words, RUN)
