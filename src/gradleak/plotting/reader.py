"""Read originals, reconstructions and their scores for figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gradleak.attacks import reconstructions
from gradleak.data import targets
from gradleak.data.targets import TargetSet
from gradleak.errors import ArtifactError
from gradleak.models.chain import Chain
from gradleak.plotting.layout import Cell
from gradleak.plotting.style import number
from gradleak.plotting.wording import described, precision, typical
from gradleak.runtime.artifacts import again, opened, read_csv
from gradleak.scoring.metrics.image import assignment

PLACE = ["seed", "batch", "answer", "index"]
FACTS = ["kind", "status", "reason", "precision"]
# Metrics of every table; the last for attacks that reconstruct by class only.
METRICS = ["mse", "psnr", "ssim", "ssim_gauss", "psnr_class_mean"]
NONE = -1  # position of an image that an attack does not reconstruct
CHECKED = 2**26  # size up to which a file is validated as a whole
SEED = 0  # seed of the weights for pictures


class Stored:
    """A reconstruction file read image by image, since one with 1,000 photos has 600 MB."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.runs = reconstructions.read_runs(path)
        if Path(path).stat().st_size < CHECKED:
            reconstructions.read(path)

    def images(self, model: str, batch: int, part: slice, answer: int = 0) -> np.ndarray:
        """Images `part` of a batch's reconstruction, (k, C, H, W), NaN if missing."""
        with opened(self.path) as file:
            stored = file.get_slice(f"{model}/images")
            if len(stored.get_shape()) != 7:
                raise ValueError(f"array '{model}/images' is of shape {stored.get_shape()}")
            return np.asarray(stored[SEED, batch, answer, part])


@dataclass(frozen=True)
class Answer:
    """One reconstruction by an attack from the gradient of a batch."""

    images: np.ndarray  # (K', C, H, W) on the input's scale; failed runs may have some
    scores: pd.DataFrame  # one row per image of the batch, one column per metric
    status: str
    reason: str

    @property
    def ok(self) -> bool:
        """True if the run succeeded."""
        return self.status == "ok" and len(self.images) > 0

    def value(self, metric: str) -> float:
        """Metric of the first image, NaN if missing."""
        return float(self.scores[metric].iloc[0]) if metric in self.scores else float("nan")


@dataclass(frozen=True)
class Panel:
    """One attack on one network under one defence."""

    title: str
    targets: TargetSet
    stored: Stored
    model: str  # id of the network in the files
    table: pd.DataFrame  # one row per answer and image: PLACE, FACTS and each metric

    def record(self, batch: int, answer: int = 0) -> Mapping[str, Any] | None:
        """Stored record of a reconstruction; None if the attack was not run."""
        place = {"model": self.model, "seed": SEED, "batch": batch, "answer": answer}
        return next((run for run in self.stored.runs if place.items() <= run.items()), None)

    def reason(self, batch: int) -> str:
        """Reason why a batch has no images; empty if it has."""
        entry = self.record(batch)
        if entry is None:
            return f"not run on batch {batch}"
        return "" if entry["status"] == "ok" else str(entry["reason"] or entry["status"])

    def says(self, key: str, batch: int) -> bool:
        """True if the record of a batch has a `key`, such as ``partial`` or ``classes``."""
        return bool((self.record(batch) or {}).get(key))

    def answer(self, batch: int, answer: int = 0) -> Answer | None:
        """Reconstruction of a batch; None if the attack was not run or has fewer answers."""
        entry = self.record(batch, answer)
        if entry is None:
            return None
        images = self.stored.images(self.model, batch, slice(None), answer)
        found = images[np.isfinite(images).all(axis=(1, 2, 3))]
        return Answer(found, self._rows(batch, answer), str(entry["status"]), str(entry["reason"]))

    def _rows(self, batch: int, answer: int = 0) -> pd.DataFrame:
        there = (self.table[["seed", "batch", "answer"]] == [SEED, batch, answer]).all(axis=1)
        return self.table[there]

    def images(self, batch: int, positions: Sequence[int]) -> list[np.ndarray | None]:
        """Reconstructions (C, H, W) of these originals, in [0, 1] up to rounding.

        The image of the original's class if the attack gives classes, otherwise the one matched by
        the minimal sum of MSEs; None if there is none.
        """
        places = self._places(batch)
        read: dict[int, np.ndarray | None] = {NONE: None}
        for place in {int(places[k]) for k in positions} - {NONE}:
            image = self.stored.images(self.model, batch, slice(place, place + 1))[0]
            read[place] = self.targets.pixels(image) if np.isfinite(image).all() else None
        return [read[int(places[k])] for k in positions]

    def _places(self, batch: int) -> np.ndarray:
        """Position of each original's image in the reconstruction (K,), `NONE` if missing."""
        entry = self.record(batch)
        if entry is None or entry["status"] != "ok":
            return np.full(self.targets.size, NONE)
        if entry.get("classes"):
            place = {int(label): k for k, label in enumerate(entry["classes"])}
            return np.array([place.get(int(label), NONE) for label in self.targets.labels[batch]])
        found = self.stored.images(self.model, batch, slice(None))
        kept = np.flatnonzero(np.isfinite(found).all(axis=(1, 2, 3)))
        if len(kept) != self.targets.size:
            # A single image stands for all images of the batch.
            return np.full(self.targets.size, kept[0] if len(kept) else NONE)
        return kept[assignment(self.targets.inputs(batch), found[kept])]

    @property
    def chosen(self) -> pd.DataFrame:
        """Rows of the attack's own choices, under all seeds."""
        return self.table[self.table["answer"] == 0]

    def works(self, metric: str) -> pd.Series:
        """Metric of the attack's own choices, NaN for failed runs."""
        return self.chosen[metric].where(self.chosen["status"] == "ok")

    def values(self, batch: int) -> pd.DataFrame:
        """Row of metrics for each original of a batch, NaN if missing."""
        rows, indices = self._rows(batch).set_index("index"), self.targets.indices[batch]
        return rows.reindex(indices).reset_index(drop=True)


def read(files: Mapping[str, Any], words: Mapping[str, Any]) -> list[Panel]:
    """Read panels with a file of ``targets``, ``reconstructions`` and ``scores`` each.

    Raises `ArtifactError` if `words` has no ``panels`` (``title`` and ``model`` of each), or a file
    is missing, damaged, or lacks its panel.
    """
    entries = words.get("panels", ())
    each = zip(entries, files["targets"], files["reconstructions"], files["scores"], strict=True)
    if not entries:
        raise _nothing()
    sets = {path: targets.read(path) for path in dict.fromkeys(files["targets"])}
    return [
        _panel(e["title"], sets[chosen], Stored(found), e["model"], read_scores(score), score)
        for e, chosen, found, score in each
    ]


def _nothing() -> ArtifactError:
    return ArtifactError(
        "Nothing to draw; name models and attacks of the figure in the experiments of config.yaml."
    )


def read_scores(path: str) -> pd.DataFrame:
    """Rows of images in a score file, with NaN for values that are not numbers."""
    table = read_csv(path, ["model", *PLACE, *FACTS, "metric", "value"], keep_default_na=False)
    table = table[table["index"] >= 0]  # others are of classes
    return table.assign(value=pd.to_numeric(table["value"], errors="coerce"))


def _panel(
    title: str, originals: TargetSet, stored: Stored, model: str, scores: pd.DataFrame, path: str
) -> Panel:
    scores = scores[scores["model"] == model]
    if not ((scores["seed"] == SEED) & (scores["answer"] == 0)).any():
        raise ArtifactError(f"{path} has no rows of {model}, seed {SEED}; {again(path)}.")
    panel = Panel(title, originals, stored, model, wide(scores))
    there = {(r["seed"], r["batch"], r["answer"]) for r in stored.runs if r["model"] == model}
    for seed, batch, answer in panel.table[PLACE[:3]].itertuples(index=False):
        if (seed, batch, answer) not in there:
            raise ArtifactError(
                f"{stored.path} has no answer {answer} of {model}, seed {seed}, image {batch}, "
                "which its scores name; delete both and ask Snakemake for them again."
            )
    return panel


def wide(scores: pd.DataFrame) -> pd.DataFrame:
    """Pivot to one row per answer and image, in the file's order."""
    values = scores.pivot(index=PLACE, columns="metric", values="value")
    values = values.reindex(columns=[*METRICS, *(m for m in values if m not in METRICS)])
    facts = scores.drop_duplicates(PLACE)[[*PLACE, *FACTS]]
    return facts.merge(values.reset_index(), on=PLACE, how="left")


def median(table: pd.DataFrame) -> float:
    """Median MSE over runs; failed runs rank last, so it may be infinite."""
    if table.empty:
        return float("nan")
    return float(table["mse"].where(table["status"] == "ok", np.inf).fillna(np.inf).median())


def evenly(count: int, most: int) -> list[int]:
    """Positions of `most` out of `count`, evenly spaced; all if there are no more."""
    if count <= most:
        return list(range(count))
    return [round(k * (count - 1) / (most - 1)) for k in range(most)]


def ranked(values: Iterable[float]) -> list[int]:
    """Positions with a value, best first; ties in order."""
    array = np.array(list(values), dtype=float)
    return [int(k) for k in np.argsort(-array, kind="stable") if np.isfinite(array[k])]


@dataclass(frozen=True)
class Content:
    """Content of a figure of single images."""

    originals: TargetSet  # images under attack
    panels: Mapping[tuple[str, str, str], Panel]  # by network, attack and defence
    chains: list[Chain]  # in the figure's order
    attacks: Mapping[str, str]  # headings of attacks in the figure's order
    names: Mapping[str, str]  # labels of networks
    note: str  # information on the attacks for the reader

    @staticmethod
    def read(files: Mapping[str, Any], words: Mapping[str, Any]) -> Content:
        """Read ``targets``, ``reconstructions`` and ``scores``.

        `words` has ``chains`` (descriptions of the networks), their ``names``, ``attacks`` with
        headings, and ``note``. Raises `ArtifactError` if there is no panel, or a file is damaged.
        """
        originals, panels = targets.read(files["targets"]), {}
        for found, path in zip(files["reconstructions"], files["scores"], strict=True):
            stored, scores = Stored(found), read_scores(path)
            for place, _ in scores.groupby(["model", "attack", "defence"], sort=False):
                model, attack, defence = map(str, place)
                panels[model, attack, defence] = _panel("", originals, stored, model, scores, path)
        if not panels:
            raise _nothing()
        chains = [Chain.from_description(entry) for entry in words.get("chains", [])]
        more = words["attacks"], words.get("names", {}), words.get("note", "")
        return Content(originals, panels, chains, *more)

    def name(self, chain: Chain) -> str:
        """Label of a network in the figure."""
        return self.names.get(chain.name, chain.name)

    def panel(self, model: str, attack: str, defence: str = "none") -> Panel:
        """Return one attack on one network; raise `ArtifactError` if it is missing."""
        found = self.panels.get((model, attack, defence))
        if found is None:
            raise ArtifactError(
                f"The scores hold no {attack} of {model} under {defence}; name it in the attacks "
                "of the experiment in config.yaml, or delete their files and ask Snakemake for "
                "them again."
            )
        return found

    def table(self, *attacks: str) -> pd.DataFrame:
        """Scores of some attacks, by default all, on all networks."""
        found = [p.table for key, p in self.panels.items() if key[1] in attacks or not attacks]
        if not found:
            raise ArtifactError(
                f"The scores hold no {attacks[0]}; name it in the attacks of the experiment in "
                "config.yaml."
            )
        return pd.concat(found, ignore_index=True)

    def shared(self) -> int:
        """Number of leading batches on which every attack of the figure was run."""
        return min(self.table(attack)["batch"].nunique() for attack in self.attacks)

    def original(self, batch: int, *words: str) -> Cell:
        """First image of a batch."""
        return Cell(self.originals.images[batch, 0] / 255.0, words)

    def cell(self, answer: Answer | None, *words: str, image: int = 0) -> Cell:
        """One reconstructed image, or the reason why it is missing."""
        if answer is None:
            return Cell(None, words, "not run")
        if not answer.ok:
            return Cell(None, words, answer.reason)
        return Cell(self.originals.pixels(answer.images[image]), words)

    def typical(self, panel: Panel, batch: int) -> Cell:
        """Reconstruction with its MSE, and the median over all images."""
        found = panel.answer(batch)
        return self.cell(found, caption(found), typical(median(panel.chosen)))

    def describe(self, scale: str) -> str:
        """Describe the runs of a figure: images, scale, precision, and number per attack."""
        one, more = ("image", "images") if self.originals.size == 1 else ("batch", "batches")
        counts = []
        for attack, name in self.attacks.items():
            rows = self.table(attack)
            others = rows[rows["kind"].str.startswith("start") & (rows["answer"] > 0)]
            starts, batches = 1 + others["answer"].nunique(), rows["batch"].nunique()
            many = f", {starts} starts" if starts > 1 else ""
            counts.append(f"{name}: {batches} {one if batches == 1 else more}{many}")
        low, high = self.originals.offset, 1 + self.originals.offset
        return (
            f"{self.note} Runs: {'; '.join(counts)}. A failed run counts as worst. MSE on inputs "
            f"in [{low:g}, {high:g}]; pictures are clipped to that range. Images: "
            f"{described(self.originals)}; scale {scale}; gradients in "
            f"{precision([self.table()])}."
        )


def caption(answer: Answer | None, metric: str = "mse") -> str:
    """Format a metric of an answer: its value, ``failed``, or nothing if it was not run."""
    if answer is None:
        return ""
    return number(answer.value(metric)) if answer.ok else answer.status.replace("_", " ")


def footer(
    words: Mapping[str, Any], panels: Sequence[Panel], images: str, scale: str, first: str
) -> str:
    """Describe the runs of a figure, after its own sentences `first`."""
    said = f"{first} {words.get('note', '')} Images: {images}."
    return f"{said} Scale {scale}; gradients in {precision(panel.table for panel in panels)}."
