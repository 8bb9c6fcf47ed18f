"""`import gradleak`: functions for networks and gradients of one's own."""

import copy
import re

import numpy as np
import pytest
import torch
from torch import nn

import gradleak
from conftest import ROOT
from gradleak.errors import ConfigError, GradleakError, NotApplicable, NumericsError
from gradleak.library.attack_choice import ATTACKS
from gradleak.models.build import load
from gradleak.models.initial import draw_key, initial_weights
from gradleak.models.locks import is_private
from test_locked_attacks import lenet as locked

SHAPE = (3, 8, 8)
CLASSES = 5


def chain_of(activation=nn.LeakyReLU, bias=True, seed=0):
    """A small convolutional network all of whose layers have full rank."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 12, 4, 2, 2, bias=bias),
        activation(),
        nn.Conv2d(12, 24, 3, 1, 1, bias=bias),
        activation(),
        nn.Flatten(),
        nn.Linear(24 * 25, CLASSES, bias=bias),
    )


class Branched(nn.Module):
    """Two branches that are concatenated: no chain."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(3, 4, 3, 2, 1)
        self.last = nn.Linear(8 * 16, CLASSES)

    def forward(self, x):
        joined = torch.cat([self.left(x), self.right(x)], 1)
        return self.last(torch.tanh(joined).flatten(1))


class Depends(nn.Module):
    """A forward pass that no tracer follows, since it asks for a value."""

    def __init__(self):
        super().__init__()
        self.inner = chain_of()

    def forward(self, x):
        return self.inner(x if float(x.detach().sum()) > 0 else 2 * x)


@pytest.fixture
def images():
    return torch.rand(1, *SHAPE, generator=torch.Generator().manual_seed(1))


def caught(call, *words, kind=ConfigError):
    """The message of an error, one sentence that has all of the words."""
    with pytest.raises(kind) as error:
        call()
    text = str(error.value)
    assert all(word in text for word in words), text
    assert text.endswith((".", ")")) and "\n" not in text
    return text


def psnr(images, found):
    return gradleak.score(images, found)["psnr"].min()


def test_capture_is_the_gradient_of_the_mean_loss():
    model, labels = chain_of(nn.Tanh), torch.tensor([1, 4, 4])
    images = torch.rand(3, *SHAPE)
    nn.functional.cross_entropy(model(images), labels).backward()
    found = gradleak.capture(model, images, labels)
    assert list(found) == [name for name, _ in model.named_parameters()]
    for name, value in model.named_parameters():
        torch.testing.assert_close(found[name], value.grad)


def test_capture_leaves_the_network_and_random_numbers_alone():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(0.5))
    model = nn.Sequential(model, nn.Linear(4 * 36, CLASSES)).eval()
    state, before = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    one = gradleak.capture(model, np.random.default_rng(0).random((2, *SHAPE)), [0, 1], seed=3)
    other = gradleak.capture(model, np.random.default_rng(0).random((2, *SHAPE)), [0, 1], seed=3)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(torch.get_rng_state(), before) and not model.training
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert all(value.grad is None for value in model.parameters())


@pytest.mark.parametrize("form", ["names", "list", "arrays"])
def test_rgap_reads_a_plain_gradient(images, form):
    model = chain_of()
    nn.functional.cross_entropy(model(images), torch.tensor([2])).backward()
    shared = {name: value.grad for name, value in model.named_parameters()}
    given = {
        "names": shared,
        "list": list(shared.values()),
        "arrays": {name: value.numpy() for name, value in shared.items()},
    }[form]
    found = gradleak.invert(given, model, SHAPE)
    assert found.labels == (2,) and found.attack == "rgap" and found.failure == ""
    assert found.images.shape == (1, *SHAPE) and found.images.dtype == torch.float32
    # Rounding to float32, 6e-8, times the amplification of two layers.
    assert psnr(images, found) > 80 and found.distance < 1e-4


def test_a_float64_network_keeps_its_precision(images):
    model = chain_of(bias=False).double()
    shared = gradleak.capture(model, images.double(), [1])
    found = gradleak.invert(shared, model, SHAPE)
    assert found.images.dtype == torch.float64 and psnr(images.double(), found) > 200


@pytest.mark.parametrize(
    ("attack", "settings", "least"),
    [
        ("copa", {"iterations": 300}, 60),
        ("gauss_newton", {}, 80),
        ("dlg", {"iterations": 800}, 40),
        ("grnn", {"iterations": 2}, 3),
        ("inverting_gradients", {"iterations": 100}, 8),
    ],
)
def test_other_attacks(images, attack, settings, least):
    model = chain_of(nn.Tanh)
    shared = gradleak.capture(model, images, [2])
    found = gradleak.invert(shared, model, SHAPE, attack, labels=[2], **settings)
    assert found.attack == attack and found.images.shape == (1, *SHAPE)
    assert psnr(images, found) > least


def test_a_batch_under_a_search():
    model, images = chain_of(nn.Sigmoid), torch.rand(2, *SHAPE)
    shared = gradleak.capture(model, images, [0, 3])
    settings = {"labels": [0, 3], "iterations": 30}
    found = gradleak.invert(shared, model, SHAPE, "inverting_gradients", **settings)
    assert found.images.shape == (2, *SHAPE) and found.labels == (0, 3)
    assert 0.0 < found.distance < 1.0 and len(gradleak.score(images, found)) == 2


def test_mkor_reads_a_batch_under_poisoned_weights():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, 1, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(16 * 256, 64), nn.ReLU(), nn.Linear(64, CLASSES),
    )  # fmt: skip
    small = torch.rand(CLASSES, 1, 4, 4)
    images = nn.functional.interpolate(small, 16, mode="bilinear")
    before = copy.deepcopy(model.state_dict())
    sent, secret = gradleak.poison(model, (1, 16, 16))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not torch.equal(sent[0].weight, model[0].weight)
    shared = gradleak.capture(sent, images, range(CLASSES))
    found = gradleak.invert(shared, sent, (1, 16, 16), "mkor", batch=CLASSES, secret=secret)
    order = [found.labels.index(label) for label in range(CLASSES)]
    noise = torch.rand(CLASSES, 1, 16, 16)
    own = gradleak.score(images, found.images[order])["mse"].mean()
    assert own < 0.2 * gradleak.score(images, noise)["mse"].mean()
    caught(lambda: gradleak.invert(shared, sent, (1, 16, 16), "mkor", batch=CLASSES), "secret")
    caught(lambda: gradleak.invert(shared, sent, (1, 16, 16), secret=secret), "secret", "rgap")


def test_unlock_opens_the_lock_of_a_network_of_ours(images):
    chain = locked()
    model = load(chain, initial_weights(chain, 0) | draw_key(chain, 0, 0), torch.float32)
    shared = gradleak.capture(model, images, [1])
    known = {name: value for name, value in shared.items() if not is_private(name)}
    assert len(known) < len(shared)
    found = gradleak.invert(known, model, SHAPE, "unlock", labels=[1])
    assert psnr(images, found) > 30


def test_preprocessing_is_undone(images):
    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = chain_of()

        def forward(self, x):
            return self.inner((x - 0.5) / 0.25)

    model = Normalised()
    found = gradleak.invert(gradleak.capture(model, images, [0]), model, SHAPE)
    assert psnr(images, found) > 80


@pytest.mark.parametrize("network", [Branched, Depends])
def test_any_network_gets_a_search(images, network):
    model = network()
    shared = gradleak.capture(model, images, [2])
    settings = {"labels": [2], "iterations": 200}
    found = gradleak.invert(shared, model, SHAPE, "inverting_gradients", **settings)
    assert psnr(images, found) > 10
    text = caught(lambda: gradleak.invert(shared, model, SHAPE), "rgap", kind=NotApplicable)
    assert "inverting_gradients" in text


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.GELU(), "closed form"),
        (nn.Conv2d(12, 12, 3, 1, 1, groups=2), "groups"),
    ],
)
def test_unsupported_layers_are_named(images, layer, words):
    model = chain_of()
    model.insert(1, layer)
    shared = gradleak.capture(model, images, [2])
    text = caught(lambda: gradleak.invert(shared, model, SHAPE), "1", kind=NotApplicable)
    assert words in text and "inverting_gradients" in text


def test_rank_counts_layers():
    found = gradleak.rank(chain_of(bias=False), SHAPE)
    rows = found.layers.set_index("layer")
    assert rows.loc["0", "unknowns"] == 3 * 64 and rows.loc["0", "rank_u"] == 3 * 64
    assert rows.loc["0", "ra_i"] == 192 - 12 * 3 * 16 - 12 * 25
    assert found.c == 0.0 and found.ra_i == rows["ra_i"].max() and found.critical in rows.index


def test_rank_of_a_network_that_loses_the_image():
    torch.manual_seed(0)
    thin = nn.Sequential(nn.Conv2d(3, 1, 3, 2, 1), nn.Tanh(), nn.Flatten(), nn.Linear(16, CLASSES))
    found = gradleak.rank(thin, SHAPE)
    assert found.ra_i > 0 and found.critical == "0" and found.c < 0


def test_noise_and_clipping_change_a_gradient_as_they_say(images):
    model = chain_of()
    shared = gradleak.capture(model, images, [1])
    noisy = gradleak.defend(shared, model, level=0.1, seed=4)
    for name, value in shared.items():
        spread = (noisy[name] - value).std() / value.std()
        assert noisy[name].shape == value.shape and (
            len(value.flatten()) < 50 or 0.07 < spread < 0.13
        )
    clipped = gradleak.defend(shared, model, "clipping", norm=1e-3)
    norm = torch.sqrt(sum(value.square().sum() for value in clipped.values()))
    assert norm == pytest.approx(1e-3, rel=1e-5)


def test_soteria_prunes_columns_of_the_first_fully_connected_layer(images):
    model = chain_of()
    shared = gradleak.capture(model, images, [1])
    found = gradleak.defend(shared, model, "soteria", images=images, labels=[1], prune=0.25)
    columns = (found["5.weight"] == 0).all(0).float().mean()
    assert 0.2 < columns < 0.3
    assert all(torch.equal(found[n], shared[n]) for n in shared if n != "5.weight")
    caught(lambda: gradleak.defend(shared, model, "soteria"), "images, labels")


def test_score_matches_a_batch():
    images = torch.rand(3, *SHAPE)
    found = gradleak.score(images, images[[2, 0, 1]])
    assert found["reconstruction"].tolist() == [1, 2, 0] and (found["psnr"] == 300).all()
    assert found["ssim"].tolist() == pytest.approx([1.0] * 3)
    one = gradleak.score(images, images[:1])
    assert one["reconstruction"].tolist() == [0, 0, 0] and one["mse"][0] == 0.0
    caught(lambda: gradleak.score(images, images[:2]), "reconstructions")
    caught(lambda: gradleak.score(images, images * np.nan), "NaN")


def bad_gradients():
    """What is wrong with a gradient: how it is made from a true one, and the words of the error."""

    def without(shared, model):
        return {name: value for name, value in shared.items() if name != "2.bias"}

    def renamed(shared, model):
        return {f"module.{name}": value for name, value in shared.items()}

    def extra(shared, model):
        return shared | {"7.weight": torch.zeros(3)}

    def shaped(shared, model):
        return shared | {"2.weight": shared["2.weight"][:3]}

    def whole(shared, model):
        return shared | {"2.weight": torch.zeros_like(shared["2.weight"], dtype=torch.int64)}

    def none(shared, model):
        return shared | {"2.weight": None}

    return [
        (without, ["2.bias", "missing"]),
        (renamed, ["module.", "prefix"]),
        (extra, ["7.weight", "not a parameter"]),
        (shaped, ["2.weight", "3x12x3x3", "24x12x3x3"]),
        (whole, ["2.weight", "int64"]),
        (none, ["2.weight", "None"]),
        (lambda shared, model: list(shared.values())[:-1], ["5 tensors", "6 parameters"]),
        (lambda shared, model: model.state_dict(), ["equals", "weights"]),
        (lambda shared, model: "gradient", ["str"]),
    ]


@pytest.mark.parametrize(("change", "words"), bad_gradients())
def test_what_is_no_gradient_of_the_network_is_refused(images, change, words):
    model = chain_of()
    shared = gradleak.capture(model, images, [1])
    caught(lambda: gradleak.invert(change(shared, model), model, SHAPE), *words)


def test_gradients_without_a_number_are_refused(images):
    model = chain_of()
    shared = gradleak.capture(model, images, [1])
    zero = {name: torch.zeros_like(value) for name, value in shared.items()}
    caught(lambda: gradleak.invert(zero, model, SHAPE), "zero everywhere", kind=NumericsError)
    broken = shared | {"0.weight": shared["0.weight"] * torch.nan}
    caught(lambda: gradleak.invert(broken, model, SHAPE), "NaN", kind=GradleakError)


def test_a_state_dict_with_buffers_is_told_from_a_gradient():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, CLASSES)
    )
    caught(lambda: gradleak.invert(model.state_dict(), model, SHAPE), "running_mean", "state dict")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m, g, x: gradleak.invert(g, m, SHAPE, "dgl"), ["'dgl'", "did you mean 'dlg'"]),
        (lambda m, g, x: gradleak.invert(g, m, SHAPE, "dlg", steps=3), ["dlg", "'steps'"]),
        (lambda m, g, x: gradleak.invert(g, m, SHAPE, labels=[CLASSES]), ["5", "0 to 4"]),
        (lambda m, g, x: gradleak.invert(g, m, SHAPE, labels=[0, 1], batch=3), ["2 for 3"]),
        (lambda m, g, x: gradleak.invert(g, m, SHAPE, batch=0), ["batch", "0"]),
        (lambda m, g, x: gradleak.invert(g, m, (3, 8)), ["input_shape", "(3, 8)"]),
        (lambda m, g, x: gradleak.invert(g, m, (3, 20, 20)), ["3x20x20"]),
        (lambda m, g, x: gradleak.invert(g, m, SHAPE, low=1.0, high=0.0), ["low, high"]),
        (lambda m, g, x: gradleak.invert(g, m, SHAPE, mode="test"), ["mode", "'test'"]),
        (lambda m, g, x: gradleak.invert(g, m, SHAPE, loss="mse"), ["loss", "'mse'"]),
        (lambda m, g, x: gradleak.invert(g, m, SHAPE, loss="logistic"), ["one output"]),
        (lambda m, g, x: gradleak.invert(g, m, SHAPE, device="tpu"), ["device", "tpu"]),
        (lambda m, g, x: gradleak.capture(m, x[0], [1]), ["images", "(K, C, H, W)"]),
        (lambda m, g, x: gradleak.capture(m, (x * 255).byte(), [1]), ["bytes", "255"]),
        (lambda m, g, x: gradleak.capture(m, x, [1, 2]), ["2 for 1"]),
        (lambda m, g, x: gradleak.capture(m, x, [0.5]), ["labels", "0.5"]),
        (lambda m, g, x: gradleak.capture(m, x, [-1]), ["-1", "0 to 4"]),
        (lambda m, g, x: gradleak.capture(nn.Linear, x, [1]), ["class", "Linear"]),
        (lambda m, g, x: gradleak.defend(g, m, "nois"), ["'nois'"]),
        (lambda m, g, x: gradleak.defend(g, m, level=-1.0), ["level", "-1"]),
        (lambda m, g, x: gradleak.rank(m, SHAPE, loss="l2"), ["'l2'"]),
    ],
)
def test_bad_input_is_one_sentence(images, call, words):
    model = chain_of()
    shared = gradleak.capture(model, images, [1])
    caught(lambda: call(model, shared, images), *words)


def test_a_label_that_the_gradient_contradicts_is_refused(images):
    model = chain_of()
    shared = gradleak.capture(model, images, [1])
    call = lambda: gradleak.invert(shared, model, SHAPE, labels=[2])  # noqa: E731
    caught(call, "contradicts", kind=NumericsError)


def test_the_distance_tells_a_gradient_of_other_weights(images):
    shared = gradleak.capture(chain_of(seed=1), images, [1])
    found = gradleak.invert(shared, chain_of(seed=0), SHAPE)
    assert found.distance > 0.5


def test_the_page_runs_as_it_stands(capsys):
    page = (ROOT / "docs/library.md").read_text(encoding="utf-8")
    torch.manual_seed(0)
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        exec(block, names)
    printed = capsys.readouterr().out
    assert "psnr" in printed and "a sum over 4 images" in printed
    attacks = page.partition("## Attacks")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", attacks, re.MULTILINE)) == set(ATTACKS)


def test_help_shows_all_of_it():
    assert set(dir(gradleak)) >= {"capture", "invert", "rank", "defend", "score", "poison", "audit"}
    for name in gradleak.__all__:
        if name != "__version__":
            assert getattr(gradleak, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'attack'"):
        gradleak.attack  # noqa: B018
