"""What an audit found, as JSON holds it: the one thing that the page and a build read."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

VERSION = 1
Chapter = Literal["honest server", "malicious server"]
Grade = Literal["leaks", "partly", "not shown"]
Effect = Literal["", "helps", "worse", "no difference shown", "inconclusive"]


class Part(BaseModel):
    """A part of the result: closed and frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Network(Part):
    """The network under audit."""

    source: str
    """Where the network comes from, in words."""
    kind: str
    """Name of its class."""
    input: tuple[int, int, int]
    """(C, H, W) of one image."""
    classes: int
    """Outputs for one image."""
    parameters: int
    """All its parameters."""
    multiply_adds: int
    """Multiplications with additions of one image's forward pass through readable layers."""
    weights: str
    """Where the weights come from, in words."""


class Setting(Part):
    """What it was tried on: images and their source, draws, batch sizes, loss, mode, scale."""

    loss: str
    """The loss whose gradient is shared."""
    mode: Literal["training", "evaluation"]
    """How norms and dropout run when the gradient is taken."""
    images: str
    """Where the images under attack come from, in words."""
    count: int
    """How many gradients were attacked for each draw and batch size."""
    gallery: int
    """Other images, among which an answer's own must be the nearest to count as matched."""
    seeds: int
    """Draws of weights, or of the search where weights are given."""
    batches: tuple[int, ...]
    """Batch sizes that were tried."""
    scale: str
    """Amounts of the attacks: a scale of config.yaml."""


class LayerRow(Part):
    """A layer of the table; fields as of `gradleak.auditing.structure.LayerStructure`."""

    layer: str
    """Path of its module, or the name that torch.fx gave the step."""
    kind: str
    """Sort of step, as of `gradleak.auditing.reading.Layer`."""
    detail: str
    """The step as PyTorch prints it."""
    input: tuple[int, ...]
    """Shape of its input for one image."""
    output: tuple[int, ...]
    """Shape of its output for one image."""
    parameters: int
    """All parameters of the layer."""
    unknowns: int | None
    """|x| with what is carried past the layer; null where nothing is counted."""
    own_unknowns: int | None
    """|x| of the layer alone: columns of U."""
    weights: int | None
    """|W|: numbers in its weight."""
    outputs: int | None
    """|z| with what is carried on behind it."""
    carried: int | None
    """How many of `unknowns` are carried past the layer."""
    virtual: int | None
    """|V|: constraints that earlier layers leave over."""
    index: int | None
    """RA-i = |x| − |W| − |z| − |V|."""
    rank: int | None
    """rank U, or a bound of it."""
    rank_kind: str
    """How the rank is known: exact, measured, at most; empty where there is none."""
    free: int | None
    """Unknowns that U leaves free, at least: own_unknowns − rank."""
    condition: float | None
    """Largest over smallest non-zero singular value of U; null where it was not computed."""
    critical: bool
    """Whether its RA-i is the network's."""
    readable: bool
    """Whether a linear system describes it, or none is needed."""
    note: str
    """What the row leaves out; of an unreadable layer why it is one."""


class StructurePart(Part):
    """Counts and ranks; fields as of `gradleak.auditing.structure.Structure`."""

    layers: tuple[LayerRow, ...]
    """Layers with parameters, and all that are unreadable, in the order in which they run."""
    index: int | None
    """RA-i of the network, the largest of its layers'; null without a readable layer."""
    critical: str
    """Layer of that RA-i; empty without one."""
    security: float | None
    """c(M) of COPA, at most 0; null where it is not defined."""
    security_kind: str
    """The least sure of its ranks: exact, measured, at most; empty where it is not defined."""
    security_note: str
    """Why c(M) is not defined."""
    chain: str
    """Why the network is no chain that closed forms could walk; empty where it is one."""


class AttackPart(Part):
    """An attack, and why it does not apply to the unchanged network if it does not."""

    id: str
    """Its name in `cases` and `changes`."""
    title: str
    """Its name in words."""
    chapter: Chapter
    """What the server does: sends honest weights, or weights made to leak."""
    settings: str
    """Its settings in one line."""
    reason: str
    """Why it does not apply to the unchanged network; empty where it does."""


class Run(Part):
    """One answer to one gradient: which images share it, the draw, and how near it came."""

    image: int
    """Number of the first image of the batch, from 0; under a malicious server of each image."""
    seed: int
    """Number of the draw, from 0."""
    status: Literal["ok", "failed", "not_applicable"]
    """Whether there is an answer."""
    reason: str
    """Why there is none."""
    psnr: float | None
    """Best over the batch's images, dB; null without an answer."""
    ssim: float | None
    """Best over the batch's images; null without an answer, or for images below 7x7."""
    matched: bool
    """Whether the answer is nearer to an image of its batch than to any other."""
    readable: bool
    """Whether it passes the threshold."""


class Spread(Part):
    """Mean, and least and most, of the runs that are ok."""

    mean: float
    """Mean."""
    low: float
    """Least."""
    high: float
    """Most."""


class Case(Part):
    """All runs of one attack under one change; failed runs count as not readable."""

    change: str
    """Id of the change; that of kind `none` is the network as it is."""
    attack: str
    """Id of the attack."""
    batch: int
    """Images that share a gradient."""
    attempted: int
    """Runs, failed ones too; 0 where the attack does not apply under the change."""
    ok: int
    """Runs that gave an answer."""
    readable: int
    """Runs whose answer is readable."""
    matched: int
    """Runs whose answer is matched."""
    psnr: Spread | None
    """PSNR of the runs that are ok, dB; null where none is."""
    ssim: Spread | None
    """SSIM of the runs that are ok; null where none has one."""
    runs: tuple[Run, ...]
    """Every run."""


class Price(Part):
    """What a change costs, against the unchanged network."""

    parameters: float
    """Ratio to those of the unchanged network."""
    multiply_adds: float
    """Ratio to those of the unchanged network."""
    seconds: float | None
    """Time of a client's gradient step, a ratio too; null where it was not taken. It varies."""
    accuracy: float | None
    """Test accuracy after a short training, a share; null where no data set was given."""
    baseline: float | None
    """The same of the unchanged network."""
    note: str
    """What the prices leave out, and why."""


class Change(Part):
    """A defence or a change of architecture, and what it did."""

    id: str
    """Its name in `cases` and `ranking`."""
    title: str
    """Its name in words."""
    kind: Literal["none", "noise", "clip", "soteria", "lock", "cut", "fewer", "strided", "batch"]
    """Sort of change; `none` is the network as it is."""
    reason: str
    """Why it was not tried; empty where it was."""
    leak: float | None
    """Share of gradients of which an honest server's attack read a picture; null if not known."""
    read: int
    """Gradients of which any attack read a picture in any draw."""
    gradients: int
    """Gradients under attack; 0 if not tried."""
    ssim: float | None
    """Highest mean SSIM over honest-server attacks; null where no run is ok."""
    attack: str
    """Id of the attack that read most gradients; empty if not tried."""
    effect: Effect
    """What it did to the leak; empty for the network as it is, and where it was not tried."""
    p: float | None
    """Probability of such a difference by chance, of sign tests; null where there is none."""
    note: str
    """What it did to the gradient, where that is not plain from its title."""
    price: Price | None
    """What it costs; null where that is not known."""


class Worst(Part):
    """The answer nearest to its original, of the unchanged network under an honest server."""

    attack: str
    """Id of the attack."""
    image: int
    """Number of the image, from 0."""
    seed: int
    """Number of the draw, from 0."""
    psnr: float
    """Of the answer, dB."""
    ssim: float | None
    """Of the answer; null for images below 7x7, which SSIM has no window for."""


class Verdict(Part):
    """The answer in words, what it rests on, and its limits."""

    grade: Grade
    """leaks, partly (matched more often than chance, none readable) or not shown."""
    sentence: str
    """The answer for a person who knows nothing of the field, on honest servers."""
    advice: str
    """Which change helped most, and at what price."""
    malicious: str
    """The same on a server that sends weights of its own."""
    rests_on: tuple[str, ...]
    """What was tried, and on how much."""
    limits: tuple[str, ...]
    """What the answer does not say."""
    worst: Worst | None
    """The answer nearest to its original; null where there is none."""
    ranking: tuple[str, ...]
    """Ids of the changes that were shown to help, the most helpful first."""


class Audit(Part):
    """All of an audit."""

    version: Literal[1]
    """Of this format."""
    name: str
    """Name of the entry of `audit:` in config.yaml."""
    network: Network
    """What was audited."""
    setting: Setting
    """What it was tried on."""
    structure: StructurePart
    """What the structure tells, layer by layer."""
    attacks: tuple[AttackPart, ...]
    """All attacks, those that do not apply too."""
    cases: tuple[Case, ...]
    """What the attacks found."""
    changes: tuple[Change, ...]
    """The network as it is, and all changes, those not tried too."""
    verdict: Verdict
    """The answer in words."""

    @model_validator(mode="after")
    def _ids_are_known(self) -> Audit:
        """Every id leads to its part: what reads a result need not look for gaps."""
        attacks = {attack.id for attack in self.attacks}
        changes = {change.id for change in self.changes}
        layers = {layer.layer for layer in self.structure.layers}
        worst = self.verdict.worst
        named = (
            ("attack", attacks, [case.attack for case in self.cases]),
            ("attack", attacks, [change.attack for change in self.changes if change.attack]),
            ("attack", attacks, [worst.attack] if worst else []),
            ("change", changes, [case.change for case in self.cases]),
            ("change", changes, self.verdict.ranking),
            ("layer", layers, [self.structure.critical] if self.structure.critical else []),
        )
        for kind, known, used in named:
            for name in used:
                if name not in known:
                    raise ValueError(f"{kind} {name!r} is named, but not listed")
        return self


def schema() -> dict[str, Any]:
    """JSON schema of an audit's findings; `python -m gradleak.auditing.result` writes it."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | Audit.model_json_schema()


if __name__ == "__main__":
    print(json.dumps(schema(), indent=2, ensure_ascii=False))
