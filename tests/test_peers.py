"""The comparison with peers: clients, calibration, resumption, table; peers that pretend."""

import sys
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import peers, peers_breaching, peers_cases, peers_leakpro, peers_runs
from benchmarks.client_networks import Images, trained, untrained
from benchmarks.peers_cases import BREACHING, CASES, LEAKPRO, OURS, Case
from benchmarks.peers_table import COLUMNS, table
from benchmarks.peers_tools import Ours
from gradleak.client.local_training import Recipe
from gradleak.errors import ArtifactError
from gradleak.library.capture import capture

DRAW = np.random.default_rng(0)
IMAGES = Images(DRAW.integers(0, 256, (6, 3, 32, 32), dtype=np.uint8), np.array([3, 1, 4, 1, 5, 9]))
AMOUNTS = {"clients": 2, "budget": {"lenet": 1.0, "convnet": 1.0}, "images": 6, "epochs": 1}
ONE = Case("lenet", "lenet", {OURS: ("exact", "search"), LEAKPRO: ("search",)})
INFERRED = next(case for case in CASES if case.name == "labels4")


class Pretender:
    """A tool that adds a little to the originals, more where it searches less."""

    def __init__(self, error=0.1, fails=()):
        self.error, self.fails, self.calls, self.searches = error, fails, [], {"search": 50}

    def version(self, method):
        return "1"

    def images(self, method, client, iterations, seed):
        self.calls.append((method, iterations, seed))
        if seed in self.fails:
            raise RuntimeError("no image\nat all")
        return (client.images + self.error / (1 if iterations else 10)).clamp(0.0, 1.0)

    def labels(self, client):
        return client.classes.flip(0).tolist()


class Missing(Pretender):
    def version(self, method):
        raise ImportError("No module named 'leakpro'")


def compared(folder, tools, *cases, **amounts):
    sizes = peers.Amounts(**AMOUNTS | amounts)
    return peers.Comparison("embedded", IMAGES, IMAGES, sizes, folder, cases, tools)


def client_of(network, **options):
    case = Case("case", network, {}, **options)
    return peers_cases.client(case, untrained(network, 0), IMAGES, 0)


def test_a_table_compares_with_our_best_and_names_what_is_not_installed(tmp_path):
    tools = {OURS: Pretender(), LEAKPRO: Missing()}
    found = compared(tmp_path, tools, ONE).run()
    assert list(found.columns) == list(COLUMNS)
    assert list(found["status"]) == ["ok", "ok", "not installed"]
    assert list(found["n_ok"][:2]) == [2, 2] and found.loc[2, "n":"right"].isna().all()
    assert list(found["best"][:2]) == [True, False]
    assert found["reason"][2] == "No module named 'leakpro'"
    exact, search = found["psnr"][:2]
    assert found["ahead"][1] == pytest.approx(exact - search) and np.isnan(found["ahead"][0])
    assert found["psnr_low"][1] < search < found["psnr_high"][1]
    assert np.isnan(found["iterations"][0]) and found["iterations"][1] >= 1
    assert (tmp_path / "runs.csv").read_text().count("\n") == 5


def test_a_rerun_goes_on_where_it_was_cut_short(tmp_path):
    tools = {OURS: Pretender(), LEAKPRO: Pretender(0.2)}
    first = compared(tmp_path, tools, ONE, clients=1).run()
    path = tmp_path / "runs.csv"
    (used,) = [
        row for row in peers_runs.Runs(path).rows if row["tool"] == OURS and row["iterations"] > 0
    ]
    path.write_text(path.read_text() + "lenet,gradleak,1,exa")
    tools[OURS].calls.clear()
    found = compared(tmp_path, tools, ONE).run()
    # The second client alone, without calibration.
    (exact, search), first_count = tools[OURS].calls, used["iterations"]
    assert exact == ("exact", None, 1) and search[::2] == ("search", 1)
    assert first_count / 2 <= search[1] <= 2 * first_count
    assert list(first["n"]) == [1, 1, 1] and list(found["n"]) == [2, 2, 2]
    tools[OURS].calls.clear()
    pd.testing.assert_frame_equal(compared(tmp_path, tools, ONE).run(), found)
    assert tools[OURS].calls == []
    # Another version is measured anew, and stands alone in the table.
    tools[OURS].version = lambda method: "2"
    again = compared(tmp_path, tools, ONE, clients=1).run()
    assert len(tools[OURS].calls) > 2 and list(again["version"]) == ["2", "2", "1"]


def test_failures_are_rows_with_a_reason_and_all_cases_come_before_the_second_client(tmp_path):
    other = Case("other", "lenet", {OURS: ("exact",)}, batch=2)
    tool = Pretender(fails=(1,))
    found = compared(tmp_path, {OURS: tool}, Case("one", "lenet", {OURS: ("exact",)}), other).run()
    assert list(found["n"]) == [2, 2] and list(found["n_ok"]) == [1, 1]
    assert list(found["reason"]) == ["RuntimeError: no image"] * 2
    assert [seed for _, _, seed in tool.calls] == [0, 0, 1, 1]
    rows = peers_runs.Runs(tmp_path / "runs.csv").rows
    assert [(row["case"], row["status"]) for row in rows] == [
        *(("one", "ok"), ("other", "ok"), ("one", "failed"), ("other", "failed")),
    ]


def test_a_file_with_other_columns_is_refused(tmp_path):
    (tmp_path / "runs.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ArtifactError, match="other columns"):
        compared(tmp_path, {OURS: Pretender()}, ONE).run()


@pytest.mark.parametrize(("each", "most", "expected"), [(0.01, 10**6, 1000), (0.01, 40, 40)])
def test_iterations_fill_the_budget(monkeypatch, each, most, expected):
    clock = [0.0]
    monkeypatch.setattr(peers_runs, "time", SimpleNamespace(process_time=lambda: clock[0]))

    def run(count):
        clock[0] += 0.5 + each * count  # half a second to begin

    budget = 0.5 + each * expected if most > expected else 60.0
    assert peers_runs.calibrated(run, budget, most) == pytest.approx(expected, abs=1)


def test_a_search_that_converged_is_taken_for_as_slow_as_it_began(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(peers_runs, "time", SimpleNamespace(process_time=lambda: clock[0]))

    def run(count):
        clock[0] += 0.1 * min(count, 9)

    assert peers_runs.calibrated(run, 10.0, 10**6) <= 27 + (10.0 - 0.9) / 0.1 + 1


def test_iterations_follow_the_time_of_earlier_clients(tmp_path):
    runs = peers_runs.Runs(tmp_path / "runs.csv")
    row = {"case": "a", "tool": "b", "version": "1", "method": "c", "images": "real"}
    row |= {"budget": 10.0, "status": "ok"}
    assert runs.iterations(row) is None
    for number, (count, taken) in enumerate(((100, 8.0), (125, 10.5), (100, 1e-3))):
        runs.add({**row, "image": number, "iterations": count, "seconds": taken})
    assert runs.iterations({**row, "image": 3}) == round(10 / 0.08)
    assert peers_runs.Runs(runs.path).iterations({**row, "image": 3}) == round(10 / 0.08)
    for _ in range(3):
        runs.add({**row, "image": number, "iterations": 100, "seconds": 1e-3})
    assert runs.iterations({**row, "image": 3}) == 200
    assert runs.iterations({**row, "budget": 1.0}) is None


def test_the_table_has_means_and_intervals_over_clients():
    keys = {"case": "lenet", "version": "1", "images": "real", "budget": 1.0, "ssim": 0.5}
    rest = {"status": "ok", "reason": "", "iterations": np.nan, "seconds": 1.4, "right": np.nan}
    values = {(OURS, "exact"): (30.0, 32.0, 34.0), (LEAKPRO, "search"): (20.0, 21.0, 28.0)}
    rows = [
        {**keys, **rest, "tool": tool, "method": method, "image": number, "psnr": psnr}
        for (tool, method), numbers in values.items()
        for number, psnr in enumerate(numbers)
    ]
    case = Case("lenet", "lenet", {OURS: ("exact",), LEAKPRO: ("search",)})
    found = table(pd.DataFrame(rows), [case])
    assert list(found["psnr"]) == [32.0, 23.0]
    # t = 4.303 with two degrees of freedom.
    assert found["psnr_high"][0] == pytest.approx(32 + 4.3027 * 2 / np.sqrt(3), abs=1e-3)
    assert found["ahead"][1] == 9.0
    half = 4.3027 * np.std([10, 11, 6], ddof=1) / np.sqrt(3)
    assert found["ahead_low"][1] == pytest.approx(9 - half, abs=1e-3)
    # What took too long is not compared at equal time.
    late = pd.DataFrame(rows).assign(seconds=[1.6] * 3 + [1.0] * 3)
    assert table(late, [case])["ahead"].isna().all()


def test_networks_fit_their_images_and_cases_name_what_there_is():
    for network, outputs in (("lenet", 10), ("convnet", 10), ("cnn6", 1)):
        one, two = (untrained(network, seed) for seed in (0, 1))
        image, _ = IMAGES.take(0, 1)
        assert one(image).shape == (1, outputs) and not one.training
        assert not torch.equal(one(image), two(image))
        again = untrained(network, 0)
        assert torch.equal(one(image), again(image))
    weights = untrained("lenet", 0).state_dict().values()
    assert 0.49 < max(float(value.abs().max()) for value in weights) <= 0.5
    assert len({case.name for case in CASES}) == len(CASES)
    for case in CASES:
        assert set(case.methods) <= set(peers.TOOLS)
        for tool, methods in case.methods.items():
            searches = set(peers.TOOLS[tool].searches) | {"rgap", "rgap_plain", "labels"}
            assert set(methods) <= searches
    assert all(Ours().version(m) for case in CASES for m in case.methods[OURS])


def test_trained_weights_are_kept_for_the_same_settings(tmp_path):
    path, settings = tmp_path / "lenet.safetensors", {"images": 6, "epochs": 1, "source": "x"}
    first = trained("lenet", IMAGES, IMAGES, settings, path)
    kept = path.stat().st_mtime_ns
    again = trained("lenet", IMAGES, IMAGES, settings, path)
    image, _ = IMAGES.take(0, 1)
    assert path.stat().st_mtime_ns == kept and torch.equal(first(image), again(image))
    trained("lenet", IMAGES, IMAGES, {**settings, "epochs": 2}, path)
    assert path.stat().st_mtime_ns != kept


def test_images_begin_again_where_they_end():
    images, labels = IMAGES.take(5, 3)
    assert labels.tolist() == [9, 3, 1] and float(images.max()) <= 1.0


def test_ours_attacks_and_infers_labels(tmp_path):
    ours = Ours()
    one = client_of("lenet")
    found = ours.images("inverting_gradients", one, 2, 0)
    assert found.shape == (1, 3, 32, 32)
    batch = peers_cases.client(INFERRED, untrained("convnet", 0), IMAGES, 0)
    assert sorted(ours.labels(batch)) == [1, 1, 3, 4]


def test_a_client_of_one_output_has_the_label_opposite_to_the_networks_sign():
    one = client_of("cnn6")
    output = one.model(one.images)[0, 0]
    assert one.labels[0] == (1 if output < 0 else -1) and one.loss == "logistic"
    expected = torch.log(1 + torch.exp(-one.labels[0] * output))
    assert one.criterion(output[None, None], one.classes).item() == pytest.approx(expected.item())
    gradient = torch.autograd.grad(one.criterion(one.model(one.images), one.classes),
                                   list(one.model.parameters()))  # fmt: skip
    for (_, shared), own in zip(one.shared.items(), gradient, strict=True):
        torch.testing.assert_close(shared, own)


def test_updates_are_handed_to_peers_as_weights_after_minus_before():
    recipe = Recipe(rate=0.1, epochs=3)
    one = client_of("lenet", recipe=recipe)
    gradient = capture(one.model, one.images, one.labels, mode="evaluation")
    change = one.change["7.bias"]
    assert torch.dot(change, gradient["7.bias"]) < 0 and one.recipe == recipe
    assert client_of("lenet").recipe is None


class Config(SimpleNamespace):
    def copy(self):
        return self


def test_breaching_gets_what_its_users_send(monkeypatch):
    sent = {}

    def prepare(model, loss, config, setup):
        def reconstruct(payload, shared, secrets):
            sent.update(config=config, payload=payload[0], shared=shared[0])
            return {"data": torch.zeros(1, 3, 32, 32)}, {}

        return SimpleNamespace(reconstruct=reconstruct)

    config = Config(optim=SimpleNamespace())
    package = ModuleType("breaching")
    package.get_attack_config = MagicMock(return_value=config)
    monkeypatch.setitem(sys.modules, "breaching", package)
    monkeypatch.setitem(sys.modules, "breaching.attacks", SimpleNamespace(prepare_attack=prepare))
    peers_breaching._config.cache_clear()
    tool = peers_breaching.Breaching()
    assert tool.version("deepleakage") == "source"
    one = client_of("lenet", recipe=Recipe(rate=0.1, epochs=3))
    assert tool.images("deepleakage", one, 7, 0).shape == (1, 3, 32, 32)
    peers_breaching._config.cache_clear()
    package.get_attack_config.assert_called_once_with("deepleakage", ["attack_type=optimization"])
    assert sent["config"].optim.max_iterations == 7
    local = sent["shared"]["metadata"]["local_hyperparams"]
    assert (local["lr"], local["steps"], local["data_per_step"]) == (0.1, 3, 1)
    assert [labels.tolist() for labels in local["labels"]] == [[3]] * 3
    assert [g.shape for g in sent["shared"]["gradients"]] == [
        p.shape for p in one.model.parameters()
    ]
    assert sent["payload"]["metadata"].shape == (3, 32, 32)


def test_leakpro_simulates_the_clients_rate(monkeypatch):
    sent = {}
    optimiser = SimpleNamespace(lr=0.01)
    simulator = SimpleNamespace(meta_optimizer=optimiser)

    def run(model, observed, device):
        sent["observed"] = observed
        return torch.zeros(1, 3, 32, 32), {}

    attack = SimpleNamespace(
        optimization=SimpleNamespace(training_simulator=simulator), run_attack=run
    )
    config = SimpleNamespace(build=lambda observed: attack)
    modular = peers_leakpro.MODULAR
    modules = {
        f"{modular}.presets": SimpleNamespace(dimitrov_fedavg_attack=lambda: config),
        f"{peers_leakpro.BLOCKS}.training_simulator": SimpleNamespace(
            TrainingSettings=SimpleNamespace
        ),
        "leakpro.fl_utils.fl_client_simulator": SimpleNamespace(ClientObservations=SimpleNamespace),
    }
    monkeypatch.setattr(peers_leakpro, "import_module", modules.__getitem__)
    one = client_of("lenet", recipe=Recipe(rate=0.1, epochs=3))
    peers_leakpro.LeakPro().images("dimitrov_fedavg", one, 5, 0)
    assert optimiser.lr == 0.1 and config.max_iterations == 5 and config.labels == "oracle"
    settings = sent["observed"].training_settings
    assert (settings.epochs, settings.compute_mode, settings.model_mode) == (3, "updates", "eval")


def test_tools_without_their_packages_are_absent(monkeypatch):
    for tool in (BREACHING, LEAKPRO):
        for name in [n for n in sys.modules if n.split(".")[0] == tool]:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Nowhere(), *sys.meta_path])
    for tool in (BREACHING, LEAKPRO):
        with pytest.raises(ImportError):
            peers.TOOLS[tool].version("any")


class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in (BREACHING, LEAKPRO):
            raise ModuleNotFoundError(f"No module named {name!r}")


def test_the_runs_so_far_can_be_printed(tmp_path, capsys):
    compared(tmp_path, dict.fromkeys(peers.TOOLS, Pretender()), CASES[0]).run()
    peers.main(tmp_path / "runs.csv")
    assert "lenet" in capsys.readouterr().out
