"""Class fishing (Wen et al. 2022), as MKOR's authors describe it."""

from typing import Literal

import numpy as np
from pydantic import PositiveFloat

from gradleak.errors import ConfigError
from gradleak.models.chain import Chain, LinearLayer
from gradleak.servers.base import Arrays, Sent, Server
from gradleak.settings.fields import Whole


class ClassFishingServer(Server):
    """Restricts the last layer's weights to one class.

    All other rows are zero, and their biases are so high that the class's probability is near 0:
    an image of another class then sends no gradient back through the last layer, and the gradient
    of every layer before is that of the class's images.
    """

    method: Literal["class_fishing"] = "class_fishing"
    target: Whole = 0  # the class
    bias: PositiveFloat = 10.0  # of the other classes, above the fished one's

    def corrupt(self, chain: Chain, weights: Arrays, seed: int) -> Sent:
        """See `gradleak.servers.base.Server`; `seed` is ignored."""
        last = chain.layers[-1]
        assert isinstance(last, LinearLayer)
        if self.target >= last.outputs:
            raise ConfigError(
                f"target: {self.target} is not a class of {chain.name}, which has {last.outputs}; "
                f"choose one from 0 to {last.outputs - 1}."
            )
        if not last.bias:
            raise ConfigError(
                f"{chain.name} ends without a bias, which class fishing raises; give it one."
            )
        sent = {name: value.copy() for name, value in weights.items()}
        others = np.arange(last.outputs) != self.target
        sent[f"{last.name}.weight"][others] = 0.0
        sent[f"{last.name}.bias"][others] = self.bias
        sent[f"{last.name}.bias"][self.target] = 0.0
        return sent, {"target": np.array(self.target)}
