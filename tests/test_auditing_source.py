"""Networks of one's own and their weights: what is taken, and the sentence where it is not."""

import os
import pickle
import random
import sys
import textwrap
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import parametrizations, prune

import audited
import gradleak
from audited import Net, refused
from gradleak.errors import DataError, GradleakError, NotApplicable
from gradleak.reading.conversion import convert
from gradleak.reading.fx_graph import read
from gradleak.reading.gradients import check_training, deltas, gradient
from gradleak.reading.model_checks import FROZEN, HALF, check_network, own_copy
from gradleak_audit import source as reader
from gradleak_audit.attack.samples import from_folder
from gradleak_audit.source import from_file, from_torchvision, load_weights

SIZE = (1, 6, 6)
# Damages of a file of each format: of 2,400 random ones, 42 once escaped as other errors.
DAMAGES = 400
GOOD = """
    import torch
    from torch import nn
    import beside
    def build(width=4):
        return nn.Sequential(nn.Flatten(), nn.Linear(beside.SIDE, width))
    class Net(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Flatten(), nn.Linear(4, 2))
    def number():
        return 3
    def broken():
        raise ValueError("no width")
    def leaves():
        raise SystemExit(3)
    def stopped():
        raise KeyboardInterrupt
    constant = 1
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "beside.py").write_text("SIDE = 4\n")
    (tmp_path / "mine.py").write_text(textwrap.dedent(GOOD))
    return str(tmp_path / "mine.py")


def test_networks_are_made_by_a_seed_which_leaves_the_generator_alone(file):
    assert from_file(file, "build", {"width": 7}, 0)[1].out_features == 7
    assert from_torchvision("resnet18", {"num_classes": 5}, 0).fc.out_features == 5
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, again, other = (from_file(file, "Net", {}, seed)[1].weight for seed in (0, 0, 1))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize(
    ("factory", "arguments", "parts"),
    [
        ("missing", {}, ("has no factory 'missing'",)),
        ("buidl", {}, ("near to it: build",)),
        ("constant", {}, ("has no factory 'constant'",)),
        ("number", {}, ("what the factory 'number' of ", "is of type int, not a torch.nn.Module")),
        ("broken", {}, ("the factory 'broken' of", "fails with ValueError (line", "no width")),
        ("leaves", {}, ("fails with SystemExit (line", "ends Python with sys.exit")),
        ("build", {"depth": 3}, ("fails with TypeError", "depth", "arguments:")),
    ],
)
def test_a_factory_that_gives_no_network_is_one_sentence(file, factory, arguments, parts):
    with refused("network: ", *parts):
        from_file(file, factory, arguments, 0)


def test_a_person_can_stop_a_factory_and_torchvision_lacks_some_names(file, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        from_file(file, "stopped", {}, 0)
    with refused("no classifier 'resnet19'", "resnet18"):
        from_torchvision("resnet19", {}, 0)
    monkeypatch.setitem(sys.modules, "torchvision", None)  # or a build for another PyTorch
    with refused("torchvision cannot be imported", "install its build for PyTorch"):
        from_torchvision("resnet18", {}, 0)


def test_a_file_that_does_not_import_is_one_sentence(tmp_path):
    with refused("does not exist"):
        from_file(str(tmp_path / "bad.py"), "build", {}, 0)
    for name, content, part in (
        ("a.py", "import sys\nsys.exit(4)\n", "line 2: it ends Python with sys.exit"),
        ("b.py", "import nothing_like_it\n", "line 1: No module named 'nothing_like_it'"),
        ("c.py", "x = 1\ndef build(:\n", "line 2: invalid syntax"),
        ("d.py", "\n\nraise RuntimeError('boom')\n", "line 3: boom"),
    ):
        (tmp_path / name).write_text(content)
        with refused("cannot be imported", part):
            from_file(str(tmp_path / name), "build", {}, 0)


def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 2))


def normed():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))


def not_loaded(network, path, *parts):
    with refused(*parts):
        load_weights(network, str(path))


def test_weights_of_both_formats_are_taken(tmp_path):
    source = net()
    for save, name in ((save_file, "w.safetensors"), (torch.save, "w.pth")):
        save(source.state_dict(), tmp_path / name)
        load_weights(found := net(), str(tmp_path / name))
        assert torch.equal(found[1].weight, source[1].weight)


class Evil:
    def __reduce__(self):
        return (open, ("ran", "w"))


def test_a_pickle_is_refused_and_its_code_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.pth").write_bytes(pickle.dumps(Evil()))
    torch.save(Evil(), tmp_path / "torch.pth")
    torch.save(net(), tmp_path / "module.pth")
    for name in ("plain.pth", "torch.pth", "module.pth"):
        not_loaded(net(), name, name, "not loaded", "state_dict()")
    assert not (tmp_path / "ran").exists()


def test_weights_of_another_network_and_files_without_any_are_one_sentence(tmp_path):
    for more, *parts in (
        ({"1.bias": None}, "it lacks 1.bias"),
        ({"more": torch.ones(1)}, "it has more"),
        ({"a\nb": torch.ones(1)}, r"it has 'a\nb'"),
        ({"1.weight": torch.ones(3, 4)}, "1.weight", "[3, 4]", "[2, 4]"),
        ({"1.weight": torch.full((2, 4), torch.nan)}, "holds NaN"),
    ):
        state = {k: v for k, v in (net().state_dict() | more).items() if v is not None}
        save_file(state, tmp_path / "w.safetensors")
        not_loaded(net(), tmp_path / "w.safetensors", "weights: ", *parts)
    (tmp_path / "w.safetensors").write_bytes(b"not tensors")
    torch.save([torch.ones(1)], tmp_path / "list.pth")
    torch.save({"epoch": 3}, tmp_path / "point.pth")
    for name, part in (
        ("w.safetensors", "cannot be read"),
        ("list.pth", "a list, not a state dict"),
        ("point.pth", "'epoch' is not a tensor"),
        ("none.pth", "does not exist"),
        ("", "is a folder; give the file in it"),
    ):
        not_loaded(net(), tmp_path / name, part)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda v: v.int(), ("torch.int32", "not floating point")),
        (lambda v: v.bool(), ("torch.bool", "not floating point")),
        (lambda v: v.to(torch.complex64) * 1j, ("torch.complex64", "not floating point")),
        (lambda v: v.to_sparse(), ("torch.float32", "sparse")),
        (lambda v: v.to("meta"), ("torch.float32", "meta")),
        (lambda v: torch.quantize_per_tensor(v, 0.1, 0, torch.qint8), ("torch.qint8", "quantised")),
        (lambda v: v.double() + 1e300, ("torch.float64", "float32")),
        (lambda v: v.double() - torch.inf, ("torch.float64", "NaN or infinity")),
    ],
)
def test_numbers_that_a_network_cannot_hold_are_refused(tmp_path, change, parts):
    network = net()
    before = {key: value.clone() for key, value in network.state_dict().items()}
    path = tmp_path / "w.pth"
    torch.save({**before, "1.weight": change(before["1.weight"])}, path)
    not_loaded(network, path, f"1.weight of {path}", *parts)
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())


def test_other_floating_point_numbers_are_converted_unless_they_overflow(tmp_path):
    path = tmp_path / "w.pth"
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        found, state = normed(), normed().to(dtype).state_dict()
        torch.save(state, path)
        load_weights(found, str(path))
        assert torch.equal(found[0].weight, state["0.weight"].float())
    torch.save({key: value + 1e5 for key, value in net().state_dict().items()}, path)
    load_weights(net(), str(path))
    not_loaded(net().half(), path, "1.weight", "float16")


def test_integer_buffers_take_whole_numbers(tmp_path):
    path = tmp_path / "w.pth"
    for value, taken in ((7, True), (np.int32(7), True), (7.0, True), (7.5, False), (7j, False)):
        network, count = normed(), torch.tensor(value)
        torch.save({**normed().state_dict(), "1.num_batches_tracked": count}, path)
        if taken:
            load_weights(network, str(path))
            assert network[1].num_batches_tracked.item() == 7
        else:
            not_loaded(network, path, "1.num_batches_tracked", str(count.dtype), "torch.int64")


def damaged(content, draw):
    found = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        place, length = draw.randrange(len(found)), draw.choice((1, 1, 1, 2, 8, 60))
        old = found[place : place + length]
        flipped = bytes([old[0] ^ 1 << draw.randrange(8)]) + old[1:]
        kinds = flipped, draw.randbytes(length), b"", old + old
        found[place : place + length] = draw.choice(kinds)
    return bytes(found[: draw.randrange(len(found))] if draw.random() < 0.1 else found)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_a_damaged_file_is_one_sentence(tmp_path, zipped):
    path, draw, network, refusals = tmp_path / "w.pth", random.Random(5), normed(), 0
    torch.save(normed().state_dict(), path, _use_new_zipfile_serialization=zipped)
    content = path.read_bytes()
    for _ in range(DAMAGES):
        path.write_bytes(damaged(content, draw))
        try:
            load_weights(network, str(path))
        except GradleakError as error:
            refusals += 1
            assert "\n" not in str(error) and str(error).endswith("."), str(error)
    assert refusals > DAMAGES / 2


def test_an_inflated_archive_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "SLACK", 2**12)
    monkeypatch.setattr(torch, "load", lambda *a, **k: pytest.fail("it was loaded"))
    bomb = tmp_path / "bomb.pth"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("w/data.pkl", bytes(2**20))
    assert bomb.stat().st_size < 2**12
    not_loaded(net(), bomb, str(bomb), "1,048,576 bytes", "40 bytes")
    for name in ("legacy.pth", "w.safetensors"):
        (tmp_path / name).write_bytes(bytes(2**13))
        not_loaded(net(), tmp_path / name, "8,192 bytes")


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "w.pth")
    not_loaded(net(), tmp_path / "w.pth", "w.pth is not a regular file")
    not_loaded(net(), "/dev/zero", "/dev/zero is not a regular file")
    (tmp_path / "images").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "images" / "a.png")
    os.mkfifo(tmp_path / "images" / "z.png")
    with refused("z.png is not a regular file", kind=DataError):
        from_folder(str(tmp_path / "images"), (3, 4, 4), 2)


def conv_net(conv=None):
    return nn.Sequential(conv or nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("build", "part"),
    [
        (lambda: nn.Linear, "network is the class Linear, not a network of it; give Linear(…)"),
        (lambda: 3, "network is of type int, not a torch.nn.Module"),
        (
            lambda: nn.Sequential(torch.jit.script(net())),
            "0 of Sequential is a ScriptModule, which",
        ),
        (lambda: torch.compile(net()), "is compiled, which hides its layers; give the network as"),
        (
            lambda: nn.Sequential(nn.LazyLinear(3)),
            "0.weight of Sequential has no shape yet, since its",
        ),
        (lambda: conv_net(nn.utils.weight_norm(nn.Conv2d(1, 2, 3))), "cannot be copied"),
        (
            lambda: conv_net(prune.l1_unstructured(nn.Conv2d(1, 2, 3), "weight", 0.5)),
            "prune.remove",
        ),
    ],
)
def test_what_cannot_be_audited_is_one_sentence(build, part):
    with refused(part):
        own_copy(build())


def test_half_precision_is_taken_in_single_doubles_stay_and_frozen_parameters_are_told():
    for dtype in (torch.float16, torch.bfloat16):
        module = conv_net().to(dtype)
        found, notes = own_copy(module)
        assert notes == [HALF] and next(module.parameters()).dtype == dtype
        assert {value.dtype for value in found.parameters()} == {torch.float32}
        convert(read(found, SIZE), found, "net")
    module = conv_net().double().requires_grad_(False)
    found, notes = own_copy(module)
    assert notes == [FROZEN] and next(found.parameters()).dtype == torch.float64
    assert all(value.requires_grad for value in found.parameters())
    assert not any(value.requires_grad for value in module.parameters())
    assert own_copy(net())[1] == []


@pytest.mark.parametrize("norm", [parametrizations.weight_norm, nn.utils.spectral_norm])
def test_a_weight_that_is_computed_is_unreadable(norm):
    found, _ = own_copy(conv_net(norm(nn.Conv2d(1, 2, 3))))
    reading = read(found, SIZE)
    with refused(match="^0 computes its weight from other parameters", kind=NotApplicable):
        convert(reading, found, "net")
    assert gradient(found, np.ones((1, *SIZE)), np.array([0]), "cross_entropy", "training")
    names = [layer.name for layer in reading.layers if layer.is_linear]
    assert names == ["3"]
    assert deltas(found, np.ones(SIZE), 0, "cross_entropy", "training", names)["3"].any()


def trained(given):
    def run(net, x):
        scores = net.fc(x.flatten(1))
        return given(scores) if net.training else scores

    return Net(run, fc=nn.Linear(36, 3))


@pytest.mark.parametrize(
    ("given", "part"),
    [
        (lambda z: (z, z), r"Net gives tuple in training mode, but 2 rows of 3 class scores"),
        (lambda z: z[:, :2], r"gives \[2, 2\] in training mode"),
        (lambda z: z @ z, r"takes no images of 1x6x6 in training mode \(.*\); take mode: eval"),
    ],
)
def test_a_network_that_gives_something_else_in_training_is_refused_there(given, part):
    module = trained(given).eval()
    with refused(match=part):
        check_training(module, SIZE, 3)
    assert not module.training
    with refused(match=part):
        gradleak.audit(module, SIZE, scale="smoke")
    check_training(trained(nn.Identity()), SIZE, 3)


@pytest.mark.parametrize("name", ['a"b', "a\nb", "class"])
def test_a_layer_with_a_name_that_cannot_be_written_is_one_sentence(name):
    network = nn.Sequential(nn.Sequential())
    network[0].add_module(name, nn.Linear(4, 2))
    with refused(repr(name), "rename"):
        check_network(network, "network")


def test_a_network_that_cannot_be_traced_is_audited_by_derivatives():
    """On the side of its branch that the images take."""
    found = gradleak.audit(audited.branching(), (3, 2, 2), scale="smoke")
    assert {case.attack for case in found.result.cases} == {"dlg", "inverting_gradients"}
    structure = found.result.structure
    assert (structure.layers, structure.index, structure.critical) == ((), None, "")
    assert any("cannot be read as a graph" in found.reason for found in structure.obstacles)
    assert found.result.network.multiply_adds == 24


@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.MaxPool2d(3), nn.BatchNorm2d(4)])
def test_dlg_stands_in_where_gauss_newton_does_not_linearise(pool):
    layers = nn.Conv2d(3, 4, 3, padding=1), pool, nn.Sigmoid(), nn.Flatten(), nn.LazyLinear(10)
    model = nn.Sequential(*layers)
    model(torch.zeros(2, 3, 6, 6))
    found = gradleak.audit(model, (3, 6, 6), scale="smoke", mode="evaluation")
    attacks = {case.attack for case in found.result.cases}
    assert {"dlg", "inverting_gradients"} <= attacks and "gauss_newton" not in attacks
    images = torch.rand(1, 3, 6, 6)
    shared = gradleak.capture(model, images, [1], mode="evaluation")
    given = {"mode": "evaluation", "iterations": 3}
    inverted = gradleak.invert(shared, model, (3, 6, 6), "gauss_newton", **given)
    assert inverted.distance < 1
