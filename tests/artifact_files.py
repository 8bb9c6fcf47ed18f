"""One small file of each kind that a job reads, and how the job that reads it does."""

from dataclasses import asdict, is_dataclass

import numpy as np
import torch

from chains import chain, conv
from gradleak.attacks import reconstructions, runner
from gradleak.claims import Evidence
from gradleak.client import capture, client_keys
from gradleak.data import arrays, targets
from gradleak.models import files as models
from gradleak.models.activations import Activation
from gradleak.models.initial import family_weights
from gradleak.models.locks import Lock
from gradleak.plotting.reader import Stored
from gradleak.runtime.artifacts import write_rows, write_tensors
from gradleak.scoring.scores import COLUMNS, score
from gradleak.servers.base import create
from gradleak.servers.secret import Secrets
from gradleak.training.generators import conditional_vae
from gradleak.training.generators import files as generators
from gradleak_audit.report import files as audits
from gradleak_audit.report.files import Pictures

NET = chain(conv(4, 3), side=8, channels=1, classes=3, name="net")
LOCKED = chain(
    conv(2, 3, norm="batch", lock=Lock(3, Activation("relu"))), side=6, channels=1, name="locked"
)
SIZES = conditional_vae.Sizes((1, 8, 8), 3, latent=2, width=8)
TENSORS = "targets model client gradient reconstruction sent secret generator pictures dataset"
CASE = {
    "paper": "rgap", "result": "r", "attack": "rgap", "defence": "none", "images": "embedded",
    "targets": "t", "precision": "float64", "mode": "training", "training": "",
}  # fmt: skip
TASK = {"loss": "cross_entropy", "labels": "dataset"}


def target_set():
    """Two batches of one image of 8x8."""
    pixels = np.random.default_rng(0).integers(0, 256, (2, 1, 1, 8, 8), dtype=np.uint8)
    labels = np.array([[0], [2]])
    words = {0: "ant", 2: "cow"}
    return targets.TargetSet(pixels, labels, labels, -0.5, ("ant 0", "cow 2"), {"a": "b"}, words)


def make(folder):
    """Write all kinds; returns their paths by kind."""
    paths = {name: str(folder / f"{name}.safetensors") for name in TENSORS.split()}
    targets.save(paths["targets"], target_set(), {})
    models.save(paths["model"], [NET], family_weights([NET], 2), {})
    locked = models.ModelFile((LOCKED,), family_weights([LOCKED], 2))
    client_keys.create(paths["client"], 0, locked)
    how = {"seeds": 2, "precision": "float64", "granted": True, "device": "cpu"}
    tensors, facts = capture.capture_all(models.read(paths["model"]), target_set(), **how)
    write_tensors(paths["gradient"], tensors, facts)
    found = runner.attack_all(paths["model"], paths["gradient"], {"method": "rgap"})
    found.save(paths["reconstruction"], str(folder / "seconds.json"), {})
    fishing = {"method": "class_fishing", "target": 1, "bias": 10.0}
    create((paths["sent"], paths["secret"]), models.read(paths["model"]), fishing)
    with torch.random.fork_rng():
        state = {k: v.numpy() for k, v in conditional_vae.Decoder(SIZES).state_dict().items()}
    generators.save(paths["generator"], "conditional_vae", SIZES, state, {})
    pictures = Pictures(np.zeros((2, 1, 6, 6)), {"rgap": {1: np.ones((1, 6, 6))}})
    audits.save_pictures(paths["pictures"], pictures)
    images, words = np.zeros((3, 1, 28, 28), np.uint8), [str(digit) for digit in range(10)]
    data = arrays.Dataset(images, np.arange(3), words, "mnist", "test", "official")
    arrays.save(paths["dataset"], data)
    paths["scores"] = str(folder / "scores.csv")
    write_rows(paths["scores"], COLUMNS, scored(paths), check=True)
    return paths


def scored(paths):
    """Rows of the reconstructions."""
    originals, networks = targets.read(paths["targets"]), models.read(paths["model"])
    return score(paths["reconstruction"], originals, networks, CASE, TASK)


def attacked(paths):
    """What an attacker sees."""
    views = runner.Views(paths["model"], paths["gradient"])
    return [(asdict(view), *place) for view, *place in views]


# How jobs read a file of each kind, as far as what it holds is used.
READERS = {
    "targets": lambda paths: (targets.read(paths["targets"]), scored(paths)),
    "model": lambda paths: (models.read(paths["model"]), attacked(paths)),
    "client": lambda paths: [client_keys.read(paths["client"]).of(LOCKED, k) for k in (0, 1)],
    "gradient": attacked,
    "reconstruction": lambda paths: (reconstructions.read(paths["reconstruction"]), scored(paths)),
    "stored": lambda paths: (
        (stored := Stored(paths["reconstruction"])).runs,
        stored.images("net", 1, slice(0, 1)),
    ),
    "sent": lambda paths: models.read(paths["sent"]),
    "secret": lambda paths: [Secrets.read(paths["secret"]).of("net", seed) for seed in (0, 1)],
    "generator": lambda paths: dict(generators.read(paths["generator"]).state_dict()),
    "pictures": lambda paths: audits.read_pictures(paths["pictures"]),
    "dataset": lambda paths: arrays.load(paths["dataset"], "mnist", "test"),
    "scores": lambda paths: Evidence.read(scores=[paths["scores"]]).scores.to_dict("list"),
}
# Kinds by reader, where they are not of the same name.
KIND = {"stored": "reconstruction"}


def same(one, two):
    """Whether two results of a reader are equal."""
    if is_dataclass(one):
        one, two = vars(one), vars(two)
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, np.ndarray | torch.Tensor):
        return one.dtype == two.dtype and np.array_equal(one, two, equal_nan=True)
    return one == two or (one != one and two != two)
