# What MKOR's rules read.
# Servers whose weights are looked at, by model.
INCONSPICUOUS = {
    "mkor_lenets": ["mkor_code", "mkor_lenet", "mkor_lenet_untouched", "fishing"],
    "mkor_vgg16_100": [
        "mkor_code",
        "mkor_vgg_keep",
        "mkor_vgg",
        "mkor_vgg_untouched",
        "fishing",
    ],
    "mkor_vgg16_1000": ["mkor_code", "mkor_vgg_keep", "fishing"],
}
# Images whose gradients a client samples.
INCONSPICUOUS_TARGETS = {
    "mkor_lenets": "mkor_mnist",
    "mkor_vgg16_100": "mkor_cifar_first",
    "mkor_vgg16_1000": "mkor_photos",
}
LOSSES = [name for name in CONFIG.experiments if name.startswith("mkor_loss_")]
SOTERIA = [name for name in CONFIG.experiments if name.startswith("mkor_soteria_")]


def inconspicuous_targets(wildcards):
    """Images of which a client computes gradients one by one."""
    return TARGETS.format(targets=INCONSPICUOUS_TARGETS[wildcards.model])


def inconspicuous_sent(wildcards):
    """What servers send of a model."""
    return [
        SENT.format(server=server, model=wildcards.model)
        for server in INCONSPICUOUS[wildcards.model]
    ]


def soteria_gradients(defence):
    """Gradient files of the experiments under Soteria (one network or group each), with it or not."""
    return [
        GRADIENT.format(experiment=name, model=CONFIG.experiments[name].models[0], defence=defence)
        for name in SOTERIA
    ]


def loss_cases(kind):
    """Input function: scores of the loss experiments, or what their servers sent."""

    def inputs(wildcards):
        out = []
        for name in LOSSES:
            for path in scores_of(name):
                model = Path(path).parent.parent.name
                sent = SENT.format(server=CONFIG.experiments[name].server, model=model)
                out.append(path if kind == "scores" else sent)
        return out

    return inputs


def loss_words(wildcards):
    """Loss and output bias of each score file, in their order."""
    return [
        {
            "loss": CONFIG.experiments[name].loss,
            "output_bias": CONFIG.servers[CONFIG.experiments[name].server].output_bias,
        }
        for name in LOSSES
        for _ in scores_of(name)
    ]
