"""Class fishing: the images of one class in a large batch (Wen et al. 2022; MKOR's baseline CF)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from gradleak.attacks.base import AttackerView, Outcome, Reconstruction
from gradleak.attacks.mkor.attack import own_secret
from gradleak.attacks.optimization.inverting import CosineSearch
from gradleak.client.gradient_checks import check_gradient
from gradleak.errors import NumericsError
from gradleak.models.chain import Chain


class ClassFishing(CosineSearch):
    """Inverting Gradients under a class fishing server's weights.

    All layers but the last carry the gradient of the fished class alone. One image is optimised
    however many images of that class the batch has. The last layer's gradient is not compared.
    """

    reads_secret = True
    threat = "F"

    method: Literal["class_fishing"] = "class_fishing"

    @property
    def needs_labels(self) -> bool:
        """See `gradleak.attacks.base.Entry`; the secret contains the class."""
        return False

    def ignored(self, chain: Chain) -> tuple[str, ...]:
        """See `CosineSearch`."""
        last = chain.layers[-1].name
        return f"{last}.weight", f"{last}.bias"

    def applies(self, chain: Chain, mode: str = "training") -> str | None:
        """See `gradleak.attacks.base.ManyAttack`."""
        if chain.classes == 1:
            return f"{chain.name} has one output; class fishing tells images apart by class."
        if chain.is_normalised and mode == "training":
            return (
                f"{chain.name} has norm: batch, which in training mixes the image with others of "
                "its batch; take gradients in evaluation mode, or use mkor."
            )
        return super().applies(chain, mode)

    def run_many(self, views: Sequence[AttackerView], seeds: Sequence[int]) -> list[Outcome]:
        """See `gradleak.attacks.base.ManyAttack`."""
        return [self._fish(view, seed) for view, seed in zip(views, seeds, strict=True)]

    def _fish(self, view: AttackerView, seed: int) -> Outcome:
        """Optimise one image, in a view of the fished class alone."""
        try:
            target = int(own_secret(view, "class_fishing").values["target"])
            check_gradient(view.chain, view.gradients)
        except NumericsError as error:
            return error
        last = view.chain.layers[-1].name
        # The class's probability is near 0, so the gradient in its bias is −count/K.
        count = round(-view.batch * float(view.gradients[f"{last}.bias"][target]))
        if count < 1:
            return NumericsError(
                f"No image of class {target}, which the server fishes for, is in the batch; choose "
                "another target."
            )
        gradients = {
            name: np.zeros_like(value) if name.startswith(f"{last}.") else value
            for name, value in view.gradients.items()
        }
        own = replace(view, gradients=gradients, labels=(target,), batch=1)
        (found,) = super().run_many([own], [seed])
        if isinstance(found, Reconstruction):
            found = replace(found, classes=(target,), counts=(count,), partial=True)
        return found
