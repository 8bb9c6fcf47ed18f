"""Clients of the comparison with peers: what each shares, and which attacks are tried on it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from benchmarks.client_networks import Images
from gradleak.client.local_training import Recipe
from gradleak.library.capture import capture
from gradleak.library.update import Update

OURS, BREACHING, LEAKPRO = "gradleak", "breaching", "leakpro"
LABELS = "labels"  # method that infers the labels of a batch, and nothing else
Methods = Mapping[str, tuple[str, ...]]

EXACT: Methods = {
    OURS: ("rgap", "gauss_newton", "dlg"),
    BREACHING: ("deepleakage",),
    LEAKPRO: ("idlg",),
}
COSINE: Methods = {
    OURS: ("inverting_gradients", "inverting_gradients_paper"),
    BREACHING: ("invertinggradients", "modern"),
    LEAKPRO: ("inverting_gradients",),
}
BATCH: Methods = {**COSINE, OURS: (*COSINE[OURS], "gauss_newton")}
# breaching's `modern` gives no image of ConvNet.
DEEP: Methods = {
    OURS: ("inverting_gradients",),
    BREACHING: ("invertinggradients",),
    LEAKPRO: ("inverting_gradients",),
}
STEPS: Methods = {
    OURS: ("inverting_gradients", "surrogate"),
    BREACHING: ("invertinggradients",),
    LEAKPRO: ("dimitrov_fedavg", "inverting_gradients"),
}
# R-GAP, carried through the steps, takes more than the budget where it needs Gauss-Newton first.
LENET_STEPS: Methods = {
    OURS: ("rgap", "gauss_newton", "inverting_gradients"),
    BREACHING: ("deepleakage", "invertinggradients"),
    LEAKPRO: ("dimitrov_fedavg", "inverting_gradients"),
}
LINEAR: Methods = {
    OURS: ("rgap", "rgap_plain", "dlg"),
    BREACHING: ("deepleakage",),
    LEAKPRO: ("idlg",),
}
INFERRED: Methods = dict.fromkeys((OURS, BREACHING, LEAKPRO), (LABELS,))


class LogisticLoss(nn.Module):
    """Mean of log(1 + exp(−y μ)) of one output μ, for classes 0 (y = −1) and 1 (y = 1)."""

    def forward(self, output: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        """Loss of outputs (K, 1) and classes (K,)."""
        return nn.functional.softplus((1 - 2 * classes) * output[:, 0]).mean()


@dataclass(frozen=True)
class Case:
    """A kind of client."""

    name: str
    network: str
    methods: Methods  # of each tool
    batch: int = 1
    recipe: Recipe | None = None  # local training; None for one gradient
    trained: bool = False

    @property
    def kind(self) -> str:
        """Its network, with ``_steps`` if it takes several; what budgets go by."""
        return self.network if self.recipe is None else f"{self.network}_steps"

    @property
    def infers(self) -> bool:
        """True if labels are inferred, and no image."""
        return self.methods is INFERRED


@dataclass(frozen=True)
class Client:
    """A client, with the images that attacks are scored by."""

    model: nn.Module  # with the weights that it was sent, in evaluation mode
    images: torch.Tensor = field(repr=False)  # (K, C, H, W) in [0, 1]
    classes: torch.Tensor  # (K,), from 0
    shared: dict[str, torch.Tensor] | Update = field(repr=False)
    loss: str = "cross_entropy"

    @property
    def labels(self) -> list[int]:
        """As `gradleak.invert` takes them: −1 and 1 under a loss of one output."""
        if self.loss == "logistic":
            return (2 * self.classes - 1).tolist()
        return self.classes.tolist()

    @property
    def criterion(self) -> nn.Module:
        """The loss as a function of outputs and classes."""
        return LogisticLoss() if self.loss == "logistic" else nn.CrossEntropyLoss()

    @property
    def recipe(self) -> Recipe | None:
        """Its local training, if it took several steps."""
        return self.shared.recipe if isinstance(self.shared, Update) else None

    @property
    def change(self) -> dict[str, torch.Tensor]:
        """Its message, as peers take it: the gradient, or weights after minus weights before."""
        if isinstance(self.shared, Update):
            return {name: self.shared.after[name] - v for name, v in self.shared.before.items()}
        return dict(self.shared)


def steps(network: str, rate: float, methods: Methods, *, trained: bool = False) -> Case:
    """Case of three local steps on one image."""
    name = f"{network}_steps_{rate:g}{'_trained' * trained}"
    return Case(name, network, methods, recipe=Recipe(rate=rate, epochs=3), trained=trained)


def both(name: str, network: str, methods: Methods, **options: Any) -> list[Case]:
    """A case untrained and trained."""
    return [
        Case(f"{name}{'_trained' * trained}", network, methods, trained=trained, **options)
        for trained in (False, True)
    ]


CASES = (
    *both("lenet", "lenet", EXACT),
    *both("lenet_cosine", "lenet", COSINE),
    Case("lenet_batch4", "lenet", BATCH, batch=4),
    *both("convnet", "convnet", DEEP),
    Case("convnet_batch4", "convnet", DEEP, batch=4),
    steps("convnet", 0.01, STEPS),
    steps("convnet", 0.01, STEPS, trained=True),
    steps("convnet", 0.1, STEPS),
    steps("lenet", 0.1, LENET_STEPS),
    steps("lenet", 0.01, LENET_STEPS),
    Case("cnn6", "cnn6", LINEAR),
    *(case for n in (4, 8, 16) for case in both(f"labels{n}", "convnet", INFERRED, batch=n)),
)


def client(case: Case, model: nn.Module, images: Images, number: int) -> Client:
    """Let client `number` of a case, with the batch of that number, share what it shares.

    Under the loss of one output its label is opposite to the network's sign, as R-GAP's authors
    have it: then one image alone has this gradient.
    """
    batch, classes = images.take(number * case.batch, case.batch)
    loss = "cross_entropy"
    if case.network == "cnn6":
        loss = "logistic"
        with torch.no_grad():
            classes = (model(batch)[:, 0] < 0).long()
    labels = 2 * classes - 1 if loss == "logistic" else classes
    shared = capture(model, batch, labels, loss=loss, mode="evaluation", recipe=case.recipe)
    return Client(model, batch, classes, shared, loss)
