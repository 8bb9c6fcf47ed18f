"""Run an audit: structure, attacks, changes, prices, verdict."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from torch import nn

from gradleak.client.capture import pick_device
from gradleak.errors import ConfigError, NotApplicable, NumericsError
from gradleak.models.build import check_norms
from gradleak.models.losses import BINARY
from gradleak.runtime.progress import progress
from gradleak_audit.attack.attack_suite import AGAINST, MKOR, SCALES, Entry, cut_short, menu, named
from gradleak_audit.attack.malicious import chapter
from gradleak_audit.attack.mitigations import Variant, gradient_norm, variants
from gradleak_audit.attack.networks import Arrays, ChainNetwork, ModuleNetwork, Network, Task
from gradleak_audit.attack.samples import Samples
from gradleak_audit.attack.trials import Bench, Best, cases, why_not
from gradleak_audit.mitigate import mitigation_cost
from gradleak_audit.mitigate.mitigation_effect import summary, withheld
from gradleak_audit.read import client
from gradleak_audit.read.conversion import convert
from gradleak_audit.read.fx_graph import outputs, read
from gradleak_audit.read.model_checks import own_copy
from gradleak_audit.read.structure import structure
from gradleak_audit.report.page_pictures import Pictures
from gradleak_audit.report.verdict import Facts, verdict
from gradleak_audit.result import NONE, Audit, Case, Setting, StructurePart
from gradleak_audit.result import Network as NetworkPart
from gradleak_audit.settings import Origin, Settings

LOG = logging.getLogger("gradleak")
EVALUATED = (
    "Norms ran in evaluation mode: in training mode a batch of {batch} leaves one of them a single "
    "value to normalise."
)


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


def audit_network(
    module: nn.Module,
    size: tuple[int, int, int],
    samples: Callable[[tuple[int, int, int], int], Samples],
    settings: Settings,
    origin: Origin,
    *,
    redraw: Callable[[int], nn.Module] | None = None,
    timed: bool = True,
) -> Audited:
    """Audit a network, which is not modified.

    Parameters
    ----------
    module, size
        The network, and (C, H, W) of one image.
    samples
        Provides images for an input size and a number of classes; see
        `gradleak_audit.attack.samples`.
    settings, origin
        Amounts of the audit, and names used in the result.
    redraw
        Returns the network initialized with another seed; `module` is seed 0. None if the weights
        are given: then seeds vary the starting noise of attacks.
    timed
        Whether to measure the time of a client's step.

    Raises
    ------
    ConfigError, DataError
        If network, settings and images do not fit together; no attack is run then.
    """
    return _Audit(module, size, samples, settings, origin, redraw).run(timed)


class _Audit:
    """State of one audit."""

    def __init__(
        self,
        module: nn.Module,
        size: tuple[int, int, int],
        samples: Callable[[tuple[int, int, int], int], Samples],
        settings: Settings,
        origin: Origin,
        redraw: Callable[[int], nn.Module] | None,
    ) -> None:
        self.module, notes = own_copy(module)
        self.notes: list[str] = list(notes)
        self.settings, self.origin, self.redraw = settings, origin, redraw
        # A graph holds a single mode for networks that depend on it.
        self.module.train(settings.mode != "evaluation")
        if settings.mode != "evaluation":
            client.check_training(self.module, size, outputs(self.module, size))
        self.reading = read(self.module, size)
        client.check_loss(settings.loss, self.reading.classes)
        self.converted, self.why = None, ""
        try:
            self.converted = convert(self.reading, self.module, origin.name, settings.loss)
        except NotApplicable as error:
            self.why = str(error)
        found = samples(size, max(self.reading.classes, 2))
        (count, seeds), largest = settings.amounts, settings.batches[-1]
        found.check(count, largest)
        margin = settings.loss in BINARY
        self.bench = Bench(found, count, seeds, largest, settings.offset, settings.std, margin)
        self.batch, self.pool = settings.batches[0], len(self.bench.pool())
        mode = self._mode()
        bounds = self.bench.targets(1).bounds
        self.task = Task(settings.loss, mode, *bounds, pick_device(settings.device))
        if self.converted is not None and self.converted.chain.has_dropout and mode == "training":
            self.notes.append("Attackers took dropout for absent, whose choices they do not know.")
        self.network = self._network()

    def run(self, timed: bool) -> Audited:
        """Run all parts in order."""
        start = time.monotonic()
        found = self._structure()
        LOG.info("structure: %.1f s", time.monotonic() - start)
        sizes = self.settings.scale, self.reading.multiply_adds, self.network.parameters
        entries, short = menu(*sizes), cut_short(*sizes)
        self.notes += [short] if short else []
        chosen = self._variants(found)
        tried, best = self._cases(chosen, entries)
        mkor = chapter(named(entries, MKOR), self.network, NONE, self.bench)
        every = [*tried, *([mkor.case] if mkor.case else [])]
        accuracy = mitigation_cost.accuracies(chosen, self.bench, self.settings.scale)
        costs = mitigation_cost.prices(chosen, self.network, accuracy)
        changes = [summary(v, tried, costs[v.id], withheld(v, self.bench)) for v in chosen]
        reasons = {entry.id: why_not(entry, chosen[0]) for entry in entries} | {MKOR: mkor.reason}
        attacks = [entry.part(reasons[entry.id]) for entry in entries]
        setting = self._setting()
        stand_in, fresh = self.bench.samples.source["origin"] == "embedded", self.redraw is not None
        facts = Facts(setting, found, self._rivals(), fresh, stand_in, tuple(self.notes))
        audit = Audit(
            version=1,
            name=self.origin.name,
            network=NetworkPart(
                source=self.origin.source,
                kind=type(self.module).__name__,
                input=self.reading.input,
                classes=self.reading.classes,
                parameters=self.network.parameters,
                multiply_adds=self.reading.multiply_adds,
                weights=self.origin.weights,
            ),
            setting=setting,
            structure=found,
            attacks=tuple(attacks),
            cases=tuple(every),
            changes=tuple(changes),
            verdict=verdict(every, attacks, changes, best, facts),
        )
        seconds = mitigation_cost.step_seconds(chosen, self.bench) if timed else {}
        answers = best.pictures | mkor.best.pictures
        last = max((image for own in answers.values() for image in own), default=0)
        originals = self.bench.samples.images[: max(self.bench.count, last + 1)] / 255.0
        return Audited(audit, Pictures(originals, answers), seconds)

    def _mode(self) -> str:
        """Client's mode: batches may be too small for batch norm in training mode."""
        wanted, loss = self.settings.mode, self.settings.loss
        if wanted == "evaluation":
            return wanted
        try:
            if self.converted is not None:
                check_norms(self.converted.chain, self.batch)
            else:
                client.gradient(self.module, *self.bench.batch(self.batch), loss, "training")
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
            return ModuleNetwork(self.task, self.reading, module, self.why)

        @lru_cache(maxsize=1)
        def weights(draw: int) -> Arrays:
            return converted.weights(module(draw))

        return ChainNetwork(self.task, converted.chain, weights, converted.layers, converted.before)

    def _structure(self) -> StructurePart:
        """Compute ranks and counts at the first image."""
        images, labels = self.bench.batch(1)
        layers = [layer.name for layer in self.reading.layers if layer.is_linear]
        mode = "evaluation" if self.batch > 1 else self.task.mode
        label, loss = int(labels[0]), self.task.loss
        found = client.deltas(self.module, images[0], label, loss, mode, layers)
        return structure(self.reading, self.converted, self.why, found)

    def _variants(self, found: StructurePart) -> list[Variant]:
        names = self.converted.layers if self.converted else ()
        # The last layer has one output per class, so another layer is changed.
        critical = max(
            (row for row in found.layers if row.layer in names[:-1] and row.index is not None),
            key=lambda row: row.index or 0,
            default=None,
        )
        try:
            shared = self.network.share(0, *self.bench.batch(self.batch), None, 0)
        except NumericsError:
            shared = {}
        return variants(
            self.network,
            self.settings.batches,
            critical=names.index(critical.layer) if critical else None,
            norm=gradient_norm(shared) or 1.0,
            work=SCALES[self.settings.scale].soteria,
        )

    def _cases(
        self, chosen: Sequence[Variant], entries: Sequence[Entry]
    ) -> tuple[list[Case], Best]:
        """Cases of all changes that can be tried, and best reconstructions without change."""
        out: list[Case] = []
        best, own = Best(), set[str]()
        for variant in progress(chosen, "changes"):
            if variant.network is None:
                continue
            found, answers = cases(variant, entries, self.bench)
            if variant.id == NONE:
                best = answers
                own = {case.attack for case in found if case.attempted}
            # Attacks that apply neither here nor to the unchanged network have no case; the menu
            # says why.
            kept = own | {AGAINST.get(variant.kind, "")}
            out += [case for case in found if case.attempted or case.attack in kept]
        return out, best

    def _setting(self) -> Setting:
        return Setting(
            loss=self.task.loss,
            mode=self.task.mode,  # type: ignore[arg-type]
            images=self.bench.samples.title,
            count=self.bench.count,
            gallery=self.pool - self.batch,
            seeds=self.bench.seeds,
            batches=self.settings.batches,
            scale=self.settings.scale,
        )

    def _rivals(self) -> int:
        """Number of images in the pool that a class-consistent reconstruction could show."""
        if self.redraw is not None:
            return self.pool
        targets, known = self.bench.targets(self.batch), self.bench.samples.labels[: self.pool]
        return min(int((known == label).sum()) for label in np.unique(targets.labels))
