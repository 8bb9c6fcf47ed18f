"""Distributions behind the first norm, with and without key-lock."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from chains import conv, drawn_weights
from conftest import refused
from gradleak.client import client_keys
from gradleak.client.client_keys import ClientFile
from gradleak.data import arrays
from gradleak.data.arrays import Dataset
from gradleak.errors import ArtifactError, ConfigError
from gradleak.models import files
from gradleak.models.activations import Activation
from gradleak.models.chain import Chain, LinearSpec
from gradleak.models.initial import initial_weights
from gradleak.models.locking import with_lock
from gradleak.models.locks import Lock, private, public
from gradleak.training.data import divide
from papers.fedkl.distributions import COARSE, FINE, REACH, SPAN, Spread, first_norm, make

SPECS = (conv(4, 3, padding=1, activation="relu", norm="batch"), LinearSpec(10))
PLAIN = Chain("plain", (3, 32, 32), SPECS)
RUN = {"images": "embedded", "scale": "smoke"}
LOCKED = Chain("locked", (3, 32, 32), with_lock(SPECS, ["conv1"], Lock(8, Activation("relu"))))
TRAINING = {"train": 20, "validation": 7, "test": 5, "seed": 3, "offset": -0.5, "std": 0.25}
TRAINING |= {"size": None, "resize": "repeat"}


WEIGHTS = {chain.name: drawn_weights(chain, seed) for seed, chain in enumerate((PLAIN, LOCKED))}
PIXELS = np.random.default_rng(0).integers(0, 256, (40, 3, 32, 32), dtype=np.uint8)
DATA = Dataset(PIXELS, np.arange(40) % 10, list("0123456789"), "photos10", "train", "embedded")


def pictures():
    counts = {part: TRAINING[part] for part in ("train", "validation", "test")}
    options = {key: TRAINING[key] for key in ("seed", "offset", "std")}
    return divide(DATA, counts, device=torch.device("cpu"), **options).validation


def by_hand(chain, weights):
    """û and γ·û + β (N, O, H, W) as the equations have them."""
    found = pictures()
    x = found.inputs(found.pixels).numpy().astype(np.float64)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    z = np.einsum("ocij,nchwij->nohw", weights["conv1.weight"].astype(np.float64), windows)
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
QUARTERS = st.integers(-50 * 4 * FINE, 50 * 4 * FINE).map(lambda k: k / (4 * FINE))
VALUES = st.lists(QUARTERS, min_size=2, max_size=40)


@settings(max_examples=30)
@given(VALUES, VALUES)
def test_spread_agrees_with_scipy(one, other):
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


def test_values_beyond_the_reach_are_counted_at_its_edge():
    near, far, constant = Spread(), Spread(), Spread()
    for spread, values in ((near, [0.0, 0.0]), (far, [-1e6, 1e6]), (constant, [0.5] * 3)):
        spread.add(torch.tensor(values))
    assert far.distance(near) == pytest.approx(REACH, abs=1 / FINE)
    assert far.density()[1].sum() == 0 and far.outside == 2
    assert constant.sd == 0 and np.isnan(constant.skewness)


def test_channels_that_a_lock_turns_off_are_counted():
    off = {"conv1_lock_scale.bias": np.array([-99, 9, -99, -99], np.float32)}
    assert first_norm(LOCKED, WEIGHTS["locked"] | off, pictures()).off == 0.75
    assert first_norm(PLAIN, WEIGHTS["plain"], pictures()).off == 0


def test_networks_without_a_norm_statistics_or_a_key_are_refused():
    bare = Chain("bare", (3, 32, 32), (conv(4, 3), LinearSpec(10)))
    fcn = Chain("fcn", (3, 32, 32), (LinearSpec(10),))
    for kind, words, chain, weights in (
        (ConfigError, "models.bare: there is no norm behind the first conv", bare, None),
        (ConfigError, "no norm behind", fcn, None),
        (ArtifactError, "plain has no running statistics", PLAIN, None),
        (ConfigError, "conv1 is locked, but no key is given", LOCKED, public(WEIGHTS["locked"])),
    ):
        with refused(words, kind=kind):
            first_norm(chain, weights or initial_weights(chain, 0), pictures())


def case(folder):
    """Files of one network with and without lock, two draws of each."""
    entry = {"row": "ResNet-20, CIFAR-10", "dataset": "photos10"}
    entry |= {"settings": {**TRAINING, "split": "train"}, "networks": [PLAIN.name, LOCKED.name]}
    made = {name: str(folder / f"{name}.safetensors") for name in ("data", "plain", "locked")}
    arrays.save(made["data"], DATA)
    for chain in (PLAIN, LOCKED):
        shared, kept = (
            {f"{chain.name}/{key}": np.stack([value, 0 * value]) for key, value in part.items()}
            for part in (public(WEIGHTS[chain.name]), private(WEIGHTS[chain.name]))
        )
        files.save(made[chain.name], [chain], shared, {})
        ClientFile(0, (chain.name,), kept, str(folder / "0.safetensors")).save({})
    return {**{k: [path] for k, path in made.items()}, "clients": [str(folder)]}, {"cases": [entry]}


def test_table_has_four_distributions_of_the_first_draw(tmp_path):
    found = make(*case(tmp_path), RUN)
    assert (found[["images", "scale", "n"]] == ["embedded", "smoke", 7]).all(axis=None)
    assert len(found.columns) == 16
    columns = ["reference", "w/o KL", "w/ KL", "reference, w/ KL"]
    assert list(dict.fromkeys(found["column"])) == columns
    values = dict(zip(columns, [*by_hand(PLAIN, WEIGHTS["plain"]), None, None], strict=True))
    own, scaled = by_hand(LOCKED, WEIGHTS["locked"])
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


def test_files_that_lack_something_are_named(tmp_path):
    given, words = case(tmp_path)
    other = {"cases": [words["cases"][0] | {"networks": ["other", LOCKED.name]}]}
    with refused("has no other; delete it", kind=ArtifactError):
        make(given, other, RUN)
    path = tmp_path / "0.safetensors"
    kept = {k: v for k, v in client_keys.read(str(path)).weights.items() if "key" not in k}
    ClientFile(0, ("locked",), kept, str(path)).save({})
    with refused("client 0 has no key for conv1 of locked; delete it", kind=ArtifactError):
        make(given, words, RUN)
    path.unlink()
    with refused("0.safetensors is missing", kind=ArtifactError):
        make(given, words, RUN)
