# Freeing disk. Figures, tables, claims, scores and what else is small stay, and with them `all` has
# nothing to do; what is deleted of these brings back the steps that it needs.
CLEANED = [
    TARGETS,
    MODEL,
    TRAINED,
    CLIENT,
    GENERATOR,
    SENT,
    GRADIENT,
    RECONSTRUCTION,
]


def cleaned_folders(wildcards):
    """Folders of the current images and scale; others keep theirs."""
    if set(workflow.dag_settings.targets) != {"clean"}:
        raise WorkflowError(
            "clean removes what other targets are being made of; ask for it alone: snakemake clean."
        )
    return [path.partition("/{")[0] for path in CLEANED]


rule clean:
    log:
        "results/logs/clean.log",
    localrule: True
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    params:
        folders=cleaned_folders,
    script:
        "../scripts/clean.py"
