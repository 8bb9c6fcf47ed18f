"""Sentences with several parts: one verdict each, from those of the parts."""

import math
from dataclasses import replace

import pytest

from claims_synthetic import claim, claims_file, explained, outcome, read, score, verdicts
from conftest import sentence
from gradleak.claims import tally
from gradleak.claims.model import Claim, Sentence
from gradleak.claims.outcome import VERDICTS, Outcome
from gradleak.claims.sentences import Part, combined
from gradleak.claims.statistics import simes
from gradleak.errors import ConfigError

WHERE = {"result": "r", "model": "m", "attack": "a"}
OTHER = {**WHERE, "attack": "b"}
WHOLE = {"id": "all", "statement": "It holds everywhere."}
HOLDS = (0.01, 0.99)


def part(verdict, p=(math.nan, math.nan), n=5):
    found = Outcome(verdict, f"because {verdict}", p=p[0], p_against=p[1], n=n, n_ok=n - 1)
    query = {"form": "elsewhere", "reason": "data: none"}
    made = {"id": verdict, "statement": "s", "paper": "x", "locator": "x", "kind": "order"}
    return Part(Claim.model_validate({**made, "query": query, "tolerance": "test"}), found, 0.05)


def whole(*parts, holds="all"):
    return combined(Sentence(**WHOLE, holds=holds), parts)


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_sentence_of_one_case_has_its_verdict(verdict):
    made = whole(part(verdict))
    assert made.verdict == ("reproduced" if verdict == "exceeds" else verdict)
    assert (made.n, made.n_ok) == (1, int(verdict != "not judged"))
    shown = "" if verdict in ("reproduced", "exceeds", "by definition") else "because"
    assert made.reason.startswith(f"of 1 parts: 1 {verdict}") and shown in made.reason


@pytest.mark.parametrize(
    ("cases", "verdict"),
    [
        (["reproduced", "exceeds", "by definition"], "reproduced"),
        (["by definition", "by definition"], "by definition"),
        (["reproduced", "not judged"], "not judged"),
        (["not judged", "not told apart", "reproduced"], "not told apart"),
        (["not told apart", "differs", "not judged"], "differs"),
        (["differs", "refuted", "reproduced"], "refuted"),
    ],
)
def test_the_most_decisive_case_decides(cases, verdict):
    assert whole(*map(part, cases)).verdict == verdict
    assert whole(*map(part, reversed(cases))).verdict == verdict


@pytest.mark.parametrize(
    ("cases", "verdict"),
    [
        (["reproduced", "exceeds", "refuted"], "reproduced"),
        (["reproduced", "refuted", "refuted"], "refuted"),
        (["reproduced", "differs", "refuted"], "differs"),
        (["reproduced", "differs"], "not told apart"),
        (["reproduced", "differs", "not judged"], "not judged"),
    ],
)
def test_most_is_more_than_half(cases, verdict):
    assert whole(*map(part, cases), holds="most").verdict == verdict


def test_what_differs_by_chance_in_one_of_many_cases_is_not_told_apart():
    many = [part("reproduced", HOLDS)] * 4
    one = whole(part("differs", (0.97, 0.03)), *many)
    assert one.verdict == "not told apart" and one.p_against == pytest.approx(0.15)
    words = "together p = 0.15 against the sentence; differs: because differs"
    assert "1 differs" in one.reason and one.reason.endswith(words)
    assert whole(part("differs", (0.97, 0.03))).verdict == "differs"
    # Several contradict it together; what was not a test needs no correction.
    assert whole(*[part("differs", (0.97, 0.03))] * 3, *many[:2]).verdict == "differs"
    assert whole(part("differs"), *many).verdict == "differs"
    # What is not a test decides alone, without a p-value, and is the example.
    sure = part("differs")
    sure = replace(sure, outcome=replace(sure.outcome, reason="0 of 1 comparisons hold"))
    made = whole(part("differs", (0.97, 0.03)), *many, sure)
    assert made.verdict == "differs" and math.isnan(made.p) and math.isnan(made.p_against)
    assert made.reason == "of 6 parts: 2 differs, 4 reproduced; differs: 0 of 1 comparisons hold"
    assert whole(*many, part("reproduced", (0.04, 0.9))).p == 0.04


def test_cases_that_only_one_side_silences_are_counted():
    silent = part("not judged", HOLDS)
    silent = replace(silent, outcome=replace(silent.outcome, one_sided=True))
    failing = part("differs", (0.97, 0.03))
    assert whole(failing, *[silent] * 8).verdict == "not told apart"
    assert whole(failing, *[part("not judged", HOLDS)] * 8).verdict == "differs"


def test_the_p_value_of_a_sentence_is_of_the_side_of_its_verdict():
    holds, fails = part("reproduced", (0.002, 0.99)), part("differs", (0.99, 0.001))
    made = whole(holds, holds)
    assert (made.p, made.p_against) == (0.002, 1.0)
    made = whole(holds, fails)
    assert (made.p, made.p_against) == (1.0, 0.002)
    made = whole(holds, part("differs"))
    assert math.isnan(made.p) and math.isnan(made.p_against)
    made = whole(holds, holds, fails, holds="most")
    assert made.verdict == "reproduced" and math.isnan(made.p)


def test_simes_gains_from_several_small_p_values():
    assert simes([0.03, 0.5, 0.9]) == pytest.approx(0.09)
    assert simes([0.03, 0.03, 0.9]) == pytest.approx(0.045)
    assert simes([0.9]) == 0.9 and math.isnan(simes([]))


def pair(name, better, than, **more):
    query = {"form": "compare", "unit": "image", "where": {"result": name}}
    query["comparisons"] = [{"better": {"attack": better}, "than": {"attack": than}}]
    return claim(name, query, "test", **more)


def runs(name, ratio):
    where = [{**WHERE, "result": name}, {**OTHER, "result": name}]
    values = [0.01 * (index + 1) for index in range(6)]
    rows = [score(where[0], index, "mse", value) for index, value in enumerate(values)]
    return rows + [
        score(where[1], index, "mse", value * ratio) for index, value in enumerate(values)
    ]


def test_a_sentence_stands_before_its_cases_which_are_no_tests_of_their_own(tmp_path):
    cases = [pair(name, "a", "b", part_of=WHOLE) for name in ("x", "y")]
    ours = pair("z", "a", "b", part_of=WHOLE, whose="ours")
    claims = claims_file(tmp_path, [pair("w", "a", "b"), cases[0], ours, cases[1]])
    evidence = read(tmp_path, [*runs("w", 2), *runs("x", 2), *runs("y", 0.5), *runs("z", 0.5)])
    why = explained(tmp_path, claims, {"y": "Why y.", "x": "Why x.", "z": "Why z."})
    found = verdicts(claims, evidence, why=why)
    assert list(found.index) == ["w", "all", "x", "y", "z"]
    assert found["part_of"].to_dict() == {"w": "", "all": "", "x": "all", "y": "all", "z": ""}
    assert found["verdict"].to_dict() == {
        "w": "reproduced", "all": "differs", "x": "reproduced", "y": "differs", "z": "differs",
    }  # fmt: skip
    assert found.loc["all", ["statement", "explanation", "evidence", "n"]].tolist() == [
        "It holds everywhere.", "Why y.", "x, y", 2,
    ]  # fmt: skip
    assert found.loc[["x", "y"], "holm"].isna().all() and found.loc["all", "holm"] > 0
    kinds = {kind: list(tally.of_kind(found, kind).index) for kind in tally.KINDS}
    assert kinds == {"paper": ["w", "all"], "ours": ["z"], "parts": ["x", "y"]}
    assert tally.of_tests(tally.of_kind(found, "paper"))["tests"] == 2


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([WHOLE, {**WHOLE, "statement": "Other."}], "written in two ways"),
        ([{**WHOLE, "id": "x"}, WHOLE], "a claim has this id"),
    ],
)
def test_a_sentence_is_written_once_under_an_id_of_its_own(tmp_path, parts, words):
    cases = [pair(name, "a", "b", part_of=one) for name, one in zip("xy", parts, strict=True)]
    assert words in sentence(ConfigError, claims_file, tmp_path, cases)


@pytest.mark.parametrize(("ratio", "plain"), [(2, "reproduced"), (0.5, "differs")])
def test_a_short_attack_decides_one_side_only(tmp_path, ratio, plain):
    needs = {"scale": "paper", "why": "3 of 9 steps"}
    claims = claims_file(
        tmp_path,
        [pair("x", "a", "b"), *(pair(name, "a", "b", **{name: needs}) for name in TO)],
    )
    evidence = read(tmp_path, [row for name in ("x", *TO) for row in runs(name, ratio)])
    found = verdicts(claims, evidence)
    left = dict(zip(TO, ("not judged", plain) if ratio > 1 else (plain, "not judged"), strict=True))
    assert found["verdict"].to_dict() == {"x": plain, **left}
    (waiting,) = found.loc[found["verdict"] == "not judged", "reason"]
    assert waiting == "scale: needs at least paper, this is laptop: 3 of 9 steps"
    assert set(verdicts(claims, evidence, scale="paper")["verdict"]) == {plain}


TO = ("to_hold", "to_fail")


def number(name, metric, value, **more):
    query = {"form": "runs", "metric": metric, "where": WHERE}
    return claim(name, query, "prediction", paper_value=value, kind="value", **more)


def test_where_one_number_shows_that_nothing_was_found_those_beside_it_say_nothing(tmp_path):
    nothing = [{"metric": "mse", "at_least": 0.3, "reason": "as grey"}]
    cases = [number("x", "mse", 0.5, nothing=nothing), number("y", "ssim", 0.3, nothing_as="x")]
    claims = claims_file(tmp_path, cases)

    def found(mse):
        pairs = (("mse", mse), ("ssim", 0.3))
        rows = [score(WHERE, k, m, v * (1 + k / 100)) for m, v in pairs for k in range(5)]
        return verdicts(claims, read(tmp_path, rows))

    lost = found(0.5)
    assert set(lost["verdict"]) == {"not judged"} and lost["reason"].str.endswith("as grey").all()
    assert found(0.1)["verdict"].to_dict() == {"x": "exceeds", "y": "reproduced"}
    for name in ("z", "y"):
        wrong = [cases[0], number("y", "ssim", 0.3, nothing_as=name)]
        said = sentence(ConfigError, claims_file, tmp_path, wrong)
        assert f"nothing_as '{name}' is no claim's id, or of one that has nothing_as" in said


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.9, "reproduced"), (0.1, "differs"), (0.55, "not told apart")]
)
def test_a_proportion_is_tested_to_both_sides(tmp_path, share, verdict):
    query = {"form": "proportion", "table": "shares", "where": {"row": "all"}}
    evidence = read(tmp_path, shares=[{"row": "all", "ours": share, "n": 20}])
    found = outcome(tmp_path, query, "half", evidence)
    assert (found["verdict"], found["ours"], found["n"]) == (verdict, share, 20)
    assert found["low"] < share < found["high"] and f"{share * 20:.0f} of 20" in found["reason"]
    twice = read(tmp_path, shares=[{"row": "all", "ours": share, "n": 20}] * 2)
    assert "2 rows" in sentence(ConfigError, outcome, tmp_path, query, "half", twice)


@pytest.mark.parametrize(
    ("count", "n", "verdict"),
    [
        (1, 20, "reproduced"),
        (0, 20, "not told apart"),
        (0, 58, "not told apart"),
        (0, 59, "differs"),
    ],
)
def test_none_of_a_few_cases_does_not_mean_never(tmp_path, count, n, verdict):
    query = {"form": "sometimes", "table": "counts", "where": {}}
    evidence = read(tmp_path, counts=[{"ours": count, "n": n}])
    found = outcome(tmp_path, query, "rarely", evidence)
    assert tuple(found[["verdict", "n", "window"]]) == (verdict, n, "at least one")
    assert found["ours"] == count / n
    if n == 20 and not count:
        assert found["high"] == pytest.approx(1 - 0.05 ** (1 / 20))
        assert found["reason"] == "0 of 20, a rate of up to 14 % is not excluded"
        assert found["p"] == pytest.approx(0.95**20)
