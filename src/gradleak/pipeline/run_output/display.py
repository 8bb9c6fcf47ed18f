"""Display of a run on a terminal: a bar of all jobs, and the running jobs below it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Group

DRAWN = 2  # refreshes per second; jobs write to their logs every half minute
# Bytes at a log's end that hold its last line.
TAIL = 2048
STAMP = re.compile(r"^[\d-]+ [\d:,]+ ")


def last_line(log: Path, since: float) -> str:
    """Last line of a job's log without the time, if it was written since then."""
    try:
        if log.stat().st_mtime < since:
            return ""
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return STAMP.sub("", lines[-1]) if lines else ""


class Display:
    """A bar and running jobs, redrawn in place; text is printed above. ImportError without rich."""

    def __init__(self, stream: IO[str]) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

        self.running: dict[int, tuple[str, Path | None, float]] = {}
        self._console = Console(file=stream)
        columns = BarColumn(), MofNCompleteColumn(), "jobs", TimeElapsedColumn()
        self._bar = Progress(*columns, console=self._console)
        self._all = self._bar.add_task("jobs", total=None)
        self._live = Live(
            console=self._console,
            get_renderable=self._drawn,
            refresh_per_second=DRAWN,
            transient=True,
        )

    def say(self, text: str) -> None:
        """Print a text above the display, where it stays."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def count(self, done: int, total: int) -> None:
        """Set the numbers of finished and of all jobs; the first call starts the display."""
        self._bar.update(self._all, completed=done, total=total)
        self._live.start()

    def stop(self) -> None:
        """Remove the display."""
        self._live.stop()

    def _drawn(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        lines = []
        for words, log, since in list(self.running.values()):
            far = last_line(log, since) if log else ""
            text = Text(f"  {words}{': ' if far else ''}{far}", no_wrap=True, overflow="ellipsis")
            lines.append(text)
        return Group(self._bar, *lines)
