# Inputs and parameters of rules, as functions of their wildcards.


def settings(section, entry):
    """One entry of a section of config, as plain values for a script."""
    return getattr(CONFIG, section)[entry].model_dump(mode="json")


def made_from(source):
    """Constraint on {dataset}: what `source` gives, less the files put there by hand."""
    return pairs_pattern(
        (dataset, split)
        for dataset, split in pairs(source)
        if not is_by_hand(ARRAYS.format(dataset=dataset, split=split))
    )


def mirror(wildcards):
    """Address that replaces the official ones, if config names one."""
    return CONFIG.data.mirrors.get(wildcards.dataset)


def own_images(wildcards):
    """The folder or archive of one's own; where it is missing, the script says what to do."""
    source = CONFIG.data.imagenet
    return [str(source)] if source and Path(source).exists() else []


def dataset_file(wildcards):
    """Arrays that a target set is taken from."""
    chosen = CONFIG.targets[wildcards.targets]
    return f"{DATA_ROOT}/{resolve(chosen.dataset, CONFIG.images)}-{chosen.split}.safetensors"


def target_settings(wildcards):
    """Entry of `targets`."""
    return settings("targets", wildcards.targets)


def target_count(wildcards):
    """Number of images, where a target set takes the first of a split."""
    count = CONFIG.targets[wildcards.targets].count
    return None if count is None else CONFIG.amount(count)


def model_settings(wildcards):
    """Description of a model, or the entry of a family and how many networks it has."""
    if wildcards.model in CONFIG.models:
        return CONFIG.chain(wildcards.model).describe()
    family = CONFIG.families[wildcards.model]
    return {
        **settings("families", wildcards.model),
        "networks": CONFIG.amount(family.networks),
    }


def model_seeds(wildcards):
    """Draws that a model file holds: the most that any experiment asks for."""
    return max(
        (
            CONFIG.amount(e.seeds)
            for e in CONFIG.experiments.values()
            if wildcards.model in e.models
        ),
        default=1,
    )


def experiment_targets(wildcards):
    """Target set of an experiment."""
    return TARGETS.format(targets=CONFIG.experiments[wildcards.experiment].targets)


def experiment_settings(wildcards):
    """Entry of `experiments`, with its number of seeds."""
    entry = CONFIG.experiments[wildcards.experiment]
    return {
        "precision": entry.precision,
        "granted": entry.label == "granted",
        "seeds": CONFIG.amount(entry.seeds),
    }


def defence_settings(wildcards):
    """Entry of `defences`."""
    return settings("defences", wildcards.defence)


def amounts_of_attack(attack):
    """Entry of `attacks`, with its amounts at the current scale."""
    entry = settings("attacks", attack)
    if "iterations" in entry:
        entry["iterations"] = CONFIG.amount(entry["iterations"])
    return entry


def attack_settings(wildcards):
    """Settings of the attack that a job runs."""
    return amounts_of_attack(wildcards.attack)


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


def score_case(wildcards):
    """Columns that are the same in all rows of a score file."""
    entry = CONFIG.experiments[wildcards.experiment]
    return {
        "paper": entry.paper,
        "result": wildcards.experiment,
        "attack": wildcards.attack,
        "defence": wildcards.defence,
        "images": CONFIG.images,
        "targets": entry.targets,
        "precision": entry.precision,
    }


def scores_of(*experiments, attacks=None, models=None):
    """Score files of experiments, of some attacks and models or of all."""
    return [
        SCORE.format(experiment=name, model=model, defence=defence, attack=attack)
        for name in experiments
        if name in CONFIG.experiments
        for model in CONFIG.experiments[name].models
        for defence in CONFIG.experiments[name].defences
        for attack in CONFIG.experiments[name].attacks
        if (attacks is None or attack in attacks) and (models is None or model in models)
    ]


def security_of(*experiments, models=None):
    """Files with c(M) of the models of experiments."""
    return [
        SECURITY.format(experiment=name, model=model)
        for name in experiments
        if name in CONFIG.experiments
        for model in CONFIG.experiments[name].models
        if models is None or model in models
    ]


def security_seeds(wildcards):
    """Draws of weights whose ranks are computed: ranks hardly vary, so three tell enough."""
    return min(3, CONFIG.amount(CONFIG.experiments[wildcards.experiment].seeds))


def pair_gradients(wildcards):
    """Gradients of both images of COPA's figures, in the order of its models."""
    return expand(
        GRADIENT,
        experiment=COPA_PAIR,
        model=COPA_PAIR_MODELS,
        defence=CONFIG.experiments[COPA_PAIR].defences[:1],
    )


def pair_seeds(wildcards):
    """Draws of weights for the comparison: three tell optimisers and starts apart."""
    return min(3, CONFIG.amount(CONFIG.experiments[COPA_PAIR].seeds))


def copa_default(wildcards):
    """Settings of COPA that config.yaml chooses."""
    entry = amounts_of_attack("copa")
    return {key: value for key, value in entry.items() if key != "method"}


def run_overrides(wildcards):
    """Keys of config.yaml as they hold in this run; real images are taken from where they are."""
    data = CONFIG.data.model_dump(mode="json")
    if CONFIG.images == "real":
        data["root"] = str(Path(DATA_ROOT).absolute())
    return {
        "images": CONFIG.images,
        "scale": CONFIG.scale,
        "device": CONFIG.device,
        "data": data,
    }
