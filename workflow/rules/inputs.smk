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


def wildcard(name):
    """A wildcard as a parameter: an entry of the shared cache is known by parameters alone."""
    return lambda wildcards: getattr(wildcards, name)


def own_images(wildcards):
    """The archive of one's own; where it is missing, the script says what to do."""
    source = CONFIG.data.imagenet
    return [str(source)] if source and Path(source).is_file() else []


def own_listing(wildcards):
    """What stands for the folder of one's own: Snakemake cannot hash a folder."""
    return shared_cache.listing(CONFIG.data.imagenet)


def dataset_file(wildcards):
    """Arrays that a target set is taken from."""
    chosen = CONFIG.targets[wildcards.targets]
    return f"{DATA_ROOT}/{resolve(chosen.dataset, CONFIG.images)}-{chosen.split}.safetensors"


def target_settings(wildcards):
    """Entry of `targets`."""
    return settings("targets", wildcards.targets)


def target_count(wildcards):
    """Number of images, where a target set takes the first of a split."""
    return CONFIG.targets[wildcards.targets].count


def target_batch(wildcards):
    """Images that share one gradient."""
    return CONFIG.targets[wildcards.targets].batch


def model_settings(wildcards):
    """Descriptions of models, or the entry of a family and how many networks it has."""
    if wildcards.model not in CONFIG.families:
        members = CONFIG.members(wildcards.model)
        return {"chains": [CONFIG.chain(member).describe() for member in members]}
    return settings("families", wildcards.model)


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
        "loss": entry.loss,
        "labels": entry.labels,
        "kept": entry.kept,
        "mode": entry.mode,
        "lock": entry.lock,
    }


def sent_model(wildcards):
    """Weights that the server of an experiment sends: initial, trained or malicious ones."""
    training = CONFIG.experiments[wildcards.experiment].training
    if training is not None:
        return TRAINED.format(training=training, model=wildcards.model)
    server = CONFIG.experiments[wildcards.experiment].server
    if CONFIG.servers[server].method == "honest":
        return MODEL.format(model=wildcards.model)
    return SENT.format(server=server, model=wildcards.model)


def sharing_client(wildcards):
    """What the client under attack, the first, keeps of a locked network; nothing of others."""
    if wildcards.model not in LOCKED:
        return []
    training = CONFIG.experiments[wildcards.experiment].training
    if training is not None:
        return [CLIENTS.format(training=training, model=wildcards.model)]
    return [CLIENT.format(model=wildcards.model, client=0)]


def undefended_gradient(wildcards):
    """Gradient that a defence is applied to."""
    return GRADIENT.format(
        experiment=wildcards.experiment, model=wildcards.model, defence=UNDEFENDED[0]
    )


def memory(script):
    """MiB that a rule's jobs ask for, from measured ones; see gradleak.resources."""
    return lambda wildcards, attempt: NEEDS.memory(script, dict(wildcards.items()), attempt)


def minutes(script):
    """Minutes that a rule's jobs ask for, from measured ones."""
    return lambda wildcards, attempt: NEEDS.minutes(script, dict(wildcards.items()), attempt)


def doubling(amount):
    """MiB or minutes of a job that no recorded run had; twice as much at each further attempt."""
    return lambda wildcards, attempt: amount * 2 ** (attempt - 1)


def model_threads(wildcards):
    """Passes of small networks are fastest on one thread; VGG-16's gain 1.5 from two (measured)."""
    return 2 if resources.parameters(CONFIG, wildcards.model) > resources.LARGE else 1


def attack_threads(wildcards):
    """Two for searches over large batches, which gain 1.6; closed forms and others gain less."""
    targets = CONFIG.targets[CONFIG.experiments[wildcards.experiment].targets]
    search = CONFIG.attacks[wildcards.attack].searches
    return 2 if search and CONFIG.amount(targets.batch) >= LARGE_BATCH else 1


def server_settings(wildcards):
    """Entry of `servers`."""
    return settings("servers", wildcards.server)


def server_code(wildcards):
    """Code of this server alone."""
    method = CONFIG.servers[wildcards.server].method
    return code("gradleak.servers.base", registry.modules("servers")[method])


def secret(wildcards):
    """What the server keeps, for an attack that reads it."""
    if not CONFIG.attacks[wildcards.attack].reads_secret:
        return []
    server = CONFIG.experiments[wildcards.experiment].server
    return [SECRET.format(server=server, model=wildcards.model)]


def defence_settings(wildcards):
    """Entry of `defences`."""
    return settings("defences", wildcards.defence)


def defence_code(wildcards):
    """Code of this defence alone."""
    method = CONFIG.defences[wildcards.defence].method
    return code("gradleak.defences.apply", registry.modules("defences")[method])


def amounts_of_attack(attack):
    """Entry of `attacks`."""
    return settings("attacks", attack)


def attack_settings(wildcards):
    """Settings of the attack that a job runs."""
    return amounts_of_attack(wildcards.attack)


def attack_code(wildcards):
    """Code of this attack alone: an edit of one attack leaves the others' results as they are."""
    method = CONFIG.attacks[wildcards.attack].method
    return code("gradleak.attacks.run", registry.modules("attacks")[method])


def attack_device(wildcards):
    """Device of searches; None for closed forms and COPA, so that it cannot rerun them."""
    return CONFIG.device if CONFIG.attacks[wildcards.attack].searches else None


def attack_gpu(wildcards):
    """GPUs that an attack asks for: closed forms and COPA run on the CPU."""
    return GPU if CONFIG.attacks[wildcards.attack].searches else 0


def first_reconstructions(wildcards):
    """Reconstructions that an attack starts from or is made of."""
    return [
        RECONSTRUCTION.format(
            experiment=wildcards.experiment,
            model=wildcards.model,
            defence=wildcards.defence,
            attack=attack,
        )
        for attack in CONFIG.attacks[wildcards.attack].made_from
    ]


def own_target_set(wildcards):
    """Images of the attacker's own, where an attack starts from them."""
    own = getattr(CONFIG.attacks[wildcards.attack], "own_images", None)
    return [] if own is None else [TARGETS.format(targets=own)]


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
        "mode": entry.mode,
        "training": entry.training or "",
    }


def score_task(wildcards):
    """What labels mean in an experiment."""
    entry = CONFIG.experiments[wildcards.experiment]
    return {"loss": entry.loss, "labels": entry.labels}


def has_lpips(wildcards):
    """Whether an experiment is scored by LPIPS too: FedKL's are."""
    return CONFIG.experiments[wildcards.experiment].paper == "fedkl"


def lpips_weights(wildcards):
    """Weights that are there for LPIPS; new ones rerun the scores that they are for, no others."""
    return backbones.present(LPIPS) if has_lpips(wildcards) else []


def score_code(wildcards):
    """Code of the scores that a job computes."""
    return code("gradleak.scores_fedkl" if has_lpips(wildcards) else "gradleak.scores")


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


def rank_of(*experiments, models=None):
    """Files with R-GAP's rank analysis of the models of experiments."""
    return [
        path.replace("results/security/", "results/rank/", 1)
        for path in security_of(*experiments, models=models)
    ]


def security_seeds(wildcards):
    """Draws of weights whose ranks are computed, which hardly vary."""
    return CONFIG.experiments[wildcards.experiment].few


def rank_amounts(wildcards):
    """Draws and images that the rank analysis measures; condition numbers only if asked for."""
    entry = CONFIG.experiments[wildcards.experiment]
    return {
        "seeds": CONFIG.amount(entry.seeds),
        "images": CONFIG.amount(entry.conditions or 1),
        "conditions": entry.conditions is not None,
    }


def pair_gradients(wildcards):
    """Gradients of both images of COPA's figures, in the order of its models."""
    return expand(
        GRADIENT,
        experiment=COPA_PAIR,
        model=COPA_PAIR_MODELS,
        defence=CONFIG.experiments[COPA_PAIR].defences[:1],
    )


def pair_seeds(wildcards):
    """Draws of weights for the comparison: few tell optimisers and starts apart."""
    return CONFIG.experiments[COPA_PAIR].few


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


def few_overrides(wildcards):
    """The same, with few images and steps: enough to see what threads gain."""
    return run_overrides(wildcards) | shortened(CONFIG.model_dump(mode="json", exclude_unset=True))


def every_core(wildcards):
    """All cores; asked only when a benchmark runs, for profiles that submit jobs set no number."""
    return workflow.cores
