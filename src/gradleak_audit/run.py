"""Run an audit: structure, attacks, changes, prices, verdict."""

import logging
import math
import operator
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from numbers import Real
from typing import Any

import numpy as np
from torch import nn

from gradleak.client.capture import pick_device
from gradleak.errors import ConfigError, NotApplicable, NumericsError
from gradleak.models.build import check_norms
from gradleak.models.losses import BINARY, LOSSES
from gradleak.reading import gradients
from gradleak.reading.conversion import convert
from gradleak.reading.fx_graph import outputs
from gradleak.reading.model_checks import Size, own_copy
from gradleak.reading.structure import structure
from gradleak.reading.untraced import read_or_run
from gradleak.runtime.progress import Progress, progress
from gradleak_audit.attack.attack_suite import AGAINST, MKOR, SCALES, Entry, cut_short, menu
from gradleak_audit.attack.malicious import chapter
from gradleak_audit.attack.mitigations import Variant, gradient_norm, variants
from gradleak_audit.attack.networks import Arrays, ChainNetwork, ModuleNetwork, Network, Task
from gradleak_audit.attack.samples import Source
from gradleak_audit.attack.trials import Bench, Best, cases, why_not
from gradleak_audit.mitigate import mitigation_cost
from gradleak_audit.mitigate.mitigation_effect import summary, withheld
from gradleak_audit.report.files import Pictures
from gradleak_audit.report.verdict import Facts, verdict
from gradleak_audit.result import NONE, VERSION, Audit, Case, Setting, StructurePart
from gradleak_audit.result import Network as NetworkPart

LOG = logging.getLogger("gradleak")
EVALUATED = (
    "Norms ran in evaluation mode: in training mode a batch of {batch} leaves one of them a single "
    "value to normalise."
)


MODES = ("auto", *gradients.MODES)
# Shares of its time, roughly: structure, attacks, a malicious server, costs, a client's steps.
PARTS = 1, 12, 1, 5, 1
# Share of tensors without a gradient from which on an audit says so.
SILENT = 0.5
# Gradients under attack, and seeds, by scale.
AMOUNTS = {"smoke": (2, 1), "laptop": (4, 2), "paper": (20, 5)}


@dataclass(frozen=True)
class Settings:
    """Amounts of an audit; keys as in an entry of ``audit`` in config.yaml."""

    loss: str = "cross_entropy"  # one of `gradleak.models.losses.LOSSES`
    mode: str = "auto"  # training, evaluation, or auto: training where a batch allows it
    count: int | None = None  # gradients under attack; by scale if None
    seeds: int | None = None  # number of seeds; by scale if None
    # Batch sizes: of the unchanged network, then larger ones.
    batches: tuple[int, ...] = (1, 4)
    offset: float = 0.0  # inputs are (pixels / 255 + offset) / std
    std: float = 1.0
    scale: str = "laptop"  # smoke, laptop or paper: budget of attacks and training
    device: str = "cpu"  # auto, cpu, cuda or mps

    def __post_init__(self) -> None:
        wanted = "batch sizes that grow, for example [1, 4]"
        sizes = whole("batches", self.batches, wanted)
        if not sizes or any(a >= b for a, b in pairwise(sizes)):
            raise ConfigError(f"batches: give {wanted}, not {list(sizes)}.")
        object.__setattr__(self, "batches", sizes)
        for key in ("count", "seeds"):
            if (value := getattr(self, key)) is not None:
                (amount,) = whole(key, (value,), "a whole number of 1 or more", shown=value)
                object.__setattr__(self, key, amount)
        for key, known in (("loss", LOSSES), ("mode", MODES), ("scale", tuple(AMOUNTS))):
            if (chosen := getattr(self, key)) not in known:
                choices = ", ".join(known)
                raise ConfigError(f"{key}: {chosen} is not known; choose one of {choices}.")
        for key in ("offset", "std"):
            number = getattr(self, key)
            if not isinstance(number, Real) or not math.isfinite(number):
                raise ConfigError(f"{key}: {number!r} is not a finite number; give one.")
        if not self.std > 0:
            raise ConfigError(f"std: {self.std:g} is not above 0; correct it.")

    @property
    def amounts(self) -> tuple[int, int]:
        """Numbers of gradients and seeds."""
        count, seeds = AMOUNTS[self.scale]
        return self.count or count, self.seeds or seeds


def whole(key: str, values: Any, wanted: str, *, shown: Any = None) -> tuple[int, ...]:
    """Validate positive integers of a setting; `ConfigError` says what is `wanted` instead."""
    try:
        found = tuple(operator.index(value) for value in values)
    except TypeError:
        found = (0,)
    if any(value < 1 for value in found):
        raise ConfigError(f"{key}: give {wanted}, not {values if shown is None else shown!r}.")
    return found


@dataclass(frozen=True)
class Origin:
    """Description of a network in the result."""

    name: str  # of the audit
    source: str
    weights: str


@dataclass(frozen=True)
class Audited:
    """Findings of an audit."""

    audit: Audit  # without times: the same input gives the same result
    pictures: Pictures  # shown on the page
    seconds: dict[str, float]  # of a client's step by change; vary from run to run

    @property
    def timed(self) -> Audit:
        """Return the result with relative times of each change's step."""
        return mitigation_cost.with_seconds(self.audit, self.seconds)


@dataclass
class NetworkAudit:
    """Audit of a network, which is not modified.

    Raises `ConfigError` or `DataError` if network, settings and images do not fit together; no
    attack is run then.
    """

    module: nn.Module
    size: Size  # of one image
    samples: Source
    settings: Settings
    origin: Origin  # names used in the result
    # Returns the network initialized with another seed; `module` is seed 0. None if the weights
    # are given: then seeds vary the starting noise of attacks.
    redraw: Callable[[int], nn.Module] | None = None

    def __post_init__(self) -> None:
        settings, size = self.settings, self.size
        self.module, self.notes = own_copy(self.module)
        # The reconstruction that comes nearest under each change.
        self.left: dict[str, tuple[str, int, np.ndarray]] = {}
        # A graph holds a single mode for networks that depend on it.
        self.module.train(settings.mode != "evaluation")
        if settings.mode != "evaluation":
            gradients.check_training(self.module, size, outputs(self.module, size))
        self.reading = read_or_run(self.module, size)
        gradients.check_loss(settings.loss, self.reading.classes)
        self.converted, self.why = None, self.reading.untraced
        if not self.why:
            try:
                name = self.origin.name
                self.converted = convert(self.reading, self.module, name, settings.loss)
            except NotApplicable as error:
                self.why = str(error)
        found = self.samples(size, max(self.reading.classes, 2))
        (count, seeds), largest = settings.amounts, settings.batches[-1]
        found.check(count, largest)
        margin = settings.loss in BINARY
        self.bench = Bench(found, count, seeds, largest, settings.offset, settings.std, margin)
        self.batch, self.pool = settings.batches[0], len(self.bench.pool())
        mode, bounds = self._mode(), self.bench.targets(1).bounds
        self.task = Task(settings.loss, mode, *bounds, pick_device(settings.device))
        if self.converted is not None and self.converted.chain.has_dropout and mode == "training":
            self.notes.append(
                "Attacks ran without dropout, since attackers do not know what it drops."
            )
        self.network = self._network()

    def run(self, timed: bool = True) -> Audited:
        """Run all parts in order, the measurement of a client's steps last if `timed`."""
        with progress(sum(PARTS), "parts") as bar:
            return self._run(timed, bar)

    def _run(self, timed: bool, bar: Progress) -> Audited:
        start, (reading, attacking, malicious, costing, timing) = time.monotonic(), PARTS
        with bar.doing(reading):
            found = self._structure()
            LOG.info("structure: %.1f s", time.monotonic() - start)
            sizes = self.settings.scale, self.reading.multiply_adds, self.network.parameters
            entries = menu(*sizes)
            self.notes += filter(None, [cut_short(*sizes)])
            chosen = self._variants(found)
        with bar.doing(attacking):
            tried, best = self._cases(chosen, entries.values())
        with bar.doing(malicious):
            mkor = chapter(entries[MKOR], self.network, self.bench)
        every = [*tried, *filter(None, [mkor.case])]
        with bar.doing(costing):
            costs = mitigation_cost.prices(chosen, self.bench, self.settings.scale)
        changes = [summary(v, tried, costs.get(v.id), withheld(v, self.bench)) for v in chosen]
        reasons = {key: why_not(entry, chosen[0]) for key, entry in entries.items()}
        reasons[MKOR] = mkor.reason
        attacks = [entry.part(reasons[key]) for key, entry in entries.items()]
        setting = self._setting()
        stand_in, fresh = self.bench.samples.source["origin"] == "embedded", self.redraw is not None
        told = tuple(self.notes), self._substituted()
        facts = Facts(setting, found, self._rivals(), fresh, stand_in, *told)
        own: dict[str, Any] = {key: getattr(self.origin, key) for key in ("source", "weights")}
        own |= {key: getattr(self.reading, key) for key in ("input", "classes", "multiply_adds")}
        own |= {"kind": type(self.module).__name__, "parameters": self.network.parameters}
        parts: dict[str, Any] = {"attacks": attacks, "cases": every, "changes": changes}
        parts |= {"structure": found, "verdict": verdict(every, attacks, changes, best, facts)}
        network = NetworkPart(**own)
        audit = Audit(
            version=VERSION, name=self.origin.name, network=network, setting=setting, **parts
        )
        with bar.doing(timing):
            seconds = mitigation_cost.step_seconds(chosen, self.bench) if timed else {}
        answers = best.pictures | mkor.best.pictures
        shown = max([self.bench.count, *(image + 1 for own in answers.values() for image in own)])
        originals = self.bench.samples.images[:shown] / 255.0
        return Audited(audit, Pictures(originals, answers, self.left), seconds)

    def _substituted(self) -> str:
        if isinstance(self.network, ChainNetwork):
            return ""
        return self.network.substituted(*self.bench.batch(self.batch))

    def _mode(self) -> str:
        """Client's mode: batches may be too small for batch norm in training mode."""
        wanted, loss = self.settings.mode, self.settings.loss
        if wanted == "evaluation":
            return wanted
        try:
            if self.converted is not None:
                check_norms(self.converted.chain, self.batch)
            else:
                gradients.gradient(self.module, *self.bench.batch(self.batch), loss, "training")
        except ConfigError:
            if wanted == "training":
                raise
            self.notes.append(EVALUATED.format(batch=self.batch))
            return "evaluation"
        return "training"

    def _network(self) -> Network:
        converted, redraw = self.converted, self.redraw

        @lru_cache(maxsize=1)
        def module(draw: int) -> nn.Module:
            return self.module if redraw is None or draw == 0 else own_copy(redraw(draw))[0]

        if converted is None:
            return ModuleNetwork(self.task, self.reading, module)

        @lru_cache(maxsize=1)
        def weights(draw: int) -> Arrays:
            return converted.weights(module(draw))

        return ChainNetwork(self.task, converted.chain, weights, converted.layers, converted.before)

    def _structure(self) -> StructurePart:
        images, labels = self.bench.batch(1)
        layers = [layer.name for layer in self.reading.layers if layer.is_linear]
        mode = "evaluation" if self.batch > 1 else self.task.mode
        label, loss = int(labels[0]), self.task.loss
        found = gradients.deltas(self.module, images[0], label, loss, mode, layers)
        return structure(self.reading, self.converted, self.why, found, self.settings.loss)

    def _variants(self, found: StructurePart) -> list[Variant]:
        names = self.converted.layers if self.converted else ()
        # The last layer has one output per class, so another layer is changed.
        indices = {x.layer: x.index for x in found.layers if x.layer in names[:-1]}
        known = {names.index(layer): i for layer, i in indices.items() if i is not None}
        critical = max(known, key=known.__getitem__, default=None)
        try:
            shared = self.network.share(0, *self.bench.batch(self.batch), None, 0)
            norm = gradient_norm(shared)
            self.notes += filter(None, [silent(shared)])
        except NumericsError:
            norm = 0.0
        work, batches = SCALES[self.settings.scale].soteria, self.settings.batches
        return variants(self.network, batches, critical=critical, norm=norm or 1.0, work=work)

    def _cases(
        self, chosen: Sequence[Variant], entries: Collection[Entry]
    ) -> tuple[list[Case], Best]:
        """Cases of all changes that can be tried, and best reconstructions without change."""
        out: list[Case] = []
        best, own = Best(), set[str]()
        for variant in progress(chosen, "changes"):
            if variant.network is None:
                continue
            found, answers = cases(variant, entries, self.bench)
            if nearest := answers.nearest:
                self.left[variant.id] = nearest
            if variant.id == NONE:
                best, own = answers, {case.attack for case in found if case.attempted}
            # Attacks that apply neither here nor to the unchanged network have no case, but a
            # reason among `attacks`.
            kept = own | {AGAINST.get(variant.kind, "")}
            out += [case for case in found if case.attempted or case.attack in kept]
        return out, best

    def _setting(self) -> Setting:
        own: dict[str, Any] = {key: getattr(self.task, key) for key in ("loss", "mode")}
        own |= {key: getattr(self.bench, key) for key in ("count", "seeds")}
        own |= {key: getattr(self.settings, key) for key in ("batches", "scale")}
        gallery = self.pool - self.batch
        return Setting(images=self.bench.samples.title, gallery=gallery, **own)

    def _rivals(self) -> int:
        """Number of images in the pool that a reconstruction from its class alone could show."""
        if self.redraw is not None or not self.bench.samples.labelled:
            return self.pool
        targets, known = self.bench.targets(self.batch), self.bench.samples.labels[: self.pool]
        return min(int((known == label).sum()) for label in np.unique(targets.labels))


def silent(shared: Arrays) -> str:
    """Note on a gradient most of whose tensors are 0; empty if they are not."""
    none = sum(not value.any() for value in shared.values())
    if none < SILENT * len(shared):
        return ""
    return (
        f"Under these weights, {none} of {len(shared)} tensors of the gradient are 0, as where a "
        "last layer starts at 0; other weights may leak more."
    )
