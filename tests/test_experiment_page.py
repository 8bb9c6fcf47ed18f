"""The page of one experiment: scores of all, some of the pictures, and how many of how many."""

from dataclasses import replace

import numpy as np
import pytest

from browser import assert_fits, assert_tab_reaches_all, axe_missing, reason_to_skip
from figure_files import REASON, Files, rows, run, target_set
from gradleak.plotting.reader import Content
from gradleak.reporting import experiment_page
from gradleak.reporting.experiment_page import MOST, ROWS, SIDE, selected
from html_tree import assert_policy, parse
from pipeline_trees import jobs_of

NET = {"input": [3, 4, 4], "layers": [{"conv": 2, "kernel": [3, 1]}, {"fc": 10}], "spread": 0.5}
SETTINGS = {
    "experiments": {"mine": {"a<b": 1}},
    "models": {"net_a": NET},
    "attacks": {"copa_tv": {"method": "total_variation", "of": "copa", "weight": 0.2}},
    "defences": {"none": {"method": "none"}},
}
NAMES = {"attacks": {"copa_tv": "COPA denoised"}, "models": {"net_a": "Variant 1"}}
TOLD = experiment_page.Told("mine", "embedded", "smoke", SETTINGS, 2, NAMES)
ATTACKS, DEFENCES = ("rgap", "copa_tv"), ("none", "noise")


def content(folder, batches=3, size=1, dataset="photos10", networks=("net_a", "net_b")):
    """Images with an MSE that grows with the image's number; the last image failed under noise."""
    shown, files = target_set(batches, size, dataset=dataset), Files(folder)
    for model in networks:
        for defence in DEFENCES:
            for attack in ATTACKS:
                runs, scores = [], []
                for batch in range(batches):
                    failed = defence == "noise" and batch == batches - 1
                    runs.append(run(model, batch, REASON if failed else ""))
                    case = {"attack": attack, "defence": defence, **runs[-1]}
                    for place in range(size):
                        number = batch * size + place
                        found = {"mse": 0.01 * (1 + number), "psnr": 20.0 - number, "ssim": 0.5}
                        index = int(shown.indices[batch, place])
                        scores += rows(case, index, dict.fromkeys(found) if failed else found)
                images = np.stack([shown.inputs(batch) for batch in range(batches)])
                target = shown if not files.files["scores"] else None
                files.save({model: images[None, :, None]}, runs, scores, target)
    return Content.read({**files.files, "targets": files.files["targets"][0]}, {"attacks": {}})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("experiment")
    page = folder / "mine.html"
    page.write_text(experiment_page.render(content(folder), TOLD), encoding="utf-8")
    return page


@pytest.fixture(scope="module")
def html(made):
    return parse(made.read_text(encoding="utf-8"))


def test_scores_count_all_runs_and_a_failed_one_as_the_worst(html):
    table = html.one("table", id="table-scores")
    found = [[cell.text() for cell in row.all("th", "td")] for row in table.all("tr")[1:]]
    assert len(found) == 8
    plain, noisy = (next(r for r in found if r[:3] == ["net_b", d, "rgap"]) for d in DEFENCES)
    assert plain[3:9] == ["3", "3", "0.0200", "0.0100", "19.0", "0.50"]
    assert noisy[3:9] == ["3", "2", "0.0200", "0.0100", "19.5", "0.50"] and noisy[9] == REASON
    assert_policy(html)


def test_each_network_has_its_originals_and_what_every_attack_made_of_them(html):
    assert [heading.text() for heading in html.one("section", id="pictures").all("h3")] == [
        "Variant 1 net_a", "net_b",
    ]  # fmt: skip
    strip = html.one("table", id="strip-2")
    heads = [head.text() for head in strip.one("thead").all("th")]
    shown = ("rgap", "COPA denoised copa_tv")
    pairs = [f"{attack} defence {defence}" for defence in DEFENCES for attack in shown]
    assert heads == ["Image", "Original", *pairs]
    images = strip.all("img")
    assert len(images) == 3 * 5 - 2, "two failed"
    assert all(image["src"].startswith("data:image/png;base64,") for image in images)
    assert {int(image["width"]) for image in images} == {SIDE}
    assert images[0]["alt"] == "Original 1, batch 0"
    assert images[1]["alt"] == ("Image 1 by rgap on net_b, defence none; PSNR 20.0 dB, SSIM 0.50")
    assert strip.text().count(f"No image: {REASON}") == 2
    said = html.one("section", id="pictures").text()
    assert "20 of 24 reconstructions, of 3 of 3 images and 2 of 2 networks, under the first" in said
    assert "Not to be passed on" not in said
    assert "a<b: 1" in html.one("section", id="made").text()


def test_ids_have_their_names_and_what_they_stand_for(html):
    ids = html.one("section", id="ids")
    said = dict(zip(*([e.text() for e in ids.all(tag)] for tag in ("dt", "dd")), strict=True))
    assert said["Variant 1 net_a"] == "input 3×4×4; conv 2, kernel 3×1; fc 10; spread 0.5"
    assert said["COPA denoised copa_tv"] == (
        "total_variation: Denoising of another attack's reconstruction; those without an image "
        "keep their reason. Settings: of copa, weight 0.2."
    )
    assert said["none"] == "none: Shares the gradient unchanged."


def test_at_smoke_scale_alone_it_says_that_it_is_no_evidence(html, tmp_path):
    words = "A quick look, and no evidence. At scale smoke attacks have a few steps only."
    assert html.one("header").all("p")[0].text().startswith(words)
    longer = experiment_page.render(content(tmp_path, 1), replace(TOLD, scale="laptop"))
    assert "quick look" not in parse(longer).one("header").text()


def test_pictures_are_few_however_large_the_experiment(tmp_path):
    panels = {(f"a{k}", "none"): None for k in range(9)}
    kept, places = selected({f"n{k}": panels for k in range(100)}, 1000)
    assert (len(kept), len(places)) == (24, 1) and len(kept) * 10 * len(places) <= MOST
    assert selected({"one": panels}, 1000)[1] == range(ROWS)
    many = {(f"a{k}", "none"): None for k in range(2 * MOST)}
    assert selected({"one": many, "two": many}, 5) == (["one"], range(1)), "one row at least"
    html = parse(experiment_page.render(content(tmp_path, 1, 20, networks=("net",)), TOLD))
    said = html.one("section", id="pictures").text()
    assert "16 of 80 reconstructions, of 8 of 20 images, under" in said, "noise stopped the others"
    assert len(html.one("table", id="strip-1").one("tbody").all("tr")) == ROWS


def test_images_that_must_not_be_redistributed_are_marked(tmp_path):
    html = parse(experiment_page.render(content(tmp_path, dataset="cifar10"), TOLD))
    text = html.one("section", id="pictures").text()
    said = "Not to be passed on. This page shows images of a data set that does not allow it, "
    assert f"{said}cifar10: no licence is given" in text


@pytest.mark.skipif(reason_to_skip() is not None, reason=f"{reason_to_skip()}")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_its_window_and_axe_finds_nothing(browser, made, width, scheme):
    tab = browser.open(made, width=width, scheme=scheme)
    assert_fits(tab, made.name)
    if not axe_missing():
        assert tab.axe() == []
    assert_tab_reaches_all(tab, 15)
    tab.js("document.querySelector('#table-scores th:nth-child(6) button').focus()")
    tab.press("Enter")
    first = "document.querySelector('#table-scores tbody tr td:nth-child(6)').dataset.v"
    assert float(tab.js(first)) == pytest.approx(0.02)
    tab.js("document.getElementById('find').focus()")
    for key in "net_b":
        tab.press(key)
    assert tab.js("document.getElementById('found').textContent") == "4 of 8 rows shown"
    tab.close()


def test_pages_and_latex_are_made_on_request_alone(tree, snakemake):
    """A dry run of each; `all` asks for neither."""
    asked = ("results/experiments/rgap_bias.html", "results/tables/copa_table1.tex")
    smoke = ("-n", "--config", "scale=smoke", "--")
    jobs = jobs_of(snakemake(tree, *smoke, *asked).stdout)
    assert jobs["experiment_page"] == jobs["latex_table"] == jobs["table"] == 1
    assert jobs["score"] > 5
    every = jobs_of(snakemake(tree, *smoke, "all").stdout)
    assert every["figure"] > 30 and not {"experiment_page", "latex_table"} & every.keys()
