"""One measurement in a process of its own: ``python -m gradleak.benchmarks.worker``.

Arguments: task, case file, result file, repeats. The result holds the task's arrays, the seconds
of every repeat, and by how much the process grew beyond what its imports took.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gradleak.artifacts import write_tensors
from gradleak.benchmarks import case as cases
from gradleak.memory import keep_freed_memory

Result = dict[str, Any]
Task = Callable[[cases.Case], Result]
STATUS = Path("/proc/self/status")


def _rgap() -> Task:
    """Time R-GAP, from gradient to image, nothing cached."""
    from gradleak.attacks.rgap import RGap

    return lambda case: {"image": RGap().run(case.view, 0).image}


def _rgap_balanced() -> Task:
    """Time R-GAP with balanced rows, nothing cached."""
    from gradleak.attacks.rgap import RGap

    return lambda case: {"image": RGap(rows="balanced").run(case.view, 0).image}


def _rgap_single() -> Task:
    """Time R-GAP in the arithmetic of its authors, nothing cached."""
    from gradleak.attacks.rgap import RGap

    return lambda case: {"image": RGap(precision="float32").run(case.view, 0).image}


def _dense_single() -> Task:
    """Time R-GAP with float32 data and NumPy's least squares for every dense U, as its authors."""
    from gradleak.attacks.base import LayerFacts
    from gradleak.attacks.layerwise import ConvolutionCache, LayerAnswer, LayerTask, walk
    from gradleak.benchmarks.dense import layer_matrix, outside
    from gradleak.models.activations import INSIDE

    def run(case: cases.Case) -> Result:
        seconds: dict[str, float] = {}

        def solve(task: LayerTask) -> LayerAnswer:
            name, shape, weight = task.layer.name, task.layer.shape, task.system.convolution.weight
            delta = task.system.gradient.delta.reshape(shape.filters, *shape.output)
            begin = time.perf_counter()
            matrix = layer_matrix(weight, delta, shape, np.float32, padded=True)
            values = np.zeros(len(matrix), dtype=np.float32)  # 0 for the rows of the padding
            values[: task.values.size] = task.values
            # NumPy solves in float64, and -1 was its rank rule at the time of the paper.
            x = np.linalg.lstsq(matrix, values, rcond=-1)[0][~outside(shape)]
            seconds[name] = time.perf_counter() - begin
            return LayerAnswer(x, None, LayerFacts(name, "4", 0.0, 0, "dense"))

        found = walk(case.view, ConvolutionCache(), solve, precision="float32", margin=INSIDE)
        return {"image": found.image, "layers": seconds}

    return run


def _dense_rgap() -> Task:
    """Time the same attack, the plain way, with the seconds of every convolution."""
    from gradleak.benchmarks import dense

    def run(case: cases.Case) -> Result:
        image, seconds = dense.rgap(case.view)
        return {"image": image, "layers": seconds}

    return run


def _rgap_layers() -> Task:
    """Time every convolution's system by itself, built and solved from its weight and delta."""
    from gradleak.attacks.layerwise import ConvolutionCache, LayerAnswer, LayerTask, walk
    from gradleak.attacks.rgap import minimum_norm
    from gradleak.models.activations import INSIDE
    from gradleak.operators.convolution import Convolution
    from gradleak.operators.gradient import GradientConstraint
    from gradleak.operators.system import LayerSystem

    def run(case: cases.Case) -> Result:
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
        return {"layers": seconds}

    return run


def _index() -> Task:
    """Time c(M) as it is reported, from weights and dJ/dZ."""
    from gradleak.security import behind, index_from_ranks, layer_system, reported_rank

    def run(case: cases.Case) -> Result:
        found = [
            reported_rank(layer_system(layer, case.weights, case.deltas), behind(case.chain, layer))
            for layer in case.chain.convolutions
        ]
        ranks = [rank for rank, _, _ in found]
        return {
            "ranks": np.array(ranks),
            "index": index_from_ranks(case.chain, ranks),
            "methods": sorted({method for _, method, _ in found}),
        }

    return run


def _sizes() -> Task:
    """Time c(M) from the sizes of the layers alone."""
    from gradleak.security import structural_index

    def run(case: cases.Case) -> Result:
        value, exact = structural_index(case.chain)
        return {"index": value, "exact": exact}

    return run


def _ranks() -> Task:
    """Time the numerical ranks of all layer systems, as operators."""
    from gradleak.security import layer_system

    def run(case: cases.Case) -> Result:
        systems = (
            layer_system(layer, case.weights, case.deltas) for layer in case.chain.convolutions
        )
        return {"ranks": np.array([system.rank for system in systems])}

    return run


def _dense_ranks() -> Task:
    """Time the same ranks by SVD of dense matrices."""
    from gradleak.benchmarks import dense

    return lambda case: {"ranks": np.array(dense.ranks(case.chain, case.weights, case.deltas))}


TASKS: dict[str, Callable[[], Task]] = {
    "rgap": _rgap,
    "rgap_layers": _rgap_layers,
    "rgap_balanced": _rgap_balanced,
    "rgap_single": _rgap_single,
    "dense_single": _dense_single,
    "dense_rgap": _dense_rgap,
    "index": _index,
    "sizes": _sizes,
    "ranks": _ranks,
    "dense_ranks": _dense_ranks,
}


def memory_mib(field: str) -> float:
    """`VmHWM` (peak) or `VmRSS` (now) of this process in MiB.

    Linux hands `ru_maxrss` on from the process that started this one, so its own status file is
    read where there is one; elsewhere `ru_maxrss`, the peak, serves for both.
    """
    if STATUS.is_file():
        lines = (line.split() for line in STATUS.read_text().splitlines())
        return next(int(words[1]) for words in lines if words[0] == f"{field}:") / 1024.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024.0**2 if sys.platform == "darwin" else 1024.0)


def main(task: str, case_path: str, out: str, repeats: int) -> None:
    """Run `task` on fresh copies of the case and write what it found, seconds and MiB."""
    keep_freed_memory()  # as every job of the pipeline does; references get the same
    run = TASKS[task]()
    before = memory_mib("VmRSS")
    seconds, layers, found = [], [], {}
    for _ in range(repeats):
        case = cases.read(case_path)
        begin = time.perf_counter()
        found = run(case)
        seconds.append(time.perf_counter() - begin)
        layers.append(found.pop("layers", {}))
    mib = memory_mib("VmHWM") - before
    arrays = {name: v for name, v in found.items() if isinstance(v, np.ndarray)}
    facts = {name: v for name, v in found.items() if name not in arrays}
    write_tensors(out, arrays, {"seconds": seconds, "layers": layers, "mib": mib, **facts})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
