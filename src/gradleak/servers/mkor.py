"""MKOR's malicious server (Wang, Velipasalar, Gursoy, section 3 and Algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PositiveFloat

from gradleak.models.chain import Chain, ConvLayer
from gradleak.servers.base import Server
from gradleak.servers.classifier import ClassifierDesign
from gradleak.servers.convolutions import ConvolutionDesign, check_spare
from gradleak.servers.plan import plan
from gradleak.servers.secret import REFERENCES
from gradleak.settings.fields import Count, Whole


class MkorServer(Server):
    """Writes paths for the image into convolutions, and nodes for each class into the classifier.

    `noise` and `spare` are those of `ConvolutionDesign`; `sigma`, `output_bias` and `paths` those
    of `ClassifierDesign`.
    """

    method: Literal["mkor"] = "mkor"
    convolutions: Literal["inconspicuous", "naive"] = "inconspicuous"  # eq. 20 or section 3.4.1
    classifier: Literal["paired", "naive", "untouched"] = "paired"  # eq. 10 to 13, section 3.2.2
    shifts: Whole | None = None  # I, four-direction layers; None for as many as fit
    # β of each convolution, or one for all. The paper gives no values; the authors' code has 1.
    beta: PositiveFloat | Annotated[list[PositiveFloat], Field(min_length=1)] = 1.0
    noise: Annotated[float, Field(ge=0)] = 1e-3
    spare: Literal["noise", "keep", "silent"] = "noise"
    sigma: Annotated[float, Field(ge=0)] = 1e-4
    output_bias: Annotated[float, Field(ge=0)] = 0.0
    paths: Count = 1

    def corrupt(
        self, chain: Chain, weights: Mapping[str, np.ndarray], seed: int
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """See `gradleak.servers.base.Server`."""
        generator = np.random.default_rng(seed)
        sent = {name: value.copy() for name, value in weights.items()}
        if self.convolutions != "naive":
            check_spare(chain, self.spare)
        beta = (self.beta,) if isinstance(self.beta, int | float) else tuple(self.beta)
        design = ConvolutionDesign(self.convolutions == "naive", beta, self.noise, self.spare)
        values = design.write(chain, sent, plan(chain, self.shifts), generator)
        values["references"] = references(chain, sent)
        classifier = ClassifierDesign(self.classifier, self.sigma, self.output_bias, self.paths)
        return sent, values | classifier.write(chain, sent, values["references"], generator)


def references(chain: Chain, weights: Mapping[str, np.ndarray]) -> np.ndarray:
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


def _of_constant_maps(chain: Chain, weights: Mapping[str, np.ndarray]) -> np.ndarray:
    """Compute `references` from one number per channel, without a pass or PyTorch's import."""
    values = np.repeat(np.array(REFERENCES)[:, None], chain.input[0], axis=1)
    grid = chain.input[1:]
    for layer in chain.convolutions:
        kernel = weights[f"{layer.name}.weight"].sum(axis=(2, 3), dtype=np.float64)
        z = values @ kernel.T + (weights[f"{layer.name}.bias"] if layer.bias else 0.0)
        values, grid = layer.activation.forward(z), layer.grid
    return np.repeat(values, grid[0] * grid[1], axis=1)
