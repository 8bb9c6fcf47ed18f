"""Measurements on a network small enough for seconds; no time is asserted."""

import inspect
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock, create_autospec

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import (
    case,
    copa_settings,
    dense,
    dlg,
    ggl,
    grnn,
    inverting,
    lock,
    mkor,
    pipeline,
    rgap,
    runner,
    speed,
    training,
)
from gradleak.analysis.copa_index import (
    behind,
    layer_rows,
    layer_system,
    reported_rank,
    structural_index,
)
from gradleak.attacks.closed_form.rgap import RGap
from gradleak.attacks.runner import Views
from gradleak.client.capture import capture, capture_all
from gradleak.data.targets import TargetSet
from gradleak.errors import ArtifactError, NotApplicable
from gradleak.models import files
from gradleak.models.activations import Activation
from gradleak.models.chain import Chain, ConvSpec, LinearSpec
from gradleak.models.initial import family_weights
from gradleak.models.numpy_autodiff import deltas as true_deltas
from gradleak.models.numpy_autodiff import forward
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.shape import ConvShape
from gradleak.operators.structure import structural_rank
from gradleak.operators.system import LayerSystem
from gradleak.runtime.artifacts import write_tensors

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
DEFAULT = {"start": "random", "first_spread": 0.5, "hidden_spread": 0.05}
DEFAULT |= {"pull_back": "appendix_b", "optimiser": "lbfgs", "iterations": 200}


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
    assert found.view.chain == SMALL
    assert (found.view.low, found.view.high, found.view.label) == (-0.5, 0.5, None)
    np.testing.assert_array_equal(found.image, image)
    expected = capture(
        SMALL, weights, image[None], np.array([1]), precision="float64", device=torch.device("cpu")
    )
    assert set(found.view.gradients) == set(expected) == set(found.view.weights)
    for name, value in expected.items():
        np.testing.assert_array_equal(found.view.gradients[name], value)
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
    rows = rgap.attack_rows(small_case, threads=1, repeats=2)
    return speed.table(rows + rgap.rank_rows(small_case, threads=1, repeats=2))


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
    shared = {"seconds": 1.0, "mib": 1.0, "index": -1.5, "exact": False}
    found = {"dense_ranks": [98, 120], "index": [98, 125], "ranks": [98, 120], "sizes": []}
    monkeypatch.setattr(rgap, "measured", lambda task, *_, **__: shared | {"ranks": found[task]})
    rows = speed.table(rgap.rank_rows(small_case, threads=1))
    unknowns = [layer.shape.unknowns for layer in SMALL.convolutions]
    c = 98 - unknowns[0] + (120 - unknowns[1]) / 2
    assert list(rows["ours_error"]) == [5, 0, abs(-1.5 - c)]
    assert "ranks differ: 98 125 and 98 120" in rows["note"][0]
    assert f"an upper bound: -1.5 and {c:g}" in rows["note"][2]


def test_a_dead_filter_is_ranked_numerically_in_the_worker_too(tmp_path, weights, image):
    dead = {name: value.copy() for name, value in weights.items()}
    dead["conv2.weight"][0] = 0.0
    path = str(tmp_path / "case")
    case.make(path, SMALL, dead, image, 1, -0.5)
    found, deltas = rgap.timed("index", path, 1), case.read(path).deltas
    assert list(found["ranks"]) == dense.ranks(SMALL, dead, deltas)
    rows = layer_rows(SMALL, dead, deltas)
    assert rows[1]["rank_method"] == "numerical"
    assert list(found["ranks"]) == [entry["rank"] for entry in rows]
    assert found["index"] == pytest.approx(sum(entry["contribution"] for entry in rows))


def test_the_numerical_rank_is_left_alone_where_it_is_not_reported(small_case, monkeypatch):
    calls = []
    monkeypatch.setattr(LayerSystem, "rank", property(lambda self: calls.append(self) or 7))
    found = case.read(small_case)
    layer = SMALL.convolutions[1]
    structure, follows = structural_rank(layer.shape), behind(SMALL, layer)
    assert structure.exact
    system = layer_system(layer, found.view.weights, found.deltas)
    assert reported_rank(system, follows) == (structure.bound, "structural", structure)
    assert not calls
    deltas = {name: delta.copy() for name, delta in found.deltas.items()}
    deltas[layer.name][2] = 0.0
    dead = layer_system(layer, found.view.weights, deltas)
    assert reported_rank(dead, follows) == (7, "numerical", structure)
    assert calls == [dead]


ALLOCATE = """
import sys
import types
import numpy as np
from benchmarks import runner

task = types.ModuleType("benchmarks.task")
task.fill = lambda count: {"sum": np.ones(count).sum(), "seconds": 1.0}
sys.modules[task.__name__] = task
found = runner.main("task:fill", {"count": 2**23})
assert found["sum"] == 2**23
assert 0.9 * 64 <= found["mib"] < found["peak_mib"], found
"""


def test_a_measurement_sees_what_a_task_allocates():
    # A process of its own: memory that this one has freed and kept would be filled unseen.
    subprocess.run([sys.executable, "-c", ALLOCATE], env=runner.environment(1), check=True)


def test_a_measurement_that_fails_is_one_sentence(tmp_path):
    with pytest.raises(ArtifactError, match=r"rgap:timed ended with status 1 .*missing"):
        rgap.measured("ranks", str(tmp_path / "missing"))


def test_sides_take_turns_and_the_fastest_counts(monkeypatch):
    seconds, called = iter([3.0, 1.0, 2.0, 4.0]), []

    def measure(task, *, threads, side, **options):
        called.append((task, threads, side, options))
        return {"seconds": next(seconds)}

    monkeypatch.setattr(runner, "measure", measure)
    best = runner.in_turns("a:b", ("ours", "plain"), rounds=2, threads=3, x=1)
    assert called == [("a:b", 3, side, {"x": 1}) for side in ("ours", "plain")] * 2
    assert best == [{"seconds": 2.0}, {"seconds": 1.0}]


@pytest.fixture(scope="module")
def todo(tmp_path_factory, image):
    """Gradients of the first draw of the weights, and of both, and their originals."""
    folder = tmp_path_factory.mktemp("pair")
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
    model, gradient = (str(folder / f"{name}.safetensors") for name in ("model", "gradient"))
    files.save(model, [SMALL], family_weights([SMALL], 2), {})
    options = {"seeds": 2, "precision": "float64", "granted": False, "device": "cpu"}
    write_tensors(gradient, *capture_all(files.read(model), originals, **options))
    return [Views(model, gradient, seeds) for seeds in (1, 2)], originals


def test_optimisers_are_compared_on_the_same_problems(todo):
    limits = {"lbfgs": 200, "levenberg_marquardt": 30, "adam": 20}
    changes = [{"optimiser": name, "iterations": limit} for name, limit in limits.items()]
    found = copa_settings.attempts(todo[0][0], todo[1], DEFAULT, changes)
    rows = copa_settings.optimisers("small", DEFAULT, found)
    assert ", ".join(rows.columns) == (
        "model, optimiser, default, limit, runs, failed, relative_residual, mse, steps, seconds"
    )
    assert dict(zip(rows["optimiser"], rows["limit"], strict=True)) == limits
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
    found = copa_settings.attempts(todo[0][1], todo[1], DEFAULT, copa_settings.STARTS)
    rows = copa_settings.starts("small", DEFAULT, found, printed)
    assert ", ".join(rows.columns) == (
        "model, name, start, hidden_spread, pull_back, default, runs, failed, mse, lowest, "
        "highest, paper_mse"
    )
    expected = pd.DataFrame(copa_settings.STARTS).loc[np.repeat(np.arange(6), 2)]
    pd.testing.assert_frame_equal(rows[list(expected)], expected, check_names=False)
    assert list(rows["name"]) == ["truck", "animal"] * 6
    assert (rows["runs"] == 2).all()
    assert list(rows["default"]) == [True, True] + [False] * (len(rows) - 2)
    assert set(rows.loc[rows["name"] == "truck", "paper_mse"]) == {0.25}
    assert rows.loc[rows["name"] == "animal", "paper_mse"].isna().all()
    assert (rows["lowest"] <= rows["mse"] * (1 + 1e-9)).all()
    assert (rows["mse"] <= rows["highest"] * (1 + 1e-9)).all()


def test_a_run_that_fails_is_counted_and_leaves_no_number(todo):
    view, seed, batch = next(iter(todo[0][0]))
    assert view.label is None
    nothing = {name: np.zeros_like(g) for name, g in view.gradients.items()}
    broken = type(view)(SMALL, view.weights, nothing, (1,), -0.5, 0.5)
    changes = [{"optimiser": "lbfgs", "iterations": 5}]
    found = copa_settings.attempts([(broken, seed, batch)], todo[1], DEFAULT, changes)
    [row] = copa_settings.optimisers("small", DEFAULT, found).to_dict("records")
    assert (row["runs"], row["failed"]) == (1, 1)
    assert np.isnan([row["mse"], row["relative_residual"], row["steps"]]).all()
    assert row["seconds"] > 0


def test_the_papers_values_come_from_its_claims():
    root = Path(__file__).resolve().parents[1]
    printed = copa_settings.paper_values(str(root / "papers/copa/claims.yaml"))
    assert copa_settings.paper_value(printed, "cnn3_v1_tanh", "truck") == 0.0512
    assert copa_settings.paper_value(printed, "cnn3_v4_leaky", "animal") == 0.1061
    assert np.isnan(copa_settings.paper_value(printed, "cnn3_v1_tanh_padded", "truck"))


def test_a_geometric_mean_leaves_out_what_is_missing():
    assert copa_settings.geometric_mean(pd.Series([1e-2, np.nan, 1e-4])) == pytest.approx(1e-3)
    assert np.isnan(copa_settings.geometric_mean(pd.Series([np.nan])))


def test_float32_row_compares_two_ways_to_one_image(tmp_path):
    leaky = Activation("leaky_relu", 0.2)
    convolutions = (ConvSpec(5, (3, 3), activation=leaky), ConvSpec(8, (2, 2), activation=leaky))
    network = Chain("leaky", (2, 7, 7), (*convolutions, LinearSpec(1, False)))
    weights = {k.partition("/")[2]: v[0] for k, v in family_weights([network], 1).items()}
    image = np.random.default_rng(1).uniform(0, 1, (2, 7, 7))
    label = -int(np.sign(forward(network, weights, image)[0]))
    path = str(tmp_path / "case.safetensors")
    case.make(path, network, weights, image, label, 0.0, single=True)
    assert case.read(path).view.label == label
    row = rgap.float32_row(path, threads=1, repeats=1)
    assert row["ours_error"] < 1e-8
    assert row["ours_error"] < row["reference_error"] < 1e-2
    assert row["ratio"] == row["reference_s"] / row["ours_s"]


def test_the_table_of_speeds_calls_what_measures_each_row(monkeypatch):
    """Signatures alone: the whole table takes minutes."""
    called = []
    for module in (dlg, ggl, grnn, inverting, lock, mkor, pipeline, rgap, training):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if (
                name.endswith(("row", "rows", "wall_time"))
                and function.__module__ == module.__name__
            ):
                double = create_autospec(function)
                double.side_effect = lambda *_, _name=name, **__: called.append(_name) or []
                monkeypatch.setattr(module, name, double)
    monkeypatch.setattr(speed.cases, "make_first", create_autospec(case.make_first))
    monkeypatch.setattr(speed.files, "read", create_autospec(files.read))
    monkeypatch.setattr(speed.targets, "read", create_autospec(speed.targets.read))
    few = {"images": 1, "starts": 1, "outer": 1}
    amounts = {"rounds": 1, "searches": few, "lock_steps": 1, "inverting": (1, 1)}
    training_ = {"dataset": "cifar10", "split": "train", "offset": 0.0, "std": 1.0}
    params = SimpleNamespace(
        target="all",
        overrides={},
        evaluations=1,
        mkor={"images": 1, "photos": 1},
        training=training_,
        amounts=amounts | {"grnn": 1, "population": 1},
        images="embedded",
        device="cpu",
    )
    groups = list(speed.groups(MagicMock(), params, 1))
    assert len(groups) == len(called) == 17
    assert called[0] == "wall_time"
    assert called.count("lock_rows") == called.count("inverting_row") == 2
