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

from audit_samples import (
    ATTACKS,
    CHANGES,
    VERDICT,
    absent,
    all_terms,
    audit,
    bare,
    change,
    part,
    pictures,
    price,
    run,
    table,
    tree,
    tried,
)
from conftest import ROOT
from gradleak.reporting import page_text, pages
from gradleak.runtime.artifacts import ArtifactError
from gradleak_audit.report import page
from gradleak_audit.report.files import Pictures
from gradleak_audit.report.page import LARGE, SMALL, embed
from gradleak_audit.result import Audit

LEAKS, BARE = tree(), tree(bare())
MIB = 2**20


def pixels(image):
    head, _, data = image["src"].partition(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def images(section):
    return section.all("img")


def bytes_of(picture):
    return np.rint(np.clip(picture, 0, 1) * 255).astype(np.uint8).transpose(1, 2, 0)


def test_changes_stand_in_the_order_of_the_ranking_and_unranked_ones_below():
    rows = table(LEAKS, "changes")
    titles = {entry.id: entry.title for entry in CHANGES}
    order = [titles[name] for name in ("noise_1", "fewer", "lock", "batch")]
    assert [row["Change"].text() for row in rows] == order
    assert [row["Rank"].text() for row in rows[:2]] == ["1", "2"]
    assert all(absent(row["Rank"]) == "not ranked" for row in rows[2:])
    found = all_terms(LEAKS, "help")
    assert found == {"Cut the largest <skip>": "the network has no skip that could be cut"}


def test_a_change_shows_shares_counts_and_similarity_before_and_after():
    noise, fewer, lock, batch = table(LEAKS, "changes")
    before = "Readable, before → after"
    assert noise[before].text() == "50\u202f% → 0\u202f% 3 of 6 → 0 of 6".replace("\u202f", " ")
    for row, read, similar, effect in (
        (noise, 0, "0.08", "helps (p = 0.004)"),
        (fewer, 1, "0.33", "helps (p = 0.008)"),
        (lock, 6, "0.97", "no difference shown"),
        (batch, 3, "0.60", "inconclusive"),
    ):
        assert row[before].text().endswith(f"3 of 6 → {read} of 6")
        assert row["Mean SSIM, before → after"].text() == f"0.61 → {similar}"
        assert row["Effect"].text() == effect
    assert noise["Attack that reads most"].text() == "Inverting Gradients"
    (bar,) = noise[before].all("svg")
    (old,) = bar.all("circle", class_="old")
    (new,) = bar.all("circle", class_="new")
    assert (float(old["cx"]), float(new["cx"])) == (56, 6) and bar["aria-hidden"] == "true"


def test_prices_are_ratios_to_the_network_as_it_is():
    noise, fewer, lock, batch = table(LEAKS, "changes")
    assert fewer["Parameters"].text() == "0.51×" and fewer["Multiply-adds"].text() == "0.25×"
    assert absent(fewer["Time of a step"]) == "not timed"
    assert fewer["Note"].text() == "no labelled data was given"
    assert lock["Note"].text() == "<b>" and absent(noise["Note"]) == "nothing to note"
    assert noise["Time of a step"].text() == "1.0×"
    assert lock["Time of a step"].text() == "122×"
    assert noise["Accuracy, before → after"].text() == "65.5 % → 61.2 %"
    for header in ("Parameters", "Multiply-adds", "Time of a step", "Accuracy, before → after"):
        assert absent(batch[header]) == "not known"


def test_zero_is_a_number_and_shown_as_one():
    zero = change("noise_1", leak=0.0, ssim=0.0, price=price(accuracy=0.0))
    runs = [run(0, 0, 0.0, 0.0)]
    parts = {"changes": (CHANGES[0], zero), "cases": (tried("none", "ig", runs),)}
    html = tree(audit(said={"ranking": ()}, **parts))
    (row,) = table(html, "changes")
    assert row["Accuracy, before → after"].text() == "65.5 % → 0.0 %"
    assert row["Mean SSIM, before → after"].text() == "0.61 → 0.00"
    (zero,) = table(html, "attacks-plain")
    assert zero["Readable"].text() == "0"
    assert zero["SSIM"].text() == "0.00 0.00 to 0.00" and zero["PSNR, dB"].text()[:3] == "0.0"


def test_the_worst_answer_stands_beside_its_original():
    shown = pictures()
    original, answer = images(LEAKS.one("section", id="pictures"))[:2]
    for image, expected in ((original, shown.originals[2]), (answer, shown.answers["copa"][2])):
        np.testing.assert_array_equal(pixels(image), bytes_of(expected))
        assert int(image["width"]) == int(image["height"]) == LARGE // 32 * 32
        assert image["class"] == "enlarged"
    assert original["alt"] == "Picture 3 as it was"
    for text in (answer["alt"], answer.parent.one("figcaption").text()):
        assert all(part in text for part in ("COPA", "39.7 dB", "0.99"))


def test_the_strip_has_every_picture_and_every_attack_that_was_run():
    shown = pictures()
    rows = table(LEAKS, "strip")
    assert list(rows[0]) == ["Picture", "Original", "COPA", "Inverting Gradients"]
    assert [row["Picture"].text() for row in rows] == ["1", "2", "3"]
    for number, row in enumerate(rows):
        alts = [cell.one("img")["alt"] for cell in row.values() if images(cell)]
        assert all(str(number + 1) in alt for alt in alts)
        assert pixels(row["Original"].one("img")).shape == (32, 32, 3)
        assert row["COPA"].one("img")["width"] == str(SMALL)
    assert not images(rows[0]["Inverting Gradients"])
    assert rows[0]["Inverting Gradients"].text().startswith("No picture: no picture was kept")
    # The best of both draws, by SSIM.
    assert rows[0]["COPA"].text() == "37.0 dB, 0.90 readable"
    assert rows[1]["Inverting Gradients"].one("img")["alt"] == (
        "Answer to picture 2, by Inverting Gradients; PSNR 10.6 dB, SSIM 0.02, below the threshold"
    )
    found = pixels(rows[1]["Inverting Gradients"].one("img"))
    np.testing.assert_array_equal(found, bytes_of(shown.answers["ig"][1]))


def test_answers_of_a_malicious_server_stand_in_their_own_chapter():
    rows = table(LEAKS, "malicious-strip")
    assert list(rows[0]) == ["Picture", "Original", "MKOR"] and len(rows) == 3
    scores = [row["MKOR"].text() for row in rows]
    assert scores[0] == "34.0 dB, 0.80 readable batch of 3"
    assert scores[1] == "19.0 dB, 0.30 below the threshold, nearest to the right picture batch of 3"
    assert "dB" not in scores[2], "its run failed, and the run of another picture is not its own"
    shared = "Answer to picture 1, one of 3 that share a gradient, by MKOR; PSNR 34.0 dB"
    assert images(rows[0]["MKOR"])[0]["alt"].startswith(shared)
    assert "MKOR" not in LEAKS.one("section", id="pictures").text()


def test_a_picture_without_an_answer_says_why():
    failed = tried("none", "ig", [run(0, 0, None), run(1, 0, 0.3)])
    shown = Pictures(pictures().originals, {"ig": {1: pictures().originals[1]}})
    first, second = table(tree(audit(cases=(failed,)), shown), "strip")
    assert first["Inverting Gradients"].text() == "No picture: the search met NaN at step 7"
    assert images(second["Inverting Gradients"])


def test_without_answers_or_changes_there_is_a_sentence():
    section = BARE.one("section", id="pictures")
    assert not images(section) and "gave an answer" in section.text()
    assert "No change was tried." in BARE.one("section", id="help").text()


def test_every_image_has_words_and_whole_pixels():
    assert len(images(LEAKS)) >= 14
    for image in images(LEAKS):
        assert len(image["alt"]) > 10
        sides = pixels(image).shape[:2]
        assert int(image["height"]) % sides[0] == int(image["width"]) % sides[1] == 0


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_any_number_of_channels_is_shown(channels):
    shown = pictures(channels=channels, side=8)
    html = tree(shown=shown)
    found = pixels(images(html)[0])
    values = shown.originals[2]
    expected = bytes_of(values if channels == 3 else values.mean(axis=0, keepdims=True))
    np.testing.assert_array_equal(found, expected if channels == 3 else expected[..., 0])
    told = f"{channels} channels, shown as their mean" in html.one("table", id="strip").text()
    assert told == (channels in (2, 4))


def test_a_large_picture_is_made_smaller_and_keeps_its_shape():
    wide = embed(np.random.default_rng(0).random((3, 100, 300)), SMALL)
    assert (wide.width, wide.height, wide.enlarged) == (SMALL, SMALL // 3, False)
    line = embed(np.zeros((1, 1, 5000)), SMALL)
    assert (line.width, line.height) == (SMALL, 1)


def test_the_page_of_many_large_pictures_stays_under_5_mb(tmp_path):
    rng = np.random.default_rng(0)
    attacks = [part(f"a{i}", f"Attack {i}", "few") for i in range(6)]
    noise = rng.random((20, 3, 224, 224))
    shown = Pictures(noise, {attack.id: dict(enumerate(noise)) for attack in attacks})
    cases = [tried("none", a.id, [run(i, 0, 0.1) for i in range(20)]) for a in attacks]
    worst = VERDICT.worst.model_copy(update={"attack": "a3", "image": 17})
    unchanged = [CHANGES[0].model_copy(update={"attack": "a3"})]
    parts = {"attacks": attacks, "cases": cases, "changes": unchanged}
    found = audit(said={"worst": worst, "ranking": ()}, **parts)
    page.write(tmp_path / "report.html", found, shown)
    assert (tmp_path / "report.html").stat().st_size < 5 * MIB
    rows = table(tree(found, shown), "strip")
    assert len(rows) == page.STRIP
    assert "18" in [row["Picture"].text() for row in rows], "the worst answer is among them"


def test_the_page_of_152_layers_and_all_runs_stays_small():
    layers = audit().structure.layers * 50
    runs = [run(i % 3, i, 0.3) for i in range(64)]
    cases = [tried(entry.id, "ig", runs) for entry in CHANGES if entry.leak is not None]
    found = audit(cases=cases, structure=audit().structure.model_copy(update={"layers": layers}))
    assert len(layers) == 300
    assert len(page.render(found, pictures()).encode()) < 2 * MIB


def test_equal_findings_make_equal_pages_and_one_that_cannot_be_written_a_sentence(tmp_path):
    assert page.render(audit(), pictures()) == page.render(audit(), pictures())
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ArtifactError, match=r"Cannot write .*report\.html"):
        page.write(tmp_path / "file" / "report.html", audit(), pictures())


@pytest.mark.parametrize(
    ("originals", "answers", "said"),
    [
        (np.zeros((3, 8, 8)), {}, r"\(3, 8, 8\) is no \(n, C, H, W\)"),
        (np.full((1, 3, 8, 8), np.nan), {}, "originals"),
        (np.zeros((1, 3, 8, 8)), {"ig": {1: np.zeros((3, 8, 8))}}, "no image 1"),
        (np.zeros((1, 3, 8, 8)), {"ig": {0: np.zeros((3, 4, 8))}}, r"answers\.ig\.0"),
        (np.zeros((1, 3, 8, 8)), {"ig": {0: np.full((3, 8, 8), np.inf)}}, r"answers\.ig\.0"),
    ],
)
def test_pictures_that_cannot_be_shown_are_refused(originals, answers, said):
    with pytest.raises(ValueError, match=said):
        Pictures(originals, answers)


def test_the_best_run_is_a_readable_one_the_most_similar_the_nearest():
    runs = [run(0, 0, 0.3), run(0, 1, 0.5, 10.0), run(0, 2, 0.5, 12.0), run(0, 3, None)]
    assert page.best(runs) is runs[2]
    assert page.best(runs[3:]) is None
    read = run(0, 4, 0.2, 25.0, readable=True)
    assert page.best([*runs[:1], read]) is read


def test_pictures_too_small_for_ssim_show_their_psnr():
    small = [run(i, 0, 0.0, 21.0) for i in range(3)]
    without = tuple(one.model_copy(update={"ssim": None}) for one in small)
    found = tried("none", "copa", small).model_copy(update={"runs": without, "ssim": None})
    worst = VERDICT.worst.model_copy(update={"ssim": None, "psnr": 21.0})
    html = tree(audit(said={"worst": worst}, cases=(found,)), pictures(side=6))
    pair = images(html.one("section", id="pictures"))[1]
    assert pair["alt"].endswith("PSNR 21.0 dB") and "SSIM" not in pair["alt"]
    (row,) = table(html, "attacks-plain")
    assert absent(row["SSIM"]) == "too small for SSIM" and row["PSNR, dB"].text().startswith("21.0")
    assert "21.0 dB, –too small for SSIM" in table(html, "strip")[0]["COPA"].text()
    assert absent(table(html, "runs")[0]["SSIM"]) == "too small for SSIM"


def test_no_page_lacks_the_limit_that_failure_proves_nothing_and_none_says_it_twice():
    said = "An attack that failed is no proof of safety: others exist."
    for limits in ((), ("few images",), ("few images", said)):
        found = tree(audit(said={"limits": limits}))
        listed = found.one("section", id="verdict").all("ul")[1]
        assert listed.text().count("no proof of safety") == 1


def test_an_attack_that_does_not_apply_under_a_change_has_no_zeros():
    rows = table(LEAKS, "attacks-changed")
    (row,) = [r for r in rows if "too few filters" in r["Why there is no answer"].text()]
    assert row["Attempted"].text() == "0"
    for header in ("Answered", "Readable", "Matched"):
        assert absent(row[header]) == "does not apply"
    assert row["Why there is no answer"].text() == "c1 has too few filters"


def test_numbers_have_three_digits():
    values = 0, 1, 73.456, 999.6, 1234.4, -0.001, 1.5e9, -2e-7, math.inf, -math.inf
    shown = "0 1.00 73.5 1,000 1,234 −0.00100 1.50×10<sup>9</sup> −2.00×10<sup>−7</sup> ∞ −∞"
    found = [page_text.number(value) for value in values]
    assert found == [text.replace("×", " × ") for text in shown.split()]


def back(shown):
    plain = re.sub(r" × 10<sup>(.*)</sup>", r"e\1", shown.replace(",", "").replace("−", "-"))
    return float(plain)


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


def test_reasons_behind_dashes_are_escaped():
    assert "<b>" not in page_text.absent('<b> & "')


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("where", ["light", "dark", "print"])
def test_text_stands_out_from_what_is_behind_it(where):
    blocks = re.findall(r":root \{(.*?)\}", LEAKS.one("style").raw(), re.DOTALL)
    block = blocks[("light", "dark", "print").index(where)]
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
    pairs = [(ink, back) for ink in ("text", "quiet", "link") for back in ("page", "soft", "mark")]
    pairs += [(f"{grade}-text", grade) for grade in ("bad", "fair", "plain", "good")]
    # A line is drawn, not read.
    for ink, back in (*pairs, ("mark-line", "mark")):
        light, dark = sorted((luminance(found[ink]), luminance(found[back])), reverse=True)
        least = 3 if ink == "mark-line" else 4.5
        assert (light + 0.05) / (dark + 0.05) >= least, (ink, back)


def test_a_wheel_holds_the_page(tmp_path):
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


def test_ids_without_a_part_are_refused():
    lacks = {
        "change 'noise_1'": {"changes": CHANGES[:1]},
        "attack 'copa'": {"attacks": ATTACKS[1:]},
    }
    for words, left in lacks.items():
        with pytest.raises(ValueError, match=f"{words} is named, but not listed"):
            Audit.model_validate(dict(audit()) | left)
