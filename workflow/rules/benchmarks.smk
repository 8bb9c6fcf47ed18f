# Measurements: speed against plain references, COPA's settings against each other. They take all
# cores, so that nothing runs beside them, and are no part of `all`.
SPEED_MODEL = "cnn3_v3_tanh"
SPEED_TRAINING = "rgap_resnet18"
SPEED_TARGET = "all"
# One job of each kind.
THREADED = [
    SENT.format(server="mkor_code", model="mkor_vgg16_100"),
    TRAINED.format(training="rgap_resnet18", model="rgap_resnet18"),
    *(
        path.format(experiment=experiment, model=model, defence="none", attack=attack)
        for path, experiment, model, attack in (
            (SECURITY, "copa_pair", "cnn3_v1_tanh", ""),
            (RECONSTRUCTION, "copa_pair", "cnn3_v3_tanh", "copa"),
            (RECONSTRUCTION, "rgap_cnn6", "rgap_cnn6s", "rgap_balanced"),
            (RECONSTRUCTION, "rgap_cnn6", "rgap_cnn6s", "dlg"),
            (RECONSTRUCTION, "rgap_cnn6", "rgap_cnn6s", "gauss_newton"),
            (RECONSTRUCTION, "fedkl_lenet_mnist", "fedkl_lenet_mnist_nets", "fedkl_grnn"),
            (RECONSTRUCTION, "fedkl_resnet20_cifar10", "fedkl_resnet20_cifar10_nets", "fedkl_ig"),
            (RECONSTRUCTION, "fedkl_ggl_cifar10", "fedkl_ggl_cifar10_nets", "fedkl_ggl_cifar10"),
            (RECONSTRUCTION, "mkor_lenet_honest", "mkor_lenets", "mkor_gi"),
            (GRADIENT, "mkor_cifar", "mkor_vgg16_100", ""),
            (RECONSTRUCTION, "mkor_cifar", "mkor_vgg16_100", "mkor_all_smooth"),
            (SCORE, "mkor_cifar", "mkor_vgg16_100", "mkor_all_smooth"),
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
COPA_PAIR = "copa_pair"
COPA_PAIR_MODELS = CONFIG.experiments[COPA_PAIR].models if COPA_PAIR in CONFIG.experiments else []


rule speed:
    input:
        model=MODEL.format(model=SPEED_MODEL),
        targets=TARGETS.format(targets=COPA_PAIR),
        rgap_model=MODEL.format(model="rgap_cnn6"),
        search_model=MODEL.format(model="dlg_lenet"),
        rgap_targets=TARGETS.format(targets="rgap_cifar"),
        mkor_model=SENT.format(server="mkor_code", model="mkor_vgg16_100"),
        mkor_secret=SECRET.format(server="mkor_code", model="mkor_vgg16_100"),
        own_model=SENT.format(server="mkor_vgg_untouched", model="mkor_vgg16_100"),
        own_secret=SECRET.format(server="mkor_vgg_untouched", model="mkor_vgg16_100"),
        mkor_targets=TARGETS.format(targets="mkor_cifar_first"),
        soteria_model=MODEL.format(model="mkor_lenets"),
        soteria_targets=TARGETS.format(targets="mkor_mnist_few"),
        photo_model=MODEL.format(model="mkor_vgg16_1000"),
        photo_targets=TARGETS.format(targets="mkor_photos"),
        resnet=MODEL.format(model="rgap_resnet18"),
        deep=MODEL.format(model="rgap_resnet101"),
        dataset=dataset_of(SPEED_TRAINING),
        pipeline="results/benchmarks/speed_pipeline.csv",
    output:
        "results/benchmarks/speed.csv",
    log:
        "results/logs/benchmarks/speed.log",
    conda:
        "../../envs/gradleak.yaml"
    threads: every_core
    resources:
        mem_mb=doubling(12000),
        runtime=doubling(60),
    params:
        target="figures/copa_fig1.pdf",
        overrides=run_overrides,
        evaluations=CONFIG.amount(CONFIG.attacks["dlg"].iterations),
        mkor={
            "images": CONFIG.amount("mkor_cifar_batch"),
            "photos": CONFIG.amount("mkor_photos"),
        },
        training=lambda wildcards: settings("trainings", SPEED_TRAINING) | MEASURED["training"],
        amounts=MEASURED,
        images=CONFIG.images,
        device=CONFIG.device,
        code=code("gradleak.benchmarks.speed"),
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
    threads: every_core
    resources:
        mem_mb=doubling(6000),
        runtime=doubling(120),
    params:
        target=SPEED_TARGET,
        overrides={"images": "embedded", "scale": "smoke", "device": CONFIG.device},
        code=code("gradleak.benchmarks.pipeline"),
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
    threads: every_core
    resources:
        mem_mb=doubling(12000),
        runtime=doubling(120),
    params:
        artifacts=THREADED,
        overrides=few_overrides,
        code=code("gradleak.benchmarks.threads"),
    message:
        "Measure what a second thread gains"
    script:
        "../scripts/threads.py"


rule copa_settings:
    input:
        models=expand(MODEL, model=COPA_PAIR_MODELS),
        gradients=pair_gradients,
        targets=TARGETS.format(targets=COPA_PAIR),
        claims=lambda wildcards: claims_of("copa") if wildcards.compared == "starts" else [],
    output:
        "results/benchmarks/copa_{compared}.csv",
    log:
        "results/logs/benchmarks/copa_{compared}.log",
    wildcard_constraints:
        compared="optimisers|starts",
    conda:
        "../../envs/gradleak.yaml"
    threads: every_core
    resources:
        mem_mb=doubling(3000),
        runtime=doubling(120),
    params:
        models=COPA_PAIR_MODELS,
        seeds=pair_seeds,
        default=copa_default,
        images=CONFIG.images,
        code=code("gradleak.benchmarks.copa_settings"),
    message:
        "Compare COPA's {wildcards.compared}"
    script:
        "../scripts/copa_settings.py"
