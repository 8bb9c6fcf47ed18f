# What a run prints, and the config file, refused in a sentence where Snakemake would read a part of
# it or none.
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

sys.path[:0] = [str(Path(workflow.basedir, "src")), str(workflow.basedir)]

from gradleak.config import yaml_checks
from gradleak.runtime import signals
from gradleak.errors import GradleakError
from gradleak.pipeline.run_output.handler import take_over

signals.interrupt_on_hangup()
# Prints in Snakemake's place; None where Snakemake prints itself.
OUTPUT = take_over(workflow)

# That of the folder in which Snakemake runs, otherwise the one of the source tree.
CONFIG_FILE = "config.yaml" if Path("config.yaml").exists() else f"{workflow.basedir}/config.yaml"

# Jobs get what the main process has checked.
if workflow.is_main_process:
    try:
        for path in [*workflow.configfiles, CONFIG_FILE]:
            yaml_checks.check(path)
    except GradleakError as error:
        raise WorkflowError(str(error)) from None
