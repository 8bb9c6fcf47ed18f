# Inputs and parameters of trainings and generators, as functions of their rules' wildcards.


def training_settings(wildcards):
    """Entry of `trainings`."""
    return settings("trainings", wildcards.training)


def training_dataset(wildcards):
    """Arrays that a training takes its images from."""
    return dataset_of(wildcards.training)


def dataset_of(training):
    """The same of an entry of `trainings`."""
    chosen = CONFIG.trainings[training]
    return f"{DATA_ROOT}/{resolve(chosen.dataset, CONFIG.images)}-{chosen.split}.safetensors"


def training_clients(wildcards):
    """Files of the clients that train a locked network: one alone, or all of a federation."""
    federated = CONFIG.trainings[wildcards.training].federated
    number = federated.clients if federated else 1
    return expand(CLIENT, model=wildcards.model, client=range(number))


def training_seeds(wildcards):
    """Draws that are trained: the most that any experiment on them asks for."""
    return max(
        (
            CONFIG.amount(e.seeds)
            for e in CONFIG.experiments.values()
            if e.training == wildcards.training and wildcards.model in e.models
        ),
        default=1,
    )


def trained_of(*experiments):
    """Summaries of the trainings behind experiments: a row for each network, with accuracies."""
    return list(
        dict.fromkeys(
            TRAINED.format(training=CONFIG.experiments[name].training, model=model).replace(
                ".safetensors", ".csv"
            )
            for name in experiments
            if name in CONFIG.experiments and CONFIG.experiments[name].training
            for model in CONFIG.experiments[name].models
        )
    )


def generator_settings(wildcards):
    """Entry of `generators`."""
    return settings("generators", wildcards.generator)


def generator_source(wildcards):
    """Arrays that a generator is trained on, or the user's own weights.

    Where these are missing, the script says what to do.
    """
    chosen = CONFIG.generators[wildcards.generator]
    if chosen.kind == "biggan":
        return [chosen.weights] if Path(chosen.weights).exists() else []
    return [f"{DATA_ROOT}/{resolve(chosen.dataset, CONFIG.images)}-{chosen.split}.safetensors"]


def generator_of(wildcards):
    """The generator that an attack searches, if it does."""
    name = getattr(CONFIG.attacks[wildcards.attack], "generator", None)
    return [] if name is None else [GENERATOR.format(generator=name)]
