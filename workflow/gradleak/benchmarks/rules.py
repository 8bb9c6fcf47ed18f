"""What the rules of benchmarks ask for, as functions of their wildcards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradleak.benchmarks.threads import shortened
from gradleak.pipeline.inputs import Settings, resolved
from gradleak.pipeline.paths import Paths

PAIR = "copa_pair"  # experiment on which COPA's settings are compared
TRAINING = "rgap_resnet18"  # by which the training engine is timed


class Benchmarks:
    """Amounts and files of benchmarks under a config."""

    def __init__(self, paths: Paths) -> None:
        self.paths, self.config = paths, paths.config
        self.smoke = self.config.scale == "smoke"

    def pair_gradients(self, wildcards: Any) -> list[str]:
        """Gradients of both images of COPA's figures, in the order of its models."""
        entry = self.config.experiments[PAIR]
        gradient, defence = self.paths.gradient, entry.defences[0]
        return [gradient.format(experiment=PAIR, model=m, defence=defence) for m in entry.models]

    def pair_seeds(self, wildcards: Any) -> int:
        """Draws of weights for the comparison: three tell optimisers and starts apart."""
        return min(3, self.config.amount(self.config.experiments[PAIR].seeds))

    def copa_default(self, wildcards: Any) -> Settings:
        """Settings of COPA that config.yaml chooses."""
        entry = resolved(self.config, "attacks", "copa")
        return {key: value for key, value in entry.items() if key != "method"}

    def search_amounts(self, wildcards: Any) -> dict[str, int]:
        """Images, starts and outer steps with which searches are timed."""
        if self.smoke:
            return {"images": 1, "starts": 2, "outer": 5}
        return {"images": 10, "starts": 3, "outer": 300}

    def timed_training(self, wildcards: Any) -> Settings:
        """Training by which the engine is timed: one epoch to get going, and some more."""
        changed = (
            {"train": 200, "validation": 20, "test": 10, "epochs": 2, "batch": 50}
            if self.smoke
            else {"train": 2560, "validation": 256, "test": 10, "epochs": 4}
        )
        return resolved(self.config, "trainings", TRAINING) | changed

    def timed_inversions(self, wildcards: Any) -> tuple[int, int]:
        """Iterations of Inverting Gradients that are timed on ResNet-18 and on ResNet-101."""
        return (2, 1) if self.smoke else (40, 8)

    def timed_population(self, wildcards: Any) -> int:
        """Candidates of GGL that are timed: the paper's number, or a few."""
        return 6 if self.smoke else 50

    def run_overrides(self, wildcards: Any) -> Settings:
        """Keys of config.yaml as they hold in this run; real images are taken from their place."""
        config = self.config
        data = config.data.model_dump(mode="json")
        if config.images == "real":
            data["root"] = str(Path(config.data.root).absolute())
        case = {"images": config.images, "scale": config.scale, "device": config.device}
        return {**case, "data": data}

    def few_overrides(self, wildcards: Any) -> Settings:
        """The same, with few images and steps: enough to see what threads gain."""
        few = shortened(self.config.model_dump(mode="json", exclude_unset=True))
        return self.run_overrides(wildcards) | few
