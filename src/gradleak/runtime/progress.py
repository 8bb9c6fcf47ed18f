"""Progress of a long job: a bar with the time left on a terminal or in a notebook, lines in a log.

Of the jobs that share a terminal, the first to take its lock draws there; the next takes over when
it is done. Every job writes lines to its own log, and without a terminal to standard error as well.
If their run has a display of its own, it shows the last lines of their logs, and jobs neither draw
nor write.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar, overload

if TYPE_CHECKING:
    from tqdm import tqdm

LOG = logging.getLogger(__name__)
# Set by a run for its jobs: it shows `display` (their progress and errors) or `lines` (errors).
SHOWN = "GRADLEAK_SHOWN"
# Seconds between two updates of a bar, and between two lines.
BAR, LINES = 0.25, 30.0
MEGABYTE = 1e6
# Format of a bar: the text comes last, and is cut on a narrow terminal.
FORM = "{percentage:3.0f}%|{bar:20}| {desc}"

Item = TypeVar("Item")


class Progress:
    """Context of a loop of `total` items (None if unknown), `what` in the plural, `done` before.

    It reports its progress together with that of the loops within.
    """

    def __init__(self, total: int | None, what: str, done: int = 0) -> None:
        self.total, self.what = total, what
        self.done = done
        self.under_way = 0  # items that inner loops are working on
        # Returns text on the state of the loop, called at each output.
        self.note: Callable[[], str] | None = None

    def __enter__(self) -> Progress:
        _DISPLAY.begin(self)
        return self

    def __exit__(self, *error: object) -> None:
        _DISPLAY.end(self)

    def update(self, count: int = 1) -> None:
        """Count items as done."""
        self.done += count
        if time.monotonic() >= _DISPLAY.due:
            _DISPLAY.show()

    def skip(self, count: int = 1) -> None:
        """Count items as done before, which say nothing of the speed of this job."""
        with _DISPLAY.before():
            self.done += count

    @contextmanager
    def doing(self, count: int = 1) -> Iterator[None]:
        """Let the loops within count for `count` items of this one."""
        self.under_way = count
        yield
        self.under_way = 0
        self.update(count)

    def words(self, within: int = 0) -> str:
        """Items done of the total, with those `within` inner loops, in words."""
        done, total, unit = str(self.done + within), str(self.total), self.what
        if self.what == "bytes":
            done, unit = f"{self.done / MEGABYTE:.1f}", "MB"
            total = f"{(self.total or 0) / MEGABYTE:.1f}"
        of = "" if self.total is None else f" of {total}"
        return f"{done}{of} {unit}{f', {self.note()}' if self.note else ''}"


@overload
def progress(todo: int | None, what: str, done: int = 0) -> Progress: ...


@overload
def progress(todo: Collection[Item], what: str) -> Iterator[Item]: ...


def progress(
    todo: Collection[Item] | int | None, what: str, done: int = 0
) -> Progress | Iterator[Item]:
    """Report the progress of a loop over `todo`, or of a context with that many items."""
    if todo is None or isinstance(todo, int):
        return Progress(todo, what, done)
    return _each(todo, what)


def _each(items: Collection[Item], what: str) -> Iterator[Item]:
    with Progress(len(items), what) as loop:
        for item in items:
            loop.under_way = 1
            yield item
            loop.under_way = 0
            loop.update()


def begin_job(name: str) -> None:
    """Write lines from now on: this is a job of the pipeline."""
    _DISPLAY.job = name


class _Display:
    """Output for the running loops, outermost first."""

    def __init__(self) -> None:
        self.job = ""  # name; empty outside the pipeline, where no lines are written
        self.due = math.inf  # time of the next output
        self._loops: list[Progress] = []
        self._bar: tqdm | None = None
        self._terminal: int | None = None  # handle of the terminal while this process draws there
        self._started = self._line_due = self._furthest = 0.0
        self._before = 0.0  # fraction of all that was done before, in no time of this job

    def begin(self, loop: Progress) -> None:
        if not self._loops:
            self._started, self._furthest, self._before = time.monotonic(), 0.0, 0.0
            self._line_due = self._started + LINES
            lines = self._line_due if self.job else math.inf
            self.due = self._started + BAR if _is_terminal() else lines
        with self.before():
            self._loops.append(loop)

    @contextmanager
    def before(self) -> Iterator[None]:
        """Count what this context adds to what is done as done before."""
        # A share that an inner loop leaves behind it falls back, and has been counted.
        already = max(self._furthest, self._share())
        yield
        self._furthest = max(already, self._share())
        self._before += self._furthest - already

    def end(self, loop: Progress) -> None:
        """Leave a loop, and inner ones that an error has left."""
        if loop not in self._loops:
            return
        del self._loops[self._loops.index(loop) :]
        if self._loops:
            return
        self.due = math.inf
        if self._bar is not None:
            self._bar.close()
        if self._terminal is not None:
            os.close(self._terminal)
        self._bar = self._terminal = None

    def show(self) -> None:
        """Draw the bar and write a line, each when it is due."""
        now = time.monotonic()
        self._furthest = max(self._furthest, self._share())
        first, *others = self._loops
        gained = self._furthest - self._before
        # A loop within over as many items as are under way goes through them one by one.
        alike = first.under_way > 1 and others and others[0].total == first.under_way
        parts = [first.words(others[0].done if alike else 0)]
        parts += [loop.words() for loop in others[-1:]]
        text = ", ".join(parts)
        if gained > 0.0:
            left = (now - self._started) * (1.0 - self._furthest) / gained
            text += f", {in_words(left)} left"
        on_terminal = _is_terminal()
        if on_terminal:
            self._draw(text)
        if self.job and now >= self._line_due:
            LOG.info("%s", text)
            if not on_terminal and os.environ.get(SHOWN) != "display":
                # In one call, so that lines of several jobs do not mix.
                sys.stderr.write(f"{self.job}: {text}\n")
                sys.stderr.flush()
            self._line_due = now + LINES
        self.due = now + BAR if on_terminal else self._line_due

    def _draw(self, text: str) -> None:
        if not self._may_draw():
            return
        if self._bar is None:
            # Imported only for drawing, to save every other job the time.
            from tqdm import tqdm

            form = "{desc}" if self._loops[0].total is None else FORM
            self._bar = tqdm(
                total=1.0, bar_format=form, leave=False, dynamic_ncols=True, mininterval=0
            )
        self._bar.n = self._furthest
        self._bar.set_description_str(f"{self.job}: {text}" if self.job else text)

    def _may_draw(self) -> bool:
        """Take the terminal of standard error, unless another process holds it."""
        if self._terminal is not None:
            return True
        try:
            # Reopened, since jobs inherit one open file and would share its lock.
            handle = os.open(os.ttyname(sys.stderr.fileno()), os.O_WRONLY | os.O_NOCTTY)
        except OSError:
            return True  # A terminal without a name is treated as not shared.
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return False
        self._terminal = handle
        return True

    def _share(self, level: int = 0) -> float:
        """Fraction done of the loop at `level`, inner loops included."""
        loop = self._loops[level] if self._loops else None
        if loop is None or not loop.total:
            return 0.0
        inner = loop.under_way and level + 1 < len(self._loops)
        inside = loop.under_way * self._share(level + 1) if inner else 0.0
        return min(1.0, (loop.done + inside) / loop.total)


def _is_terminal() -> bool:
    """Return whether there is a terminal, or a notebook, that no display of the run uses."""
    if os.environ.get(SHOWN) == "display":
        return False
    with contextlib.suppress(ValueError, AttributeError):
        return sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel.")
    return False


def in_words(seconds: float) -> str:
    """Duration in words: 12 s, 3 min, 2 h 5 min, 3 d 4 h."""
    if round(seconds) < 60:
        return f"{round(seconds)} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    days, rest = divmod(hours, 24)
    if days:
        return f"{days} d {rest} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


_DISPLAY = _Display()
