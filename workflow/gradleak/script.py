"""What every script of the pipeline shares: a log, and errors as one sentence."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradleak import sidecars
from gradleak.errors import GradleakError
from gradleak.memory import keep_freed_memory


@contextmanager
def job(snakemake: Any) -> Iterator[logging.Logger]:
    """Run a script's body with its log open; write the sidecars of what it made.

    An error that the user can act on ends the script with status 1 and one sentence, on the
    terminal and in the log; any other error keeps its traceback.

    Parameters
    ----------
    snakemake
        The object that Snakemake hands to scripts.
    """
    keep_freed_memory()
    logger = logging.getLogger("gradleak")
    logger.setLevel(logging.INFO)
    if snakemake.log:
        path = Path(snakemake.log[0])
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(path, mode="w", encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        logger.addHandler(handler)
    try:
        yield logger
        sidecars.write(snakemake)
    except GradleakError as error:
        logger.error("%s", error)
        print(f"gradleak: {error}", file=sys.stderr)
        sys.exit(1)
    except Exception:
        logger.exception("unexpected error")
        raise
