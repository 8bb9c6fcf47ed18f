# Four papers on gradient leakage: every figure, table and claim is a file.
# `snakemake figures/copa_fig1.pdf`, `snakemake all`, or any other target of docs/targets.md.
from snakemake.utils import min_version

min_version("9.20")


include: "workflow/rules/config_file.smk"


configfile: CONFIG_FILE


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/models.smk"
include: "workflow/rules/training.smk"
include: "workflow/rules/attack.smk"
include: "workflow/rules/results.smk"
include: "workflow/rules/publish.smk"
include: "workflow/rules/benchmarks.smk"
include: "workflow/rules/audit.smk"


rule all:
    default_target: True
    input:
        FIGURES,
        TABLES,
        CLAIMED,
    message:
        "All figures, tables and claims are made"


rule figures:
    input:
        FIGURES,
    message:
        "All figures are made"


rule tables:
    input:
        TABLES,
    message:
        "All tables are made"


rule claims:
    input:
        CLAIMED,
    message:
        "All claims are judged"


# A change of a script counts by what the script does, as one of the package: not by its date.
for step in workflow.rules:
    if step.script:
        step.set_params(script=code(script=SCRIPTS / Path(step.script).name))
