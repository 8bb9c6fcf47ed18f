"""Speed of the batched DLG against PyTorch's L-BFGS, one restart after the other."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from benchmarks.rgap import read_case
from benchmarks.runner import Facts, clocked, row
from benchmarks.searches import Case, Network, PlainClient, RunMany, one_by_one, searched
from gradleak.attacks.base import AttackerView, Reconstruction
from gradleak.attacks.closed_form.rgap import RGap
from gradleak.attacks.optimization.dlg import Dlg
from gradleak.data.targets import TargetSet
from gradleak.models.files import ModelFile
from gradleak.scoring.metrics.image import mse

# Inner steps of one call of PyTorch's L-BFGS: its default, and what DLG's authors use.
INNER = 20
# Outer steps to try each number of threads.
TRIAL = 3
SUCCESS = 1e-3
# Relative distance at which both stop, the reference between outer steps: an MSE of about 1e-4
# on LeNet, below `SUCCESS`.
TARGET = 1e-8
# Seed of the initializations.
STREAM = 7


@dataclass(frozen=True)
class Outcome:
    """Result of one implementation of DLG."""

    seconds: float  # for all images and restarts together
    errors: np.ndarray  # MSE (N, S) of each restart, NaN if not finite
    accepted: np.ndarray  # (N, S) whether the attacker, without the original, deems it a success
    evaluations: int  # total number of gradients

    @property
    def successes(self) -> int:
        """Number of restarts with an MSE below `SUCCESS`."""
        return int(np.sum(self.errors < SUCCESS))


def table_rows(
    models: ModelFile, targets: TargetSet, *, images: int, starts: int, outer: int, threads: int
) -> list[Facts]:
    """`rows` for a model's first seed and the first `images` images."""
    chain, count = models.chains[0], min(images, len(targets.images))
    originals = np.stack([targets.inputs(i)[0] for i in range(count)])
    limits = (targets.offset, targets.offset + 1.0)
    given = Network(chain, models.of(chain, 0), originals, targets.labels[:, 0], limits)
    case = given.case(count, starts=starts, stream=STREAM, mode="training")
    return rows(case, outer=outer, threads=threads)


def rows(case: Case, *, outer: int = 300, threads: int) -> list[Facts]:
    """Rows: seconds per image with all its restarts, per evaluation, per success.

    Each side gets `outer` times `INNER` evaluations per restart (DLG's authors make 300 calls of
    PyTorch's L-BFGS), the same float32 initializations, and its fastest number of threads.
    """
    first = case.views[0]
    one = Case([replace(first, starts=case.starts[:1])], case.images[:1])
    own = fastest(lambda: ours(case, TRIAL * INNER), threads)
    best = fastest(lambda: reference(one, TRIAL), threads)
    with _threads(own):
        found = ours(case, outer * INNER)
    with _threads(best):
        plain = reference(case, outer)
    (count, starts), both = found.errors.shape, (found, plain)
    shares = " and ".join(f"{side.successes / side.errors.size:.0%}" for side in both)
    accepted = " and ".join(f"{side.accepted.mean():.0%}" for side in both)
    note = (
        f"{count} images, {starts} starts each, {outer * INNER} evaluations at most, float32; "
        f"MSE below {SUCCESS:g}: {shares} of starts, accepted by the attacker: {accepted}; "
        f"evaluations {found.evaluations} and {plain.evaluations} (both stop at a relative "
        f"distance of {TARGET:g}); against torch.optim.LBFGS, one start after the other; each "
        f"with its fastest of 1 to {threads} threads: {own} and {best}"
    )
    again = (
        f"of the same runs: {found.successes} and {plain.successes} starts with an MSE below "
        f"{SUCCESS:g}; empty where there is none"
    )
    name = f"batched DLG {first.chain.name}"
    errors = [float(np.nanmedian(side.errors)) for side in both]
    images = [{"seconds": s.seconds / count, "error": e} for s, e in zip(both, errors, strict=True)]
    evaluations = [side.seconds / side.evaluations for side in both]
    successes = [side.seconds / (side.successes or math.nan) for side in both]
    return [
        row(f"{name}, an image", images[0], images[1], note),
        row(f"{name}, an evaluation", evaluations[0], evaluations[1], "of the same runs"),
        row(f"{name}, a success", successes[0], successes[1], again),
    ]


def closed_form_row(case_path: str, *, evaluations: int, threads: int) -> Facts:
    """One image by R-GAP (ours) and by one restart of DLG, from one float32 gradient; with MSEs."""
    case = read_case(case_path)
    attack = Dlg(iterations=evaluations, precision="float64")
    with _threads(threads):
        closed, seconds = clocked(lambda: RGap(rows="balanced").run(case.view, 0))
        [found], taken = searched(attack.run_many, [case.view])
    return row(
        f"R-GAP against DLG {case.view.chain.name}",
        {"seconds": seconds, "error": mse(case.image, closed.image)},
        {"seconds": taken, "error": mse(case.image, found.image)},
        f"one image, {threads} torch threads; DLG: one start, {found.evaluations} evaluations",
    )


def ours(case: Case, evaluations: int) -> Outcome:
    """All images and restarts at once."""
    options: dict[str, Any] = {"start": "reconstruction", "precision": "float32"}
    options |= {"starts": len(case.starts), "iterations": evaluations, "target": TARGET}
    return _outcome(case, Dlg(**options).run_many)


def fastest(run: Callable[[], Outcome], most: int) -> int:
    """Number of threads, 1 ... `most`, with which `run` is fastest."""
    seconds = {}
    for count in range(1, most + 1):
        with _threads(count):
            seconds[count] = min(run().seconds for _ in range(2))
    return min(seconds, key=lambda count: seconds[count])


def reference(case: Case, outer: int) -> Outcome:
    """Each image and restart by itself, as in DLG's authors' code, the label known."""

    def loop(view: AttackerView, _: int) -> Reconstruction:
        assert view.starts is not None
        first, *others = (_plain(view, start, outer) for start in view.starts)
        return replace(first, others=tuple(others))

    return _outcome(case, one_by_one(loop))


def _plain(view: AttackerView, start: np.ndarray, outer: int) -> Reconstruction:
    """One restart of the reference; `loss` is relative to the shared gradient's squared norm."""
    client, label = PlainClient(view), torch.tensor(view.labels)
    image = torch.from_numpy(start).clone().requires_grad_()
    optimiser = torch.optim.LBFGS([image], lr=1.0, max_iter=INNER)
    evaluations, last = 0, float("inf")

    def distance() -> torch.Tensor:
        nonlocal evaluations, last
        evaluations += 1
        value = client.distance(client.gradient(image, label))
        image.grad = torch.autograd.grad(value, image)[0]
        last = float(value.detach()) / client.square
        return value.detach()

    for _ in range(outer):
        optimiser.step(distance)
        if last <= TARGET:
            break
    images = image.detach().double().numpy()
    facts: dict[str, Any] = {"failure": Dlg().judge(last, images, view), "loss": last}
    return Reconstruction(images, stop="all steps", evaluations=evaluations, **facts)


def _outcome(case: Case, run_many: RunMany) -> Outcome:
    found, seconds = searched(run_many, case.views)
    answers = [(answer, *answer.others) for answer in found]
    pairs = zip(case.images, answers, strict=True)
    errors = np.array([[mse(image, a.images) for a in several] for image, several in pairs])
    return Outcome(
        seconds,
        np.where(np.isfinite(errors), errors, np.nan),
        np.array([[not a.failure for a in several] for several in answers]),
        sum(a.evaluations for several in answers for a in several),
    )


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
