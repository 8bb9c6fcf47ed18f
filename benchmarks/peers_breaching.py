"""breaching (Geiping et al.) in the comparison with peers, by its own configurations.

Attacks get what its users send: a payload of the server (weights, buffers) and what was shared.
Inputs are in [0, 1] and not standardised, so no mean and deviation are given. `deepleakage`
searches labels as well and refuses them, so it runs as a plain optimisation with labels given.
"""

import contextlib
import io
import logging
import warnings
from collections.abc import Collection, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch

from benchmarks.client_networks import CLASSES, SHAPE
from benchmarks.peers_cases import Client
from benchmarks.peers_tools import MOST

# Methods, by the steps of its optimisers; one of L-BFGS has up to 20 gradients.
SEARCHES = ("deepleakage", "invertinggradients", "modern")


class Breaching:
    """breaching, in float32 on the CPU."""

    searches: Mapping[str, int] = MappingProxyType(dict.fromkeys(SEARCHES, MOST))

    def version(self, method: str) -> str:
        """See `Tool`."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import_module("breaching")
        logging.getLogger("breaching").setLevel(logging.WARNING)
        return installed("breaching")

    def images(
        self, method: str, client: Client, iterations: int | None, seed: int
    ) -> torch.Tensor:
        """See `Tool`."""
        attacker = _attacker(method, client, iterations)
        torch.manual_seed(seed)
        found, _ = attacker.reconstruct([_payload(client)], [_shared(client, client.classes)], {})
        return found["data"]

    def labels(self, client: Client) -> Collection[int]:
        """See `Tool`; its strategy `bias-corrected`."""
        attacker = _attacker("invertinggradients", client, 1)
        _, labels, _ = attacker.prepare_attack([_payload(client)], [_shared(client, None)])
        return labels.tolist()


def installed(package: str) -> str:
    """Version of a package, ``source`` if it is on the path without one."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "source"


@cache
def _config(method: str) -> Any:
    overrides = ["attack_type=optimization"] if method == "deepleakage" else []
    # It prints the name of each, and newer versions of hydra warn of its way to call them.
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module("breaching").get_attack_config(method, overrides)


def _attacker(method: str, client: Client, iterations: int | None) -> Any:
    config = _config(method).copy()
    config.label_strategy = "bias-corrected"
    config.optim.max_iterations = config.optim.callback = iterations
    setup = {"dtype": torch.float32, "device": torch.device("cpu")}
    attacks = import_module("breaching.attacks")
    return attacks.prepare_attack(client.model, client.criterion, config, setup)


def _payload(client: Client) -> dict[str, Any]:
    """The server's message; buffers, even none, mean evaluation mode."""
    names = {"modality": "vision", "task": "classification"}
    return {
        "parameters": [value.detach() for value in client.model.parameters()],
        "buffers": list(client.model.buffers()),
        "metadata": SimpleNamespace(shape=SHAPE, classes=CLASSES, **names),
    }


def _shared(client: Client, labels: torch.Tensor | None) -> dict[str, Any]:
    recipe, size = client.recipe, len(client.images)
    local: dict[str, Any] | None = None
    if recipe is not None:
        steps = len(recipe.batches(size))
        local = {"lr": recipe.rate, "steps": steps, "data_per_step": size}
        local["labels"] = [client.classes] * steps
    metadata = {"num_data_points": size, "labels": labels, "local_hyperparams": local}
    return {"gradients": list(client.change.values()), "buffers": None, "metadata": metadata}
