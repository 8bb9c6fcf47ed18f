"""How far a job is: on a terminal, in a log, in loops within loops; which jobs tell it."""

import io
import logging
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from contextlib import closing
from itertools import count, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from chains import chain as small
from chains import conv, image, view
from conftest import PACKAGES
from gradleak.analysis import copa_index
from gradleak.attacks.optimization.inverting import InvertingGradients
from gradleak.client import capture
from gradleak.client.defences.apply import defend_all
from gradleak.client.defences.soteria import Soteria
from gradleak.models import build
from gradleak.models.files import ModelFile
from gradleak.models.initial import family_weights
from gradleak.runtime import progress as told
from gradleak.runtime.progress import in_words, progress
from mkor_cases import network
from papers.mkor import inconspicuous
from rgap_files import target_set


@pytest.fixture
def clock(monkeypatch):
    found = SimpleNamespace(now=1000.0, monotonic=lambda: found.now)
    monkeypatch.setattr(told, "time", found)
    return found


@pytest.fixture
def log(caplog):
    """Lines that a job logs."""
    caplog.set_level(logging.INFO, "gradleak.runtime.progress")
    told.begin_job("attack mine")
    yield lambda: [record.getMessage() for record in caplog.records]
    told.begin_job("")


def test_lines_come_every_half_minute_with_done_total_and_time_left(clock, log, capsys):
    for _ in progress(range(12), "images"):
        clock.now += 10
    left = ((3, "2 min"), (6, "1 min"), (9, "30 s"), (12, "0 s"))
    wanted = [f"{done} of 12 images, {words} left" for done, words in left]
    assert log() == wanted
    assert capsys.readouterr().err == "".join(f"attack mine: {line}\n" for line in wanted)


def test_a_short_job_is_silent_and_so_is_the_library_outside_of_jobs(clock, log, capsys):
    for _ in progress(range(5), "images"):
        clock.now += 5
    assert list(progress(["a", "b"], "letters")) == ["a", "b"]
    assert list(progress([], "letters")) == []
    told.begin_job("")
    for _ in progress(range(5), "images"):
        clock.now += 500
    assert log() == [] and capsys.readouterr().err == ""


def test_loops_within_loops_count_for_what_they_do(clock, log):
    """The time left is that of the outer loop, of which the inner ones do a part."""
    with progress(8, "images") as outer:
        with outer.doing(4), progress(10, "searches") as middle, middle.doing(10):
            for step in progress(range(50), "steps"):
                clock.now += 1 if step else 40
        with outer.doing(4):
            clock.now += 129
    assert log() == [
        "0 of 8 images, 1 of 50 steps, 1 h 6 min left",
        "0 of 8 images, 31 of 50 steps, 3 min left",
        "8 of 8 images, 0 s left",
    ]


def test_what_earlier_jobs_did_within_counts_as_done_but_not_for_the_time_left(clock, log):
    with progress(15, "images") as outer, outer.doing(5), progress(5, "searches") as middle:
        middle.skip(2)
        for step in progress(10, "steps", 4), progress(10, "steps"):
            with middle.doing(), step:
                clock.now += 60
                step.update(2)
    # 12.4 of 15 images to do, of which 0.2 took a minute.
    assert log()[0] == "2 of 15 images, 6 of 10 steps, 1 h 2 min left"
    assert log()[1].startswith("3 of 15 images, 2 of 10 steps, ")


def test_inner_loops_that_find_all_done_before_leave_the_time_of_the_rest(clock, log):
    with progress(6, "images") as outer:
        with outer.doing(4):
            for _ in range(2):
                with progress(2, "searches") as inner:
                    inner.skip(2)
        clock.now += 60
        outer.update(1)
    # One of the other two took a minute.
    assert log() == ["5 of 6 images, 1 min left"]


def test_a_second_inner_loop_does_not_take_back_what_was_told(clock, log):
    for _ in progress(range(2), "images"):
        for _ in range(2):
            for _ in progress(range(4), "steps"):
                clock.now += 30
    left = [line.rpartition(", ")[2] for line in log()]
    assert left[3] == "2 min left" and "0 of 2 images, 1 of 4 steps" in log()[4]
    # It stands still while the second one catches up: half is done, and has taken 3.5 minutes.
    assert left[6] == "4 min left" and log()[-1] == "1 of 2 images, 4 of 4 steps, 0 s left"


def test_words_of_a_loop_and_sizes_in_megabytes(clock, log):
    lines = []
    for given, done, note, line in (
        ((None, "bytes", 5_000_000), 7_250_000, None, "12.2 MB"),
        ((20_000_000, "bytes"), 10_000_000, None, "10.0 of 20.0 MB, 1 min left"),
        ((10, "steps"), 5, lambda: "loss 0.5", "5 of 10 steps, loss 0.5, 1 min left"),
        # What was done before does not shorten the time left.
        ((100, "steps", 50), 25, None, "75 of 100 steps, 1 min left"),
    ):
        with progress(*given) as loop:
            loop.note = note
            clock.now += 60
            loop.update(done)
        lines.append(line)
    assert log() == lines


def test_an_error_within_leaves_nothing_behind(clock, log):
    with pytest.raises(ValueError, match="mine"), progress(2, "images") as outer, outer.doing():
        for _ in progress(range(3), "steps"):
            raise ValueError("mine")
    clock.now += 100
    for _ in progress(range(2), "others"):
        clock.now += 30
    assert log() == ["1 of 2 others, 30 s left", "2 of 2 others, 0 s left"]


def test_times_in_words():
    words = "0 s, 59 s, 1 min, 59 min, 1 h 0 min, 2 h 5 min, 4 d 4 h"
    assert ", ".join(map(in_words, (0.2, 59.4, 59.6, 3569, 3571, 7500, 360_000))) == words


class Terminal:
    """A pseudo-terminal for standard error, of 100 columns."""

    def __init__(self):
        self.own, self.theirs = pty.openpty()
        termios.tcsetwinsize(self.theirs, (24, 100))
        self.seen = b""

    def run(self, *arguments, **options):
        paths = filter(None, [*PACKAGES, os.getenv("PYTHONPATH")])
        options["env"] = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        line = [sys.executable, *arguments]
        return subprocess.Popen(line, stderr=self.theirs, text=True, **options)

    def read(self, until=None, seconds=0.0):
        """What was written so far; with `until`, as soon as that was."""
        end = time.monotonic() + (60 if until else seconds)
        while True:
            ready, _, _ = select.select([self.own], [], [], 0.05)
            if ready:
                self.seen += os.read(self.own, 1 << 16)
            text = self.seen.decode(errors="replace")
            if (until and until in text) or (not ready and time.monotonic() >= end):
                break
        assert not until or until in text, text
        return text

    def close(self):
        os.close(self.own)
        os.close(self.theirs)


@pytest.fixture
def terminal():
    with closing(Terminal()) as opened:
        yield opened


LOOP = """
import logging, sys
from gradleak.runtime import progress
progress.BAR = progress.LINES = 0.0
progress.begin_job(sys.argv[1])
logging.getLogger("gradleak").addHandler(logging.FileHandler(sys.argv[2]))
logging.getLogger("gradleak").setLevel(logging.INFO)
for number in progress.progress(range(4), "images"):
    print(number, flush=True)
    input()
print("over", flush=True)
input()
"""


def begin(terminal, name, folder):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return terminal.run("-c", LOOP, name, str(folder / name), **pipes)


def step(running):
    running.stdin.write("\n")
    running.stdin.flush()
    return running.stdout.readline().strip()


def test_on_a_terminal_there_is_a_bar_and_lines_in_the_log(terminal, tmp_path):
    with begin(terminal, "attack_mine", tmp_path) as running:
        assert running.stdout.readline() == "0\n"
        step(running)
        shown = terminal.read(until="attack_mine: 1 of 4 images")
        assert re.search(r"\r *25%\|\S+ *\| attack_mine: 1 of 4 images, \d+ s left", shown)
        assert [step(running) for _ in range(3)][-1] == "over"
        shown = terminal.read(seconds=0.2)
        # The bar is gone, and no line was left.
        assert "\n" not in shown and re.search(r"\r +\r$", shown)
        step(running)
    assert running.returncode == 0
    assert len((tmp_path / "attack_mine").read_text().splitlines()) == 4


def test_a_notebook_has_a_bar_unless_its_run_shows_how_far_it_is(monkeypatch):
    shown = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(told, "BAR", 0.0)
    for _ in progress(range(4), "images"):
        pass
    assert "1 of 4 images" in shown.getvalue()
    monkeypatch.setenv(told.SHOWN, "display")
    shown.truncate(0)
    for _ in progress(range(4), "images"):
        pass
    assert not shown.getvalue()


def test_of_two_jobs_on_a_terminal_one_draws_and_the_other_follows(terminal, tmp_path):
    with begin(terminal, "first", tmp_path) as first, begin(terminal, "second", tmp_path) as second:
        assert (first.stdout.readline(), second.stdout.readline()) == ("0\n", "0\n")
        step(first)
        terminal.read(until="first: 1 of 4")
        for _ in range(2):
            step(second)
        step(first)
        shown = terminal.read(until="first: 2 of 4")
        assert "second" not in shown
        assert [step(first) for _ in range(2)][-1] == "over"
        step(second)
        shown = terminal.read(until="second: 3 of 4")
        assert shown.rindex("first") < shown.index("second")
        first.communicate("\n")
        second.communicate("\n\n")
    for name, done in (("first", first), ("second", second)):
        assert done.returncode == 0
        assert len((tmp_path / name).read_text().splitlines()) == 4


# --- Jobs that take a minute and more tell it, and give what they give without it -----------------

KNOWN = {"seeds": 1, "precision": "float64", "granted": True, "device": "cpu"}


@pytest.fixture
def lines(monkeypatch, caplog, log):
    """What a function says in a job in which half a minute passes whenever one looks."""
    monkeypatch.setattr(told, "time", SimpleNamespace(monotonic=count(40.0, 40.0).__next__))

    def run(function, *arguments, **options):
        caplog.clear()
        function(*arguments, **options)
        # Only the time left is not known.
        return [re.sub(r", [^,]+ left$", "", line) for line in log()]

    return run


@pytest.fixture
def case():
    chain = network(classes=6, side=8)
    return ModelFile((chain,), family_weights([chain], 1)), target_set(2, 3, (1, 8, 8))


def nested(outer, inner):
    """Lines of two loops of two items, one within the other."""
    each = [f", 1 of 2 {inner}", f", 2 of 2 {inner}", ""]
    return [f"{k + (not words)} of 2 {outer}{words}" for k in (0, 1) for words in each]


@pytest.mark.parametrize("kept", ["all", "classifier"])
def test_taking_gradients_tells_of_them_and_of_parts_of_batches(case, lines, monkeypatch, kept):
    whole = ["1 of 2 gradients", "2 of 2 gradients"]
    assert lines(capture.capture_all, *case, **KNOWN, kept=kept) == whole
    monkeypatch.setattr(capture, "images_at_once", lambda chain: 2)
    found = lines(capture.capture_all, *case, **KNOWN, kept=kept)
    assert found == nested("gradients", "parts of a batch")


def test_soteria_tells_of_gradients_and_of_channels(case, lines):
    tensors, metadata = capture.capture_all(*case, **KNOWN)
    found = lines(defend_all, *case, tensors, metadata, Soteria(prune=0.3))
    filters = case[0].chains[0].convolutions[-1].shape.filters
    each = product((0, 1), range(1, filters + 1))
    told = [f"{done} of 2 gradients, {k} of {filters} channels" for done, k in each]
    assert [line for line in found if "channels" in line] == told
    assert found[-1] == "2 of 2 gradients"


def test_searches_tell_of_all_gradients_though_networks_are_searched_one_by_one(lines):
    """Gradients in unlike modes cannot be searched together."""
    net = small(conv(2, 3), side=6)
    views = [view(net, image(net, 0), 0, mode=mode) for mode in ("training", "evaluation")]
    found = lines(InvertingGradients(iterations=2).run_many, views, [0, 1])
    within = ["1 of 2 steps", "1 of 1 searches"]
    each = [[f"{k} of 2 gradients searched, {one}" for one in within] for k in (0, 1)]
    assert found == [*each[0], "1 of 2 gradients searched", *each[1], "2 of 2 gradients searched"]


def test_ranks_tell_of_networks_and_of_layers(lines):
    chains = [small(conv(6, 3), conv(2, 4, stride=2), side=14, name=name) for name in "ab"]
    models = ModelFile(tuple(chains), family_weights(chains, 1))
    found = lines(copa_index.index_table, models, target_set(1, 1, (2, 14, 14)), seeds=1)
    assert found == nested("networks", "layers")


def test_what_a_client_sees_tells_of_models_gradients_and_layers(case, lines):
    models, images = case
    found = lines(inconspicuous.table, models, ["one"], [models], images, 2, "cross_entropy")
    groups = len(models.chains[0].layers) + 2
    gradients, last = ["1 of 2 gradients", "2 of 2 gradients"], "1 of 1 networks"
    layers = [f"{k} of {groups} groups of layers" for k in range(1, groups + 1)]
    first = [f"0 of 2 models, {words}" for words in (*gradients, last)]
    second = [f"1 of 2 models, {words}" for words in (*gradients, *layers, last)]
    assert found == [*first, "1 of 2 models", *second, "2 of 2 models"]


def test_parts_of_a_batch_add_up_to_its_gradient(case, monkeypatch):
    """As before there were lines; a whole batch in one part is bit for bit the plain gradient."""
    models, images = case
    chain, weights = models.chains[0], models.of(models.chains[0], 0)
    given = (chain, weights, images.inputs(0), images.labels[0])
    options = {"precision": "float64", "device": torch.device("cpu")}
    whole = capture.capture(*given, **options)
    module = build.load(chain, weights, torch.float64)
    outputs = module(torch.from_numpy(given[2]).double())
    value = capture.mean_loss("cross_entropy", outputs, torch.from_numpy(given[3]))
    plain = torch.autograd.grad(value, list(module.parameters()))
    for name, expected in zip(whole, plain, strict=True):
        np.testing.assert_array_equal(whole[name], expected.numpy())
    monkeypatch.setattr(capture, "images_at_once", lambda chain: 2)
    parts = capture.capture(*given, **options)
    for name, expected in whole.items():
        np.testing.assert_allclose(parts[name], expected, rtol=1e-12, atol=1e-15)
