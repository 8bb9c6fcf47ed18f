"""Small networks, data and training runs: alone, and of clients together."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import is_dataclass, replace
from pathlib import Path

import numpy as np
import torch

from conftest import PACKAGES
from gradleak.data.arrays import Dataset
from gradleak.models import files
from gradleak.models.activations import Activation
from gradleak.models.build import load
from gradleak.models.chain import Chain, ConvSpec, LinearSpec
from gradleak.models.initial import draw_key, family_weights, initial_weights
from gradleak.models.locks import Lock, private
from gradleak.training.clients import Federated
from gradleak.training.clients import split as split_between
from gradleak.training.data import divide
from gradleak.training.engine import Trainer
from gradleak.training.federated import Federation
from gradleak.training.recipe import Recipe

CPU = torch.device("cpu")
RELU = Activation("relu")
NORMED = ConvSpec(8, (3, 3), padding=(1, 1), activation=RELU, norm="batch")
SMALL = Chain("small", (3, 8, 8), (NORMED, replace(NORMED, skip=1, pool="global"), LinearSpec(3)))
COUNTS = {"train": 60, "validation": 20, "test": 20}
PLAIN = {"crop": 0, "flip": False, "precision": "float32"}
SETTINGS = {
    **COUNTS, "seed": 0, "offset": -0.5, "std": 0.25, "size": None, "resize": "repeat", "epochs": 2,
    "batch": 16, "milestones": [0.5], "precision": "float32", "checkpoint": 1,
}  # fmt: skip


def with_lock(key=64, name="locked"):
    first = replace(SMALL.specs[0], lock=Lock(key, RELU))
    return Chain(name, SMALL.input, (first, *SMALL.specs[1:]))


LOCKED = with_lock()
# With the projection of a skip locked too.
_SECOND = replace(SMALL.specs[1], filters=6, projection=True, skip_lock=Lock(16, RELU))
SKIPPED = Chain("skipped", SMALL.input, (LOCKED.specs[0], _SECOND, *SMALL.specs[2:]))


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
    weights, parts = initial_weights(chain, seed), parts or split()
    return Trainer(chain, weights, parts, Recipe(**settings), seed, source)


def federation(chain=SMALL, parts=None, seed=0, recipe=None, changed=None, **federated):
    """Three clients, four rounds; `changed` replaces what clients keep."""
    settings = Federated(**({"clients": 3} | federated))
    parts, weights = parts or split(), initial_weights(chain, seed)
    own = [private(weights) | draw_key(chain, c, seed) for c in range(settings.clients)]
    own = changed(own) if changed else own
    images = [parts.train.part(p) for p in split_between(parts.train.labels.numpy(), settings, 0)]
    options = {"epochs": 4, "batch": 8, "rate": 0.05, "checkpoint": 2} | (recipe or {})
    more = (settings, Recipe(**options), seed, {"sha256": "ab"})
    return Federation(chain, weights, own, images, parts, *more)


def same(one, two):
    """Whether two results are equal in every bit."""
    if is_dataclass(one):
        one, two = vars(one), vars(two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(two) and all(map(same, one, two))
    return np.array_equal(one, two)


def accuracy(chain, weights, images):
    module = load(chain, weights, torch.float32)
    with torch.no_grad():
        right = module(images.inputs(images.pixels)).argmax(1) == images.labels
    return right.float().mean().item()


def model_file(folder, *chains, seeds=2):
    path = str(folder / "model.safetensors")
    files.save(path, list(chains), family_weights(chains, seeds), {})
    return files.read(path)


def paths_in(folder):
    names = {"weights": "t.safetensors", "curve": "t.curve.csv", "summary": "t.csv"}
    names |= {"checkpoints": "t.checkpoints", "clients": "t.clients"}
    return {key: str(folder / name) for key, name in names.items()}


def run_code(code, *arguments, **environment):
    """Start a process that runs `code` with this module as ``t``."""
    places = [str(Path(__file__).parent), *PACKAGES]
    code = f"import sys\nsys.path[:0] = {places!r}\nimport training_cases as t\n{code}"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], env=os.environ | environment
    )


def killed(run, path):
    """Run `run` of a training until it has written its checkpoint `path`; SIGKILL."""
    threads = f"t.torch.set_num_threads({torch.get_num_threads()})"
    slow = f"{run}.run(t.Path(sys.argv[1]), lambda rows: t.time.sleep(0.3))"
    process = run_code(f"{threads}\n{slow}", path)
    deadline = time.monotonic() + 120
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
