"""Common frame of the pipeline's scripts: a log, and errors as one sentence."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import threadpoolctl

from gradleak.errors import GradleakError, MemoryShortage
from gradleak.runtime import job_records, progress, signals
from gradleak.runtime.artifacts import DISK, unusable
from gradleak.runtime.malloc import available_mib, is_shortage, keep_freed_memory

# Variables that libraries read on loading; Snakemake sets the same.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Log(logging.FileHandler):
    """Log file whose write errors (a full disk) do not end the job; its artifacts report them."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: D102
        self.setLevel(logging.CRITICAL + 1)


@contextmanager
def job(snakemake: Any, *, altered: bool = False) -> Iterator[logging.Logger]:
    """Run a script's body with its log open; write the sidecars of its outputs.

    Libraries use the threads of the rule, since sums depend on their number. An error that the user
    can act on ends the script with status 1 and one sentence, on the terminal and in the log; any
    other keeps its traceback; a run that shows failures itself takes both from the log. A signal
    ends it with 128 plus its number. `altered` allows inputs changed by hand, for jobs that only
    show results.
    """
    keep_freed_memory()
    _limit_threads(snakemake.threads)
    signals.end_with_snakemake()
    logger = logging.getLogger("gradleak")
    logger.setLevel(logging.INFO)
    # Without any handler, logging would write errors to the terminal itself.
    logger.addHandler(logging.NullHandler())
    try:
        if snakemake.log:
            logger.addHandler(_handler(Path(snakemake.log[0])))
            values = [value for _, value in snakemake.wildcards.items()]
            progress.begin_job(" ".join([snakemake.rule, *values]))
        with signals.clean_up_on_signals():
            for path in () if altered else snakemake.input:
                # Data sets and files from users are checked elsewhere.
                if Path(path).parts[:1] == ("results",):
                    job_records.check(str(path))
            yield logger
            job_records.write(snakemake)
        # Nothing follows a job in its script, and its outputs are written and synced: leave without
        # PyTorch's teardown, which takes 0.4 s of a job's 2.
        if "_package" in sys.modules:
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
    except GradleakError as error:
        _end(logger, error)
    except signals.Stopped as stopped:
        logger.error("gradleak: %s", stopped)
        print(f"gradleak: {stopped}", file=sys.stderr)
        raise
    except Exception as error:
        if (known := _known(snakemake, error)) is not None:
            _end(logger, known)
        logger.exception("gradleak: unexpected error")
        if _is_shown_by_run(logger):
            sys.exit(1)
        raise
    finally:
        progress.begin_job("")


def _limit_threads(threads: int) -> None:
    """Limit the threads of loaded libraries and of those loaded later."""
    os.environ.update(dict.fromkeys(THREADS, str(threads)))
    threadpoolctl.threadpool_limits(threads)
    # MKL is part of PyTorch's own library, where nothing else reaches it.
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def _handler(path: Path) -> logging.Handler:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = Log(path, mode="w", encoding="utf-8")
    except OSError as error:
        raise unusable("write", path, error) from error
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    return handler


def _end(logger: logging.Logger, error: GradleakError) -> None:
    logger.error("gradleak: %s", error)
    if not _is_shown_by_run(logger):
        print(f"gradleak: {error}", file=sys.stderr)
    sys.exit(1)


def _is_shown_by_run(logger: logging.Logger) -> bool:
    """Return whether the run shows the log's last lines; not if the log could not be written."""
    logs = [handler for handler in logger.handlers if isinstance(handler, Log)]
    return progress.SHOWN in os.environ and any(log.level <= logging.CRITICAL for log in logs)


def _known(snakemake: Any, error: Exception) -> GradleakError | None:
    """Describe in one sentence what the machine lacks; None for any other error."""
    if is_shortage(error):
        wildcards = ", ".join(f"{key}={value}" for key, value in snakemake.wildcards.items())
        of = f" ({wildcards})" if wildcards else ""
        return MemoryShortage(
            f"The job {snakemake.rule}{of} ran out of memory: it held up to "
            f"{job_records.peak_mib():.0f} MiB, and {available_mib():.0f} MiB of the machine's are "
            "free now; run fewer jobs at once (--cores 1, or --resources mem_mb=... as much as "
            "there is), take a smaller scale, or raise the limit that was set."
        )
    if isinstance(error, OSError) and error.errno in DISK:
        return unusable("use", error.filename or "a file of this job", error)
    return None
