"""Networks of one's own: what is taken, and the sentence where it is not."""

import textwrap

import pytest
import torch
from torch import nn

from audited import refused
from gradleak_audit.read.source import from_file, from_torchvision

GOOD = """
    import torch
    from torch import nn
    import beside

    def build(width=4):
        return nn.Sequential(nn.Flatten(), nn.Linear(beside.SIDE, width))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            return self.fc(x.flatten(1))

    def number():
        return 3

    def broken():
        raise ValueError("no width")

    def leaves():
        raise SystemExit(3)

    def stopped():
        raise KeyboardInterrupt

    def lazy():
        return nn.Sequential(nn.LazyLinear(3))

    def one_of():
        return Net

    constant = 1
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "beside.py").write_text("SIDE = 4\n")
    path = tmp_path / "mine.py"
    path.write_text(textwrap.dedent(GOOD))
    return str(path)


def test_a_function_a_class_and_torchvision_give_networks(file):
    assert from_file(file, "build", {"width": 7}, 0)[1].out_features == 7
    assert isinstance(from_file(file, "Net", {}, 0).fc, nn.Linear)
    assert from_torchvision("resnet18", {"num_classes": 5}, 0).fc.out_features == 5


def test_a_seed_draws_the_same_weights_and_leaves_the_generator_alone(file):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, again, other = (from_file(file, "Net", {}, seed).fc.weight for seed in (0, 0, 1))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize(
    ("factory", "arguments", "parts"),
    [
        ("missing", {}, ("has no factory 'missing'",)),
        ("buidl", {}, ("near to it: build",)),
        ("constant", {}, ("has no factory 'constant'",)),
        ("number", {}, ("what the factory 'number' of ", "is of type int, not a torch.nn.Module")),
        ("lazy", {}, ("0.weight of Sequential has no shape yet", "pass an image")),
        ("one_of", {}, ("is the class Net, not a network of it; give Net(…)",)),
        ("broken", {}, ("the factory 'broken' of", "fails with ValueError (line", "no width")),
        ("leaves", {}, ("fails with SystemExit (line", "ends Python with sys.exit")),
        ("build", {"depth": 3}, ("fails with TypeError", "depth", "arguments:")),
    ],
)
def test_a_factory_that_gives_no_network_is_one_sentence(file, factory, arguments, parts):
    with refused("network: ", *parts):
        from_file(file, factory, arguments, 0)


def test_a_person_can_stop_a_factory(file):
    with pytest.raises(KeyboardInterrupt):
        from_file(file, "stopped", {}, 0)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("import sys\nsys.exit(4)\n", "line 2: it ends Python with sys.exit"),
        ("import nothing_like_it\n", "line 1: No module named 'nothing_like_it'"),
        ("x = 1\ndef build(:\n", "line 2: invalid syntax"),
        ("\n\nraise RuntimeError('boom')\n", "line 3: boom"),
    ],
)
def test_a_file_that_does_not_import_is_one_sentence(tmp_path, content, part):
    path = tmp_path / "bad.py"
    path.write_text(content)
    with refused("cannot be imported", part):
        from_file(str(path), "build", {}, 0)
    with refused("does not exist"):
        from_file(str(tmp_path / "none.py"), "build", {}, 0)


def test_a_name_that_torchvision_lacks_is_one_sentence():
    with refused("no classifier 'resnet19'", "resnet18"):
        from_torchvision("resnet19", {}, 0)
