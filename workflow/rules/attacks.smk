# Attacks: from what an attacker sees to images.
from gradleak.attacks.run import ATTACKS

RECONSTRUCTION = f"{EXPERIMENTS}/{{defence}}/{{attack}}.safetensors".replace(
    "{kind}", "reconstructions"
)
FIRST = [name for name, entry in CONFIG.attacks.items() if entry.method in ATTACKS]
LATER = [name for name in CONFIG.attacks if name not in FIRST]


def attack_settings(wildcards):
    """Entry of `attacks`."""
    return settings("attacks", wildcards.attack)


def attack_code(wildcards):
    """Code of this attack alone: an edit of one attack leaves the others' results as they are."""
    return code("gradleak.attacks.run", ATTACKS[CONFIG.attacks[wildcards.attack].method][0])


def first_reconstruction(wildcards):
    """The reconstruction that a post-processing step starts from."""
    return RECONSTRUCTION.format(
        experiment=wildcards.experiment,
        model=wildcards.model,
        defence=wildcards.defence,
        attack=CONFIG.attacks[wildcards.attack].of,
    )


rule attack:
    input:
        model=MODEL,
        gradient=GRADIENT,
    output:
        images=RECONSTRUCTION,
        timing=RECONSTRUCTION.replace(".safetensors", ".seconds.json"),
    log:
        RECONSTRUCTION.replace("results/", "results/logs/", 1).replace(".safetensors", ".log"),
    benchmark:
        RECONSTRUCTION.replace("results/", "results/benchmarks/", 1).replace(
            ".safetensors", ".tsv"
        )
    wildcard_constraints:
        attack=ids(FIRST),
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=60,
    params:
        settings=attack_settings,
        code=attack_code,
    script:
        "../scripts/attack.py"


rule denoise:
    input:
        first_reconstruction,
    output:
        images=RECONSTRUCTION,
        timing=RECONSTRUCTION.replace(".safetensors", ".seconds.json"),
    log:
        RECONSTRUCTION.replace("results/", "results/logs/", 1).replace(".safetensors", ".log"),
    benchmark:
        RECONSTRUCTION.replace("results/", "results/benchmarks/", 1).replace(
            ".safetensors", ".tsv"
        )
    wildcard_constraints:
        attack=ids(LATER),
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        settings=attack_settings,
        code=code("gradleak.attacks.postprocess"),
    script:
        "../scripts/denoise.py"
