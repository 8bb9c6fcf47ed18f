"""Errors of an attacker's computations against the truth, claim by claim (FedKL III-A, III-B)."""

from dataclasses import dataclass

import numpy as np
from scipy.special import softmax

from gradleak.attacks.closed_form.fully_connected import from_delta
from gradleak.models.activations import Activation
from gradleak.models.chain import Chain
from gradleak.models.locks import names_of, public
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint
from papers.fedkl.proofs import networks
from papers.fedkl.proofs.inference import (
    EPSILON,
    Affine,
    Arrays,
    Head,
    Normalised,
    head,
    regression,
    through_convolution,
    through_norm,
)
from papers.fedkl.proofs.networks import CONV, HEAD, Inside, Net

Measures = dict[str, float]
SAMPLES = 8
NOT_GIVEN = float("nan")


@dataclass(frozen=True)
class Run:
    """One image (C, H, W) in [0, 1], its label, and the seed of the weights."""

    image: np.ndarray
    label: int
    seed: int


def relative(found: np.ndarray, true: np.ndarray) -> float:
    """||found − true|| / ||true||."""
    return float(np.linalg.norm(found - true) / np.linalg.norm(true))


def regressions(run: Run) -> dict[str, Measures]:
    """Claim 1, eq. (3): one sample from the gradient of a linear regression."""
    generator = np.random.default_rng((run.seed, networks.OTHERS))
    x = run.image.ravel().astype(np.float64)
    theta = generator.standard_normal(x.size) / np.sqrt(x.size)
    bias, target = generator.standard_normal(2)
    others = generator.random((SAMPLES - 1, x.size))
    inputs, targets = np.vstack([x, others]), generator.standard_normal(SAMPLES)
    many, _ = networks.regression_gradient(theta, 0.0, inputs, targets)
    summed = 2 / SAMPLES * inputs.T @ (inputs @ theta - targets)
    sample = x[None], np.array([target])
    one, _ = networks.regression_gradient(theta, 0.0, *sample)
    biased, d_bias = networks.regression_gradient(theta, bias, *sample)
    plain = regression(theta, one).input
    free = SAMPLES * (x.size + 1) - x.size
    scaled = relative(plain * (plain @ x) / (plain @ plain), x)
    alone = relative(2 * x * (theta @ x - target), one)
    out: dict[str, Measures] = {
        f"{SAMPLES} samples": {"eq3": relative(summed, many), "free": free},
        "1 sample": {"eq3": alone, "free": 1, "input_error_scaled": scaled},
    }
    for words, found in (
        ("bias", regression(theta, biased, bias=bias, bias_gradient=d_bias)),
        ("output known", regression(theta, one, output=float(theta @ x))),
    ):
        errors = {"free": 0, "input_error": relative(found.input, x)}
        out[f"1 sample, {words}"] = errors | {"target_error": abs(found.target - target)}
    return out


def _head(found: Head, label: int, probabilities: np.ndarray) -> Measures:
    return {
        "label_wrong": float(found.label != label),
        "negative": found.negative,
        "probabilities_error": relative(found.probabilities, probabilities),
    }


def _double(arrays: Arrays) -> dict[str, np.ndarray]:
    return {name: value.astype(np.float64) for name, value in arrays.items()}


def two_layers(run: Run) -> Measures:
    """Claim 2, eq. (4) to (17): label, probabilities, hidden values and input."""
    chain = networks.two_layers(run.image.shape)
    weights = networks.weights_of(chain, run.seed)
    gradients = networks.shared(chain, weights, run.image, run.label, "float64")
    w, x = _double(weights), run.image.ravel().astype(np.float64)
    u = w["fc1.weight"] @ x + w["fc1.bias"]
    a = np.maximum(u, 0.0)
    residual = softmax(w["fc2.weight"] @ a + w["fc2.bias"])
    found = head(weights, gradients, "fc2")
    out = _head(found, run.label, residual)
    residual[run.label] -= 1.0
    delta = (w["fc2.weight"].T @ residual) * (u > 0)
    return out | {
        "eq7": relative(np.outer(residual, a), gradients["fc2.weight"]),
        "eq8": relative(residual, gradients["fc2.bias"]),
        "eq12": relative(np.outer(delta, x), gradients["fc1.weight"]),
        "eq15": relative(delta, gradients["fc1.bias"]),
        "features_error": relative(found.features, a),
        "input_error": relative(from_delta(gradients["fc1.weight"], gradients["fc1.bias"]), x),
    }


def convolution(net: Net, run: Run) -> Measures:
    """Claim 3, eq. (18) to (23): label, features, ∂L/∂u and input of a convolution."""
    chain, weights, gradients = net.captured(run.image, run.label, run.seed, norm=False)
    layer = chain.convolutions[0]
    w, x = _double(weights), run.image.ravel().astype(np.float64)
    u = Convolution(w[f"{CONV}.weight"], layer.shape).apply(x).reshape(layer.shape.filters, -1)
    u = u + w[f"{CONV}.bias"][:, None]
    a = layer.activation.forward(u).ravel()
    probabilities = softmax(w[f"{HEAD}.weight"] @ a + w[f"{HEAD}.bias"])
    found = head(weights, gradients, HEAD)
    residual = probabilities.copy()
    residual[run.label] -= 1.0
    delta = (w[f"{HEAD}.weight"].T @ residual).reshape(u.shape) * layer.activation.derivative(u)
    shaped = delta.reshape(layer.shape.filters, *layer.shape.output)
    summed = GradientConstraint(shaped, layer.shape).apply(x)
    solved = through_convolution(layer, weights, gradients, found)
    return _head(found, run.label, probabilities) | {
        "eq21": relative(summed, gradients[f"{CONV}.weight"].ravel()),
        "eq23": relative(delta.sum(axis=1), gradients[f"{CONV}.bias"]),
        "features_error": relative(found.features, a),
        "delta_error": relative(solved.delta, delta),
        "free": solved.free,
        "input_error": NOT_GIVEN if solved.x is None else relative(solved.x, x),
    }


def normalised(net: Net, run: Run) -> Measures:
    """Claim 4, eq. (24) to (33): the same behind a batch norm."""
    chain, weights, gradients = net.captured(run.image, run.label, run.seed, norm=True)
    true = networks.inside(chain, weights, run.image, run.label)
    found = head(weights, gradients, HEAD)
    affine = Affine(true.scale, true.shift)
    solved = through_norm(chain.convolutions[0], weights, gradients, found, affine)
    out = {
        "label_wrong": float(found.label != run.label),
        "negative": float(found.negative),
        "eq28": relative((true.d_s * true.u_hat).sum(axis=1), gradients[f"{CONV}_norm.weight"]),
        "eq29": relative(true.d_s.sum(axis=1), gradients[f"{CONV}_norm.bias"]),
    }
    return out | backwards(true) | _input(chain, solved, true, run.image)


def backwards(true: Inside) -> Measures:
    """Eq. (30) to (33) against autograd, with sums over positions; (33) as printed, too."""
    deviation = np.sqrt(true.variance + EPSILON)[:, None]
    spread = true.u - true.mean[:, None]
    positions = true.u.shape[1]
    d_u_hat = true.d_s * true.scale[:, None]
    each = -0.5 * d_u_hat * spread * deviation**-3
    d_variance = each.sum(axis=1)
    d_mean = -(d_u_hat / deviation).sum(axis=1) + d_variance * (-2 * spread).mean(axis=1)
    d_u = d_u_hat / deviation + (2 * spread * d_variance[:, None] + d_mean[:, None]) / positions
    # As printed: without sums, each position on its own.
    printed = -d_u_hat / deviation + each * -2 * spread / positions
    printed = d_u_hat / deviation + (each * 2 * spread + printed) / positions
    return {
        "eq30": relative(d_u_hat, true.d_u_hat),
        "eq31": relative(d_variance, true.d_variance),
        "eq32": relative(d_mean, true.d_mean),
        "eq33": relative(d_u, true.d_u),
        "eq33_printed": relative(printed, true.d_u),
    }


def _input(chain: Chain, solved: Normalised, true: Inside, image: np.ndarray) -> Measures:
    names = ("delta_error", "normalised_error", "input_error", "contrast_error")
    if solved.free:
        return {"free": solved.free, **dict.fromkeys(names, NOT_GIVEN)}
    x = image.reshape(len(image), -1).astype(np.float64)
    if chain.convolutions[0].shape.padding == (0, 0):
        x = x - x.mean(axis=1, keepdims=True)
    length = float(solved.x @ x.ravel())
    channels = solved.channels
    sign = np.sign((solved.normalised * true.u_hat[channels]).sum(axis=1, keepdims=True))
    return {
        "free": 0,
        "delta_error": relative(solved.back, true.d_s[channels]),
        "normalised_error": relative(sign * solved.normalised, true.u_hat[channels]),
        "input_error": relative(length * solved.x, x.ravel()),
        "contrast_error": abs(solved.factor / abs(length) - 1.0),
    }


def locked(net: Net, run: Run) -> Measures:
    """Proposition 2, eq. (34) to (36): inference with the lock's gradient, without, and with a key.

    ``lock_gradient_error`` is of an attacker who has the key and the lock's weights.
    """
    chain, weights, gradients = net.captured(run.image, run.label, run.seed, norm=True)
    true = networks.inside(chain, weights, run.image, run.label)
    layer, found = chain.convolutions[0], head(weights, gradients, HEAD)
    seen = layer, public(weights), public(gradients), found
    solved = through_norm(*seen, None)
    features = layer.activation.forward(true.scale[:, None] * true.u_hat + true.shift[:, None])
    key, outputs, slopes = _lock(net, weights)
    out = {
        "label_wrong": float(found.label != run.label),
        "features_error": relative(found.features, features.ravel()),
        **_lock_gradient(gradients, true, key, slopes),
        **_input(chain, solved, true, run.image),
        "eq36": relative(true.d_s * true.scale[:, None], true.d_u_hat),
        **dict.fromkeys(("scale_error", "shift_error", "lock_gradient_error"), NOT_GIVEN),
    }
    if not solved.free:
        channels = solved.channels
        out["scale_error"] = relative(solved.affine.scale, np.abs(true.scale[channels]))
        out["shift_error"] = relative(solved.affine.shift, true.shift[channels])
    given = through_norm(*seen, Affine(*outputs))
    if not given.free:
        along = slopes[0][given.channels] * (given.back * given.normalised).sum(axis=1)
        whole = gradients[f"{names_of(CONV)['weight']}.weight"][given.channels]
        out["lock_gradient_error"] = relative(np.outer(along, key), whole)
    return out


def _lock_gradient(
    gradients: Arrays, true: Inside, key: np.ndarray, slopes: list[np.ndarray]
) -> Measures:
    """Eq. (34) and (35), and the key from the lock's gradient."""
    scale, shift = names_of(CONV).values()
    d_scale, d_shift = (true.d_s * true.u_hat).sum(axis=1), true.d_s.sum(axis=1)
    whole = gradients[f"{scale}.weight"].astype(np.float64)
    found = from_delta(whole, gradients[f"{scale}.bias"].astype(np.float64))
    values, right = np.linalg.svd(whole, full_matrices=False)[1:]
    direction = right[0] * np.sign(right[0].sum())
    return {
        "eq34": relative(np.outer(slopes[0] * d_scale, key), whole),
        "eq35": relative(np.outer(slopes[1] * d_shift, key), gradients[f"{shift}.weight"]),
        "rank_one": float(values[1] / values[0]),
        "key_error": float(np.abs(found - key).max()),
        "key_error_scaled": float(np.abs(direction / direction.max() - key).max()),
    }


def _lock(net: Net, weights: Arrays) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
    """The key, and outputs and slopes (O,) of the activation of the lock's two layers."""
    assert net.lock is not None
    activation, w = Activation(net.lock), _double(weights)
    key = w[f"{CONV}_key"]
    inner = [w[f"{name}.weight"] @ key + w[f"{name}.bias"] for name in names_of(CONV).values()]
    return key, [activation.forward(z) for z in inner], [activation.derivative(z) for z in inner]
