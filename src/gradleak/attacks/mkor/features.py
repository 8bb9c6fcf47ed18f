"""Information of features on pixels, layer by layer (MKOR sections 3.4.2 and 3.6)."""

import numpy as np

from gradleak.attacks.base import Arrays
from gradleak.models.chain import Chain
from gradleak.servers.plan import Plan
from gradleak.servers.secret import REFERENCES, Secret

# Sigmoid is inverted inside (ε, 1 − ε).
MARGIN = 1e-6
# A feature that changes by less than this from black to white lies outside the image.
LEAST_SPAN = 0.05


def describers(
    chain: Chain, weights: Arrays, plan: Plan, secret: Secret, features: np.ndarray
) -> np.ndarray:
    """Return the value that each considered feature implies for its region, in [0, 1] if exact.

    Layers are inverted from the last to the first: the inverse of the activation, minus the bias,
    over β; pools commute with this where their region has a constant value. Remaining noise, biases
    and padding are removed with the known features of a black and a white image.

    `features` (B, n) are inputs of the first fully connected layer. The result is
    (B, channels, H, W), NaN where a feature has no information. Channels of sign −1 hold the
    region's minimum, the others its maximum or mean.
    """
    gray = secret.values["references"]
    black, white, own = (
        _undone(chain, weights, plan, secret, each) for each in (gray[:1], gray[2:], features)
    )
    span = white - black
    span[np.abs(span) < LEAST_SPAN] = np.nan
    low, high = REFERENCES[0], REFERENCES[2]
    return low + (high - low) * (own - black) / span


def stretched(values: np.ndarray, plan: Plan) -> np.ndarray:
    """Stretch the range of each colour of describers (B, channels, H, W) to [0, 1].

    Behind a normalisation brightness and contrast are those of the batch, unknown but equal for
    all images (section 3.5). Maxima and minima are stretched separately.
    """
    out = values.copy()
    for colour, sign in {*zip(plan.colour.tolist(), plan.sign.tolist(), strict=True)}:
        group = (plan.colour == colour) & (plan.sign == sign)
        low, high = np.nanmin(values[:, group]), np.nanmax(values[:, group])
        out[:, group] = (values[:, group] - low) / (high - low)
    return out


def _undone(
    chain: Chain, weights: Arrays, plan: Plan, secret: Secret, features: np.ndarray
) -> np.ndarray:
    """Return `describers` before correction by the two references."""
    layers = chain.convolutions
    values = considered(chain, secret, features)
    # Index of each final channel's ancestor among the considered channels of each layer.
    own = np.arange(values.shape[1])
    for number in reversed(range(len(layers))):
        layer, step = layers[number], plan.steps[number]
        chosen = secret.values[f"channel{number + 1}"][own]
        before, tap = step.parent[own], step.tap[own]
        source = before if number == 0 else secret.values[f"channel{number}"][before]
        weight = weights[f"{layer.name}.weight"][chosen, source, tap[:, 0], tap[:, 1]]
        bias = weights[f"{layer.name}.bias"][chosen] if layer.bias else np.zeros(len(chosen))
        if layer.activation.name == "sigmoid":
            inside = np.clip(values, MARGIN, 1.0 - MARGIN)
            values = np.log(inside / (1.0 - inside))
        if layer.normed:
            # The batch's mean and deviation stay unknown: `stretched` makes up for them.
            scale, shift = (weights[f"{layer.name}_norm.{kind}"] for kind in ("weight", "bias"))
            values = (values - shift[chosen][:, None, None]) / scale[chosen][:, None, None]
        values = (values - bias[:, None, None].astype(np.float64)) / weight[:, None, None]
        own = before
    return values


def grid(chain: Chain) -> tuple[int, int]:
    """(H, W) of the classifier's input."""
    return chain.convolutions[-1].grid if chain.convolutions else chain.input[1:]


def considered(chain: Chain, secret: Secret, features: np.ndarray) -> np.ndarray:
    """Return the considered channels (B, channels, H, W) of features (B, n)."""
    maps = features.reshape(len(features), -1, *grid(chain))
    layers = len(chain.convolutions)
    return maps[:, secret.values[f"channel{layers}"]] if layers else maps


def restored(chain: Chain, secret: Secret, values: np.ndarray) -> np.ndarray:
    """Return features (n,) of considered channels (channels, H, W), 0 for all others."""
    if not chain.convolutions:
        return values.ravel()
    out = np.zeros((chain.convolutions[-1].shape.filters, *values.shape[1:]))
    out[secret.values[f"channel{len(chain.convolutions)}"]] = np.nan_to_num(values)
    return out.ravel()
