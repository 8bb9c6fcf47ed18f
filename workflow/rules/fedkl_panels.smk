# What FedKL's figures show: panels of experiments, curves of trainings, and what they are called.
FEDKL_NETWORKS = {
    "lenet": "LeNet",
    "resnet20": "ResNet-20",
    "resnet32": "ResNet-32",
    "resnet18": "ResNet-18",
    "resnet34": "ResNet-34",
    "vgg16": "VGG-16",
}
FEDKL_SMALL = ("lenet", "resnet20", "resnet32")  # trained on images as they are stored
FEDKL_DATASETS = {
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet": "ILSVRC",
}
FEDKL_METHODS = {
    "dlg": "DLG",
    "grnn": "GRNN",
    "ig": "IG",
    "ggl": "GGL",
    "unlock": "closed form",
}
FEDKL_LOCKS = {"": "w/o KL", "_bn": "w/ BN", "_kl": "w/ KL"}  # by the end of a model's id
FEDKL_ATTACKED = [  # columns of Table IV
    *(("lenet", dataset) for dataset in ("mnist", "cifar10", "cifar100")),
    *(("resnet20", dataset) for dataset in ("mnist", "cifar10", "cifar100")),
    *(("resnet18", dataset) for dataset in ("cifar10", "cifar100", "imagenet")),
]
# Rows of Table VII, what the client shares of its lock: the end of an experiment's id.
FEDKL_SHARED = {"Key": "_key", "Lock": "_gradient", "Both": "_both", "Neither": ""}
FEDKL_SHARING = [  # and its columns
    *(("lenet", dataset, "grnn") for dataset in ("mnist", "cifar10", "cifar100")),
    *(("resnet18", dataset, "grnn") for dataset in ("cifar10", "cifar100", "imagenet")),
    ("resnet18", "imagenet", "ggl"),
]
FEDKL_ADAPTIVE = [  # lines of the figure of attackers who know the lock: network, data set, model, lock
    *(
        (words, dataset, f"lenet_{dataset}", f"lenet_{dataset}", lock)
        for words, lock in (("LeNet, ReLU lock", "_kl"), ("LeNet, Sigmoid lock", "_kls"))
        for dataset in ("mnist", "cifar10")
    ),
    ("LeNet, trained, ReLU lock", "mnist", "lenet_trained", "trained_lenet", "_kl"),
    *(
        ("ResNet-20, Sigmoid lock", dataset, f"resnet20_{dataset}", f"resnet20_{dataset}", "_kl")
        for dataset in ("mnist", "cifar10")
    ),
]
# What such an attacker has: words on the axis, ends of the ids of experiment and attack.
FEDKL_CASES = {
    "no lock": ("no\nlock", "", ""),
    "guess": ("guess", "", ""),
    "fit": ("fit\nγ, β", "", "_fit"),
    "moments": ("mo-\nments", "", ""),
    "key": ("key", "_key", ""),
    "gradient": ("lock's\ngradi-\nent", "_gradient", ""),
    "read": ("key\nread", "_gradient", "_fit"),
    "both": ("both", "_both", ""),
}
FEDKL_NOTE = (
    "w/o KL: plain network; w/ KL: with the key-lock on its first convolution, of which the "
    "attacker has neither the key nor a gradient."
)


def fedkl_attack(experiment, method, end=""):
    """Id of an attack in an experiment: of settings for one network, where there are such."""
    network = experiment.split("_")[1]
    own = f"fedkl_{method}_{network}{end}"
    entry = CONFIG.experiments.get(experiment)
    return own if entry and own in entry.attacks else f"fedkl_{method}{end}"


def fedkl_panel(network, dataset, method, /, shared="", lock="", **more):
    """An attack on a network: `shared` and `lock` end the ids of experiment and model.

    GGL has experiments and networks of its own.
    """
    network = "ggl" if method == "ggl" else network
    experiment = f"fedkl_{network}_{dataset}{shared}"
    end = f"_{dataset}" if (method, dataset) == ("ggl", "cifar10") else ""
    attack = fedkl_attack(experiment, method, end)
    return panel("", experiment, attack, f"fedkl_{network}_{dataset}{lock}", **more)


def fedkl_heading(dataset):
    """A data set as a column is headed."""
    return FEDKL_DATASETS[dataset].replace("CIFAR", "C")


def fedkl_table4():
    """Rows, columns and panels of Table IV."""
    rows, panels = [], []
    for method in ("dlg", "grnn", "ig"):
        group = FEDKL_METHODS[method]
        rows.append({"name": "True", "group": group, "original": True})
        for lock, name in FEDKL_LOCKS.items():
            # The text tries DLG alone on LeNet with a norm.
            if lock == "_bn" and method != "dlg":
                continue
            panels += [
                fedkl_panel(network, dataset, method, lock=lock, row=len(rows), column=column)
                for column, (network, dataset) in enumerate(FEDKL_ATTACKED)
            ]
            rows.append({"name": name, "group": group})
    columns = [
        {"name": fedkl_heading(dataset), "group": FEDKL_NETWORKS[network]}
        for network, dataset in FEDKL_ATTACKED
    ]
    note = f"{FEDKL_NOTE} w/ BN: LeNet with a batch norm in the place of the lock."
    return {"rows": rows, "columns": columns, "panels": panels, "note": note}


def fedkl_table5():
    """Columns and panels of Table V, whose rows are images."""
    sets = ("imagenet", "cifar10")
    columns = [
        {"name": name, "original": name == "True", "group": FEDKL_DATASETS[dataset]}
        for dataset in sets
        for name in ("True", "w/o KL", "w/ KL")
    ]
    panels = [
        fedkl_panel("resnet18", dataset, "ggl", lock=lock, column=3 * place + column)
        for place, dataset in enumerate(sets)
        for column, lock in ((1, ""), (2, "_kl"))
    ]
    note = (
        f"{FEDKL_NOTE} Norms in evaluation mode. The generator of ILSVRC's photos has seen none of the "
        "class, that of CIFAR-10 (ours) has."
    )
    return {"columns": columns, "panels": panels, "note": note}


def fedkl_table7():
    """Rows, columns and panels of Table VII."""
    panels = [
        fedkl_panel(network, dataset, method, shared, "_kl", row=row, column=column)
        for row, shared in enumerate(FEDKL_SHARED.values())
        for column, (network, dataset, method) in enumerate(FEDKL_SHARING)
    ]
    columns = [
        {
            "name": fedkl_heading(dataset),
            "group": f"{FEDKL_NETWORKS[network]}, {FEDKL_METHODS[method]}",
        }
        for network, dataset, method in FEDKL_SHARING
    ]
    rows = [*({"name": name} for name in FEDKL_SHARED), {"name": "True", "original": True}]
    note = (
        "Networks with the key-lock on their first convolution. Shared with the server beside the "
        "other gradients: the private key, the gradient of the lock's weights, both, or neither "
        "(as in Table IV)."
    )
    return {"rows": rows, "columns": columns, "panels": panels, "note": note}


def fedkl_adaptive():
    """Panels of attackers who know something of the lock, or fit what it does."""
    return [
        panel(
            "",
            experiment,
            fedkl_attack(experiment, method, end),
            f"fedkl_{model}{'' if case == 'no lock' else lock}",
            network=words,
            dataset=FEDKL_DATASETS[dataset],
            method=FEDKL_METHODS[method],
            case=case,
        )
        for words, dataset, run, model, lock in FEDKL_ADAPTIVE
        for method in ("dlg", "grnn", "ig", "unlock")
        for case, (_, shared, end) in FEDKL_CASES.items()
        if (experiment := f"fedkl_{run}{shared}")
        # The closed form needs nothing of the lock, and has no other case.
        and (method == "unlock") == (case == "moments")
    ]


FEDKL_TITLES = {
    "table4": "Reconstructions without and with key-lock (FedKL Table IV)",
    "table5": "GGL on ResNet-18 (FedKL Table V)",
    "table7": "What a client shares of its key-lock (FedKL Table VII)",
}
FEDKL_WANTED = {"table4": fedkl_table4(), "table5": fedkl_table5(), "table7": fedkl_table7()}
# What the config has of these.
FEDKL_GRIDS = {
    name: {**grid, "title": FEDKL_TITLES[name], "panels": there}
    for name, grid in FEDKL_WANTED.items()
    if (there := panels_there(grid["panels"]))
}
FEDKL_ATTACKERS = panels_there(fedkl_adaptive())


def fedkl_curves(places):
    """Central trainings of networks that config.yaml has, with and without key-lock.

    `places` are (network, data set, what the figure has to know of the place).
    """
    return [
        {"training": training, "model": model, "lock": bool(lock), **place}
        for network, dataset, place in places
        for lock in ("", "_kl")
        if (training := f"fedkl_central_{dataset}" + ("" if network in FEDKL_SMALL else "_large"))
        in CONFIG.trainings
        and (model := f"fedkl_trained_{network}_{dataset}{lock}") in CONFIG.models
    ]


FEDKL_TABLE2 = fedkl_curves(
    (network, dataset, {"row": row, "column": column})
    for row, dataset in enumerate(("cifar10", "cifar100"))
    for column, network in enumerate(("resnet20", "resnet32", "resnet18", "resnet34", "vgg16"))
)
# Networks and data sets of Figure 4 that are trained both with a lock and without.
FEDKL_FIG4 = [
    place
    for network in ("resnet20", "resnet18")
    for dataset in ("cifar10", "cifar100")
    if len(fedkl_curves([place := (network, dataset, {})])) == 2
]
FEDKL_FIG4_CURVES = fedkl_curves(
    (network, dataset, {"panel": panel}) for panel, (network, dataset, _) in enumerate(FEDKL_FIG4)
)


def fedkl_images(dataset):
    """What stands in for a data set in this run, in words."""
    shown = resolve(dataset, CONFIG.images)
    return "" if shown == dataset else f"(here {shown})"


def fedkl_side(model):
    """Side of the images that a network takes, in words."""
    side = CONFIG.chain(model).input[1]
    return f"{side}×{side}"


def trained_with(model):
    """The group that a network is trained in, one job for all of it; itself where there is none."""
    groups = [group for group, members in CONFIG.groups.items() if model in members]
    return next((group for group in groups if group.startswith("fedkl_")), model)


def trained_file(entry, end=".safetensors"):
    """A file of a training: weights, or what else has their name."""
    path = TRAINED.format(training=entry["training"], model=trained_with(entry["model"]))
    return path.removesuffix(".safetensors") + end


def fedkl_table2_words():
    """Title, rows, columns and curves of Table II."""
    networks = ("resnet20", "resnet32", "resnet18", "resnet34", "vgg16")
    sides = {entry["column"]: fedkl_side(entry["model"]) for entry in FEDKL_TABLE2}
    return {
        "title": "Central training with and without key-lock (FedKL Table II)",
        "note": "w/ KL: with the key-lock on the first convolution; w/o KL: plain network.",
        "rows": [
            {"name": FEDKL_DATASETS[dataset], "below": fedkl_images(dataset)}
            for dataset in ("cifar10", "cifar100")
        ],
        "columns": [
            {"name": FEDKL_NETWORKS[network], "below": sides.get(column, "")}
            for column, network in enumerate(networks)
        ],
        "curves": FEDKL_TABLE2,
    }


def fedkl_fig4_words():
    """Title, panels and curves of Figure 4."""
    return {
        "title": "What leaves the first norm, with and without key-lock (FedKL Figure 4)",
        "note": "",
        "panels": [
            {
                "row": f"{FEDKL_NETWORKS[network]}, {FEDKL_DATASETS[dataset]}",
                "images": " ".join(filter(None, [FEDKL_DATASETS[dataset], fedkl_images(dataset)])),
            }
            for network, dataset, _ in FEDKL_FIG4
        ],
        "curves": FEDKL_FIG4_CURVES,
    }


def fedkl_fig4_cases():
    """What the table behind Figure 4 has to know of each panel, beside its files."""
    plain = [entry for entry in FEDKL_FIG4_CURVES if not entry["lock"]]
    return [
        {
            "row": f"{FEDKL_NETWORKS[network]}, {FEDKL_DATASETS[dataset]}",
            "dataset": resolve(CONFIG.trainings[entry["training"]].dataset, CONFIG.images),
            "settings": settings("trainings", entry["training"]),
            "networks": [entry["model"], f"{entry['model']}_kl"],
        }
        for (network, dataset, _), entry in zip(FEDKL_FIG4, plain, strict=True)
    ]


def fedkl_fig4_files(wildcards):
    """Data, networks and what clients kept, a folder, of each panel of Figure 4."""
    if not FEDKL_FIG4:
        return missing_training("fedkl_central_cifar10")
    plain, locked = (
        [entry for entry in FEDKL_FIG4_CURVES if entry["lock"] == lock] for lock in (False, True)
    )
    return {
        "data": [dataset_of(entry["training"]) for entry in plain],
        "plain": [trained_file(entry) for entry in plain],
        "locked": [trained_file(entry) for entry in locked],
        "clients": [
            CLIENTS.format(training=entry["training"], model=trained_with(entry["model"]))
            for entry in locked
        ],
    }


def missing_training(name):
    """Refuse a figure whose trainings were taken out of config.yaml."""
    raise WorkflowError(
        f"config.yaml: trainings.{name} or its models are missing, and this figure shows them; put "
        "them back, or ask for another figure."
    )


def curve_files(entries):
    """Input function: curves and summaries of trainings."""

    def inputs(wildcards):
        if not entries:
            return missing_training("fedkl_central_cifar10")
        return {
            "curves": [trained_file(entry, ".curve.csv") for entry in entries],
            "summaries": [trained_file(entry, ".csv") for entry in entries],
        }

    return inputs


def fedkl_grid_files(wildcards):
    """Originals, reconstructions and scores of a grid of pictures."""
    if wildcards.grid not in FEDKL_GRIDS:
        return absent(FEDKL_WANTED[wildcards.grid]["panels"][0]["experiment"])(wildcards)
    return panel_files(FEDKL_GRIDS[wildcards.grid]["panels"])


def fedkl_grid_words(wildcards):
    """Title, rows, columns and panels of a grid of pictures."""
    return FEDKL_GRIDS.get(wildcards.grid, {})


def fedkl_adaptive_files(wildcards):
    """Originals, reconstructions and scores of attackers who know the lock or fit it."""
    if not FEDKL_ATTACKERS:
        return absent(fedkl_adaptive()[0]["experiment"])(wildcards)
    return panel_files(FEDKL_ATTACKERS)


FEDKL_ADAPTIVE_WORDS = {
    "title": "Attackers who know the key-lock, or fit what it does",
    "note": (
        "no lock: plain network. With the key-lock on the first convolution, what the attacker has "
        "of it: guess: the lock weights that the server sent, and a key of his own; fit: γ and β are "
        "searched for from there, together with the image; moments: nothing, a closed form takes γ and "
        "β from what the layers behind the lock give away; key, lock's gradient, both: what the "
        "client shared, under a guessed key where it is not; key read: the lock's gradient, from "
        "which the key follows."
    ),
    "cases": {case: words for case, (words, *_) in FEDKL_CASES.items()},
    "panels": FEDKL_ATTACKERS,
}
