"""Federated training: FedAvg, and FedKL where layers are locked by clients' keys."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from gradleak.errors import ConfigError, NumericsError
from gradleak.models.build import with_statistics
from gradleak.models.chain import Chain
from gradleak.models.initial import draw_key
from gradleak.models.locks import private, public
from gradleak.runtime.progress import Progress
from gradleak.training import checkpoint
from gradleak.training.checkpoint import Arrays, OnRows, State
from gradleak.training.clients import Aggregate, Federated, chosen_number
from gradleak.training.data import Images, Split
from gradleak.training.learner import Learner, Passed
from gradleak.training.recipe import Recipe

LOG = logging.getLogger("gradleak")
# Owners of accuracies other than numbered clients.
SERVER, RANDOM = "server", "random"
# Fields of `Rounds` that a checkpoint has as JSON values.
COUNTED = ("mean", "dropped", "answers")
# Client number for the random key; no client has it.
NOBODY = 2**31


@dataclass
class Best:
    """Round of the best validation accuracy of one client, from 1; the first of equals."""

    round: int = 0
    validation_accuracy: float = -1.0
    test_accuracy: float = float("nan")


@dataclass(kw_only=True)
class Rounds(State):
    """State of a federation after some rounds; its curve has one row a round and client."""

    public: Arrays  # the server's weights
    private: list[Arrays]  # key and lock weights of each client; empty without a lock
    dropped: list[int]  # rounds in which each client was chosen and did not respond
    kept: Arrays = field(default_factory=dict)  # `public` of the best mean validation accuracy
    kept_private: list[Arrays] = field(default_factory=list)  # `private` after that round
    mean: float = -1.0  # best mean validation accuracy
    best: dict[str, Best] = field(default_factory=dict)  # by client, or ``server`` and ``random``
    answers: int = 0  # number of clients' weights averaged so far

    def groups(self) -> dict[str, Arrays]:
        """See `State`."""
        named = {"public": self.public, "kept": self.kept}
        for group, each in (("private", self.private), ("kept", self.kept_private)):
            named |= {f"{group}{client}": own for client, own in enumerate(each)}
        return named

    def record(self) -> dict[str, Any]:
        """See `State`."""
        best = {who: asdict(one) for who, one in self.best.items()}
        return super().record() | {"best": best, **{key: getattr(self, key) for key in COUNTED}}

    @classmethod
    def unpack(cls, groups: Mapping[str, Arrays], record: Mapping[str, Any]) -> Self:
        """See `State`."""
        clients = range(len(record["dropped"]))
        own, kept = ([groups[f"{g}{c}"] for c in clients] for g in ("private", "kept"))
        best = {who: Best(**one) for who, one in record["best"].items()}
        more = {key: record[key] for key in ("done", "rows", *COUNTED)}
        more |= {"best": best, "kept": groups["kept"], "kept_private": kept}
        return cls(public=groups["public"], private=own, **more)


class Federation(Learner):
    """Clients that train one network together; a run that was killed resumes between rounds.

    In each round the server sends its weights; each chosen client adds its own key and lock, passes
    its images `local_epochs` times with momentum that starts at 0, and sends its weights back,
    running statistics of norms included, but neither key nor lock. The server averages those
    received. The learning rate of a round is that of the schedule at this round.

    A client that does not respond, or whose weights are not finite, is left out of the round and
    continues from its previous lock. Random choices of a round follow from (seed, round) alone.

    `weights` are the server's; those of locks initialise every client's lock. `clients` are key and
    lock weights of each client (empty without a lock), `parts` their images, on the training
    device. Epochs of `recipe` are rounds. For `source` and `code` see
    `gradleak.training.engine.Trainer`.
    """

    def __init__(
        self,
        chain: Chain,
        weights: Mapping[str, np.ndarray],
        clients: Sequence[Mapping[str, np.ndarray]],
        parts: Sequence[Images],
        split: Split,
        federated: Federated,
        recipe: Recipe,
        seed: int,
        source: Mapping[str, Any] | None = None,
        code: str = "",
    ) -> None:
        counts = {len(clients), len(parts), federated.clients}
        if len(counts) > 1:
            raise ConfigError(
                f"{chain.name}: {federated.clients} clients are to train it, but {len(clients)} "
                f"have a private part and {len(parts)} have images; give each client both."
            )
        super().__init__(chain, {**weights, **clients[0]}, recipe, seed, split.train.device)
        self.split, self.parts, self.federated = split, parts, federated
        self._weights, self._private = with_statistics(chain, weights), clients
        # Locks that no client trains: none, or that of a random key.
        self._others: dict[str, Arrays] = {SERVER: {}}
        if chain.locked:
            self._others = {RANDOM: draw_key(chain, NOBODY, seed) | private(self._weights)}
        everything = {f"{c}/{k}": v for c, own in enumerate(clients) for k, v in own.items()}
        data = {**(source or {}), **split.sizes, "clients": [len(part) for part in parts]}
        settings = {f"federated.{key}": value for key, value in asdict(federated).items()}
        self.identity = self._identity({**weights, **everything}, data, code=code, **settings)

    def run(self, path: Path | None = None, on_round: OnRows = lambda rows: None) -> Rounds:
        """Train to the end.

        `path` is the checkpoint, if any; `on_round` is called with the curve so far after each
        round. Raises `NumericsError` if no client responded in any round, `ConfigError` if a batch
        does not fit in memory, and `ArtifactError` if the checkpoint is damaged or of another
        training run.
        """
        begun, name = self._begin(), self.chain.name
        state = checkpoint.load(path, self.identity, begun, name, "round")
        settings, recipe = self.federated, self.recipe
        part = chosen_number(settings.share, settings.clients) / settings.clients
        steps = sum(images.steps(recipe.batch) for images in self.parts)
        bar = self._bar(round(settings.local_epochs * part * steps), state)
        with self.within_memory(max(self.parts, key=len)), bar:
            for number in checkpoint.epochs(path, self.identity, state, recipe, on_round):
                self._judge(number, state, self._round(number, state, bar))
        if not state.answers:
            raise NumericsError(
                f"{name}: no client answered in any of {recipe.epochs} rounds, so nothing was "
                f"trained; lower rate: {recipe.rate:g}, or raise federated.answering."
            )
        return state

    def _begin(self) -> Rounds:
        clients = [dict(own) for own in self._private]
        start = public(self._weights)
        return Rounds(public=start, private=clients, dropped=[0] * len(clients))

    def _round(self, number: int, state: Rounds, bar: Progress) -> dict[int, Passed]:
        """Train the clients of a round and average their weights; return the responders' passes."""
        silent = self.federated.silent(self.seed, number)
        total, passed = Aggregate(state.public), dict[int, Passed]()
        for client in self.federated.chosen(self.seed, number):
            if client in silent:
                self._drop(number, client, state, "did not answer")
            elif found := self._locally(number, client, state, bar):
                weights, passed[client] = found
                state.private[client] = private(weights)
                total.add(client, public(weights), len(self.parts[client]))
        state.answers += len(passed)
        if not passed:
            self._warn(number, "no client answered; the server's weights stay as they were")
        state.public = total.mean()
        return passed

    def _warn(self, number: int, what: str) -> None:
        LOG.warning("%s, round %d: %s", self.chain.name, number + 1, what)

    def _drop(self, number: int, client: int, state: Rounds, why: str) -> None:
        state.dropped[client] += 1
        self._warn(number, f"client {client} {why}; the round goes on without it")

    def _locally(
        self, number: int, client: int, state: Rounds, bar: Progress
    ) -> tuple[Arrays, Passed] | None:
        """Weights of a client after its passes, and its last pass; None if not finite."""
        self._put({**state.public, **state.private[client]})
        self.optimiser = self.recipe.optimiser(self.module)
        rate = self.recipe.rate_at(number, self.recipe.epochs)
        epochs = self.federated.local_epochs
        for epoch in range(number * epochs, (number + 1) * epochs):
            passed = self.one_pass(self.parts[client], epoch, lambda step: rate, bar, client)
        if not np.isfinite(passed.loss) or not self.is_finite():
            self._drop(number, client, state, f"diverged (loss {passed.loss:g})")
            return None
        return self.weights(), passed

    def _judge(self, number: int, state: Rounds, passed: Mapping[int, Passed]) -> None:
        """Evaluate the server's new weights: update the best rounds, append rows to the curve."""
        found, clients = {}, state.private if self.chain.locked else []
        views = {str(client): own for client, own in enumerate(clients)} | self._others
        for who, own in views.items():
            self._put({**state.public, **own})
            loss, accuracy = self.evaluate(self.split.validation)
            best = state.best.setdefault(who, Best())
            if accuracy > best.validation_accuracy:
                # Immediately, so that no copy of each client's weights has to be kept.
                tested = self.evaluate(self.split.test)[1]
                state.best[who] = Best(number + 1, accuracy, tested)
            found[who] = accuracy
            rate = self.recipe.rate_at(number, self.recipe.epochs)
            row = {"client": who, "epoch": number + 1, "rate": rate, **self._trained(who, passed)}
            state.rows.append(row | {"validation_loss": loss, "validation_accuracy": accuracy})
        mean = float(np.mean([value for who, value in found.items() if who != RANDOM]))
        if mean > state.mean:
            state.mean, state.kept = mean, state.public
            state.kept_private = list(state.private)

    def _trained(self, who: str, passed: Mapping[int, Passed]) -> dict[str, float | None]:
        """Loss and accuracy of a client's last pass; for the server the mean over images."""
        own = {c: one for c, one in passed.items() if who in (SERVER, str(c))}
        images = sum(len(self.parts[client]) for client in own)

        def mean(name: str) -> float | None:
            sums = (len(self.parts[c]) * getattr(one, name) for c, one in own.items())
            return sum(sums) / images if images else None

        return {"train_loss": mean("loss"), "train_accuracy": mean("accuracy")}
