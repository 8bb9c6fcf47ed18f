"""Lines of a run: piped, on a terminal, dry; failures, misspelt targets, paths at the end."""

import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import PACKAGES, ROOT, run
from gradleak.config.loader import with_data_root
from gradleak.pipeline.run_output import ending, failures, hints
from gradleak.pipeline.run_output.display import last_line
from gradleak.runtime.progress import SHOWN
from test_progress import Terminal

COMMAND = ("-m", "snakemake", "--cores", "2", "--scheduler", "greedy")
ESCAPES = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
STEPS = re.compile(r"make (one|two): \d+ of 30 steps, \d+ s left")
TOY = """
import sys
from pathlib import Path

sys.path[:0] = {packages!r}
from gradleak.pipeline.run_output import ending
from gradleak.pipeline.run_output.handler import take_over

OUTPUT = take_over(workflow)
FIGURES, TABLES = [], []


rule both:
    input: "one.txt", "two.txt"
    message: "Both are made"


rule make:
    output: "{{name}}.txt"
    log: "{{name}}.log"
    message: "Make {{wildcards.name}}"
    script: "make.py"


onsuccess:
    if workflow.is_main_process:
        ending.tell_at_the_end(workflow, FIGURES, TABLES)


if OUTPUT is not None:
    OUTPUT.ending = lambda: ending.last_lines(workflow, FIGURES, TABLES)
    OUTPUT.ahead = lambda jobs: f"about {{len(jobs)}} core minutes"
"""
SCRIPT = """
import os, signal, sys, time
sys.path[:0] = {packages!r}
from pathlib import Path
from gradleak.runtime import progress
from gradleak.errors import DataError
from gradleak.runtime.job import job
progress.BAR = progress.LINES = 0.0
with job(snakemake):
    name = snakemake.wildcards.name
    if name.startswith("bad"):
        raise DataError(f"The file of {{name}} is cut; get it again.")
    if name == "odd":
        raise ValueError("nobody thought of this")
    if name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in progress.progress(range(30), "steps"):
        time.sleep(0.05 if {slow} else 0)
    Path(snakemake.output[0]).touch()
"""


class Toy:
    def __init__(self, folder, slow=False):
        self.folder, packages = folder, list(PACKAGES)
        (folder / "Snakefile").write_text(TOY.format(packages=packages))
        (folder / "make.py").write_text(SCRIPT.format(packages=packages, slow=slow))

    def piped(self, *arguments):
        done = run(sys.executable, *COMMAND, *arguments, together=True, cwd=self.folder)
        return done.returncode, done.stdout.splitlines()

    def on_terminal(self, *arguments):
        options = {"stdout": subprocess.DEVNULL, "cwd": self.folder}
        with closing(Terminal()) as terminal:
            with terminal.run(*COMMAND, *arguments, **options) as running:
                while running.poll() is None:
                    terminal.read(seconds=0.1)
            return running.returncode, terminal.read(seconds=0.2)


@pytest.fixture
def toy(tmp_path):
    return Toy(tmp_path)


def test_a_piped_run_says_one_line_a_job_and_ends_with_the_paths(toy):
    code, lines = toy.piped("both")
    assert code == 0
    # Some lines of how far its jobs are come in between, as no job of ours would say in this time.
    steps = [line for line in lines if " steps, " in line]
    assert {STEPS.fullmatch(line)[1] for line in steps} == {"one", "two"}
    kept = [line for line in lines if line not in steps]
    assert kept[0] == "3 jobs, about 3 core minutes"
    assert kept[3] == "3/3 Both are made"
    assert sorted(line.partition(" ")[2] for line in kept[1:3]) == ["Make one", "Make two"]
    assert re.fullmatch(r"3 of 3 jobs done in \d+ s", kept[4])
    assert kept[5:] == ["one.txt", "two.txt"]
    # Snakemake's own account is kept.
    log = max((toy.folder / ".snakemake/log").iterdir())
    assert "    output: two.txt" in log.read_text().splitlines()
    # Where nothing is left to do the paths stand there too; a file stands for itself.
    code, lines = toy.piped("two.txt")
    assert code == 0 and lines[0].startswith("Nothing to be done") and lines[1:] == ["two.txt"]


def test_snakemakes_own_account_is_printed_on_demand(toy):
    code, lines = toy.piped("--verbose", "one.txt")
    assert code == 0 and lines[-1] == "one.txt"
    assert {"localrule make:", "    output: one.txt", "    wildcards: name=one"} <= set(lines)


def test_failures_are_said_once_and_last(toy):
    code, lines = toy.piped("--keep-going", "--", "bad1.txt", "bad2.txt", "one.txt")
    assert code == 1
    sentences = [f"gradleak: The file of bad{n} is cut; get it again." for n in (1, 2)]
    assert sorted(lines[-2:]) == sentences
    text = "\n".join(lines)
    assert all(text.count(sentence) == 1 for sentence in sentences)
    assert re.search(r"^Failed: Make bad1 \(log: bad1.log\)$", text, re.MULTILINE)
    assert re.search(r"^1 of 3 jobs done, 2 failed in \d+ s; complete log", text, re.MULTILINE)
    assert not re.search(r"RuleException|CalledProcessError|WorkflowError|At least one|===", text)
    assert sentences[0] in (toy.folder / "bad1.log").read_text()
    # A failure of the run before is not said of this one.
    os.utime(toy.folder / "bad1.log", (100, 100))
    assert failures.last_word(toy.folder / "bad1.log", since=200) == ""


def test_an_error_of_ours_keeps_its_traceback_and_a_killed_job_its_signal(toy):
    code, lines = toy.piped("--", "odd.txt")
    assert code == 1 and lines[-1] == "ValueError: nobody thought of this"
    assert sum("Traceback" in line for line in lines) == 1
    assert "RuleException" not in "\n".join(lines)
    code, lines = toy.piped("--", "killed.txt")
    how = "failed (died with <Signals.SIGKILL: 9>), and killed.log does not say why."
    assert code == 1 and lines[-1] == f"gradleak: 'Make killed' {how}"


def test_a_run_on_a_terminal_is_a_display(tmp_path):
    code, shown = Toy(tmp_path, slow=True).on_terminal("both")
    assert code == 0, shown
    plain = ESCAPES.sub("", shown)
    # A bar of all jobs, and how far the running ones are by their logs; no bar of theirs.
    assert re.search(r"━+ +\d/3 jobs", plain)
    assert re.search(r"  Make one: \d+ of 30 steps, \d+ s left", plain)
    assert "%|" not in shown and "make one:" not in shown
    # It is taken away, and the paths stay.
    after = ESCAPES.sub("", shown[shown.rindex("\x1b[?25h") :])
    assert "━" not in after and "Make" not in after
    assert after.split()[-2:] == ["one.txt", "two.txt"]


def test_a_job_alone_on_a_terminal_draws_its_own_bar(toy):
    code, shown = toy.on_terminal("one.txt")
    assert code == 0 and "━" not in shown
    assert "%|" in shown and re.search(r"^1/1 Make one\r?$", shown, re.MULTILINE)


def test_a_failure_on_a_terminal_comes_last_too(toy):
    code, shown = toy.on_terminal("--", "bad1.txt", "one.txt")
    sentence = "gradleak: The file of bad1 is cut; get it again."
    assert code == 1 and ESCAPES.sub("", shown).rstrip().splitlines()[-1] == sentence
    # Shown by its end alone: the cursor is back, and nothing is drawn over it.
    assert shown.rindex("\x1b[?25h") < shown.rindex(sentence)


def test_without_rich_a_terminal_gets_lines(toy, monkeypatch):
    (toy.folder / "absent").mkdir()
    (toy.folder / "absent/rich.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(toy.folder / "absent"), prepend=os.pathsep)
    code, shown = toy.on_terminal("both")
    assert code == 0 and "━" not in shown
    assert re.search(r"[\r\n]3/3 Both are made\r?\n", shown)
    # Jobs side by side inherit one terminal, and each bar is whole.
    pieces = [piece for piece in re.split(r"[\r\n]", shown) if "of 30 steps" in piece]
    assert any("%|" in piece for piece in pieces)
    assert all(len(STEPS.findall(piece)) == 1 for piece in pieces), pieces


def test_a_log_that_is_not_of_this_job_says_nothing(tmp_path):
    log = tmp_path / "job.log"
    assert last_line(log, 0.0) == failures.last_word(log, 0.0) == ""
    log.write_text("2026-01-01 00:00:00,000 a\n2026-01-01 00:00:01,000 3 of 5 images\n")
    assert last_line(log, 0.0) == "3 of 5 images"
    assert last_line(log, log.stat().st_mtime + 1) == failures.last_word(log, 0.0) == ""


def test_sentences_of_our_rules_stand_without_a_frame():
    place = 'in file "/here/workflow/rules/common.smk", line 3'
    text = f'WorkflowError {place}:\nconfig.yaml: wrong.\n  File "/here/x.smk", line 3, in <module>'
    assert failures.without_frame(text, Path("/here")) == "gradleak: config.yaml: wrong."
    assert failures.without_frame(text, Path("/there")) == text


def test_sentences_of_input_functions_stand_without_wildcards_and_traceback():
    text = (
        'InputFunctionException in rule score in file "/here/attack.smk", line 151:\nError:\n'
        "  {}: No such model.\nWildcards:\n  model=x\nTraceback:\n  File 'inputs.py', line 3"
    )
    assert failures.without_frame(text.format("ConfigError"), Path("/")) == (
        "gradleak: No such model."
    )
    other = text.format("KeyError")  # a fault of the code: all of it
    assert failures.without_frame(other, Path("/")) == other


def rule(name, *output, reads=(), wildcards=False):
    return SimpleNamespace(name=name, output=output, input=reads, has_wildcards=lambda: wildcards)


def test_a_misspelt_target_gets_the_nearest():
    rules = [
        rule("figures", reads=["figures/one.pdf"]),
        rule("audits", reads=["results/audit/lenet/page.html"]),
        rule("notebooks", reads=["results/notebooks/copa.html"]),
        rule("page", "results/audit/{audit,lenet|vgg16}/page.html", wildcards=True),
        rule("shown", "results/experiments/{experiment,copa_pair|rgap_bias}.html", wildcards=True),
        rule("key", r"results/clients/{model,lenet|vgg16}/{client,\d+}.csv", wildcards=True),
    ]
    for target, nearest in (
        ("figurs", "figures"),
        ("figures/one.pdv", "figures/one.pdf"),
        ("results/audit/lennet/page.html", "results/audit/lenet/page.html"),
        ("results/audit/vg16/page.html", "results/audit/vgg16/page.html"),
        ("results/experiments/copa_par.html", "results/experiments/copa_pair.html"),
        ("results/experiments/nothing.html", ""),
        ("results/experimens/copa_pair.html", "results/experiments/copa_pair.html"),
        ("results/clients/lennet/3.csv", "results/clients/lenet/3.csv"),
        ("quite/another/thing", ""),
        ("here/cifar10-tran.safetensors", "here/cifar10-train.safetensors"),
    ):
        meant = f" (did you mean '{nearest}'?)" * bool(nearest)
        said = hints.unknown(target, rules, "here")
        assert said.startswith(f"gradleak: No rule makes '{target}'{meant}; ") and "\n" not in said


OWN = "images=embedded scale=laptop"


@pytest.mark.parametrize(
    ("target", "other", "own"),
    [
        ("scores/real-laptop/a/b.csv", "images=real scale=laptop", OWN),
        ("scores/embedded-smoke/a/b.csv", "images=embedded scale=smoke", OWN),
        ("scores/real-smoke/no/b.csv", "images=real scale=smoke", OWN),
        ("scores/real-smoke/b.csv", "", ""),  # which no run makes
        ("models/real-smoke/a.safetensors", "", ""),
        ("models/smoke/a.safetensors", "scale=smoke", "scale=laptop"),
        ("scores/embedded-laptop/a/none.csv", "", ""),
    ],
)
def test_a_target_of_another_scale_gets_what_to_add(target, other, own):
    rules = [
        rule("model", "results/models/laptop/{model,a|b}.safetensors", wildcards=True),
        rule("score", "results/scores/embedded-laptop/{model,a|b}/{way,b|c}.csv", wildcards=True),
    ]
    said = hints.unknown(f"results/{target}", rules, "data")
    words = f"results/{target}' is of {other}, and this run of {own}; put {other} into its --co"
    assert (words in said) == bool(other) and said.startswith("gradleak: ")


def test_a_rule_that_makes_one_of_many_files_is_not_a_target(refusal):
    rules = [rule("all"), rule("page", r"results/{audit,a|b}/{n,\d+}/{x}.html", wildcards=True)]
    said = hints.with_wildcards({"page", "all"}, rules)
    assert "'page' is a rule for many files, results/{audit}/{n}/{x}.html; ask for" in said
    assert hints.with_wildcards({"all", "results/x"}, rules) == ""
    said = refusal("-n", "--", "notebook")
    assert "gradleak: 'notebook' is a rule for many files, results/notebooks/{notebook}" in said


def test_many_paths_are_shortened_to_their_folders():
    few = [f"figures/{n}.pdf" for n in range(12)]
    assert hints.shortened(few) == few
    assert hints.shortened([*few, "one.csv"]) == ["figures/ (12 files)", "one.csv"]


def test_the_pipeline_names_the_nearest_target(tree, snakemake):
    done = snakemake(tree, "-n", "figures/copa_fg1.pdf", check=False)
    words = "gradleak: No rule makes 'figures/copa_fg1.pdf' (did you mean 'figures/copa_fig1.pdf'?)"
    assert done.returncode == 1 and done.stdout.count("\n") == 1 and done.stdout.startswith(words)


def test_one_figure_is_a_few_lines(tree, snakemake):
    done = snakemake(tree, "--config", "scale=smoke", "--", "figures/rgap_fig1.pdf")
    lines = (done.stdout + done.stderr).splitlines()
    # The profile, the config, the number of jobs, one job, its end, the path.
    assert len(lines) == 6 and "1/1 Draw figures/rgap_fig1.pdf" in lines
    assert lines[-1] == "figures/rgap_fig1.pdf"


def test_a_dry_run_of_everything_is_about_a_line_a_job(tree, snakemake):
    done = snakemake(tree, "-n", "all")
    lines = (done.stdout + done.stderr).splitlines()
    jobs = int(re.search(r"^total +(\d+)$", done.stdout, re.MULTILINE)[1])
    assert jobs > 900 and jobs < len(lines) < 1.2 * jobs
    assert "Draw figures/copa_fig1.pdf" in lines
    assert sum(line.startswith("About ") for line in lines) == 1
    # Embedded images are made here.
    assert not any(re.search("Data sets are looked for|Look at", line) for line in lines)


def test_every_rule_has_a_message():
    found, inherited = {}, set()
    for path in [*ROOT.glob("workflow/rules/*.smk"), ROOT / "workflow/Snakefile"]:
        text = path.read_text()
        blocks = re.finditer(r"^( *)rule ?(\w*):\n((?:\1 +.*\n|\n)+)", text, re.MULTILINE)
        for number, (_, name, body) in enumerate(block.groups() for block in blocks):
            found[name or f"{path.stem}:{number}"] = re.search(r"^ +message:\n +\"", body, re.M)
        inherited |= set(re.findall(r"^ *use rule (\w+) as (\w+) with:", text, re.MULTILINE))
    assert len(found) > 40 and [name for name, message in found.items() if not message] == []
    bases, heirs = map(set, zip(*inherited, strict=True))
    assert len(heirs) >= 5 and bases <= found.keys() | heirs


# --- The last line, which says where to look -----------------------------------------------------

FIGURES, TABLES = ["figures/one.pdf", "figures/two.pdf"], ["results/tables/one.csv"]
CLAIMS, PAGE = "results/claims.csv", "results/report.html"
FILES = f"{CLAIMS}, figures/ (2 of 2 figures)"
ALONE = f"Look at {FILES}. `snakemake {PAGE}` puts them on one page."
WITH_PAGE = f"Look at {PAGE}, {FILES}."


def test_runs_of_everything_end_with_one_line_and_no_others(tmp_path, monkeypatch):
    """Which names the page unless it is older than what it shows."""
    monkeypatch.chdir(tmp_path)

    def look(*targets, **times):
        """Of a run whose results are all there, made at the given times."""
        for path in (*FIGURES, *TABLES, CLAIMS, *[PAGE] * bool(times)):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).touch()
            os.utime(path, (times.get(path, 100),) * 2)
        return ending.where_to_look(targets, FIGURES, TABLES)

    whole = [(), ("all",), ("figures", "claims"), ("tables",)]
    assert [look(*targets) for targets in whole] == [ALONE] * 4
    assert look("figures/one.pdf") == look("figures/two.pdf", "claims") == ""
    assert look("all", **{PAGE: 200}) == WITH_PAGE
    for newest in (*FIGURES, *TABLES, CLAIMS):
        assert look("all", **{PAGE: 200, newest: 300}) == ALONE
        assert look(PAGE, **{PAGE: 200, newest: 300}) == WITH_PAGE


def test_other_targets_end_with_their_own_paths():
    jobs = rule("figures", *FIGURES), rule("claims", reads=[CLAIMS])
    asked = SimpleNamespace(targets={FIGURES[1], "claims"})
    done = SimpleNamespace(dag_settings=asked, dag=SimpleNamespace(targetjobs=jobs))
    assert ending.last_lines(done, FIGURES, TABLES) == [FIGURES[1], CLAIMS]


def test_the_pipeline_s_own_all_ends_with_the_line(tree, snakemake):
    """Its figures and tables by name, of which one job makes one."""
    (tree / "results").mkdir()
    (tree / CLAIMS).touch()
    begin = ("--cores", "1", "--config", "scale=smoke", "--until")
    done = snakemake(tree, *begin, "results/tables/mkor_unique_samples.csv", "--", "all")
    assert (tree / "results/tables/mkor_unique_samples.csv").exists()
    assert done.stderr.splitlines()[-1] == ALONE.replace(FILES, CLAIMS)


def test_where_data_are_looked_for_is_said_and_can_be_changed(tree, snakemake, monkeypatch):
    monkeypatch.setenv("GRADLEAK_DATA_ROOT", "/from/environment")
    real = ("-n", "--config", "images=real", "scale=smoke", "--")
    done = snakemake(tree, *real, "results/tables/copa_table2.csv")
    others = "for another folder set GRADLEAK_DATA_ROOT, or --config 'data={root: FOLDER}'."
    said = f"Data sets are looked for in /from/environment; {others}"
    assert said in done.stdout.splitlines()


def test_the_environment_stands_between_the_file_and_the_command_line():
    raw = {"images": "real", "data": {"root": "data", "imagenet": "mine"}}
    for given in ({"images": "real"}, {"data": {"imagenet": "mine"}}):
        changed = raw | {"data": {"root": "/there", "imagenet": "mine"}}
        assert with_data_root(raw, given, "/there") == changed
    assert with_data_root({}, {}, "/there") == {"data": {"root": "/there"}}
    assert with_data_root(raw, {"data": {"root": "data"}}, "/there") is raw
    assert with_data_root(raw, {}, "") is raw and with_data_root(raw, {}, None) is raw
    assert with_data_root({"data": 3}, {}, "/there") == {"data": 3}


def test_the_suite_is_free_of_what_a_session_may_have_set():
    assert SHOWN not in os.environ and "GRADLEAK_DATA_ROOT" not in os.environ
