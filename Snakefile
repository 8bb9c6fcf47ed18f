# Four papers on gradient leakage: every figure, table and claim is a file.
# `snakemake figures/copa_fig1.pdf`, `snakemake all`, or any other target of docs/targets.md.
include: "workflow/Snakefile"


# An included file leaves the default target as it was.
workflow.default_target = "all"
