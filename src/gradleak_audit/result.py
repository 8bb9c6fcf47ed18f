"""JSON format of an audit's findings, read by the page and by continuous integration."""

from __future__ import annotations

import json
from math import inf
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from gradleak.attacks.threat_models import Letter
from gradleak.reading.layer_rows import Part, StructurePart, doc

VERSION: Final = 3
# Id of the unchanged network among the changes.
NONE = "none"
# Scale whose attacks are too short to be evidence.
QUICK = "smoke"
Chapter = Literal["honest server", "malicious server"]
Grade = Literal["not shown", "partly", "read"]
# Lowest first.
GRADES: tuple[Grade, ...] = ("not shown", "partly", "read")
Effect = Literal["", "helps", "worse", "no difference shown", "inconclusive", "too few pairs"]
ChangeKind = Literal["none", "noise", "clip", "soteria", "lock", "cut", "fewer", "strided", "batch"]


class Network(Part):
    """The network under audit."""

    source: str = doc("Where the network comes from, in words.")
    kind: str = doc("Name of its class.")
    input: tuple[int, int, int] = doc("(C, H, W) of one image.")
    classes: int = doc("Outputs for one image.")
    parameters: int = doc("All its parameters.")
    multiply_adds: int = doc("Of one image, in convolutions and fully connected layers.")
    weights: str = doc("Where the weights come from, in words.")


class Setting(Part):
    """Experimental setting: images and their source, seeds, batch sizes, loss, mode, scale."""

    loss: str = doc("The loss whose gradient is shared.")
    mode: Literal["training", "evaluation"] = doc("How norms and dropout run in the client's pass.")
    images: str = doc("Where the images under attack come from, in words.")
    count: int = doc("How many gradients were attacked for each seed and batch size.")
    gallery: int = doc("Other images; a match is more like its own image than like any of them.")
    seeds: int = doc("Initializations, or random starts of searches where weights are given.")
    batches: tuple[int, ...] = doc("Batch sizes that were tried.")
    scale: str = doc("Amounts of the attacks: a scale of config.yaml.")


class AttackPart(Part):
    """An attack, and the reason if it does not apply to the unchanged network."""

    id: str = doc("Its name in `cases` and `changes`.")
    title: str = doc("Its name in words.")
    chapter: Chapter = doc("What the server does: sends honest weights, or weights made to leak.")
    threat: Letter = doc("Threat model, a letter of Carletti et al. (2025).")
    settings: str = doc("Its settings in one line.")
    reason: str = doc("Why it does not apply to the unchanged network; empty where it does.")


class Run(Part):
    """One reconstruction from one gradient: its images, seed and quality."""

    image: int = doc("Number, from 0, of the batch's first image; of each in MKOR's chapter.")
    seed: int = doc("Number of the seed, from 0.")
    status: Literal["ok", "failed", "not_applicable"] = doc("Whether there is a reconstruction.")
    reason: str = doc("Why there is none.")
    psnr: float | None = doc("Best over the batch's images, dB; null without one.")
    ssim: float | None = doc("Likewise; null without one, or for images below 7x7.")
    smoothed: float | None = doc("SSIM after smoothing; null where that is null, or unmatched.")
    matched: bool = doc("Whether it correlates with an image of its batch more than with others.")
    grade: Grade = doc("How much of an image of the batch it shows.")

    @property
    def seen(self) -> float | None:
        """SSIM that the grade rests on: as it is or smoothed, whichever is larger."""
        known = [value for value in (self.ssim, self.smoothed) if value is not None]
        return max(known, default=None)

    @property
    def rank(self) -> tuple[int, float, float]:
        """Sort key, larger for closer reconstructions: by grade, then by SSIM and PSNR."""
        return rank(self.grade, self.ssim, self.psnr)


def rank(grade: Grade, ssim: float | None, psnr: float | None) -> tuple[int, float, float]:
    """Sort key of reconstructions; the closest has the largest."""
    known = -1.0 if ssim is None else ssim, -inf if psnr is None else psnr
    return GRADES.index(grade), *known


class Spread(Part):
    """Mean, minimum and maximum over successful runs."""

    mean: float = doc("Mean.")
    low: float = doc("Least.")
    high: float = doc("Most.")


class Case(Part):
    """All runs of one attack under one change; failed runs count as not shown."""

    change: str = doc("Id of the change; that of kind `none` is the network as it is.")
    attack: str = doc("Id of the attack.")
    batch: int = doc("Images that share a gradient.")
    attempted: int = doc("Runs, failed ones too; 0 where the attack does not apply.")
    ok: int = doc("Runs that gave a reconstruction.")
    read: int = doc("Runs of grade read.")
    partly: int = doc("Runs of grade partly.")
    matched: int = doc("Runs whose reconstruction is matched.")
    psnr: Spread | None = doc("PSNR of the runs that are ok, dB; null where none is.")
    ssim: Spread | None = doc("SSIM of the runs that are ok; null where none has one.")
    runs: tuple[Run, ...] = doc("Every run.")


class Price(Part):
    """Costs of a change relative to the unchanged network."""

    parameters: float = doc("Ratio to those of the unchanged network.")
    multiply_adds: float = doc("Ratio to those of the unchanged network.")
    seconds: float | None = doc("Ratio of times of a client's step, which vary; null if not taken.")
    accuracy: float | None = doc("Test accuracy after a short training; null if there was none.")
    baseline: float | None = doc("The same of the unchanged network.")
    note: str = doc("What the prices leave out, and why.")


class Change(Part):
    """A defence or architectural change, and its effect."""

    id: str = doc("Its name in `cases` and `ranking`.")
    title: str = doc("Its name in words.")
    kind: ChangeKind = doc("`none` is the network as it is.")
    reason: str = doc("Why it was not tried; empty where it was.")
    leak: float | None = doc("Share of gradients read, in part or in full; null if unknown.")
    read: int = doc("Gradients of which an honest server read an image, by any attack and seed.")
    partly: int = doc("Gradients of which it read an image in part at most.")
    gradients: int = doc("Gradients under attack; 0 if not tried.")
    matched: int | None = Field(
        None, description="Gradients that the attack which matches most matched; null if unknown."
    )
    ssim: float | None = doc("Highest mean SSIM of an honest server's attack; null without any.")
    attack: str = doc("Id of the attack that read most gradients; empty if not tried.")
    effect: Effect = doc("What it did to the leak; empty if not tried, or for no change.")
    p: float | None = doc("Probability of such a difference by chance, of sign tests.")
    note: str = doc("What it did to the gradient, where that is not plain from its title.")
    price: Price | None = doc("What it costs; null where that is not known.")


class Worst(Part):
    """The reconstruction closest to its original, on the unchanged network by an honest server."""

    attack: str = doc("Id of the attack.")
    image: int = doc("Number of the image, from 0.")
    seed: int = doc("Number of the seed, from 0.")
    psnr: float = doc("Of the reconstruction, dB.")
    ssim: float | None = doc("Of the reconstruction; null for images below 7x7.")


class Verdict(Part):
    """The verdict in words, its basis and its limits."""

    grade: Grade = doc("Best grade of a gradient; partly, too, where matches are beyond chance.")
    matched: int = doc("Gradients that the likeliest attack matched; 0 unless beyond chance.")
    sentence: str = doc("The result for a person outside the field, on honest servers.")
    advice: str = doc("Which change helped most, and at what price.")
    malicious: str = doc("The same on a server that sends weights of its own.")
    rests_on: tuple[str, ...] = doc("What was tried, and on how much.")
    limits: tuple[str, ...] = doc("What the verdict does not say.")
    worst: Worst | None = doc("The reconstruction closest to its original; null without any.")
    ranking: tuple[str, ...] = doc("Ids of changes that were shown to help, the best first.")


class Audit(Part):
    """All findings of an audit."""

    version: Literal[3] = doc("Of this format.")
    name: str = doc("Name of the entry of `audit:` in config.yaml.")
    network: Network = doc("What was audited.")
    setting: Setting = doc("What it was tried on.")
    structure: StructurePart = doc("What the structure tells, layer by layer.")
    attacks: tuple[AttackPart, ...] = doc("All attacks, those that do not apply too.")
    cases: tuple[Case, ...] = doc("What the attacks found.")
    changes: tuple[Change, ...] = doc("The network as it is, and all changes, tried or not.")
    verdict: Verdict = doc("The result in words.")

    @model_validator(mode="after")
    def _ids_are_known(self) -> Audit:
        """Check that every id is defined, so that readers need not handle gaps."""
        worst = self.verdict.worst
        attacks = [case.attack for case in self.cases] + ([worst.attack] if worst else [])
        attacks += [change.attack for change in self.changes if change.attack]
        changes = [*(case.change for case in self.cases), *self.verdict.ranking]
        for kind, known, used in (
            ("attack", {attack.id for attack in self.attacks}, attacks),
            ("change", {change.id for change in self.changes}, changes),
            ("layer", {x.layer for x in self.structure.layers} | {""}, [self.structure.critical]),
        ):
            for name in used:
                if name not in known:
                    raise ValueError(f"{kind} {name!r} is named, but not listed")
        return self


def schema() -> dict[str, Any]:
    """JSON schema of an audit's findings; written by `python -m gradleak_audit.result`."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | Audit.model_json_schema()


if __name__ == "__main__":
    print(json.dumps(schema(), indent=2, ensure_ascii=False))
