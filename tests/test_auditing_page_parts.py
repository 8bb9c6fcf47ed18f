"""Parts of an audit's page: changes that help, pictures, numbers."""

import base64
import io
import math
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import audit_samples
from audit_samples import AUDITS, CHANGES, VERDICT, audit, lines, pictures, run, table, tree, tried
from conftest import ROOT
from gradleak.claims.show import EXAMPLE, Record
from gradleak.claims.show import lines as claim_lines
from gradleak.reporting import page_text, pages
from gradleak.reporting.pictures import thumbnail
from gradleak.runtime.artifacts import ArtifactError
from gradleak.scoring.metrics import image as metrics
from gradleak_audit.report import page
from gradleak_audit.report.files import Pictures
from gradleak_audit.report.page import LARGE, SMALL
from gradleak_audit.result import Audit

LEAKS, BARE = (tree(AUDITS[name]) for name in ("read", "bare"))
MIB = 2**20


def pixels(image):
    head, _, data = image["src"].partition(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def bytes_of(picture):
    return np.rint(np.clip(picture, 0, 1) * 255).astype(np.uint8).transpose(1, 2, 0)


def test_changes_that_are_not_tried_say_why_and_a_bar_shows_both_shares():
    assert audit_samples.all_terms(LEAKS, "help") == {
        "Cut the largest <skip>": "the network has no skip that could be cut",
        f"Half the filters of {audit_samples.LONG}": "no labelled data was given",
        "Key-lock": "<b>",
    }
    bar = table(LEAKS, "changes")[0]["Read or in part, before → after"].one("svg")
    old, new = (bar.one("circle", class_=name) for name in ("old", "new"))
    assert (float(old["cx"]), float(new["cx"])) == (56, 6) and bar["aria-hidden"] == "true"


def test_the_worst_answer_stands_beside_its_original():
    shown = pictures()
    original, answer = LEAKS.one("section", id="images").all("img")[:2]
    for image, expected in ((original, shown.originals[2]), (answer, shown.answers["copa"][2])):
        np.testing.assert_array_equal(pixels(image), bytes_of(expected))
        assert int(image["width"]) == int(image["height"]) == LARGE // 32 * 32
        assert image["class"] == "enlarged"
    assert original["alt"] == "Original of image 3"
    for text in (answer["alt"], answer.parent.one("figcaption").text()):
        assert all(part in text for part in ("COPA", "39.7 dB", "0.99"))


def test_the_strip_has_every_picture_and_the_best_answer_of_every_attack_that_was_run():
    shown = pictures()
    rows = table(LEAKS, "strip")
    for number, row in enumerate(rows):
        alts = [image["alt"] for cell in row.values() for image in cell.all("img")]
        assert len(alts) >= 2 and all(str(number + 1) in alt for alt in alts)
        assert pixels(row["Original"].one("img")).shape == (32, 32, 3)
        assert row["COPA"].one("img")["width"] == str(SMALL)
    assert not rows[0]["Inverting Gradients"].all("img")
    answer = rows[1]["Inverting Gradients"].one("img")
    assert answer["alt"] == (
        "Reconstruction of image 2, by Inverting Gradients; PSNR 10.6 dB, SSIM 0.02, not shown"
    )
    np.testing.assert_array_equal(pixels(answer), bytes_of(shown.answers["ig"][1]))
    # Those of a malicious server stand in their own chapter.
    shared = "Reconstruction of image 1, one of 3 that share a gradient, by MKOR; PSNR 34.0 dB"
    assert table(LEAKS, "malicious-strip")[0]["MKOR"].one("img")["alt"].startswith(shared)
    assert "MKOR" not in LEAKS.one("section", id="images").text()
    # Every image has words and whole pixels.
    assert len(LEAKS.all("img")) >= 14
    for image in LEAKS.all("img"):
        high, wide = pixels(image).shape[:2]
        assert len(image["alt"]) > 10
        assert int(image["height"]) % high == int(image["width"]) % wide == 0


def test_every_answer_stands_on_the_scale_in_the_colour_of_its_grade():
    rows = LEAKS.one("table", id="scale").one("tbody").all("tr")
    for row, case in zip(rows, AUDITS["read"].cases[:2], strict=True):
        found = [(dot["class"], float(dot["cx"][:-1])) for dot in row.all("circle")]
        known = [run for run in case.runs if run.ssim is not None]
        assert found == [(run.grade.replace(" ", "-"), round(100 * run.seen, 1)) for run in known]
        assert any(run.seen > run.ssim for run in known) or case.attack == "ig"
    # Where one grade ends, the next begins.
    ends = [(float(zone["x"]), float(zone["width"])) for zone in rows[0].all("rect")]
    assert ends == [(0, 300), (300, 200), (500, 500)]


def test_the_scale_of_grades_has_its_thresholds_and_graded_examples():
    read, partly, nothing = (" ".join(row) for row in map(texts, table(LEAKS, "grades")))
    assert "0.5 or 20 dB" in read and "50 %" in read and "90 %" in read
    assert "0.3 or 15 dB" in partly and "not matched" in nothing
    photos = table(LEAKS, "examples")
    for row in photos:
        *shown, original = [pixels(cell.one("img")) for cell in list(row.values())[1:]]
        for image, cell in zip(shown, list(row.values())[1:], strict=False):
            spans = [part for part in cell.all("span") if part.get("class") != "small"]
            *scores, _, grade = (part.text() for part in spans)
            psnr, ssim, *smoothed = map(float, re.findall(r"[\d.]+", " ".join(scores)))
            near = metrics.ssim(*(one.transpose(2, 0, 1) / 255 for one in (original, image)))
            assert abs(near - ssim) < 0.01 and psnr > 10
            assert (max(ssim, *smoothed, 0.0) >= 0.3) == (grade != "not shown")
    assert len(photos) == 2 and not BARE.all("table", id="examples")


def texts(row):
    return [cell.text() for cell in row.values()]


def test_each_change_has_the_picture_that_is_left_under_it():
    figures = LEAKS.one("div", class_="left").all("figure")
    titles = [figure.one("strong").text() for figure in figures]
    assert titles[0] == "As it is" and len(titles) == 4 and "Key-lock" in titles
    for figure in figures:
        original, answer = figure.all("img")
        assert original["alt"] == "Original of image 1"
        assert answer["alt"].startswith("Nearest reconstruction under the change: ")
    # That of the run that comes nearest, with its grade.
    assert "37.0 dB, 0.90 read" in " ".join(figures[0].text().split())
    alone = Pictures(pictures().originals, {}, {"none": ("copa", 0, pictures().originals[0])})
    assert not tree(audit(), alone).all("div", class_="left")


def test_a_quick_look_says_across_its_top_that_it_is_no_evidence():
    setting = AUDITS["read"].setting.model_copy(update={"scale": "smoke"})
    header = tree(audit(setting=setting)).one("header")
    assert "A quick look, and no evidence." in header.all("p")[0].text()
    assert "evidence" not in LEAKS.one("header").text()


def test_a_picture_without_an_answer_says_why():
    failed = tried("none", "ig", [run(0, 0, None), run(1, 0, 0.3)])
    shown = Pictures(pictures().originals, {"ig": {1: pictures().originals[1]}})
    first, second = table(tree(audit(cases=(failed,)), shown), "strip")
    assert first["Inverting Gradients"].text() == "No image: NaN at step 7"
    assert second["Inverting Gradients"].all("img")
    section = BARE.one("section", id="images")
    assert not section.all("img") and "gave a reconstruction" in section.text()
    assert "No change was tried." in BARE.one("section", id="help").text()


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_any_number_of_channels_is_shown(channels):
    shown = pictures(channels=channels, side=8)
    html, expected = tree(shown=shown), bytes_of(shown.originals[2])
    if channels != 3:
        expected = bytes_of(shown.originals[2].mean(0, keepdims=True))[..., 0]
    np.testing.assert_array_equal(pixels(html.all("img")[0]), expected)
    told = f"{channels} channels, shown as their mean" in html.one("table", id="strip").text()
    assert told == (channels in (2, 4))


def test_a_large_picture_is_made_smaller_and_keeps_its_shape():
    wide = thumbnail(np.random.default_rng(0).random((3, 100, 300)), SMALL)
    assert (wide.width, wide.height, wide.enlarged) == (SMALL, SMALL // 3, False)
    line = thumbnail(np.zeros((1, 1, 5000)), SMALL)
    assert (line.width, line.height) == (SMALL, 1)


def test_the_page_of_many_large_pictures_stays_under_5_mb(tmp_path):
    attacks = [audit_samples.part(f"a{i}", f"Attack {i}", "few") for i in range(6)]
    noise = np.random.default_rng(0).random((20, 3, 224, 224))
    shown = Pictures(noise, {attack.id: dict(enumerate(noise)) for attack in attacks})
    cases = [tried("none", a.id, [run(i, 0, 0.1) for i in range(20)]) for a in attacks]
    worst = VERDICT.worst.model_copy(update={"attack": "a3", "image": 17})
    changes = [CHANGES[0].model_copy(update={"attack": "a3"})]
    parts = {"attacks": attacks, "cases": cases, "changes": changes}
    found = audit(said={"worst": worst, "ranking": ()}, **parts)
    page.write(tmp_path / "report.html", found, shown)
    assert (tmp_path / "report.html").stat().st_size < 5 * MIB
    rows = table(tree(found, shown), "strip")
    assert len(rows) == page.STRIP
    assert "18" in [row["Image"].text() for row in rows], "the worst is among them"
    # That of 300 layers and all runs is small too.
    layers, runs = audit().structure.layers * 50, [run(i % 3, i, 0.3) for i in range(64)]
    cases = [tried(entry.id, "ig", runs) for entry in CHANGES if entry.leak is not None]
    found = audit(cases=cases, structure=audit_samples.structure(layers=layers))
    assert len(page.render(found, pictures()).encode()) < 2 * MIB


def test_equal_findings_make_equal_pages_and_one_that_cannot_be_written_a_sentence(tmp_path):
    assert page.render(audit(), pictures()) == page.render(audit(), pictures())
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ArtifactError, match=r"Cannot write .*report\.html"):
        page.write(tmp_path / "file" / "report.html", audit(), pictures())


def test_pictures_that_cannot_be_shown_are_refused():
    zeros = np.zeros((1, 3, 8, 8))
    for originals, answers, said in (
        (zeros[0], {}, r"\(3, 8, 8\) is not \(n, C, H, W\)"),
        (zeros + np.nan, {}, "originals"),
        (zeros, {1: zeros[0]}, "no image 1"),
        (zeros, {0: zeros[0, :, :4]}, r"answers\.ig\.0"),
        (zeros, {0: zeros[0] + np.inf}, r"answers\.ig\.0"),
    ):
        with pytest.raises(ValueError, match=said):
            Pictures(originals, {"ig": answers})


def test_the_best_run_is_of_the_best_grade_the_most_similar_the_nearest():
    runs = [run(0, 0, 0.3), run(0, 1, 0.5, 10.0), run(0, 2, 0.5, 12.0), run(0, 3, None)]
    assert page.best(runs) is runs[2]
    assert page.best(runs[3:]) is None
    read = run(0, 4, 0.2, 25.0, grade="read")
    assert page.best([*runs[:1], read]) is read


def test_pictures_too_small_for_ssim_show_their_psnr():
    small = [run(i, 0, 0.0, 21.0) for i in range(3)]
    without = tuple(one.model_copy(update={"ssim": None}) for one in small)
    found = tried("none", "copa", small).model_copy(update={"runs": without, "ssim": None})
    worst = VERDICT.worst.model_copy(update={"ssim": None, "psnr": 21.0})
    html = tree(audit(said={"worst": worst}, cases=(found,)), pictures(side=6))
    pair = html.one("section", id="images").all("img")[1]
    assert pair["alt"].endswith("PSNR 21.0 dB") and "SSIM" not in pair["alt"]
    assert lines(html, "attacks-plain")[1].endswith("| 21.0 21.0 to 21.0 | –too small for SSIM")
    assert "21.0 dB, –too small for SSIM" in lines(html, "strip")[1]
    assert "| 21.0 | –too small for SSIM |" in lines(html, "runs")[1]


def test_no_page_lacks_the_limit_that_failure_proves_nothing_and_none_says_it_twice():
    said = "An attack that failed is no proof of safety: others exist."
    for limits in ((), ("few images",), ("few images", said)):
        found = tree(audit(said={"limits": limits}))
        listed = found.one("section", id="verdict").all("ul")[1]
        assert listed.text().count("no proof of safety") == 1


def test_numbers_have_three_digits():
    values = 0, 1, 73.456, 999.6, 1234.4, -0.001, 1.5e9, -2e-7, math.inf, -math.inf
    shown = "0 1.00 73.5 1,000 1,234 −0.00100 1.50×10<sup>9</sup> −2.00×10<sup>−7</sup> ∞ −∞"
    found = [page_text.number(value) for value in values]
    assert found == [text.replace("×", " × ") for text in shown.split()]


def back(shown):
    plain = shown.replace(",", "").replace("−", "-")
    return float(re.sub(r" × 10<sup>(.*)</sup>", r"e\1", plain))


@given(st.floats(-1e300, 1e300).filter(lambda value: abs(value) > 1e-300))
def test_a_number_is_right_to_three_digits(value):
    assert math.isclose(back(page_text.number(value)), value, rel_tol=5.1e-3)


@given(st.floats(-1e6, 1e6), st.integers(0, 3))
def test_fixed_decimals_round_and_never_show_minus_zero(value, decimals):
    shown = page_text.fixed(value, decimals)
    assert abs(back(shown) - value) <= 0.500001 * 10**-decimals + 1e-9
    assert not re.fullmatch(r"−0(\.0*)?", shown)


@pytest.mark.parametrize("value", [None, math.nan])
def test_what_is_no_number_is_never_written_as_one(value):
    shown = (page_text.number, page_text.ratio, page_text.percent, page_text.accuracy)
    for text in [show(value) for show in shown] + [page_text.fixed(value, 1)]:
        assert "absent" in text and not re.search(r"\d|nan", re.sub(r"<[^>]*>", "", text))
    assert "<b>" not in page_text.absent('<b> & "')


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("place", range(3), ids=["light", "dark", "print"])
def test_text_stands_out_from_what_is_behind_it(place):
    block = re.findall(r":root \{(.*?)\}", LEAKS.one("style").raw(), re.DOTALL)[place]
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
    pairs = [(ink, back) for ink in ("text", "quiet", "link") for back in ("page", "soft", "mark")]
    pairs += [(f"{grade}-text", grade) for grade in ("bad", "fair", "plain", "good")]
    # A line is drawn, not read.
    for ink, back in (*pairs, ("mark-line", "mark")):
        light, dark = sorted((luminance(found[ink]), luminance(found[back])), reverse=True)
        least = 3 if ink == "mark-line" else 4.5
        assert (light + 0.05) / (dark + 0.05) >= least, (ink, back)


def test_a_wheel_holds_pages_and_recorded_claims(tmp_path):
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q"]
    subprocess.run([*pip, "--wheel-dir", tmp_path, ROOT], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "from gradleak.reporting import pages; print(*pages.FOLDER.iterdir(), sep='\\n')"
    how = {"env": {"PYTHONPATH": str(tmp_path / "site")}, "cwd": tmp_path, "check": True}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **how)
    sources = [Path(line) for line in done.stdout.splitlines()]
    assert {path.name for path in sources} == {path.name for path in pages.FOLDER.iterdir()}
    assert all(tmp_path in path.parents for path in sources)
    command = [sys.executable, "-m", "gradleak.cli", "claim", EXAMPLE]
    shown = subprocess.run(command, capture_output=True, text=True, **how).stdout
    assert shown.splitlines() == "\n".join(claim_lines(Record.read(), EXAMPLE)).splitlines()


def test_ids_without_a_part_are_refused():
    changes, attacks = {"changes": CHANGES[:1]}, {"attacks": audit_samples.ATTACKS[1:]}
    for words, left in (("change 'noise_1'", changes), ("attack 'copa'", attacks)):
        with pytest.raises(ValueError, match=f"{words} is named, but not listed"):
            Audit.model_validate(dict(audit()) | left)
