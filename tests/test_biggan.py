"""BigGAN-deep: its network, the published file, and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from chains import chain, conv, view
from conftest import refused
from gradleak.attacks.optimization.ggl import Ggl
from gradleak.runtime.artifacts import read_tensors
from gradleak.training.generators import biggan, files, make
from gradleak.training.generators.biggan import DEEP_256, BigGan, Sizes

TINY = Sizes(
    ((False, 16, 16), (True, 16, 8), (False, 8, 8), (True, 8, 1)), attention=2, latent=5,
    embedding=3, width=4, classes=6, statistics=5, side=16,
)  # fmt: skip


def published(sizes):
    """State dict with the keys of the published file, of random weights."""
    rng, state = np.random.default_rng(0), {}
    with torch.device("meta"):
        shapes = {name: tuple(value.shape) for name, value in BigGan(sizes).state_dict().items()}
    for name, shape in shapes.items():
        if name.endswith(".running_vars"):
            state[name] = rng.uniform(0.5, 2.0, (sizes.statistics, *shape))
        elif name.endswith(".running_means"):
            state[name] = rng.normal(size=(sizes.statistics, *shape))
        elif name.startswith(("embeddings.", "generator.bn.")) or not name.endswith(".weight"):
            state[name] = rng.normal(size=shape)
        else:
            # Under spectral norm, as PyTorch stores it: with both vectors of the largest value.
            rows = rng.normal(size=(shape[0], int(np.prod(shape[1:]))))
            left, _, right = np.linalg.svd(rows, full_matrices=False)
            parts = {"orig": rows.reshape(shape), "u": left[:, 0].copy(), "v": right[0]}
            state |= {f"{name}_{part}": value for part, value in parts.items()}
    return {name: torch.from_numpy(value).float() for name, value in state.items()}


def weight(state, key):
    """W divided by its spectral norm as PyTorch estimates it."""
    rows = state[f"{key}.weight_orig"]
    sigma = torch.dot(state[f"{key}.weight_u"], rows.flatten(1) @ state[f"{key}.weight_v"])
    return rows / sigma


def plainly(state, sizes, z, labels, row):
    """Images in [0, 1], straight from the file's tensors, with one row of its statistics."""

    def convolved(x, key, padding=0, bias=True):
        shift = state[f"{key}.bias"] if bias else None
        return functional.conv2d(x, weight(state, key), shift, padding=padding)

    def standard(x, key):
        mean, variance = (state[f"{key}.running_{kind}"][row] for kind in ("means", "vars"))
        return (x - mean[:, None, None]) / torch.sqrt(variance + 1e-4)[:, None, None]

    def doubled(x):
        return x.repeat_interleave(2, 2).repeat_interleave(2, 3)

    steer = torch.cat([z, state["embeddings.weight"][:, labels].T], 1)
    x = steer @ weight(state, "generator.gen_z").T + state["generator.gen_z.bias"]
    x = x.view(len(z), 4, 4, 16 * sizes.width).permute(0, 3, 1, 2)
    place = 0
    for number, (grows, _, leaving) in enumerate(sizes.blocks):
        if number == sizes.attention:
            key, (batch, _, high, wide) = f"generator.layers.{place}", x.shape
            query, keys, values = (
                convolved(x, f"{key}.snconv1x1_{name}", bias=False)
                for name in ("theta", "phi", "g")
            )
            keys, values = (functional.max_pool2d(v, 2).flatten(2) for v in (keys, values))
            scores = torch.einsum("bcp,bcq->bpq", query.flatten(2), keys).softmax(-1)
            mixed = torch.einsum("bpq,bcq->bcp", scores, values).view(batch, -1, high, wide)
            x = x + state[f"{key}.gamma"] * convolved(mixed, f"{key}.snconv1x1_o_conv", bias=False)
            place += 1
        key, passed = f"generator.layers.{place}", x
        for k in range(4):
            x = standard(x, f"{key}.bn_{k}")
            scale, offset = (
                steer @ weight(state, f"{key}.bn_{k}.{kind}").T for kind in ("scale", "offset")
            )
            x = torch.relu(x * (1 + scale[..., None, None]) + offset[..., None, None])
            if k == 1 and grows:
                x = doubled(x)
            x = convolved(x, f"{key}.conv_{k}", padding=1 if k in (1, 2) else 0)
        passed = passed[:, : sizes.width * leaving]
        x = x + (doubled(passed) if grows else passed)
        place += 1
    x = standard(x, "generator.bn") * state["generator.bn.weight"][:, None, None]
    x = torch.relu(x + state["generator.bn.bias"][:, None, None])
    return (torch.tanh(convolved(x, "generator.conv_to_rgb", padding=1)[:, :3]) + 1) / 2


@pytest.fixture(scope="module")
def state():
    return published(TINY)


@pytest.fixture
def weights(state, tmp_path):
    path = tmp_path / "biggan.bin"
    torch.save(state, path)
    return str(path)


Z = torch.from_numpy(np.random.default_rng(1).normal(size=(4, TINY.latent))).float()
INPUTS = (Z, torch.arange(4) % TINY.classes)


def made(weights, tmp_path, size=16, **more):
    path = str(tmp_path / "generator.safetensors")
    settings = {"kind": "biggan", "weights": weights, "size": size, "truncation": 1.0, **more}
    make.convert_biggan(settings, path, {}, TINY)
    return path


def test_images_are_those_of_the_files_own_tensors(state, weights, tmp_path):
    generator = files.read(made(weights, tmp_path))
    assert (generator.latent, generator.classes, generator.shape) == (5, 6, (3, 16, 16))
    expected = plainly(state, TINY, *INPUTS, row=4)
    assert expected.std() > 0.025
    # PyTorch's first file format, which the published file has, and today's.
    old = tmp_path / "old.bin"
    torch.save(state, old, _use_new_zipfile_serialization=False)
    assert Path(made(str(old), tmp_path)).read_bytes() == Path(made(weights, tmp_path)).read_bytes()
    found = generator.images(*INPUTS)
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, generator.images(Z, INPUTS[1].roll(1)), atol=0.01)
    # Smaller images are means.
    small = files.read(made(weights, tmp_path, size=8)).images(*INPUTS)
    torch.testing.assert_close(small, found.unflatten(3, (8, 2)).unflatten(2, (8, 2)).mean((3, 5)))


def test_truncation_chooses_the_norms_statistics(state, weights, tmp_path):
    half = files.read(made(weights, tmp_path, truncation=0.5)).images(*INPUTS)
    torch.testing.assert_close(half, plainly(state, TINY, *INPUTS, row=2))
    between = biggan.convert(weights, TINY, 0.9)["generator.bn.running_means"]
    rows = state["generator.bn.running_means"].numpy()
    np.testing.assert_allclose(between, 0.4 * rows[3] + 0.6 * rows[4], rtol=1e-5)


def test_spectral_norm_is_pytorchs():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = torch.nn.utils.spectral_norm(torch.nn.Conv2d(3, 4, 3), n_power_iterations=5)
    layer(torch.zeros(1, 3, 5, 5))
    layer.eval()(torch.zeros(1, 3, 5, 5))
    torch.testing.assert_close(biggan._divided(layer.state_dict(), "weight"), layer.weight)


def test_deep_256_has_the_sizes_of_the_paper():
    with torch.device("meta"):
        module = BigGan(DEEP_256)
        image = module(torch.zeros(1, 128), torch.zeros(1, dtype=torch.long))
    assert image.shape == (1, 3, 256, 256)
    assert sum(value.numel() for value in module.parameters()) == 55_880_833


def test_ggl_searches_it(weights, tmp_path):
    path = made(weights, tmp_path)
    network = chain(conv(4, 3, 2, 1, activation="relu"), channels=3, side=16, classes=6)
    target = files.read(path).images(*INPUTS)[2].double().numpy() - 0.5
    (found,) = Ggl(generator="drawn", generator_file=path, generations=20, population=10).run_many(
        [view(network, target, 2)], [0]
    )
    assert found.images.shape == (1, 3, 16, 16)
    assert found.loss < found.trace[0]


def test_a_missing_file_is_named_with_where_to_get_it(tmp_path):
    with refused("none.bin is missing", biggan.PUBLISHED, "set generators: NAME: weights"):
        made("none.bin", tmp_path)


KEY, BIAS = "generator.layers.1.bn_2.running_vars", "generator.layers.4.conv_0.bias"
ENTRY = "generator.gen_z.weight"
OTHERS = [
    (lambda s: {KEY: s[KEY][:3]}, f"has {KEY} of [3, 16] where [16] is expected"),
    (lambda s: {KEY: s[KEY] * float("nan")}, "with NaN or infinity"),
    (lambda s: {BIAS: torch.zeros(2)}, f"has {BIAS} of [2] where [8]"),
    (lambda s: {"more": [1, 2]}, "holds something else"),
    (lambda s: {f"{ENTRY}_u": torch.zeros(3)}, f"has {ENTRY}_orig of [0] where [1024, 8]"),
]


def test_other_files_are_refused(state, weights, tmp_path):
    other = tmp_path / "other.bin"
    # The second is a pickle of nothing: an IndexError.
    for content in (b"not found", b"\x80\x02.", Path(weights).read_bytes()[:5000]):
        other.write_bytes(content)
        with refused("is not a file of weights alone"):
            made(str(other), tmp_path)
    for change, words in OTHERS:
        torch.save({**state, **change(state)}, other)
        with refused(words):
            made(str(other), tmp_path)
    torch.save({k: v for k, v in state.items() if k != "generator.layers.2.gamma"}, other)
    with refused("lacks generator.layers.2.gamma, so it is not a BigGAN"):
        made(str(other), tmp_path)
    with refused("so it is not a BigGAN-deep-256"):
        biggan.convert(weights, replace(TINY, width=8))
    found = read_tensors(made(weights, tmp_path))[1]
    assert found["kind"] == "biggan"
    assert Sizes.of(found["sizes"]) == TINY
