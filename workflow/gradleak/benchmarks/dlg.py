"""Speed of the batched DLG against PyTorch's L-BFGS, one start after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from gradleak.attacks.base import AttackerView, Reconstruction
from gradleak.attacks.dlg import Dlg
from gradleak.attacks.rgap import RGap
from gradleak.benchmarks.speed import row
from gradleak.errors import GradleakError
from gradleak.gradients import capture
from gradleak.metrics.image import mse
from gradleak.models.build import load
from gradleak.models.chain import Chain
from gradleak.models.files import ModelFile
from gradleak.models.passes import margin_label
from gradleak.targets import TargetSet

# Inner steps of one call of PyTorch's L-BFGS: its default, and what DLG's authors use.
INNER = 20
# Outer steps that each number of threads is tried for.
TRIAL = 3
SUCCESS = 1e-3
# Relative distance at which both stop, the reference between its outer steps: an MSE of about 1e-4
# on LeNet, below `SUCCESS`.
TARGET = 1e-8


@dataclass(frozen=True)
class Case:
    """Gradients to attack under cross-entropy, the images behind them, and the starts.

    Attributes
    ----------
    views
        One for each image, with the label and S starts.
    images
        (N, C, H, W).
    """

    views: list[AttackerView]
    images: np.ndarray


@dataclass(frozen=True)
class Outcome:
    """What one way of running DLG gave.

    Attributes
    ----------
    seconds
        For all images and starts together.
    errors
        MSE (N, S) of each start, NaN where it is not finite.
    accepted
        (N, S) whether the attacker, without the original, holds the start for a success.
    evaluations
        Gradients of the network in all.
    """

    seconds: float
    errors: np.ndarray
    accepted: np.ndarray
    evaluations: int

    @property
    def successes(self) -> int:
        """Starts with an MSE below `SUCCESS`."""
        return int(np.sum(self.errors < SUCCESS))

    @property
    def share(self) -> float:
        """Successes among all starts."""
        return self.successes / self.errors.size


def make(
    chain: Chain,
    weights: dict[str, np.ndarray],
    images: np.ndarray,
    labels: Sequence[int],
    *,
    starts: int,
    low: float = 0.0,
) -> Case:
    """Case from images (N, C, H, W) in [low, low + 1], with starts from N(0, 1), all float32."""
    views = []
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        shared = capture(
            chain,
            weights,
            image[None],
            np.array([label]),
            precision="float32",
            device=torch.device("cpu"),
        )
        draw = np.random.default_rng((number, 7))
        first = draw.standard_normal((starts, 1, *chain.input)).astype(np.float32)
        granted = (int(label),)
        views.append(AttackerView(chain, weights, shared, granted, low, low + 1.0, starts=first))
    return Case(views, images)


def table_rows(
    models: ModelFile,
    targets: TargetSet,
    *,
    images: int,
    starts: int,
    outer: int,
    threads: int,
) -> list[dict[str, Any]]:
    """`rows` of a model's first draw and the first `images` images."""
    chain, count = models.chains[0], min(images, len(targets.images))
    originals = np.stack([targets.inputs(i)[0] for i in range(count)])
    labels = [int(label) for label in targets.labels[:count, 0]]
    case = make(chain, models.of(chain, 0), originals, labels, starts=starts, low=targets.offset)
    return rows(case, outer=outer, threads=threads)


def rows(case: Case, *, outer: int = 300, threads: int) -> list[dict[str, Any]]:
    """Rows: seconds for each image with all its starts, each evaluation, each success.

    Both ways get `outer` times `INNER` evaluations for each start, the same starts, and float32.
    `ours_error` and `reference_error` are medians of the MSE over starts.

    Parameters
    ----------
    case
        What to attack.
    outer
        Calls of PyTorch's L-BFGS; DLG's authors make 300.
    threads
        Most threads; each side takes its fastest number of 1 ... `threads`, tried for `TRIAL`
        outer steps.
    """
    one = Case([_first_start(case.views[0])], case.images[:1])
    own = fastest(lambda: ours(case, TRIAL * INNER), threads)
    best = fastest(lambda: reference(one, TRIAL), threads)
    with _threads(own):
        found = ours(case, outer * INNER)
    with _threads(best):
        plain = reference(case, outer)
    count, starts = found.errors.shape
    note = (
        f"{count} images, {starts} starts each, {outer * INNER} evaluations at most, float32; "
        f"MSE below {SUCCESS:g}: {found.share:.0%} and {plain.share:.0%} of starts, accepted by "
        f"the attacker: {found.accepted.mean():.0%} and {plain.accepted.mean():.0%}; evaluations "
        f"{found.evaluations} and {plain.evaluations} (both stop at a relative distance of "
        f"{TARGET:g}); against torch.optim.LBFGS, one start after "
        f"the other; each with its fastest of 1 to {threads} threads: {own} and {best}"
    )
    name = case.views[0].chain.name
    an_image = row(
        f"batched DLG {name}, an image",
        found.seconds / count,
        plain.seconds / count,
        note,
        ours_error=float(np.nanmedian(found.errors)),
        reference_error=float(np.nanmedian(plain.errors)),
    )
    an_evaluation = row(
        f"batched DLG {name}, an evaluation",
        found.seconds / found.evaluations,
        plain.seconds / plain.evaluations,
        "of the same runs",
    )
    a_success = row(
        f"batched DLG {name}, a success",
        found.seconds / found.successes if found.successes else float("nan"),
        plain.seconds / plain.successes if plain.successes else float("nan"),
        f"of the same runs: {found.successes} and {plain.successes} starts with an MSE below "
        f"{SUCCESS:g}; empty where there is none",
    )
    return [an_image, an_evaluation, a_success]


def closed_form_row(
    models: ModelFile, targets: TargetSet, *, evaluations: int, threads: int
) -> dict[str, Any]:
    """One image by R-GAP (ours) and by one start of DLG (reference), from one float32 gradient.

    Logistic loss, y against the network's sign, label granted. `ours_error` and
    `reference_error` are the MSE of either.
    """
    chain, weights, image = models.chains[0], models.of(models.chains[0], 0), targets.inputs(0)[0]
    label = margin_label(chain, weights, image, "opposite")
    shared = capture(
        chain,
        weights,
        image[None],
        np.array([label]),
        precision="float32",
        device=torch.device("cpu"),
        loss="logistic",
    )
    low = targets.offset
    view = AttackerView(chain, weights, shared, (label,), low, low + 1.0, "logistic")
    attack = Dlg(iterations=evaluations, precision="float64")
    with _threads(threads):
        begin = time.perf_counter()
        closed = RGap(rows="balanced").run(view, 0)
        between = time.perf_counter()
        [searched] = attack.run_many([view], [0])
        end = time.perf_counter()
    if isinstance(searched, GradleakError):
        raise searched
    return row(
        f"R-GAP against DLG {chain.name}",
        between - begin,
        end - between,
        f"one image, {threads} torch threads; DLG: one start, {searched.evaluations} evaluations",
        ours_error=mse(image, closed.image),
        reference_error=mse(image, searched.image),
    )


def ours(case: Case, evaluations: int) -> Outcome:
    """All images and starts at once."""
    given = case.views[0].starts
    assert given is not None
    attack = Dlg(
        start="reconstruction",
        starts=len(given),
        iterations=evaluations,
        target=TARGET,
        precision="float32",
    )
    begin = time.perf_counter()
    found = attack.run_many(case.views, range(len(case.views)))
    seconds = time.perf_counter() - begin
    answers: list[list[Reconstruction]] = []
    for answer in found:
        if isinstance(answer, GradleakError):
            raise answer
        answers.append([answer, *answer.others])
    return _outcome(case, answers, seconds)


def fastest(run: Callable[[], Outcome], most: int) -> int:
    """Number of threads, 1 ... `most`, with which `run` takes least time."""
    seconds = {}
    for count in range(1, most + 1):
        with _threads(count):
            seconds[count] = min(run().seconds for _ in range(2))
    return min(seconds, key=lambda count: seconds[count])


def reference(case: Case, outer: int) -> Outcome:
    """Each image and start by itself, as DLG's authors run it, the label known."""
    begin = time.perf_counter()
    answers = []
    for view in case.views:
        assert view.starts is not None
        answers.append([_plain(view, start, outer) for start in view.starts])
    return _outcome(case, answers, time.perf_counter() - begin)


def _plain(view: AttackerView, start: np.ndarray, outer: int) -> Reconstruction:
    """One start of the reference; `loss` is relative to the shared gradient's squared norm."""
    module = load(view.chain, dict(view.weights), torch.float32)
    parameters = list(module.parameters())
    shared = [torch.from_numpy(view.gradients[name]) for name, _ in module.named_parameters()]
    label = torch.tensor(view.labels)
    image = torch.from_numpy(start).clone().requires_grad_()
    optimiser = torch.optim.LBFGS([image], lr=1.0, max_iter=INNER)
    evaluations, last = 0, float("inf")
    total = sum(float(value.double().square().sum()) for value in shared)

    def distance() -> torch.Tensor:
        nonlocal evaluations, last
        evaluations += 1
        loss = nn.functional.cross_entropy(module(image), label)
        found = torch.autograd.grad(loss, parameters, create_graph=True)
        pairs = zip(found, shared, strict=True)
        value = torch.stack([(a - b).square().sum() for a, b in pairs]).sum()
        image.grad = torch.autograd.grad(value, image)[0]
        last = float(value.detach()) / total
        return value.detach()

    for _ in range(outer):
        optimiser.step(distance)
        if last <= TARGET:
            break
    spent = evaluations
    images = image.detach().double().numpy()
    attacker = Dlg().failure(last, images, view)
    return Reconstruction(images, stop="all steps", failure=attacker, loss=last, evaluations=spent)


def _outcome(case: Case, answers: list[list[Reconstruction]], seconds: float) -> Outcome:
    pairs = list(zip(case.images, answers, strict=True))
    errors = np.array([[mse(image, a.image) for a in several] for image, several in pairs])
    return Outcome(
        seconds,
        np.where(np.isfinite(errors), errors, np.nan),
        np.array([[not a.failure for a in several] for several in answers]),
        sum(a.evaluations for several in answers for a in several),
    )


def _first_start(view: AttackerView) -> AttackerView:
    assert view.starts is not None
    return replace(view, starts=view.starts[:1])


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
