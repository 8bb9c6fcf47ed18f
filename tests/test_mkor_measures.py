"""What is measured beside MKOR's reconstructions: weights, unique samples, low-passed photos."""

import numpy as np
import pandas as pd
import pytest
from scipy.ndimage import correlate1d

from benchmarks import mkor as speed_of_mkor
from benchmarks import speed
from figure_files import run, target_set
from gradleak.attacks.mkor.pixels import Regions, estimate
from gradleak.data import targets
from gradleak.models import files
from gradleak.models.chain import Chain, LinearSpec
from gradleak.models.files import ModelFile
from gradleak.models.initial import family_weights
from gradleak.runtime.artifacts import write_tensors
from gradleak.scoring.metrics.image import METRICS, of_paper, ssim, ssim_gauss
from gradleak.scoring.scores import ByClass
from gradleak.servers import base
from gradleak.servers.secret import Secrets
from mkor_cases import network
from papers.mkor import inconspicuous, low_pass, unique_samples
from papers.mkor.tables import losses, pruned

MKOR = {"method": "mkor", "beta": 0.1, "spare": "silent"}
FISHING = {"method": "class_fishing", "target": 0, "bias": 10.0}
FACTS = {"seeds": 1, "images": 1, "batch": 2, "low": 0.0, "high": 1.0, "loss": "cross_entropy"}


@pytest.fixture
def sent(tmp_path):
    """Write what a server sends and keeps; give both and the honest model."""

    def make(settings):
        chain = network(side=8)
        honest = ModelFile((chain,), family_weights([chain], 2))
        paths = str(tmp_path / "sent.safetensors"), str(tmp_path / "secret.safetensors")
        base.create(paths, honest, settings)
        return honest, files.read(paths[0]), Secrets.read(paths[1])

    return make


@pytest.mark.parametrize("settings", [MKOR, FISHING], ids=["mkor", "fishing"])
def test_files_of_a_server_hold_what_it_sends_and_keeps(sent, settings):
    honest, corrupt, secrets = sent(settings)
    chain, server = honest.chains[0], base.build(settings)
    assert corrupt.chains == honest.chains
    for seed in range(2):
        weights, secret = corrupt.of(chain, seed), secrets.of(chain.name, seed)
        assert secret.fingerprint == files.fingerprint(weights)
        assert secret.settings == settings
        expected, values = server.corrupt(chain, honest.of(chain, seed), base.SEED + seed)
        for stored, right in ((weights, expected), (secret.values, values)):
            assert stored.keys() == right.keys()
            for name, value in right.items():
                np.testing.assert_array_equal(stored[name], value)
    assert secrets.of(chain.name, 0).fingerprint != secrets.of(chain.name, 1).fingerprint


def seen(honest, corrupt):
    """What a client sees of the weights, by layer and metric."""
    images = target_set(1, 6, (1, 8, 8))
    found = inconspicuous.table(honest, ["server"], [corrupt], images, 4, "cross_entropy")
    frame = pd.DataFrame(found)
    assert list(frame) == inconspicuous.COLUMNS
    return frame.set_index(["layer", "metric"])


def test_modified_weights_are_counted(sent):
    honest, corrupt, _ = sent(MKOR)
    frame, chain = seen(honest, corrupt), honest.chains[0]
    own, before = corrupt.of(chain, 0), honest.of(chain, 0)
    changed = {name: int((own[name] != before[name]).sum()) for name in own}
    assert frame.value["conv2", "modified"] == changed["conv2.weight"] + changed["conv2.bias"] > 0
    assert frame.value["all", "modified"] == sum(changed.values())
    assert frame.value["all", "parameters"] == chain.parameters
    assert frame.value["convolutions", "modified"] < frame.value["all", "modified"]
    scaled = own["conv2.weight"] * np.sqrt(90)
    assert frame.value["conv2", "largest"] == pytest.approx(np.abs(scaled).max(), rel=1e-5)
    assert frame.value["conv2", "deviation"] == pytest.approx(scaled.std(), rel=1e-5)
    assert frame.default["fc1", "kurtosis"] == pytest.approx(-1.2, abs=0.1)
    assert frame.value["fc1", "ks_p"] > 0.01
    # A network without convolutions has no row of them.
    chain = Chain("fc", (1, 8, 8), (LinearSpec(4),))
    models = ModelFile((chain,), family_weights([chain], 1))
    found = seen(models, models).value.unstack("layer")
    assert set(found) == {"fc1", "all"} and set(found.loc["modified"]) == {0.0}


def test_class_fishing_is_seen_in_zeros_and_in_gradients(sent):
    frame = seen(*sent(FISHING)[:2])
    assert frame.value["fc3", "zeros_share"] == pytest.approx(0.75, abs=0.01)
    assert frame.value["fc3", "ks_p"] < 1e-6
    # The layer is shaped, and so the network; before it, gradients alone tell.
    shaped = frame.xs("looks_shaped", level="metric")
    assert shaped.value.to_dict() == {
        "conv1": 0,
        "conv2": 0,
        "fc1": 0,
        "fc2": 0,
        "fc3": 1,
        "all": 1,
    }
    assert set(shaped.default) == {0} and frame.value["all", "looks_shaped_batch"] == 1
    assert frame.default["all", "looks_shaped_batch"] == 0
    assert frame.value["all", "dsnr"] > 1000 > 10 > frame.default["all", "dsnr"]
    # Of four images of the classes 0 to 3 one has a gradient.
    assert frame.value["all", "zero_gradient_share"] == pytest.approx(0.75)
    assert frame.default["all", "zero_gradient_share"] == 0


def test_unique_samples_are_as_many_as_eq_3_says():
    found = unique_samples.make({}, {}, {})
    by = found.set_index(["images", "classes"])["expected"]
    assert by[100, 100] == pytest.approx(36.97, abs=0.005)
    assert by[100, 1] == 0
    for row in found.to_dict("records"):
        slack = 0.5 * (row["high"] - row["low"])
        assert row["low"] - slack <= row["expected"] <= row["high"] + slack


def test_low_passed_photos_are_the_nearest_of_their_size():
    image = np.random.default_rng(0).uniform(0, 1, (2, 12, 12))
    for side, expected in ((12, image), (1, image.mean((1, 2), keepdims=True) + 0 * image)):
        np.testing.assert_allclose(low_pass.low_pass(image, side), expected, atol=1e-12)
    found = low_pass.low_pass(image, 5)
    for other in (image.transpose(0, 2, 1), found):
        assert abs(np.vdot(image - found, low_pass.low_pass(other, 5))) < 1e-9


PLACE = "paper result attack defence images targets precision mode training"
CASE = dict.fromkeys(PLACE.split(), "x")


def by_class(chosen, found, classes, counts, partial=False):
    """Rows of images `found` of some classes, given the counts of these."""
    record = run("net", 0, classes=classes, counts=counts, partial=partial)
    return pd.DataFrame(ByClass(chosen, 0, network(), record).rows(found, CASE))


def test_answers_by_class_are_compared_with_their_own_images():
    """Classes 0, 1 and 1 are in the batch; the attack finds 0 and 3."""
    chosen = target_set(1, 3, (1, 8, 8), labels=[0, 1, 1])
    found = chosen.inputs(0)[:2].astype(np.float32)
    frame = by_class(chosen, found, [0, 3], [1, 2]).set_index("metric")
    psnr, mean, count = frame.loc["psnr"], frame.loc["psnr_class_mean"].value, frame.loc["count"]
    assert psnr.status.tolist() == ["ok", "missed", "missed"]
    assert psnr.value.iloc[0] == mean.iloc[0] > 100
    assert psnr.value.iloc[1:].isna().all() and mean.iloc[1:].isna().all()
    assert frame.loc["duplicates"].value.tolist() == [1, 2, 2]
    assert count.status.tolist() == ["ok", "missed", "absent", "phantom"]
    assert count.value.tolist() == [1, 0, 0, 2]
    alone = by_class(chosen, found[:1], [0], [1], partial=True)
    assert set(alone.status) == {"ok"}
    assert set(alone[alone.metric == "psnr"]["index"]) == {0}


def test_an_image_of_several_is_also_compared_with_their_mean_and_brightness_is_forgiven():
    chosen = target_set(1, 2, (1, 8, 8), labels=[1, 1])
    frame = by_class(chosen, chosen.inputs(0).mean(axis=0, keepdims=True), [1], [2])
    assert (frame[frame.metric == "psnr"].value < 40).all()
    assert (frame[frame.metric == "psnr_class_mean"].value > 100).all()
    chosen = target_set(1, 1, (1, 8, 8))
    values = by_class(chosen, 0.3 * chosen.inputs(0), [0], [1]).set_index("metric").value
    assert values["psnr"] < 15 < 100 < values["psnr_scaled"]


def test_losses_are_listed_with_what_a_client_could_notice(sent, tmp_path):
    sent({**MKOR, "output_bias": 5.0})
    given = {"scores": [tmp_path / "mkor.csv"], "models": [str(tmp_path / "sent.safetensors")]}
    found = {"psnr": (20.0, 30.0, ""), "psnr_scaled": (40.0, 60.0, ""), "ssim_gauss": (0.5, "")}
    rows = [("net", 0, metric, value) for metric, values in found.items() for value in values]
    table = pd.DataFrame(rows, columns=["model", "answer", "metric", "value"])
    status = ["missed" if value == "" else "ok" for value in table.value]
    table.assign(status=status).to_csv(*given["scores"], index=False)
    words = {"cases": [{"loss": "cross_entropy", "output_bias": 5.0}]}
    (row,) = losses.make(given, words, {}).to_dict("records")
    assert (row["n"], row["n_ok"], row["psnr_min"], row["psnr_max"]) == (3, 2, 0.0, 30.0)
    means = [row[f"{metric}_mean"] for metric in ("psnr", "psnr_scaled", "ssim")]
    assert means == pytest.approx([50.0 / 3, 100.0 / 3, 0.25])
    assert row["largest_bias"] == pytest.approx(5 * np.sqrt(60), rel=0.1)


def test_the_speed_table_times_what_it_says(tmp_path):
    chain = network("max", side=8)
    models = ModelFile((chain,), family_weights([chain], 1))
    paths = [str(tmp_path / name) for name in ("sent", "secret", "targets", "own")]
    naive = {"method": "mkor", "convolutions": "naive", "classifier": "naive"}
    base.create(paths[:2], models, naive)
    files.save(paths[3], [chain], models.weights, {})
    targets.save(paths[2], target_set(1, 4, (1, 8, 8)), {})
    rows = speed_of_mkor.rows(*paths[:3], loss="raw_logits", images=4, threads=1)
    base.create(paths[:2], models, {**MKOR, "classifier": "untouched"})
    rows.append(speed_of_mkor.cross_entropy_row(*paths[:3], images=4, threads=1))
    rows.append(speed_of_mkor.soteria_row(paths[3], paths[2], threads=1))
    rows.append(speed_of_mkor.memory_row(paths[3], paths[2], images=4, threads=1))
    frame = speed.table(rows)
    assert (frame.ours_s > 0).all()
    assert frame.what.tolist()[:2] == ["MKOR net against its gradient", "MKOR net against a loop"]
    assert frame.what.iloc[2] == "MKOR net, cross-entropy, rows: all against its gradient"
    assert frame.ours_mib.iloc[4] > 50


def test_what_soteria_takes_is_counted_among_columns_that_were_not_empty(tmp_path):
    given, value = {}, np.ones((1, 1, 2, 8), np.float32)
    value[..., :4] = 0.0
    for key in ("before", "after"):
        given[key] = [str(tmp_path / key)]
        write_tensors(*given[key], {"net/fc1.weight": value, "net/fc1.bias": value[..., 0]}, FACTS)
        value[..., 7] = 0.0
    (row,) = pruned.make(given, {"results": ["x"]}, {}).to_dict("records")
    expected = {"model": "net", "features": 8, "empty": 4, "pruned": 1, "pruned_share": 0.25}
    assert expected.items() <= row.items()


@pytest.mark.parametrize(("side", "first"), [(1, 0), (2, 1), (4, 2)])
def test_a_region_stands_for_the_pixel_in_its_middle(side, first):
    """Section 3.6: no mean of regions, which would blur once more; what is unknown is black."""
    starts = np.arange(-3, 3)  # some begin before the image
    values = np.arange(1.0, 37.0).reshape(1, 1, 6, 6)
    values[0, 0, 4, 4] = np.nan  # pruned
    found = estimate(Regions(values, values, (starts, starts), side), (6, 4), "direct", empty=-1.0)
    expected = np.full((6, 4), -1.0)
    for place, value in np.ndenumerate(values[0, 0]):
        y, x = starts[list(place)] + first
        if 0 <= y < 6 and 0 <= x < 4 and place != (4, 4):
            expected[y, x] = value
    assert np.array_equal(found[0, 0], expected)


def by_definition(x, y):
    """Wang et al. 2004, eq. 6 to 13, over windows of 11 x 11 that lie within the image."""
    window = np.exp(-0.5 * np.arange(-5, 6) ** 2 / 1.5**2)
    window /= window.sum()

    def mean(values):
        return correlate1d(correlate1d(values, window, 1), window, 2)[:, 5:-5, 5:-5]

    mx, my = mean(x), mean(y)
    vx, vy, cov = mean(x * x) - mx**2, mean(y * y) - my**2, mean(x * y) - mx * my
    c1, c2 = 0.01**2, 0.03**2
    top, bottom = (2 * mx * my + c1) * (2 * cov + c2), (mx**2 + my**2 + c1) * (vx + vy + c2)
    return float((top / bottom).mean())


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 20, 16)])
def test_it_is_wang_s_definition(shape):
    random = np.random.default_rng(0)
    x = random.random(shape)
    y = np.clip(x + 0.3 * random.standard_normal(shape), 0, 1)
    assert ssim_gauss(x, y) == pytest.approx(by_definition(x, y), abs=1e-12)
    assert ssim_gauss(x, x) == pytest.approx(1.0)
    assert abs(ssim_gauss(x, y) - ssim(x, y)) > 1e-3


def test_only_mkor_s_scores_have_it():
    assert set(of_paper("mkor")) - set(METRICS) == {"ssim_gauss"}
    assert {tuple(of_paper(name)) for name in ("copa", "rgap", "fedkl")} == {tuple(METRICS)}
