"""R-GAP and c(M) against the dense reference, each measured in a fresh process."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks import dense
from benchmarks.runner import Facts, clocked, measure, row
from gradleak.analysis.copa_index import (
    behind,
    index_from_ranks,
    layer_system,
    reported_rank,
    structural_index,
)
from gradleak.attacks.base import AttackerView
from gradleak.attacks.closed_form.layerwise import ConvolutionCache, LayerAnswer, LayerTask, walk
from gradleak.attacks.closed_form.rgap import RGap, minimum_norm
from gradleak.data.targets import TargetSet
from gradleak.models.activations import INSIDE
from gradleak.models.chain import Chain
from gradleak.models.files import ModelFile, select
from gradleak.models.numpy_autodiff import deltas, margin_label
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.system import LayerSystem
from gradleak.runtime.artifacts import read_tensors, write_tensors
from gradleak.scoring.metrics.image import mse

REPEATS = 5


@dataclass(frozen=True)
class Case:
    """Inputs of one measurement, read afresh for every repeat so that nothing is cached."""

    view: AttackerView  # attacker's view: the network, weights, gradient and granted label
    deltas: dict[str, np.ndarray]  # dJ/dZ (O, Ph, Pw) of every convolution, for the ranks
    image: np.ndarray  # the original (C, H, W), for the error only


def write_case(
    path: str,
    chain: Chain,
    weights: dict[str, np.ndarray],
    image: np.ndarray,
    label: int,
    low: float,
    *,
    single: bool = False,
) -> None:
    """Write a case for an image in [low, low + 1]; its gradient is captured on the CPU.

    With `single`, gradients are float32, of the logistic loss, and the label is granted.
    """
    import torch

    from gradleak.client.capture import capture

    precision, loss = ("float32", "logistic") if single else ("float64", "cross_entropy")
    settings: dict[str, Any] = {"precision": precision, "device": torch.device("cpu"), "loss": loss}
    parts = {
        "weights": weights,
        "gradients": capture(chain, weights, image[None], np.array([label]), **settings),
        "deltas": deltas(chain, weights, image, label, loss),
    }
    tensors = {f"{part}/{name}": value for part in parts for name, value in parts[part].items()}
    facts = {"chain": chain.describe(), "low": low, "loss": loss}
    facts["label"] = label if single else None
    write_tensors(path, {**tensors, "image": image.astype(np.float64)}, facts)


def write_first(path: str, models: ModelFile, targets: TargetSet, *, single: bool = False) -> None:
    """Write the case of a model's first seed and image, with `single` of the opposite label."""
    chain, image, label = models.chains[0], targets.inputs(0)[0], int(targets.labels[0, 0])
    weights = models.of(chain, 0)
    if single:
        label = margin_label(chain, weights, image, "opposite")
    write_case(path, chain, weights, image, label, targets.offset, single=single)


def read_case(path: str) -> Case:
    """Read a case."""
    tensors, facts = read_tensors(path)
    low, label = facts["low"], facts["label"]
    view = AttackerView(
        *(Chain.from_description(facts["chain"]), select(tensors, "weights")),
        *(select(tensors, "gradients"), None if label is None else (label,)),
        *(low, low + 1.0, facts["loss"]),
    )
    return Case(view, select(tensors, "deltas"), tensors["image"])


def _layers(case: Case) -> dict[str, float]:
    """Seconds to build and solve every convolution's system by itself, from weight and delta."""
    seconds: dict[str, float] = {}

    def solve(task: LayerTask) -> LayerAnswer:
        shape, weight = task.layer.shape, task.system.convolution.weight
        delta = task.system.gradient.delta.reshape(shape.filters, *shape.output)

        def fresh() -> None:
            system = LayerSystem(Convolution(weight, shape), GradientConstraint(delta, shape))
            system.solve(task.values)

        _, seconds[task.layer.name] = clocked(fresh)
        return minimum_norm(task)

    walk(case.view, ConvolutionCache(), solve, margin=INSIDE)
    return seconds


def _systems(case: Case) -> Iterator[LayerSystem]:
    weights = dict(case.view.weights)
    return (layer_system(layer, weights, case.deltas) for layer in case.view.chain.convolutions)


def _index(case: Case) -> Facts:
    chain = case.view.chain
    follows = [behind(chain, layer) for layer in chain.convolutions]
    ranks, methods, _ = zip(*map(reported_rank, _systems(case), follows), strict=True)
    return {"ranks": ranks, "index": index_from_ranks(chain, ranks), "methods": sorted({*methods})}


# Timed tasks: from gradient to image, or from weights and dJ/dZ to ranks.
TASKS: dict[str, Callable[[Case], Facts]] = {
    "rgap": lambda case: {"image": RGap().run(case.view, 0).image},
    "rgap_balanced": lambda case: {"image": RGap(rows="balanced").run(case.view, 0).image},
    "rgap_single": lambda case: {"image": RGap(precision="float32").run(case.view, 0).image},
    "rgap_layers": lambda case: {"layers": _layers(case)},
    "dense": lambda case: dict(zip(("image", "layers"), dense.rgap(case.view), strict=True)),
    "dense_single": lambda case: {"image": dense.rgap_single(case.view)},
    "index": _index,
    # from the sizes of the layers alone
    "sizes": lambda case: dict(
        zip(("index", "exact"), structural_index(case.view.chain), strict=True)
    ),
    "ranks": lambda case: {"ranks": [system.rank for system in _systems(case)]},
    "dense_ranks": lambda case: {
        "ranks": dense.ranks(case.view.chain, case.view.weights, case.deltas)
    },
}


def timed(what: str, path: str, repeats: int) -> Facts:
    """Run one of `TASKS` on fresh copies of a case; least seconds in total and of each layer."""
    seconds, layers = [], []
    for _ in range(repeats):
        case = read_case(path)
        found, taken = clocked(partial(TASKS[what], case))
        seconds.append(taken)
        layers.append(found.pop("layers", {}))
    if "image" in found:
        found["error"] = mse(case.image, found["image"])
    least = {name: min(run[name] for run in layers) for name in layers[0]}
    return {**found, "seconds": min(seconds), "layers": least}


def measured(what: str, path: str, repeats: int = 1, threads: int = 1) -> Facts:
    """`timed` in a fresh process."""
    return measure("rgap:timed", threads=threads, what=what, path=path, repeats=repeats)


def attack_rows(path: str, *, threads: int, repeats: int = REPEATS) -> list[Facts]:
    """R-GAP from gradient to image, and each of its layers' systems; errors are MSEs."""
    chain = read_case(path).view.chain
    ours, layers = (measured(task, path, repeats) for task in ("rgap", "rgap_layers"))
    reference = measured("dense", path, threads=threads)
    plain = np.array(reference["image"])
    difference = float(np.linalg.norm(ours["image"] - plain) / np.linalg.norm(plain))
    times = _times(repeats, threads)
    note = f"numpy.linalg.lstsq of dense U; relative difference {difference:.1e}; {times}"
    out = [row(f"R-GAP {chain.name}", ours, reference, note)]
    note = f"build and solve U of this layer alone; {times}"
    for layer in chain.convolutions:
        one, other = (side["layers"][layer.name] for side in (layers, reference))
        out.append(row(f"R-GAP {chain.name} {layer.name}", one, other, note))
    return out


def float32_row(path: str, *, threads: int, repeats: int = REPEATS) -> Facts:
    """R-GAP with balanced rows on float32 gradients; the reference solves for padding as well."""
    theirs = measured("rgap_single", path)
    return row(
        f"R-GAP {read_case(path).view.chain.name} from float32",
        measured("rgap_balanced", path, repeats),
        measured("dense_single", path, threads=threads),
        f"numpy.linalg.lstsq of every dense U in float32, padding included; rgap_float32 takes "
        f"{theirs['seconds']:.2f} s, MSE {theirs['error']:.1e}; {_times(repeats, threads)}",
    )


def rank_rows(path: str, *, threads: int, repeats: int = REPEATS) -> list[Facts]:
    """c(M) as reported, by ranks and by sizes; errors: largest of a layer's rank, or of c(M)."""
    chain, times, out = read_case(path).view.chain, _times(repeats, threads), list[Facts]()
    reference = measured("dense_ranks", path, threads=threads)
    expected = reference["ranks"]
    for what, task in (("c(M) as reported", "index"), ("numerical ranks", "ranks")):
        ours = measured(task, path, repeats)
        ours["error"] = float(np.abs(np.subtract(ours["ranks"], expected)).max())
        way = "+".join(ours.get("methods", ["LayerSystem.rank"]))
        same = "differ" if ours["error"] else "equal"
        words = (" ".join(map(str, ranks)) for ranks in (ours["ranks"], expected))
        note = (
            f"{way} against numpy.linalg.matrix_rank of dense U; ranks {same}: "
            f"{' and '.join(words)}; {times}"
        )
        out.append(row(f"{what} {chain.name}", ours, reference, note))
    sizes, true = measured("sizes", path, repeats), index_from_ranks(chain, expected)
    sizes["error"] = abs(sizes["index"] - true)
    kind = "exact" if sizes["exact"] else "an upper bound"
    note = f"no weight or gradient is read; {kind}: {sizes['index']:g} and {true:g}; {times}"
    return [*out, row(f"c(M) from sizes {chain.name}", sizes, reference, note)]


def _times(repeats: int, threads: int) -> str:
    return f"best of {repeats} with one thread against one run with {threads}"
