# Scores and analyses: the only steps that see originals.


rule score:
    input:
        reconstruction=RECONSTRUCTION,
        targets=experiment_targets,
        model=sent_model,
        lpips=lpips_weights,
    output:
        SCORE,
    log:
        beside(SCORE, "logs", ".log"),
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=memory("score"),
        runtime=minutes("score"),
    params:
        case=score_case,
        task=score_task,
        code=score_code,
    message:
        "Score {wildcards.attack} on {wildcards.model}"
        " ({wildcards.experiment}, defence {wildcards.defence})"
    script:
        "../scripts/score.py"


rule security:
    input:
        model=sent_model,
        targets=experiment_targets,
    output:
        SECURITY,
    log:
        beside(SECURITY, "logs", ".log"),
    cache: SHARED
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=memory("security"),
        runtime=minutes("security"),
    params:
        seeds=security_seeds,
        code=code("gradleak.security"),
        software=SOFTWARE,
    message:
        "Compute c(M) of {wildcards.model} ({wildcards.experiment})"
    script:
        "../scripts/security.py"


rule rank_analysis:
    input:
        model=sent_model,
        targets=experiment_targets,
    output:
        RANK,
    log:
        beside(RANK, "logs", ".log"),
    cache: SHARED
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=memory("rank_analysis"),
        runtime=minutes("rank_analysis"),
    params:
        task=score_task,
        amounts=rank_amounts,
        code=code("gradleak.rank_table"),
        software=SOFTWARE,
    message:
        "Analyse the rank of {wildcards.model} ({wildcards.experiment})"
    script:
        "../scripts/rank_analysis.py"
