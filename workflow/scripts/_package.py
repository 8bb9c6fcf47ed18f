"""Puts workflow/ first on the path, so that `import gradleak` finds this checkout's package.

Snakemake puts a script's own folder on the path wherever the script runs: in the environment, in
a conda or container job, on a cluster node. Importing this file is thus the one way that works in
all of them, and it wins over a package installed from another checkout. It is the first import of
every script, so that a signal during the others, which take seconds, ends the job with a sentence.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gradleak import lifetime

lifetime.end_on_signals()
