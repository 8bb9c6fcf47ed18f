"""Inputs and parameters of rules, as functions of their wildcards."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradleak.config.schema import Config
from gradleak.data import backbones
from gradleak.data.arrays import is_by_hand
from gradleak.data.catalogue import Source, pairs, pairs_pattern
from gradleak.errors import ConfigError
from gradleak.pipeline import shared_cache
from gradleak.pipeline.paths import Paths
from gradleak.pipeline.work import LARGE, parameters
from gradleak.runtime.provenance import code_hash
from gradleak.settings import registry

# Batch size from which optimisation-based attacks are faster on two threads.
LARGE_BATCH = 50

# Modules of attacks, defences and servers, which are loaded by name: no import statement shows
# that an audit depends on them.
METHODS = sorted(
    module
    for folder in ("attacks", "defences", "servers")
    for module in registry.modules(folder).values()
)

Settings = dict[str, Any]


def plain(config: Config, section: str, name: str) -> Settings:
    """Return one entry of a section of config as plain values for a script."""
    found: Settings = getattr(config, section)[name].model_dump(mode="json")
    return found


class Inputs:
    """Inputs of rules: each method takes a job's wildcards."""

    def __init__(self, paths: Paths) -> None:
        self.paths, self.config = paths, paths.config
        config = self.config
        networks = [*config.models, *config.families, *config.groups]
        # Models with a key-locked layer, and groups that contain one.
        self.locked = [
            name
            for name in [*config.models, *config.groups]
            if any(config.chain(member).locked for member in config.members(name))
        ]
        self.open = [name for name in networks if name not in self.locked]
        # Defences that do not change the gradient: the others start from the stored one.
        self.undefended = [n for n, entry in config.defences.items() if entry.method == "none"]
        # GPUs requested from a scheduler for a job on `device`; `auto` uses what is available and
        # requests none.
        self.gpu = int(config.device == "cuda")

    def entry(self, section: str, wildcard: str) -> Callable[[Any], Settings]:
        """Settings: the entry of a section of config that a wildcard names."""
        return lambda wildcards: plain(self.config, section, getattr(wildcards, wildcard))

    def method_code(self, folder: str, wildcard: str, base: str) -> Callable[[Any], str]:
        """Hash of `base` and of the module of one method, so that edits do not rerun others."""

        def code(wildcards: Any) -> str:
            method = getattr(self.config, folder)[getattr(wildcards, wildcard)].method
            return code_hash(base, registry.modules(folder)[method])

        return code

    def made_from(self, source: Source) -> str:
        """Constraint on {dataset}: names made by `source`, except for files that users provide."""
        return pairs_pattern(
            (dataset, split)
            for dataset, split in pairs(source)
            if not is_by_hand(self.paths.arrays.format(dataset=dataset, split=split))
        )

    def mirror(self, wildcards: Any) -> str | None:
        """Address that replaces the official ones; None if config has no mirror."""
        return self.config.data.mirrors.get(wildcards.dataset)

    def own_images(self, wildcards: Any) -> list[str]:
        """The user's image archive; if it is missing, the script reports it."""
        source = self.config.data.imagenet
        return [str(source)] if source and Path(source).is_file() else []

    def own_listing(self, wildcards: Any) -> str | None:
        """Listing of the user's image folder, since Snakemake cannot hash folders."""
        return shared_cache.listing(self.config.data.imagenet)

    # --- Targets and models ----------------------------------------------------------------------

    def dataset_file(self, wildcards: Any) -> str:
        """Arrays for a target set."""
        chosen = self.config.targets[wildcards.targets]
        return self.paths.dataset(chosen.dataset, chosen.split)

    def target_count(self, wildcards: Any) -> int | None:
        """Number of images, for target sets that take the first images of a split."""
        return self.config.targets[wildcards.targets].count

    def target_batch(self, wildcards: Any) -> int:
        """Number of images that share a gradient."""
        return self.config.targets[wildcards.targets].batch

    def model_settings(self, wildcards: Any) -> Settings:
        """Descriptions of models, or a family's entry and its number of networks."""
        config, model = self.config, wildcards.model
        if model not in config.families:
            return {"chains": [config.chain(one).describe() for one in config.members(model)]}
        return plain(config, "families", model)

    def model_seeds(self, wildcards: Any) -> int:
        """Seeds in a model file."""
        return self.config.drawn(wildcards.model)

    def model_threads(self, wildcards: Any) -> int:
        """Threads: two for large networks; VGG-16 is then 1.5 times as fast (measured)."""
        return 2 if parameters(self.config, wildcards.model) > LARGE else 1

    # --- Trainings and generators ----------------------------------------------------------------

    def training_dataset(self, wildcards: Any) -> str:
        """Arrays for a training."""
        return self.paths.dataset_of(wildcards.training)

    def training_clients(self, wildcards: Any) -> list[str]:
        """Keys of the clients that train a locked network: one client, or all of a federation."""
        federated = self.config.trainings[wildcards.training].federated
        clients = range(federated.clients if federated else 1)
        return [self.paths.client.format(model=wildcards.model, client=n) for n in clients]

    def training_seeds(self, wildcards: Any) -> int:
        """Seeds to train."""
        return self.config.drawn(wildcards.model, wildcards.training)

    def generator_source(self, wildcards: Any) -> list[str]:
        """Arrays for training a generator, or the user's weights.

        If these are missing, the script reports it.
        """
        chosen = self.config.generators[wildcards.generator]
        if chosen.kind == "biggan":
            return [chosen.weights] if Path(chosen.weights).exists() else []
        return [self.paths.dataset(chosen.dataset, chosen.split)]

    # --- Gradients and attacks -------------------------------------------------------------------

    def experiment_targets(self, wildcards: Any) -> str:
        """Target set of an experiment."""
        return self.paths.targets_of(wildcards.experiment)

    def experiment_settings(self, wildcards: Any) -> Settings:
        """Entry of `experiments`, with its number of seeds."""
        entry = self.config.experiments[wildcards.experiment]
        return {
            "precision": entry.precision,
            "granted": entry.label == "granted",
            "seeds": entry.seeds,
            "loss": entry.loss,
            "labels": entry.labels,
            "kept": entry.kept,
            "mode": entry.mode,
            "lock": entry.lock,
        }

    def sent_model(self, wildcards: Any) -> str:
        """Weights sent by an experiment's server: initial, trained or malicious.

        `ConfigError` for a model that the experiment does not list, whose images may be others.
        """
        experiment, model = self.config.experiments[wildcards.experiment], wildcards.model
        if model not in experiment.models:
            raise ConfigError(
                f"Experiment '{wildcards.experiment}' does not list the model '{model}'; choose "
                f"one of {', '.join(experiment.models)}, or add it to the experiment's models."
            )
        if experiment.training is not None:
            return self.paths.trained.format(training=experiment.training, model=model)
        if self.config.servers[experiment.server].method == "honest":
            return self.paths.model.format(model=model)
        return self.paths.sent.format(server=experiment.server, model=model)

    def sharing_client(self, wildcards: Any) -> list[str]:
        """Key of the client under attack, the first, for a locked network; otherwise nothing."""
        if wildcards.model not in self.locked:
            return []
        training = self.config.experiments[wildcards.experiment].training
        if training is not None:
            return [self.paths.clients.format(training=training, model=wildcards.model)]
        return [self.paths.client.format(model=wildcards.model, client=0)]

    def undefended_gradient(self, wildcards: Any) -> str:
        """Gradient that a defence is applied to."""
        return self.paths.gradient.format(
            experiment=wildcards.experiment, model=wildcards.model, defence=self.undefended[0]
        )

    def attack_device(self, wildcards: Any) -> str | None:
        """Device of attacks that use PyTorch; None for others, so that it cannot rerun them."""
        return self.config.device if self.config.attacks[wildcards.attack].searches else None

    def attack_gpu(self, wildcards: Any) -> int:
        """Number of GPUs; closed-form attacks and COPA run on the CPU."""
        return self.gpu if self.config.attacks[wildcards.attack].searches else 0

    def attack_threads(self, wildcards: Any) -> int:
        """Threads: two for optimisation-based attacks on large batches, 1.6 times as fast."""
        targets = self.config.targets[self.config.experiments[wildcards.experiment].targets]
        large = targets.batch >= LARGE_BATCH
        return 2 if self.config.attacks[wildcards.attack].searches and large else 1

    def secret(self, wildcards: Any) -> list[str]:
        """Data retained by the server, for attacks that read it."""
        if not self.config.attacks[wildcards.attack].reads_secret:
            return []
        server = self.config.experiments[wildcards.experiment].server
        return [self.paths.secret.format(server=server, model=wildcards.model)]

    def first_reconstructions(self, wildcards: Any) -> list[str]:
        """Reconstructions that an attack starts from or combines."""
        return [
            self.paths.reconstruction.format(
                experiment=wildcards.experiment,
                model=wildcards.model,
                defence=wildcards.defence,
                attack=attack,
            )
            for attack in self.config.attacks[wildcards.attack].made_from
        ]

    def own_target_set(self, wildcards: Any) -> list[str]:
        """Images known to the attacker, for attacks that start from them."""
        own = getattr(self.config.attacks[wildcards.attack], "own_images", None)
        return [] if own is None else [self.paths.targets.format(targets=own)]

    def generator_of(self, wildcards: Any) -> list[str]:
        """Generator of attacks that optimise its input."""
        name = getattr(self.config.attacks[wildcards.attack], "generator", None)
        return [] if name is None else [self.paths.generator.format(generator=name)]

    # --- Scores ----------------------------------------------------------------------------------

    def score_case(self, wildcards: Any) -> Settings:
        """Constant columns of a score file."""
        entry = self.config.experiments[wildcards.experiment]
        return {
            "paper": entry.paper,
            "result": wildcards.experiment,
            "attack": wildcards.attack,
            "defence": wildcards.defence,
            "images": self.config.images,
            "targets": entry.targets,
            "precision": entry.precision,
            "mode": entry.mode,
            "training": entry.training or "",
        }

    def score_task(self, wildcards: Any) -> Settings:
        """Meaning of labels in an experiment."""
        entry = self.config.experiments[wildcards.experiment]
        return {"loss": entry.loss, "labels": entry.labels}

    def _has_lpips(self, wildcards: Any) -> bool:
        """True if an experiment is also scored by LPIPS, as FedKL's are."""
        return self.config.experiments[wildcards.experiment].paper == "fedkl"

    def lpips_weights(self, wildcards: Any) -> list[str]:
        """Available weights for LPIPS; new ones rerun only the scores that use them."""
        return backbones.present(self.paths.lpips) if self._has_lpips(wildcards) else []

    def score_code(self, wildcards: Any) -> str:
        """Hash of the code of the scores that a job computes."""
        module = "scores_fedkl" if self._has_lpips(wildcards) else "scores"
        return code_hash(f"gradleak.scoring.{module}")

    def experiment_files(self, wildcards: Any) -> dict[str, Any]:
        """Targets, scores and reconstructions of an experiment, for its page."""
        scores = self.paths.scores(wildcards.experiment)
        return {
            "targets": self.paths.targets_of(wildcards.experiment),
            "scores": scores,
            "reconstructions": [self.paths.reconstruction_of(path) for path in scores],
        }

    def told_of(self, wildcards: Any) -> Settings:
        """Entries of an experiment in the config, as they are set, for its page."""
        config, name = self.config, wildcards.experiment
        entry = config.experiments[name]
        used = {
            "experiments": [name],
            "targets": [entry.targets],
            "defences": entry.defences,
            "attacks": entry.attacks,
        }
        settings = {
            section: {
                one: getattr(config, section)[one].model_dump(mode="json", exclude_unset=True)
                for one in names
            }
            for section, names in used.items()
        }
        # Of a group its members; random networks by their family.
        networks = [one for model in entry.models for one in config.members(model)]
        settings["models"] = {
            name: (config.models.get(name) or config.families[name]).model_dump(
                mode="json", exclude_unset=True
            )
            for name in networks
        }
        case = {"images": config.images, "scale": config.scale, "seeds": entry.seeds}
        return {"name": name, "settings": settings, **case}

    def security_seeds(self, wildcards: Any) -> int:
        """Number of seeds for rank computations, whose results hardly vary."""
        return self.config.experiments[wildcards.experiment].few

    def rank_amounts(self, wildcards: Any) -> Settings:
        """Seeds and images for the rank analysis, and whether to compute condition numbers."""
        entry = self.config.experiments[wildcards.experiment]
        return {
            "seeds": entry.seeds,
            "images": entry.conditions or 1,
            "conditions": entry.conditions is not None,
        }

    def judged(self, paper: str) -> list[str]:
        """Scores, c(M) and ranks of a paper, which its claims are judged by."""
        own = [name for name, entry in self.config.experiments.items() if entry.paper == paper]
        layers = [*self.judged_security(), *self.judged_rank()]
        return [*self.paths.scores(*own), *(p for p in layers if Path(p).parent.name in own)]

    def judged_of(self, wildcards: Any) -> list[str]:
        """Those of them that belong to one experiment."""
        name = wildcards.experiment
        found = self.judged(self.config.experiments[name].paper)
        return [path for path in found if name in Path(path).parts]

    def judged_security(self) -> list[str]:
        """Files with c(M) for claims: those of COPA's pair of images."""
        pair = [name for name in ("copa_pair",) if name in self.config.experiments]
        return self.paths.by_model(self.paths.security, *pair)

    def judged_rank(self) -> list[str]:
        """Rank analyses for claims: R-GAP's single images."""
        experiments = self.config.experiments.items()
        of_rgap = [(name, entry.targets) for name, entry in experiments if entry.paper == "rgap"]
        single = [name for name, targets in of_rgap if self.config.targets[targets].batch == 1]
        return self.paths.by_model(self.paths.rank, *single)
