"""R-GAP and c(M) against the dense reference, each measured in a fresh process."""

import time
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks import case as cases
from benchmarks import dense
from benchmarks.case import Case
from benchmarks.runner import Facts, measure, row
from gradleak.analysis.copa_index import (
    behind,
    index_from_ranks,
    layer_system,
    reported_rank,
    structural_index,
)
from gradleak.attacks.closed_form.layerwise import ConvolutionCache, LayerAnswer, LayerTask, walk
from gradleak.attacks.closed_form.rgap import RGap, minimum_norm
from gradleak.models.activations import INSIDE
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.system import LayerSystem
from gradleak.scoring.metrics.image import mse

REPEATS = 5


def _layers(case: Case) -> dict[str, float]:
    """Seconds to build and solve every convolution's system by itself, from weight and delta."""
    seconds: dict[str, float] = {}

    def solve(task: LayerTask) -> LayerAnswer:
        shape, weight = task.layer.shape, task.system.convolution.weight
        delta = task.system.gradient.delta.reshape(shape.filters, *shape.output)
        begin = time.perf_counter()
        fresh = LayerSystem(Convolution(weight, shape), GradientConstraint(delta, shape))
        fresh.solve(task.values)
        seconds[task.layer.name] = time.perf_counter() - begin
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
    found: Facts = {}
    seconds, layers = [], []
    for _ in range(repeats):
        case = cases.read(path)
        begin = time.perf_counter()
        found = TASKS[what](case)
        seconds.append(time.perf_counter() - begin)
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
    chain = cases.read(path).view.chain
    ours, layers = (measured(task, path, repeats) for task in ("rgap", "rgap_layers"))
    reference = measured("dense", path, threads=threads)
    found, plain = np.array(ours["image"]), np.array(reference["image"])
    difference = float(np.linalg.norm(found - plain) / np.linalg.norm(plain))
    times = _times(repeats, threads)
    note = f"numpy.linalg.lstsq of dense U; relative difference {difference:.1e}; {times}"
    out = [row(f"R-GAP {chain.name}", ours, reference, note)]
    note = f"build and solve U of this layer alone; {times}"
    for layer in chain.convolutions:
        one, other = ({"seconds": side["layers"][layer.name]} for side in (layers, reference))
        out.append(row(f"R-GAP {chain.name} {layer.name}", one, other, note))
    return out


def float32_row(path: str, *, threads: int, repeats: int = REPEATS) -> Facts:
    """R-GAP with balanced rows on float32 gradients; the reference solves for padding as well."""
    theirs = measured("rgap_single", path)
    return row(
        f"R-GAP {cases.read(path).view.chain.name} from float32",
        measured("rgap_balanced", path, repeats),
        measured("dense_single", path, threads=threads),
        f"numpy.linalg.lstsq of every dense U in float32, padding included; rgap_float32 takes "
        f"{theirs['seconds']:.2f} s, MSE {theirs['error']:.1e}; {_times(repeats, threads)}",
    )


def rank_rows(path: str, *, threads: int, repeats: int = REPEATS) -> list[Facts]:
    """c(M) as reported, by ranks and by sizes; errors: largest of a layer's rank, or of c(M)."""
    chain, times = cases.read(path).view.chain, _times(repeats, threads)
    reference = measured("dense_ranks", path, threads=threads)
    expected = reference["ranks"]
    out = []
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
