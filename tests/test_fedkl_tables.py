"""FedKL's table of parameters, Table II's curves and Figure 4."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.patches import StepPatch

from conftest import ROOT
from figure_files import flat, outside, texts
from gradleak.claims import load as load_claims
from gradleak.errors import ArtifactError
from gradleak.models import resnet, vgg16
from gradleak.models.activations import Activation
from gradleak.models.build import ChainModule
from gradleak.models.chain import Chain, ConvSpec, LinearSpec
from gradleak.models.locking import with_lock
from gradleak.models.locks import Lock, is_private
from gradleak.plotting.style import BLUE, GREEN, ORANGE, RED
from gradleak.runtime.artifacts import write_csv
from papers.fedkl.figures import curves, fig4
from papers.fedkl.tables import parameters as fedkl_parameters

NETWORKS = ["ResNet-20", "ResNet-32", "VGG-16"]
# Accuracy of each network on each data set without and with a key-lock; None was not trained.
REACHED = {(0, 0): (0.9, 0.85), (0, 1): (0.8, 0.82), (0, 2): (0.7, None)}
REACHED |= {(1, 0): (0.5, 0.4), (1, 2): (0.6, 0.65)}


def training(folder, model, accuracy, epochs=12, seeds=1, client=True):
    """Curve and summary of a central training that comes to `accuracy`; a client's rows beside."""
    curve = pd.DataFrame(product(range(seeds), range(1, epochs + 1)), columns=["seed", "epoch"])
    reached = accuracy * (1 - 0.5 ** curve["epoch"]) + 0.01 * curve["seed"]
    curve = curve.assign(model=model, rate=0.1, train_loss=1.0, train_accuracy=0.9)
    curve = curve.assign(validation_loss=2 - 2 * reached, validation_accuracy=reached)
    tested = [accuracy + 0.01 * seed for seed in range(seeds)]
    last = pd.DataFrame({"seed": range(seeds), "test_accuracy": tested})
    last = last.assign(model=model, epochs=epochs, best_epoch=epochs, images="embedded")
    last = last.assign(train=1000, validation=100, test=200)
    made = {}
    for name, table in (("curves", curve), ("summaries", last)):
        if client:
            wrong = table.assign(client="0", **{table.columns[-1]: 0})
            table = pd.concat([table.assign(client=""), wrong])
        made[name] = str(folder / f"{model}.{name}.csv")
        write_csv(made[name], table)
    return made


def trained(folder, accuracies, **more):
    """Files of trainings, their accuracies by model."""
    made = [training(folder, model, accuracy, **more) for model, accuracy in accuracies.items()]
    return {kind: [paths[kind] for paths in made] for kind in ("curves", "summaries")}


def build(folder, **more):
    found = {
        (f"net{column}_{row}" + "_kl" * lock, lock, row, column): accuracy
        for (row, column), each in REACHED.items()
        for lock, accuracy in zip((False, True), each, strict=True)
        if accuracy is not None
    }
    keys = ("model", "lock", "row", "column")
    rows = [{"name": "CIFAR-10", "below": "(here photos10)"}, {"name": "CIFAR-100"}]
    words = {"title": "Curves", "note": "A note.", "rows": rows}
    words["columns"] = [{"name": name, "below": "32×32"} for name in NETWORKS]
    words["curves"] = [dict(zip(keys, each, strict=True)) for each in found]
    return trained(folder, {model: a for (model, *_), a in found.items()}, **more), words


def panels(figure):
    """Axes with curves by (line, column)."""
    drawn = [axes for axes in figure.axes if axes.get_position().height > 0.05]
    return {divmod(place, len(NETWORKS)): axes for place, axes in enumerate(drawn)}


def test_curves_land_in_their_panels_with_numbers_of_the_summary(tmp_path):
    figure = curves.make(*build(tmp_path), "smoke")
    drawn = panels(figure)
    assert len(drawn) == 4 * len(NETWORKS)
    for (row, column), each in REACHED.items():
        wanted = [accuracy for accuracy in each if accuracy is not None]
        for line, factor, low in ((2 * row, 100, 0), (2 * row + 1, -2, 2)):
            found = drawn[line, column].lines
            last = [curve.get_ydata()[-1] for curve in found]
            np.testing.assert_allclose(last, [low + factor * a for a in wanted], rtol=5e-3)
            styles = [(curve.get_color(), curve.get_linestyle()) for curve in found]
            assert styles == [(BLUE, "--"), (RED, "-")][: len(wanted)]
    # Limits are the same along a line.
    assert drawn[0, 0].get_ylim() == drawn[0, 1].get_ylim() != drawn[2, 0].get_ylim()
    assert not drawn[2, 1].axison
    # From below, where curves end high.
    said = [[text.get_text() for text in drawn[line, 0].texts] for line in range(2)]
    assert said == [["w/ KL 85.0 %", "w/o KL 90.0 %"], ["w/o KL 0.20", "w/ KL 0.30"]]
    counts = "1,000, 100, 200 to train, choose the epoch and test; one draw"
    for fact in ("CIFAR-10 (here photos10); CIFAR-100;", counts, "w/ KL", "ResNet-32"):
        assert fact in flat(figure)


def test_seeds_are_thin_lines_below_their_mean_and_one_epoch_is_marked(tmp_path):
    figure = curves.make(*build(tmp_path, seeds=3, client=False), "smoke")
    axes = panels(figure)[0, 0]
    assert len(axes.lines) == 2 * (3 + 1)
    assert axes.lines[3].get_ydata()[-1] == pytest.approx(91.0, rel=1e-3)
    assert "w/o KL 91.0 %" in texts(figure) and "means over 3 draws" in flat(figure)
    axes = panels(curves.make(*build(tmp_path, epochs=1), "smoke"))[0, 0]
    assert {line.get_marker() for line in axes.lines} == {"."}


def test_a_loss_that_dwarfs_the_others_makes_the_axis_logarithmic(tmp_path):
    files, words = build(tmp_path)
    rows = pd.read_csv(files["curves"][0])
    rows.loc[rows["epoch"] == 1, "validation_loss"] = 600
    write_csv(files["curves"][0], rows)
    drawn = panels(curves.make(files, words, "smoke"))
    scales = [drawn[line, 0].get_yscale() for line in range(4)]
    assert scales == ["linear", "log", "linear", "linear"]
    assert drawn[1, 0].get_ylim() == drawn[1, 1].get_ylim() and drawn[1, 0].get_ylim()[1] > 600


def test_rows_and_columns_without_curves_are_left_out(tmp_path):
    files, words = build(tmp_path)
    kept = [k for k, entry in enumerate(words["curves"]) if entry["row"] and entry["column"]]
    files = {name: [paths[k] for k in kept] for name, paths in files.items()}
    words = {**words, "curves": [words["curves"][k] for k in kept]}
    found = flat(curves.make(files, words, "smoke"))
    assert "ResNet-20" not in found and "CIFAR-10 " not in found and "VGG-16" in found


# --- Figure 4 ------------------------------------------------------------------------------------

PLACES = ["ResNet-20, CIFAR-10", "ResNet-20, CIFAR-100", "ResNet-18, CIFAR-10"]
# Mean and standard deviation of each distribution; the last is too narrow for the axis.
NORMAL = {"reference": (0.0, 1.0), "w/o KL": (0.5, 1.2), "w/ KL": (-0.3, 0.1)}


def table(rows):
    edges = np.arange(-8, 8.01, 0.25)
    found = []
    for row, (column, (mean, sd)) in product(rows, NORMAL.items()):
        head = {"row": row, "column": column, "n": 70, "images": "embedded", "scale": "smoke"}
        facts = {"mean": mean, "sd": sd, "skewness": 0.0, "wasserstein": abs(mean)}
        if column != "reference":
            facts["zero_scale"] = 0.25
        found += [{**head, "metric": m, "ours": v} for m, v in facts.items()]
        density = np.exp(-((edges[:-1] - mean) ** 2) / 2 / sd**2) / sd / np.sqrt(2 * np.pi)
        bins = {"left": edges[:-1], "right": edges[1:], "metric": "density", "ours": density}
        found += pd.DataFrame(bins).assign(**head).to_dict("records")
    return pd.DataFrame(found)


def build4(folder, rows=PLACES):
    each = [(f"net{k}{lock}", lock, k) for k in range(len(rows)) for lock in (False, True)]
    files = trained(folder, {model: 0.5 + 0.1 * k + 0.05 * lock for model, lock, k in each})
    files["table"] = str(folder / "table.csv")
    write_csv(files["table"], table(rows))
    entries = [{"model": model, "lock": lock, "panel": k} for model, lock, k in each]
    panels = [{"row": row, "images": "CIFAR-10 (here photos10)"} for row in rows]
    return files, {"title": "Distributions", "note": "A note.", "panels": panels, "curves": entries}


def frames(figure):
    """Axes of the densities and of the accuracies of each panel."""
    large = [axes for axes in figure.axes if axes.get_position().height > 0.1]
    return list(zip(large[::2], large[1::2], strict=True))


def test_each_panel_has_its_distributions_and_accuracies(tmp_path):
    figure = fig4.make(*build4(tmp_path), "smoke")
    drawn = frames(figure)
    assert len(drawn) == len(PLACES)
    for place, (below, above) in enumerate(drawn):
        steps = [patch for patch in below.patches if isinstance(patch, StepPatch)]
        lines = [patch for patch in steps if not patch.get_fill()]
        colours = [to_hex(patch.get_edgecolor()).upper() for patch in lines]
        assert colours == [BLUE, ORANGE, GREEN]
        for patch, (mean, _) in zip(lines, NORMAL.values(), strict=True):
            values, edges, _ = patch.get_data()
            assert edges[np.argmax(values)] == pytest.approx(mean, abs=0.26)
        # The narrow peak is cut at 2.2 times the reference's.
        assert below.get_ylim()[1] == pytest.approx(2.2 / np.sqrt(2 * np.pi), rel=1e-3)
        last = [line.get_ydata()[-1] for line in above.lines]
        np.testing.assert_allclose(last, [50 + 10 * place, 55 + 10 * place], rtol=1e-3)
        styles = [(line.get_color(), line.get_linestyle()) for line in above.lines]
        assert styles == [(BLUE, "--"), (RED, "-")]
        assert above.get_position().bounds == below.get_position().bounds
    found = texts(figure)
    assert found.count("0.50") == 2 * len(PLACES) and found.count("−0.30") == len(PLACES)
    assert found.count("25%") == 2 * len(PLACES) and found.count("highest") == len(PLACES)
    assert [word for word in found if word in PLACES] == PLACES


def test_values_beyond_the_bins_are_said(tmp_path):
    files, words = build4(tmp_path)
    found = flat(fig4.make(files, words, "smoke"))
    assert "bins of 0.25" in found and "images (70)" in found and "beyond" not in found
    row = {"row": PLACES[0], "column": "w/ KL", "metric": "outside", "ours": 0.034, "n": 70}
    write_csv(files["table"], pd.concat([table(PLACES), pd.DataFrame([row])]))
    found = flat(fig4.make(files, words, "smoke"))
    assert "Up to 3.4% of the values lie beyond ±8." in found


def test_one_panel_alone(tmp_path):
    figure = fig4.make(*build4(tmp_path, PLACES[:1]), "smoke")
    assert len(frames(figure)) == 1 and outside(figure) == []


def test_a_missing_distribution_is_one_sentence(tmp_path):
    files, words = build4(tmp_path)
    full = table(PLACES)
    write_csv(files["table"], full[full["column"] != "w/ KL"])
    with pytest.raises(ArtifactError, match="holds no 'w/ KL' of ResNet-20, CIFAR-10; delete it"):
        fig4.make(files, words, "smoke")


# --- Tables --------------------------------------------------------------------------------------

RELU = Activation("relu")
RUN = {"images": "embedded", "scale": "smoke"}
STRIDES = [((s, s), (2, 2), True, RELU) for s in (2, 2, 1)]
SMALL, LARGE = ("resnet20", "resnet32"), ("resnet18", "resnet34")
SPECS = {
    "lenet": (*(ConvSpec(12, (5, 5), *more) for more in STRIDES), LinearSpec(10)),
    **{name: resnet.specs(name, 16, 10) for name in SMALL},
    **{name: resnet.specs(name, 64, 10, "large") for name in LARGE},
    "vgg16": vgg16.specs(10),
}
# Of the authors' networks: LeNet with ten classes; the residual networks with a hundred.
COUNTS = {
    ("lenet", 10, "parameters"): 40426,
    ("lenet", 10, "lock"): 24600,
    ("resnet20", 100, "parameters"): 311092,
    ("resnet20", 10, "lock"): 32800,
    ("resnet32", 100, "parameters"): 505524,
    ("resnet18", 100, "lock"): 131200,
    ("vgg16", 100, "key"): 1024,
    ("resnet34", 10, "channels"): 64,
    # 12·25·256·3 and twice 12·25·64·12 of the convolutions, 768·10, and 2·12·1024 of the lock.
    ("lenet", 10, "multiplications"): 3 * 230400 + 7680,
    ("lenet", 10, "lock_multiplications"): 24576,
}


def _locked(network):
    """The network of that name with a lock on its first convolution, 10 classes."""
    side = 32 if network in ("lenet", *SMALL) else 224
    return Chain(network, (3, side, side), with_lock(SPECS[network], ["conv1"], Lock(1024, RELU)))


def _counted(*networks, **more):
    cases = [{"network": n, "row": n, "chain": _locked(n).describe()} for n in networks]
    cases[-1] |= more
    return fedkl_parameters.make({}, {"cases": cases}, RUN)


@pytest.fixture(scope="module")
def parameters():
    frame = _counted(*SPECS)
    assert list(frame.columns) == fedkl_parameters.COLUMNS
    return frame.set_index(["network", "classes", "metric"])["ours"].sort_index()


def test_counts_are_the_authors_and_the_papers_shares_those_of_100_classes(parameters):
    assert {place: parameters[place] for place in COUNTS} == COUNTS
    assert parameters["lenet", 10, "share"] == pytest.approx(60.8, abs=0.1)
    claims = {each.id: each for each in load_claims(ROOT / "papers/fedkl/claims.yaml").claims}
    for network in SPECS:
        claim = claims[f"fedkl.table3.{network}.share"]
        assert abs(parameters[network, 100, "share"] - claim.paper_value) <= claim.rounding


@pytest.mark.parametrize("network", ["lenet", "resnet20"])
def test_counts_are_those_of_the_module(parameters, network):
    with torch.device("meta"):
        module = ChainModule(_locked(network), statistics=True)
    sizes = {name: value.numel() for name, value in module.named_parameters()}
    found = parameters[network, 10]
    assert found["parameters"] == sum(sizes.values())
    assert found["lock"] == sum(sizes[name] for name in sizes if is_private(name))
    kept = {name: value.numel() for name, value in module.named_buffers()}
    assert found["statistics"] == sum(n for name, n in kept.items() if "running" in name)


def test_another_input_changes_what_it_says():
    frame = _counted("lenet", "lenet", input=[1, 28, 28])
    counted = frame[(frame["metric"] == "parameters") & (frame["classes"] == 10)]
    assert list(counted["input"]) == ["3x32x32", "1x28x28"]
    # Two channels of 300 weights less, and 49 of 64 features of each of 12 channels.
    assert counted["ours"].diff().iloc[1] == -600 - 12 * (64 - 49) * 10
