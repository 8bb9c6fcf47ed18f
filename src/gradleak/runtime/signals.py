"""Early ends of a job or a run: by a signal, or by the end of the Snakemake above a job."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import psutil

# Signals sent by a person, a batch system or a closed terminal.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Python's initial handlers for signals that are not ignored.
DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)
# Seconds between two checks of Snakemake, and those for clean-up after its end.
INTERVAL = 1.0
GRACE = 30.0


class Stopped(SystemExit):
    """A signal ended the job; unfinished files are removed on the way out."""

    def __init__(self, number: int):
        super().__init__(128 + number)
        self.signal = signal.Signals(number)

    def __str__(self) -> str:
        remedy = "no half-written file is left, so ask Snakemake for the same target to go on"
        return f"Stopped by {self.signal.name}; {remedy}."


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)


def _end(number: int, frame: FrameType | None) -> None:
    with suppress(OSError):  # closed terminal
        os.write(2, f"gradleak: {Stopped(number)}\n".encode())
    os._exit(128 + number)


def end_on_signals() -> None:
    """End a job that only imports yet at once: imports catch exceptions, or print tracebacks."""
    for number in SIGNALS:
        if signal.getsignal(number) in DEFAULTS:
            signal.signal(number, _end)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Once: the terminal, the shell and the kernel may each send one.
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def interrupt_on_hangup() -> None:
    """Let a closed terminal stop Snakemake as Ctrl-C does, unless ignored, as under nohup."""
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _interrupt)


@contextmanager
def clean_up_on_signals() -> Iterator[None]:
    """Turn signals into `Stopped`, so that temporary files go; ignored signals stay ignored."""
    found = {number: signal.getsignal(number) for number in SIGNALS}
    changed = {number: handler for number, handler in found.items() if handler in (*DEFAULTS, _end)}
    for number in changed:
        signal.signal(number, _stop)
    try:
        yield
    finally:
        for number, handler in changed.items():
            signal.signal(number, handler)


def alive(process: psutil.Process) -> bool:
    """Return whether a process runs; one that was killed and not yet waited for does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _watch(process: psutil.Process) -> None:
    while alive(process):
        time.sleep(INTERVAL)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(128 + signal.SIGKILL)


def end_with_snakemake() -> None:
    """End this job, soon after its Snakemake was killed, as the next run would make it again."""
    for process in psutil.Process().parents():
        with suppress(psutil.Error):
            if any(Path(word).name == "snakemake" for word in process.cmdline()):
                threading.Thread(target=_watch, args=(process,), daemon=True).start()
                return
