# Gradient capture and defences: what a client shares.
GRADIENT = f"{EXPERIMENTS}/{{defence}}.safetensors".replace("{kind}", "gradients")


def experiment_targets(wildcards):
    """Target set of an experiment."""
    return TARGETS.format(targets=CONFIG.experiments[wildcards.experiment].targets)


def experiment_settings(wildcards):
    """Entry of `experiments`, with its number of seeds."""
    entry = CONFIG.experiments[wildcards.experiment]
    return {
        "precision": entry.precision,
        "granted": entry.label == "granted",
        "seeds": CONFIG.amount(entry.seeds),
    }


def defence_settings(wildcards):
    """Entry of `defences`."""
    return settings("defences", wildcards.defence)


rule gradient:
    input:
        model=MODEL,
        targets=experiment_targets,
    output:
        GRADIENT,
    log:
        GRADIENT.replace("results/", "results/logs/", 1).replace(".safetensors", ".log"),
    benchmark:
        GRADIENT.replace("results/", "results/benchmarks/", 1).replace(".safetensors", ".tsv")
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        experiment=experiment_settings,
        defence=defence_settings,
        device=CONFIG.device,
        code=code("gradleak.gradients"),
    script:
        "../scripts/gradient.py"
