"""Dense reference: every U = [W; K] as a matrix, with NumPy's least squares and SVD."""

import time
from collections.abc import Mapping

import numpy as np
from numpy.typing import DTypeLike

from gradleak.attacks.base import AttackerView, LayerFacts
from gradleak.attacks.closed_form.layerwise import ConvolutionCache, LayerAnswer, LayerTask, walk
from gradleak.errors import NotApplicable
from gradleak.models.activations import INSIDE
from gradleak.models.chain import Chain, ConvLayer
from gradleak.operators.shape import ConvShape

# R-GAP's default: estimates outside an activation's range are moved this far into it.
MARGIN = 1e-6


def layer_matrix(
    weight: np.ndarray,
    delta: np.ndarray,
    shape: ConvShape,
    dtype: DTypeLike = np.float64,
    *,
    padded: bool = False,
) -> np.ndarray:
    """U = [W; K] of one convolution (COPA eq. 4), dense (O·Ph·Pw + O·C·kh·kw, C·H·W).

    `weight` is (O, C, kh, kw), `delta` is dJ/dZ (O, Ph, Pw). With `padded`, padded pixels are
    unknowns too, each with a unit row that sets it to 0, as in R-GAP's authors' code; else these
    columns, known zeros, are left out.
    """
    (sh, sw), (ph, pw), (height, width) = shape.stride, shape.padding, shape.size
    kh, kw = shape.kernel
    out_h, out_w = shape.output
    canvas = (shape.channels, height + 2 * ph, width + 2 * pw)
    # Row (o, i, j) of W holds filter o at the window of output (i, j).
    rows_w = np.zeros((shape.filters, out_h, out_w, *canvas), dtype)
    for i in range(out_h):
        for j in range(out_w):
            rows_w[:, i, j, :, sh * i : sh * i + kh, sw * j : sw * j + kw] = weight
    # Row (o, c, k, m) of K holds delta of filter o at the pixels of c that tap (k, m) meets.
    rows_k = np.zeros((shape.filters, shape.channels, kh, kw, *canvas), dtype)
    for c in range(shape.channels):
        for k in range(kh):
            for m in range(kw):
                seen = (slice(k, k + sh * out_h, sh), slice(m, m + sw * out_w, sw))
                rows_k[:, c, k, m, c, *seen] = delta
    if padded:
        unknowns = int(np.prod(canvas))
        places = np.flatnonzero(outside(shape))
        unit = np.zeros((places.size, unknowns), dtype)
        unit[np.arange(places.size), places] = 1
        return np.concatenate([rows_w.reshape(-1, unknowns), rows_k.reshape(-1, unknowns), unit])
    inside = (..., slice(ph, ph + height), slice(pw, pw + width))
    return np.concatenate(
        [rows_w[inside].reshape(-1, shape.unknowns), rows_k[inside].reshape(-1, shape.unknowns)]
    )


def outside(shape: ConvShape) -> np.ndarray:
    """Mask of the padding in a layer's padded input, bool (C·(H + 2·ph)·(W + 2·pw),)."""
    (ph, pw), (height, width) = shape.padding, shape.size
    mask = np.ones((shape.channels, height + 2 * ph, width + 2 * pw), dtype=bool)
    mask[:, ph : ph + height, pw : pw + width] = False
    return mask.ravel()


def rgap(view: AttackerView) -> tuple[np.ndarray, dict[str, float]]:
    """R-GAP with `numpy.linalg.lstsq` for every convolution; linear layers need a bias.

    Returns the image (C, H, W), and the seconds that each convolution's matrix and solution took.
    """
    x, back = np.empty(0), np.empty(0)
    seconds: dict[str, float] = {}
    for layer in reversed(view.chain.layers):
        weight = view.weights[f"{layer.name}.weight"].astype(np.float64)
        gradient = view.gradients[f"{layer.name}.weight"].astype(np.float64)
        if not isinstance(layer, ConvLayer):
            if not layer.bias:
                raise NotApplicable(f"The dense reference needs a bias in {layer.name}.")
            delta = view.gradients[f"{layer.name}.bias"].astype(np.float64)
            row = int(np.argmax(np.abs(delta)))
            x, back = gradient[row] / delta[row], weight.T @ delta
            continue
        # The input of a fully connected layer is exact, that of a convolution an estimate.
        z = layer.activation.inverse(x, MARGIN if seconds else 0.0)
        delta = back * layer.activation.derivative(z)
        bias = view.weights[f"{layer.name}.bias"] if layer.bias else np.zeros(layer.shape.filters)
        begin = time.perf_counter()
        grid = delta.reshape(layer.shape.filters, *layer.shape.output)
        matrix = layer_matrix(weight, grid, layer.shape)
        values = np.concatenate([z - np.repeat(bias, layer.shape.positions), gradient.ravel()])
        x = np.linalg.lstsq(matrix, values, rcond=None)[0]
        seconds[layer.name] = time.perf_counter() - begin
        back = matrix[: delta.size].T @ delta
    return x.reshape(view.chain.input), seconds


def rgap_single(view: AttackerView) -> np.ndarray:
    """R-GAP's image (C, H, W) from float32 data by NumPy's least squares, like its authors."""

    def solve(task: LayerTask) -> LayerAnswer:
        name, shape, weight = task.layer.name, task.layer.shape, task.system.convolution.weight
        delta = task.system.gradient.delta.reshape(shape.filters, *shape.output)
        matrix = layer_matrix(weight, delta, shape, np.float32, padded=True)
        values = np.zeros(len(matrix), dtype=np.float32)  # 0 for the rows of the padding
        values[: task.values.size] = task.values
        # NumPy solves in float64, and -1 was its rank rule at the time of the paper.
        x = np.linalg.lstsq(matrix, values, rcond=-1)[0][~outside(shape)]
        return LayerAnswer(x, None, LayerFacts(name, "4", 0.0, 0, "dense"))

    return walk(view, ConvolutionCache(), solve, precision="float32", margin=INSIDE).image


def ranks(
    chain: Chain, weights: Mapping[str, np.ndarray], deltas: Mapping[str, np.ndarray]
) -> list[int]:
    """Rank of U of every convolution by `numpy.linalg.matrix_rank`, first to last."""
    matrices = (
        layer_matrix(
            weights[f"{layer.name}.weight"].astype(np.float64), deltas[layer.name], layer.shape
        )
        for layer in chain.convolutions
    )
    return [int(np.linalg.matrix_rank(matrix)) for matrix in matrices]
