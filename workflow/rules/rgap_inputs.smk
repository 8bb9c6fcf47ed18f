# What R-GAP's figures read, and what networks and attacks are called in them.
RGAP_NAMES = {
    "rgap_cnn6": "CNN6",
    "rgap_cnn6d": "CNN6-d",
    **{f"rgap_fig2_{name}": f"Network {n} ({name})" for n, name in enumerate("abcde", start=1)},
    "rgap_twin": "Network of full rank",
    "rgap_twin_deficient": "Network that lacks rank",
    "rgap_fig6_one": "One layer",
    "rgap_fig6_bottleneck": "A bottleneck",
    "rgap_fig6_two": "Two full-rank layers",
    "rgap_fig9_base": "Base",
    "rgap_fig9_all": "Every layer wider",
    "rgap_fig9_behind": "Wider behind the critical layer",
}
RGAP_HEADINGS = {
    "rgap_float32": "R-GAP, float32\n(as the paper)",
    "rgap_balanced": "R-GAP",
    "dlg": "DLG",
    "hgap": "H-GAP",
    "gauss_newton": "Gauss-Newton\n(ours)",
    "dlg_near_twin": "DLG, start\nnear the twin",
    "dlg_same_class": "DLG, start of\nthe same class",
    "rgap_resnet_ig": "Inverting Gradients",
}
# The paper hands float32 from layer to layer; figures that compare attacks show both.
RGAP_NOTE = "R-GAP scales the rows of K to the length of those of W (ours)."
RGAP_BOTH = "Balanced: the rows of K have the length of those of W."
RGAP_RESNETS = {  # experiments of a result -> what to call them, and the networks
    "rgap_fig4": {
        "networks": {
            "rgap_resnet18": "ResNet18",
            "rgap_resnet18_cut3": "Variant 1",
            "rgap_resnet18_cut8": "Variant 2",
        },
        "columns": {
            "rgap_fig4": "Trained, evaluation mode",
            "rgap_fig4_training": "Trained, training mode",
            "rgap_fig4_untrained": "Untrained, evaluation mode",
            "rgap_fig4_untrained_training": "Untrained, training mode",
        },
    },
    "rgap_table4": {
        "networks": {
            "rgap_resnet101": "ResNet101",
            "rgap_resnet101_cut3": "Variant 1",
            "rgap_resnet101_cut1": "Variant 2",
        },
        "columns": {"rgap_table4": "Trained, evaluation mode"},
    },
}
# What the config still has of these.
RGAP_RESNETS = {
    name: {
        "networks": {
            m: w for m, w in words["networks"].items() if m in CONFIG.experiments[name].models
        },
        "columns": {e: w for e, w in words["columns"].items() if e in CONFIG.experiments},
    }
    for name, words in RGAP_RESNETS.items()
    if name in CONFIG.experiments
}


def absent(experiment):
    """Input function of a figure whose experiment was taken out of config.yaml."""

    def inputs(wildcards):
        raise WorkflowError(
            f"config.yaml: experiments.{experiment} is missing, and this figure shows it; put it "
            "back, or ask for another figure."
        )

    return inputs


def rgap_inputs(experiment, attacks=RGAP_HEADINGS):
    """Targets, reconstructions and scores of an experiment, as the figures take them."""
    if experiment not in CONFIG.experiments:
        return {"targets": absent(experiment)}
    scores = scores_of(experiment, attacks=attacks)
    return {
        "targets": TARGETS.format(targets=CONFIG.experiments[experiment].targets),
        "scores": scores,
        "reconstructions": [
            path.replace("scores", "reconstructions", 1).removesuffix("csv") + "safetensors"
            for path in scores
        ],
    }


def rgap_words(experiment, attacks, note=RGAP_NOTE, **more):
    """Networks of an experiment, and what networks and attacks are called in a figure.

    `more` replaces headings of `RGAP_HEADINGS`.
    """
    entry = CONFIG.experiments.get(experiment)
    if entry is None:
        return {}
    members = [
        member
        for model in entry.models
        for member in CONFIG.members(model)
        if member in CONFIG.models
    ]
    return {
        "chains": [CONFIG.chain(member).describe() for member in members],
        "names": RGAP_NAMES,
        "attacks": {
            attack: more.get(attack, RGAP_HEADINGS[attack])
            for attack in attacks
            if attack in entry.attacks
        },
        "note": note,
        "defences": {name: noise_words(CONFIG.defences[name]) for name in entry.defences},
    }


def noise_words(defence):
    """A defence in words: how much noise it adds."""
    level = getattr(defence, "level", None)
    if not level:
        return "no noise"
    return f"noise {100 * level:g} %" if defence.relative else f"noise {level:g}"


def resnet_files(result):
    """Scores, trainings and rank analysis behind the ResNets of a figure or table."""
    if result not in RGAP_RESNETS:
        return {"scores": absent(result)}
    return {
        "scores": scores_of(*RGAP_RESNETS[result]["columns"]),
        "trained": trained_of(result),
        "rank": rank_of(result),
    }
