"""Speed of GGL's population in batches against one candidate after the other."""

from collections.abc import Callable

import numpy as np
import torch

from benchmarks.runner import Facts, clocked, in_turns, row
from benchmarks.searches import PASSES, SEEN, PlainClient, Settings, stored
from gradleak.attacks.base import AttackerView
from gradleak.attacks.optimization.engine.residual_gradients import BranchGradients
from gradleak.attacks.optimization.engine.search_batch import Members, Population
from gradleak.client.capture import pick_device

# Distances of a population of candidates (P, 1, C, H, W), (P,).
Distances = Callable[[torch.Tensor], torch.Tensor]


def batched(view: AttackerView, size: int, device: torch.device) -> Distances:
    """Evaluate `size` candidates at once, as the attack does."""
    network = BranchGradients(view.chain, view.weights, view.loss, mode="evaluation", device=device)
    squares = [np.sum(value.astype(np.float64) ** 2) for value in view.gradients.values()]
    scale = 1.0 / np.sqrt(sum(squares))
    scaled = {name: scale * value for name, value in view.gradients.items()}
    member = Members(
        network,
        network.targets([scaled]),
        network.tensor(np.array([scale])),
        torch.tensor([view.labels], device=device),
        network.tensor(np.zeros((1, 1, *view.chain.input))),
        network.tensor(np.zeros((1, 1, view.chain.classes))),
        torch.zeros((1, 2), dtype=torch.long, device=device),
    )
    return Population(member, size).distances


def reference(view: AttackerView, device: torch.device) -> Distances:
    """Evaluate one candidate at a time by automatic differentiation, the straightforward way."""
    client, label = PlainClient(view, device=device), torch.tensor(view.labels, device=device)
    norm = torch.stack([target.square().sum() for target in client.shared]).sum()

    def distance(image: torch.Tensor) -> torch.Tensor:
        return client.distance(client.gradient(image, label, graph=False)) / norm

    return lambda images: torch.stack([distance(image) for image in images])


def population_row(given: Settings, *, population: int, rounds: int = 2, device: str) -> Facts:
    """Row: seconds for a candidate's gradient distance, together and one after the other."""
    options: Settings = {"given": given, "population": population, "device": device}
    sides = ("ours", "single", "reference")
    mine, alone, theirs = in_turns("ggl:timed", sides, rounds=rounds, **options)
    ours, plain = np.array(mine["distances"]), np.array(theirs["distances"])
    difference = np.max(np.abs(ours - plain) / plain)
    note = (
        f"a candidate of {population}, float32 on {mine['device']}, one thread each, best of "
        f"{rounds}; together against torch.autograd.grad one after the other; one after the other "
        f"by the same code {alone['seconds']:.2g} s; initial weights with running statistics, "
        f"evaluation mode; largest relative difference {float(difference):.1e}"
    )
    return row(f"GGL {mine['chain']}, a candidate", mine, theirs, note)


def timed(side: str, given: Settings, population: int, device: str) -> Facts:
    """One side in this process; candidates are images, evaluated on another image's gradient."""
    found, chosen = stored(**given, count=max(PASSES * SEEN, population + 1)), pick_device(device)
    view = found.case(1).views[0]
    size = {"ours": population, "single": 1}.get(side)
    distances = batched(view, size, chosen) if size else reference(view, chosen)
    candidates = torch.from_numpy(found.inputs[1 : population + 1, None]).to(chosen)
    # Warm up: kernels are chosen in the first pass.
    distances(candidates)
    values, seconds = clocked(lambda: distances(candidates).cpu().double().numpy())
    return {
        "seconds": seconds / len(candidates),
        "error": float(values.mean()),
        "distances": values,
        "chain": view.chain.name,
        "device": chosen.type,
    }
