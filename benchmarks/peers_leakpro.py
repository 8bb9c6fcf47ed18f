"""LeakPro (aidotse) in the comparison with peers, by its presets.

Labels are given (its ``oracle``). Its simulated clients train at a rate of 0.01, whatever the
client's, for the rate is written in its class `MultiEpochTrainingSimulation`; here each attack's
simulation gets the client's rate. On several steps, `inverting_gradients` needs an attacker who
knows how the client trained, which its preset's does not: threat model C instead of B.
"""

import logging
import warnings
from collections.abc import Collection, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

import torch

from benchmarks.client_networks import CLASSES
from benchmarks.peers_breaching import installed
from benchmarks.peers_cases import Client
from benchmarks.peers_tools import MOST

MODULAR = "leakpro.attacks.gia_attacks.modular"
BLOCKS = f"{MODULAR}.components.optimization_building_blocks"
SEARCHES = ("idlg", "inverting_gradients", "dimitrov_fedavg")


class LeakPro:
    """LeakPro, in float32."""

    searches: Mapping[str, int] = MappingProxyType(dict.fromkeys(SEARCHES, MOST))

    def version(self, method: str) -> str:
        """See `Tool`."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import_module(f"{MODULAR}.presets")
        logging.getLogger("leakpro").setLevel(logging.WARNING)
        return installed("leakpro")

    def images(
        self, method: str, client: Client, iterations: int | None, seed: int
    ) -> torch.Tensor:
        """See `Tool`."""
        config = getattr(import_module(f"{MODULAR}.presets"), f"{method}_attack")()
        config.max_iterations = iterations
        config.labels = "oracle"
        config.loss_fn = client.criterion
        if client.recipe is not None:
            config.threat_model_type = "model_c"
        observed = _observed(client)
        attack = config.build(observed)
        if client.recipe is not None:
            attack.optimization.training_simulator.meta_optimizer.lr = client.recipe.rate
        torch.manual_seed(seed)
        found, _ = attack.run_attack(client.model, observed, torch.device("cpu"))
        # `dimitrov_fedavg` leaves out the dimension of a single image.
        return found.reshape(client.images.shape)

    def labels(self, client: Client) -> Collection[int]:
        """See `Tool`; its inference `IDLGLabelInference`."""
        inference = import_module(f"{MODULAR}.components.label_inference").IDLGLabelInference()
        gradients = list(client.change.values())
        return inference.infer_labels(gradients, client.model, len(client.images)).labels.tolist()


def _observed(client: Client) -> Any:
    """Observations of its server."""
    recipe = client.recipe
    settings = import_module(f"{BLOCKS}.training_simulator").TrainingSettings(
        epochs=1 if recipe is None else recipe.epochs,
        optimizer_type="sgd",
        training_batch_size=len(client.images),
        compute_mode="gradients" if recipe is None else "updates",
        model_mode="eval",
    )
    return import_module("leakpro.fl_utils.fl_client_simulator").ClientObservations(
        gradients=client.change,
        input_shape=tuple(client.images.shape),
        training_settings=settings,
        labels=client.classes,
        data_mean=torch.tensor(0.0),
        data_std=torch.tensor(1.0),
        num_classes=CLASSES,
    )
