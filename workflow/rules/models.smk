# Target sets and models: what is attacked.
from gradleak.data.catalogue import resolve

TARGETS = f"results/targets/{CASE}/{{targets}}.safetensors"
MODEL = f"results/models/{CONFIG.scale}/{{model}}.safetensors"


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
    """Entry of `models` or `families`, and how many networks a family has."""
    if wildcards.model in CONFIG.models:
        return settings("models", wildcards.model)
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


rule targets:
    input:
        dataset=dataset_file,
    output:
        TARGETS,
    log:
        f"results/logs/targets/{CASE}/{{targets}}.log",
    benchmark:
        f"results/benchmarks/targets/{CASE}/{{targets}}.tsv"
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        settings=target_settings,
        number=target_count,
        images=CONFIG.images,
        code=code("gradleak.targets"),
    script:
        "../scripts/targets.py"


rule model:
    output:
        MODEL,
    log:
        f"results/logs/models/{CONFIG.scale}/{{model}}.log",
    benchmark:
        f"results/benchmarks/models/{CONFIG.scale}/{{model}}.tsv"
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=1500,
        runtime=5,
    params:
        settings=model_settings,
        seeds=model_seeds,
        code=code("gradleak.models.create"),
    script:
        "../scripts/model.py"
