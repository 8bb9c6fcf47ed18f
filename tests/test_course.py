"""First-order searches that end when their objective no longer falls."""

import gc

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import patience as measured
from chains import chain, conv, error, image, run, view
from gradleak.attacks.optimization.engine.course import LAST, LEAST, Course, Moving
from gradleak.attacks.optimization.engine.lbfgs import CHANGE
from gradleak.attacks.optimization.engine.search_batch import Best
from gradleak.attacks.optimization.grnn import Grnn
from gradleak.attacks.optimization.inverting import InvertingGradients
from gradleak.training.optimisers import adam_step

LAYERS = (conv(4, 3, stride, 1, bias=True, activation="sigmoid") for stride in (1, 2))
SMALL = chain(*LAYERS, side=5, last="identity")
WIDE = chain(conv(12, 3, 2, 1, True, "sigmoid"), last="identity")
SPENT = "all steps taken"


def walk(values, rates, patience, lowered=()):
    """Take a course over `values` (steps, M); return it and the rates of each member's steps."""
    values = torch.tensor(values, dtype=torch.float64)
    best = Best(values[0], torch.zeros(values.shape[1], 1), torch.zeros(values.shape[1], 1))
    course, taken = Course(best, rates, patience, lowered), [[] for _ in range(values.shape[1])]
    for row in values:
        ids, rate = course.ids, course.rate
        each = [rate] * len(ids) if isinstance(rate, float) else rate.tolist()
        for member, own in zip(ids.tolist(), each, strict=True):
            taken[member].append(own)
        now = row[ids]
        best.offer(now, 2.0 * now, now[:, None], -now[:, None])
        rows = course.tell(now, SPENT)
        if rows is not None and not bool(rows.any()):
            return course, taken
    raise AssertionError("the course did not end")


def test_one_that_falls_takes_all_steps_and_one_that_stalls_the_window_at_each_rate():
    rates, lowered = [1.0] * 12 + [0.1] * 8 + [0.01] * 4, [12, 20]
    falling, flat = 0.9 ** np.arange(24.0), np.full(24, 3.0)
    late = np.where(np.arange(24) < 5, falling, falling[5])
    course, taken = walk(np.stack([falling, flat, late], 1), rates, 0.125, lowered)
    assert taken[0] == rates and course.stop[0] == SPENT
    # The first value always counts as progress.
    assert taken[1] == [1.0] * 4 + [0.1] * 3 + [0.01] * 3 and course.stop[1] == CHANGE
    assert taken[2] == [1.0] * 9 + [0.1] * 3 + [0.01] * 3 and course.stop[2] == CHANGE
    assert course.steps.tolist() == [24, 10, 15]
    for trace, values, steps in zip(
        course.traces(), (falling, flat, late), (24, 10, 15), strict=True
    ):
        np.testing.assert_array_equal(trace, values[:steps])
    lowest = [falling[-1], 3.0, falling[5]]
    assert course.final("value").tolist() == lowest
    assert course.final("distance").tolist() == [2.0 * value for value in lowest]
    assert course.final("images")[:, 0].tolist() == lowest == [-x for x in course.final("logits")]


def test_one_that_falls_at_its_last_rate_alone_has_not_taken_all_steps():
    rates, lowered = [1.0] * 12 + [0.1] * 8 + [0.01] * 4, [12, 20]
    values = np.concatenate([np.full(7, 3.0), 3.0 * 0.9 ** np.arange(1.0, 18.0)])
    course, taken = walk(values[:, None], rates, 0.125, lowered)
    assert taken[0] == [1.0] * 4 + [0.1] * 3 + [0.01] * 4 and course.stop == [LAST]
    assert course.steps.tolist() == [11]


@pytest.mark.parametrize(("share", "stop"), [(0.5 * LEAST, CHANGE), (2.0 * LEAST, SPENT)])
def test_progress_is_more_than_a_hundredth_in_a_window(share, stop):
    fall = (1.0 - share) ** (np.arange(40.0) / 10.0)
    course, _ = walk(fall[:, None], [1.0] * 40, 0.25)
    assert course.stop == [stop] and (course.steps[0] == 40) == (stop == SPENT)
    assert walk(np.full((40, 1), 1.0), [1.0] * 40, 0.0)[0].stop == [SPENT]


def test_a_course_keeps_no_tensor_of_each_step():
    best = Best(torch.ones(2), torch.zeros(2, 1), torch.zeros(2, 1))
    course, counts = Course(best, [1.0] * 100, 0.0), []
    for steps in (10, 50):
        for step in range(steps):
            course.tell(torch.full((2,), 1.0 / (1.0 + step)), SPENT)
        gc.collect()  # what earlier tests left may go in between
        counts.append(sum(type(one) is torch.Tensor for one in gc.get_objects()))
    assert counts[1] <= counts[0]


def test_rates_of_each_move_as_one_rate_of_all():
    start = torch.linspace(-1.0, 1.0, 6, dtype=torch.float64).view(3, 2)
    each, state = Moving(start), [[torch.zeros_like(start)], [torch.zeros_like(start)]]
    state, alone = [*state, [torch.zeros(())]], start.clone()
    for _ in range(5):
        each.step(each.value.sin(), torch.full((3,), 0.1, dtype=torch.float64))
        adam_step([alone], [alone.sin()], state, 0.1)
    torch.testing.assert_close(each.value, alone, rtol=1e-12, atol=1e-12)
    kept = torch.tensor([True, False, True])
    each.keep(kept)
    each.step(each.value.sin(), torch.full((2,), 0.1, dtype=torch.float64))
    adam_step([alone], [alone.sin()], state, 0.1)
    torch.testing.assert_close(each.value, alone[kept], rtol=1e-12, atol=1e-12)


def views(of, count):
    return [view(of, image(of, seed), label=seed) for seed in range(count)]


@pytest.mark.parametrize("attack", [InvertingGradients, Grnn])
def test_no_member_sees_when_another_ends(attack):
    of, more = SMALL, {"iterations": 400, "patience": 0.01, "starts": 2}
    if attack is Grnn:
        of, more = WIDE, {"iterations": 150, "patience": 0.03, "latent": 32, "rate": 3e-3}
    search = attack(precision="float64", tv=0.0, **more)
    seen = views(of, 3)
    together = search.run_many(seen, [0, 1, 2])
    steps = set()
    for i, found in enumerate(together):
        alone = run(search, seen[i], i)
        assert alone.evaluations == found.evaluations and alone.stop == found.stop
        np.testing.assert_allclose(alone.images, found.images, atol=1e-5)
        steps |= {found.evaluations, *(one.evaluations for one in found.others)}
    assert len(steps) > 1, "all ended at the same step"


def test_a_search_that_is_done_ends_where_all_its_steps_lead():
    seen, settings = views(SMALL, 1)[0], {"tv": 0.0, "precision": "float64"}
    every = run(InvertingGradients(iterations=4000, **settings), seen)
    done = run(InvertingGradients(iterations=4000, patience=0.05, **settings), seen)
    assert every.evaluations == 4000 and done.stop == CHANGE
    assert done.evaluations < 3000 and len(done.trace) <= 100
    assert error(done, image(SMALL, 0)) < 2.0 * error(every, image(SMALL, 0)) + 1e-3


def test_patience_without_rates_to_wait_for_and_beyond_all_steps_is_refused():
    balanced = InvertingGradients(balance=0.5, patience=0.1)
    assert "patience" in balanced.contradiction() and "take it out" in balanced.contradiction()
    assert InvertingGradients(patience=0.1).contradiction() is None


def test_what_patience_saves_is_measured():
    ends = [(20, 0.0), (20, 0.1)]
    less = {"ends": ends, "gradients": 2}
    cases = [measured.CASES[0]._replace(**less), measured.CASES[-1]._replace(batch=7, **less)]
    rows = measured.compare(cases)
    assert len(rows) == 8 and rows[["psnr", "seconds"]].gt(0.0).all(axis=None)
    heads, _, *lines = measured.table(rows).splitlines()
    assert heads.count("|") == 8 and len(lines) == 4
    every, some = lines[:2]
    assert "| 20 | all steps |" in every and every.endswith("| 0.0 | 100 % |")
    assert "| 20 | 0.1 |" in some


def test_the_time_of_an_end_is_beside_that_of_all_steps_and_its_loss_the_worst_of_gradients():
    names = ["network", "attack", "gradient", "iterations", "patience", "psnr", "seconds"]
    of = [("n", "a", 0, 90, 0.0, 20.0, 3.0), ("n", "a", 0, 50, 0.1, 19.0, 1.0)]
    of += [("n", "a", 1, 90, 0.0, 10.0, 1.0), ("n", "a", 1, 50, 0.1, 12.0, 1.0)]
    last = measured.table(pd.DataFrame(of, columns=names)).splitlines()[-1]
    assert last == "| n | `a` | 50 | 0.1 | 15.5 | 1.0 | 50 % |"
