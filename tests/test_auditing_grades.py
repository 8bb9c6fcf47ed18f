"""Grades of reconstructions: pictures that are read, in part or not, and the table behind them."""

from collections import Counter

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import gaussian_filter

from benchmarks import grades
from gradleak.scoring.metrics import image as metrics
from gradleak_audit.attack.samples import from_embedded
from gradleak_audit.attack.trials import Judge


def scored(judge, number, answer):
    return judge.score(answer[None], np.array([number]))


@pytest.fixture(scope="module", params=[(1, 28, 28), (3, 32, 32)])
def judge(request):
    return Judge(from_embedded(request.param, 10).pool(40, 1))


def test_a_picture_of_one_colour_is_never_read(judge):
    for number, original in enumerate(judge.pool[:40]):
        for colour in (original.mean((1, 2)), np.median(original, (1, 2)), 0.0, 0.5, 1.0):
            plain = np.broadcast_to(np.reshape(colour, (-1, 1, 1)), original.shape)
            assert scored(judge, number, plain).grade == "not shown", number
    # Neither is the mean of all pictures; one picture at most is the nearest to it.
    grades_of_mean = [scored(judge, k, judge.pool[40:].mean(0)).grade for k in range(40)]
    assert "read" not in grades_of_mean and grades_of_mean.count("partly") <= 1


def test_a_blur_of_a_dull_picture_is_not_read_in_part_for_its_brightness():
    """By its PSNR alone; one colour comes as near to many a photo."""
    judge = Judge(from_embedded((3, 32, 32), 10).pool(120, 1))
    near = 0
    for number in range(120):
        original = judge.pool[number]
        blurred = gaussian_filter(original, (0, 6, 6))
        found = scored(judge, number, blurred)
        near += found.psnr >= 15 and found.ssim < 0.3 and found.matched
        if found.ssim < 0.3 and found.grade == "partly":
            flat = np.broadcast_to(original.mean((1, 2), keepdims=True), original.shape)
            assert metrics.psnr(original, blurred) >= metrics.psnr(original, flat) + 3.0
    assert near >= 5


def test_the_picture_itself_is_read_and_so_it_is_under_little_noise(judge):
    draw = np.random.default_rng(0)
    for number in range(0, 40, 4):
        original = judge.pool[number]
        itself = scored(judge, number, original)
        assert itself.grade == "read" and itself.ssim == pytest.approx(1.0)
        noisy = np.clip(original + 0.02 * draw.standard_normal(original.shape), 0, 1)
        found = scored(judge, number, noisy)
        assert found.grade == "read" and found.matched and found.psnr > 30
        # Contrast and brightness do not decide whether a picture is found among others.
        assert scored(judge, number, 0.4 + 0.2 * original).matched
    other = scored(judge, 0, judge.pool[1])
    assert other.grade == "not shown" and not other.matched


def test_an_astronaut_that_anyone_recognises_is_read_below_an_ssim_of_a_half():
    judge, draw = Judge(from_embedded((3, 32, 32), 10).pool(4, 1)), np.random.default_rng(0)
    noise = draw.standard_normal(judge.pool[0].shape)
    noisy = [np.clip(judge.pool[0] + s * noise, 0, 1) for s in (0.1, 0.3, 0.7, 2)]
    scores = [scored(judge, 0, one) for one in noisy]
    assert [one.grade for one in scores] == ["read", "read", "partly", "not shown"]
    assert 0.4 < scores[1].ssim < 0.5 and all(one.matched for one in scores[:3])


def test_noise_that_eyes_look_through_hides_no_picture():
    """A pagoda under noise has an SSIM of 0.2, and more than twice that once it is smoothed."""
    judge, draw = Judge(from_embedded((3, 32, 32), 10).pool(20, 1)), np.random.default_rng(0)
    noise = draw.standard_normal(judge.pool[8].shape)
    found = scored(judge, 8, np.clip(judge.pool[8] + 0.6 * noise, 0, 1))
    assert found.ssim < 0.25 and found.smoothed > 2 * found.ssim and found.grade == "partly"
    # What is near the image already does not gain; noise alone and other images stay hidden.
    assert scored(judge, 8, judge.pool[8]).smoothed < 1.0
    for other in (0.5 + 0.3 * noise, judge.pool[1], gaussian_filter(judge.pool[8], (0, 12, 12))):
        assert scored(judge, 8, np.clip(other, 0, 1)).grade == "not shown"


def test_another_digit_of_the_same_class_is_seldom_the_right_one():
    digits = from_embedded((1, 28, 28), 10)
    judge, alike, taken = Judge(digits.pool(4, 1)), 0, 0
    for number in range(20):
        for other in 120 + np.flatnonzero(digits.labels[120:300] == digits.labels[number]):
            found = scored(judge, number, digits.images[other] / 255.0)
            alike += found.ssim >= 0.5
            taken += found.grade != "not shown"
    assert alike > 200 and taken < alike / 8


def test_the_table_behind_the_thresholds_and_their_picture_are_made(monkeypatch, tmp_path):
    few = {"CANDIDATES": 12, "IMAGES": 9, "SEARCHED": 1, "STEPS": (2,), "BLUR": (1.0,)}
    few |= {"NOISE": (0.1, 0.9), "MIXED": (0.9,), "PICTURE": tmp_path / "grades.png"}
    few |= {"EXAMPLES": ((0, "search"), (8, "noise"))}
    for name, value in few.items():
        monkeypatch.setattr(grades, name, value)
    rows, pictures = grades.measured(None)
    assert Counter(rows["kind"]) == {"noise": 18, "blur": 9, "mixed": 9, "search": 2}
    assert len(pictures) == len(rows) and set(rows["grade"]) == {"read", "partly", "not shown"}
    # A picture under much of another one is not found, one under little noise is.
    heads, _, *lines = grades.table(rows, "seen", grades.TENTHS).splitlines()
    assert heads.startswith("| SSIM | n | first by correlation | first 0 by correlation")
    assert lines[-1].split(" | ")[2] == "100 %" != lines[0].split(" | ")[2]
    grades.draw(rows, pictures)
    with Image.open(tmp_path / "grades.png") as drawn:
        assert drawn.size == (8 * 108 + 12, 64 + 2 * 108)


def test_duplicates_of_a_picture_do_not_hide_it():
    pool = np.random.default_rng(0).random((30, 3, 8, 8))
    pool[1] = pool[0]
    assert [scored(Judge(pool), number, pool[0]).grade for number in (0, 1)] == ["read"] * 2


def test_any_answer_to_any_image_of_a_batch_counts(judge):
    blank = np.full_like(judge.pool[0], 0.5)
    found = judge.score(np.stack([blank, judge.pool[2]]), np.array([1, 2]))
    assert found.grade == "read" and found.matched
    np.testing.assert_array_equal(found.picture, judge.pool[2])
    # The same answer to everything matches one picture at most.
    assert sum(scored(judge, k, blank).matched for k in range(40)) <= 1
    # Below the window of SSIM PSNR decides.
    pool = np.random.default_rng(0).random((30, 3, 5, 5))
    found = scored(Judge(pool), 0, pool[0])
    assert found.ssim is None and found.grade == "read"
    assert scored(Judge(pool), 0, np.full_like(pool[0], 0.5)).grade == "not shown"
