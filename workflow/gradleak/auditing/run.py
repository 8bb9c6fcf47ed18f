"""An audit from a network to its result: structure, attacks, changes, prices, verdict."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from torch import nn

from gradleak.auditing import client, prices
from gradleak.auditing.cases import Bench, Best, cases, why_not
from gradleak.auditing.changes import NONE, Variant, gradient_norm, variants
from gradleak.auditing.conversion import Converted, convert
from gradleak.auditing.effects import summary, withheld
from gradleak.auditing.intake import own_copy
from gradleak.auditing.malicious import chapter
from gradleak.auditing.menu import AGAINST, MKOR, SCALES, Entry, cut_short, menu, named
from gradleak.auditing.networks import (
    Arrays,
    ChainNetwork,
    ModuleNetwork,
    Network,
    Task,
    multiply_adds,
    signed,
)
from gradleak.auditing.page_pictures import Pictures
from gradleak.auditing.reading import Reading, outputs, read
from gradleak.auditing.result import (
    Audit,
    Case,
    LayerRow,
    Setting,
    StructurePart,
)
from gradleak.auditing.result import Network as NetworkPart
from gradleak.auditing.samples import Samples
from gradleak.auditing.settings import Origin, Settings
from gradleak.auditing.structure import Structure, structure
from gradleak.auditing.verdict import Facts, verdict
from gradleak.errors import ConfigError, NotApplicable, NumericsError
from gradleak.gradients import pick_device
from gradleak.losses import BINARY
from gradleak.models.build import check_norms
from gradleak.progress import progress

LOG = logging.getLogger("gradleak")
EVALUATED = (
    "Norms ran in evaluation mode: in training mode a batch of {batch} leaves one of them a single "
    "value to normalise."
)


@dataclass(frozen=True)
class Audited:
    """What an audit found.

    Attributes
    ----------
    audit
        The result without times: the same input gives the same result.
    pictures
        What the page shows.
    seconds
        Of a client's step by change, which differ from run to run.
    """

    audit: Audit
    pictures: Pictures
    seconds: dict[str, float]

    @property
    def timed(self) -> Audit:
        """The result with the time of each change's step, relative to the unchanged network's."""
        return prices.with_seconds(self.audit, self.seconds)


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
    """Audit a network.

    Parameters
    ----------
    module
        The network; it is left as it was.
    size
        (C, H, W) of one image.
    samples
        Gives images for a size and a number of classes, as those of `gradleak.auditing.samples`.
    settings, origin
        What is tried, and what the result calls it.
    redraw
        Gives the network with the fresh weights of another seed; `module` is seed 0. None if the
        weights are given: then draws differ by the noise of searches.
    timed
        Whether to measure the time of a client's step.

    Raises
    ------
    ConfigError, DataError
        If network, settings and images do not fit each other; nothing is attacked then.
    """
    audit = _Audit(module, size, samples, settings, origin, redraw)
    return audit.run(timed)


class _Audit:
    """One audit on its way."""

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
        # A graph shows one mode alone, of networks that ask for theirs.
        self.module.train(settings.mode != "evaluation")
        if settings.mode != "evaluation":
            client.check_training(self.module, size, outputs(self.module, size))
        self.reading = read(self.module, size)
        client.check_loss(settings.loss, self.reading.classes)
        self.converted, self.why = _converted(self.reading, self.module, origin.name, settings.loss)
        found = samples(size, max(self.reading.classes, 2))
        count, seeds = settings.amounts
        largest = settings.batches[-1]
        found.check(count, largest)
        margin = settings.loss in BINARY
        self.bench = Bench(found, count, seeds, largest, settings.offset, settings.std, margin)
        low, high = self.bench.targets(1).bounds
        mode = self._mode()
        self.task = Task(settings.loss, mode, low, high, pick_device(settings.device))
        if self.converted is not None and self.converted.chain.has_dropout and mode == "training":
            self.notes.append("Attackers took dropout for absent, whose choices they do not know.")
        self.network = self._network()

    def run(self, timed: bool) -> Audited:
        """All parts, in order."""
        start = time.monotonic()
        facts = self._structure()
        LOG.info("structure: %.1f s", time.monotonic() - start)
        sizes = self.settings.scale, multiply_adds(self.reading), self.network.parameters
        entries, short = menu(*sizes), cut_short(*sizes)
        self.notes += [short] if short else []
        chosen = self._variants(facts)
        tried, best = self._cases(chosen, entries)
        mkor = chapter(named(entries, MKOR), self.network, NONE, self.bench)
        every = [*tried, *([mkor.case] if mkor.case else [])]
        accuracy = prices.accuracies(chosen, self.bench, self.settings.scale)
        costs = prices.prices(chosen, self.network, accuracy)
        changes = [summary(v, tried, costs[v.id], withheld(v, self.bench)) for v in chosen]
        reasons = {entry.id: why_not(entry, chosen[0]) for entry in entries}
        parts = [
            entry.part(mkor.reason if entry.id == MKOR else reasons[entry.id]) for entry in entries
        ]
        words = self._facts(facts)
        audit = Audit(
            version=1,
            name=self.origin.name,
            network=self._network_part(),
            setting=self._setting_part(),
            structure=_structure_part(facts),
            attacks=tuple(parts),
            cases=tuple(every),
            changes=tuple(changes),
            verdict=verdict(every, parts, changes, best, words),
        )
        seconds = prices.step_seconds(chosen, self.bench) if timed else {}
        answers = {**best.pictures, **mkor.best.pictures}
        pictures = Pictures(self._originals(answers), answers)
        return Audited(audit, pictures, seconds)

    def _mode(self) -> str:
        """Mode in which clients run the network."""
        wanted, batch = self.settings.mode, self.settings.batches[0]
        if wanted == "evaluation":
            return wanted
        try:
            self._check_training(batch)
        except ConfigError:
            if wanted == "training":
                raise
            self.notes.append(EVALUATED.format(batch=batch))
            return "evaluation"
        return "training"

    def _check_training(self, batch: int) -> None:
        """Refuse a batch that leaves a norm one value a channel in training mode."""
        if self.converted is not None:
            check_norms(self.converted.chain, batch)
            return
        images, labels = np.zeros((batch, *self.reading.input)), np.zeros(batch, dtype=np.int64)
        labels = signed(labels, self.bench.margin)
        client.gradient(self.module, images, labels, self.settings.loss, "training")

    def _drawn(self, draw: int) -> nn.Module:
        if self.redraw is None or draw == 0:
            return self.module
        return own_copy(self.redraw(draw))[0]

    def _network(self) -> Network:
        converted = self.converted
        module = lru_cache(maxsize=1)(self._drawn)
        if converted is None:
            return ModuleNetwork(self.reading, module, self.why, self.task)

        @lru_cache(maxsize=1)
        def weights(draw: int) -> Arrays:
            return converted.weights(module(draw))

        return ChainNetwork(converted.chain, weights, self.task, converted.layers, converted.before)

    def _structure(self) -> Structure:
        """Ranks and counts, at the first image."""
        targets = self.bench.targets(1)
        label = int(signed(targets.labels[0], self.bench.margin)[0])
        layers = [layer.name for layer in self.reading.layers if layer.is_linear]
        mode = "evaluation" if self.settings.batches[0] > 1 else self.task.mode
        found = client.deltas(
            self.module, targets.inputs(0)[0], label, self.task.loss, mode, layers
        )
        return structure(self.reading, self.module, self.converted, self.why, found)

    def _variants(self, facts: Structure) -> list[Variant]:
        names = self.converted.layers if self.converted else ()
        # The last layer has an output for each class, so another one is changed.
        critical = max(
            (row for row in facts.layers if row.layer in names[:-1] and row.index is not None),
            key=lambda row: row.index or 0,
            default=None,
        )
        batches = self.settings.batches
        targets = self.bench.targets(batches[0])
        labels = signed(targets.labels[0], self.bench.margin)
        try:
            shared = self.network.share(0, targets.inputs(0), labels, None, 0)
        except NumericsError:
            shared = {}
        return variants(
            self.network,
            batches,
            critical=names.index(critical.layer) if critical else None,
            norm=gradient_norm(shared) or 1.0,
            work=SCALES[self.settings.scale].soteria,
        )

    def _cases(
        self, chosen: Sequence[Variant], entries: Sequence[Entry]
    ) -> tuple[list[Case], Best]:
        """Cases of all changes that can be tried, and best answers on the unchanged network."""
        out: list[Case] = []
        best, own = Best(), set[str]()
        for variant in progress(chosen, "changes"):
            if variant.network is None:
                continue
            found, answers = cases(variant, entries, self.bench)
            if variant.id == NONE:
                best = answers
                own = {case.attack for case in found if case.attempted}
            # What applies neither here nor to the unchanged network has no case; the menu says why.
            kept = own | {AGAINST.get(variant.kind, "")}
            out += [case for case in found if case.attempted or case.attack in kept]
        return out, best

    def _network_part(self) -> NetworkPart:
        return NetworkPart(
            source=self.origin.source,
            kind=type(self.module).__name__,
            input=self.reading.input,
            classes=self.reading.classes,
            parameters=self.network.parameters,
            multiply_adds=multiply_adds(self.reading),
            weights=self.origin.weights,
        )

    def _setting_part(self) -> Setting:
        return Setting(
            loss=self.task.loss,
            mode=self.task.mode,  # type: ignore[arg-type]
            images=self.bench.samples.title,
            count=self.bench.count,
            gallery=self._pool() - self.settings.batches[0],
            seeds=self.bench.seeds,
            batches=self.settings.batches,
            scale=self.settings.scale,
        )

    def _pool(self) -> int:
        return len(self.bench.samples.pool(self.bench.count, self.bench.largest))

    def _rivals(self) -> int:
        """Images of the pool that an answer of the right class could be."""
        if self.redraw is not None:
            return self._pool()
        targets, labels = self.bench.targets(self.settings.batches[0]), self.bench.samples.labels
        known = labels[: self._pool()]
        return min(int((known == label).sum()) for label in np.unique(targets.labels))

    def _facts(self, facts: Structure) -> Facts:
        return Facts(
            count=self.bench.count,
            seeds=self.bench.seeds,
            batch=self.settings.batches[0],
            pool=self._pool(),
            fresh=self.redraw is not None,
            rivals=self._rivals(),
            images=self.bench.samples.title,
            stand_in=self.bench.samples.source["origin"] == "embedded",
            critical=facts.critical,
            index=facts.index,
            notes=tuple(self.notes),
        )

    def _originals(self, answers: Mapping[str, Mapping[int, np.ndarray]]) -> np.ndarray:
        last = max((image for own in answers.values() for image in own), default=0)
        most = max(self.bench.count, last + 1)
        return self.bench.samples.images[:most] / 255.0


def _converted(
    reading: Reading, module: nn.Module, name: str, loss: str
) -> tuple[Converted | None, str]:
    try:
        return convert(reading, module, name, loss), ""
    except NotApplicable as error:
        return None, str(error)


def _structure_part(found: Structure) -> StructurePart:
    rows = [LayerRow(**{**layer.__dict__, "free": layer.free}) for layer in found.layers]
    return StructurePart(
        layers=tuple(rows),
        index=found.index,
        critical=found.critical,
        security=found.security,
        security_kind=found.security_kind,
        security_note=found.security_note,
        chain=found.chain,
    )
