"""Paths of the pipeline's files, as patterns with Snakemake's wildcards."""

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from gradleak.config.schema import Config
from gradleak.data import backbones
from gradleak.data.catalogue import resolve


class Paths:
    """Files for one config.

    Intermediate files are stored by image source and scale, so that switching loses nothing.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        root, scale = config.data.root, config.scale
        self.case = case = f"{config.images}-{scale}"
        cell = f"{case}/{{experiment}}/{{model}}"
        self.arrays = f"{root}/{{dataset}}-{{split}}.safetensors"
        self.marker = f"{root}/raw/{{dataset}}/MD5SUMS"  # present once all official files are
        self.lpips = f"{root}/{backbones.FOLDER}"  # backbones of LPIPS
        self.targets = f"results/targets/{case}/{{targets}}.safetensors"
        self.model = f"results/models/{scale}/{{model}}.safetensors"  # initial weights
        self.trained = f"results/training/{case}/{{training}}/{{model}}.safetensors"
        # Keys of a locked network's clients: a folder for each training, and for an untrained
        # network.
        self.clients = f"results/training/{case}/{{training}}/{{model}}.clients"
        self.client = f"results/clients/{scale}/{{model}}/{{client}}.safetensors"
        self.generator = f"results/generators/{case}/{{generator}}.safetensors"
        # Sent and retained by a malicious server.
        self.sent = f"results/servers/{scale}/{{server}}/{{model}}.safetensors"
        self.secret = f"results/servers/{scale}/{{server}}/{{model}}.secret.safetensors"
        self.gradient = f"results/gradients/{cell}/{{defence}}.safetensors"
        self.reconstruction = f"results/reconstructions/{cell}/{{defence}}/{{attack}}.safetensors"
        self.score = f"results/scores/{cell}/{{defence}}/{{attack}}.csv"
        self.security = f"results/security/{cell}.csv"  # COPA's c(M)
        self.rank = f"results/rank/{cell}.csv"  # R-GAP's rank analysis
        self.inconspicuous = f"results/inconspicuous/{case}/{{model}}.csv"

    @property
    def pictured(self) -> list[str]:
        """Path prefixes, for all cases, of files that contain images."""
        patterns = (self.targets, self.reconstruction, self.generator)
        return [pattern.split(self.case)[0] for pattern in patterns]

    def dataset(self, name: str, split: str) -> str:
        """Arrays of a data set or its stand-in."""
        return self.arrays.format(dataset=resolve(name, self.config.images), split=split)

    def dataset_of(self, training: str) -> str:
        """Arrays used by a training."""
        chosen = self.config.trainings[training]
        return self.dataset(chosen.dataset, chosen.split)

    def targets_of(self, experiment: str) -> str:
        """Target set of an experiment."""
        return self.targets.format(targets=self.config.experiments[experiment].targets)

    def models(self, experiment: str, patterns: Sequence[str] | None = None) -> list[str]:
        """Models of an experiment, or those that match the patterns, in order of patterns."""
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
        """Score files of experiments, optionally restricted to some attacks and models."""
        return [
            self.score.format(experiment=name, model=model, defence=defence, attack=attack)
            for name in experiments
            for model in self.models(name, models)
            for defence in self.config.experiments[name].defences
            for attack in self.config.experiments[name].attacks
            if attacks is None or attack in attacks
        ]

    def reconstruction_of(self, score: str) -> str:
        """Reconstructions that a score file is of."""
        made = score.replace("scores", "reconstructions", 1)
        return f"{made.removesuffix('csv')}safetensors"

    def by_model(
        self, pattern: str, *experiments: str, models: Sequence[str] | None = None
    ) -> list[str]:
        """Files for all models of experiments: `security` or `rank`."""
        return [
            pattern.format(experiment=name, model=model)
            for name in experiments
            for model in self.models(name, models)
        ]

    def summaries(self, *experiments: str) -> list[str]:
        """Summaries of the trainings used by experiments, with one row per network."""
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
