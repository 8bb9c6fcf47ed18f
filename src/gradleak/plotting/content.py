"""Content of figures of single images: networks, originals and reconstructions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from gradleak.data.targets import TargetSet
from gradleak.errors import ArtifactError
from gradleak.models.chain import Chain
from gradleak.plotting import reader
from gradleak.plotting.layout import Cell
from gradleak.plotting.reader import Answer, Panel, median, precision
from gradleak.plotting.wording import caption, described, typical


@dataclass(frozen=True)
class Content:
    """Content of a figure, read from its files."""

    panels: Mapping[tuple[str, str, str], Panel]  # by network, attack and defence
    chains: list[Chain]  # in the figure's order
    attacks: Mapping[str, str]  # headings of attacks in the figure's order
    names: Mapping[str, str]  # labels of networks
    note: str  # information on the attacks for the reader

    @staticmethod
    def read(files: Mapping[str, Any], words: Mapping[str, Any]) -> Content:
        """Read ``targets``, ``reconstructions`` and ``scores``.

        `words` has ``chains`` (descriptions of the networks), their ``names``, ``attacks`` with
        headings, and ``note``.
        """
        chains = [Chain.from_description(entry) for entry in words.get("chains", [])]
        more = words["attacks"], words.get("names", {}), words.get("note", "")
        return Content(reader.read_all(files), chains, *more)

    @property
    def originals(self) -> TargetSet:
        """Images under attack."""
        return next(iter(self.panels.values())).targets

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
        what = "image" if self.originals.size == 1 else "batch"
        counts = []
        for attack, name in self.attacks.items():
            rows = self.table(attack)
            others = rows[rows["kind"].str.startswith("start") & (rows["answer"] > 0)]
            starts, batches = 1 + others["answer"].nunique(), rows["batch"].nunique()
            plural = ("es" if what == "batch" else "s") * (batches != 1)
            more = f", {starts} starts" if starts > 1 else ""
            counts.append(f"{name}: {batches} {what}{plural}{more}")
        low, high = self.originals.offset, 1 + self.originals.offset
        return (
            f"{self.note} Runs: {'; '.join(counts)}. A failed run counts as worst. MSE on inputs "
            f"in [{low:g}, {high:g}]; pictures are clipped to that range. Images: "
            f"{described(self.originals)}; scale {scale}; gradients in "
            f"{precision([self.table()])}."
        )
