"""One measurement of `benchmarks.growth`, in a process of its own."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import psutil

from benchmarks.growth_cases import FAILED, LONG, OK, REFUSED
from benchmarks.runner import Facts
from gradleak.errors import GradleakError, NotApplicable

# Cheap measurements are repeated until they took this long, or so often; the least counts.
ENOUGH_SECONDS, REPEATS = 2.0, 5
MIB = 2**20


class TooLong(BaseException):
    """More CPU time than the limit; no `Exception`, which attacks might take for a failed try."""


def run(name: str, size: int, warm: int, limit: float, options: Mapping[str, Any]) -> Facts:
    """Run a task, ``module:function``, at a size; without an answer, ``reason`` says why.

    A run at the size `warm` comes first, for imports; ``base_mib`` is the memory after it, and
    ``cpu_s`` leaves it out. `limit` is the most CPU seconds.
    """
    module, _, function = name.partition(":")
    work: Callable[..., Facts] = getattr(import_module(f"benchmarks.{module}"), function)
    try:
        if warm:
            work(warm, **options)
        base, begin = psutil.Process().memory_info().rss / MIB, time.process_time()
        with cpu_limit(limit):
            found = {"status": OK, "reason": "", **work(size, **options)}
        return {"base_mib": base, "cpu_s": time.process_time() - begin, **found}
    except NotApplicable as error:
        return {"status": REFUSED, "reason": str(error)}
    except (GradleakError, MemoryError) as error:
        return {"status": FAILED, "reason": str(error) or type(error).__name__}
    except TooLong:
        return {"status": LONG, "reason": f"It took more than {limit:g} s of CPU time."}


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raise `TooLong` after so many CPU seconds, once the running call of a library returns."""

    def stop(*_: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Result of a function, and the least CPU seconds of a few calls."""
    taken: list[float] = []
    while not taken or (sum(taken) < ENOUGH_SECONDS and len(taken) < REPEATS):
        begin = time.process_time()
        found = work()
        taken.append(time.process_time() - begin)
    return found, min(taken)
