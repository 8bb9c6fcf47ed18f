"""The training engine: data, schedules, checkpoints, what it refuses, and what it gives."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional

from conftest import PACKAGES
from gradleak.data.arrays import Dataset
from gradleak.errors import ArtifactError, ConfigError, DataError, NumericsError
from gradleak.models import files, resnet
from gradleak.models.activations import Activation
from gradleak.models.build import fast_layout, load, with_statistics
from gradleak.models.chain import Chain, ConvSpec, LinearSpec
from gradleak.models.initial import initial_weights
from gradleak.runtime.artifacts import read_tensors
from gradleak.training import learner, memory
from gradleak.training.data import Images, divide
from gradleak.training.engine import Trainer
from gradleak.training.recipe import Recipe, arithmetic
from gradleak.training.run import train_all

CPU = torch.device("cpu")
RELU = Activation("relu")
SMALL = Chain(
    "small",
    (3, 8, 8),
    (
        ConvSpec(8, (3, 3), padding=(1, 1), activation=RELU, norm="batch"),
        ConvSpec(8, (3, 3), padding=(1, 1), activation=RELU, skip=1, norm="batch", pool="global"),
        LinearSpec(3),
    ),
)
COUNTS = {"train": 60, "validation": 20, "test": 20}
PLAIN = {"crop": 0, "flip": False, "precision": "float32"}


def dataset(images=100, side=8, seed=0):
    """Three classes, each brightest in its own colour."""
    rng = np.random.default_rng(seed)
    labels = np.arange(images) % 3
    pixels = rng.integers(0, 120, (images, 3, side, side)).astype(np.uint8)
    pixels[np.arange(images), labels] += 100
    return Dataset(pixels, labels.astype(np.int64), ["r", "g", "b"], "mine", "train", "test")


def split(counts=COUNTS, **more):
    return divide(dataset(**more), dict(counts), seed=0, offset=-0.5, std=0.25, device=CPU)


def trainer(seed=0, chain=SMALL, parts=None, source=None, **recipe):
    settings = {"epochs": 6, "batch": 16, "checkpoint": 2, "rate": 0.05} | recipe
    return Trainer(
        chain, initial_weights(chain, seed), parts or split(), Recipe(**settings), seed, source
    )


def equal(one, other):
    assert one.keys() == other.keys()
    return all(np.array_equal(one[name], other[name]) for name in one)


def test_rates_of_the_schedules():
    step = Recipe(10, rate=1.0, schedule="step", milestones=(0.3, 0.8), factor=0.1)
    assert [step.rate_at(k, 100) for k in (0, 29, 30, 79, 80, 99)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01]
    )
    cosine = Recipe(10, rate=2.0, schedule="cosine")
    assert [cosine.rate_at(k, 100) for k in (0, 50, 100)] == pytest.approx([2.0, 1.0, 0.0])
    constant = Recipe(10, rate=2.0, schedule="constant", warmup=0.1)
    assert [constant.rate_at(k, 100) for k in (0, 4, 9, 70)] == pytest.approx([0.2, 1.0, 2.0, 2.0])


def test_images_are_shifted_and_mirrored_each_on_its_own():
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(1, 256, (400, 6, 5, 3)).astype(np.uint8))
    images = Images(pixels, torch.arange(400), offset=-0.5, std=0.5)
    generator = torch.Generator().manual_seed(3)
    seen = {}
    for inputs, labels in images.augmented(100, 2, True, generator):
        assert inputs.is_contiguous(memory_format=torch.channels_last)
        back = ((inputs * 0.5 + 0.5) * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
        for found, label in zip(back, labels, strict=True):
            seen[int(label)] = _move(pixels[label], found)
    assert len(seen) == 400, "each image once"
    moves = set(seen.values())
    assert None not in moves
    assert {move[:2] for move in moves} == {(y, x) for y in range(5) for x in range(5)}
    assert 120 < sum(move[2] for move in seen.values()) < 280


def _move(image, found):
    """Shift and mirroring that make `found` of `image`, None if there are none."""
    padded = functional.pad(image, (0, 0, 2, 2, 2, 2))
    for down in range(5):
        for across in range(5):
            crop = padded[down : down + 6, across : across + 5]
            for mirrored in (False, True):
                if torch.equal(crop.flip(1) if mirrored else crop, found):
                    return down, across, mirrored
    return None


def test_without_augmentation_images_are_as_they_are():
    parts = split()
    inputs = torch.cat([x for x, _ in parts.test.batches(7)])
    source = dataset().images / 255.0
    found = inputs.numpy() * 0.25 + 0.5
    distances = np.abs(source[None] - found[:, None]).max(axis=(2, 3, 4))
    assert (distances.min(axis=1) < 1e-6).all()
    assert parts.train.pixels.dtype == torch.uint8


def test_parts_share_no_image_and_shrink_alike():
    parts = split()
    assert parts.sizes == COUNTS
    everything = torch.cat([p.pixels for p in (parts.train, parts.validation, parts.test)])
    assert len(everything.flatten(1).unique(dim=0)) == 100
    small = split({"train": 600, "validation": 200, "test": 200})
    assert small.sizes == COUNTS
    with pytest.raises(DataError, match="mine-train has 100 images, too few for 1 of 2001 to test"):
        split({"train": 1000, "validation": 1000, "test": 1})


def test_engine_does_what_a_plain_loop_does():
    """Weights after three epochs against torch's own SGD, step schedule, in the same order."""
    recipe = {"epochs": 3, "schedule": "step", "milestones": (0.5,), "weight_decay": 1e-3, **PLAIN}
    ours = trainer(**recipe)
    found = ours.run().last
    module = load(SMALL, with_statistics(SMALL, initial_weights(SMALL, 0)), torch.float32).train()
    optimiser = torch.optim.SGD(
        module.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3
    )
    train = split().train
    for epoch in range(3):
        generator = torch.Generator().manual_seed(learner.seed_of(0, epoch))
        order = torch.randperm(60, generator=generator)
        for step in range(3):
            for group in optimiser.param_groups:
                group["lr"] = 0.05 if 3 * epoch + step < 4.5 else 0.005
            chosen = order[16 * step : 16 * step + 16]
            loss = functional.cross_entropy(
                module(train.inputs(train.pixels[chosen])), train.labels[chosen]
            )
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    for name, value in found.items():
        np.testing.assert_allclose(value, module.state_dict()[name], rtol=1e-4, atol=1e-6)


def test_same_seed_same_weights():
    one, same, other = (trainer(seed).run() for seed in (0, 0, 1))
    assert equal(one.weights, same.weights)
    assert one.rows == same.rows
    assert not equal(one.weights, other.weights)


def test_it_learns_and_the_best_epoch_is_chosen_on_validation():
    """The task is easy; accuracy is that of the chosen weights on images that chose nothing."""
    ours = trainer(epochs=12, precision="auto")
    found = ours.run()
    by_epoch = [row["validation_accuracy"] for row in found.rows]
    assert found.epoch == 1 + int(np.argmax(by_epoch))
    assert found.accuracy > 0.9
    ours._put(found.weights)
    assert ours.evaluate(ours.split.test)[1] == found.accuracy
    assert ours.evaluate(ours.split.validation)[1] == max(by_epoch)


def test_best_weights_are_kept_when_later_epochs_are_worse(monkeypatch):
    ours = trainer(epochs=4)
    scores = iter([(1.0, 0.5), (1.0, 0.9), (1.0, 0.9), (1.0, 0.2), (1.0, 0.7)])
    kept = []
    monkeypatch.setattr(ours, "evaluate", lambda images: next(scores))
    found = ours.run(on_epoch=lambda rows: kept.append(ours.weights()))
    assert (found.epoch, found.accuracy) == (2, 0.7)
    assert equal(found.weights, kept[1])
    assert equal(found.last, kept[3])


@pytest.mark.parametrize("stop", [1, 2, 3, 5])
def test_interrupted_training_ends_with_the_same_weights(tmp_path, stop):
    whole = trainer().run()
    path = tmp_path / "checkpoint.safetensors"

    def interrupt(rows):
        if len(rows) == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer().run(path, interrupt)
    assert path.exists() == (stop > 2)  # the interrupt comes before the checkpoint of its epoch
    curve = []
    again = trainer().run(path, curve.append)
    assert equal(whole.weights, again.weights)
    assert equal(whole.last, again.last)
    assert whole.rows == again.rows
    assert len(curve) == 6 - 2 * ((stop - 1) // 2)


KILLED = """
import sys, time
sys.path[:0] = {paths!r}
import test_training as t
torch = t.torch
torch.set_num_threads(1)
found = t.trainer(epochs=8).run(t.Path(sys.argv[1]), lambda rows: time.sleep(0.3))
"""


def test_killed_training_goes_on_at_its_checkpoint(tmp_path):
    """SIGKILL in the middle: nothing half-written, and the end is the same."""
    path = tmp_path / "checkpoint.safetensors"
    here = Path(__file__).parent
    code = KILLED.format(paths=[str(here), *PACKAGES])
    process = subprocess.Popen([sys.executable, "-c", code, str(path)])
    deadline = time.monotonic() + 120
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    epochs = read_tensors(path)[1]["epoch"]
    assert 2 <= epochs < 8
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert equal(trainer(epochs=8).run(path).weights, trainer(epochs=8).run().weights)
    finally:
        torch.set_num_threads(threads)


# oneDNN writes past its memory in the second convolution with channels last, if AVX2 is all it has.
NARROW = Chain(
    "narrow",
    (3, 16, 16),
    (
        ConvSpec(6, (3, 3), padding=(1, 1), activation=RELU),
        ConvSpec(8, (1, 1), stride=(2, 2), activation=RELU, pool="global"),
        LinearSpec(3),
    ),
)
TRAINED = """
import sys
sys.path[:0] = {paths!r}
import test_training as t
t.trainer(chain=t.NARROW, parts=t.split(side=16), **t.PLAIN).run()
"""


def test_networks_train_on_a_cpu_without_avx512():
    here = Path(__file__).parent
    code = TRAINED.format(paths=[str(here), *PACKAGES])
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert fast_layout(NARROW) == torch.contiguous_format
    assert fast_layout(SMALL) == torch.channels_last


def test_diverged_training_names_the_epoch_and_keeps_the_last_checkpoint(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    ours = trainer(**PLAIN)
    real, calls = ours._step, []

    def step(inputs, labels, rate):
        calls.append(rate)
        return real(inputs * (float("nan") if len(calls) > 3 * 4 else 1.0), labels, rate)

    ours._step = step
    with pytest.raises(NumericsError) as refused:
        ours.run(path)
    said = str(refused.value)
    assert "small: training diverged in epoch 5 (loss nan, on validation " in said
    assert f"the checkpoint of epoch 4 is kept in {path}" in said
    assert "lower rate: 0.05" in said
    tensors, metadata = read_tensors(path)
    assert metadata["epoch"] == 4
    assert all(np.isfinite(value).all() for value in tensors.values())


def test_a_rate_that_is_too_high_diverges():
    with pytest.raises(NumericsError, match=r"epoch \d .*no checkpoint had been written"):
        trainer(rate=1e30, checkpoint=100).run()


@pytest.mark.parametrize("name", ["conv1_norm.running_var", "conv1_norm.running_mean"])
def test_running_statistics_that_are_not_finite_count_as_diverged(name):
    ours = trainer(**PLAIN)
    real = ours.evaluate

    def evaluate(images):
        found = real(images)
        ours.module.get_buffer(name)[0] = float("inf")
        return found

    ours.evaluate = evaluate
    with pytest.raises(NumericsError, match="diverged in epoch 1"):
        ours.run()


def test_a_validation_loss_that_is_not_finite_counts_as_diverged(monkeypatch):
    ours = trainer(**PLAIN)
    monkeypatch.setattr(ours, "evaluate", lambda images: (float("nan"), 0.5))
    with pytest.raises(NumericsError, match=r"diverged in epoch 1 .*on validation nan"):
        ours.run()


def _checkpoint(path, **more):
    def interrupt(rows):
        if len(rows) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer(**more).run(path, interrupt)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"chain": Chain("other", SMALL.input, SMALL.specs)}, "another network (name: small, not"),
        (
            {"chain": Chain("small", SMALL.input, (*SMALL.specs[:1], LinearSpec(3)))},
            "another network (hash: ",
        ),
        ({"source": {"sha256": "cd"}}, "another data set (sha256: ab, not cd)"),
        ({"rate": 0.1}, "other settings (rate: 0.05, not 0.1)"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused_by_name(tmp_path, more, words):
    path = tmp_path / "checkpoint.safetensors"
    _checkpoint(path, source={"sha256": "ab"})
    before = path.read_bytes()
    with pytest.raises(ArtifactError) as refused:
        trainer(**({"source": {"sha256": "ab"}} | more)).run(path)
    assert f"The checkpoint {path} is of {words}" in str(refused.value)
    assert "delete it" in str(refused.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["short", "text", "json", "identity"])
def test_a_damaged_checkpoint_is_refused_by_name(tmp_path, damage):
    path = tmp_path / "checkpoint.safetensors"
    _checkpoint(path)
    whole = path.read_bytes()
    path.write_bytes(
        {
            "short": whole[: len(whole) // 2],
            "text": b"nothing",
            "json": whole.replace(b'\\"epoch\\"', b'\\"epocs\\"'),
            "identity": whole.replace(b'\\"recipe\\"', b'\\"recipx\\"'),
        }[damage]
    )
    assert path.read_bytes() != whole
    with pytest.raises(ArtifactError, match=rf"The checkpoint {path} is damaged .*delete it"):
        trainer().run(path)


def test_too_little_memory_names_the_batch_that_fits(monkeypatch):
    parts = split({"train": 96, "validation": 2, "test": 2})
    monkeypatch.setattr(memory, "free_bytes", lambda device: 400_000)
    with pytest.raises(ConfigError, match=r"small: batch: 64 does not fit .* \d+ would fit") as e:
        trainer(batch=64, parts=parts).run()
    named = int(str(e.value).split(" would fit")[0].split()[-1])
    assert 1 <= named < 64
    trainer(batch=named, parts=parts, epochs=1).run()
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1000)
    with pytest.raises(ConfigError, match="not even one image would fit"):
        trainer(batch=64, parts=parts).run()


def test_evaluation_takes_no_more_images_at_once_than_fit(monkeypatch):
    parts = split({"train": 50, "validation": 40, "test": 10})
    ours = trainer(parts=parts, batch=4, epochs=1)
    sizes, real = [], ours._forward

    def forward(inputs, labels):
        sizes.append(len(labels))
        return real(inputs, labels)

    weights = sum(value.nbytes for value in ours.module.parameters())
    monkeypatch.setattr(ours, "_forward", forward)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 200_000 + 3 * weights)
    ours.run()
    assert 4 <= max(sizes) < 40


def test_kept_bytes_are_those_of_the_activations():
    """Two layers of 8x8x8 floats, their normalised inputs and the images bound what is kept."""
    module = nn.Sequential(nn.Linear(100, 200), nn.Tanh(), nn.Linear(200, 1))
    inputs = torch.zeros(7, 100)
    kept = memory.bytes_kept(lambda: module(inputs).sum())
    weights = 4 * (100 * 200 + 200)
    assert 4 * 7 * (100 + 200) <= kept <= weights + 4 * 7 * (100 + 200 + 200 + 1)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("x"), RuntimeError("not enough memory")])
def test_memory_that_runs_out_on_the_way_is_said_too(monkeypatch, error):
    ours = trainer()

    def forward(inputs, labels):
        if ours.module.training:
            raise error
        return Trainer._forward(ours, inputs, labels)

    monkeypatch.setattr(ours, "_forward", forward)
    with pytest.raises(ConfigError, match=r"batch: 16 does not fit .*; try batch: 8, or free"):
        ours.run()


def test_arithmetic_is_mixed_only_where_it_is_computed(monkeypatch):
    assert arithmetic("mixed", CPU) == "mixed"
    assert arithmetic("float32", CPU) == "float32"
    for there in (False, True):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda there=there: there)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
        assert arithmetic("auto", CPU) == ("mixed" if there else "float32")


def test_mixed_precision_runs_in_bfloat16_and_keeps_float32_weights():
    ours = trainer(precision="mixed", epochs=1)
    kinds = []
    ours.module.conv2.register_forward_hook(lambda m, i, o: kinds.append(o.dtype))
    weights = ours.run().weights
    assert set(kinds) == {torch.bfloat16}
    assert {value.dtype for value in weights.values()} == {np.dtype(np.float32)}


SETTINGS = {
    **COUNTS,
    "seed": 0,
    "offset": -0.5,
    "std": 0.25,
    "size": None,
    "resize": "repeat",
    "epochs": 2,
    "batch": 16,
    "milestones": [0.5],
    "precision": "float32",
    "checkpoint": 1,
}


def _model_file(tmp_path, *chains, seeds=2):
    weights = {}
    for chain in chains:
        drawn = [initial_weights(chain, seed) for seed in range(seeds)]
        for name in drawn[0]:
            weights[f"{chain.name}/{name}"] = np.stack([one[name] for one in drawn])
    files.save(str(tmp_path / "model.safetensors"), list(chains), weights, {})
    return files.read(str(tmp_path / "model.safetensors"))


def _paths(tmp_path):
    return {
        "weights": str(tmp_path / "trained.safetensors"),
        "curve": str(tmp_path / "curve.csv"),
        "summary": str(tmp_path / "summary.csv"),
        "checkpoints": str(tmp_path / "checkpoints"),
    }


def test_every_network_and_seed_of_a_file_is_trained(tmp_path):
    narrow = Chain("narrow", SMALL.input, (*SMALL.specs[:1], LinearSpec(3)))
    models, paths = _model_file(tmp_path, SMALL, narrow), _paths(tmp_path)
    train_all(
        models,
        dataset(),
        SETTINGS,
        seeds=2,
        device="cpu",
        paths=paths,
        images="real",
        provenance={},
    )
    curve, summary = pd.read_csv(paths["curve"]), pd.read_csv(paths["summary"])
    assert len(curve) == 2 * 2 * 2
    assert list(zip(summary["model"], summary["seed"], strict=True)) == [
        ("small", 0),
        ("small", 1),
        ("narrow", 0),
        ("narrow", 1),
    ]
    assert (summary[["train", "validation", "test"]] == [60, 20, 20]).all(axis=None)
    assert (summary[["regime", "dropped"]] == ["central", 0]).all(axis=None)
    assert summary["client"].isna().all()
    assert curve["client"].isna().all()
    assert not Path(paths["checkpoints"]).exists()
    trained = files.read(paths["weights"])
    own = trained.of(SMALL, 1)
    assert own.keys() == with_statistics(SMALL, initial_weights(SMALL, 1)).keys()
    module = load(SMALL, own, torch.float32)
    test = split().test
    right = (module(test.inputs(test.pixels)).argmax(1) == test.labels).float().mean().item()
    assert right == pytest.approx(summary["test_accuracy"][1])
    assert json.dumps(read_tensors(paths["weights"])[1]["training"]).count("best_epoch") == 4


def test_the_curve_of_a_failed_training_is_kept_beside_its_checkpoints(tmp_path, monkeypatch):
    paths = _paths(tmp_path)
    options = {"seeds": 1, "device": "cpu", "paths": paths, "images": "real", "provenance": {}}
    real, calls = Trainer.evaluate, []

    def evaluate(self, images):
        calls.append(images)
        return (float("nan"), 0.5) if len(calls) == 2 else real(self, images)

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    with pytest.raises(NumericsError, match="diverged in epoch 2"):
        train_all(_model_file(tmp_path, SMALL), dataset(), SETTINGS, **options)
    kept = Path(paths["checkpoints"]) / "curve.csv"
    assert list(pd.read_csv(kept)["epoch"]) == [1]
    train_all(_model_file(tmp_path, SMALL), dataset(), SETTINGS, **options)
    assert not kept.parent.exists()
    assert list(pd.read_csv(paths["curve"])["epoch"]) == [1, 2]


@pytest.mark.parametrize(
    ("chain", "words"),
    [
        (Chain("two", SMALL.input, (*SMALL.specs[:-1], LinearSpec(2))), "two has 2 outputs, but m"),
        (Chain("big", (3, 9, 9), SMALL.specs), r"big takes images of \[3, 9, 9\], but mine has"),
    ],
)
def test_networks_that_the_images_do_not_fit_are_refused(tmp_path, chain, words):
    with pytest.raises(ConfigError, match=words):
        train_all(
            _model_file(tmp_path, chain),
            dataset(),
            SETTINGS,
            seeds=1,
            device="cpu",
            paths=_paths(tmp_path),
            images="real",
            provenance={},
        )


def test_a_residual_network_trains():
    chain = Chain("r", (3, 16, 16), resnet.specs("resnet18", 4, 3, cut=(3,)))
    parts = split({"train": 96, "validation": 32, "test": 32}, images=160, side=16)
    found = trainer(chain=chain, parts=parts, epochs=8, crop=2).run()
    assert found.rows[-1]["train_loss"] < 0.8 * found.rows[0]["train_loss"]
    assert any(name.endswith("_skip_norm.running_var") for name in found.weights)


def test_a_norm_of_a_single_value_is_refused():
    """A batch of one image whose features are 1x1: what leaves the norm would be 0."""
    deep = Chain("deep", (3, 8, 8), (ConvSpec(4, (8, 8), norm="batch"), LinearSpec(3)))
    with pytest.raises(ConfigError, match="the norm of conv1 has one value a channel in a batch"):
        trainer(chain=deep, batch=1).run()
    trainer(chain=deep, batch=2, epochs=1).run()
