"""What a change did to a leak, over pairs of gradient and draw, and what it costs."""

from dataclasses import replace

import numpy as np
import pytest

import audited
from audit_samples import not_applicable, run
from audit_samples import tried as case
from audited import CPU, SIZE, bench, chain_network, changes, pooled, solvable
from gradleak.client.defences.gaussian_noise import GaussianNoise
from gradleak.training.data import divide
from gradleak.training.engine import Trainer
from gradleak.training.recipe import Recipe
from gradleak_audit.mitigate import mitigation_cost
from gradleak_audit.mitigate.mitigation_cost import Defended
from gradleak_audit.mitigate.mitigation_effect import SHOWN, effect, leak

DRAWS = 2
photos = pytest.fixture(scope="module")(audited.photos)


def runs(ssims):
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
    before = tried("none", a=READ, b=NEAR)
    assert effect(before, tried("clip", a=[None] * 8, b=NEAR))[0] == "inconclusive"
    assert effect(before, tried("clip", a=[None] * 8, b=READ))[0] == "no difference shown"


def test_a_leak_that_grows_never_counts_as_help():
    before = [0.49, *[0.4] * 7]
    after = [0.5, *[0.3] * 7]
    assert effect(tried("none", a=before), tried("x", a=after))[0] == "no difference shown"


def split_of(photos):
    counts = {"train": 160, "validation": 20, "test": 100}
    return divide(photos.dataset(), counts, seed=0, offset=0.0, std=1.0, device=CPU)


def test_a_training_without_a_defence_is_the_trainers_own_and_noise_changes_it(photos):
    network = chain_network(pooled, SIZE)[0]
    split, recipe = split_of(photos), Recipe(2, 16, 0.05, crop=0, flip=False, precision="float32")
    plain = Trainer(network.chain, network.weights(0), split, recipe, 0).run()
    ours = Defended(network, split, recipe, None).run()
    noise = GaussianNoise(level=1.0)
    noisy, again = (Defended(network, split, recipe, noise).run() for _ in range(2))
    for name, value in plain.last.items():
        np.testing.assert_array_equal(ours.last[name], value)
        np.testing.assert_array_equal(noisy.last[name], again.last[name])
    assert np.abs(noisy.last["fc1.weight"] - plain.last["fc1.weight"]).max() > 1e-4


def test_the_rate_is_the_one_that_the_unchanged_network_learns_with(photos, monkeypatch):
    chosen = changes(chain_network(pooled, SIZE)[0])["none"]

    def learnt(*rates):
        monkeypatch.setattr(mitigation_cost, "RATES", rates)
        return mitigation_cost.accuracies([chosen], bench(photos), "laptop")["none"]

    assert learnt(1e-6, 0.05) == learnt(0.05, 1e30) == learnt(0.05) > learnt(1e-6)
    assert learnt(1e30) == (None, "Its training diverged.")


def test_accuracy_is_learnt_where_there_are_classes_and_explained_elsewhere(photos):
    chosen = list(changes(chain_network(pooled, SIZE)[0]).values())[:2]
    found = mitigation_cost.accuracies(chosen, bench(photos), "laptop")
    assert found["none"][0] > 0.3  # chance is 0.1
    unlabelled = bench(replace(photos, labelled=False))
    nothing = mitigation_cost.accuracies(chosen, unlabelled, "laptop")["none"]
    assert nothing == (None, "The images have no classes to learn.")
    few = bench(replace(photos, images=photos.images[:3], labels=photos.labels[:3]))
    assert "too few images" in mitigation_cost.accuracies(chosen, few, "laptop")["none"][1]


def test_a_step_s_time_is_without_drawing_weights_and_changes_take_turns(photos, monkeypatch):
    network = chain_network(solvable, SIZE)[0]
    clock, turns = [0.0], []

    def weights(draw):
        clock[0] += 100.0
        return network.weights(draw)

    class Slow:
        def __init__(self, seconds):
            self.seconds = seconds

        def apply(self, client, gradients, seed):
            clock[0] += self.seconds
            turns.append(self.seconds)
            return gradients

    monkeypatch.setattr(mitigation_cost.time, "perf_counter", lambda: clock[0])
    unchanged = changes(network)["none"]
    drawn = replace(unchanged, network=replace(network, weights=weights))
    wanted = {"a": 0.25, "b": 0.5}
    tried = [replace(drawn, id=name, defence=Slow(wanted[name])) for name in wanted]
    absent = replace(unchanged, id="c", network=None)
    assert mitigation_cost.step_seconds([*tried, absent], bench(photos)) == wanted
    assert turns == [0.25, 0.5] * (mitigation_cost.REPEATS + 1)
