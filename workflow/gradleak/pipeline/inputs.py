"""Inputs and parameters of rules, as functions of their wildcards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradleak import registry, shared_cache
from gradleak.data import backbones
from gradleak.data.arrays import is_by_hand
from gradleak.data.catalogue import Source, pairs, pairs_pattern
from gradleak.pipeline.paths import Paths
from gradleak.provenance import code_hash
from gradleak.resources import LARGE, Resources, parameters
from gradleak.sections import Config

# Images that share a gradient from which on a search is faster on two threads.
LARGE_BATCH = 50

Settings = dict[str, Any]
Amount = Callable[[Any, int], int]


def plain(config: Config, section: str, name: str) -> Settings:
    """One entry of a section of config, as plain values for a script."""
    found: Settings = getattr(config, section)[name].model_dump(mode="json")
    return found


class Inputs:
    """What rules ask for: each method takes the wildcards of a job."""

    def __init__(self, paths: Paths) -> None:
        self.paths, self.config = paths, paths.config
        config = self.config
        networks = [*config.models, *config.families, *config.groups]
        # Models with a layer that a client's key locks, and groups with such a model.
        self.locked = [
            name
            for name in [*config.models, *config.groups]
            if any(config.chain(member).locked for member in config.members(name))
        ]
        self.open = [name for name in networks if name not in self.locked]
        # Defences that leave the gradient as it is: the others start from what the first stores.
        self.undefended = [n for n, entry in config.defences.items() if entry.method == "none"]
        # GPUs that a job on `device` asks a scheduler for; `auto` takes what is there and asks for
        # none.
        self.gpu = int(config.device == "cuda")

    def made_from(self, source: Source) -> str:
        """Constraint on {dataset}: what `source` gives, less the files put there by hand."""
        return pairs_pattern(
            (dataset, split)
            for dataset, split in pairs(source)
            if not is_by_hand(self.paths.arrays.format(dataset=dataset, split=split))
        )

    def mirror(self, wildcards: Any) -> str | None:
        """Address that replaces the official ones, if config names one."""
        return self.config.data.mirrors.get(wildcards.dataset)

    def own_images(self, wildcards: Any) -> list[str]:
        """The archive of one's own; where it is missing, the script says what to do."""
        source = self.config.data.imagenet
        return [str(source)] if source and Path(source).is_file() else []

    def own_listing(self, wildcards: Any) -> str | None:
        """What stands for the folder of one's own: Snakemake cannot hash a folder."""
        return shared_cache.listing(self.config.data.imagenet)

    # --- Targets and models ----------------------------------------------------------------------

    def dataset_file(self, wildcards: Any) -> str:
        """Arrays that a target set is taken from."""
        chosen = self.config.targets[wildcards.targets]
        return self.paths.dataset(chosen.dataset, chosen.split)

    def target_settings(self, wildcards: Any) -> Settings:
        """Entry of `targets`."""
        return plain(self.config, "targets", wildcards.targets)

    def target_count(self, wildcards: Any) -> int | None:
        """Number of images, where a target set takes the first of a split."""
        return self.config.targets[wildcards.targets].count

    def target_batch(self, wildcards: Any) -> int:
        """Images that share one gradient."""
        return self.config.targets[wildcards.targets].batch

    def model_settings(self, wildcards: Any) -> Settings:
        """Descriptions of models, or the entry of a family and how many networks it has."""
        config, model = self.config, wildcards.model
        if model not in config.families:
            return {"chains": [config.chain(one).describe() for one in config.members(model)]}
        return plain(config, "families", model)

    def model_seeds(self, wildcards: Any) -> int:
        """Draws that a model file holds: the most that any experiment asks for."""
        entries = self.config.experiments.values()
        asked = (e.seeds for e in entries if wildcards.model in e.models)
        return max(asked, default=1)

    def model_threads(self, wildcards: Any) -> int:
        """Threads: small networks are fastest on one; VGG-16 gains 1.5 from two (measured)."""
        return 2 if parameters(self.config, wildcards.model) > LARGE else 1

    def server_settings(self, wildcards: Any) -> Settings:
        """Entry of `servers`."""
        return plain(self.config, "servers", wildcards.server)

    def server_code(self, wildcards: Any) -> str:
        """Code of this server alone."""
        method = self.config.servers[wildcards.server].method
        return code_hash("gradleak.servers.base", registry.modules("servers")[method])

    # --- Trainings and generators ----------------------------------------------------------------

    def training_settings(self, wildcards: Any) -> Settings:
        """Entry of `trainings`."""
        return plain(self.config, "trainings", wildcards.training)

    def training_dataset(self, wildcards: Any) -> str:
        """Arrays that a training takes its images from."""
        return self.paths.dataset_of(wildcards.training)

    def training_clients(self, wildcards: Any) -> list[str]:
        """Files of the clients that train a locked network: one alone, or all of a federation."""
        federated = self.config.trainings[wildcards.training].federated
        clients = range(federated.clients if federated else 1)
        return [self.paths.client.format(model=wildcards.model, client=n) for n in clients]

    def training_seeds(self, wildcards: Any) -> int:
        """Draws that are trained: the most that any experiment on them asks for."""
        asked = (
            e.seeds
            for e in self.config.experiments.values()
            if e.training == wildcards.training and wildcards.model in e.models
        )
        return max(asked, default=1)

    def generator_settings(self, wildcards: Any) -> Settings:
        """Entry of `generators`."""
        return plain(self.config, "generators", wildcards.generator)

    def generator_source(self, wildcards: Any) -> list[str]:
        """Arrays that a generator is trained on, or the user's own weights.

        Where these are missing, the script says what to do.
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
        """Weights that the server of an experiment sends: initial, trained or malicious ones."""
        experiment, model = self.config.experiments[wildcards.experiment], wildcards.model
        if experiment.training is not None:
            return self.paths.trained.format(training=experiment.training, model=model)
        if self.config.servers[experiment.server].method == "honest":
            return self.paths.model.format(model=model)
        return self.paths.sent.format(server=experiment.server, model=model)

    def sharing_client(self, wildcards: Any) -> list[str]:
        """What the client under attack, the first, keeps of a locked network; nothing of others."""
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

    def defence_settings(self, wildcards: Any) -> Settings:
        """Entry of `defences`."""
        return plain(self.config, "defences", wildcards.defence)

    def defence_code(self, wildcards: Any) -> str:
        """Code of this defence alone."""
        method = self.config.defences[wildcards.defence].method
        return code_hash("gradleak.defences.apply", registry.modules("defences")[method])

    def attack_settings(self, wildcards: Any) -> Settings:
        """Entry of `attacks`."""
        return plain(self.config, "attacks", wildcards.attack)

    def attack_code(self, wildcards: Any) -> str:
        """Code of this attack alone: an edit of one leaves the others' results as they are."""
        method = self.config.attacks[wildcards.attack].method
        return code_hash("gradleak.attacks.run", registry.modules("attacks")[method])

    def attack_device(self, wildcards: Any) -> str | None:
        """Device of attacks that use PyTorch; None for others, so that it cannot rerun them."""
        return self.config.device if self.config.attacks[wildcards.attack].searches else None

    def attack_gpu(self, wildcards: Any) -> int:
        """GPUs that an attack asks for: closed forms and COPA run on the CPU."""
        return self.gpu if self.config.attacks[wildcards.attack].searches else 0

    def attack_threads(self, wildcards: Any) -> int:
        """Two for searches over large batches, which gain 1.6; closed forms and others less."""
        targets = self.config.targets[self.config.experiments[wildcards.experiment].targets]
        large = targets.batch >= LARGE_BATCH
        return 2 if self.config.attacks[wildcards.attack].searches and large else 1

    def secret(self, wildcards: Any) -> list[str]:
        """What the server keeps, for an attack that reads it."""
        if not self.config.attacks[wildcards.attack].reads_secret:
            return []
        server = self.config.experiments[wildcards.experiment].server
        return [self.paths.secret.format(server=server, model=wildcards.model)]

    def first_reconstructions(self, wildcards: Any) -> list[str]:
        """Reconstructions that an attack starts from or is made of."""
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
        """Images of the attacker's own, where an attack starts from them."""
        own = getattr(self.config.attacks[wildcards.attack], "own_images", None)
        return [] if own is None else [self.paths.targets.format(targets=own)]

    def generator_of(self, wildcards: Any) -> list[str]:
        """The generator that an attack searches, if it does."""
        name = getattr(self.config.attacks[wildcards.attack], "generator", None)
        return [] if name is None else [self.paths.generator.format(generator=name)]

    # --- Scores ----------------------------------------------------------------------------------

    def score_case(self, wildcards: Any) -> Settings:
        """Columns that are the same in all rows of a score file."""
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
        """What labels mean in an experiment."""
        entry = self.config.experiments[wildcards.experiment]
        return {"loss": entry.loss, "labels": entry.labels}

    def _has_lpips(self, wildcards: Any) -> bool:
        """Whether an experiment is scored by LPIPS too: FedKL's are."""
        return self.config.experiments[wildcards.experiment].paper == "fedkl"

    def lpips_weights(self, wildcards: Any) -> list[str]:
        """Weights that are there for LPIPS; new ones rerun the scores that they are for alone."""
        return backbones.present(self.paths.lpips) if self._has_lpips(wildcards) else []

    def score_code(self, wildcards: Any) -> str:
        """Code of the scores that a job computes."""
        module = "scores_fedkl" if self._has_lpips(wildcards) else "scores"
        return code_hash(f"gradleak.{module}")

    def security_seeds(self, wildcards: Any) -> int:
        """Draws of weights whose ranks are computed, which hardly vary."""
        return self.config.experiments[wildcards.experiment].few

    def rank_amounts(self, wildcards: Any) -> Settings:
        """Draws and images that the rank analysis measures; condition numbers if asked for."""
        entry = self.config.experiments[wildcards.experiment]
        return {
            "seeds": entry.seeds,
            "images": entry.conditions or 1,
            "conditions": entry.conditions is not None,
        }

    def judged_security(self) -> list[str]:
        """Files with c(M) that claims read: those of COPA's pair of images."""
        pair = [name for name in ("copa_pair",) if name in self.config.experiments]
        return self.paths.by_model(self.paths.security, *pair)

    def judged_rank(self) -> list[str]:
        """Rank analyses that claims read: R-GAP's is one of single images."""
        experiments = self.config.experiments.items()
        of_rgap = [(name, entry.targets) for name, entry in experiments if entry.paper == "rgap"]
        single = [name for name, targets in of_rgap if self.config.targets[targets].batch == 1]
        return self.paths.by_model(self.paths.rank, *single)


class Needs:
    """What jobs ask a scheduler for; twice as much at each further attempt.

    Parameters
    ----------
    measured
        What jobs of recorded runs took.
    """

    def __init__(self, measured: Resources) -> None:
        self._measured = measured

    def __call__(self, script: str) -> dict[str, Amount]:
        """Memory in MiB and minutes of a script's jobs, from measured ones."""
        found = self._measured
        return {
            "mem_mb": lambda wildcards, attempt: found.memory(
                script, dict(wildcards.items()), attempt
            ),
            "runtime": lambda wildcards, attempt: found.minutes(
                script, dict(wildcards.items()), attempt
            ),
        }

    @staticmethod
    def doubling(mib: int, minutes: int) -> dict[str, Amount]:
        """Those of jobs that no recorded run had."""
        return {
            "mem_mb": lambda wildcards, attempt: mib * 2 ** (attempt - 1),
            "runtime": lambda wildcards, attempt: minutes * 2 ** (attempt - 1),
        }
