# Panels of figures: one attack on one network under one defence, and the files behind it.


def panel(title, experiment, attack, model, defence="none", **more):
    """One attack on one network under one defence, as a figure shows it."""
    return {
        "title": title,
        "experiment": experiment,
        "attack": attack,
        "model": model,
        "defence": defence,
        **more,
    }


def panels_there(panels):
    """Those of `panels` that config.yaml has."""
    return [
        panel
        for panel in panels
        if (entry := CONFIG.experiments.get(panel["experiment"])) is not None
        and panel["attack"] in entry.attacks
        and panel["defence"] in entry.defences
        and any(panel["model"] in CONFIG.members(model) for model in entry.models)
    ]


def panel_path(panel, pattern):
    """File of a panel."""
    entry = CONFIG.experiments[panel["experiment"]]
    model = next(name for name in entry.models if panel["model"] in CONFIG.members(name))
    return pattern.format(
        experiment=panel["experiment"],
        model=model,
        defence=panel["defence"],
        attack=panel["attack"],
    )


def panel_files(panels):
    """Originals, reconstructions and scores of panels, a file of each for each."""
    sets = [CONFIG.experiments[panel["experiment"]].targets for panel in panels]
    return {
        "targets": [TARGETS.format(targets=name) for name in sets],
        "reconstructions": [panel_path(panel, RECONSTRUCTION) for panel in panels],
        "scores": [panel_path(panel, SCORE) for panel in panels],
    }
