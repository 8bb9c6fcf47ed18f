"""Base of optimisation-based attacks: many images, many restarts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, PrivateAttr

from gradleak.attacks.base import AttackerView, ManyAttack, Outcome, Reconstruction
from gradleak.attacks.label_inference import class_of, contradiction
from gradleak.client.gradient_checks import check_gradient
from gradleak.errors import NumericsError
from gradleak.models.chain import Chain
from gradleak.models.losses import BINARY
from gradleak.runtime.progress import progress
from gradleak.settings.fields import AmountOrName, Draws, Hidden, Precision

if TYPE_CHECKING:
    from torch import Tensor

    from gradleak.attacks.finished import Finished
    from gradleak.attacks.keylock import Opening
    from gradleak.attacks.optimization.engine.chain_gradients import ChainGradients
    from gradleak.attacks.optimization.engine.residual_gradients import BranchGradients
    from gradleak.attacks.optimization.engine.search_batch import Members

Start = Literal["normal", "uniform", "gray", "reconstruction", "class"]
NOISE = ("normal", "uniform", "gray")
# Deviation of a gray start from the middle of the input range, relative to the range.
GRAY = 0.1
Lock = Literal["guess", "fit"]
Share = Annotated[float, Field(ge=0)]
# Number of objective values kept for each run.
MOMENTS = 100


class Search(ManyAttack):
    """Settings and bookkeeping of an optimisation over many images and restarts at once.

    An attack exposes hidden settings in config.yaml by declaring them again.
    """

    searches = True
    # True to compute with `BranchGradients` under every network.
    only_branches: ClassVar[bool] = False
    # What `failure` says that its runs end at.
    distance: ClassVar[str] = "relative distance of gradients"

    starts: Draws = 1  # restarts per gradient; no more than are given without noise
    images: AmountOrName | None = None  # attack only this many images of a gradient file
    precision: Precision = "float32"
    # N(0, 1), uniform over the input range, its middle with little noise, or given with the view:
    # another attack's reconstruction or images of the same class. Restart i then uses given image
    # i, cyclically.
    start: Hidden[Start] = "normal"
    # Deviation of normal noise added to given starts, relative to the root mean square of the
    # start, since twins may be dark.
    start_noise: Hidden[Share] = 0.0
    lock: Hidden[Lock] = "guess"  # handling of an unknown key-lock; see `gradleak.attacks.keylock`
    device: Hidden[str] = "cpu"  # or auto, cuda; mps has no float64, so there it is the CPU
    chunk: Hidden[int] = 32  # restarts at a time, to bound memory
    _finished: Finished | None = PrivateAttr(default=None)

    @property
    def label_unknown(self) -> bool:
        """True if labels are optimised with the image, neither granted nor recovered (iDLG)."""
        return getattr(self, "label", "from_view") == "unknown"

    @property
    def needs_labels(self) -> bool:
        """See `gradleak.attacks.base.Entry`."""
        return not self.label_unknown

    def applies(self, chain: Chain, mode: str = "training") -> str | None:
        """See `gradleak.attacks.base.ManyAttack`."""
        from gradleak.attacks.optimization.engine.residual_gradients import follows, is_branched

        if chain.has_dropout and mode == "training":
            return (
                f"{chain.name} has dropout, which is at work in training and which a search does "
                "not follow; take it out, or use mkor."
            )
        if is_branched(chain) and not follows(chain):
            return (
                f"{chain.name} has replicated padding beside a norm, a projection, or a pool "
                "other than 2x2, which no search follows; set padding_mode: zeros."
            )
        if self.lock == "fit" and not chain.locked:
            return f"{chain.name} has no lock to fit; set lock: guess, or lock it."
        return None

    @abstractmethod
    def search(self, members: Members, views: Sequence[AttackerView]) -> list[Reconstruction]:
        """Optimise each member; `views` holds the view of each."""

    def failure(self, distance: float) -> str:
        """Return why a run that ended at this distance failed; empty if it did not."""
        limit: float = getattr(self, "failure_loss", np.inf)
        if not np.isfinite(distance):
            return "The distance of gradients was never finite."
        if distance >= limit:
            return (
                f"The search ended at a {self.distance} of {distance:.2g}, where {limit:g} or more "
                "counts as failed."
            )
        return ""

    def run_many(self, views: Sequence[AttackerView], seeds: Sequence[int]) -> list[Outcome]:
        """Attack each view; its best restart that did not fail comes first."""
        out: dict[int, Outcome] = {}
        with progress(len(views), "gradients searched") as bar:
            for group in _alike(views, together=self.starts == 1):
                ready = {}
                for i in group:
                    try:
                        ready[i] = self._prepare(views[i], seeds[i])
                    except NumericsError as error:
                        out[i] = error
                        bar.skip()
                for some in self._chunks(ready):
                    key = f"{views[some[0]].chain.name} {[seeds[i] for i in some]}"
                    found = self._finished.of(key) if self._finished else None
                    if found is not None:
                        bar.skip(len(some))
                    else:
                        with bar.doing(len(some)):
                            found = self._searched([views[i] for i in some], ready, some)
                        if self._finished:
                            self._finished.keep(key, found)
                    out |= zip(some, found, strict=True)
        return [out[i] for i in range(len(views))]

    def _searched(
        self, views: Sequence[AttackerView], ready: Mapping[int, Ready], some: Sequence[int]
    ) -> list[Outcome]:
        """Best restart of each of the views `some`."""
        members = self._members(views, [ready[i] for i in some])
        owners = [place for place, i in enumerate(some) for _ in ready[i].images]
        found = self.search(members, [views[place] for place in owners])
        pairs = [*zip(found, owners, strict=True)]
        return [_choose([a for a, owner in pairs if owner == own]) for own in range(len(some))]

    def keep_in(self, finished: Finished) -> None:
        """Keep there what it has finished, and take from there."""
        self._finished = finished

    def _chunks(self, ready: Mapping[int, Ready]) -> list[list[int]]:
        """Chunks of at most `chunk` restarts, or one view; all have a lock opened in the same way.

        A restart of so many images counts as a chunk: it gains nothing from others beside it.
        """
        out: list[list[int]] = []
        count, opened = 0, (False, False)
        for i, prepared in ready.items():
            restarts, images = prepared.images.shape[:2]
            own = restarts if images < self.chunk else self.chunk
            count += own
            way = prepared.opening.scaling is not None, prepared.opening.mismatched
            if not out or count > self.chunk or way != opened:
                out.append([])
                count, opened = own, way
            out[-1].append(i)
        return out

    def _prepare(self, view: AttackerView, seed: int) -> Ready:
        """Draw or take starting points; `NumericsError` if the view cannot be attacked."""
        from gradleak.attacks.keylock import open_lock

        check_gradient(view.chain, view.gradients)
        labels = None if self.label_unknown else known_labels(view)
        size = (view.batch, *view.chain.input)
        given = None if self.start in NOISE else self._given(view, size)
        count = self.starts
        if given is not None and not self.start_noise:
            count = min(count, len(given))
        images, logits = np.empty((count, *size)), np.empty((count, view.batch, view.chain.classes))
        for i in range(count):
            draw = np.random.default_rng((seed, i))
            images[i] = noise(self.start, draw, size, (view.low, view.high))
            if given is not None:
                begin = given[i % len(given)]
                size_of_start = float(np.sqrt(np.mean(begin**2)))
                images[i] = begin + self.start_noise * size_of_start * images[i]
            logits[i] = draw.standard_normal(logits.shape[1:])
        seeds = [(seed, i) for i in range(count)]
        return Ready(labels, images, logits, seeds, open_lock(view, self.lock, seed, count))

    def _given(self, view: AttackerView, size: tuple[int, ...]) -> np.ndarray:
        given = view.starts
        if given is None or not len(given):
            raise NumericsError(
                f"start: {self.start}, but no start was given; choose another start."
            )
        if given.shape[1:] != size:
            raise NumericsError(
                f"The given starts have the shape {given.shape[1:]}, but the batch has {size}; "
                "start from normal or uniform noise."
            )
        if not np.isfinite(given).all():
            raise NumericsError("The attack that it starts from gave no image here.")
        return given

    def _members(self, views: Sequence[AttackerView], ready: Sequence[Ready]) -> Members:
        import torch

        from gradleak.attacks.optimization.engine import residual_gradients
        from gradleak.attacks.optimization.engine.chain_gradients import ChainGradients, stack
        from gradleak.attacks.optimization.engine.search_batch import Members
        from gradleak.client.capture import DTYPES, pick_device

        device = pick_device(self.device)
        if device.type == "mps":
            device = torch.device("cpu")
        opened = [prepared.opening for prepared in ready]
        chain, loss = views[0].chain, views[0].loss
        weights = stack([opening.weights for opening in opened])
        place: dict[str, Any] = {"device": device, "dtype": DTYPES[self.precision]}
        network: ChainGradients | BranchGradients
        if self.only_branches or residual_gradients.is_branched(chain):
            place |= {"mode": views[0].mode, "shared": opened[0].shared}
            network = residual_gradients.BranchGradients(chain, weights, loss, **place)
        else:
            network = ChainGradients(chain, weights, loss, **place)
        counts = torch.tensor([len(prepared.images) for prepared in ready])
        owner = torch.repeat_interleave(torch.arange(len(views)), counts).to(device)
        network = network.select(owner)
        squares = (
            sum(np.sum(value.astype(np.float64) ** 2) for value in opening.shared.values())
            for opening in opened
        )
        scales = [1.0 / float(np.sqrt(square)) for square in squares]
        scaled = [
            {name: scale * value.astype(np.float64) for name, value in opening.shared.items()}
            for opening, scale in zip(opened, scales, strict=True)
        ]
        labels = [prepared.labels for prepared in ready if prepared.labels is not None]
        starts = [opening.scaling for opening in opened if opening.scaling is not None]
        return Members(
            network,
            [target[owner] for target in network.targets(scaled)],
            network.tensor(np.array(scales))[owner],
            torch.tensor(labels, device=device)[owner] if labels else None,
            network.tensor(np.concatenate([prepared.images for prepared in ready])),
            network.tensor(np.concatenate([prepared.logits for prepared in ready])),
            torch.tensor([pair for prepared in ready for pair in prepared.seeds], device=device),
            network.tensor(np.concatenate(starts)) if starts else None,
            opened[0].mismatched,
        )

    def reconstructions(
        self,
        members: Members,
        images: Tensor,
        logits: Tensor,
        traces: Iterable[np.ndarray],
        **each: Sequence[Any],
    ) -> list[Reconstruction]:
        """Reconstruct each member from images (M, K, C, H, W), dummy logits, and further fields."""
        from gradleak.attacks.optimization.engine.output import told

        found, labels = images.double().cpu().numpy(), members.labels
        if labels is None:
            labels = told(logits, members.network.loss)
        return [
            Reconstruction(
                found[m],
                label=int(labels[m, 0]) if found.shape[1] == 1 else None,
                trace=moments(trace),
                **{name: values[m] for name, values in each.items()},
            )
            for m, trace in enumerate(traces)
        ]


@dataclass(frozen=True)
class Ready:
    """Labels, starting points and lock of one view."""

    labels: tuple[int, ...] | None  # (K,)
    images: np.ndarray  # starts (S, K, C, H, W)
    logits: np.ndarray  # dummy logits (S, K, outputs)
    seeds: Sequence[tuple[int, int]]  # the view's seed and the restart's number
    opening: Opening


def known_labels(view: AttackerView) -> tuple[int, ...]:
    """Return labels that were granted, or that a single image's gradient gives away.

    Raises `NumericsError` if they are neither, are not −1 or 1 under a margin loss, or the last
    layer's bias contradicts that of a single image.
    """
    if view.loss == "cross_entropy" and view.batch == 1:
        label = class_of(view)
        assert label is not None  # only a batch can be without a label
        return (label,)
    if view.labels is None:
        raise NumericsError(
            "The labels were not granted and a search cannot tell them from the gradient here; "
            "set label: granted, or the attack's label: unknown."
        )
    if view.loss in BINARY:
        wrong = [label for label in view.labels if label not in (-1, 1)]
        if wrong:
            raise NumericsError(
                f"The granted label {wrong[0]} is not a label of the {view.loss} loss, which takes "
                "−1 or 1; grant one of them, or choose loss: cross_entropy."
            )
        # db = y·ℓ'(μ) with ℓ' < 0.
        bias = view.gradients.get(f"{view.chain.layers[-1].name}.bias")
        if view.batch == 1 and bias is not None and view.labels[0] * bias[0] > 0:
            raise contradiction(view.labels[0])
    return view.labels


def noise(
    start: Start, draw: np.random.Generator, size: tuple[int, ...], bounds: tuple[float, float]
) -> np.ndarray:
    """Draw an array of `size` that a search starts from: N(0, 1) unless `start` says otherwise."""
    low, high = bounds
    if start == "uniform":
        return draw.uniform(low, high, size)
    found = draw.standard_normal(size)
    return (low + high) / 2 + GRAY * (high - low) * found if start == "gray" else found


def variation(images: Tensor, of: Callable[[Tensor], Tensor]) -> Tensor:
    """Mean of a function of neighbours' differences, down + across (M,), of (M, K, C, H, W).

    There are none along an axis of one pixel, which counts as 0.
    """
    out = images.new_zeros(len(images))
    for axis in (3, 4):
        if images.shape[axis] > 1:
            out = out + of(images.diff(dim=axis)).flatten(1).mean(1)
    return out


def moments(trace: np.ndarray) -> tuple[float, ...]:
    """Return about `MOMENTS` evenly spaced values of `trace` (n,), including first and last."""
    places = np.unique(np.linspace(0, len(trace) - 1, MOMENTS).round().astype(int))
    return tuple(float(value) for value in trace[places])


def _alike(views: Sequence[AttackerView], *, together: bool) -> list[list[int]]:
    """Group indices of views that can be optimised together: same chain, loss, batch and mode.

    Networks that only `BranchGradients` supports are fastest under weights shared by all members,
    so they are grouped by weights; views with unique weights form one group if `together`.
    """
    from gradleak.attacks.optimization.engine.residual_gradients import is_branched
    from gradleak.models.files import fingerprint

    same: dict[tuple[Any, ...], list[int]] = {}
    for i, view in enumerate(views):
        own = fingerprint(view.weights) if is_branched(view.chain) else ""
        same.setdefault((view.chain, view.loss, view.batch, view.mode, own), []).append(i)
    groups: dict[tuple[Any, ...], list[int]] = {}
    for (*alike, own), group in same.items():
        alone = together and len(group) == 1
        groups.setdefault((*alike, "" if alone else own), []).extend(group)
    return list(groups.values())


def _choose(answers: Sequence[Reconstruction]) -> Reconstruction:
    """Choose the reconstruction of lowest loss that did not fail; the others follow by number."""

    def rank(number: int) -> tuple[bool, float]:
        loss = answers[number].loss
        return bool(answers[number].failure), loss if np.isfinite(loss) else np.inf

    best = min(range(len(answers)), key=rank)
    others = [replace(answer, kind=f"start {i}") for i, answer in enumerate(answers, 1)]
    return replace(answers[best], others=tuple(others[:best] + others[best + 1 :]))
