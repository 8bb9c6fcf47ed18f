# Four papers on gradient leakage: every figure, table and claim is a file.
# `snakemake figures/copa_fig1.pdf`, `snakemake all`, or any other path of README's table.
from snakemake.utils import min_version

min_version("9.20")


include: "workflow/rules/config_file.smk"


configfile: CONFIG_FILE


include: "workflow/rules/common.smk"
include: "workflow/rules/inputs.smk"
include: "workflow/rules/report_inputs.smk"
include: "workflow/rules/training_inputs.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/lpips.smk"
include: "workflow/rules/models.smk"
include: "workflow/rules/training.smk"
include: "workflow/rules/generators.smk"
include: "workflow/rules/servers.smk"
include: "workflow/rules/gradients.smk"
include: "workflow/rules/attacks.smk"
include: "workflow/rules/scores.smk"
include: "workflow/rules/copa.smk"
include: "workflow/rules/rgap_inputs.smk"
include: "workflow/rules/rgap.smk"
include: "workflow/rules/rgap_trained.smk"
include: "workflow/rules/panels.smk"
include: "workflow/rules/mkor_inputs.smk"
include: "workflow/rules/mkor_measures.smk"
include: "workflow/rules/mkor_panels.smk"
include: "workflow/rules/mkor.smk"
include: "workflow/rules/mkor_tables.smk"
include: "workflow/rules/fedkl_panels.smk"
include: "workflow/rules/fedkl_figures.smk"
include: "workflow/rules/fedkl_inputs.smk"
include: "workflow/rules/fedkl_tables.smk"
include: "workflow/rules/claims.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/where_to_look.smk"
include: "workflow/rules/benchmarks.smk"
include: "workflow/rules/audit_inputs.smk"
include: "workflow/rules/audit.smk"
include: "workflow/rules/notebooks_inputs.smk"
include: "workflow/rules/notebooks.smk"
include: "workflow/rules/provenance.smk"
include: "workflow/rules/clean.smk"


rule all:
    default_target: True
    input:
        FIGURES,
        TABLES,
        "results/claims.csv",
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
        "results/claims.csv",
    message:
        "All claims are judged"


# A change of a script counts by what the script does, as one of the package: not by its date.
for step in workflow.rules:
    if step.script:
        step.set_params(script=code(script=SCRIPTS / Path(step.script).name))
