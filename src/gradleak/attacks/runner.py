"""Run one attack on every gradient of a gradient file."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import numpy as np

from gradleak.attacks.base import Attack, AttackerView, ManyAttack, Reconstruction
from gradleak.attacks.finished import Finished
from gradleak.attacks.optimization.initialization import Starts
from gradleak.attacks.optimization.optimization_attack import Search
from gradleak.client import gradient_files
from gradleak.errors import NumericsError
from gradleak.models import files
from gradleak.models.locks import is_key
from gradleak.runtime.artifacts import write_json, write_tensors
from gradleak.runtime.progress import progress
from gradleak.servers.secret import Secrets
from gradleak.settings import registry


def build(
    settings: Mapping[str, Any], device: str = "cpu", generator: str | None = None
) -> Attack | ManyAttack:
    """Build the attack of an entry of ``attacks``, with its device and generator file if used."""
    kind: Any = registry.class_of("attacks", settings["method"])
    places = {"device": device, "generator_file": generator}
    known = {key: place for key, place in places.items() if place and key in kind.model_fields}
    attack: Attack | ManyAttack = kind.model_validate({**settings, **known})
    return attack


class Views:
    """Attacker's views of every run in a gradient file, as (view, seed, target) in file order.

    `model_path` and `gradient_path` are files of one experiment and model, of which at most
    `most_seeds` initializations and `most_images` images are used. `starts` are initial images and
    `secrets` the server's secrets. ``broken`` holds, by (chain, seed, target), why a run cannot be
    attacked at all: its gradient is not usable, or its start is not available. It is complete for
    the runs passed so far.
    """

    def __init__(
        self,
        model_path: str,
        gradient_path: str,
        most_seeds: int | None = None,
        most_images: int | None = None,
        starts: Starts | None = None,
        secrets: Secrets | None = None,
    ) -> None:
        self._secrets = secrets
        self._models = files.read(model_path)
        self._gradients, self._shared = gradient_files.read(gradient_path, self._models.chains)
        self._starts = starts
        self.broken: dict[tuple[str, int, int], str] = {
            (entry["chain"], entry["seed"], entry["batch"]): entry["reason"]
            for entry in self._shared.get("unusable", ())
        }
        self.images = min(int(self._shared["images"]), most_images or sys.maxsize)
        self.seeds = min(int(self._shared["seeds"]), most_seeds or sys.maxsize)
        self._runs = list(files.runs(self._models.chains, self.seeds, self.images))

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[tuple[AttackerView, int, int]]:
        shared = self._shared
        marks, modes = shared.get("fingerprints", {}), shared.get("mode", {})
        for chain, seed, batch in self._runs:
            gradients = files.select(self._gradients, chain.name, seed, batch)
            labels = gradients.pop("label", None)
            classes = gradients.pop("class", None)
            keys = {name: gradients.pop(name) for name in list(gradients) if is_key(name)}
            view = AttackerView(
                chain,
                self._models.of(chain, seed),
                gradients,
                None if labels is None else tuple(int(label) for label in labels),
                shared["low"],
                shared["high"],
                shared["loss"],
                int(shared["batch"]),
                self._begin((chain.name, seed, batch), classes),
                None if self._secrets is None else self._secrets.of(chain.name, seed),
                marks[chain.name][seed] if chain.name in marks else "",
                modes.get(chain.name, "training"),
                keys,
            )
            yield view, seed, batch

    def _begin(self, run: tuple[str, int, int], classes: np.ndarray | None) -> np.ndarray | None:
        """Images that a run starts from, None where there are none or they are not available."""
        if self._starts is None:
            return None
        try:
            return self._starts.of(*run, classes)
        except NumericsError as error:
            self.broken.setdefault(run, str(error))
            return None


def attack_all(
    model_path: str,
    gradient_path: str,
    settings: dict[str, Any],
    *,
    device: str = "cpu",
    starts: Starts | None = None,
    secrets: Secrets | None = None,
    generator: str | None = None,
    finished: Finished | None = None,
) -> Results:
    """Attack every chain, seed and target.

    A run that the attack cannot do stays in the results, as ``failed`` with its reason or as
    ``not_applicable``, with an image of NaN. Searches keep what they finish in `finished`, if any.
    """
    todo = Views(model_path, gradient_path, None, settings.get("images"), starts, secrets)
    attack = build(settings, device, generator)
    if finished is not None and isinstance(attack, Search):
        attack.keep_in(finished)
    out = Results({}, [], [])
    with progress(len(todo), "images") as bar:
        # The networks of one chain have equal shapes, so an attack that can takes them at once.
        for _, group in groupby(todo, key=lambda run: run[0].chain.name):
            runs = list(group)
            for some in [runs] if isinstance(attack, ManyAttack) else [[run] for run in runs]:
                begin, earlier = time.perf_counter(), finished.earlier if finished else 0.0
                with bar.doing(len(some)):
                    found = _attack(attack, some, todo.broken)
                seconds = time.perf_counter() - begin
                seconds = (seconds + (finished.earlier - earlier if finished else 0.0)) / len(some)
                for run, answer in zip(some, found, strict=True):
                    out.add(run, answer, (todo.seeds, todo.images), seconds)
    return out


def run_seed(seed: int, batch: int) -> int:
    """Seed of the attack's own randomness, distinct for each initialization and batch."""
    return 100_003 * seed + batch


@dataclass(frozen=True)
class NotAttacked:
    """A run without a reconstruction: its status and the reason."""

    status: str
    reason: str


Run = tuple[AttackerView, int, int]
Answer = Reconstruction | NotAttacked


def _attack(
    attack: Attack | ManyAttack, runs: Sequence[Run], broken: Mapping[tuple[str, int, int], str]
) -> list[Answer]:
    first, many = runs[0][0], isinstance(attack, ManyAttack)
    reason = attack.applies(first.chain, *[first.mode] if many else [])
    if reason is not None:
        return [NotAttacked("not_applicable", reason) for _ in runs]
    why = [broken.get((view.chain.name, seed, batch)) for view, seed, batch in runs]
    whole = [run for run, one in zip(runs, why, strict=True) if one is None]
    views = [view for view, _, _ in whole]
    seeds = [run_seed(seed, batch) for _, seed, batch in whole]
    found: Iterator[Reconstruction | NumericsError]
    if isinstance(attack, ManyAttack):
        found = iter(attack.run_many(views, seeds) if views else ())
    else:
        found = (run_one(attack, *one) for one in zip(views, seeds, strict=True))
    answers = (next(found) if one is None else NumericsError(one) for one in why)
    return [
        NotAttacked("failed", str(one)) if isinstance(one, NumericsError) else one
        for one in answers
    ]


def run_one(attack: Attack, view: AttackerView, seed: int) -> Reconstruction | NumericsError:
    """Attack one gradient; an attack that fails gives its error."""
    try:
        return attack.run(view, seed)
    except NumericsError as error:
        return error
    except np.linalg.LinAlgError as error:
        return NumericsError(f"Linear algebra gave up: {error}.")


@dataclass(frozen=True)
class Results:
    """Images ``{chain}/images`` (seeds, targets, answers, K', C, H, W) and their records.

    A reconstruction that does not exist or failed is NaN. Index 0 is the attack's own choice,
    further ones are twins or other starts. Where an attack finds it, ``{chain}/fc_input`` (seeds,
    targets, n) stands beside the images.
    """

    images: dict[str, np.ndarray]
    runs: list[dict[str, Any]]
    seconds: list[float]

    def add(self, run: Run, answer: Answer, sizes: tuple[int, int], seconds: float) -> None:
        """Add one run's result; `sizes` are the numbers of seeds and images in the file."""
        view, seed, batch = run
        place, key = (seed, batch), f"{view.chain.name}/images"
        which = {"model": view.chain.name, "seed": seed, "batch": batch}
        self.seconds.append(seconds)
        if key not in self.images:
            kind = np.float64 if isinstance(answer, NotAttacked) else answer.images.dtype
            self.images[key] = np.full((*sizes, 1, 1, *view.chain.input), np.nan, kind)
        if isinstance(answer, NotAttacked):
            self.runs.append({**which, "answer": 0, "kind": "answer", **asdict(answer)})
            return
        answers = (answer, *answer.others)
        held, shape = self.images[key].shape, (*sizes, len(answers), *answer.images.shape)
        more = [(0, max(0, size - old)) for size, old in zip(shape, held, strict=True)]
        if any(map(any, more)):
            self.images[key] = np.pad(self.images[key], more, constant_values=np.nan)
        for number, one in enumerate(answers):
            record = _record(one)
            if record["status"] == "ok":
                self.images[key][(*place, number, slice(0, len(one.images)))] = one.images
            self.runs.append({**which, "answer": number, **record})
        if answer.fc_input is not None:
            blank = np.full((*sizes, *answer.fc_input.shape), np.nan)
            self.images.setdefault(f"{view.chain.name}/fc_input", blank)[place] = answer.fc_input

    def summary(self) -> str:
        """Summarise the results in a line for the log: counts by status, and seconds."""
        counts = Counter(run["status"] for run in self.runs)
        parts = [f"{number} {status}" for status, number in sorted(counts.items())]
        return f"{', '.join(parts)}; {sum(self.seconds):.1f} s in {len(self.seconds)} runs"

    def save(self, path: str, timing: str, provenance: dict[str, Any]) -> None:
        """Write the reconstruction file and, separately, the data that vary from run to run."""
        write_tensors(path, self.images, {"runs": self.runs, "provenance": provenance})
        write_json(timing, {"seconds": self.seconds})


def _record(found: Reconstruction) -> dict[str, Any]:
    reason = found.failure
    if not reason and not np.all(np.isfinite(found.images)):
        reason = "The reconstruction holds NaN or infinity."
    return {
        "kind": found.kind,
        "status": "failed" if reason else "ok",
        "reason": reason,
        "stop": found.stop,
        "label": found.label,
        "classes": list(found.classes),
        "counts": list(found.counts),
        "partial": found.partial,
        "loss": found.loss if np.isfinite(found.loss) else None,
        "evaluations": found.evaluations,
        "trace": [float(value) for value in found.trace],
        "layers": [asdict(layer) for layer in found.layers],
    }
