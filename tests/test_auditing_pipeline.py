"""Audits as people run them: an entry of config.yaml, one call of Python, a build that fails."""

import json
import re
import subprocess
import sys
import textwrap
from html import escape, unescape

import numpy as np
import pytest
import torch
import yaml
from jsonschema import Draft202012Validator
from torch import nn

import gradleak
from audit_samples import audit as sample_audit
from audited import refused
from gradleak.config import loader as gradleak_config
from gradleak.errors import ArtifactError, GradleakError
from gradleak.runtime import progress
from gradleak_audit import result
from gradleak_audit.from_config import audit
from gradleak_audit.report import ci_gate, files
from gradleak_audit.report.files import Pictures
from pipeline_trees import whole

RAW = whole()
NETWORK = """
    from torch import nn

    def build():
        return nn.Sequential(nn.Conv2d(1, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4056, 10))
"""
ENTRY = {"network": {"file": "mine.py", "factory": "build"}, "input": [1, 28, 28], "limit": 0.0}
FEW = {"scale": "smoke", "count": 1, "seeds": 1, "batches": [1]}


def entry(**changed):
    return {**RAW, "scale": "smoke", "audit": {"mine": ENTRY | changed}}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"network": {"file": "a.py"}}, ["audit.mine.network.factory", "missing"]),
        ({"network": {"torchvision": 3}}, ["audit.mine.network.torchvision", "3"]),
        ({"network": "resnet18"}, ["audit.mine.network", "resnet18"]),
        ({"samples": "photos"}, ["audit.mine.samples", "'photos'", "give embedded, {dataset:"]),
        ({"samples": {"path": "x"}}, ["audit.mine.samples", "'path'", "or {folder: /path"]),
        ({"samples": {"dataset": "cifar"}}, ["audit.mine.samples.dataset", "'cifar'", "cifar10"]),
        ({"batches": ["one"]}, ["audit.mine.batches", "'one'"]),
        ({"samples": {"dataset": "imagenet"}}, ["imagenet has val, not train"]),
        ({"samples": {"folder": 3}}, ["audit.mine.samples.folder", "3"]),
        ({"batches": [4, 1]}, ["batches: [4, 1] must grow"]),
        ({"limit": 2}, ["audit.mine.limit", "2", "less than or equal to 1"]),
        ({"count": "mine"}, ["audit.mine.count", "'mine'"]),
        ({"weigths": "x"}, ["weigths", "did you mean 'weights'"]),
        ({"counts": "half"}, ["audit.mine.counts", "'half'", "'partly'"]),
        ({"loss": "mse"}, ["audit.mine.loss", "'mse'", "cross_entropy"]),
    ],
)
def test_bad_entries_are_refused_in_one_sentence(changed, words):
    with refused(*words):
        gradleak_config.load(entry(**changed))


def test_numbers_may_come_as_text_as_config_hands_them_on():
    texts = {"input": ["1", "28", "28"], "batches": ["1", "2"], "count": "3", "seeds": "1"}
    more = {"classes": "10", "seed": "2", "offset": "-0.5", "std": "0.5", "limit": "0.1"}
    found = gradleak_config.load(entry(**texts, **more)).audit["mine"]
    assert found.input == (1, 28, 28) and found.batches == [1, 2]
    assert (found.count, found.seeds, found.classes, found.seed) == (3, 1, 10, 2)
    assert (found.offset, found.std, found.limit) == (-0.5, 0.5, 0.1)


def test_a_result_and_its_pictures_come_back_from_their_files(tmp_path):
    found = sample_audit()
    files.save(tmp_path / "audit.json", found)
    assert files.read(tmp_path / "audit.json") == found
    written = json.loads((tmp_path / "audit.json").read_text())
    Draft202012Validator(result.schema()).validate(written)
    one = np.ones((1, 8, 8))
    pictures = Pictures(
        np.zeros((2, 1, 8, 8)), {"rgap": {1: one}}, {"noise_1": ("dlg", 0, one / 2)}
    )
    files.save_pictures(tmp_path / "p.safetensors", pictures)
    again = files.read_pictures(tmp_path / "p.safetensors")
    ((change, (attack, image, answer)),) = again.changes.items()
    assert (change, attack, image) == ("noise_1", "dlg", 0) and np.array_equal(answer, one / 2)
    assert np.array_equal(again.answers["rgap"][1], pictures.answers["rgap"][1])
    assert again.originals.shape == (2, 1, 8, 8)


@pytest.mark.parametrize("content", ["", "{}", '{"version": 2}', "\x00"])
def test_a_file_that_is_no_result_is_one_sentence(tmp_path, content):
    (tmp_path / "audit.json").write_text(content)
    for name, words in (("audit", "holds no result of an audit"), ("none", "cannot be read")):
        with refused(words, kind=ArtifactError):
            files.read(tmp_path / f"{name}.json")


def leaking(share, **more):
    unchanged, *others = sample_audit().changes
    return sample_audit(changes=(unchanged.model_copy(update={"leak": share}), *others), **more)


def test_a_gate_holds_against_a_limit_and_a_baseline():
    assert "50% of gradients" in ci_gate.check(leaking(0.5), 0.5, None)
    assert "baseline 50%" in ci_gate.check(leaking(0.25), None, leaking(0.5))
    for limit, baseline in ((0.4, None), (None, leaking(0.25)), (0.6, leaking(0.25))):
        with pytest.raises(ci_gate.LeaksTooMuch, match="50% of gradients could be read"):
            ci_gate.check(leaking(0.5), limit, baseline)
    with pytest.raises(GradleakError, match="neither limit nor baseline"):
        ci_gate.check(leaking(0.5), None, None)
    for share, limit, baseline in ((None, 1.0, None), (None, None, 1.0), (0.0, None, None)):
        held = leaking(baseline) if limit is None else None
        with pytest.raises(GradleakError, match="a reconstruction, so nothing was measured"):
            ci_gate.check(leaking(share), limit, held)


def test_a_gate_counts_what_is_read_in_part_unless_told_otherwise():
    # Of six gradients two are read, and one in part.
    with refused("50% of gradients could be read at least in part", kind=ci_gate.LeaksTooMuch):
        ci_gate.check(leaking(0.5), 0.4, None)
    assert "33% of gradients could be read; limit 40%" in ci_gate.check(
        leaking(0.5), 0.4, None, "read"
    )
    # Pictures that can be told apart count, too, where nothing is seen in them.
    matched = leaking(0.0, said={"matched": 6})
    assert (ci_gate.leak(matched), ci_gate.leak(matched, "read")) == (1.0, 1 / 3)
    told = "100% of gradients could be read at least in part, or matched; limit 100%"
    assert told in ci_gate.check(matched, 1.0, None)
    smoke = matched.setting.model_copy(update={"scale": "smoke"})
    assert ci_gate.check(leaking(0.0, setting=smoke), 0.0, None).endswith("no evidence.")


def test_a_baseline_of_other_settings_or_another_network_is_refused():
    found, other = leaking(0.0), ({"scale": "smoke"}, {"count": 1}, {"mode": "evaluation"})
    settings = [{"setting": found.setting.model_copy(update=changed)} for changed in other]
    for changed in (*settings, {"name": "another"}):
        with refused("cannot be compared; make it again", kind=GradleakError):
            ci_gate.check(found, None, found.model_copy(update=changed))


def test_five_lines_of_python_audit_a_network(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4056, 10))
    found = gradleak.audit(model, (1, 28, 28), **FEW)
    assert found.leak == 1.0 and found.result.verdict.grade == "read"
    known = r"<Audit of network \(Sequential, 1x28x28\): (.+); 1 of 1 gradients read, closest .*>"
    assert re.fullmatch(known, repr(found))[1] == found.result.verdict.grade
    (shown,) = re.findall('^<iframe srcdoc="([^"]+)" ', found._repr_html_())
    assert found.verdict in re.sub(r"\s+", " ", unescape(shown))
    page = found.save(tmp_path / "audit")
    assert escape(found.verdict) in page.read_text()
    assert files.read(tmp_path / "audit" / "audit.json") == found.result
    # Pixels may be a tensor.
    pixels = torch.randint(0, 256, (21, 1, 8, 8), dtype=torch.uint8)
    found = gradleak.audit(linear(), [1, 8, 8], images=pixels, **FEW)
    assert found.result.setting.images == "images given as pixels"


def linear():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


FIXED = linear()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model": nn.Linear}, "model is the class Linear, not a network of it"),
        ({"input_shape": "1x8"}, "input_shape: give (C, H, W) of one image, three whole numbers"),
        ({"input_shape": (1, 8)}, "above 0, not (1, 8)."),
        ({"input_shape": (1, -8, 8)}, "above 0, not (1, -8, 8)."),
        ({"input_shape": 8}, "above 0, not 8."),
        ({"batches": 4}, "batches: give batch sizes that grow, for example [1, 4], not 4."),
        ({"batches": (4, 1)}, "for example [1, 4], not [4, 1]."),
        ({"batches": ()}, "not []."),
        ({"batches": "14"}, "not '14'."),
        ({"count": 0}, "count: give a whole number of 1 or more, not 0"),
        ({"seeds": 1.5}, "seeds: give a whole number of 1 or more, not 1.5"),
        ({"offset": "no"}, "offset: 'no' is not a finite number"),
        ({"std": float("nan")}, "std: nan is not a finite number"),
        ({"std": 0.0}, "std: 0 is not above 0"),
        ({"mode": "train"}, "mode: train is not known"),
        ({"scale": "huge"}, "scale: huge is not known"),
        ({"images": torch.rand(30, 1, 8, 8)}, "images: give a folder, or pixels uint8"),
        ({"images": 3}, "(N, C, H, W), not 3."),
        ({"images": np.zeros((30, 8, 8), np.uint8)}, "images: an array uint8 of shape (30, 8, 8)"),
        ({"labels": [0, 1]}, "labels: they are of images given as pixels"),
        ({"loss": "mse"}, "loss: mse is not known; choose one of cross_entropy"),
        ({"redraw": 3}, "redraw: give a function of a seed"),
        ({"redraw": lambda seed: nn.Linear}, "redraw: what it returns is the class Linear"),
        ({"redraw": lambda seed: nn.Linear(64, 10)}, "redraw gives parameters of other names"),
        ({"model": FIXED, "redraw": lambda seed: FIXED}, "redraw: it gives the weights of model"),
    ],
)
def test_arguments_that_do_not_fit_are_one_sentence(changed, words):
    with refused(words):
        gradleak.audit(**({"model": linear(), "input_shape": (1, 8, 8)} | FEW | changed))


def test_gradleak_itself_does_not_import_torch():
    code = "import sys, gradleak; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'adit'"):
        _ = gradleak.adit


@pytest.fixture
def mine(tree):
    (tree / "mine.py").write_text(textwrap.dedent(NETWORK))
    config = yaml.safe_dump(entry(count=1, seeds=1, batches=[1]), sort_keys=False)
    (tree / "config.yaml").write_text(config)
    return tree


def test_the_page_of_ones_own_network_and_a_gate_that_fails(mine, snakemake):
    target, passed = "results/audit/mine/report.html", "results/audit/mine/passed.txt"
    done = snakemake(mine, passed, check=False)
    output = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 1
    assert "audit.mine: 100% of gradients could be read" in output
    assert f"snakemake {target}" in (mine / target).read_text() and not (mine / passed).exists()
    snakemake(mine, passed, "--config", "audit={mine: {limit: 1.0}}")
    assert "100% of gradients" in (mine / passed).read_text()
    dry = snakemake(mine, "-n", target)
    assert "Nothing to be done" in dry.stdout + dry.stderr
    (mine / "mine.py").write_text(textwrap.dedent(NETWORK).replace("Tanh", "Sigmoid"))
    again = snakemake(mine, "-n", target)
    assert "audit" in again.stdout + again.stderr and "Nothing to be" not in again.stdout


def test_entries_of_a_file_of_ones_own_stand_beside_those_that_are_shipped(tree, snakemake):
    (tree / "own.yaml").write_text(yaml.safe_dump({"audit": {"own": ENTRY, "lenet": {"count": 1}}}))
    targets = (f"results/audit/{name}/report.html" for name in ("own", "lenet"))
    own = ("--configfile", "own.yaml", "--config", "scale=smoke", "images=embedded")
    said = snakemake(tree, "-n", *own, "--", *targets)
    assert all(f"Audit {name}\n" in said.stdout + said.stderr for name in ("own", "lenet"))


def test_a_terminal_shows_how_far_an_audit_is(monkeypatch):
    told = []
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(progress, "BAR", 0.0)
    monkeypatch.setattr(progress._DISPLAY, "_draw", told.append)
    gradleak.audit(linear(), (1, 8, 8), **FEW)
    done = [int(text.split()[0]) for text in told if " of 20 parts" in text]
    assert done[0] < 12 and done == sorted(done) and done[-1] == 20
    for unit in ("changes", "trainings"):
        assert any(re.search(rf"\d+ of \d+ {unit}", text) for text in told), told


OWN = """
    from torch import Generator, nn

    def build(fixed=()):
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 3))
        for number in fixed:
            for value in net[number].parameters():
                nn.init.uniform_(value, generator=Generator().manual_seed(5))
        return net
"""
VARIES = "import torch\nbuild = lambda: torch.nn.Linear(64, int(torch.randint(2, 99, ())))\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "mine.py"


def audited(**changed):
    settings = gradleak_config.load(entry(**changed)).audit["mine"].model_dump(mode="json")
    return audit("mine", settings, dataset=None, scale="smoke", device="cpu").audit


@pytest.mark.parametrize(
    ("fixed", "weights", "seeds"),
    [
        ([], "fresh, seed 0", "2 initializations of the weights"),
        ([1], "fresh, seed 0, but 2 of 4 parameters as the factory sets them", "of the weights"),
        ([1, 3], "weights that the factory sets", "2 starts of each search, weights as given"),
    ],
)
def test_weights_that_a_factory_sets_are_not_called_fresh(here, fixed, weights, seeds):
    here.write_text(textwrap.dedent(OWN))
    network = {"file": "mine.py", "factory": "build", "arguments": {"fixed": fixed}}
    found = audited(network=network, input=[1, 8, 8], count=1, seeds=2, batches=[1])
    assert found.network.weights == weights
    assert seeds in " ".join(found.verdict.rests_on)


@pytest.mark.parametrize(
    ("content", "changed", "words"),
    [
        (VARIES, {"input": [1, 8, 8]}, "other names or shapes at another seed"),
        (None, {"input": [1, 29, 29]}, "does not take an image of 1x29x29"),
        (None, {"classes": 7}, "classes: 7, but the network gives 10 scores"),
        (None, {"weights": "none.pth"}, "weights: none.pth does not exist"),
        (None, {"samples": {"folder": "none"}}, "samples: none is not a folder"),
        (None, {"loss": "hinge"}, "loss: hinge takes one output, but the network has 10"),
    ],
)
def test_what_does_not_fit_is_one_sentence(here, content, changed, words):
    here.write_text(content or textwrap.dedent(NETWORK))
    with refused(words, match="^audit[.]mine: ", kind=GradleakError):
        audited(**changed)
