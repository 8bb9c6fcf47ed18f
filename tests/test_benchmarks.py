"""Measurements on a network small enough for seconds; no time is asserted."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from gradleak.artifacts import write_tensors
from gradleak.attacks.rgap import RGap
from gradleak.benchmarks import case, copa_settings, dense, measure, speed, worker
from gradleak.errors import ArtifactError, NotApplicable
from gradleak.gradients import capture
from gradleak.models import files
from gradleak.models.activations import Activation
from gradleak.models.chain import Chain, ConvSpec, LinearSpec
from gradleak.models.initial import family_weights
from gradleak.models.passes import deltas as true_deltas
from gradleak.models.passes import forward
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.shape import ConvShape
from gradleak.operators.structure import structural_rank
from gradleak.operators.system import LayerSystem
from gradleak.security import behind, layer_rows, layer_system, reported_rank, structural_index
from gradleak.targets import TargetSet

TANH = Activation("tanh")
SMALL = Chain(
    "small",
    (2, 7, 7),
    (
        ConvSpec(5, (3, 3), activation=TANH),
        ConvSpec(8, (2, 2), activation=TANH),
        LinearSpec(4, activation=TANH),
    ),
)
DEFAULT = {
    "start": "random",
    "first_spread": 0.5,
    "hidden_spread": 0.05,
    "pull_back": "appendix_b",
    "optimiser": "lbfgs",
    "iterations": 200,
}


@pytest.fixture(scope="module")
def weights():
    stacked = family_weights([SMALL], 1)
    return files.select(stacked, SMALL.name, 0)


@pytest.fixture(scope="module")
def image():
    return np.random.default_rng(3).uniform(-0.5, 0.5, SMALL.input)


@pytest.fixture(scope="module")
def small_case(tmp_path_factory, weights, image):
    path = tmp_path_factory.mktemp("case") / "case.safetensors"
    case.make(str(path), SMALL, weights, image, 1, -0.5)
    return str(path)


@pytest.mark.parametrize(
    ("stride", "padding"), [((1, 1), (0, 0)), ((2, 1), (1, 2)), ((2, 2), (1, 0))]
)
def test_the_reference_builds_the_same_system_as_the_operators(stride, padding):
    draw = np.random.default_rng(0)
    shape = ConvShape(
        channels=2, filters=3, kernel=(3, 2), stride=stride, padding=padding, size=(6, 7)
    )
    weight, delta = draw.standard_normal((3, 2, 3, 2)), draw.standard_normal((3, *shape.output))
    system = LayerSystem(Convolution(weight, shape), GradientConstraint(delta, shape))
    np.testing.assert_array_equal(dense.layer_matrix(weight, delta, shape), system.dense())
    wide = dense.layer_matrix(weight, delta, shape, padded=True)
    np.testing.assert_array_equal(
        wide[: len(system.dense()), ~dense.outside(shape)], system.dense()
    )
    units = wide[len(system.dense()) :]
    np.testing.assert_array_equal(units, np.eye(wide.shape[1])[dense.outside(shape)])


def test_a_case_survives_its_file_and_holds_the_float64_gradient(small_case, weights, image):
    found = case.read(small_case)
    assert found.chain == SMALL
    assert (found.view.low, found.view.high, found.view.label) == (-0.5, 0.5, None)
    np.testing.assert_array_equal(found.image, image)
    expected = capture(
        SMALL, weights, image[None], np.array([1]), precision="float64", device=torch.device("cpu")
    )
    assert set(found.gradients) == set(expected) == set(found.weights)
    for name, value in expected.items():
        np.testing.assert_array_equal(found.gradients[name], value)
    deltas = true_deltas(SMALL, weights, image, 1)
    np.testing.assert_array_equal(found.deltas["conv2"], deltas["conv2"])


def test_reference_and_ours_reconstruct_the_same_image(small_case, image):
    view = case.read(small_case).view
    plain, seconds = dense.rgap(view)
    ours = RGap().run(view, 0).image
    assert set(seconds) == {"conv1", "conv2"}
    np.testing.assert_allclose(plain, image, atol=1e-9)
    np.testing.assert_allclose(ours, plain, atol=1e-9)


def test_the_reference_says_that_it_needs_a_bias(small_case):
    view = case.read(small_case).view
    bare = Chain("bare", SMALL.input, (*SMALL.specs[:2], LinearSpec(4, False, TANH)))
    without = type(view)(bare, view.weights, view.gradients, None, view.low, view.high)
    with pytest.raises(NotApplicable, match="bias in fc1"):
        dense.rgap(without)


@pytest.fixture(scope="module")
def speeds(small_case):
    rows = speed.attack_rows(small_case, threads=1, repeats=2)
    return speed.table(rows + speed.rank_rows(small_case, threads=1, repeats=2))


def test_speed_rows_hold_times_memory_and_errors(speeds):
    assert list(speeds.columns) == speed.COLUMNS
    assert list(speeds["what"]) == [
        "R-GAP small",
        "R-GAP small conv1",
        "R-GAP small conv2",
        "c(M) as reported small",
        "numerical ranks small",
        "c(M) from sizes small",
    ]
    assert (speeds[["ours_s", "reference_s"]] > 0).all(axis=None)
    np.testing.assert_allclose(speeds["ratio"], speeds["reference_s"] / speeds["ours_s"])
    whole = speeds.iloc[[0, 3, 4, 5]]
    # Far below what this process holds: a worker's peak is not inherited from its parent.
    assert (whole[["ours_mib", "reference_mib"]] < 100).all(axis=None)
    assert (whole[["ours_mib", "reference_mib"]] > 0).all(axis=None)
    assert (speeds.iloc[0][["ours_error", "reference_error"]] < 1e-18).all()
    difference = float(speeds["note"][0].split("relative difference ")[1].split(";")[0])
    assert difference < 1e-8
    # Empty, not 0, where nothing was measured.
    assert speeds.iloc[[1, 2]][["ours_mib", "ours_error"]].isna().all(axis=None)


def test_rank_rows_tell_whether_the_ranks_are_equal(speeds):
    ranks = speeds.iloc[[3, 4]]
    assert (ranks["ours_error"] == 0).all()
    assert ranks["note"].str.contains("ranks equal").all()
    assert ranks["note"].iloc[0].startswith("structural against")
    value, exact = structural_index(SMALL)
    assert exact
    sizes = speeds.iloc[5]
    assert f"; exact: {value:g} and {value:g};" in sizes["note"]
    assert sizes["ours_error"] == 0


def test_a_rank_that_differs_is_reported(small_case, monkeypatch):
    found = {
        "dense_ranks": np.array([98, 120]),
        "index": np.array([98, 125]),
        "ranks": np.array([98, 120]),
        "sizes": np.array([]),
    }
    facts = {"index": -1.5, "exact": False}
    monkeypatch.setattr(
        speed,
        "measure",
        lambda task, *_, **__: measure.Measurement(1.0, {}, 1.0, {"ranks": found[task]}, facts),
    )
    rows = speed.table(speed.rank_rows(small_case, threads=1))
    unknowns = [layer.shape.unknowns for layer in SMALL.convolutions]
    c = 98 - unknowns[0] + (120 - unknowns[1]) / 2
    assert list(rows["ours_error"]) == [5, 0, abs(-1.5 - c)]
    assert "ranks differ: 98 125 and 98 120" in rows["note"][0]
    assert f"an upper bound: -1.5 and {c:g}" in rows["note"][2]


def test_a_dead_filter_is_ranked_numerically_in_the_worker_too(tmp_path, weights, image):
    dead = {name: value.copy() for name, value in weights.items()}
    dead["conv2.weight"][0] = 0.0
    path, out = str(tmp_path / "case.safetensors"), str(tmp_path / "out.safetensors")
    case.make(path, SMALL, dead, image, 1, -0.5)
    worker.main("index", path, out, 1)
    arrays, facts = measure.read_tensors(out)
    found = case.read(path)
    assert list(arrays["ranks"]) == dense.ranks(SMALL, dead, found.deltas)
    rows = layer_rows(SMALL, dead, found.deltas)
    assert rows[1]["rank_method"] == "numerical"
    assert list(arrays["ranks"]) == [entry["rank"] for entry in rows]
    assert facts["index"] == pytest.approx(sum(entry["contribution"] for entry in rows))


def test_the_numerical_rank_is_left_alone_where_it_is_not_reported(small_case, monkeypatch):
    calls = []
    monkeypatch.setattr(LayerSystem, "rank", property(lambda self: calls.append(self) or 7))
    found = case.read(small_case)
    layer = SMALL.convolutions[1]
    structure, follows = structural_rank(layer.shape), behind(SMALL, layer)
    assert structure.exact
    system = layer_system(layer, found.weights, found.deltas)
    assert reported_rank(system, follows) == (structure.bound, "structural", structure)
    assert not calls
    deltas = {name: delta.copy() for name, delta in found.deltas.items()}
    deltas[layer.name][2] = 0.0
    dead = layer_system(layer, found.weights, deltas)
    assert reported_rank(dead, follows) == (7, "numerical", structure)
    assert calls == [dead]


ALLOCATE = """
import sys
import numpy as np
from gradleak.benchmarks import worker

worker.TASKS["allocate"] = lambda: lambda _case: {"sum": np.ones(2**23).sum(keepdims=True)}
worker.main("allocate", sys.argv[1], sys.argv[2], 1)
"""


def test_the_worker_sees_what_a_task_allocates(small_case, tmp_path):
    out = tmp_path / "out.safetensors"
    # A process of its own: memory that this one has freed and kept would be filled unseen.
    command = [sys.executable, "-c", ALLOCATE, small_case, out]
    subprocess.run(command, env=measure.environment(1), check=True)
    arrays, facts = measure.read_tensors(out)
    assert arrays["sum"][0] == 2**23
    assert len(facts["seconds"]) == 1
    assert facts["mib"] >= 0.9 * 64


def test_a_worker_that_fails_is_one_sentence(tmp_path):
    with pytest.raises(ArtifactError, match=r"'ranks' ended with status 1 .*missing"):
        measure.measure("ranks", str(tmp_path / "none.safetensors"), repeats=1, threads=1)


@pytest.fixture(scope="module")
def todo(tmp_path_factory, image):
    folder = tmp_path_factory.mktemp("pair")
    stacked = family_weights([SMALL], 2)
    files.save(str(folder / "model.safetensors"), [SMALL], stacked, {})
    pixels = np.round((image + 0.5) * 255).astype(np.uint8)
    originals = TargetSet(
        images=np.stack([pixels, 255 - pixels])[:, None],
        labels=np.array([[1], [2]]),
        indices=np.array([[1], [3]]),
        offset=-0.5,
        names=("truck", "animal"),
        source={},
        words={1: "truck", 2: "deer"},
    )
    gradients: dict[str, np.ndarray] = {}
    for seed in range(2):
        for batch in range(2):
            found = capture(
                SMALL,
                files.select(stacked, SMALL.name, seed),
                originals.inputs(batch),
                originals.labels[batch],
                precision="float64",
                device=torch.device("cpu"),
            )
            for name, value in found.items():
                slot = gradients.setdefault(f"small/{name}", np.zeros((2, 2, *value.shape)))
                slot[seed, batch] = value
    shared = {
        "seeds": 2,
        "images": 2,
        "low": -0.5,
        "high": 0.5,
        "loss": "cross_entropy",
        "batch": 1,
    }
    write_tensors(folder / "gradient.safetensors", gradients, shared)
    paths = [str(folder / f"{name}.safetensors") for name in ("model", "gradient")]
    return [list(copa_settings.problems(*paths, originals, seeds)) for seeds in (1, 2)]


def test_problems_are_the_first_seeds_of_the_gradient_file(todo):
    assert [problem.name for problem in todo[0]] == ["truck", "animal"]
    assert len(todo[1]) == 4
    assert len({problem.seed for problem in todo[1]}) == 4
    first = todo[1][0]
    assert first.original.shape == SMALL.input
    assert first.view.label is None


def test_optimisers_are_compared_on_the_same_problems(todo):
    limits = {"lbfgs": 200, "levenberg_marquardt": 30, "adam": 20}
    rows = pd.DataFrame(copa_settings.optimiser_rows("small", todo[0], DEFAULT, limits))
    assert list(rows.columns) == copa_settings.OPTIMISER_COLUMNS
    assert list(rows["optimiser"]) == list(limits)
    assert list(rows["default"]) == [True, False, False]
    assert (rows["runs"] == 2).all()
    assert (rows["failed"] == 0).all()
    assert (rows["relative_residual"][:2] < rows["relative_residual"][2]).all()
    assert rows["steps"][2] == 20


def test_starts_stand_beside_the_paper(todo):
    printed = pd.DataFrame(
        [
            {"attack": "copa", "model": "small", "name": "truck", "value": 0.25},
            {"attack": "rgap", "model": "small", "name": "animal", "value": 0.5},
        ]
    )
    rows = pd.DataFrame(copa_settings.start_rows("small", todo[1], DEFAULT, printed))
    assert list(rows.columns) == copa_settings.START_COLUMNS
    assert len(rows) == 2 * len(copa_settings.STARTS)
    assert (rows["runs"] == 2).all()
    assert list(rows["default"]) == [True, True] + [False] * (len(rows) - 2)
    assert set(rows.loc[rows["name"] == "truck", "paper_mse"]) == {0.25}
    assert rows.loc[rows["name"] == "animal", "paper_mse"].isna().all()
    assert (rows["lowest"] <= rows["mse"] * (1 + 1e-9)).all()
    assert (rows["mse"] <= rows["highest"] * (1 + 1e-9)).all()


def test_a_run_that_fails_is_counted_and_leaves_no_number(todo):
    first = todo[0][0]
    nothing = {name: np.zeros_like(g) for name, g in first.view.gradients.items()}
    view = type(first.view)(SMALL, first.view.weights, nothing, (1,), -0.5, 0.5)
    broken = copa_settings.Problem(view, first.original, "truck", 0)
    [row] = copa_settings.optimiser_rows("small", [broken], DEFAULT, {"lbfgs": 5})
    assert (row["runs"], row["failed"]) == (1, 1)
    assert np.isnan(row["mse"])
    assert np.isnan(row["relative_residual"])


def test_the_papers_values_come_from_its_claims():
    root = Path(__file__).resolve().parents[1]
    printed = copa_settings.paper_values(str(root / "workflow" / "claims" / "copa.yaml"))
    assert copa_settings.paper_value(printed, "cnn3_v1_tanh", "truck") == 0.0512
    assert copa_settings.paper_value(printed, "cnn3_v4_leaky", "animal") == 0.1061
    assert np.isnan(copa_settings.paper_value(printed, "cnn3_v1_tanh_padded", "truck"))


def test_a_geometric_mean_leaves_out_what_is_missing():
    assert copa_settings.geometric_mean([1e-2, np.nan, 1e-4]) == pytest.approx(1e-3)
    assert np.isnan(copa_settings.geometric_mean([np.nan]))


def test_float32_row_compares_two_ways_to_one_image(tmp_path):
    leaky = Activation("leaky_relu", 0.2)
    convolutions = (ConvSpec(5, (3, 3), activation=leaky), ConvSpec(8, (2, 2), activation=leaky))
    network = Chain("leaky", (2, 7, 7), (*convolutions, LinearSpec(1, False)))
    weights = {k.partition("/")[2]: v[0] for k, v in family_weights([network], 1).items()}
    image = np.random.default_rng(1).uniform(0, 1, (2, 7, 7))
    label = -int(np.sign(forward(network, weights, image)[0]))
    path = str(tmp_path / "case.safetensors")
    settings = {"precision": "float32", "loss": "logistic", "granted": True}
    case.make(path, network, weights, image, label, 0.0, **settings)
    assert case.read(path).view.label == label
    row = speed.float32_row(path, threads=1, repeats=1)
    assert row["ours_error"] < 1e-8
    assert row["ours_error"] < row["reference_error"] < 1e-2
    assert row["ratio"] == row["reference_s"] / row["ours_s"]
