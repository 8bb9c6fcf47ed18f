"""Small networks, batches and servers for tests of MKOR."""

import numpy as np

from chains import conv, shared
from gradleak.attacks.base import AttackerView
from gradleak.models.activations import Activation
from gradleak.models.chain import Chain, LinearSpec
from gradleak.models.files import fingerprint
from gradleak.models.initial import initial_weights
from gradleak.servers.mkor import MkorServer
from gradleak.servers.secret import Secret

CLASSES, CROSS = 4, "cross_entropy"


def network(
    reduce="stride", activation="relu", classes=CLASSES, width=60, side=16, norm="none", dropout=0.0
):
    """Two convolutions that each halve the image, then a classifier of three layers."""
    more = {"padding": 1, "bias": True, "activation": activation, "padding_mode": "replicate"}
    more |= {"norm": norm, "stride": 2} if reduce == "stride" else {"pool": reduce}
    act = Activation(activation)
    hidden = [LinearSpec(width, True, act, dropout=dropout) for _ in range(2)]
    # Room for one shift layer with minima, for two without.
    specs = (conv(10, 3, **more), conv(26, 3, **more), *hidden, LinearSpec(classes))
    return Chain("net", (1, side, side), specs)


def batch(chain, labels, seed=0):
    """Images with values in [0, 1], smooth enough for neighbours to be alike."""
    coarse = np.random.default_rng(seed).uniform(0, 1, (len(labels), chain.input[0], 4, 4))
    factor = chain.input[1] // 4
    return coarse.repeat(factor, 2).repeat(factor, 3)


def noisy(chain, labels, seed=0):
    return np.random.default_rng(seed).uniform(0, 1, (len(labels), *chain.input))


def seen(chain, server, images, labels, loss=CROSS, precision="float64", method="mkor"):
    """What the malicious server sees of one batch."""
    sent, values = server.corrupt(chain, initial_weights(chain, 0), 5)
    gradients = shared(chain, sent, images, labels, precision, loss=loss)
    return received(chain, sent, gradients, values, len(labels), loss, method, server)


def given(server, labels, loss=CROSS, chain=None, **more):
    """What a server sees of images of these labels, and the images."""
    chain = chain or network()
    images = batch(chain, labels)
    return seen(chain, server, images, labels, loss, **more), images


def received(chain, sent, gradients, values, count, loss=CROSS, method="mkor", server=None):
    mark = fingerprint(sent)
    secret = Secret(method, mark, {"shifts": getattr(server, "shifts", None)}, values)
    return AttackerView(chain, sent, gradients, None, 0.0, 1.0, loss, count, None, secret, mark)


NAIVE = MkorServer(convolutions="naive", classifier="naive")
OURS = MkorServer(classifier="untouched", beta=0.05, spare="silent", noise=1e-6)
PAIRED = MkorServer(beta=0.05, spare="silent", noise=1e-6, sigma=1e-6)


def error(found, images, labels):
    """Largest error of each image against the mean of its class's images."""
    labels = np.asarray(labels)
    return {
        label: float(np.abs(found.images[k] - images[labels == label].mean(axis=0)).max())
        for k, label in enumerate(found.classes)
    }
