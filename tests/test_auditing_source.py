"""Networks of one's own and their weights: what is taken, and the sentence where it is not."""

import os
import pickle
import random
import textwrap
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from audited import refused
from gradleak.errors import DataError, GradleakError
from gradleak_audit.attack.samples import from_folder
from gradleak_audit.read import source as reader
from gradleak_audit.read.model_checks import check_network
from gradleak_audit.read.source import from_file, from_torchvision, load_weights

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
    assert isinstance(from_file(file, "Net", {}, 0)[1], nn.Linear)
    assert from_torchvision("resnet18", {"num_classes": 5}, 0).fc.out_features == 5


def test_a_seed_draws_the_same_weights_and_leaves_the_generator_alone(file):
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


def test_a_name_that_torchvision_lacks_is_one_sentence():
    with refused("no classifier 'resnet19'", "resnet18"):
        from_torchvision("resnet19", {}, 0)


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


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda s: s.pop("1.bias"), ("it lacks 1.bias",)),
        (lambda s: s.update(more=torch.ones(1)), ("it has more",)),
        (lambda s: s.update({"a\nb": torch.ones(1)}), (r"it has 'a\nb'",)),
        (lambda s: s.update({"1.weight": torch.ones(3, 4)}), ("1.weight", "[3, 4]", "[2, 4]")),
        (lambda s: s.update({"1.weight": torch.full((2, 4), torch.nan)}), ("holds NaN",)),
    ],
)
def test_weights_of_another_network_are_one_sentence(tmp_path, change, parts):
    state = dict(net().state_dict())
    change(state)
    save_file(state, tmp_path / "w.safetensors")
    not_loaded(net(), tmp_path / "w.safetensors", "weights: ", *parts)


def test_files_that_hold_no_weights_are_one_sentence(tmp_path):
    (tmp_path / "w.safetensors").write_bytes(b"not tensors")
    torch.save([torch.ones(1)], tmp_path / "list.pth")
    torch.save({"epoch": 3}, tmp_path / "point.pth")
    for name, part in (
        ("w.safetensors", "cannot be read"),
        ("list.pth", "a list, not a state dict"),
        ("point.pth", "'epoch' is no tensor"),
        ("none.pth", "does not exist"),
        ("", "is a folder; give the file in it"),
    ):
        not_loaded(net(), tmp_path / name, part)


def quantised(value):
    return torch.quantize_per_tensor(value, 0.1, 0, torch.qint8)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda v: v.int(), ("torch.int32", "not floating point")),
        (lambda v: v.bool(), ("torch.bool", "not floating point")),
        (lambda v: v.to(torch.complex64) * 1j, ("torch.complex64", "not floating point")),
        (lambda v: v.to_sparse(), ("torch.float32", "sparse")),
        (lambda v: v.to("meta"), ("torch.float32", "meta")),
        (quantised, ("torch.qint8", "quantised")),
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floating_point_numbers_are_converted(tmp_path, dtype):
    source, found = normed(), normed()
    state = {k: v.to(dtype) if v.is_floating_point() else v for k, v in source.state_dict().items()}
    torch.save(state, tmp_path / "w.pth")
    load_weights(found, str(tmp_path / "w.pth"))
    assert torch.equal(found[0].weight, state["0.weight"].float())


def test_what_overflows_a_network_of_half_precision_is_refused(tmp_path):
    state = {key: value + 1e5 for key, value in net().state_dict().items()}
    torch.save(state, tmp_path / "w.pth")
    load_weights(net(), str(tmp_path / "w.pth"))
    not_loaded(net().half(), tmp_path / "w.pth", "1.weight", "float16")


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
    not_loaded(net(), tmp_path / "w.pth", "w.pth is no regular file")
    not_loaded(net(), "/dev/zero", "/dev/zero is no regular file")
    folder = tmp_path / "images"
    folder.mkdir()
    Image.new("RGB", (4, 4)).save(folder / "a.png")
    os.mkfifo(folder / "z.png")
    with refused("z.png is no regular file", kind=DataError):
        from_folder(str(folder), (3, 4, 4), 2)


@pytest.mark.parametrize("name", ['a"b', "a\nb", "class"])
def test_a_layer_with_a_name_that_cannot_be_written_is_one_sentence(name):
    network = nn.Sequential(nn.Sequential())
    network[0].add_module(name, nn.Linear(4, 2))
    with refused(repr(name), "rename"):
        check_network(network, "network")
