# What FedKL's tables read: trainings of each network, and what Tables I, III and VI call them.
FEDKL_COLUMNS = {"mnist": "MNIST", "cifar10": "C-10", "cifar100": "C-100"}
FEDKL_TRAINED = [  # columns of Table I
    ("lenet", "mnist"),
    *(
        (network, dataset)
        for network in ("resnet20", "resnet32", "resnet18", "resnet34", "vgg16")
        for dataset in ("cifar10", "cifar100")
    ),
]
FEDKL_LOCKED = {"": "without", "_kl": "with"}  # by the end of a model's id
# LeNet has as many parameters as in the authors' code, and in Table III, on three colours.
FEDKL_COLOURS = [3, 32, 32]


def fedkl_trained_model(network, dataset, lock):
    """A trained network: LeNet is trained on one data set, so its id has none."""
    place = "" if network == "lenet" else f"_{dataset}"
    return f"fedkl_trained_{network}{place}{lock}"


def fedkl_trainings():
    """Trainings behind Tables I and III that config.yaml has, with what to call them."""
    return [
        {
            "training": training,
            "model": model,
            "network": network,
            "dataset": dataset,
            "split": CONFIG.trainings[training].split,
            "lock": FEDKL_LOCKED[lock],
            "column": f"{fedkl_sized(network, model)}, {FEDKL_COLUMNS[dataset]}",
        }
        for network, dataset in FEDKL_TRAINED
        for regime in ("central", "federated")
        for lock in FEDKL_LOCKED
        if (training := f"fedkl_{regime}_{dataset}" + ("" if network in FEDKL_SMALL else "_large"))
        in CONFIG.trainings
        and (model := fedkl_trained_model(network, dataset, lock)) in CONFIG.models
    ]


def fedkl_sized(network, model):
    """A network with the side of its images, as the paper writes it."""
    side = CONFIG.chain(model).input[1]
    return f"{FEDKL_NETWORKS[network]} ({side}*{side})"


FEDKL_ACCURACIES = fedkl_trainings()


def fedkl_accuracy_files(wildcards):
    """Summaries and curves of all trainings."""
    if not FEDKL_ACCURACIES:
        return missing_training("fedkl_central_mnist")
    return {
        "summaries": [trained_file(entry, ".csv") for entry in FEDKL_ACCURACIES],
        "curves": [trained_file(entry, ".curve.csv") for entry in FEDKL_ACCURACIES],
    }


def fedkl_chains():
    """Locked networks as they are at paper scale, whatever the scale of this run."""
    paper = CONFIG.at("paper")
    found = {
        network: paper.chain(model)
        for network, dataset in reversed(FEDKL_TRAINED)
        if (model := fedkl_trained_model(network, dataset, "_kl")) in CONFIG.models
    }
    return [
        {
            "network": network,
            "row": FEDKL_NETWORKS[network],
            "chain": chain.describe(),
            "input": FEDKL_COLOURS if network == "lenet" else None,
        }
        for network, chain in reversed(found.items())
    ]


# Experiments and attacks of Table VI.
FEDKL_TABLE6 = [
    *(f"fedkl_{network}_{dataset}" for network, dataset in FEDKL_ATTACKED),
    "fedkl_ggl_imagenet",
]
FEDKL_TABLE6_ATTACKS = [
    "fedkl_dlg",
    "fedkl_grnn",
    "fedkl_ig",
    "fedkl_ggl",
]
# Whose images the propositions are computed on.
FEDKL_COLOUR_IMAGES = resolve("cifar10", CONFIG.images)
