"""Where the pipeline's files lie, as patterns with Snakemake's wildcards."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gradleak.data import backbones
from gradleak.data.catalogue import resolve
from gradleak.sections import Config


@dataclass(frozen=True)
class Paths:
    """Files of one config.

    Intermediate files carry the image source and the scale, so that switching loses nothing.
    """

    config: Config

    @property
    def case(self) -> str:
        """Image source and scale."""
        return f"{self.config.images}-{self.config.scale}"

    @property
    def arrays(self) -> str:
        """All images of a split."""
        return f"{self.config.data.root}/{{dataset}}-{{split}}.safetensors"

    @property
    def marker(self) -> str:
        """Checksums of a data set's official files, written when all are there."""
        return f"{self.config.data.root}/raw/{{dataset}}/MD5SUMS"

    @property
    def lpips(self) -> str:
        """Folder of the networks that LPIPS looks through."""
        return f"{self.config.data.root}/{backbones.FOLDER}"

    @property
    def targets(self) -> str:
        """Images under attack."""
        return f"results/targets/{self.case}/{{targets}}.safetensors"

    @property
    def model(self) -> str:
        """Initial weights."""
        return f"results/models/{self.config.scale}/{{model}}.safetensors"

    @property
    def trained(self) -> str:
        """Trained weights."""
        return f"results/training/{self.case}/{{training}}/{{model}}.safetensors"

    @property
    def clients(self) -> str:
        """Folder of what clients of a training keep of a locked network."""
        return self.trained.replace(".safetensors", ".clients")

    @property
    def client(self) -> str:
        """What a client keeps of a locked network."""
        return f"results/clients/{self.config.scale}/{{model}}/{{client}}.safetensors"

    @property
    def generator(self) -> str:
        """A generator."""
        return f"results/generators/{self.case}/{{generator}}.safetensors"

    @property
    def sent(self) -> str:
        """Weights that a malicious server sends."""
        return f"results/servers/{self.config.scale}/{{server}}/{{model}}.safetensors"

    @property
    def secret(self) -> str:
        """What a malicious server keeps."""
        return self.sent.replace(".safetensors", ".secret.safetensors")

    @property
    def cell(self) -> str:
        """An experiment on a model, as part of a path."""
        return f"{self.case}/{{experiment}}/{{model}}"

    @property
    def gradient(self) -> str:
        """What clients share."""
        return f"results/gradients/{self.cell}/{{defence}}.safetensors"

    @property
    def reconstruction(self) -> str:
        """Images that an attack found."""
        return f"results/reconstructions/{self.cell}/{{defence}}/{{attack}}.safetensors"

    @property
    def score(self) -> str:
        """Scores of the images that an attack found."""
        return f"results/scores/{self.cell}/{{defence}}/{{attack}}.csv"

    @property
    def security(self) -> str:
        """COPA's c(M)."""
        return f"results/security/{self.cell}.csv"

    @property
    def rank(self) -> str:
        """R-GAP's rank analysis."""
        return f"results/rank/{self.cell}.csv"

    @property
    def inconspicuous(self) -> str:
        """How the weights that servers send differ from a model's own."""
        return f"results/inconspicuous/{self.case}/{{model}}.csv"

    @property
    def pictured(self) -> list[str]:
        """Beginnings of the paths, of all cases, of files that hold images."""
        patterns = (self.targets, self.reconstruction, self.generator)
        return [pattern.split(self.case)[0] for pattern in patterns]

    def dataset(self, name: str, split: str) -> str:
        """Arrays of a data set, or of what stands in for it."""
        return self.arrays.format(dataset=resolve(name, self.config.images), split=split)

    def dataset_of(self, training: str) -> str:
        """Arrays that a training takes its images from."""
        chosen = self.config.trainings[training]
        return self.dataset(chosen.dataset, chosen.split)

    def targets_of(self, experiment: str) -> str:
        """Target set of an experiment."""
        return self.targets.format(targets=self.config.experiments[experiment].targets)

    def models(self, experiment: str, patterns: Sequence[str] | None = None) -> list[str]:
        """Models of an experiment, or those that match a pattern, in the patterns' order."""
        models = self.config.experiments[experiment].models
        if patterns is None:
            return list(models)
        return [name for pattern in patterns for name in models if fnmatchcase(name, pattern)]

    def scores(
        self,
        *experiments: str,
        attacks: Collection[str] | None = None,
        models: Sequence[str] | None = None,
    ) -> list[str]:
        """Score files of experiments, of all attacks and models or those of some that it has."""
        return [
            self.score.format(experiment=name, model=model, defence=defence, attack=attack)
            for name in experiments
            for model in self.models(name, models)
            for defence in self.config.experiments[name].defences
            for attack in self.config.experiments[name].attacks
            if attacks is None or attack in attacks
        ]

    def by_model(
        self, pattern: str, *experiments: str, models: Sequence[str] | None = None
    ) -> list[str]:
        """Files of all models of experiments: `security` or `rank`."""
        return [
            pattern.format(experiment=name, model=model)
            for name in experiments
            for model in self.models(name, models)
        ]

    def summaries(self, *experiments: str) -> list[str]:
        """Summaries of the trainings behind experiments, with a row for each network."""
        entries = self.config.experiments
        return list(
            dict.fromkeys(
                self.trained.format(training=entries[name].training, model=model).replace(
                    ".safetensors", ".csv"
                )
                for name in experiments
                if entries[name].training
                for model in entries[name].models
            )
        )
