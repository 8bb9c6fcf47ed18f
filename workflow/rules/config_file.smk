# What a run prints, and the config file, refused in a sentence where Snakemake would read a part of
# it or none.
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

sys.path.insert(0, str(Path(workflow.basedir) / "workflow"))

from gradleak import config_file, lifetime
from gradleak.errors import GradleakError
from gradleak.run_output.handler import take_over

lifetime.interrupt_on_hangup()
# Prints in Snakemake's place; None where Snakemake prints itself.
OUTPUT = take_over(workflow)

# That of the folder in which Snakemake runs, otherwise the one of the source tree.
CONFIG_FILE = "config.yaml" if Path("config.yaml").exists() else f"{workflow.basedir}/config.yaml"

# Jobs get what the main process has checked.
if workflow.is_main_process:
    try:
        for path in [*workflow.configfiles, CONFIG_FILE]:
            config_file.check(path)
    except GradleakError as error:
        raise WorkflowError(str(error)) from None
