"""Figures and tables as papers/*/results.yaml lists them: what is read, refused and written out."""

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import ROOT, sentence
from gradleak.config import loader
from gradleak.errors import ConfigError
from gradleak.pipeline.paths import Paths
from gradleak.pipeline.results import __main__ as page
from gradleak.pipeline.results.expand import Results
from gradleak.pipeline.results.fill import combinations, fill, lookups
from gradleak.pipeline.results.rules import Asked, OfTraining, read
from gradleak.pipeline.results.schema import load
from pipeline_trees import whole

RAW = whole(ROOT / "config.yaml")
TOY = """
title: TOY
caption: An invented paper.
figures:
  toy_fig1:
    title: "TOY Figure 1"
    caption: What to see.
    make: papers.rgap.figures.fig1
"""


def results(changes=None, folder=ROOT / "papers"):
    """All results under config.yaml, of which `changes` replaces keys."""
    paths = Paths(loader.load({**RAW, "scale": "smoke", **(changes or {})}))
    return read(folder, paths, lambda paper: f"{paper}.yaml")


@pytest.fixture(scope="module")
def all_results():
    return results()


def test_ids_have_the_names_of_their_paper_and_of_figures(all_results):
    attacks, models = (all_results.names[key] for key in ("attacks", "models"))
    assert attacks["copa_wide"] == "COPA, wide start" and attacks["copa_tv"] == "COPA denoised"
    assert models["cnn3_v1_tanh"] == "Variant 1, Tanh" and models["rgap_cnn6d"] == "CNN6-d"
    config = all_results.config
    assert attacks.keys() <= config.attacks.keys(), "no other id is named"
    assert models.keys() <= {*config.models, *config.families}


def toy(folder, text):
    path = folder / "toy/results.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_an_entry_that_is_switched_off_is_no_result(tmp_path):
    for text, names in ((TOY, ["toy_fig1"]), (f"{TOY}    enabled: false\n", [])):
        assert list(load(toy(tmp_path, text)).entries("figures")) == names


MAKE = "papers.rgap.figures.fig1"
PANELS = "\n    panels: [{experiment: x, attakc: y, model: z}]"
# Text, what replaces it, and what is then said.
WRONG = [
    ("caption: What", "captoin: x\n    caption: What", "unknown key 'figures.toy_fig1.captoin'"),
    (MAKE, f"{MAKE}0", f"figures.toy_fig1.make: there is no module {MAKE}0"),
    (MAKE, f"{MAKE}{PANELS}", "key 'figures.toy_fig1.panels.0.attack' is missing"),
    ("toy_fig1", "copa_fig1", "results of toy have names that begin with toy_; rename it"),
    ("An invented paper.", '""', "caption: '' is not allowed"),
    ("title: TOY\n", "title: [TOY\n", "is not YAML"),
    ("figures:", "figure:", "unknown key 'figure' (did you mean 'figures'?)"),
]


@pytest.mark.parametrize(("old", "new", "said"), WRONG, ids=[words for *_, words in WRONG])
def test_a_wrong_file_is_refused_in_one_sentence(tmp_path, old, new, said):
    path = toy(tmp_path, TOY.replace(old, new))
    text = sentence(ConfigError, load, path)
    assert said in text and str(path) in text
    path.unlink()
    assert "results.yaml is not a regular file" in sentence(ConfigError, load, path)


def test_tables_of_one_training_have_its_curves_alone(all_results):
    found = all_results.of_training("fedkl_federated_mnist")
    assert list(found) == ["fedkl_accuracy"]
    files, words = found["fedkl_accuracy"]
    whole = all_results.needs("tables", "fedkl_accuracy")
    assert {curve["training"] for curve in words["curves"]} == {"fedkl_federated_mnist"}
    assert len(words["curves"]) == len(files["curves"]) == len(files["summaries"]) == 4
    assert set(files["curves"]) < set(whole.files["curves"])
    asked = OfTraining(all_results)
    assert "mkor_mnist" not in asked.trainings and "rgap_lenet" not in asked.trainings
    job = SimpleNamespace(training="fedkl_federated_mnist")
    assert asked.files(job) == [*files["curves"], *files["summaries"]]
    assert asked.tables(job)["fedkl_accuracy"]["make"] == "papers.fedkl.tables.accuracy"


def test_the_page_on_targets_lists_every_result(all_results):
    text = page.PAGE.read_text(encoding="utf-8")
    made = page.with_table(text, all_results.papers.values())
    assert made == text, "run python -m gradleak.pipeline.results"
    for path in (*all_results.figures, *all_results.tables):
        assert f"| `{path}` |" in text


def test_names_are_filled_and_whole_ones_keep_their_type():
    names = {"a": "x", "n": 3, "off": False}
    assert fill("{a}_{n}", names, {}) == "x_3"
    assert fill({"k": ["{n}", "{off}", 1.5, None]}, names, {}) == {"k": [3, False, 1.5, None]}
    known = lookups(loader.load(RAW))
    assert fill("${attacks[{a}].method}!", {"a": "dlg"}, known) == "dlg!"
    assert fill("${models[rgap_cnn6].input[1]}×", {}, known) == "32×"
    assert fill("CIFAR-10 ${stand_in[cifar10]}", {}, known) == "CIFAR-10 (here photos10)"
    real = lookups(loader.load({**RAW, "images": "real"}))
    assert fill("CIFAR-10 ${stand_in[cifar10]}", {}, real) == "CIFAR-10"
    # Amounts are those of the scale.
    entry = RAW["targets"]["mkor_photos"]
    assert isinstance(entry["batch"], str)
    for scale, photos in (("smoke", "4"), ("laptop", "1,000")):
        known = lookups(loader.load({**RAW, "scale": scale}))
        assert fill("${targets[mkor_photos].batch:,}", {}, known) == photos
    for text in ("{b}", "{a}{b}", "${attacks[none].method}", "${attacks[dlg].x}"):
        with pytest.raises(LookupError) as raised:
            fill([text], {"a": 1}, known)
        assert raised.value.args == (text,)


def test_combinations_go_through_the_last_list_first():
    found = combinations({"place": [{"x": 1, "y": 2}, {"x": 3, "y": 4}], "z": [5, 6]})
    assert list(found) == [{"x": x, "y": y, "z": z} for x, y in ((1, 2), (3, 4)) for z in (5, 6)]
    assert list(combinations({})) == [{}]


def test_every_result_finds_all_that_it_names(all_results):
    for kind, entries in all_results.entries.items():
        for name, entry in entries.items():
            needs = all_results.needs(kind, name)
            assert all(needs.files) and callable(import_module(entry.make).make), name
            for key, shown in (("panels", "scores"), ("curves", "curves")):
                if getattr(entry, key) and shown in needs.files:
                    assert len(needs.words[key]) == len(needs.files[shown]), name


def test_config_that_lacks_what_a_result_shows_is_refused_in_one_sentence():
    kept = {k: v for k, v in RAW["experiments"].items() if k != "mkor_lenet_fishing"}
    found = results({"experiments": kept})
    assert sentence(ConfigError, found.needs, "figures", "mkor_fig3") == (
        "papers/mkor/results.yaml: figures.mkor_fig3 needs experiments.mkor_lenet_fishing, "
        "which the config does not have; put it back, or set enabled: false there."
    )
    assert found.needs("figures", "mkor_fig4").words["panels"]


LACKING = [
    ("attacks", "dlg", "figures", "rgap_fig2", r"attacks: dlg in experiments\.rgap_fig2"),
    ("models", "copa_pair", "tables", "copa_table1", r"experiments\.copa_pair"),
    ("defences", "noise_ten", "figures", "mkor_fig14", r"defences: noise_ten in experiments\."),
    ("models", "mkor_vgg16_1000_strided", "figures", "mkor_fig14", r"models: mkor_vgg16_1000_str"),
]


@pytest.mark.parametrize(("key", "gone", "kind", "name", "words"), LACKING)
def test_what_an_experiment_lacks_is_named(all_results, key, gone, kind, name, words):
    entries = {
        one: entry.model_copy(update={key: [v for v in getattr(entry, key) if v != gone]})
        for one, entry in all_results.config.experiments.items()
        if one != gone
    }
    lacking = Paths(all_results.config.model_copy(update={"experiments": entries}))
    with pytest.raises(ConfigError, match=words):
        Results(all_results.papers, lacking, all_results.claims).needs(kind, name)


def test_notes_of_mkor_are_those_of_the_config(all_results):
    """What a note says of servers, filters and draws is what its panels' experiments have."""
    figures = [name for name in all_results.entries["figures"] if name.startswith("mkor_fig")]
    assert sorted(int(name.removeprefix("mkor_fig")) for name in figures) == list(range(3, 19))
    for name in figures:
        words, c = all_results.needs("figures", name).words, all_results.config
        assert f"(MKOR Figure {name.removeprefix('mkor_fig')})" in words["title"]
        experiments = [c.experiments[panel["experiment"]] for panel in words["panels"]]
        servers = {experiment.server for experiment in experiments}
        ours = {"mkor_lenet_untouched", "mkor_vgg_untouched"}
        attacks = [c.attacks[panel["attack"]] for panel in words["panels"]]
        for said, expected in (
            ("authors' code", "mkor_code" in servers),
            ("Ours: weights", bool(servers & ours)),
            ("filter", any(getattr(attack, "smooth", None) for attack in attacks)),
            ("Iterations: ", any(hasattr(attack, "iterations") for attack in attacks)),
        ):
            assert (said in words["note"]) == expected, (name, said)
        targets = c.targets[experiments[0].targets]
        drawn = {"random": "drawn at random", "unique": "one of each class"}[targets.draw]
        assert words["drawn"].startswith(drawn), name
        relabelled = bool(targets.relabel) and words["batch"] >= targets.count
        assert ("labels drawn at random" in words["drawn"]) == relabelled, name
    relabelled = all_results.needs("figures", "mkor_fig15").words["drawn"]
    assert "labels drawn at random since there is one photo a class" in relabelled


def grid(found, name):
    needs = found.needs("figures", f"fedkl_{name}")
    return needs.words, needs.files


def test_fedkl_table4_has_a_panel_for_each_attack_network_and_lock(all_results):
    words, files = grid(all_results, "table4")
    assert [row["name"] for row in words["rows"][:4]] == ["True", "w/o KL", "w/ BN", "w/ KL"]
    assert [row["group"] for row in words["rows"]] == 4 * ["DLG"] + 3 * ["GRNN"] + 3 * ["IG"]
    assert len(words["columns"]) == 9
    assert words["columns"][8] == {"name": "ILSVRC", "group": "ResNet-18"}
    # Two for each attack and column, and LeNet's with a norm.
    assert len(words["panels"]) == 3 * 9 * 2 + 3
    for panel, path in zip(words["panels"], files["scores"], strict=True):
        row, column = words["rows"][panel["row"]], words["columns"][panel["column"]]
        assert not row.get("original")
        network = column["group"].lower().replace("-", "")
        dataset = {"MNIST": "mnist", "C-10": "cifar10", "C-100": "cifar100"}.get(column["name"])
        end = {"w/o KL": "", "w/ BN": "_bn", "w/ KL": "_kl"}[row["name"]]
        name = f"fedkl_{network}_{dataset or 'imagenet'}"
        assert (panel["experiment"], panel["model"]) == (name, f"{name}{end}")
        # Settings of one network stand in where there are such.
        own = f"_{network}" * (row["group"] == "DLG" and network != "lenet")
        assert Path(path).stem == f"fedkl_{row['group'].lower()}{own}"


def test_fedkl_tables_5_and_7_have_ggl_and_a_row_for_what_is_shared(all_results):
    words, files = grid(all_results, "table5")
    assert "rows" not in words and [p["column"] for p in words["panels"]] == [1, 2, 4, 5]
    assert [panel["model"] for panel in words["panels"]] == [
        f"fedkl_ggl_{dataset}{lock}" for dataset in ("imagenet", "cifar10") for lock in ("", "_kl")
    ]
    own = ["fedkl_ggl"] * 2 + ["fedkl_ggl_cifar10"] * 2
    assert [Path(path).stem for path in files["scores"]] == own
    assert [head["original"] for head in words["columns"]] == [True, False, False] * 2
    words, _ = grid(all_results, "table7")
    assert [row["name"] for row in words["rows"]] == ["Key", "Lock", "Both", "Neither", "True"]
    assert words["rows"][4]["original"] and len(words["panels"]) == 4 * 7
    ends = ["_key", "_gradient", "_both", ""]
    for panel in words["panels"]:
        assert panel["experiment"] == panel["model"].removesuffix("_kl") + ends[panel["row"]]
        assert panel["attack"] == ("fedkl_ggl" if panel["column"] == 6 else "fedkl_grnn")
    assert words["columns"][6] == {"name": "ILSVRC", "group": "ResNet-18, GGL"}


def test_adaptive_attackers_have_every_case_that_was_run(all_results):
    """Those that are skipped are the ones that config.yaml does not have."""
    loop = all_results.entries["figures"]["fedkl_adaptive"].panels[0]
    everything = loop.model_copy(update={"skip": loop.skip[:3]})
    shown, files = grid(all_results, "adaptive")
    experiments, there = all_results.config.experiments, 0
    for names in combinations(everything.foreach):
        names = {key: fill(value, names, {}) for key, value in names.items()}
        if (names["attack"] == "unlock") != (names["case"] == "moments"):
            continue
        entry = experiments.get(f"fedkl_{names['run']}{names['shared']}")
        attacks = {f"fedkl_{names['attack']}{net}{names['end']}" for net in ("", "_resnet20")}
        models = entry.models if entry else []
        members = [m for one in models for m in all_results.config.members(one)]
        there += bool(entry and attacks & set(entry.attacks) and names["model"] in members)
    assert there == len(shown["panels"]) == len(files["scores"])
    assert [p["case"] for p in shown["panels"] if p["method"] == "closed form"] == 4 * ["moments"]


def test_curves_are_of_trainings_with_and_without_lock(all_results):
    words, files = grid(all_results, "table2")
    assert len(words["curves"]) == 2 * 5 * 2
    for entry, path in zip(words["curves"], files["curves"], strict=True):
        network = words["columns"][entry["column"]]["name"].lower().replace("-", "")
        dataset = words["rows"][entry["row"]]["name"].lower().replace("-", "")
        lock = "_kl" if entry["lock"] else ""
        assert entry["model"] == f"fedkl_trained_{network}_{dataset}{lock}"
        # Networks are trained in groups where there are such.
        assert Path(path).name.removesuffix(".curve.csv") in all_results.config.groups


def test_fedkl_figure4_and_its_table_show_the_same_networks(all_results):
    words, files = grid(all_results, "fig4")
    table = all_results.needs("tables", "fedkl_fig4")
    assert files["table"] == "results/tables/fedkl_fig4.csv"
    assert [panel["row"] for panel in words["panels"]] == [c["row"] for c in table.words["cases"]]
    for place, case in enumerate(table.words["cases"]):
        shown = [entry["model"] for entry in words["curves"] if entry["panel"] == place]
        assert shown == case["networks"] and isinstance(case["settings"]["epochs"], int)
    assert all(path.endswith(".clients") for path in table.files["clients"])
    assert {len(paths) for paths in table.files.values()} == {4}


def test_rules_get_captions_titles_and_code(all_results):
    asked, job = Asked(all_results, "figures"), SimpleNamespace(result="copa_fig1")
    title, line, _, *text = asked.caption(job, None).split("\n")
    assert len(title) == len(line) and text[0].startswith("Four variants")
    assert asked.category(job) == "COPA"
    own = SimpleNamespace(result="copa_index")
    assert asked.labels(job) == {"result": "Figure 1: reconstructions, Tanh"}
    assert asked.labels(own) == {"result": "Is c(M) an indicator?"}
    assert asked.code(job) != asked.code(own)
    assert asked.make(job, None) == "papers.copa.figures.samples"
    assert asked.words(job)["models"] == [f"cnn3_v{n}_tanh" for n in (1, 2, 3, 4)]
    assert set(asked.files(job)) == {"targets", "reconstructions", "scores", "security"}
    tables = Asked(all_results, "tables")
    assert tables.files(SimpleNamespace(result="fedkl_table1")) == {
        "claims": "fedkl.yaml",
        "tables": ["results/tables/fedkl_accuracy.csv"],
    }
    # Servers are compared by model.
    job = SimpleNamespace(model="mkor_vgg16_1000")
    files = all_results.compared_files(job)
    assert len(files["sent"]) == len(all_results.compared_servers(job)) == 3
    assert all_results.compared_samples(job) == 1
    parts = all_results.needs("tables", "mkor_inconspicuous").files["parts"]
    # Another table compares one more.
    assert len(parts) == len(all_results.compared) - 1 == 3
