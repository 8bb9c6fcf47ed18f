"""Scores of reconstructions: the only step that reads originals."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from gradleak.attacks import reconstructions
from gradleak.data.targets import TargetSet
from gradleak.models.chain import Chain
from gradleak.models.files import ModelFile
from gradleak.models.losses import BINARY, MarginLoss
from gradleak.models.numpy_autodiff import fc_input, forward, margin_label, weight_gradients
from gradleak.runtime.tidy import SCORES
from gradleak.scoring.metrics.image import CLIPPED, Metrics, assignment, combination, mse, of_paper
from gradleak.scoring.scores_by_class import ByClass, Row, tidy_row

COLUMNS = [*SCORES, "name", "precision", "mode", "training", "answer", "kind"]
Weights = dict[str, np.ndarray]


def score(
    path: str, targets: TargetSet, models: ModelFile, case: Row, task: Mapping[str, str]
) -> list[Row]:
    """One tidy row per reconstruction, image and metric, with the keys `COLUMNS`.

    `path` is a reconstruction file, `targets` the originals; `models` gives the true input of
    fully connected layers and the true μ; `case` has the constant columns, of which ``mode`` is
    left empty for networks without norm and dropout; `task` has ``loss`` and ``labels`` of the
    experiment.

    Failed reconstructions keep their rows, with an empty value. Reconstructions of a batch are
    assigned to its images so that the sum of MSEs is least; one image for a whole batch is compared
    with each; those given by class, with the images of that class
    (`gradleak.scoring.scores_by_class`). docs/metrics.md explains the metrics.
    """
    images, records = reconstructions.read(path)
    chains = {chain.name: chain for chain in models.chains}
    scorer = _Scorer(images, targets, models, task, of_paper(case["paper"]))
    rows = []
    for record in records:
        chain = chains[record["model"]]
        own, worked = own_case(case, chain), record["status"] == "ok"
        if worked and record.get("classes"):
            stored = images[f"{chain.name}/images"]
            found = stored[record["seed"], record["batch"], record["answer"]]
            by_class = ByClass(targets, record["batch"], chain, record)
            rows += by_class.rows(found[: len(record["classes"])], own)
            continue
        empty = [dict.fromkeys(scorer.metrics, np.nan)] * targets.size
        rows += tidy(scorer.values(record, chain) if worked else empty, record, targets, own)
    return rows


def own_case(case: Row, chain: Chain) -> Row:
    """Constant columns for one network; the mode is empty without norm and dropout."""
    random = chain.is_normalised or chain.has_dropout
    return {**case, "mode": case["mode"] if random else ""}


def answer(images: Mapping[str, np.ndarray], record: Mapping[str, Any]) -> np.ndarray:
    """Images (K', C, H, W) of one reconstruction, without those that are not finite."""
    stored = images[f"{record['model']}/images"]
    found: np.ndarray = stored[record["seed"], record["batch"], record["answer"]]
    return found[np.isfinite(found).all(axis=(1, 2, 3))]


def matched(originals: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Reconstruction for each original (K, C, H, W); one image may stand for all."""
    if len(found) == len(originals):
        return found[assignment(originals, found)]
    return found[np.zeros(len(originals), dtype=int)]


def tidy(
    values: list[dict[str, float]], record: Mapping[str, Any], targets: TargetSet, case: Row
) -> list[Row]:
    """Tidy rows of one reconstruction; `values` has the metrics of each image of its batch."""
    batch, classes = record["batch"], targets.classes(record["batch"])
    same = {**case, "status": record["status"], "reason": record["reason"]}
    return [
        tidy_row(same, targets, record, batch, k, label=classes[k], metric=metric, value=value)
        for k, metrics in enumerate(values)
        for metric, value in metrics.items()
    ]


@dataclass(frozen=True)
class _Twin:
    """True μ of an image, and its twin data if there are any (R-GAP appendix B)."""

    facts: dict[str, float]
    image: np.ndarray | None

    @classmethod
    def of(cls, chain: Chain, weights: Weights, image: np.ndarray, task: Mapping[str, str]) -> Self:
        """For one image (C, H, W); `task` as of `score`."""
        loss = MarginLoss(task["loss"])
        label = margin_label(chain, weights, image, task["labels"])
        mu = label * float(forward(chain, weights, image)[0])
        gradients = weight_gradients(chain, weights, image, label, task["loss"])
        facts = {"mu": mu, "layer_product_spread": _spread(weights, gradients)}
        others = [m for m in loss.margins(float(loss.product(mu))) if abs(m - mu) > 1e-6 * abs(mu)]
        if not others:
            return cls(facts, None)
        facts["twin_scale"] = others[0] / mu
        twin = facts["twin_scale"] * image
        true, same = (
            np.concatenate(list(each.values()))
            for each in (gradients, weight_gradients(chain, weights, twin, label, task["loss"]))
        )
        facts["gradient_mismatch"] = float(np.linalg.norm(same - true) / np.linalg.norm(true))
        return cls(facts, twin)

    def metrics(self, found: np.ndarray) -> dict[str, float]:
        """The facts, and the distance of a reconstruction (C, H, W) from the twin."""
        if self.image is None:
            return self.facts
        distance = float(np.linalg.norm(found - self.image) / np.linalg.norm(self.image))
        return {**self.facts, "mse_twin": mse(self.image, found), "twin_error": distance}


@dataclass(frozen=True)
class _Scorer:
    """Metrics of the reconstructions in a file."""

    images: Mapping[str, np.ndarray]
    targets: TargetSet
    models: ModelFile
    task: Mapping[str, str]
    metrics: Metrics
    # The same for each reconstruction of an image, and they need passes of the network.
    twins: dict[tuple[str, int, int], _Twin] = field(default_factory=dict)

    def values(self, record: Mapping[str, Any], chain: Chain) -> list[dict[str, float]]:
        """Metrics of each image of the batch of a successful `record`."""
        batch, seed, targets = record["batch"], record["seed"], self.targets
        weights, found = self.models.of(chain, seed), answer(self.images, record)
        values = self._of_images(batch, found)
        values[0] |= self._facts(record, chain, weights)
        if record["answer"] == 0 and f"{chain.name}/fc_input" in self.images:
            true = fc_input(chain, weights, targets.inputs(batch)[0])
            error = self.images[f"{chain.name}/fc_input"][seed, batch] - true
            values[0]["fc_error"] = float(np.linalg.norm(error) / np.linalg.norm(true))
        if targets.size == 1 and self.task["loss"] in BINARY and chain.is_homogeneous:
            run = (chain.name, seed, batch)
            if run not in self.twins:
                self.twins[run] = _Twin.of(chain, weights, targets.inputs(batch)[0], self.task)
            values[0] |= self.twins[run].metrics(found[0])
        return values

    def _of_images(self, batch: int, found: np.ndarray) -> list[dict[str, float]]:
        """Metrics of each image of a batch; `found` (K', C, H, W), K' = K or 1."""
        targets, originals = self.targets, self.targets.inputs(batch)
        out = []
        for original, reconstruction in zip(originals, matched(originals, found), strict=True):
            clipped = (targets.pixels(original), np.clip(targets.pixels(reconstruction), 0.0, 1.0))
            pair = (original * targets.std, reconstruction * targets.std)
            named = self.metrics.items()
            out.append({n: m(*clipped) if n in CLIPPED else m(*pair) for n, m in named})
            if targets.std != 1.0:
                out[-1]["mse_input"] = mse(original, reconstruction)
        if len(found) < len(originals):
            weights, explained = combination(originals, found[0])
            for values, weight in zip(out, weights, strict=True):
                values["coefficient"] = float(weight)
            out[0]["r2"] = explained
        return out

    def _facts(self, record: Mapping[str, Any], chain: Chain, weights: Weights) -> dict[str, float]:
        """Facts that the attack reports, and whether its label is right."""
        batch, targets = record["batch"], self.targets
        out: dict[str, float] = {}
        if record["evaluations"]:
            out["evaluations"] = float(record["evaluations"])
            out["objective"] = np.nan if record["loss"] is None else float(record["loss"])
        if record["label"] is not None and targets.size == 1:
            true = int(targets.labels[batch, 0])
            if self.task["loss"] in BINARY:
                true = margin_label(chain, weights, targets.inputs(batch)[0], self.task["labels"])
            out["label_correct"] = float(record["label"] == true)
        return out


def _spread(weights: Weights, gradients: Mapping[str, np.ndarray]) -> float:
    """Largest over smallest ∇W_l · W_l of all layers, minus 1 (0 by R-GAP eq. 10)."""
    products = [
        float(weights[f"{layer}.weight"].ravel().astype(np.float64) @ gradient)
        for layer, gradient in gradients.items()
    ]
    return max(products, key=abs) / min(products, key=abs) - 1.0
