"""What attacks answered, with its scores: one reader for the figures of R-GAP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from gradleak import targets
from gradleak.artifacts import read_csv
from gradleak.attacks import reconstruction_files
from gradleak.columns import SCORES
from gradleak.errors import ArtifactError
from gradleak.figures.missing import draw_missing
from gradleak.figures.pictures import describe_images, draw_pixels, median_of
from gradleak.figures.style import number
from gradleak.models.chain import Chain
from gradleak.targets import TargetSet

PLACE = ["defence", "attack", "model", "seed", "batch", "answer", "index"]
FACTS = ["kind", "status", "reason", "precision", "images"]


@dataclass(frozen=True)
class Answer:
    """One answer of one attack to one gradient.

    Attributes
    ----------
    images
        (K', C, H, W) on the input's scale, empty where the attack failed.
    scores
        A row for each image of the batch, a column for each metric.
    status, reason
        ``ok``, or why there are no images.
    """

    images: np.ndarray
    scores: pd.DataFrame
    status: str
    reason: str

    @property
    def ok(self) -> bool:
        """Whether there is an image."""
        return self.status == "ok" and len(self.images) > 0

    def value(self, metric: str) -> float:
        """A metric of the first image, NaN where there is none."""
        return float(self.scores[metric].iloc[0]) if metric in self.scores else float("nan")


class Answers:
    """Answers of all runs that a figure shows.

    Parameters
    ----------
    reconstructions, scores
        Files of the same runs in the same order.

    Attributes
    ----------
    table
        A row for each answer and image: `PLACE`, `FACTS` and a column for each metric.

    Raises
    ------
    ArtifactError
        If there are no files, or one is missing or damaged.
    """

    def __init__(self, reconstructions: Iterable[str], scores: Iterable[str]) -> None:
        frames = []
        self._images: dict[tuple[str, str, str], np.ndarray] = {}
        for reconstruction, score in zip(reconstructions, scores, strict=True):
            frame = read_csv(score, SCORES, keep_default_na=False)
            frames.append(frame)
            images, _ = reconstruction_files.read(reconstruction)
            for name, array in images.items():
                if name.endswith("/images"):
                    key = (frame["defence"].iloc[0], frame["attack"].iloc[0], name[:-7])
                    self._images[key] = array
        if not frames:
            raise ArtifactError(
                "No scores to draw; name models and attacks of the figure in the experiments of "
                "config.yaml."
            )
        self.table = _wide(pd.concat(frames, ignore_index=True))

    def rows(
        self, model: str, attack: str, defence: str = "none", *, chosen: bool = True
    ) -> pd.DataFrame:
        """Rows of one attack on one network: the attack's own choices, or all its answers."""
        table = self.table
        found = table[
            (table["model"] == model)
            & (table["attack"] == attack)
            & (table["defence"] == defence)
            & ((table["answer"] == 0) | (not chosen))
        ]
        if found.empty:
            raise ArtifactError(
                f"The scores hold no {attack} of {model} under {defence}; delete their files and "
                "ask Snakemake for them again."
            )
        return found

    def median(self, model: str, attack: str, defence: str = "none") -> float:
        """Median MSE of the attack's own choices; a failed run counts as infinite."""
        return median_of(self.rows(model, attack, defence))

    def find(
        self,
        model: str,
        attack: str,
        batch: int,
        *,
        defence: str = "none",
        answer: int = 0,
        seed: int = 0,
    ) -> Answer | None:
        """One answer; None where the attack was not run on that image or has fewer answers.

        Raises
        ------
        ArtifactError
            If there is nothing at all of that attack and network.
        """
        rows = self.rows(model, attack, defence, chosen=False)
        rows = rows[(rows["seed"] == seed) & (rows["batch"] == batch) & (rows["answer"] == answer)]
        if rows.empty:
            return None
        images = self._images.get((defence, attack, model))
        if images is None or images.shape[1] <= batch or images.shape[2] <= answer:
            raise ArtifactError(
                f"The reconstructions hold no {attack} of {model}, seed {seed}, image {batch}, "
                "which the scores name; delete both and ask Snakemake for them again."
            )
        found = images[seed, batch, answer]
        found = found[np.isfinite(found).all(axis=(1, 2, 3))]
        first = rows.iloc[0]
        return Answer(found, rows, str(first["status"]), str(first["reason"]))

    def shared(self, attacks: Iterable[str]) -> int:
        """How many batches, from the first one on, every one of these attacks was run on.

        Raises
        ------
        ArtifactError
            If one of them was not run at all.
        """
        counts = self.table.groupby("attack")["batch"].nunique()
        for attack in attacks:
            if attack not in counts:
                raise ArtifactError(
                    f"The scores hold no {attack}; name it in the attacks of the experiment in "
                    "config.yaml."
                )
        return int(counts[list(attacks)].min())

    @property
    def precisions(self) -> str:
        """Precision of the gradients, in words."""
        return " and ".join(sorted(set(self.table["precision"])))


def _wide(scores: pd.DataFrame) -> pd.DataFrame:
    """One row for each answer and image instead of one for each metric, in the files' order."""
    value = pd.to_numeric(scores["value"], errors="coerce")
    values = scores.assign(value=value).pivot(index=PLACE, columns="metric", values="value")
    facts = scores.drop_duplicates(PLACE)[[*PLACE, *FACTS]]
    wide = facts.merge(values.reset_index(), on=PLACE, how="left")
    return wide if "mse" in wide else wide.assign(mse=np.nan)


@dataclass(frozen=True)
class Content:
    """What a figure is made of, read from its files.

    Attributes
    ----------
    originals, answers
        Images under attack, and what attacks made of their gradients.
    chains
        Networks, in the figure's order.
    attacks
        Heading of each attack, in the figure's order.
    names
        What networks are called in the figure.
    note
        What the reader has to know of the attacks.
    """

    originals: TargetSet
    answers: Answers
    chains: list[Chain]
    attacks: Mapping[str, str]
    names: Mapping[str, str]
    note: str

    @staticmethod
    def read(files: Mapping[str, Any], words: Mapping[str, Any]) -> Content:
        """Read ``targets``, ``reconstructions`` and ``scores``; `words` as in config's rules.

        Raises
        ------
        ArtifactError
            If a file lacks what the figure shows.
        """
        return Content(
            targets.read(files["targets"]),
            Answers(files["reconstructions"], files["scores"]),
            [Chain.from_description(entry) for entry in words.get("chains", [])],
            words["attacks"],
            words.get("names", {}),
            words.get("note", ""),
        )

    def name(self, chain: Chain) -> str:
        """What a network is called in the figure."""
        return self.names.get(chain.name, chain.name)

    def draw_original(self, axes: Axes, batch: int) -> None:
        """Show the first image of a batch."""
        draw_pixels(axes, self.originals.images[batch, 0] / 255.0)

    def show(self, axes: Axes, answer: Answer | None, image: int = 0) -> None:
        """Draw one image of an answer in a frame, or why there is none."""
        if answer is None:
            draw_missing(axes, "not run")
        elif answer.ok:
            draw_pixels(axes, self.originals.pixels(answer.images[image]))
        else:
            draw_missing(axes, answer.reason)

    def describe(self, scale: str) -> str:
        """Which runs a figure shows: images, scale, precision, and how many of each attack."""
        counts = []
        for attack, name in self.attacks.items():
            rows = self.answers.table[self.answers.table["attack"] == attack]
            batches = rows["batch"].nunique()
            others = rows[rows["kind"].str.startswith("start") & (rows["answer"] > 0)]
            starts = 1 + others["answer"].nunique()
            single = self.originals.images.shape[1] == 1
            what = ("image" if single else "batch") + (
                "" if batches == 1 else "s" if single else "es"
            )
            counts.append(
                f"{name}: {batches} {what}" + (f", {starts} starts" if starts > 1 else "")
            )
        low, high = self.originals.offset, 1 + self.originals.offset
        return (
            f"{self.note} Runs: {'; '.join(counts)}. A failed run counts as worst. MSE on inputs "
            f"in [{low:g}, {high:g}]; pictures are clipped to that range. Images: "
            f"{describe_images(self.originals)}; scale {scale}; gradients in "
            f"{self.answers.precisions}."
        )


def caption(answer: Answer | None, metric: str = "mse") -> str:
    """Words for a metric of an answer: its value, ``failed``, or nothing where it was not run."""
    if answer is None:
        return ""
    return number(answer.value(metric)) if answer.ok else answer.status.replace("_", " ")
