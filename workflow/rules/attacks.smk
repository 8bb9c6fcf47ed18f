# Attacks: from what an attacker sees to images.


rule attack:
    input:
        model=sent_model,
        gradient=GRADIENT,
        first=first_reconstructions,
        own_images=own_target_set,
        secret=secret,
        generator=generator_of,
    output:
        images=RECONSTRUCTION,
        timing=RECONSTRUCTION.replace(".safetensors", ".seconds.json"),
    log:
        beside(RECONSTRUCTION, "logs", ".log"),
    wildcard_constraints:
        attack=ids(FIRST),
    cache: SHARED
    conda:
        "../../envs/gradleak.yaml"
    threads: attack_threads
    resources:
        mem_mb=memory("attack"),
        runtime=minutes("attack"),
        gpu=attack_gpu,
    params:
        settings=attack_settings,
        device=attack_device,
        code=attack_code,
        software=SOFTWARE,
    message:
        "Attack {wildcards.attack} on {wildcards.model}"
        " ({wildcards.experiment}, defence {wildcards.defence})"
    script:
        "../scripts/attack.py"


rule postprocess:
    input:
        first_reconstructions,
    output:
        images=RECONSTRUCTION,
        timing=RECONSTRUCTION.replace(".safetensors", ".seconds.json"),
    log:
        beside(RECONSTRUCTION, "logs", ".log"),
    benchmark:
        beside(RECONSTRUCTION, "benchmarks", ".tsv")
    wildcard_constraints:
        attack=ids(LATER),
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=memory("postprocess"),
        runtime=minutes("postprocess"),
    params:
        settings=attack_settings,
        code=attack_code,
    message:
        "Postprocess {wildcards.attack} of {wildcards.model}"
        " ({wildcards.experiment}, defence {wildcards.defence})"
    script:
        "../scripts/postprocess.py"
