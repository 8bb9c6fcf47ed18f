# Training: from initial weights to those of the best epoch, by one alone or by clients together.
# For a locked network clients' keys and locks come in, and go out into files of their own.
FEDERATED = [name for name, entry in CONFIG.trainings.items() if entry.federated]
CENTRAL = [name for name in CONFIG.trainings if name not in FEDERATED]
WEIGHTS = {
    "weights": PATHS.trained,
    "curve": PATHS.trained.replace(".safetensors", ".curve.csv"),
    "summary": PATHS.trained.replace(".safetensors", ".csv"),
}
TRAINING_PARAMS = {
    "settings": ASK.entry("trainings", "training"),
    "seeds": ASK.training_seeds,
    "device": CONFIG.device,
    "images": CONFIG.images,
    "software": SOFTWARE,
    "code": lambda wildcards: code(
        "gradleak.training.run" + "_federated" * (wildcards.training in FEDERATED)
    ),
    # Not an output: what a killed job leaves there is where the next one goes on.
    "checkpoints": PATHS.trained.replace(".safetensors", ".checkpoints"),
}


# One thread, so that the weights do not depend on how many cores there are.
rule train:
    input:
        model=PATHS.model,
        dataset=ASK.training_dataset,
    output:
        **WEIGHTS,
    log:
        beside(PATHS.trained, "logs", ".log"),
    wildcard_constraints:
        model=ids(ASK.open),
        training=ids(CENTRAL),
    cache: SHARED
    # Trainings take longest and attacks wait for them.
    priority: 1
    conda:
        "../../envs/gradleak.yaml"
    resources:
        **needs("train"),
        gpu=ASK.gpu,
    params:
        **TRAINING_PARAMS,
    message:
        "Train {wildcards.model} ({wildcards.training})"
    script:
        "../scripts/train.py"


# No shared cache: two checkouts that made an entry with a folder at once would nest their folders.
use rule train as train_locked with:
    input:
        model=PATHS.model,
        dataset=ASK.training_dataset,
        clients=ASK.training_clients,
    output:
        **WEIGHTS,
        clients=directory(PATHS.clients),
    wildcard_constraints:
        model=ids(ASK.locked),
        training=ids(CENTRAL),


use rule train as train_federated with:
    wildcard_constraints:
        model=ids(ASK.open),
        training=ids(FEDERATED),
    cache: SHARED


use rule train_locked as train_federated_locked with:
    wildcard_constraints:
        model=ids(ASK.locked),
        training=ids(FEDERATED),


# Generators: trained on images that are not under attack, or from weights of a user's own. One
# thread, as above.
rule generator:
    input:
        ASK.generator_source,
    output:
        weights=PATHS.generator,
    log:
        beside(PATHS.generator, "logs", ".log"),
    cache: SHARED
    # Attacks wait for it.
    priority: 1
    conda:
        "../../envs/gradleak.yaml"
    resources:
        **needs("generator"),
        gpu=ASK.gpu,
    params:
        settings=ASK.entry("generators", "generator"),
        device=CONFIG.device,
        images=CONFIG.images,
        # Not outputs: a curve that BigGAN does not have, and what a killed job leaves to go on from.
        curve=PATHS.generator.replace(".safetensors", ".curve.csv"),
        checkpoints=PATHS.generator.replace(".safetensors", ".checkpoints"),
        code=code("gradleak.training.generators.make"),
        software=SOFTWARE,
    message:
        "Train the generator {wildcards.generator}"
    script:
        "../scripts/generator.py"
