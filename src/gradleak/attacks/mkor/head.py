"""The classifier alone and its gradients for each class, in NumPy, which starts faster."""

import numpy as np

from gradleak.attacks.base import Arrays
from gradleak.models.chain import Chain, LinearLayer
from gradleak.models.losses import RAW

# Number of weights up to which everything is computed in float64.
SMALL = 5_000_000


class Head:
    """Fully connected layers with known weights, without dropout, under one of `OF_CLASSES`."""

    def __init__(self, chain: Chain, weights: Arrays, loss: str) -> None:
        self.layers = [layer for layer in chain.layers if isinstance(layer, LinearLayer)]
        # The layer whose gradient is inverted, and the number of classes N.
        self.first, self.classes, self.loss = self.layers[0], self.layers[-1].outputs, loss
        size = sum(layer.inputs * layer.outputs for layer in self.layers)
        self._dtype = np.dtype("float64" if size <= SMALL else "float32")
        self._weights = [
            weights[f"{layer.name}.weight"].astype(self._dtype, copy=False) for layer in self.layers
        ]
        self._biases = [
            weights.get(f"{layer.name}.bias", np.zeros(layer.outputs)).astype(self._dtype)
            for layer in self.layers
        ]

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """Return p (B, N) of features (B, n): softmax of the outputs; 0 under raw logits."""
        linear = self._linear(features)[-1].astype(np.float64)
        output = self.layers[-1].activation.forward(linear)
        if self.loss == RAW:
            return np.zeros(output.shape)
        exponent = np.exp(output - output.max(axis=1, keepdims=True))
        found: np.ndarray = exponent / exponent.sum(axis=1, keepdims=True)
        return found

    def deltas(self, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return dℓ/dz (B, R) of the first layer at features (B or 1, n) for labels (B,)."""
        linear = self._linear(features)
        back = np.broadcast_to(self.probabilities(features), (len(labels), self.classes)).copy()
        back[np.arange(len(labels)), labels] -= 1.0
        back = back.astype(self._dtype)
        for number in reversed(range(len(self.layers))):
            slope = self.layers[number].activation.derivative(linear[number])
            back = back * slope.astype(self._dtype)
            if number:
                back = back @ self._weights[number]
        return back.astype(np.float64)

    def _linear(self, features: np.ndarray) -> list[np.ndarray]:
        """Linear outputs z (B, outputs) of each layer."""
        x, out = features.astype(self._dtype, copy=False), list[np.ndarray]()
        for layer, weight, bias in zip(self.layers, self._weights, self._biases, strict=True):
            out.append(x @ weight.T + bias)
            x = layer.activation.forward(out[-1])
        return out
