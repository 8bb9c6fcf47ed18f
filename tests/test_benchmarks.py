"""Measurements on a small network, and of a small pipeline in a copy; no time is asserted."""

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock, create_autospec

import numpy as np
import pandas as pd
import pytest

from benchmarks import copa_settings, dense, photo, pipeline, rgap, runner, speed, threads
from chains import captured, chain, conv, parts, shared, system
from conftest import ROOT
from gradleak.analysis import copa_index
from gradleak.attacks.closed_form.rgap import RGap
from gradleak.attacks.runner import Views
from gradleak.config import loader
from gradleak.data.targets import TargetSet
from gradleak.errors import ArtifactError
from gradleak.models import files
from gradleak.models.initial import family_weights, initial_weights
from gradleak.models.numpy_autodiff import deltas, margin_label
from gradleak.operators.shape import ConvShape
from gradleak.operators.structure import structural_rank
from gradleak.operators.system import LayerSystem
from gradleak.runtime.artifacts import write_tensors
from pipeline_trees import whole

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


@pytest.mark.parametrize("steps", [((1, 1), (0, 0)), ((2, 1), (1, 2)), ((2, 2), (1, 0))])
def test_the_reference_builds_the_same_system_as_the_operators(steps):
    shape = ConvShape(2, 3, (3, 2), *steps, (6, 7))
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
    assert all(np.array_equal(found.view.gradients[name], expected[name]) for name in expected)
    expected = deltas(SMALL, WEIGHTS, IMAGE, 1)["conv2"]
    np.testing.assert_array_equal(found.deltas["conv2"], expected)
    # Reference and ours reconstruct the same image.
    plain, seconds = dense.rgap(found.view)
    assert set(seconds) == {"conv1", "conv2"}
    np.testing.assert_allclose(plain, IMAGE, atol=1e-9)
    np.testing.assert_allclose(RGap().run(found.view, 0).image, plain, atol=1e-9)


def test_speed_rows_hold_times_memory_and_errors(small_case):
    rows = rgap.attack_rows(small_case, threads=1, repeats=2)
    speeds = speed.table(rows + rgap.rank_rows(small_case, threads=1, repeats=2))
    assert list(speeds.columns) == speed.COLUMNS
    attacks = "R-GAP small,R-GAP small conv1,R-GAP small conv2"
    ranks = "c(M) as reported small,numerical ranks small,c(M) from sizes small"
    assert ",".join(speeds["what"]) == f"{attacks},{ranks}"
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
    value, exact = copa_index.structural_index(SMALL)
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


def test_dead_filters_alone_are_ranked_numerically(tmp_path, small_case, monkeypatch):
    dead = {name: value.copy() for name, value in WEIGHTS.items()}
    dead["conv2.weight"][0] = 0.0
    path = str(tmp_path / "case")
    rgap.write_case(path, SMALL, dead, IMAGE, 1, -0.5)
    found, case = rgap.timed("index", path, 1), rgap.read_case(path)
    assert list(found["ranks"]) == dense.ranks(SMALL, dead, case.deltas)
    rows = copa_index.layer_rows(SMALL, dead, case.deltas)
    assert rows[1]["rank_method"] == "numerical"
    assert list(found["ranks"]) == [entry["rank"] for entry in rows]
    assert found["index"] == pytest.approx(sum(entry["contribution"] for entry in rows))
    # The numerical rank is left alone where it is not reported.
    calls = []
    monkeypatch.setattr(LayerSystem, "rank", property(lambda self: calls.append(self) or 7))
    found, layer = rgap.read_case(small_case), SMALL.convolutions[1]
    structure, follows = structural_rank(layer.shape), copa_index.behind(SMALL, layer)
    assert structure.exact
    own = found.deltas[layer.name].copy()
    alive, dead = (
        copa_index.layer_system(layer, found.view.weights, {**found.deltas, layer.name: delta})
        for delta in (own, np.where(np.arange(len(own))[:, None, None] == 2, 0.0, own))
    )
    reported = copa_index.reported_rank(alive, follows)
    assert reported == (structure.bound, "structural", structure) and not calls
    assert copa_index.reported_rank(dead, follows) == (7, "numerical", structure)
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


def test_a_measurement_sees_what_a_task_allocates_and_one_that_fails_is_one_sentence(tmp_path):
    # A process of its own: memory that this one has freed and kept would be filled unseen.
    subprocess.run([sys.executable, "-c", ALLOCATE], env=runner.environment(1), check=True)
    with pytest.raises(ArtifactError, match=r"rgap:timed ended with status 1 .*missing"):
        rgap.measured("ranks", str(tmp_path / "missing"))


def test_a_benchmark_says_what_it_is_before_it_measures(monkeypatch, capsys):
    for given, names, found in (
        (["x"], ["[weights]"], [Path("x")]),
        ([], ["[weights]"], [None]),
        (["a"], ["folder"], [Path("a")]),
        ([], [], []),
    ):
        monkeypatch.setattr("sys.argv", ["grades.py", *given])
        assert runner.arguments("Words.", *names) == found
    for given, status in ((["--help"], 0), ([], 2), (["a", "b"], 2)):
        monkeypatch.setattr("sys.argv", ["grades.py", *given])
        with pytest.raises(SystemExit) as ended:
            runner.arguments("Words.\n\n  As they stand.", "folder")
        assert ended.value.code == status
    assert "Words.\n\n  As they stand." in capsys.readouterr().out


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
    names = "model, optimiser, default, limit, runs, failed, relative_residual, mse, steps, seconds"
    assert ", ".join(rows.columns) == names
    assert dict(zip(rows["optimiser"], rows["limit"], strict=True)) == limits
    assert list(rows["default"]) == [True, False, False]
    assert (rows[["runs", "failed"]] == [2, 0]).all(axis=None)
    assert (rows["relative_residual"][:2] < rows["relative_residual"][2]).all()
    assert rows["steps"][2] == 20


def test_starts_stand_beside_the_paper(todo):
    found = copa_settings.attempts(todo[0][1], todo[1], DEFAULT, copa_settings.STARTS)
    rows = copa_settings.starts("small", DEFAULT, found, {("small", "truck"): 0.25})
    columns = "model, name, start, hidden_spread, pull_back, default, runs, failed, mse, lowest, "
    assert ", ".join(rows.columns) == f"{columns}highest, paper_mse"
    expected = pd.DataFrame(copa_settings.STARTS).loc[np.repeat(np.arange(6), 2)]
    pd.testing.assert_frame_equal(rows[list(expected)], expected, check_names=False)
    assert list(rows["name"]) == ["truck", "animal"] * 6
    assert (rows["runs"] == 2).all()
    assert list(rows["default"]) == [True, True] + [False] * (len(rows) - 2)
    np.testing.assert_array_equal(rows["paper_mse"], [0.25, np.nan] * 6)
    assert (rows["lowest"] <= rows["mse"] * (1 + 1e-9)).all()
    assert (rows["mse"] <= rows["highest"] * (1 + 1e-9)).all()


def test_a_run_that_fails_is_counted_and_leaves_no_number(todo):
    view, *place = next(iter(todo[0][0]))
    assert view.label is None
    nothing = {name: np.zeros_like(g) for name, g in view.gradients.items()}
    broken = type(view)(SMALL, view.weights, nothing, (1,), -0.5, 0.5)
    changes = [{"optimiser": "lbfgs", "iterations": 5}]
    found = copa_settings.attempts([(broken, *place)], todo[1], DEFAULT, changes)
    [row] = copa_settings.optimisers("small", DEFAULT, found).to_dict("records")
    assert (row["runs"], row["failed"]) == (1, 1)
    assert np.isnan([row["mse"], row["relative_residual"], row["steps"]]).all()
    assert row["seconds"] > 0


def test_papers_values_come_from_claims_and_geometric_means_leave_out_what_is_missing():
    printed = copa_settings.paper_values(str(ROOT / "papers/copa/claims.yaml"))
    assert printed["cnn3_v1_tanh", "truck"] == 0.0512
    assert printed["cnn3_v4_leaky", "animal"] == 0.1061
    assert ("cnn3_v1_tanh_padded", "truck") not in printed
    assert copa_settings.geometric_mean(pd.Series([1e-2, np.nan, 1e-4])) == pytest.approx(1e-3)
    assert np.isnan(copa_settings.geometric_mean(pd.Series([np.nan])))


def test_float32_row_compares_two_ways_to_one_image(tmp_path):
    layers = [conv(*sizes, activation="leaky_relu", slope=0.2) for sizes in ((5, 3), (8, 2))]
    network = chain(*layers, side=7, classes=1, bias=False, last="identity")
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


TOY = """
configfile: "config.yaml"
rule all:
    input: expand("results/{n}.csv", n=range(config["amount"]))
rule amount:
    output: "out.txt"
    run:
        assert config["amount"] == 7
        open(output[0], "w").write("done")
rule one:
    output: "results/{n}.csv"
    threads: 1
    script: "workflow/job.py"
"""
SCRIPT = """
import time
from pathlib import Path
from gradleak.runtime.job import job
with job(snakemake):
    while time.process_time() < 1:
        pass
    Path(snakemake.output[0]).write_text("done")
"""


@pytest.fixture
def toy(tmp_path):
    (tmp_path / "Snakefile").write_text(TOY)
    (tmp_path / "workflow").mkdir()
    (tmp_path / "workflow/job.py").write_text(SCRIPT)
    (tmp_path / "config.yaml").write_text("amount: 1\nscale: laptop\nimages: embedded\n")
    return tmp_path


def test_wall_time_runs_in_a_copy_with_the_settings_of_this_run(toy):
    before = sorted(path.name for path in toy.iterdir())
    found = pipeline.wall_time("out.txt", {"amount": 7}, 1, toy)
    assert found["what"] == "pipeline out.txt" and found["ours_s"] > 0 < found["reference_s"]
    assert sorted(path.name for path in toy.iterdir()) == before
    with pytest.raises(ArtifactError, match=r"could not make nothing\.txt"):
        pipeline.wall_time("nothing.txt", {}, 1, toy)


@pytest.mark.slow
def test_overhead_counts_the_jobs_of_each_run(toy):
    first, second = pipeline.overhead_rows("all", {"amount": 3, "scale": "smoke"}, toy)
    assert first["what"] == "pipeline all, smoke"
    assert first["note"].startswith("3 jobs from empty results on 2 cores")
    # Three jobs of a second each, imports included, on two cores.
    assert 1.3 < first["reference_s"] < 20
    assert first["ratio"] == first["reference_s"] / first["ours_s"]
    assert second["what"] == "pipeline all, smoke, cores"
    assert second["ours_s"] == first["ours_s"]


@pytest.mark.slow
def test_a_job_is_made_on_one_thread_and_on_two(toy):
    [row] = threads.compare({"amount": 1}, ["results/0.csv"], toy)
    assert (row["artifact"], row["script"], row["declared"]) == ("results/0.csv", "job", 1)
    assert row["gain"] == row["seconds_1"] / row["seconds_2"]
    assert row["fastest"] == (2 if row["gain"] >= threads.WORTH else 1)
    with pytest.raises(ArtifactError, match=r"could not make results/none\.txt"):
        threads.compare({}, ["results/none.txt"], toy)


def test_few_images_and_steps_make_a_config_that_is_accepted():
    config = loader.load(whole())
    plain = config.model_dump(mode="json", exclude_unset=True)
    few = loader.load(whole() | threads.shortened(plain))
    assert max(e.seeds for e in few.experiments.values()) == 1
    assert max(t.count or 0 for t in few.targets.values()) == threads.FEW["count"]
    assert few.attacks["dlg"].iterations == threads.FEW["iterations"]
    assert few.models == config.models


def test_photographs_are_attacked_each_in_a_process_and_drawn(monkeypatch, tmp_path):
    monkeypatch.setattr(photo, "NETWORKS", {"four layers": photo.NETWORKS["four layers"]})
    y, x = np.mgrid[:24, :24] / 23.0
    table, figure = photo.compare([np.stack([x, y, x * y])])
    (row,) = table.to_dict("records")
    # Of the last convolution, whose input has 80 channels at a quarter of the side.
    assert (row["side"], row["unknowns"]) == (24, 80 * 6 * 6) and row["gib"] > 0.1
    # K determines layers this small, up to float32's rounding of the gradient.
    assert row["psnr"] > 80.0 and row["distance"] < 1e-4
    titles = [axis.get_title() for axis in figure.axes]
    assert titles[1].startswith(f"R-GAP, four layers: PSNR {row['psnr']:.1f} dB\n")
    shown, answer, apart = (np.asarray(axis.images[0].get_array()) for axis in figure.axes)
    np.testing.assert_allclose(shown, answer, atol=1e-3)
    np.testing.assert_allclose(apart, np.clip(0.5 + 100.0 * (answer - shown), 0, 1))
