# Gradient capture and defences: what a client shares.


rule gradient:
    input:
        model=sent_model,
        targets=experiment_targets,
        client=sharing_client,
    output:
        GRADIENT,
    log:
        beside(GRADIENT, "logs", ".log"),
    benchmark:
        beside(GRADIENT, "benchmarks", ".tsv")
    wildcard_constraints:
        defence=ids(UNDEFENDED),
    conda:
        "../../envs/gradleak.yaml"
    threads: model_threads
    resources:
        mem_mb=memory("gradient"),
        runtime=minutes("gradient"),
        gpu=GPU,
    params:
        experiment=experiment_settings,
        device=CONFIG.device,
        code=code("gradleak.gradients"),
    script:
        "../scripts/gradient.py"


# A gradient is computed once, whatever number of defences it meets.
rule defended_gradient:
    input:
        model=sent_model,
        targets=experiment_targets,
        gradient=undefended_gradient,
        client=sharing_client,
    output:
        GRADIENT,
    log:
        beside(GRADIENT, "logs", ".log"),
    benchmark:
        beside(GRADIENT, "benchmarks", ".tsv")
    wildcard_constraints:
        defence=ids([name for name in CONFIG.defences if name not in UNDEFENDED]),
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=memory("defended_gradient"),
        runtime=minutes("defended_gradient"),
    params:
        defence=defence_settings,
        code=defence_code,
    script:
        "../scripts/defended_gradient.py"
