"""Inputs and parameters of the benchmarks' rules, as functions of their wildcards."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.threads import shortened
from gradleak.data.catalogue import resolve
from gradleak.errors import ConfigError
from gradleak.pipeline.inputs import Settings
from gradleak.pipeline.paths import Paths

TRAINING = "rgap_resnet18"  # training that is measured
PAIR = "copa_pair"  # experiment on which COPA's settings are compared


class Benchmarks:
    """Files and settings of benchmarks under a config."""

    def __init__(self, paths: Paths) -> None:
        self.paths, self.config = paths, paths.config

    def pair_gradients(self, wildcards: Any) -> list[str]:
        """Gradients of both images of COPA's figures, in the order of its models."""
        entry, path = self.entry("experiments", PAIR), self.paths.gradient
        first = entry.defences[0]
        return [path.format(experiment=PAIR, model=m, defence=first) for m in entry.models]

    def pair_seeds(self, wildcards: Any) -> int:
        """Number of seeds for the comparison; few suffice for optimisers and initializations."""
        return int(self.entry("experiments", PAIR).few)

    def copa_default(self, wildcards: Any) -> Settings:
        """Settings of COPA that config.yaml chooses."""
        entry = self.entry("attacks", "copa").model_dump(mode="json")
        return {key: value for key, value in entry.items() if key != "method"}

    def entry(self, section: str, name: str) -> Any:
        """Entry of a section that is measured; `ConfigError` if no file that is included has it."""
        found = getattr(self.config, section)
        if name not in found:
            raise ConfigError(
                f"This benchmark needs {section}.{name}, which the config does not have; include "
                "the files of all papers."
            )
        return found[name]

    def training_dataset(self, wildcards: Any) -> str:
        """Arrays of the training that is measured."""
        chosen = self.entry("trainings", TRAINING)
        return self.paths.dataset(chosen.dataset, chosen.split)

    def training(self, few: Settings) -> Callable[[Any], Settings]:
        """Entry of `trainings` that is measured, with other amounts."""
        return lambda wildcards: self.entry("trainings", TRAINING).model_dump(mode="json") | few

    def evaluations(self, wildcards: Any) -> int:
        """Iterations of DLG."""
        return int(self.entry("attacks", "dlg").iterations)

    def batches(self, wildcards: Any) -> dict[str, int]:
        """Images of MKOR's batches, of CIFAR-100 and of photos."""
        names = {"images": "mkor_cifar_batch", "photos": "mkor_photos"}
        return {key: int(self.entry("scales", name)) for key, name in names.items()}

    def run_overrides(self, wildcards: Any) -> Settings:
        """Keys of config.yaml as in this run; real images are taken from their place."""
        config = self.config
        data = config.data.model_dump(mode="json")
        if config.images == "real":
            data["root"] = str(Path(config.data.root).absolute())
        case = {"images": config.images, "scale": config.scale, "device": config.device}
        return {**case, "data": data}

    def artifacts(self, paths: list[str]) -> Callable[[Any], list[str]]:
        """The artifacts that are made on one and on two threads, all of which the config has."""

        def checked(wildcards: Any) -> list[str]:
            for path in paths:
                _, kind, _, name, *_ = Path(path).parts
                section = {"servers": "servers", "training": "trainings"}.get(kind, "experiments")
                self.entry(section, name)
            return paths

        return checked

    def few_overrides(self, wildcards: Any) -> Settings:
        """The same, with few images and steps: enough to measure the gain from threads."""
        few = shortened(self.config.model_dump(mode="json", exclude_unset=True))
        return self.run_overrides(wildcards) | few

    def sources(self, name: str) -> dict[str, str]:
        """Names of a data set's arrays, which embedded images have others of, by split."""
        return {split: resolve(name, self.config.images) for split in ("train", "test")}
