# What benchmarks and audits ask for, as functions of their wildcards.
from gradleak.benchmarks.threads import shortened
from gradleak.data.catalogue import resolve
from gradleak.pipeline.inputs import plain, resolved

ARRAYS, TARGETS, MODEL, TRAINED = PATHS.arrays, PATHS.targets, PATHS.model, PATHS.trained
SENT, SECRET, GRADIENT = PATHS.sent, PATHS.secret, PATHS.gradient
RECONSTRUCTION, SCORE, SECURITY = PATHS.reconstruction, PATHS.score, PATHS.security
GPU, DATA_ROOT = ASK.gpu, CONFIG.data.root
dataset_of = PATHS.dataset_of


def settings(section, entry):
    """One entry of a section of config, as plain values for a script."""
    return plain(CONFIG, section, entry)


def amounts_of(section, name):
    """An entry of a section, with its amounts at the current scale."""
    return resolved(CONFIG, section, name)


def doubling(amount):
    """MiB or minutes of a job that no recorded run had; twice as much at each further attempt."""
    return lambda wildcards, attempt: amount * 2 ** (attempt - 1)


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
    entry = amounts_of("attacks", "copa")
    return {key: value for key, value in entry.items() if key != "method"}


def search_amounts(wildcards):
    """Images, starts and outer steps with which searches are timed."""
    smoke = CONFIG.scale == "smoke"
    return (
        {"images": 1, "starts": 2, "outer": 5}
        if smoke
        else {"images": 10, "starts": 3, "outer": 300}
    )


def timed_training(wildcards):
    """Training by which the engine is timed: one epoch to get going, and some more."""
    smoke = CONFIG.scale == "smoke"
    changed = (
        {"train": 200, "validation": 20, "test": 10, "epochs": 2, "batch": 50}
        if smoke
        else {"train": 2560, "validation": 256, "test": 10, "epochs": 4}
    )
    return amounts_of("trainings", SPEED_TRAINING) | changed


def timed_inversions(wildcards):
    """Iterations of Inverting Gradients that are timed on ResNet-18 and on ResNet-101."""
    return (2, 1) if CONFIG.scale == "smoke" else (40, 8)


def timed_population(wildcards):
    """Candidates of GGL that are timed: the paper's number, or a few."""
    return 6 if CONFIG.scale == "smoke" else 50


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
