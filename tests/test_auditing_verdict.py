"""Verdicts: what is read, what chance would match, and the words for it."""

import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest

import audit_samples
from audit_samples import price
from gradleak_audit.attack.attack_suite import UNLOCK
from gradleak_audit.attack.samples import from_embedded
from gradleak_audit.attack.trials import Best, Judge, case
from gradleak_audit.report.verdict import Facts, p_value, ranking, verdict

PHOTOS = {"images": "embedded pictures, photos10 (train)", "gallery": 119}
SETTING = audit_samples.SETTING.model_copy(update={"count": 4, **PHOTOS})
STRUCTURE = audit_samples.structure(critical="conv1", index=12)
FACTS = Facts(SETTING, STRUCTURE, rivals=120, fresh=True, stand_in=True)


def setting(**changed):
    return replace(FACTS, setting=SETTING.model_copy(update=changed))


def scored(judge, number, answer):
    return judge.score(answer[None], np.array([number]))


@pytest.fixture(scope="module", params=[(1, 28, 28), (3, 32, 32)])
def judge(request):
    return Judge(from_embedded(request.param, 10).pool(40, 1))


def test_a_picture_of_one_colour_is_never_read(judge):
    for number in range(40):
        original = judge.pool[number]
        for colour in (original.mean((1, 2)), np.median(original, (1, 2)), 0.0, 0.5, 1.0):
            plain = np.broadcast_to(np.reshape(colour, (-1, 1, 1)), original.shape)
            assert not scored(judge, number, plain).readable, number
        # Neither is the mean of all pictures.
        assert not scored(judge, number, judge.pool[40:].mean(0)).readable, number


def test_the_picture_itself_is_read_and_so_it_is_under_little_noise(judge):
    draw = np.random.default_rng(0)
    for number in range(0, 40, 4):
        original = judge.pool[number]
        itself = scored(judge, number, original)
        assert itself.readable and itself.ssim == pytest.approx(1.0)
        noisy = np.clip(original + 0.02 * draw.standard_normal(original.shape), 0, 1)
        found = scored(judge, number, noisy)
        assert found.readable and found.matched and found.psnr > 30
    other = scored(judge, 0, judge.pool[1])
    assert not other.readable and not other.matched


def test_any_answer_to_any_image_of_a_batch_counts(judge):
    blank = np.full_like(judge.pool[0], 0.5)
    found = judge.score(np.stack([blank, judge.pool[2]]), np.array([1, 2]))
    assert found.readable and found.matched
    np.testing.assert_array_equal(found.picture, judge.pool[2])
    # The same answer to everything matches one picture at most.
    assert sum(scored(judge, k, blank).matched for k in range(40)) <= 1


def test_below_the_window_of_ssim_psnr_decides():
    pool = np.random.default_rng(0).random((30, 3, 5, 5))
    found = scored(Judge(pool), 0, pool[0])
    assert found.ssim is None and found.readable
    assert not scored(Judge(pool), 0, np.full_like(pool[0], 0.5)).readable


def run(image, seed, readable=False, matched=False, ssim=0.2, status="ok"):
    more = {"readable": readable, "matched": matched, "status": status}
    values = (ssim, 10.0) if status == "ok" else (None,)
    reason = "" if status == "ok" else "It failed."
    return audit_samples.run(image, seed, *values, reason=reason, **more)


def runs(readable=(), matched=(), failed=()):
    status = ["failed" if i in failed else "ok" for i in range(4)]
    hits = [(i, s, i in readable, i in matched) for s in range(2) for i in range(4)]
    return [run(*hit, status=status[hit[0]]) for hit in hits]


def plain(attack, **hits):
    return case("none", attack, 1, runs(**hits))


def part(name, reason="", **more):
    return audit_samples.part(name, f"{name.upper()}, an attack", "few", reason, **more)


PARTS = [part("search"), part("form"), part("mkor", "It has skips.", chapter="malicious server")]


def judged(*cases, parts=PARTS, changes=(), facts=FACTS):
    return verdict(list(cases), parts, changes, Best(), facts)


def test_one_picture_that_is_read_is_a_leak():
    found = judged(plain("search", readable=[0, 2]), plain("form", readable=[2]))
    assert found.grade == "leaks"
    assert "2 of 4 pictures could be read again by 2 of 2 attacks" in found.sentence


def test_leaks_under_changes_and_malicious_servers_do_not_count():
    found = judged(
        plain("search"),
        case("noise", "search", 1, runs(readable=[0, 1])),
        case("none", "mkor", 4, runs(readable=[0, 1, 3])),
    )
    assert found.grade == "not shown"
    assert "could read 3 of 4 pictures again" in found.malicious
    assert "2 draws" in found.malicious


@pytest.mark.parametrize(("hits", "grade"), [(0, "not shown"), (1, "not shown"), (2, "partly")])
def test_matches_count_from_where_chance_ends(hits, grade):
    one = plain("search", matched=range(hits))
    expected = binomtest(hits, 4, 2 / 120, alternative="greater").pvalue
    assert p_value(one, FACTS) == pytest.approx(expected, rel=1e-9)
    assert judged(one).grade == grade


def test_more_attacks_make_matches_by_chance_likelier():
    facts = replace(setting(gallery=39), rivals=40)
    one = plain("search", matched=[0, 1])
    parts = [*PARTS, part("c"), part("d"), part("e")]
    others = [plain(name) for name in ("form", "c", "d", "e")]
    assert judged(one, facts=facts).grade == "partly"
    assert judged(one, *others, parts=parts, facts=facts).grade == "not shown"


def test_an_audit_without_an_answer_says_so():
    found = judged(plain("search", failed=range(4)))
    assert found.grade == "not shown"
    assert "No attack gave an answer" in found.sentence
    assert any("8 of 8 runs ended without an answer" in limit for limit in found.limits)
    nothing = judged()
    assert "No attack gave an answer" in nothing.sentence


def test_failed_runs_are_attempted_and_in_no_mean():
    one = case("none", "search", 1, [run(0, 0, ssim=0.4), run(1, 0, status="failed")])
    assert (one.attempted, one.ok, one.readable) == (2, 1, 0)
    assert one.ssim.mean == one.ssim.low == 0.4
    none = case("none", "form", 1, [run(0, 0, status="not_applicable")])
    assert (none.attempted, none.ok, none.ssim) == (0, 0, None)


def change(name, leak, ssim, accuracy=None, parameters=1.0, reason="", effect="helps"):
    more = {"title": name, "reason": reason}
    more["price"] = price(parameters=parameters, accuracy=accuracy, baseline=0.9)
    if leak is not None:
        more |= {"read": round(4 * leak), "gradients": 4}
        more["effect"] = "" if name == "none" else effect
    kind = "none" if name == "none" else "noise"
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
    assert list(ranking(changes)) == order
    assert list(ranking(changes[::-1])) == order
    advice = judged(plain("search"), changes=changes).advice
    assert "helped most: farther. 4 of 4 gradients could be read without it, 0 of 4" in advice
    assert "costs 80.0% of accuracy" in advice
    same = judged(changes=[change("none", 0.0, 0.3), change("a", 0.0, 0.1)]).advice
    assert "As many gradients could be read with it (0 of 4), but answers were less near" in same
    assert "was not measured" in same
    nothing = [change("none", 1.0, 0.9), change("a", 1.0, 0.9, effect="no difference shown")]
    assert judged(changes=nothing).advice.startswith("The one change was not shown to help")


def test_limits_name_what_was_not_tried_and_what_fell_away():
    parts = [part("search"), part("form", "It has a pool."), part("other", "It has a pool.")]
    parts += [PARTS[2], part(UNLOCK, "Nothing is locked.")]
    locked = change("lock", 0.0, 0.1).model_copy(update={"kind": "lock"})
    found = judged(
        plain("search"),
        case("lock", "search", 1, [run(0, 0, status="not_applicable")]),
        case("lock", UNLOCK, 1, [run(0, 0, status="not_applicable")]),
        parts=parts,
        changes=[change("none", 0.0, 0.1), locked],
    )
    text = " ".join(found.limits)
    assert "no proof of safety" in text
    assert "FORM and OTHER were not tried. It has a pool." in text
    assert "Under 'lock' SEARCH does not apply" in text
    assert "Under 'lock' UNLOCK, which is made against it, could not be tried:" in text
    assert "Nothing is locked." not in text
    assert "Weights are fresh" in text and "stand-ins" in text
    assert "It has skips." in found.malicious
    facts = replace(FACTS, fresh=False, stand_in=False)
    given = judged(plain("search"), facts=facts)
    assert not re.search("fresh|stand-ins", " ".join(given.limits))


@pytest.mark.parametrize(
    ("count", "first", "words"),
    [
        (1, "1 gradient of one picture", "One gradient is little to go by: shares"),
        (4, "4 gradients of one picture", "4 gradients are few: shares of them"),
    ],
)
def test_words_of_a_verdict_are_sentences_and_one_gradient_is_no_plural(count, first, words):
    found = judged(plain("search", readable=[1]), facts=setting(count=count))
    assert any(text.startswith(words) for text in found.limits)
    assert found.rests_on[0].startswith(first)
    for text in (found.sentence, found.malicious, *found.rests_on, *found.limits):
        assert text[0].isupper() or text[0].isdigit()
        assert text.endswith(".") and "  " not in text


def test_weights_that_know_classes_leave_fewer_pictures_to_choose_from():
    facts = replace(FACTS, fresh=False, rivals=6)
    one = plain("search", matched=[0, 1])
    assert p_value(one, facts) > p_value(one, FACTS)
    assert judged(one).grade == "partly" and judged(one, facts=facts).grade == "not shown"


def test_a_leak_names_matches_too_and_none_by_mkor_says_none():
    one = plain("search", readable=[0], matched=[0, 1, 3])
    found = judged(one, case("none", "mkor", 4, runs()))
    assert "3 of 4 led to the right picture among 119 others" in found.sentence
    assert "could read none of the 4 pictures" in found.malicious
