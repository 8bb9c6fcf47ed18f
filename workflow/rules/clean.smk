# Freeing disk. Figures, tables, claims, scores and what else is small stay, and with them `all` has
# nothing to do; what is deleted of these brings back the steps that it needs.


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
