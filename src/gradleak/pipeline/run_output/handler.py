"""Reduce Snakemake's log to a few lines: one per job, and failures at the end."""

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradleak.pipeline.run_output import failures, hints
from gradleak.pipeline.run_output.display import Display
from gradleak.runtime.progress import SHOWN, in_words

# Snakemake's own messages. Everything else without an event is passed on.
NOISE = re.compile(
    r"Building DAG|Using shell|Group jobs: inactive|Conda environments: ignored|"
    r"Singularity containers: ignored|Select jobs|Execute \d+ jobs|Elapsed time|host: |"
    r"Assuming unrestricted|Job rate limit|Shutting down|Updating checkpoint|Storing output|"
    r"Removing (output|temporary|local)|Full Traceback|\s*$"
)
DONE, LOGS, IN_FULL = "Nothing to be done", "Complete log", "(check individual jobs above"
WILD = "Target rules may not contain wildcards"
FAILED = ("At least one job did not complete", "Exiting because a job execution failed")
MISSING = re.compile(r"No rule to produce (\S+) \(if you use input functions")


@dataclass
class Job:
    """A job that has started."""

    words: str
    logs: list[str]
    since: float


class Output(logging.Handler):
    """Handler that replaces the one with which Snakemake prints.

    `display` replaces lines per job. `data_root` is the folder of the data sets, once known;
    `ending` gives lines on where results lie, for runs in which Snakemake has nothing to do, and
    `ahead` words on how long jobs take.
    """

    def __init__(self, workflow: Any, display: Display | None = None) -> None:
        super().__init__(logging.INFO)
        self.data_root, self.ending = "", list[str]
        self.ahead: Callable[[Iterable[Any]], str] = lambda jobs: ""
        self._workflow, self._display = workflow, display
        self._settings = workflow.output_settings
        self._dryrun = self._settings.dryrun
        quiet = {str(kind.name).lower() for kind in self._settings.quiet or ()}
        self._job_lines = "rules" not in quiet
        self._jobs: dict[int, Job] = {}
        self._failed: dict[int, str] = {}
        # Error of a failed job in the same thread, just before Snakemake names the job.
        self._said: dict[int | None, str] = {}
        self._data_failed, self._table = False, ""
        self._done = self._total = 0
        self._began = time.monotonic()
        self._events: dict[str, Callable[[Any], None]] = {
            "run_info": self._run,
            "job_info": self._job,
            "job_finished": self._finished,
            "job_error": self._job_failed,
            "group_error": lambda record: self._say(record.getMessage()),
            "progress": self._progress,
            "error": self._error,
        }

    def emit(self, record: logging.LogRecord) -> None:
        """Print the content of a record, if any."""
        event = getattr(record, "event", None)
        try:
            if event is None:
                self._other(record)
            elif str(event) in self._events:
                self._events[str(event)](record)
        except BrokenPipeError:
            raise
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Print what was kept for the end, and remove the display."""
        if self._display is not None:
            self._display.stop()
        self._say_table()
        self._last_words()
        super().close()

    def _say(self, text: str) -> None:
        if self._display is not None:
            self._display.say(text)
            return
        stream = sys.stdout if self._settings.stdout else sys.stderr
        # In one call, so that lines of several processes do not mix.
        stream.write(f"{text}\n")
        stream.flush()

    def _say_table(self) -> None:
        if self._table:
            self._say(self._table)
        self._table = ""

    def _run(self, record: Any) -> None:
        """Show the number of jobs; a dry run prints its table at its end, where it is seen."""
        if self._table:
            self._say_table()
            return
        self._total = record.stats["total"]
        jobs = list(self._workflow.dag.needrun_jobs())
        wanted = self.data_root and hints.wants_data(jobs, self.data_root)
        where = f"{hints.data_line(self.data_root)}\n" if wanted else ""
        long = self.ahead(jobs)
        if self._dryrun:
            words = [where + record.getMessage().rstrip(), long[:1].upper() + long[1:]]
            self._table = "\n".join(filter(None, words))
            return
        if self._total == 1:
            # A single job has the terminal to itself.
            self._display = None
            os.environ[SHOWN] = "lines"
        count = f"{self._total} job{'s' * (self._total != 1)}"
        self._say(where + ", ".join(filter(None, (count, long))))
        self._progress(None)

    def _job(self, record: Any) -> None:
        wildcards = ", ".join(f"{key}={value}" for key, value in record.wildcards.items())
        words = record.words or f"{record.rule_name}{f' ({wildcards})' if wildcards else ''}"
        self._jobs[record.jobid] = Job(words, list(record.log), time.time())
        if self._display is not None:
            log = Path(record.log[0]) if record.log else None
            self._display.running[record.jobid] = words, log, time.time()
        elif self._job_lines:
            self._say(words if self._dryrun else f"{len(self._jobs)}/{self._total} {words}")

    def _ended(self, jobid: int) -> None:
        if self._display is not None:
            self._display.running.pop(jobid, None)

    def _finished(self, record: Any) -> None:
        self._ended(record.job_id)
        self._failed.pop(record.job_id, None)

    def _progress(self, record: Any) -> None:
        if record is not None:
            self._done, self._total = record.done, record.total
        if self._display is not None:
            self._display.count(self._done, self._total)

    def _job_failed(self, record: Any) -> None:
        """Name the job at once; the reason comes last."""
        self._ended(record.jobid)
        logs = list(record.log)
        job = self._jobs.get(record.jobid) or Job(record.rule_name, logs, 0.0)
        said = self._said.pop(record.thread, "")
        words = [failures.last_word(Path(log), job.since) for log in logs]
        status = failures.STATUS.search(said)
        if any(words):
            reason = next(filter(None, words))
        elif status or not said:
            how = status[0] if status else " ".join((record.rule_msg or "").split())
            reason = failures.silent(job.words, how, logs)
        else:
            reason = failures.without_frame(said, Path(self._workflow.basedir))
        self._failed[record.jobid] = reason
        self._data_failed |= bool(self.data_root) and hints.wants_data([record], self.data_root)
        where = f" (log: {', '.join(logs)})" if logs else ""
        self._say(f"Failed: {job.words}{where}")

    def _error(self, record: Any) -> None:
        text = record.getMessage()
        missing = MISSING.search(text)
        if record.exception == "MissingRuleException" and missing:
            self._say(hints.unknown(missing[1], self._workflow.rules, self.data_root))
        elif WILD in text:
            targets = self._workflow.dag_settings.targets
            self._say(hints.with_wildcards(targets, self._workflow.rules) or text)
        elif text.startswith(tuple(f"WorkflowError:\n{line}" for line in FAILED)):
            self._last_words()
        elif self._jobs and not self._dryrun:
            self._said[record.thread] = text
        else:
            self._say(failures.without_frame(text, Path(self._workflow.basedir)))

    def _other(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= logging.WARNING:
            if not text.startswith(FAILED):
                self._say(text)
        elif text.startswith(LOGS):
            self._sum(text)
        elif not NOISE.match(text):
            lines = text.rstrip().splitlines()
            self._say("\n".join(line for line in lines if IN_FULL not in line))
            if text.startswith(DONE) and not self._dryrun:
                for line in self.ending():
                    self._say(line)

    def _sum(self, logs: str) -> None:
        """Number of finished jobs; after a failure also the location of Snakemake's own log."""
        failed = f", {len(self._failed)} failed" if self._failed else ""
        more = f"; {logs[0].lower()}{logs[1:]}" if self._failed else ""
        took = in_words(time.monotonic() - self._began)
        self._say(f"{self._done} of {self._total} jobs done{failed} in {took}{more}")

    def _last_words(self) -> None:
        """Reasons of failures, each once; the last output of a run."""
        if self._display is not None:
            self._display.stop()
        if self._data_failed:
            self._say(hints.data_line(self.data_root))
        # A stopped job has logged that itself.
        for reason in dict.fromkeys([*self._failed.values(), *self._said.values()]):
            if not reason.startswith("gradleak: Stopped by "):
                self._say(reason)
        self._failed, self._said, self._data_failed = {}, {}, False


def _in_full(record: logging.LogRecord) -> bool:
    """Hide a job's message from Snakemake's own handlers, which would omit its files."""
    if str(getattr(record, "event", "")) == "job_info":
        job: Any = record
        job.words, job.rule_msg = job.rule_msg, None
    return True


def take_over(workflow: Any) -> Output | None:
    """Replace Snakemake's handler by ours.

    Not if details or another logger were requested, nor for `--quiet all`, nor for single jobs.
    """
    # Settings for a run's jobs do not apply to runs that these start.
    os.environ.pop(SHOWN, None)
    settings, logger = workflow.output_settings, workflow.logger_manager.logger
    theirs = [handler for handler in logger.handlers if handler.name == "DefaultStreamHandler"]
    if not workflow.is_main_process or not theirs:
        return None
    logger.addFilter(_in_full)
    silent = any(kind.name == "ALL" for kind in settings.quiet or ())
    if settings.verbose or settings.printshellcmds or settings.debug_dag or silent:
        return None
    display = None
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not settings.dryrun:
        with suppress(ImportError):
            display = Display(sys.stderr)
    handler = Output(workflow, display)
    logger.removeHandler(theirs[0])
    logger.addHandler(handler)
    os.environ[SHOWN] = "lines" if display is None else "display"
    return handler
