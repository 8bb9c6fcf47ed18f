# Training: from initial weights to those of the best epoch.


# One thread, so that the weights do not depend on how many cores there are.
rule train:
    input:
        model=MODEL,
        dataset=training_dataset,
    output:
        weights=TRAINED,
        curve=TRAINED.replace(".safetensors", ".curve.csv"),
        summary=TRAINED.replace(".safetensors", ".csv"),
    log:
        beside(TRAINED, "logs", ".log"),
    benchmark:
        beside(TRAINED, "benchmarks", ".tsv")
    # Trainings take longest and attacks wait for them.
    priority: 1
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=4000,
        runtime=600,
    params:
        settings=training_settings,
        seeds=training_seeds,
        device=CONFIG.device,
        images=CONFIG.images,
        # Not an output: what a killed job leaves there is where the next one goes on.
        checkpoints=TRAINED.replace(".safetensors", ".checkpoints"),
        code=code("gradleak.training.run"),
    script:
        "../scripts/train.py"
