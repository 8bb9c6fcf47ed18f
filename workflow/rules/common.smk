# What all rules share: the checked config, code hashes, ids and paths.
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

sys.path.insert(0, str(Path(workflow.basedir) / "workflow"))

from gradleak import config as gradleak_config
from gradleak.errors import GradleakError
from gradleak.provenance import code_hash

try:
    CONFIG = gradleak_config.load(config)
except GradleakError as error:
    raise WorkflowError(str(error)) from None

DATA_ROOT = CONFIG.data.root
# Intermediate files carry the image source and the scale, so that switching loses nothing.
CASE = f"{CONFIG.images}-{CONFIG.scale}"
EXPERIMENTS = f"results/{{kind}}/{CASE}/{{experiment}}/{{model}}"
FIGURES = []
TABLES = []


def code(*modules):
    """Hash of the code that `modules` run: a rule's parameter, so that edits rerun it."""
    return code_hash(*modules)


def settings(section, entry):
    """One entry of a section of config, as plain values for a script."""
    return getattr(CONFIG, section)[entry].model_dump(mode="json")


def ids(names):
    """Wildcard constraint: one of `names`."""
    return "|".join(sorted(names)) or "(?!)"


wildcard_constraints:
    experiment=ids(CONFIG.experiments),
    model=ids([*CONFIG.models, *CONFIG.families]),
    targets=ids(CONFIG.targets),
    defence=ids(CONFIG.defences),
    attack=ids(CONFIG.attacks),
