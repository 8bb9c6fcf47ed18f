"""docs/adding.md followed to the letter, and docs/reviewing.md as a reviewer would."""

import re
import shutil

import pandas as pd
import pytest

from conftest import ROOT, copy_tree, shell
from gradleak.reporting.captions import Captions

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs/adding.md"
BLOCK = re.compile(r"^([^\n]*)\n\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLACES = {
    "new": re.compile(r"[Nn]ew file\s`([^`]+)`:$"),
    "under": re.compile(r"[Ii]n `([^`]+)`, under `([^`]+)`(?:, where [^:]+)?:$"),
    "above": re.compile(r"in `([^`]+)`, above `([^`]+)`:$", re.IGNORECASE),
    "change": re.compile(r"In `([^`]+)`, a line changed:$"),
}


def steps():
    """(what to do, its words, the block) of every block of the page, in its order."""
    text = PAGE.read_text()
    found = []
    for match in BLOCK.finditer(text):
        # A sentence may begin on the line before.
        words = " ".join(text[: match.end(1)].splitlines()[-2:])
        if match[2] == "sh":
            found.append(("run", (), match[3]))
            continue
        places = [(how, place.search(words)) for how, place in PLACES.items()]
        ((how, place),) = [one for one in places if one[1]]
        found.append((how, place.groups(), match[3]))
    assert len(found) == text.count("\n```") / 2, "a block of the page was not read"
    return found


def put(folder, how, words, body):
    path = folder / words[0]
    if how == "new":
        assert not path.exists(), f"{words[0]} is there already"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(body)
        return
    text = path.read_text()
    if how == "change":
        lines = body.splitlines(keepends=True)
        old, new = ("".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
        assert text.count(old) == 1, f"{words[0]} does not have the line to change"
        path.write_text(text.replace(old, new))
        return
    lines = text.splitlines(keepends=True)
    exact = [i for i, line in enumerate(lines) if line.rstrip("\n") == words[1]]
    near = [i for i, line in enumerate(lines) if line.strip() == words[1]]
    (place,) = exact or near
    # A class has two empty lines behind it.
    added = body + "\n\n" if body.startswith("class ") else body
    lines.insert(place + (how == "under"), added)
    path.write_text("".join(lines))


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """A copy of the tree in which every step of the page was done; and a way to run programs."""
    folder = copy_tree(tmp_path_factory.mktemp("adding"))
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    if (ROOT / ".mypy_cache").exists():
        shutil.copytree(ROOT / ".mypy_cache", folder / ".mypy_cache")
    run = shell(folder)
    for how, words, body in steps():
        if how == "run":
            run(body)
        else:
            put(folder, how, words, body)
    return folder, run


@pytest.mark.parametrize(
    ("heading", "file"),
    [("An attack", "attacks/mean_colour.py"), ("A defence", "client/defences/largest.py")],
)
def test_a_method_is_one_file_and_one_entry(heading, file):
    section = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    touched = [words[0] for how, words, _ in steps() if words and words[-1] in section]
    assert sorted(touched) == ["papers/shared.yaml", f"src/gradleak/{file}"]
    assert section.count("\n") < 60


def test_the_new_methods_keep_the_contracts(followed):
    _, run = followed
    said = run(
        "python -m pytest -v -p no:cacheprovider tests/test_contracts.py tests/test_defences.py "
        "tests/test_config.py -k 'mean_colour or largest or schema or long'"
    )
    # Each contract has run with the new name.
    for name in (
        "test_equal_seeds_give_equal_images_and_nothing_is_changed[mean_colour]",
        "test_a_gradient_that_tells_nothing_fails_with_one_sentence[mean_colour-nan]",
        "test_it_says_why_it_does_not_apply[mean_colour-fully connected]",
        "test_contract[largest]",
    ):
        assert f"{name} PASSED" in said


def test_the_table_of_the_new_paper_is_made_and_the_report_has_its_captions(followed):
    folder, _ = followed
    table = pd.read_csv(folder / "results/tables/toy_table1.csv")
    assert list(table.row.unique()) == ["no defence", "largest entries"]
    assert list(table.column.unique()) == ["Mean colour", "R-GAP"]
    assert table.ours.notna().all() and (table.n_ok == table.n).all()
    cells = table.set_index(["row", "column"]).ours
    # Every layer has full rank, so R-GAP is exact until the defence takes entries away.
    assert cells["no defence", "R-GAP"] < 1e-6 < 1e-3 < cells["largest entries", "R-GAP"]
    # One colour is nearer to a photo than black or white would be.
    assert cells["no defence", "Mean colour"] < 0.25
    captions = Captions([folder / "papers/toy/results.yaml"])
    assert captions.of("papers", "toy").title == "TOY"
    assert "takes entries away" in captions.of("tables", "toy_table1").text


def test_one_colour_comes_back(followed):
    _, run = followed
    run(
        """python -c "
from chains import chain, conv, np, view
from gradleak.attacks.mean_colour import MeanColour
network = chain(conv(4, 3, bias=True), conv(6, 3), channels=3)
image = np.ones(network.input) * np.array([0.3, -0.2, 0.1])[:, None, None]
np.testing.assert_allclose(MeanColour().run(view(network, image), 0).image, image, atol=1e-12)
" """
    )


def test_linters_find_nothing(followed):
    _, run = followed
    run("ruff check . && ruff format --check .")
    run("snakefmt --check Snakefile workflow")
    run("python -m snakemake --lint")
    run("mypy")


def test_every_command_for_reviewers_shows_what_the_page_says(tree):
    run, page = shell(tree), (ROOT / "docs/reviewing.md").read_text()
    table, trace, remake, other, seed = re.findall(r"^```sh\n(.*?)^```", page, re.M | re.S)
    run(table)
    made = pd.read_csv(tree / "results/tables/copa_table2.csv")
    judged = made[made.verdict.notna()]
    assert len(judged) == 48 and set(judged.verdict) == {"not judged"}
    assert set(judged.metric) == {"mse"} and judged.paper.notna().all()
    shown = run(trace)
    ours = [float(line.split()[1]) for line in shown.splitlines()[:2]]
    assert ours[0] == pytest.approx(ours[1], rel=1e-9)
    for place in ("scores", "reconstructions", "gradients", "targets", "models"):
        assert f"results/{place}/" in shown
    assert "data/photos10-train.safetensors" in shown
    last = [line for line in shown.splitlines() if line.startswith("cnn3_v3_tanh/")]
    assert last and not any("image" in line for line in last)
    assert "the same bytes" in run(remake)
    said = run(other)
    assert "other numbers" in said and "the first numbers" in said
    assert "another draw" in run(seed)
