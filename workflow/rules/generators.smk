# Generators: trained on images that are not under attack, or from weights of a user's own.


# One thread, so that the weights do not depend on how many cores there are.
rule generator:
    input:
        generator_source,
    output:
        weights=GENERATOR,
    log:
        beside(GENERATOR, "logs", ".log"),
    cache: SHARED
    # Attacks wait for it.
    priority: 1
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=memory("generator"),
        runtime=minutes("generator"),
        gpu=GPU,
    params:
        settings=generator_settings,
        device=CONFIG.device,
        images=CONFIG.images,
        # Not outputs: a curve that BigGAN does not have, and what a killed job leaves to go on from.
        curve=GENERATOR.replace(".safetensors", ".curve.csv"),
        checkpoints=GENERATOR.replace(".safetensors", ".checkpoints"),
        code=code("gradleak.generators.make"),
        software=SOFTWARE,
    message:
        "Train the generator {wildcards.generator}"
    script:
        "../scripts/generator.py"
