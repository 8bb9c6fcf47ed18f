# What MKOR's figures show: panels (attack, network, defence) of experiments, and their files.
PHOTOS = f"{CONFIG.amount('mkor_photos'):,}" if "mkor_photos" in CONFIG.scales else ""
MKOR_CODE = "MKOR,\nas the authors' code"
MKOR_OURS = "MKOR, ours:\nunder cross-entropy"
# What sets panels apart, by the server of their experiment.
MKOR_NOTES = {
    "mkor_code": (
        "MKOR as the authors' code: weights 0 but on the paths, the loss −output[label] without softmax."
    ),
    "mkor_lenet_untouched": (
        "Ours: weights of the convolutions inconspicuous, none of the classifier changed, "
        "cross-entropy."
    ),
}
MKOR_NOTES["mkor_vgg_untouched"] = MKOR_NOTES["mkor_lenet_untouched"]


def mkor_mnist_panels(attacks, model="mkor_lenet", defence="none", kind="lenet"):
    """Panels of LeNet; `kind` is that of the experiments: lenet or soteria."""
    ours = "mkor_soteria_ours" if kind == "soteria" else "mkor_lenet"
    known = {
        "DLG": ("DLG", f"mkor_{kind}_honest", "mkor_dlg"),
        "iDLG": ("iDLG", f"mkor_{kind}_honest", "mkor_idlg"),
        "GI": ("Inverting gradients (GI)", f"mkor_{kind}_honest", "mkor_gi"),
        "CF": ("Class fishing (CF)", f"mkor_{kind}_fishing", "class_fishing"),
        "MKOR": (MKOR_CODE, f"mkor_{kind}_code", "mkor_direct"),
        "ours": (MKOR_OURS, ours, "mkor_all_direct"),
    }
    return [panel(*known[name], model, defence) for name in attacks]


def mkor_cifar_panels(attacks):
    """Panels of CIFAR-100: VGG-16, where GI and CF search at 32x32, and the modified networks."""
    known = {
        "MKOR": (MKOR_CODE, "mkor_cifar_code", "mkor_smooth", "mkor_vgg16_100"),
        "ours": (MKOR_OURS, "mkor_cifar", "mkor_all_smooth", "mkor_vgg16_100"),
        "GI": ("Inverting gradients (GI)\nat 32×32", "mkor_cifar_honest", "mkor_gi_small"),
        "CF": ("Class fishing (CF)\nat 32×32", "mkor_cifar_fishing", "class_fishing"),
        "modified": (
            "MKOR, modified network\nof the authors' code",
            "mkor_cifar_modified",
            "mkor",
            "mkor_modified_100",
        ),
        "strided": (
            "MKOR, that of the text:\nstrides for pools",
            "mkor_cifar_code_strided",
            "mkor_native",
            "mkor_vgg16_100_strided",
        ),
    }
    small = ("mkor_vgg16_100_searched",)
    return [panel(*known[name], *(small if len(known[name]) == 3 else ())) for name in attacks]


# 1,000 photos: both networks of the authors' code, without and with noise.
MKOR_PHOTO_PANELS = [
    panel(f"MKOR, {name},\n{noise}", experiment, attack, model, defence)
    for experiment, attack, model, name in (
        ("mkor_photos_code", "mkor_smooth", "mkor_vgg16_1000", "VGG-16"),
        ("mkor_photos_modified", "mkor", "mkor_modified_1000", "modified network"),
    )
    for defence, noise in (("none", "no noise"), ("noise_ten", "noise 10 %"))
]
# Then the text's network.
MKOR_TEXT_PANELS = [
    panel(f"MKOR, {name},\nstrides for pools", *found, "mkor_vgg16_1000_strided")
    for name, *found in (
        ("the text's network", "mkor_photos_strided", "mkor"),
        ("ours: cross-entropy", "mkor_photos", "mkor_all"),
    )
]


def mkor_inputs(wildcards):
    """Originals, reconstructions and scores of a figure's panels, a file of each for each."""
    panels = MKOR_FIGURES[int(wildcards.number)]["panels"]
    if panels[0] not in panels_there(panels):
        return absent(panels[0]["experiment"])(wildcards)
    return panel_files(panels_there(panels))


def mkor_words(wildcards):
    """Title, panels and notes of a figure."""
    figure = MKOR_FIGURES[int(wildcards.number)]
    there = panels_there(figure["panels"])
    number = f"(MKOR Figure {wildcards.number})"
    return {
        "title": f"{figure['title']} {number}",
        "panels": there,
        "batch": figure["batch"],
        "shown": figure.get("shown", []),
        "note": "".join(say(there) for say in MKOR_SAID),
        "drawn": mkor_drawn(there[0], figure["batch"]) if there else "",
    }


def mkor_notes(panels):
    """How MKOR's panels differ, in words."""
    servers = [CONFIG.experiments[panel["experiment"]].server for panel in panels]
    return " ".join(dict.fromkeys(MKOR_NOTES[name] for name in servers if name in MKOR_NOTES))


def mkor_native(panels):
    """What attacks know of enlarged images, in words."""
    if not any("native" in panel["attack"] for panel in panels):
        return ""
    return " With strides for pools pixels were repeated, and the attack is told so."


def mkor_smoothed(panels):
    """Which images passed a filter, in words."""
    sides = {amounts_of_attack(panel["attack"]).get("smooth") for panel in panels} - {None}
    return "".join(
        f" Images from VGG-16 with pools pass a {side}×{side} filter." for side in sorted(sides)
    )


def mkor_budgets(panels):
    """How long attacks that search were let run, in words."""
    names = {"mkor_dlg": "DLG", "mkor_idlg": "iDLG", "mkor_gi": "GI", "mkor_gi_small": "GI"}
    names |= {"class_fishing": "CF"}
    used = {names[p["attack"]]: p["attack"] for p in panels if p["attack"] in names}
    said = [f"{name} {amounts_of_attack(attack)['iterations']:,}" for name, attack in used.items()]
    return f" Iterations: {', '.join(said)}." if said else ""


MKOR_SAID = (mkor_notes, mkor_native, mkor_smoothed, mkor_budgets)


def mkor_drawn(panel, batch):
    """How the images of a batch of a panel were chosen, in words."""
    entry = CONFIG.targets[CONFIG.experiments[panel["experiment"]].targets]
    if entry.relabel and batch >= CONFIG.amount(entry.count):
        return "one of each class, labels drawn at random since there is one photo a class at hand"
    return {"random": "drawn at random", "unique": "one of each class"}.get(entry.draw, "")


def mkor_code(wildcards):
    """Code of the module that draws a figure."""
    return code(f"gradleak.figures.{MKOR_FIGURES[int(wildcards.number)]['figure']}")


def mkor_module(wildcards):
    """Module that draws a figure."""
    return MKOR_FIGURES[int(wildcards.number)]["figure"]


MKOR_SINGLE = ["MKOR", "ours", "GI", "CF"]
MKOR_ALL = ["DLG", "iDLG", "GI", "CF", "MKOR", "ours"]
MKOR_MORE = ["MKOR", "ours", "modified", "strided", "GI", "CF"]
MKOR_ANOTHER = (
    "Another batch of CIFAR-100, from VGG-16 and the modified network",
    mkor_cifar_panels(["MKOR", "modified"]),
)
MKOR_BLOCKS = {
    3: ("A batch of MNIST from LeNet-5", mkor_mnist_panels(MKOR_SINGLE)),
    4: ("A batch of CIFAR-100 from VGG-16", mkor_cifar_panels(MKOR_SINGLE)),
    6: ("A batch of MNIST from LeNet-5", mkor_mnist_panels(MKOR_ALL)),
    7: (
        "A batch of MNIST from the modified LeNet of the authors' code",
        [
            *mkor_mnist_panels(MKOR_ALL, "mkor_lenet_code"),
            panel(
                "MKOR, strides for pools,\nas the text has it",
                "mkor_lenet_code",
                "mkor_direct",
                "mkor_lenet_strided",
            ),
        ],
    ),
    8: (
        "A batch of MNIST from LeNet-5, noise of 1 % on the gradient",
        mkor_mnist_panels(MKOR_ALL, defence="noise_large"),
    ),
    9: (
        "A batch of MNIST from LeNet-5, Soteria with 30 % pruned",
        [
            *mkor_mnist_panels(MKOR_ALL, defence="soteria", kind="soteria"),
            panel(
                "MKOR, the modified LeNet\nof the authors' code",
                "mkor_soteria_code",
                "mkor_direct",
                "mkor_lenet_code",
                "soteria",
            ),
        ],
    ),
    11: MKOR_ANOTHER,
    12: MKOR_ANOTHER,
    13: MKOR_ANOTHER,
    14: (f"{PHOTOS} photos in one gradient", [*MKOR_PHOTO_PANELS, *MKOR_TEXT_PANELS]),
    15: (
        f"{PHOTOS} photos in one gradient, classes repeat",
        MKOR_PHOTO_PANELS,
    ),
}
MKOR_BATCHES = {11: 1, 12: 2, 13: 3, 15: 1, 18: 1}
MKOR_SINGLES = {
    5: ("Images of Figure 4, enlarged", mkor_cifar_panels(MKOR_SINGLE)),
    16: ("Images of Figure 3, enlarged", mkor_mnist_panels(MKOR_SINGLE)),
    17: ("Images of Figure 4, enlarged, and the modified networks", mkor_cifar_panels(MKOR_MORE)),
    18: ("Images of Figure 15, enlarged", MKOR_PHOTO_PANELS),
}
MKOR_FIGURES = {
    number: {
        "figure": name,
        "title": title,
        "panels": panels,
        "batch": MKOR_BATCHES.get(number, 0),
    }
    for name, group in (("mkor_blocks", MKOR_BLOCKS), ("mkor_singles", MKOR_SINGLES))
    for number, (title, panels) in group.items()
}
MKOR_FIGURES[10] = {
    "figure": "mkor_sweep",
    "title": "CIFAR-100 from VGG-16, batches of at most N classes",
    "panels": [
        panel(f"N = {n}", f"mkor_sweep_{n}", "mkor_smooth", "mkor_vgg16_100", classes=n)
        for n in (1, 10, 25, 50, 75, 100)
    ],
    "batch": 0,
    "shown": [1, 50, 100],
}
