"""How far a job is: on a terminal, in a log, in loops within loops, with jobs side by side."""

import logging
import os
import pty
import re
import select
import subprocess
import sys
import termios
import textwrap
import time
from types import SimpleNamespace

import pytest

from conftest import PACKAGES
from gradleak.runtime import progress as told
from gradleak.runtime.progress import in_words, progress


@pytest.fixture
def clock(monkeypatch):
    found = SimpleNamespace(now=1000.0, monotonic=lambda: found.now)
    monkeypatch.setattr(told, "time", found)
    return found


@pytest.fixture
def job():
    told.begin_job("attack mine")
    yield
    told.begin_job("")


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, "gradleak.runtime.progress")
    return lambda: [record.getMessage() for record in caplog.records]


def test_lines_come_every_half_minute_with_done_total_and_time_left(clock, job, log, capsys):
    for _ in progress(range(12), "images"):
        clock.now += 10
    left = {3: "2 min", 6: "1 min", 9: "30 s", 12: "0 s"}
    wanted = [f"{done} of 12 images, {words} left" for done, words in left.items()]
    assert log() == wanted
    assert capsys.readouterr().err == "".join(f"attack mine: {line}\n" for line in wanted)


def test_a_short_job_is_silent_and_so_is_the_library_outside_of_jobs(clock, job, log, capsys):
    for _ in progress(range(5), "images"):
        clock.now += 5
    assert list(progress(["a", "b"], "letters")) == ["a", "b"]
    assert list(progress([], "letters")) == []
    told.begin_job("")
    for _ in progress(range(5), "images"):
        clock.now += 500
    assert log() == [] and capsys.readouterr().err == ""


def test_loops_within_loops_count_for_what_they_do(clock, job, log):
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


def test_a_second_inner_loop_does_not_take_back_what_was_told(clock, job, log):
    for _ in progress(range(2), "images"):
        for _ in range(2):
            for _ in progress(range(4), "steps"):
                clock.now += 30
    left = [line.rpartition(", ")[2] for line in log()]
    assert left[3] == "2 min left" and "0 of 2 images, 1 of 4 steps" in log()[4]
    # It stands still while the second one catches up: half is done, and has taken 3.5 minutes.
    assert left[6] == "4 min left" and log()[-1] == "1 of 2 images, 4 of 4 steps, 0 s left"


LOOPS = [
    ((None, "bytes", 5_000_000), 7_250_000, None, "12.2 MB"),
    ((20_000_000, "bytes"), 10_000_000, None, "10.0 of 20.0 MB, 1 min left"),
    ((10, "steps"), 5, lambda: "loss 0.5", "5 of 10 steps, loss 0.5, 1 min left"),
    # What was done before does not shorten the time left.
    ((100, "steps", 50), 25, None, "75 of 100 steps, 1 min left"),
]


@pytest.mark.parametrize(("given", "count", "note", "line"), LOOPS)
def test_words_of_a_loop_and_sizes_in_megabytes(clock, job, log, given, count, note, line):
    with progress(*given) as loop:
        loop.note = note
        clock.now += 60
        loop.update(count)
    assert log() == [line]


def test_an_error_within_leaves_nothing_behind(clock, job, log):
    with pytest.raises(ValueError, match="mine"), progress(2, "images") as outer, outer.doing():
        for _ in progress(range(3), "steps"):
            raise ValueError("mine")
    clock.now += 100
    for _ in progress(range(2), "others"):
        clock.now += 30
    assert log() == ["1 of 2 others, 30 s left", "2 of 2 others, 0 s left"]


WORDS = {
    0.2: "0 s", 59.4: "59 s", 59.6: "1 min", 3569: "59 min", 3571: "1 h 0 min", 7500: "2 h 5 min",
    100 * 3600: "4 d 4 h",
}  # fmt: skip


@pytest.mark.parametrize("seconds", WORDS)
def test_times_in_words(seconds):
    assert in_words(seconds) == WORDS[seconds]


class Terminal:
    """A pseudo-terminal for standard error, of 100 columns."""

    def __init__(self):
        self.own, self.theirs = pty.openpty()
        termios.tcsetwinsize(self.theirs, (24, 100))
        self.seen = b""

    def run(self, code, *arguments, **options):
        paths = filter(None, [*PACKAGES, os.getenv("PYTHONPATH")])
        options["env"] = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        line = [sys.executable, *(("-c", textwrap.dedent(code)) if code else ()), *arguments]
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
    opened = Terminal()
    yield opened
    opened.close()


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
    return terminal.run(LOOP, name, str(folder / name), **pipes)


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
        for _ in range(3):
            said = step(running)
        assert said == "over"
        shown = terminal.read(seconds=0.2)
        # The bar is gone, and no line was left.
        assert "\n" not in shown and re.search(r"\r +\r$", shown)
        step(running)
    assert running.returncode == 0
    assert len((tmp_path / "attack_mine").read_text().splitlines()) == 4


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
        for _ in range(2):
            said = step(first)
        assert said == "over"
        step(second)
        shown = terminal.read(until="second: 3 of 4")
        assert shown.rindex("first") < shown.index("second")
        first.communicate("\n")
        second.communicate("\n\n")
    assert (first.returncode, second.returncode) == (0, 0)
    for name in ("first", "second"):
        assert len((tmp_path / name).read_text().splitlines()) == 4
