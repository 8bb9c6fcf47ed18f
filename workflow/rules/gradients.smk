# Gradient capture and defences: what a client shares.

# Experiments on VGG-16, whose gradients take 0.5 GB each: they go once all attacks have read them.
LARGE_GRADIENTS = disk.passing_gradients(CONFIG)
SMALL_GRADIENTS = [name for name in CONFIG.experiments if name not in LARGE_GRADIENTS]
DEFENDED = [name for name in CONFIG.defences if name not in UNDEFENDED]


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
        experiment=ids(SMALL_GRADIENTS),
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
    message:
        "Compute the gradient of {wildcards.model}"
        " ({wildcards.experiment}, defence {wildcards.defence})"
    script:
        "../scripts/gradient.py"


use rule gradient as large_gradient with:
    output:
        temp(GRADIENT),
    wildcard_constraints:
        experiment=ids(LARGE_GRADIENTS),
        defence=ids(UNDEFENDED),


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
        experiment=ids(SMALL_GRADIENTS),
        defence=ids(DEFENDED),
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=memory("defended_gradient"),
        runtime=minutes("defended_gradient"),
    params:
        defence=defence_settings,
        code=defence_code,
    message:
        "Defend the gradient of {wildcards.model} by {wildcards.defence} ({wildcards.experiment})"
    script:
        "../scripts/defended_gradient.py"


use rule defended_gradient as large_defended_gradient with:
    output:
        temp(GRADIENT),
    wildcard_constraints:
        experiment=ids(LARGE_GRADIENTS),
        defence=ids(DEFENDED),
