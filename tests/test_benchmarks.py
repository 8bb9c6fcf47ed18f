"""Measurements on a network small enough for seconds; no time is asserted."""

import inspect
import subprocess
import sys
from importlib import import_module
from types import SimpleNamespace
from unittest.mock import MagicMock, create_autospec

import numpy as np
import pandas as pd
import pytest

from benchmarks import copa_settings, dense, rgap, runner, speed
from chains import captured, chain, conv, parts, shared, system
from conftest import ROOT
from gradleak.analysis.copa_index import (
    behind,
    layer_rows,
    layer_system,
    reported_rank,
    structural_index,
)
from gradleak.attacks.closed_form.rgap import RGap
from gradleak.attacks.runner import Views
from gradleak.data.targets import TargetSet
from gradleak.errors import ArtifactError
from gradleak.models import files
from gradleak.models.initial import family_weights, initial_weights
from gradleak.models.numpy_autodiff import deltas as true_deltas
from gradleak.models.numpy_autodiff import margin_label
from gradleak.operators.shape import ConvShape
from gradleak.operators.structure import structural_rank
from gradleak.operators.system import LayerSystem
from gradleak.runtime.artifacts import write_tensors

SMALL = chain(conv(5, 3), conv(8, 2), side=7)
WEIGHTS = initial_weights(SMALL, 0)
IMAGE = np.random.default_rng(3).uniform(-0.5, 0.5, SMALL.input)
DEFAULT = {"start": "random", "first_spread": 0.5, "hidden_spread": 0.05}
DEFAULT |= {"pull_back": "appendix_b", "optimiser": "lbfgs", "iterations": 200}


@pytest.fixture(scope="module")
def small_case(tmp_path_factory):
    path = tmp_path_factory.mktemp("case") / "case.safetensors"
    rgap.write_case(str(path), SMALL, WEIGHTS, IMAGE, 1, -0.5)
    return str(path)


@pytest.mark.parametrize(
    ("stride", "padding"), [((1, 1), (0, 0)), ((2, 1), (1, 2)), ((2, 2), (1, 0))]
)
def test_the_reference_builds_the_same_system_as_the_operators(stride, padding):
    shape = ConvShape(2, 3, (3, 2), stride, padding, (6, 7))
    weight, delta, _ = parts(shape)
    expected = system(shape).dense()
    np.testing.assert_array_equal(dense.layer_matrix(weight, delta, shape), expected)
    wide = dense.layer_matrix(weight, delta, shape, padded=True)
    outside, rows = dense.outside(shape), len(expected)
    np.testing.assert_array_equal(wide[:rows, ~outside], expected)
    np.testing.assert_array_equal(wide[rows:], np.eye(wide.shape[1])[outside])


def test_a_case_survives_its_file_and_holds_the_float64_gradient(small_case):
    found = rgap.read_case(small_case)
    assert found.view.chain == SMALL
    assert (found.view.low, found.view.high, found.view.label) == (-0.5, 0.5, None)
    np.testing.assert_array_equal(found.image, IMAGE)
    expected = shared(SMALL, WEIGHTS, IMAGE[None], [1])
    assert set(found.view.gradients) == set(expected) == set(found.view.weights)
    for name, value in expected.items():
        np.testing.assert_array_equal(found.view.gradients[name], value)
    deltas = true_deltas(SMALL, WEIGHTS, IMAGE, 1)
    np.testing.assert_array_equal(found.deltas["conv2"], deltas["conv2"])


def test_reference_and_ours_reconstruct_the_same_image(small_case):
    view = rgap.read_case(small_case).view
    plain, seconds = dense.rgap(view)
    assert set(seconds) == {"conv1", "conv2"}
    np.testing.assert_allclose(plain, IMAGE, atol=1e-9)
    np.testing.assert_allclose(RGap().run(view, 0).image, plain, atol=1e-9)


@pytest.fixture(scope="module")
def speeds(small_case):
    rows = rgap.attack_rows(small_case, threads=1, repeats=2)
    return speed.table(rows + rgap.rank_rows(small_case, threads=1, repeats=2))


def test_speed_rows_hold_times_memory_and_errors(speeds):
    assert list(speeds.columns) == speed.COLUMNS
    attacks = ["R-GAP small", "R-GAP small conv1", "R-GAP small conv2"]
    ranks = ["c(M) as reported small", "numerical ranks small", "c(M) from sizes small"]
    assert list(speeds["what"]) == attacks + ranks
    assert (speeds[["ours_s", "reference_s"]] > 0).all(axis=None)
    np.testing.assert_allclose(speeds["ratio"], speeds["reference_s"] / speeds["ours_s"])
    memory = speeds.loc[[0, 3, 4, 5], ["ours_mib", "reference_mib"]]
    # Far below what this process holds: a worker's peak is not inherited from its parent.
    assert ((memory > 0) & (memory < 100)).all(axis=None)
    assert (speeds.loc[0, ["ours_error", "reference_error"]] < 1e-18).all()
    assert float(speeds["note"][0].split("relative difference ")[1].split(";")[0]) < 1e-8
    # Empty, not 0, where nothing was measured.
    assert speeds.loc[[1, 2], ["ours_mib", "ours_error"]].isna().all(axis=None)
    assert (speeds.loc[[3, 4, 5], "ours_error"] == 0).all()
    assert speeds.loc[[3, 4], "note"].str.contains("ranks equal").all()
    assert speeds["note"][3].startswith("structural against")
    value, exact = structural_index(SMALL)
    assert exact and f"; exact: {value:g} and {value:g};" in speeds["note"][5]


def test_a_rank_that_differs_is_reported(small_case, monkeypatch):
    facts = {"seconds": 1.0, "mib": 1.0, "index": -1.5, "exact": False}
    found = {"dense_ranks": [98, 120], "index": [98, 125], "ranks": [98, 120], "sizes": []}
    monkeypatch.setattr(rgap, "measured", lambda task, *_, **__: facts | {"ranks": found[task]})
    rows = speed.table(rgap.rank_rows(small_case, threads=1))
    unknowns = [layer.shape.unknowns for layer in SMALL.convolutions]
    c = 98 - unknowns[0] + (120 - unknowns[1]) / 2
    assert list(rows["ours_error"]) == [5, 0, abs(-1.5 - c)]
    assert "ranks differ: 98 125 and 98 120" in rows["note"][0]
    assert f"an upper bound: -1.5 and {c:g}" in rows["note"][2]


def test_a_dead_filter_is_ranked_numerically_in_the_worker_too(tmp_path):
    dead = {name: value.copy() for name, value in WEIGHTS.items()}
    dead["conv2.weight"][0] = 0.0
    path = str(tmp_path / "case")
    rgap.write_case(path, SMALL, dead, IMAGE, 1, -0.5)
    found, deltas = rgap.timed("index", path, 1), rgap.read_case(path).deltas
    assert list(found["ranks"]) == dense.ranks(SMALL, dead, deltas)
    rows = layer_rows(SMALL, dead, deltas)
    assert rows[1]["rank_method"] == "numerical"
    assert list(found["ranks"]) == [entry["rank"] for entry in rows]
    assert found["index"] == pytest.approx(sum(entry["contribution"] for entry in rows))


def test_the_numerical_rank_is_left_alone_where_it_is_not_reported(small_case, monkeypatch):
    calls = []
    monkeypatch.setattr(LayerSystem, "rank", property(lambda self: calls.append(self) or 7))
    found, layer = rgap.read_case(small_case), SMALL.convolutions[1]
    structure, follows = structural_rank(layer.shape), behind(SMALL, layer)
    assert structure.exact
    whole = layer_system(layer, found.view.weights, found.deltas)
    assert reported_rank(whole, follows) == (structure.bound, "structural", structure)
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
def todo(tmp_path_factory):
    """Gradients of the first draw of the weights, and of both, and their originals."""
    folder = tmp_path_factory.mktemp("pair")
    pixels = np.round((IMAGE + 0.5) * 255).astype(np.uint8)
    pair = np.stack([pixels, 255 - pixels])[:, None]
    labels, names = np.array([[1], [2]]), ("truck", "animal")
    originals = TargetSet(pair, labels, labels, -0.5, names, {}, {1: "truck", 2: "deer"})
    model, gradient = (str(folder / f"{name}.safetensors") for name in ("model", "gradient"))
    files.save(model, [SMALL], family_weights([SMALL], 2), {})
    write_tensors(gradient, *captured(files.read(model), originals, 2, granted=False))
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
    assert (rows[["runs", "failed"]] == [2, 0]).all(axis=None)
    assert (rows["relative_residual"][:2] < rows["relative_residual"][2]).all()
    assert rows["steps"][2] == 20


def test_starts_stand_beside_the_paper(todo):
    found = copa_settings.attempts(todo[0][1], todo[1], DEFAULT, copa_settings.STARTS)
    rows = copa_settings.starts("small", DEFAULT, found, {("small", "truck"): 0.25})
    assert ", ".join(rows.columns) == (
        "model, name, start, hidden_spread, pull_back, default, runs, failed, mse, lowest, "
        "highest, paper_mse"
    )
    expected = pd.DataFrame(copa_settings.STARTS).loc[np.repeat(np.arange(6), 2)]
    pd.testing.assert_frame_equal(rows[list(expected)], expected, check_names=False)
    assert list(rows["name"]) == ["truck", "animal"] * 6
    assert (rows["runs"] == 2).all()
    assert list(rows["default"]) == [True, True] + [False] * (len(rows) - 2)
    np.testing.assert_array_equal(rows["paper_mse"], [0.25, np.nan] * 6)
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
    printed = copa_settings.paper_values(str(ROOT / "papers/copa/claims.yaml"))
    assert printed["cnn3_v1_tanh", "truck"] == 0.0512
    assert printed["cnn3_v4_leaky", "animal"] == 0.1061
    assert ("cnn3_v1_tanh_padded", "truck") not in printed


def test_a_geometric_mean_leaves_out_what_is_missing():
    assert copa_settings.geometric_mean(pd.Series([1e-2, np.nan, 1e-4])) == pytest.approx(1e-3)
    assert np.isnan(copa_settings.geometric_mean(pd.Series([np.nan])))


def test_float32_row_compares_two_ways_to_one_image(tmp_path):
    leaky = {"activation": "leaky_relu", "slope": 0.2}
    options = {"side": 7, "classes": 1, "bias": False, "last": "identity"}
    network = chain(conv(5, 3, **leaky), conv(8, 2, **leaky), **options)
    weights, image = initial_weights(network, 0), np.random.default_rng(1).uniform(0, 1, (2, 7, 7))
    label, path = margin_label(network, weights, image, "opposite"), str(tmp_path / "case")
    rgap.write_case(path, network, weights, image, label, 0.0, single=True)
    assert rgap.read_case(path).view.label == label
    row = rgap.float32_row(path, threads=1, repeats=1)
    assert row["ours_error"] < 1e-8
    assert row["ours_error"] < row["reference_error"] < 1e-2
    assert row["ratio"] == row["reference_s"] / row["ours_s"]


def test_the_table_of_speeds_calls_what_measures_each_row(monkeypatch):
    """Signatures alone: the whole table takes minutes."""
    called = []
    modules = "dlg", "ggl", "grnn", "inverting", "lock", "mkor", "pipeline", "rgap", "training"
    for module in map(import_module, (f"benchmarks.{name}" for name in modules)):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            here = function.__module__ == module.__name__
            if here and name.endswith(("_row", "rows", "wall_time")):
                double = create_autospec(function)
                double.side_effect = lambda *_, _name=name, **__: called.append(_name) or []
                monkeypatch.setattr(module, name, double)
    reads = (rgap, "write_first"), (speed.files, "read"), (speed.targets, "read")
    for module, name in reads:
        monkeypatch.setattr(module, name, create_autospec(getattr(module, name)))
    amounts = {"rounds": 1, "lock_steps": 1, "inverting": (1, 1), "grnn": 1, "population": 1}
    params = SimpleNamespace(
        target="all", overrides={}, evaluations=1, images="embedded", device="cpu",
        amounts=amounts | {"searches": {"images": 1, "starts": 1, "outer": 1}},
        mkor={"images": 1, "photos": 1},
        training={"dataset": "cifar10", "split": "train", "offset": 0.0, "std": 1.0},
    )  # fmt: skip
    groups = list(speed.groups(MagicMock(), params, 1))
    assert len(groups) == len(called) == 17
    assert called[0] == "wall_time"
    assert called.count("lock_rows") == called.count("inverting_row") == 2
