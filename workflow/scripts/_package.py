"""Puts src/ and the source tree first on the path, so that imports find this checkout's packages.

Snakemake puts a script's own folder on the path wherever the script runs: in the environment, in
a conda or container job, on a cluster node. Importing this file is thus the one way that works in
all of them, and it wins over a package installed from another checkout. It is the first import of
every script, so that a signal during the others, which take seconds, ends the job with a sentence.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from gradleak.runtime import signals  # noqa: E402

signals.end_on_signals()
