# Attacks: from what a client shares to images, and to scores and analyses, the only steps that see
# originals.

# Experiments on VGG-16, whose gradients take 0.5 GB each: they go once all attacks have read them.
LARGE_GRADIENTS = resources.passing_gradients(CONFIG)
SMALL_GRADIENTS = [name for name in CONFIG.experiments if name not in LARGE_GRADIENTS]
DEFENDED = [name for name in CONFIG.defences if name not in ASK.undefended]
# Attacks on gradients, and those made of the reconstructions of others alone.
FIRST = [name for name, entry in CONFIG.attacks.items() if not entry.postprocesses]
LATER = [name for name in CONFIG.attacks if name not in FIRST]
IMAGES = {
    "images": PATHS.reconstruction,
    "timing": PATHS.reconstruction.replace(".safetensors", ".seconds.json"),
}


rule gradient:
    input:
        model=ASK.sent_model,
        targets=ASK.experiment_targets,
        client=ASK.sharing_client,
    output:
        PATHS.gradient,
    log:
        beside(PATHS.gradient, "logs", ".log"),
    benchmark:
        beside(PATHS.gradient, "benchmarks", ".tsv")
    wildcard_constraints:
        experiment=ids(SMALL_GRADIENTS),
        defence=ids(ASK.undefended),
    conda:
        "../../envs/gradleak.yaml"
    threads: ASK.model_threads
    resources:
        **needs("gradient"),
        gpu=ASK.gpu,
    params:
        experiment=ASK.experiment_settings,
        device=CONFIG.device,
        code=code("gradleak.client.capture"),
    message:
        "Compute the gradient of {wildcards.model}"
        " ({wildcards.experiment}, defence {wildcards.defence})"
    script:
        "../scripts/gradient.py"


use rule gradient as large_gradient with:
    output:
        temp(PATHS.gradient),
    wildcard_constraints:
        experiment=ids(LARGE_GRADIENTS),
        defence=ids(ASK.undefended),


# A gradient is computed once, whatever number of defences it meets.
rule defended_gradient:
    input:
        model=ASK.sent_model,
        targets=ASK.experiment_targets,
        gradient=ASK.undefended_gradient,
        client=ASK.sharing_client,
    output:
        PATHS.gradient,
    log:
        beside(PATHS.gradient, "logs", ".log"),
    benchmark:
        beside(PATHS.gradient, "benchmarks", ".tsv")
    wildcard_constraints:
        experiment=ids(SMALL_GRADIENTS),
        defence=ids(DEFENDED),
    conda:
        "../../envs/gradleak.yaml"
    resources:
        **needs("defended_gradient"),
    params:
        defence=ASK.entry("defences", "defence"),
        code=ASK.method_code("defences", "defence", "gradleak.client.defences.apply"),
    message:
        "Defend the gradient of {wildcards.model} by {wildcards.defence} ({wildcards.experiment})"
    script:
        "../scripts/defended_gradient.py"


use rule defended_gradient as large_defended_gradient with:
    output:
        temp(PATHS.gradient),
    wildcard_constraints:
        experiment=ids(LARGE_GRADIENTS),
        defence=ids(DEFENDED),


rule attack:
    input:
        model=ASK.sent_model,
        gradient=PATHS.gradient,
        first=ASK.first_reconstructions,
        own_images=ASK.own_target_set,
        secret=ASK.secret,
        generator=ASK.generator_of,
    output:
        **IMAGES,
    log:
        beside(PATHS.reconstruction, "logs", ".log"),
    wildcard_constraints:
        attack=ids(FIRST),
    cache: SHARED
    conda:
        "../../envs/gradleak.yaml"
    threads: ASK.attack_threads
    resources:
        **needs("attack"),
        gpu=ASK.attack_gpu,
    params:
        settings=ASK.entry("attacks", "attack"),
        device=ASK.attack_device,
        code=ASK.method_code("attacks", "attack", "gradleak.attacks.runner"),
        software=SOFTWARE,
    message:
        "Attack {wildcards.attack} on {wildcards.model}"
        " ({wildcards.experiment}, defence {wildcards.defence})"
    script:
        "../scripts/attack.py"


rule postprocess:
    input:
        ASK.first_reconstructions,
    output:
        **IMAGES,
    log:
        beside(PATHS.reconstruction, "logs", ".log"),
    benchmark:
        beside(PATHS.reconstruction, "benchmarks", ".tsv")
    wildcard_constraints:
        attack=ids(LATER),
    conda:
        "../../envs/gradleak.yaml"
    resources:
        **needs("postprocess"),
    params:
        settings=ASK.entry("attacks", "attack"),
        code=ASK.method_code("attacks", "attack", "gradleak.attacks.runner"),
    message:
        "Postprocess {wildcards.attack} of {wildcards.model}"
        " ({wildcards.experiment}, defence {wildcards.defence})"
    script:
        "../scripts/postprocess.py"


rule score:
    input:
        reconstruction=PATHS.reconstruction,
        targets=ASK.experiment_targets,
        model=ASK.sent_model,
        lpips=ASK.lpips_weights,
    output:
        PATHS.score,
    log:
        beside(PATHS.score, "logs", ".log"),
    conda:
        "../../envs/gradleak.yaml"
    resources:
        **needs("score"),
    params:
        case=ASK.score_case,
        task=ASK.score_task,
        code=ASK.score_code,
    message:
        "Score {wildcards.attack} on {wildcards.model}"
        " ({wildcards.experiment}, defence {wildcards.defence})"
    script:
        "../scripts/score.py"


rule security:
    input:
        model=ASK.sent_model,
        targets=ASK.experiment_targets,
    output:
        PATHS.security,
    log:
        beside(PATHS.security, "logs", ".log"),
    cache: SHARED
    conda:
        "../../envs/gradleak.yaml"
    resources:
        **needs("security"),
    params:
        seeds=ASK.security_seeds,
        code=code("gradleak.analysis.copa_index"),
        software=SOFTWARE,
    message:
        "Compute c(M) of {wildcards.model} ({wildcards.experiment})"
    script:
        "../scripts/security.py"


rule rank_analysis:
    input:
        model=ASK.sent_model,
        targets=ASK.experiment_targets,
    output:
        PATHS.rank,
    log:
        beside(PATHS.rank, "logs", ".log"),
    cache: SHARED
    conda:
        "../../envs/gradleak.yaml"
    resources:
        **needs("rank_analysis"),
    params:
        task=ASK.score_task,
        amounts=ASK.rank_amounts,
        code=code("gradleak.analysis.rank_table"),
        software=SOFTWARE,
    message:
        "Analyse the rank of {wildcards.model} ({wildcards.experiment})"
    script:
        "../scripts/rank_analysis.py"
