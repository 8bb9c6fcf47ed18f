"""Twelve networks: what their audits say, beside plain attacks in the same CPU time.

Each plain attack gets, for a gradient, the CPU time that all attacks of the audit took for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn
from torchvision import models

from benchmarks.plain_attacks import ATTACKS
from benchmarks.study import METRICS, Row, Runs
from gradleak.client.defences.base import noise_seed
from gradleak.reading.gradients import gradient, passing
from gradleak.runtime.progress import progress
from gradleak_audit.attack import samples
from gradleak_audit.attack.attack_suite import HONEST, Entry
from gradleak_audit.attack.mitigations import Variant
from gradleak_audit.attack.trials import Best, Judge
from gradleak_audit.result import GRADES, Audit, Case, StructurePart
from gradleak_audit.run import NetworkAudit, Origin, Settings

SIZE, CLASSES = (3, 32, 32), 10
# A plain attack is ahead if it shows something, by its mean SSIM, and more than an audit's attacks.
SHOWN, MARGIN = 0.2, 0.05


class Net(nn.Module):
    """A network whose forward pass is a function of its layers."""

    def __init__(self, run: Callable[[Net, torch.Tensor], torch.Tensor], **layers: nn.Module):
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of images."""
        return self.run(self, x)


def chain() -> nn.Module:
    """Two convolutions and a fully connected layer."""
    first = nn.Conv2d(3, 6, 4, 2), nn.Tanh(), nn.Conv2d(6, 9, 3, 2), nn.Tanh()
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(441, CLASSES))


def grouped_dilated() -> nn.Module:
    """Convolutions in groups and with dilation."""
    first = nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1, groups=4)
    second = nn.ReLU(), nn.Conv2d(16, 16, 3, padding=2, dilation=2), nn.ReLU()
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(16 * 16 * 16, CLASSES))


def two_branches() -> nn.Module:
    """A fine and a coarse convolution side by side."""

    def run(net: Any, x: torch.Tensor) -> torch.Tensor:
        both = torch.cat([torch.tanh(net.fine(x)), torch.tanh(net.coarse(x))], 1)
        scores: torch.Tensor = net.head(both.flatten(1))
        return scores

    fine, coarse = nn.Conv2d(3, 6, 3, 2, 1), nn.Conv2d(3, 6, 7, 2, 3)
    return Net(run, fine=fine, coarse=coarse, head=nn.Linear(12 * 16 * 16, CLASSES))


class Mixing(nn.Module):
    """A block of an MLP-Mixer: over tokens, then over channels (Tolstikhin et al. 2021)."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mixers = nn.ModuleList(
            nn.Sequential(nn.Linear(n, 2 * n), nn.GELU(), nn.Linear(2 * n, n))
            for n in (tokens, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens (K, T, C), mixed."""
        x = x + self.mixers[0](self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        mixed: torch.Tensor = x + self.mixers[1](self.norms[1](x))
        return mixed


def mlp_mixer() -> nn.Module:
    """Two blocks of an MLP-Mixer on patches of 4x4."""

    def run(net: Any, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = net.head(net.blocks(net.embed(x).flatten(2).transpose(1, 2)).mean(1))
        return scores

    embed, blocks = nn.Conv2d(3, 64, 4, 4), nn.Sequential(Mixing(64, 64), Mixing(64, 64))
    return Net(run, embed=embed, blocks=blocks, head=nn.Linear(64, CLASSES))


def small_vit() -> nn.Module:
    """A vision transformer of two layers on patches of 4x4.

    Its last layer is drawn: torchvision starts it at 0, and with it every other gradient.
    """
    sizes = {"image_size": 32, "patch_size": 4, "hidden_dim": 64, "mlp_dim": 128}
    model = models.VisionTransformer(num_layers=2, num_heads=4, num_classes=CLASSES, **sizes)
    nn.init.normal_(model.heads.get_submodule("head").get_parameter("weight"), std=0.02)
    return model


def lstm() -> nn.Module:
    """An LSTM that takes an image row by row."""

    def run(net: Any, x: torch.Tensor) -> torch.Tensor:
        _, (last, _) = net.rows(x.transpose(1, 2).flatten(2))
        scores: torch.Tensor = net.head(last[0])
        return scores

    return Net(run, rows=nn.LSTM(96, 128, batch_first=True), head=nn.Linear(128, CLASSES))


def value_dependent() -> nn.Module:
    """Dark and bright images take different ways, which torch.fx cannot trace."""

    def run(net: Any, x: torch.Tensor) -> torch.Tensor:
        way = net.dark if x.mean() < 0.5 else net.bright
        scores: torch.Tensor = net.head(torch.tanh(way(x)).flatten(1))
        return scores

    dark, bright = nn.Conv2d(3, 8, 5, 2), nn.Conv2d(3, 8, 5, 2)
    return Net(run, dark=dark, bright=bright, head=nn.Linear(8 * 14 * 14, CLASSES))


def dropout_norms() -> nn.Module:
    """Convolutions with batch and group norm, and dropout in the middle."""
    first = nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.2)
    second = nn.Conv2d(16, 32, 3, 2, 1), nn.GroupNorm(4, 32), nn.ReLU()
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(32 * 64, CLASSES))


def lenet() -> nn.Module:
    """LeNet-5 with ReLU and max pools."""
    first = nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    third = nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, CLASSES)
    return nn.Sequential(*first, *second, *third)


def _torchvision(name: str) -> Callable[[], nn.Module]:
    return partial(models.get_model, name, weights=None, num_classes=CLASSES)


NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    "chain": chain,
    "grouped_dilated": grouped_dilated,
    "two_branches": two_branches,
    "mlp_mixer": mlp_mixer,
    "small_vit": small_vit,
    "lstm": lstm,
    "resnet18": _torchvision("resnet18"),
    "mobilenet_v3_small": _torchvision("mobilenet_v3_small"),
    "efficientnet_b0": _torchvision("efficientnet_b0"),
    "value_dependent": value_dependent,
    "dropout_norms": dropout_norms,
    "lenet": lenet,
}


class Unchanged(NetworkAudit):
    """An audit of the network as it is: mitigations are not tried."""

    seconds = 0.0  # CPU time of the attacks

    def _variants(self, found: StructurePart) -> list[Variant]:
        return super()._variants(found)[:1]

    def _cases(
        self, chosen: Sequence[Variant], entries: Collection[Entry]
    ) -> tuple[list[Case], Best]:
        begin = time.process_time()
        try:
            return super()._cases(chosen, entries)
        finally:
            self.seconds = time.process_time() - begin


def compare(path: Path, scale: str, count: int, chosen: Sequence[str] = ()) -> pd.DataFrame:
    """Audit each network, attack `count` of its gradients plainly, and keep its row as it is done.

    Columns: ``network``; ``grade`` of the page; ``attack``, the audit's with the highest mean SSIM,
    and its mean ``psnr`` (dB) and ``ssim``; the same of ``dlg`` and ``inverting``, plain, with the
    best grade that an audit would give them, or ``_why`` they fail; ``ahead``, the plain attacks
    with a better grade, or an SSIM above 0.2 that is better by 0.05; ``cpu`` seconds for a
    gradient.
    """
    whys = [f"{name}_{told}" for name in ATTACKS for told in ("grade", "why")]
    scores = [f"{name}{metric}" for name in ("", *(f"{n}_" for n in ATTACKS)) for metric in METRICS]
    runs = Runs(path, ["network"], ("grade", "attack", *whys, "ahead"), (*scores, "cpu"))
    for name in progress(chosen or [*NETWORKS], "networks"):
        runs.attempt({"network": name}, partial(_compared, NETWORKS[name], scale, count))
    return pd.DataFrame(runs.rows)


def _compared(build: Callable[[], nn.Module], scale: str, count: int) -> Row:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = build()
        settings = Settings(scale=scale, count=count, seeds=1, batches=(1,))
        origin = Origin("network", "benchmarks/audited_networks.py", "fresh")
        audit = Unchanged(module, SIZE, samples.from_embedded, settings, origin)
        found = told(audit.run(timed=False).audit)
        each = audit.seconds / count
        for name in ATTACKS:
            found |= _plain(name, audit, each)
    least = max(SHOWN, (found["ssim"] or 0.0) + MARGIN)
    known = GRADES.index(found["grade"])
    ahead = [
        name
        for name in ATTACKS
        if found[f"{name}_ssim"] > least or GRADES.index(found[f"{name}_grade"]) > known
    ]
    return found | {"ahead": " ".join(ahead), "cpu": round(each, 2)}


def told(audit: Audit) -> Row:
    """Grade of the page, and an honest server's attack with the highest mean SSIM."""
    honest = {part.id for part in audit.attacks if part.chapter == HONEST}
    tried = [case for case in audit.cases if case.ssim is not None and case.attack in honest]
    best = max(tried, key=lambda case: case.ssim.mean if case.ssim else 0.0, default=None)
    row: Row = {"grade": audit.verdict.grade, "attack": "", "psnr": None, "ssim": None}
    if best is not None and best.psnr and best.ssim:
        row |= {"attack": best.attack, "psnr": best.psnr.mean, "ssim": best.ssim.mean}
    return row


def _plain(name: str, audit: Unchanged, seconds: float) -> Row:
    module, task, scores = audit.module, audit.task, []
    judge, numbers = Judge(audit.bench.pool()), audit.bench.targets(1).indices
    for number in range(audit.bench.count):
        images, labels = audit.bench.batch(1, number)
        # The dropout that the audit's client drew.
        torch.manual_seed(noise_seed(0, number))
        shared = gradient(module, images, labels, task.loss, task.mode)
        given = [torch.from_numpy(value) for value in shared.values()], torch.from_numpy(labels)
        try:
            # Without dropout, whose mask no attacker knows.
            with passing(module, "evaluation"):
                for part in module.modules():
                    if isinstance(part, nn.BatchNorm2d):
                        part.train(task.mode == "training")
                found = ATTACKS[name](module, *given, SIZE, seconds)
        except RuntimeError as error:
            none = {f"{name}_{metric}": np.nan for metric in METRICS}
            return none | {f"{name}_grade": GRADES[0], f"{name}_why": str(error)}
        pixels = found.clamp(0.0, 1.0).double().numpy()
        scores.append(judge.score(pixels, numbers[number]))
    means = {f"{name}_{m}": float(np.mean([getattr(s, m) for s in scores])) for m in METRICS}
    best = max((score.grade for score in scores), key=GRADES.index)
    return means | {f"{name}_grade": best, f"{name}_why": ""}
