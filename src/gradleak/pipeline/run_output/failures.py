"""Reasons of failures as one sentence, without Snakemake's framing."""

import re
from pathlib import Path

from gradleak.errors import GradleakError

# Snakemake's message that a job's process ended.
STATUS = re.compile(r"returned non-zero exit status -?\d+|died with <Signals\.\w+: \d+>")
# A job's final error in its log (`gradleak.runtime.job`), up to the log's end.
LAST_WORD = re.compile(r"^[\d-]+ [\d:,]+ (gradleak: .*)", re.MULTILINE | re.DOTALL)
# Location in a Snakefile of a raised message.
HEAD = re.compile(r'^(?:WorkflowError|RuleException)(?: in .*?file "([^"]*)", line \d+)?:\n')
# One of ours in an input function, which Snakemake shows with wildcards and a traceback.
ASKED = re.compile(
    r"^InputFunctionException in rule .*:\nError:\n  (\w+): (.*?)\nWildcards:\n", re.DOTALL
)
OURS = {one.__name__ for one in GradleakError.__subclasses__()}
FRAME = re.compile(r'^  File ".*", line \d+, in .*\n?', re.MULTILINE)
SECONDS = 2.0  # file times may be coarse


def last_word(log: Path, since: float) -> str:
    """Sentence, and traceback if any, that ended a job begun at `since`; empty without one."""
    try:
        if log.stat().st_mtime < since - SECONDS:
            return ""
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = list(LAST_WORD.finditer(text))
    return found[-1][1].rstrip() if found else ""


def without_frame(text: str, ours: Path) -> str:
    """Message of Snakemake; an error raised by the pipeline's own rules in `ours` stands alone."""
    asked = ASKED.match(text)
    if asked is not None and asked[1] in OURS:
        return f"gradleak: {asked[2]}"
    head = HEAD.match(text)
    if head is None or head[1] is None or not Path(head[1]).is_relative_to(ours):
        return text.rstrip()
    return f"gradleak: {FRAME.sub('', text[head.end() :]).rstrip()}"


def silent(words: str, status: str, logs: list[str]) -> str:
    """Sentence on a job whose log has none: it was killed, or could not write there."""
    how = f" ({status})" if status else ""
    where = f", and {' and '.join(logs)} does not say why" if logs else ""
    return f"gradleak: '{words}' failed{how}{where}."
