# What a run prints, and the config file, refused in a sentence where Snakemake would read a part of
# it or none.
import os
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.utils import update_config

# The source tree. `workflow.basedir` is elsewhere where another Snakefile uses this workflow.
ROOT = Path(str(workflow.current_basedir)).parents[1]
MODULE = not workflow.modifier.is_main_snakefile()
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

try:
    from gradleak.config import yaml_checks
    from gradleak.runtime import signals
    from gradleak.errors import GradleakError
    from gradleak.pipeline.run_output.handler import take_over
except ModuleNotFoundError as error:
    raise WorkflowError(
        f"Snakemake's environment lacks {error.name}; install {ROOT}/requirements.lock into it."
    ) from None

# Prints in Snakemake's place; None where Snakemake prints itself. A module changes nothing of the run
# that it is a part of.
OUTPUT = None
if not MODULE:
    signals.interrupt_on_hangup()
    OUTPUT = take_over(workflow)


def beside_snakefile(path):
    """A file of the source tree, wherever Snakemake runs; of this folder if it has one."""
    return path if not MODULE and Path(path).exists() else str(ROOT / path)


CONFIG_FILE = beside_snakefile("config.yaml")
# Keys of each file and option, the last one on top, by the name that a message gives it.
GIVEN = {}
# Jobs get what the main process has checked.
if MODULE or workflow.is_main_process:
    try:
        GIVEN["config.yaml"] = yaml_checks.read(CONFIG_FILE)
        # Those of a workflow that uses this one as a module are its own.
        for path in () if MODULE else workflow.config_settings.configfiles:
            GIVEN[os.path.relpath(path)] = yaml_checks.read(path)
    except GradleakError as error:
        raise WorkflowError(str(error)) from None
if MODULE:
    # What the module is given replaces single keys.
    given, config = yaml_checks.typed(config), yaml_checks.read(CONFIG_FILE)
    update_config(config, given)
    GIVEN["the config of the module"] = given
else:
    GIVEN["--config"] = yaml_checks.typed(workflow.config_settings.config)
