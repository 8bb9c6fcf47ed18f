"""MKOR's malicious server (Wang, Velipasalar, Gursoy, section 3 and Algorithm 1)."""

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, PositiveFloat

from gradleak.models.chain import Chain, ConvLayer
from gradleak.servers.base import Arrays, Sent, Server
from gradleak.servers.parameters import check_silent, write_classifier, write_convolutions
from gradleak.servers.plan import plan
from gradleak.servers.secret import REFERENCES
from gradleak.settings.fields import Count, Whole


class MkorServer(Server):
    """Writes paths for the image into convolutions, and nodes for each class into the classifier.

    Its secret tells `gradleak.attacks.mkor.attack.Mkor` where they are.
    """

    method: Literal["mkor"] = "mkor"
    # Eq. 20: β on the paths, Gaussian between considered channels that no path joins, shuffled
    # channels. Or section 3.4.1: magnitude 1 on the paths, zero elsewhere, channels in order.
    convolutions: Literal["inconspicuous", "naive"] = "inconspicuous"
    # Eq. 10 to 13; one node per class and layer, joined by weights of 1, all else zero (section
    # 3.2.2); or the weights as they are: the attack then solves for what all rows have in common.
    classifier: Literal["paired", "naive", "untouched"] = "paired"
    shifts: Whole | None = None  # I, four-direction layers; None for as many as fit
    # β of each convolution, or one for all. The paper gives no values; the authors' code has 1.
    beta: PositiveFloat | Annotated[list[PositiveFloat], Field(min_length=1)] = 1.0
    noise: Annotated[float, Field(ge=0)] = 1e-3  # σ of eq. 20 relative to β
    # Channels without a path, which eq. 20 leaves as they are. ``keep``: literally that; they then
    # leak into the copies. ``noise``: their weights into considered channels are Gaussian too.
    # ``silent``: their biases are low enough for ReLU to give 0 for every image with values in
    # [0, 1], and their weights are not changed.
    spare: Literal["noise", "keep", "silent"] = "noise"
    # σ of eq. 12 relative to the initial limit of the layer, 1/sqrt(inputs).
    sigma: Annotated[float, Field(ge=0)] = 1e-4
    # B, added to the bias of the first class: its probability is near 1, and those of the other
    # classes of the order e^−B.
    output_bias: Annotated[float, Field(ge=0)] = 0.0
    # Pairs of nodes of each class; dropout has to hit all to lose it (section 3.5).
    paths: Count = 1

    def corrupt(self, chain: Chain, weights: Arrays, seed: int) -> Sent:
        """See `gradleak.servers.base.Server`."""
        generator = np.random.default_rng(seed)
        sent = {name: value.copy() for name, value in weights.items()}
        spare = "naive" if self.convolutions == "naive" else self.spare
        if spare == "silent":
            check_silent(chain)
        betas = self.beta if isinstance(self.beta, list) else [self.beta]
        given = chain, sent, plan(chain, self.shifts), generator
        values = write_convolutions(*given, betas=betas, noise=self.noise, spare=spare)
        values["references"] = references(chain, sent)
        values |= write_classifier(
            chain,
            sent,
            values["references"],
            generator,
            kind=self.classifier,
            paths=self.paths,
            sigma=self.sigma,
            output_bias=self.output_bias,
        )
        return sent, values


def options_for(chain: Chain) -> dict[str, Any]:
    """Settings of a server that leaves the classifier as it is; spare channels are silent.

    Where an activation is not ReLU they cannot be, and get noise.
    """
    quiet = all(
        layer.activation.name == "relu" and (layer.bias or layer.normed)
        for layer in chain.convolutions
    )
    beta, noise, spare = (0.5, 1e-4, "silent") if quiet else (1.0, 1e-3, "noise")
    own = {"beta": beta, "noise": noise, "spare": spare}
    return {"method": "mkor", "classifier": "untouched", **own}


def references(chain: Chain, weights: Arrays) -> np.ndarray:
    """Features (3, n) of constant images of the gray levels `REFERENCES`, float64."""
    if all(_keeps_constant(layer) for layer in chain.convolutions):
        return _of_constant_maps(chain, weights)
    import torch

    from gradleak.models.build import load

    images = np.stack([np.full(chain.input, level) for level in REFERENCES])
    module = load(chain, weights, torch.float32)
    with torch.no_grad():
        found: np.ndarray = module.features(torch.from_numpy(images).float()).double().numpy()
    return found


def _keeps_constant(layer: ConvLayer) -> bool:
    """True if a layer maps constant maps to constant maps, whatever else is in the batch."""
    padded = any(layer.shape.padding) and layer.padding_mode != "replicate"
    return not padded and not layer.skip and not layer.normed


def _of_constant_maps(chain: Chain, weights: Arrays) -> np.ndarray:
    """Compute `references` from one number per channel, without a pass or PyTorch's import."""
    values = np.repeat(np.array(REFERENCES)[:, None], chain.input[0], axis=1)
    grid = chain.input[1:]
    for layer in chain.convolutions:
        kernel = weights[f"{layer.name}.weight"].sum(axis=(2, 3), dtype=np.float64)
        z = values @ kernel.T + (weights[f"{layer.name}.bias"] if layer.bias else 0.0)
        values, grid = layer.activation.forward(z), layer.grid
    return np.repeat(values, grid[0] * grid[1], axis=1)
