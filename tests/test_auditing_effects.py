"""What a change did to a leak, over pairs of gradient and draw."""

import pytest

from audit_samples import not_applicable, run
from audit_samples import tried as case
from gradleak_audit.mitigate.mitigation_effect import SHOWN, effect, leak

DRAWS = 2


def runs(ssims):
    """Of 4 gradients in 2 draws; None for a run that failed."""
    return [run(i // DRAWS, i % DRAWS, ssim) for i, ssim in enumerate(ssims)]


def tried(change, **attacks):
    return [case(change, name, runs(ssims)) for name, ssims in attacks.items()]


READ, NEAR, FAR = [0.9] * 8, [0.4] * 8, [0.2] * 8


def test_a_gradient_counts_once_whatever_attack_or_draw_reads_it():
    first, second = [0.9, 0.1, *[0.1] * 6], [0.1, 0.8, 0.1, 0.8, *[0.1] * 4]
    found = leak(tried("none", a=first, b=second))
    assert (found.read, found.gradients, found.leak, found.attack) == (2, 4, 0.5, "b")


def test_failed_runs_read_nothing_and_without_an_answer_nothing_is_known():
    half = leak(tried("none", a=[0.9, None, None, None, *[0.1] * 4]))
    assert (half.read, half.gradients, half.leak) == (1, 4, 0.25)
    none = leak(tried("none", a=[None] * 8))
    assert (none.leak, none.attack) == (None, "a")
    assert leak([not_applicable("none", "a", "It has no layer.")]).leak is None
    assert leak([]).leak is None


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (READ, FAR, "helps"),
        (FAR, READ, "worse"),
        (NEAR, FAR, "helps"),
        (READ, READ, "no difference shown"),
        (READ, [0.86] * 8, "no difference shown"),
        (FAR, [0.24] * 8, "no difference shown"),
        ([*READ[:7], 0.1], [*FAR[:7], 0.15], "no difference shown"),
        (READ[:2], FAR[:2], "no difference shown"),
        (READ, [None] * 4 + FAR[:4], "inconclusive"),
        (READ, [None] * 8, "inconclusive"),
    ],
)
def test_only_what_chance_does_not_give_is_shown(before, after, expected):
    found, p = effect(tried("none", a=before), tried("x", a=after))
    assert found == expected
    assert (p is not None and p < SHOWN) == (expected in ("helps", "worse"))


def test_eight_pairs_of_one_sign_have_the_p_of_a_sign_test():
    _, p = effect(tried("none", a=NEAR), tried("x", a=FAR))
    assert p == pytest.approx(2 / 2**8)


def test_an_attack_that_breaks_off_shows_nothing_though_another_goes_on():
    """Clipping leaves the other attack's answers as they were."""
    before = tried("none", a=READ, b=NEAR)
    assert effect(before, tried("clip", a=[None] * 8, b=NEAR))[0] == "inconclusive"
    assert effect(before, tried("clip", a=[None] * 8, b=READ))[0] == "no difference shown"


def test_a_leak_that_grows_never_counts_as_help():
    before = [0.49, *[0.4] * 7]
    after = [0.5, *[0.3] * 7]
    assert effect(tried("none", a=before), tried("x", a=after))[0] == "no difference shown"
