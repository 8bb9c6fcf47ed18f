# Measurements: speed against plain references, COPA's settings against each other. They take all
# cores, so that nothing runs beside them, and are no part of `all`. How many there are is asked only
# when one runs, for profiles that submit jobs set no number.
from benchmarks.rules import Benchmarks
from gradleak.data.catalogue import resolve

TIMED = Benchmarks(PATHS)
SPEED_MODEL = "cnn3_v3_tanh"
SPEED_TARGET = "all"
# One job of each kind.
THREADED = [
    PATHS.sent.format(server="mkor_code", model="mkor_vgg16_100"),
    PATHS.trained.format(training="rgap_resnet18", model="rgap_resnet18"),
    *(
        path.format(experiment=experiment, model=model, defence="none", attack=attack)
        for path, experiment, model, attack in (
            (PATHS.security, "copa_pair", "cnn3_v1_tanh", ""),
            (PATHS.reconstruction, "copa_pair", "cnn3_v3_tanh", "copa"),
            (PATHS.reconstruction, "rgap_cnn6", "rgap_cnn6s", "rgap_balanced"),
            (PATHS.reconstruction, "rgap_cnn6", "rgap_cnn6s", "dlg"),
            (PATHS.reconstruction, "rgap_cnn6", "rgap_cnn6s", "gauss_newton"),
            (PATHS.reconstruction, "fedkl_lenet_mnist", "fedkl_lenet_mnist_nets", "fedkl_grnn"),
            (
                PATHS.reconstruction,
                "fedkl_resnet20_cifar10",
                "fedkl_resnet20_cifar10_nets",
                "fedkl_ig",
            ),
            (
                PATHS.reconstruction,
                "fedkl_ggl_cifar10",
                "fedkl_ggl_cifar10_nets",
                "fedkl_ggl_cifar10",
            ),
            (PATHS.reconstruction, "mkor_lenet_honest", "mkor_lenets", "mkor_gi"),
            (PATHS.gradient, "mkor_cifar", "mkor_vgg16_100", ""),
            (PATHS.reconstruction, "mkor_cifar", "mkor_vgg16_100", "mkor_all_smooth"),
            (PATHS.score, "mkor_cifar", "mkor_vgg16_100", "mkor_all_smooth"),
        )
    ),
]
# How much is measured: at smoke scale, and at the others.
MEASURED = {
    "rounds": (1, 2),  # of each side, of which the fastest counts
    "searches": ({"images": 1, "starts": 2, "outer": 5}, {"images": 10, "starts": 3, "outer": 300}),
    # One epoch to get going, and some more.
    "training": (
        {"train": 200, "validation": 20, "test": 10, "epochs": 2, "batch": 50},
        {"train": 2560, "validation": 256, "test": 10, "epochs": 4},
    ),
    "lock_steps": (3, 100),
    "inverting": ((2, 1), (40, 8)),  # iterations on ResNet-18 and on ResNet-101
    "grnn": (2, 100),  # iterations
    "population": (6, 50),  # candidates of GGL: a few, or the paper's number
}
MEASURED = {name: pair[CONFIG.scale != "smoke"] for name, pair in MEASURED.items()}
PEERS_DATA = "cifar10"
# Clients of each case, CPU seconds of a search by network, and how networks are trained.
PEERED = {
    "smoke": {"clients": 1, "budget": (0.2, 0.2, 0.2, 0.2, 0.2), "images": 100, "epochs": 1},
    "laptop": {"clients": 20, "budget": (5, 20, 15, 20, 5), "images": 5000, "epochs": 5},
    "paper": {"clients": 100, "budget": (20, 60, 120, 120, 20), "images": 5000, "epochs": 5},
}
PEERED = (PEERED | {"night": PEERED["laptop"]})[CONFIG.scale]
PEERED_KINDS = ("lenet", "lenet_steps", "convnet", "convnet_steps", "cnn6")
PEERED = PEERED | {"budget": dict(zip(PEERED_KINDS, PEERED["budget"]))}
COPA_PAIR = "copa_pair"
COPA_PAIR_MODELS = CONFIG.experiments[COPA_PAIR].models if COPA_PAIR in CONFIG.experiments else []


rule speed:
    input:
        model=PATHS.model.format(model=SPEED_MODEL),
        targets=PATHS.targets.format(targets=COPA_PAIR),
        rgap_model=PATHS.model.format(model="rgap_cnn6"),
        search_model=PATHS.model.format(model="dlg_lenet"),
        rgap_targets=PATHS.targets.format(targets="rgap_cifar"),
        mkor_model=PATHS.sent.format(server="mkor_code", model="mkor_vgg16_100"),
        mkor_secret=PATHS.secret.format(server="mkor_code", model="mkor_vgg16_100"),
        own_model=PATHS.sent.format(server="mkor_vgg_untouched", model="mkor_vgg16_100"),
        own_secret=PATHS.secret.format(server="mkor_vgg_untouched", model="mkor_vgg16_100"),
        mkor_targets=PATHS.targets.format(targets="mkor_cifar_first"),
        soteria_model=PATHS.model.format(model="mkor_lenets"),
        soteria_targets=PATHS.targets.format(targets="mkor_mnist_few"),
        photo_model=PATHS.model.format(model="mkor_vgg16_1000"),
        photo_targets=PATHS.targets.format(targets="mkor_photos"),
        resnet=PATHS.model.format(model="rgap_resnet18"),
        deep=PATHS.model.format(model="rgap_resnet101"),
        dataset=TIMED.training_dataset,
        pipeline="results/benchmarks/speed_pipeline.csv",
    output:
        "results/benchmarks/speed.csv",
    log:
        "results/logs/benchmarks/speed.log",
    conda:
        "../../envs/gradleak.yaml"
    threads: lambda wildcards: workflow.cores
    resources:
        **resources.doubling(12000, 60),
    params:
        target="figures/copa_fig1.pdf",
        overrides=TIMED.run_overrides,
        evaluations=TIMED.evaluations,
        mkor=TIMED.batches,
        training=TIMED.training(MEASURED["training"]),
        amounts=MEASURED,
        images=CONFIG.images,
        device=CONFIG.device,
        code=code("benchmarks.speed"),
    message:
        "Measure speed and memory"
    script:
        "../scripts/speed.py"


# Two whole runs: half an hour and more.
rule speed_pipeline:
    output:
        "results/benchmarks/speed_pipeline.csv",
    log:
        "results/logs/benchmarks/speed_pipeline.log",
    conda:
        "../../envs/gradleak.yaml"
    threads: lambda wildcards: workflow.cores
    resources:
        **resources.doubling(6000, 120),
    params:
        target=SPEED_TARGET,
        overrides={"images": "embedded", "scale": "smoke", "device": CONFIG.device},
        code=code("benchmarks.pipeline"),
    message:
        "Measure a whole run"
    script:
        "../scripts/speed_pipeline.py"


rule threads:
    output:
        "results/benchmarks/threads.csv",
    log:
        "results/logs/benchmarks/threads.log",
    conda:
        "../../envs/gradleak.yaml"
    threads: lambda wildcards: workflow.cores
    resources:
        **resources.doubling(12000, 120),
    params:
        artifacts=TIMED.artifacts(THREADED),
        overrides=TIMED.few_overrides,
        code=code("benchmarks.threads"),
    message:
        "Measure what a second thread gains"
    script:
        "../scripts/threads.py"


rule copa_settings:
    input:
        models=expand(PATHS.model, model=COPA_PAIR_MODELS),
        gradients=TIMED.pair_gradients,
        targets=PATHS.targets.format(targets=COPA_PAIR),
        claims=lambda wildcards: claims_of("copa") if wildcards.compared == "starts" else [],
    output:
        "results/benchmarks/copa_{compared}.csv",
    log:
        "results/logs/benchmarks/copa_{compared}.log",
    wildcard_constraints:
        compared="optimisers|starts",
    conda:
        "../../envs/gradleak.yaml"
    threads: lambda wildcards: workflow.cores
    resources:
        **resources.doubling(3000, 120),
    params:
        models=COPA_PAIR_MODELS,
        seeds=TIMED.pair_seeds,
        default=TIMED.copa_default,
        images=CONFIG.images,
        code=code("benchmarks.copa_settings"),
    message:
        "Compare COPA's {wildcards.compared}"
    script:
        "../scripts/copa_settings.py"


# Attacks that are done are kept in results/benchmarks/peers/, which is no output: Snakemake would
# delete what an interrupted comparison left.
rule peers:
    input:
        train=PATHS.dataset(PEERS_DATA, "train"),
        test=PATHS.dataset(PEERS_DATA, "test"),
    output:
        "results/benchmarks/peers.csv",
    log:
        "results/logs/benchmarks/peers.log",
    conda:
        "../../envs/gradleak.yaml"
    threads: lambda wildcards: workflow.cores
    resources:
        **resources.doubling(6000, 600),
    params:
        dataset=resolve(PEERS_DATA, CONFIG.images),
        amounts=PEERED,
        images=CONFIG.images,
        code=code("benchmarks.peers"),
    message:
        "Compare with other libraries"
    script:
        "../scripts/peers.py"


# The library on clients of its own: what local training, norms and defences leave. Each attack is
# kept in a folder, so that a study that was cut off goes on there.
STUDIES = ("local_training", "norms", "private")
STUDY_AMOUNTS = {
    "clients": (1, 10),
    "iterations": (5, 300),
    "second": (1, 30),
    "epochs": ((1, 2), (1, 3, 10)),
    "batch": (2, 2),
    "proxy": (4, 100),
    "train": (20, 5000),
    "train_epochs": (1, 10),
}


rule library_study:
    input:
        data=PATHS.dataset("cifar10", "test"),
        others=PATHS.dataset("cifar10", "train"),
    output:
        "results/benchmarks/{study}.csv",
    log:
        "results/logs/benchmarks/{study}.log",
    wildcard_constraints:
        study="|".join(STUDIES),
    conda:
        "../../envs/gradleak.yaml"
    resources:
        **resources.doubling(4000, 240),
    params:
        sources=TIMED.sources("cifar10"),
        amounts={k: pair[CONFIG.scale != "smoke"] for k, pair in STUDY_AMOUNTS.items()},
        folder=f"results/benchmarks/studies/{PATHS.case}",
        code=code("benchmarks.studies"),
    message:
        "Study {wildcards.study} with the library"
    script:
        "../scripts/library_study.py"


# R-GAP on photographs of ImageNet's size.
rule photo:
    input:
        data=PATHS.dataset("imagenet", "val"),
    output:
        table="results/benchmarks/photo.csv",
        pdf="figures/photo.pdf",
        png="figures/photo.png",
    log:
        "results/logs/benchmarks/photo.log",
    conda:
        "../../envs/gradleak.yaml"
    resources:
        **resources.doubling(9000, 60),
    params:
        source=resolve("imagenet", CONFIG.images),
        side=40 if CONFIG.scale == "smoke" else 224,
        code=code("benchmarks.photo"),
    message:
        "Reconstruct photographs with R-GAP"
    script:
        "../scripts/photo.py"


# How time and memory grow. Each measurement is kept in a folder as it ends. None takes more than
# `seconds` of CPU time or `gib`; what smaller sizes predict to take more is not run.
GROWN = {
    "smoke": {
        "sizes": {"side": (16, 24), "depth": (2, 3), "batch": (4, 8), "jobs": (10, 20)},
        "seconds": 60,
        "gib": 4,
    },
    "laptop": {
        "sizes": {
            "side": (32, 64, 128, 224),
            "depth": (2, 4, 6, 8),
            "batch": (100, 1000, 10000),
            "jobs": (100, 1000, 5000),
        },
        "seconds": 300,
        "gib": 14,  # what a laptop of 16 has left
    },
}
GROWN |= {"night": GROWN["laptop"], "paper": GROWN["laptop"] | {"seconds": 3600, "gib": 24}}


rule growth:
    output:
        table="results/benchmarks/growth.csv",
        exponents="results/benchmarks/growth_exponents.csv",
        pdf="figures/growth.pdf",
        png="figures/growth.png",
    log:
        "results/logs/benchmarks/growth.log",
    conda:
        "../../envs/gradleak.yaml"
    threads: lambda wildcards: workflow.cores
    resources:
        **resources.doubling(12000, 240),
    params:
        amounts=GROWN[CONFIG.scale],
        folder="results/benchmarks/studies",
        # Measurements by other code are no part of the folder.
        measured=code(
            "benchmarks.growth",
            "benchmarks.growth_attacks",
            "benchmarks.growth_jobs",
            "benchmarks.growth_task",
        ),
        code=code("benchmarks.growth_figure", "benchmarks.growth_fits"),
    message:
        "Measure how time and memory grow"
    script:
        "../scripts/growth.py"


# Networks under audit, each kept in a folder as it is done.
rule networks_study:
    output:
        "results/benchmarks/{networks}_networks.csv",
    log:
        "results/logs/benchmarks/{networks}_networks.log",
    wildcard_constraints:
        networks="torchvision|audited",
    conda:
        "../../envs/gradleak.yaml"
    resources:
        **resources.doubling(12000, 240),
    params:
        amounts={"scale": AUDITED_AT, "count": 1 if CONFIG.scale == "smoke" else 4},
        folder="results/benchmarks/studies",
        code=code("benchmarks.audited_networks", "benchmarks.torchvision_networks"),
    message:
        "Study {wildcards.networks} networks with audits"
    script:
        "../scripts/networks_study.py"
