# Training: from initial weights to those of the best epoch, by one alone or by clients together.
# For a locked network clients' keys and locks come in, and go out into files of their own.
CURVE = TRAINED.replace(".safetensors", ".curve.csv")
SUMMARY = TRAINED.replace(".safetensors", ".csv")
TRAINING_PARAMS = {
    "settings": training_settings,
    "seeds": training_seeds,
    "device": CONFIG.device,
    "images": CONFIG.images,
    "software": SOFTWARE,
    # Not an output: what a killed job leaves there is where the next one goes on.
    "checkpoints": TRAINED.replace(".safetensors", ".checkpoints"),
}


# One thread, so that the weights do not depend on how many cores there are.
rule train:
    input:
        model=MODEL,
        dataset=training_dataset,
    output:
        weights=TRAINED,
        curve=CURVE,
        summary=SUMMARY,
    log:
        beside(TRAINED, "logs", ".log"),
    wildcard_constraints:
        model=ids(OPEN),
        training=ids(CENTRAL),
    cache: SHARED
    # Trainings take longest and attacks wait for them.
    priority: 1
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=memory("train"),
        runtime=minutes("train"),
        gpu=GPU,
    params:
        **TRAINING_PARAMS,
        code=code("gradleak.training.run"),
    message:
        "Train {wildcards.model} ({wildcards.training})"
    script:
        "../scripts/train.py"


# No shared cache: two checkouts that made an entry with a folder at once would nest their folders.
use rule train as train_locked with:
    input:
        model=MODEL,
        dataset=training_dataset,
        clients=training_clients,
    output:
        weights=TRAINED,
        curve=CURVE,
        summary=SUMMARY,
        clients=directory(CLIENTS),
    wildcard_constraints:
        model=ids(LOCKED),
        training=ids(CENTRAL),


use rule train as train_federated with:
    wildcard_constraints:
        model=ids(OPEN),
        training=ids(FEDERATED),
    cache: SHARED
    params:
        **TRAINING_PARAMS,
        code=code("gradleak.training.run_federated"),


use rule train_locked as train_federated_locked with:
    wildcard_constraints:
        model=ids(LOCKED),
        training=ids(FEDERATED),
    params:
        **TRAINING_PARAMS,
        code=code("gradleak.training.run_federated"),
