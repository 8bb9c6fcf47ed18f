"""The text of config files: what Snakemake would read in part, or say nothing useful of."""

import os

import pytest

from conftest import ROOT, sentence
from gradleak.config import loader, yaml_checks
from gradleak.errors import ConfigError

WHOLE = (ROOT / "papers/fedkl/paper.yaml").read_text(encoding="utf-8")
SHIPPED = yaml_checks.read(ROOT / "config.yaml")


def refused(path):
    message = sentence(ConfigError, yaml_checks.read, path)
    assert message.endswith(".") and str(path) in message, message
    return message.replace(str(path), "FILE")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("scale: laptop\nimages: real\nscale: smoke\n", "line 3: key 'scale' stands in line 1 too"),
        ("targets:\n  a: {b: [1],\n      b: [2]}\n", "line 3: key 'targets.a.b' stands in line 2"),
        ("targets: {a: {}, b: {}, a: {}}\n", "line 1: key 'targets.a' stands in line 1 too"),
        ("a:\n- b: 1\n- b: 1\n  'b': 2\n", "line 4: key 'a.1.b' stands in line 3 too"),
        ('{"a": {"b": 1, "b": 2}}', "key 'b' stands twice"),
        ("images: real\nscale: *nope\n", "line 2: *nope refers to nothing; define &nope above"),
        ("data:\n\troot: x\n", "line 2 is indented with a tab; indent with spaces"),
        ("a:\n  - 1\n\t- 2\n", "line 3 is indented with a tab"),
        ("a: 1\nb: !!python/object/apply:os.system ['x']\n", "line 2: the tag !!python/object/ap"),
        ("a: 1\nb: !own 1\n", "line 2: the tag !own is not taken"),
        ("a: 1\nb: c: d\n", "line 2 is not YAML (mapping values are not allowed"),
        ("a: [1\nb: 2\n", "line 2 is not YAML"),
        ("a: 1\nb: 2026-13-45\n", "line 2 is not YAML (month must be in 1..12)"),
        ("a: 1\n---\nb: 1\n", "line 2 is not YAML (but found another document)"),
        ("? [a]\n: 1\n", "line 1 is not YAML (found unhashable key)"),
        ("a: 1\nb: \x01\n", r"line 2: the control character '\x01' is not text"),
        # PyYAML's own mark of the end of a file.
        ("a: 1\nb: \x00\n", r"line 2: the control character '\x00' is not text"),
        (b"a: 1\nb: caf\xe9\n", "line 2: byte 0xe9 is not UTF-8"),
        (b"\x7fELF\x02\x01\x01\x80", "line 1: byte 0x80 is not UTF-8"),
        ("- 1\n", "FILE holds no keys"),
        ("", "FILE holds no keys"),
        ("__use_yte__: true\nscale: ?'x'\n", "__use_yte__ would run what the file holds"),
        ("[" * 100_000, "FILE nests its values too deeply"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path, text, words):
    path = tmp_path / "config.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert words in refused(path)


@pytest.mark.parametrize(
    "text",
    [
        WHOLE,
        WHOLE.replace("\n", "\r\n"),
        "\ufeff" + WHOLE,
        '{"a": {"b": 1}, "c": {"b": 2}}',
        "a: &a {b: {c: &d {<<: {x: 1}, x: 2}}}\nz: {<<: *d, x: 3}\ny: {<<: *a, <<: *d}\n",
        "a: [&x {b: 1}, *x, *x]\n",
    ],
    ids=["ours", "CRLF", "BOM", "JSON", "merges", "aliases"],
)
def test_good_files_pass(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_bytes(text.encode())
    yaml_checks.read(path)


def test_what_is_no_file_is_refused(tmp_path):
    assert "is not a regular file" in refused(tmp_path / "none.yaml")
    assert "is not a regular file" in refused(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file" in refused(tmp_path / "pipe")


def include(folder, **files):
    """Settings that include files of these texts, made in the working folder."""
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return {**SHIPPED, "include": [*SHIPPED["include"], *(f"{name}.yaml" for name in files)]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\na: 2\n", "mine.yaml, line 2: key 'a' stands in line 1 too"),
        ("scale: smoke\n", "mine.yaml: 'scale' is not a section of entries"),
        ("include: [x.yaml]\n", "mine.yaml: 'include' is not a section of entries"),
        ("attacks: [copa]\n", "mine.yaml: 'attacks' is not a section of entries"),
        ("attacks: {copa: {method: copa}}\n", "mine.yaml: attacks.copa stands in papers/copa/pap"),
        ("atacks: {}\n", "mine.yaml: unknown key 'atacks' (did you mean 'attacks'?)"),
        ("attacks: {a: {method: copa, strat: rgap}}\n", "mine.yaml: unknown key"),
        ("attacks: {a: {method: copa, iterations: 0}}\n", "mine.yaml: attacks.a.iterations: 0 is"),
        ("attacks: {a: {method: dlg, of: copa}}\n", "mine.yaml: attacks.a: start: reconstruction"),
        ("attacks: {a: {method: h_gap, of: [b, c]}}\n", "mine.yaml: attacks.a.of: 'b' is not"),
        ("audit: {a: {input: [1, 2, 2]}}\n", "mine.yaml: key 'audit.a.network' is missing"),
        ("groups: {a: [b]}\n", "mine.yaml: groups.a: 'b' is not defined"),
        ("models: {a: {input: [3, 8, 8], layers: [{pool: 2}]}}", "mine.yaml: models.a: layer 1 is"),
        ("models: {a: {input: [3, 8, 8], layers: [3]}}\n", "mine.yaml: models.a.layers.0"),
        ("targets: {a: {dataset: mnist, split: test, count: 10001}}", "mine.yaml: targets.a: co"),
    ],
)
def test_what_is_wrong_in_an_included_file_has_its_name(tmp_path, monkeypatch, text, words):
    monkeypatch.chdir(tmp_path)
    assert sentence(ConfigError, loader.load, include(tmp_path, mine=text)).startswith(words)


def test_own_keys_replace_those_of_included_files_one_by_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine = "attacks: {a: {method: copa, iterations: {smoke: 1, laptop: 2, paper: 3}}}"
    raw = include(tmp_path, mine=mine)
    own = {"a": {"iterations": {"laptop": 9}}, "b": {"method": "rgap"}, "copa": {"iterations": 7}}
    raw["attacks"] = own
    loaded = loader.load(raw)
    assert loaded.attacks["a"].iterations == 9 and loaded.at("paper").attacks["a"].iterations == 3
    assert loaded.attacks["copa"].iterations == 7 and loaded.attacks["copa"].start == "random"
    assert loaded.attacks["b"].method == "rgap" and loaded.include == raw["include"]
    # What a person changes is theirs, whoever wrote the entry.
    raw["attacks"]["copa"]["iterations"] = -7
    with pytest.raises(ConfigError, match=r"^config.yaml: attacks.copa.iterations: -7"):
        loader.load(raw)


def test_a_paper_can_be_left_out(tmp_path):
    files = [name for name in yaml_checks.included(SHIPPED["include"]) if "fedkl" not in name]
    raw = {**SHIPPED, "include": files}
    assert {e.paper for e in loader.load(raw).experiments.values()} == {"copa", "rgap", "mkor"}


INCLUDED = [
    (["nowhere.yaml"], "nowhere.yaml is missing"),
    (["/etc/passwd"], "/etc/passwd lies outside"),
    (["../x.yaml"], "../x.yaml lies outside"),
    (["../*.yaml"], "../*.yaml lies outside"),
    (["papers/*/nothing.yaml"], "papers/*/nothing.yaml matches no file"),
    ("papers", "give a list of files"),
    ([3], "give a list of files"),
]


@pytest.mark.parametrize(("include", "words"), INCLUDED)
def test_only_files_below_the_folder_are_included(include, words):
    said = sentence(ConfigError, loader.load, {**SHIPPED, "include": include})
    assert said.startswith(f"config.yaml: include: {words}")


def test_the_pipeline_checks_its_config_files_before_it_reads_them(tree, refusal):
    other = tree / "other.yaml"
    other.write_text("scale: smoke\nimages: real\nscale: laptop\n")
    said = refusal("-n", "--configfile", other.name)
    assert "other.yaml, line 3: key 'scale' stands in line 1" in said
    text = (tree / "config.yaml").read_text()
    (tree / "config.yaml").write_bytes(text.encode() + b"# \xe9\n")
    lines = text.count("\n") + 1
    assert f"config.yaml, line {lines}: byte 0xe9 is not UTF-8" in refusal("-n")


GIVEN = {
    "config.yaml": {"targets": {"mine": {"dataset": "mnist", "split": "test", "count": -1}}},
    "mine.yaml": {
        "targets": {"mine": {"first": 3}},
        "models": {"cnn3_v1_tahn": {"classes": 3}},
        "attacks": {"copa": {"iteratons": 5}},
        "scale": "none",
    },
    "--config": {
        "scale": "some",
        "experiments": {"copa_pair": {"attacks": ["dgl"]}},
        "include": ["papers/nope.yaml"],
    },
}


@pytest.mark.parametrize(
    ("one", "words"),
    [
        ("attacks", "mine.yaml: unknown key 'attacks.copa.iteratons' (did you mean 'iterations'?)"),
        ("scale", "--config: scale: 'some' "),
        (
            "models",
            "mine.yaml: key 'models.cnn3_v1_tahn.input' is missing; add it, or correct 'cnn3",
        ),
        (
            "targets",
            "config.yaml: targets.mine.count: -1",
        ),  # of which mine.yaml replaces another key
        ("include", "--config: include: papers/nope.yaml is missing"),
        ("experiments", "--config: experiments.copa_pair.attacks: 'dgl'"),
    ],
)
def test_a_fault_is_told_of_the_file_or_option_that_has_it(one, words):
    """Not of the files that it replaces keys of; the last one counts."""
    given = {
        name: {key: v for key, v in keys.items() if key == one} for name, keys in GIVEN.items()
    }
    raw = SHIPPED
    for keys in given.values():
        raw = yaml_checks._merged(raw, keys)
    assert sentence(ConfigError, loader.load, raw, given).startswith(words)


def test_an_own_fault_stays_with_the_included_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    raw = include(tmp_path, mine="attacks:\n  odd: {method: rgap, rank: 3}\n")
    said = sentence(ConfigError, loader.load, raw, {"--config": {"scale": "smoke"}})
    assert "mine.yaml: " in said


def test_numbers_in_options_are_numbers_and_other_words_stay():
    given = {"a": {"b": "50", "c": ["0.5", "1.0e-3", "true", "x"]}, "d": "", "e": 3, "f": "1-2-3"}
    found = {"a": {"b": 50, "c": [0.5, 1e-3, True, "x"]}, "d": "", "e": 3, "f": "1-2-3"}
    assert yaml_checks.typed(given) == found
    for odd in ("{", "a: b", "*x", "12:30:45x", "2020-01-01"):
        assert yaml_checks.typed({"a": {"b": odd}}) == {"a": {"b": odd}}
    data = {"root": "2024", "mirrors": {"cifar10": "on"}, "imagenet": "null"}
    assert yaml_checks.typed({"data": data}) == {"data": {**data, "imagenet": None}}


def test_amounts_of_an_option_are_numbers(tree, snakemake):
    amount = ("--config", "scale=smoke", "attacks={copa: {iterations: 7}}", "--")
    done = snakemake(tree, "-n", *amount, "figures/copa_fig1.pdf")
    assert "was a dry-run" in done.stdout


def test_the_pipeline_refuses_folders_that_are_none_and_missing_claims(tree, refusal):
    said = refusal("-n", "--config", "data={root: Snakefile}", "--")
    assert "gradleak: --config: data.root: Snakefile is not a folder" in said
    (tree / "results").symlink_to("nowhere")
    assert "results is not a folder that you may write to" in refusal("-n")
    (tree / "results").unlink()
    (tree / "papers/copa/claims.yaml").unlink()
    said = refusal("-n", "results/claims.csv")
    assert "papers/copa/claims.yaml is missing, which holds a paper's claims" in said


def test_what_an_experiment_lacks_is_told_before_any_job(refusal):
    score = "results/scores/embedded-smoke/copa_pair/rgap_cnn6/none/rgap.csv"
    said = refusal("-n", "--config", "scale=smoke", "--", score)
    assert "gradleak: Experiment 'copa_pair' does not list the model 'rgap_cnn6'" in said
    fewer = ("scale=smoke", "experiments={copa_pair: {attacks: [rgap]}}")
    said = refusal("-n", "--config", *fewer, "--", "figures/copa_fig1.pdf")
    assert "figures.copa_fig1 needs attacks: copa in experiments.copa_pair" in said
    assert "Wildcards" not in said


@pytest.mark.parametrize("paper", ["copa", "rgap", "fedkl", "mkor"])
def test_a_run_may_include_fewer_papers(paper, tree, snakemake, refusal):
    kept = [name for name in yaml_checks.included(SHIPPED["include"]) if f"/{paper}/" not in name]
    fewer = ("-n", "--config", "scale=smoke", f"include=[{', '.join(kept)}]", "--")
    done = snakemake(tree, *fewer, "all")
    assert "was a dry-run" in done.stdout
    if paper == "rgap":
        said = "This benchmark needs trainings.rgap_resnet18, which the config does not have"
        assert said in refusal(*fewer, "speed")
