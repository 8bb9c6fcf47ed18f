"""Sentences about the best images of batches."""

import pytest

from claims_synthetic import outcome, read, score

WHERE = {"result": "r", "model": "m"}
QUERY = {
    "form": "best",
    "metric": "ssim",
    "where": {**WHERE, "defence": "none"},
    "comparisons": [{"better": {"attack": "a"}, "than": {"attack": "b"}}],
}


def runs(attack, bests, metric="ssim", status="ok"):
    """Two images a batch: the best, and one that is worse by 0.2."""
    return [
        score(
            {**WHERE, "attack": attack}, 2 * b + k, metric, best - 0.2 * k, batch=b, status=status
        )
        for b, best in enumerate(bests)
        for k in range(2)
    ]


def judged(folder, rows, **query):
    return outcome(folder, {**QUERY, **query}, "test", read(folder, rows))


def test_best_images_are_paired_by_batch(tmp_path):
    base = [0.3, 0.5, 0.4, 0.6, 0.7]
    better = [value + 0.01 * (k + 1) for k, value in enumerate(base)]
    # The last batches, which only one attack has, do not count.
    rows = runs("a", [*better, 0.0, 0.0]) + runs("b", base)
    found = judged(tmp_path, rows)
    assert (found["verdict"], found["n"]) == ("reproduced", 5)
    assert found["ours"] == pytest.approx(0.03) and found["low"] > 0
    assert found["reason"].startswith("p = 0.031 over the best images of 5 batches")
    assert judged(tmp_path, runs("b", better) + runs("a", base))["verdict"] == "differs"
    mixed = [value + (0.1 if k % 2 else -0.1) for k, value in enumerate(base)]
    assert judged(tmp_path, runs("a", mixed) + runs("b", base))["verdict"] == "not told apart"
    few = judged(tmp_path, runs("a", better[:4]) + runs("b", base[:4]))
    assert (few["verdict"], few["reason"][:7]) == ("not judged", "scale: ")


def test_all_comparisons_must_hold_and_lower_errors_are_better(tmp_path):
    base = [0.3, 0.5, 0.4, 0.6, 0.7]
    base += [0.2]
    rows = runs("a", [value + 0.1 for value in base]) + runs("b", base)
    rows += runs("c", [value + 0.2 for value in base])
    both = [*QUERY["comparisons"], {"better": {"attack": "a"}, "than": {"attack": "c"}}]
    found = judged(tmp_path, rows, comparisons=both)
    assert (found["verdict"], found["ours"]) == ("differs", pytest.approx(-0.1))
    assert found["reason"].endswith("the largest of 2 comparisons; p = 0.031 against the sentence")
    # Two comparisons, of which the worse counts, can be contradicted by five batches' luck.
    few = [row for row in rows if int(row["batch"]) < 5]
    assert judged(tmp_path, few, comparisons=both)["verdict"] == "not told apart"
    rows = runs("a", base, "mse") + runs("b", [value + 0.1 for value in base], "mse")
    found = judged(tmp_path, rows, metric="mse")
    assert (found["verdict"], found["ours"]) == ("reproduced", pytest.approx(-0.1))


def test_a_lost_batch_is_the_worst(tmp_path):
    base = [0.3, 0.5, 0.4, 0.6, 0.7]
    lost = runs("b", base, status="failed")
    found = judged(tmp_path, runs("a", base) + [{**row, "value": ""} for row in lost])
    assert found["verdict"] == "reproduced" and found["ours"] != found["ours"]
    assert "10 of 20 runs failed" in found["reason"]
    nothing = [{**row, "value": ""} for a in "ab" for row in runs(a, base, status="failed")]
    assert judged(tmp_path, nothing)["verdict"] == "differs"


@pytest.mark.parametrize(
    ("printed", "verdict"), [((0.5, 0.4), "reproduced"), ((0.4, 0.5), "refuted")]
)
def test_printed_best_values_can_refute_it(tmp_path, printed, verdict):
    base = [0.3, 0.5, 0.4, 0.6, 0.7]
    rows = runs("a", [value + 0.1 for value in base]) + runs("b", base)
    query = {"form": "runs", "metric": "ssim", "of": "batches", "take": "max", "where": WHERE}
    grid = {
        "id": "g",
        "table": "t",
        "locator": "x",
        "kind": "value",
        "statement": "{row}: {value}.",
    }
    grid["columns"] = [
        {
            "id": "c",
            "column": "c",
            "metric": "max",
            "decimals": 2,
            "tolerance": "mean",
            "query": query,
        }
    ]
    grid["rows"] = [
        {"id": attack, "row": attack, "where": {"attack": attack}, "values": [value]}
        for attack, value in zip("ab", printed, strict=True)
    ]
    found = outcome(tmp_path, QUERY, "test", read(tmp_path, rows), [grid])
    assert found["verdict"] == verdict
    assert ("a: 0.40. b: 0.50." in found["reason"]) == (verdict == "refuted")
