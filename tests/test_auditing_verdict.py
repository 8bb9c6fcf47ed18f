"""Verdicts and the words for them; what a change did to a leak over pairs, and what it costs."""

import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest

import audit_samples
import audited
from audit_samples import not_applicable, price
from audited import CPU, bench, changes, network_of, pooled, solvable
from gradleak.client.defences.gaussian_noise import GaussianNoise
from gradleak.training.data import divide
from gradleak.training.engine import Trainer
from gradleak.training.recipe import Recipe
from gradleak_audit.attack.attack_suite import UNLOCK
from gradleak_audit.attack.trials import Best, case
from gradleak_audit.mitigate import mitigation_cost
from gradleak_audit.mitigate.mitigation_cost import Defended
from gradleak_audit.mitigate.mitigation_effect import SHOWN, effect, leak
from gradleak_audit.report.verdict import Facts, p_value, ranking, verdict

photos = pytest.fixture(scope="module")(audited.photos)
PHOTOS = {"images": "crops of photos, photos10 (train)", "gallery": 119}
SETTING = audit_samples.SETTING.model_copy(update={"count": 4, **PHOTOS})
STRUCTURE = audit_samples.structure(critical="conv1", index=12)
FACTS = Facts(SETTING, STRUCTURE, rivals=120, fresh=True, stand_in=True)


def setting(**changed):
    return replace(FACTS, setting=SETTING.model_copy(update=changed))


def runs(read=(), partly=(), matched=(), failed=()):
    """Runs of four images under two seeds."""
    given = [(i, s, *((None,) if i in failed else (0.2, 10.0))) for s in range(2) for i in range(4)]
    grades = ["read" if i in read else "partly" if i in partly else "not shown" for i, *_ in given]
    hits = zip(given, grades, strict=True)
    return [audit_samples.run(*one, grade=g, matched=one[0] in matched) for one, g in hits]


def plain(attack, **hits):
    return case("none", attack, 1, runs(**hits))


def part(name, reason="", **more):
    return audit_samples.part(name, f"{name.upper()}, an attack", "few", reason, **more)


PARTS = [part("search"), part("form"), part("mkor", "It has skips.", chapter="malicious server")]


def judged(*cases, parts=PARTS, changes=(), facts=FACTS):
    return verdict(list(cases), parts, changes, Best(), facts)


def test_one_picture_that_is_read_is_a_leak():
    found = judged(plain("search", read=[0, 2], partly=[1]), plain("form", read=[2]))
    assert found.grade == "read"
    assert found.sentence == (
        "From the gradient that one step on one image shares, 2 of 4 images could be read, "
        "and 1 more in part. Of 2 attacks that were tried, 2 read an image; SEARCH did "
        "best (2 of 4, SSIM up to 0.20, PSNR up to 10.0 dB). 0 of 4 gradients led to the right "
        "image among 119 others."
    )
    found = judged(plain("search", partly=[1]), plain("form"))
    assert found.grade == "partly"
    assert "1 of 4 images could be read in part. Of 2 attacks that were tried, 1 read" in (
        found.sentence
    )
    alone = judged(plain("search", partly=[1])).sentence
    assert "in part by SEARCH, the one attack that was tried (1 of 4, SSIM" in alone
    ran = "Attacks ran a as b. They agree."
    assert ran in judged(plain("search"), facts=replace(FACTS, substituted=ran)).rests_on
    one = plain("search", read=[0], matched=[0, 1, 3])
    found = judged(one, case("none", "mkor", 4, runs()))
    assert "3 of 4 gradients led to the right image among 119 others" in found.sentence
    assert "could read none of the 4 images" in found.malicious
    # Leaks under changes and to malicious servers do not count.
    under, bad = case("noise", "search", 1, runs([0, 1])), case("none", "mkor", 4, runs([0, 1, 3]))
    found = judged(plain("search"), under, bad)
    assert found.grade == "not shown"
    assert "could read 3 of 4 images, at least in part" in found.malicious
    assert "2 seeds" in found.malicious


@pytest.mark.parametrize(("hits", "grade"), [(0, "not shown"), (1, "not shown"), (2, "partly")])
def test_matches_count_from_where_chance_ends(hits, grade):
    one = plain("search", matched=range(hits))
    expected = binomtest(hits, 4, 2 / 120, alternative="greater").pvalue
    assert p_value(one, FACTS) == pytest.approx(expected, rel=1e-9)
    found = judged(one, plain("form", matched=[3]))
    assert (found.grade, found.matched) == (grade, hits if grade == "partly" else 0)
    if grade == "partly":
        assert found.sentence == (
            "No reconstruction shows its image. But from 2 of 4 gradients SEARCH gave a "
            "reconstruction (SSIM up to 0.20, PSNR up to 10.0 dB) that is more like the right "
            "image than like any of 119 others, which chance alone would seldom do "
            f"(p = {2 * expected:.2g}): something of the images leaks."
        )


def test_of_attacks_that_match_as_many_the_nearest_is_named():
    near = plain("search", matched=range(4))
    further = [run.model_copy(update={"ssim": 0.1}) for run in near.runs]
    for both in (
        (near, case("none", "form", 1, further)),
        (case("none", "form", 1, further), near),
    ):
        assert "SEARCH gave a reconstruction" in judged(*both).sentence


def test_a_test_that_can_find_nothing_says_so_instead_of_finding_nothing():
    one = plain("search", matched=range(4))
    found = judged(one, facts=replace(FACTS, fresh=False, rivals=2))
    assert found.grade == "not shown" and "4 of 4 led to the right one" in found.sentence
    assert "cannot be told from chance" in found.sentence and "more often" not in found.sentence
    assert any("no p-value could be below 1" in line for line in found.rests_on)
    assert "more often than chance would" in judged(plain("search")).sentence


def test_more_attacks_and_fewer_pictures_make_matches_by_chance_likelier():
    one = plain("search", matched=[0, 1])
    # Weights that know classes leave fewer pictures to choose from.
    facts = replace(FACTS, fresh=False, rivals=6)
    assert p_value(one, facts) > p_value(one, FACTS)
    assert judged(one).grade == "partly" and judged(one, facts=facts).grade == "not shown"
    facts = replace(setting(gallery=39), rivals=40)
    parts = [*PARTS, part("c"), part("d"), part("e")]
    others = [plain(name) for name in ("form", "c", "d", "e")]
    assert judged(one, facts=facts).grade == "partly"
    assert judged(one, *others, parts=parts, facts=facts).grade == "not shown"


def test_an_audit_without_an_answer_says_so():
    found = judged(plain("search", failed=range(4)))
    assert found.grade == "not shown"
    assert any("8 of 8 runs ended without a reconstruction" in limit for limit in found.limits)
    for nothing in (found, judged()):
        assert "No attack gave a reconstruction" in nothing.sentence


def change(name, leak, ssim, accuracy=None, parameters=1.0, reason="", effect="helps"):
    kind, effect = ("none", "") if name == "none" else ("noise", effect)
    more = {"price": price(parameters=parameters, accuracy=accuracy, baseline=0.9)}
    if leak is not None:
        more |= {"read": round(4 * leak), "gradients": 4, "effect": effect}
    more |= {"title": name, "reason": reason}
    return audit_samples.change(name, kind, leak, ssim, "search", **more)


def test_changes_that_help_rank_by_what_is_left_and_then_by_price():
    changes = [
        change("none", 1.0, 0.9),
        change("weak", 0.5, 0.05, accuracy=0.9),
        change("costly", 0.0, 0.1, accuracy=0.2),
        change("cheap", 0.0, 0.1, accuracy=0.9),
        change("large", 0.0, 0.1, accuracy=0.9, parameters=2.0),
        change("farther", 0.0, 0.04, accuracy=0.1),
        change("nearly", 0.0, 0.14, accuracy=0.95),
        change("useless", 0.0, 0.01, effect="no difference shown"),
        change("broken", 0.0, 0.01, effect="inconclusive"),
        change("untried", None, None, reason="It has no skip."),
    ]
    order = ["farther", "nearly", "cheap", "large", "costly", "weak"]
    assert list(ranking(changes)) == list(ranking(changes[::-1])) == order
    advice = judged(plain("search"), changes=changes).advice
    assert "farther. 4 of 4 gradients could be read at least in part without it, 0 of 4" in advice
    assert "costs 80.0% of accuracy" in advice
    same = judged(changes=[change("none", 0.0, 0.3), change("a", 0.0, 0.1)]).advice
    assert (
        "As many gradients could be read with it (0 of 4), but reconstructions were further away"
        in same
    )
    assert "was not measured" in same
    nothing = [change("none", 1.0, 0.9), change("a", 1.0, 0.3, effect="too few pairs")]
    assert judged(changes=nothing).advice.startswith("The one change was not shown to help")
    advice = judged(changes=nothing, facts=setting(count=1, seeds=1)).advice
    assert advice.startswith("With 1 pair of gradient and seed no change can be shown to help")
    assert "8 are needed. Set count and seeds" in advice and "under 'a': 0.90 → 0.30" in advice


def test_limits_name_what_was_not_tried_and_what_fell_away():
    parts = [part("search"), part("form", "It has a pool."), part("other", "It has a pool.")]
    parts += [PARTS[2], part(UNLOCK, "Nothing is locked.")]
    locked = change("lock", 0.0, 0.1).model_copy(update={"kind": "lock"})
    found = judged(
        plain("search"),
        *(not_applicable("lock", name, "It failed.") for name in ("search", UNLOCK)),
        parts=parts,
        changes=[change("none", 0.0, 0.1), locked],
    )
    text = " ".join(found.limits)
    assert "no proof of safety" in text
    assert "FORM and OTHER were not tried. It has a pool." in text
    assert "Under 'lock' SEARCH does not apply" in text
    assert "Under 'lock' UNLOCK, which is made against it, could not be tried:" in text
    assert "Nothing is locked." not in text
    assert "Weights are untrained" in text and "stand-ins" in text
    # The reason stands with the attack.
    assert found.malicious.endswith("its attack does not apply to this network.")
    given = judged(plain("search"), facts=replace(FACTS, fresh=False, stand_in=False))
    assert not re.search("untrained|stand-ins", " ".join(given.limits))


def test_words_of_a_verdict_are_sentences_and_one_gradient_is_no_plural():
    for count, first, words in (
        (1, "1 gradient of one image", "One gradient is little to go by: shares"),
        (4, "4 gradients of one image", "4 gradients are few: shares of them"),
    ):
        found = judged(plain("search", read=[1]), facts=setting(count=count))
        assert any(text.startswith(words) for text in found.limits)
        assert found.rests_on[0].startswith(first)
        for text in (found.sentence, found.malicious, *found.rests_on, *found.limits):
            assert re.match("[A-Z0-9]", text) and text.endswith(".") and "  " not in text


def tried(change, **attacks):
    """Cases of four gradients under two seeds, with these SSIMs."""
    return [
        case(change, name, 1, [audit_samples.run(*divmod(i, 2), s) for i, s in enumerate(ssims)])
        for name, ssims in attacks.items()
    ]


READ, NEAR, FAR = [0.9] * 8, [0.4] * 8, [0.2] * 8


def test_a_gradient_counts_once_whatever_attack_or_draw_reads_it():
    first, second = [0.9, 0.1, *[0.1] * 6], [0.1, 0.8, 0.1, 0.8, *[0.1] * 4]
    found = leak(tried("none", a=first, b=second))
    assert (found.read, found.gradients, found.leak, found.attack) == (2, 4, 0.5, "b")
    assert found.matched == 2, "of the attack that matches most"
    found = leak(tried("none", a=[0.4, 0.9, *[0.1] * 6], b=[0.1, 0.1, 0.4, 0.1, *[0.1] * 4]))
    assert (found.read, found.partly, found.leak, found.attack) == (1, 1, 0.5, "a")


def test_failed_runs_read_nothing_and_without_an_answer_nothing_is_known():
    quarter = leak(tried("none", a=[0.9, None, None, None, *[0.1] * 4]))
    assert (quarter.read, quarter.gradients, quarter.leak) == (1, 4, 0.25)
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
        (READ[:7], FAR[:7], "too few pairs"),
        (READ[:7], READ[:7], "too few pairs"),
        (READ, [None] * 4 + FAR[:4], "inconclusive"),
        (READ, [None] * 8, "inconclusive"),
    ],
)
def test_only_what_chance_does_not_give_is_shown(before, after, expected):
    found, p = effect(tried("none", a=before), tried("x", a=after))
    shown = expected in ("helps", "worse")
    assert found == expected and (p is not None and p < SHOWN) == shown
    assert not shown or p == pytest.approx(2 / 2**8)  # eight pairs of one sign


def test_neither_an_attack_that_breaks_off_nor_a_leak_that_grows_counts_as_help():
    before, grown = tried("none", a=[0.49, *NEAR[:7]]), tried("x", a=[0.5, *[0.3] * 7])
    assert effect(before, grown)[0] == "no difference shown"
    before = tried("none", a=READ, b=NEAR)
    assert effect(before, tried("clip", a=[None] * 8, b=NEAR))[0] == "inconclusive"
    assert effect(before, tried("clip", a=[None] * 8, b=READ))[0] == "no difference shown"


def test_a_training_without_a_defence_is_the_trainers_own_and_noise_changes_it(photos):
    network, counts = network_of(pooled), {"train": 160, "validation": 20, "test": 100}
    split = divide(photos.dataset(), counts, seed=0, offset=0.0, std=1.0, device=CPU)
    recipe = Recipe(2, 16, 0.05, crop=0, flip=False, precision="float32")
    plain = Trainer(network.chain, network.weights(0), split, recipe, 0).run()
    ours = Defended(network, split, recipe, None).run()
    noise = GaussianNoise(level=1.0)
    noisy, again = (Defended(network, split, recipe, noise).run() for _ in range(2))
    for name, value in plain.last.items():
        np.testing.assert_array_equal(ours.last[name], value)
        np.testing.assert_array_equal(noisy.last[name], again.last[name])
    assert np.abs(noisy.last["fc1.weight"] - plain.last["fc1.weight"]).max() > 1e-4


def test_accuracy_is_learnt_at_the_rate_of_the_unchanged_network_or_explained(photos, monkeypatch):
    chosen = changes(network_of(pooled))["none"]

    def learnt(*rates, images=photos):
        monkeypatch.setattr(mitigation_cost, "RATES", rates or mitigation_cost.RATES)
        return mitigation_cost.accuracies([chosen], bench(images), "laptop")["none"]

    assert learnt()[0] > 0.3  # chance is 0.1
    unlabelled = replace(photos, labelled=False)
    assert learnt(images=unlabelled) == (None, "The images have no classes to learn.")
    few = replace(photos, images=photos.images[:3], labels=photos.labels[:3])
    assert "too few images" in learnt(images=few)[1]
    assert learnt(1e-6, 0.05) == learnt(0.05, 1e30) == learnt(0.05) > learnt(1e-6)
    assert learnt(1e30) == (None, "Its training diverged.")


def test_a_step_s_time_is_without_drawing_weights_and_changes_take_turns(photos, monkeypatch):
    network = network_of(solvable)
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
    tried.append(replace(unchanged, id="c", network=None))
    assert mitigation_cost.step_seconds(tried, bench(photos)) == wanted
    assert turns == [0.25, 0.5] * (mitigation_cost.REPEATS + 1)
