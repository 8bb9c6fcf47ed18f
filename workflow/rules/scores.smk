# Scores: reconstruction against original, the only step that sees originals; and c(M).
SCORE = f"{EXPERIMENTS}/{{defence}}/{{attack}}.csv".replace("{kind}", "scores")
SECURITY = f"results/security/{CASE}/{{experiment}}/{{model}}.csv"


def score_case(wildcards):
    """Columns that are the same in all rows of a score file."""
    entry = CONFIG.experiments[wildcards.experiment]
    return {
        "paper": entry.paper,
        "result": wildcards.experiment,
        "attack": wildcards.attack,
        "defence": wildcards.defence,
        "images": CONFIG.images,
        "targets": entry.targets,
        "precision": entry.precision,
    }


def scores_of(*experiments, attacks=None, models=None):
    """Score files of experiments, of some attacks and models or of all."""
    return [
        SCORE.format(experiment=name, model=model, defence=defence, attack=attack)
        for name in experiments
        if name in CONFIG.experiments
        for model in CONFIG.experiments[name].models
        for defence in CONFIG.experiments[name].defences
        for attack in CONFIG.experiments[name].attacks
        if (attacks is None or attack in attacks) and (models is None or model in models)
    ]


def security_of(*experiments, models=None):
    """Files with c(M) of the models of experiments."""
    return [
        SECURITY.format(experiment=name, model=model)
        for name in experiments
        if name in CONFIG.experiments
        for model in CONFIG.experiments[name].models
        if models is None or model in models
    ]


def security_seeds(wildcards):
    """Draws of weights whose ranks are computed: ranks hardly vary, so three tell enough."""
    return min(3, CONFIG.amount(CONFIG.experiments[wildcards.experiment].seeds))


rule score:
    input:
        reconstruction=RECONSTRUCTION,
        targets=experiment_targets,
    output:
        SCORE,
    log:
        SCORE.replace("results/", "results/logs/", 1).replace(".csv", ".log"),
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        case=score_case,
        code=code("gradleak.scores"),
    script:
        "../scripts/score.py"


rule security:
    input:
        model=MODEL,
        targets=experiment_targets,
    output:
        SECURITY,
    log:
        SECURITY.replace("results/", "results/logs/", 1).replace(".csv", ".log"),
    benchmark:
        SECURITY.replace("results/", "results/benchmarks/", 1).replace(".csv", ".tsv")
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=3000,
        runtime=60,
    params:
        seeds=security_seeds,
        code=code("gradleak.security"),
    script:
        "../scripts/security.py"
