# Freeing disk. Figures, tables, claims, scores and what else is small stay, and with them `all` has
# nothing to do; what is deleted of these brings back the steps that it needs.
CLEANED = (TARGETS, MODEL, TRAINED, CLIENT, GENERATOR, SENT, GRADIENT, RECONSTRUCTION)


rule clean:
    log:
        "results/logs/clean.log",
    localrule: True
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    params:
        folders=[str(Path(path.partition("{")[0])) for path in CLEANED],
    message:
        "Remove intermediate files"
    script:
        "../scripts/clean.py"
