"""What holds for every figure: facts of its runs, words on the page, equal bytes, one sentence."""

import subprocess
import sys
from pathlib import Path

import pytest

import test_fedkl_adaptive
import test_fedkl_curves
import test_figures
import test_mkor_figures as mkor
import test_rgap_figures as rgap
from conftest import ROOT
from figure_words import flat, outside
from gradleak.errors import ArtifactError
from gradleak.plotting import style
from papers.copa.figures import samples
from papers.fedkl.figures import adaptive, curves, fig4, pictures
from test_fedkl_pictures import table4, table5
from test_figures_style import assert_print

PHOTOS = ("scale smoke", "float32", "photos10 test", "MSE", "Runs:", "failed")
BATCHES = ("A note.", "Scale smoke", "float32", "drawn at random", "embedded", "A batch")
GRIDS = ("A note.", "Scale smoke", "float32", "PSNR", "embedded, in place of")
SIZES = ("A note.", "Scale smoke", "accuracy, %", "photos10", "epoch")


def of_files(build):
    """Of builders that return files as an object, with the words or beside them."""

    def make(folder):
        module, made, *words = build(folder)
        return module, made.files, words[0] if words else made.words

    return make


def of_fedkl(module, build):
    return lambda folder: (module, *build(folder))


def copa(folder):
    return samples, test_figures.sample_files(folder), test_figures.WORDS


# What builds the files and words of each figure, and facts that it has to tell.
FIGURES = {
    "copa": (copa, ("scale smoke", "float32", "embedded", "failed")),
    **{build.__name__: (of_files(build), PHOTOS) for build in rgap.ALL},
    **{build.__name__: (of_files(build), BATCHES) for build in mkor.ALL},
    "table4": (of_fedkl(pictures, table4), GRIDS),
    "table5": (of_fedkl(pictures, table5), GRIDS),
    "adaptive": (of_fedkl(adaptive, test_fedkl_adaptive.build), (*GRIDS, "(here digits)")),
    "curves": (of_fedkl(curves, test_fedkl_curves.build), SIZES),
    "fig4": (of_fedkl(fig4, test_fedkl_curves.build4), SIZES),
}
SOME = [
    "copa", "twin_data", "mixtures", "mnist", "singles", "sweep", "table4", "adaptive", "curves",
]  # fmt: skip
EVERY = pytest.mark.parametrize("name", FIGURES)


@EVERY
def test_facts_of_the_runs_are_told_and_words_stay_on_the_page(name, tmp_path):
    build, facts = FIGURES[name]
    module, files, words = build(tmp_path)
    figure = module.make(files, words, "smoke")
    found = flat(figure)
    assert [fact for fact in facts if fact not in found] == []
    assert outside(figure) == []


@pytest.mark.parametrize("name", SOME)
def test_equal_files_give_equal_bytes_and_vector_text(name, tmp_path):
    module, files, words = FIGURES[name][0](tmp_path)
    for copy in ("a", "b"):
        style.save(module.make(files, words, "smoke"), tmp_path / copy / "figure.pdf")
    for suffix in ("pdf", "png"):
        one, other = (tmp_path / copy / f"figure.{suffix}" for copy in ("a", "b"))
        assert one.read_bytes() == other.read_bytes()
    assert_print(tmp_path / "a" / "figure.pdf")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["figure.pdf", "figure.png"]


@EVERY
def test_what_is_missing_is_one_sentence(name, tmp_path):
    module, files, words = FIGURES[name][0](tmp_path)
    key = next((key for key in ("curves", "panels") if key in words), None)
    nothing = {**files, "scores": [], "reconstructions": [], "security": []}
    missing = {**words, key or "models": []}
    with pytest.raises(ArtifactError, match=r"Nothing to draw; .*config\.yaml"):
        module.make(files if key else nothing, missing, "smoke")
    if key == "curves":
        return
    stored = Path(files["reconstructions"][0])
    stored.write_bytes(b"half a fi")
    with pytest.raises(ArtifactError, match="is damaged"):
        module.make(files, words, "smoke")
    stored.unlink()
    with pytest.raises(ArtifactError, match="is missing; ask Snakemake"):
        module.make(files, words, "smoke")
    if key == "panels":
        other = [{**panel, "model": "another"} for panel in words["panels"]]
        files["reconstructions"][0] = files["reconstructions"][1]
        with pytest.raises(ArtifactError, match="no rows of another"):
            module.make(files, {**words, "panels": other}, "smoke")


def test_no_figure_needs_torch():
    shared, own = ROOT.glob("src/*/plotting/[!_]*.py"), ROOT.glob("papers/*/figures/[!_]*.py")
    names = [".".join(p.relative_to(ROOT).with_suffix("").parts) for p in (*shared, *own)]
    imported = ", ".join(name.removeprefix("src.") for name in names)
    script = f"import {imported}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
