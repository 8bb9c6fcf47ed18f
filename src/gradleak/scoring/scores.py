"""Scores of reconstructions: the only step that reads originals."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradleak.attacks import reconstructions
from gradleak.data.targets import TargetSet
from gradleak.models.chain import Chain
from gradleak.models.files import ModelFile
from gradleak.models.losses import BINARY, MarginLoss
from gradleak.models.numpy_autodiff import fc_input, forward, margin_label, weight_gradients
from gradleak.runtime.tidy import SCORES
from gradleak.scoring.metrics import image as measures

COLUMNS = [*SCORES, "name", "precision", "mode", "training", "answer", "kind"]
Row = dict[str, Any]
# Status of a class: whether it is in the batch, and whether the attack found it.
STATUSES = {
    (True, True): "ok", (True, False): "missed", (False, True): "phantom", (False, False): "absent",
}  # fmt: skip
Weights = dict[str, np.ndarray]
Twin = tuple[dict[str, float], np.ndarray | None]


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
    with each; those given by class, with the images of that class (`ByClass`). docs/metrics.md
    explains the metrics.
    """
    images, records = reconstructions.read(path)
    chains = {chain.name: chain for chain in models.chains}
    scorer = _Scorer(images, targets, models, task, measures.of_paper(case["paper"]))
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
        return found[measures.assignment(originals, found)]
    return found[np.zeros(len(originals), dtype=int)]


def tidy_row(
    case: Row,
    targets: TargetSet,
    record: Mapping[str, Any],
    batch: int,
    position: int | None,
    **own: Any,
) -> Row:
    """Row of a score file: a metric of the image at `position` of a batch, or of no image."""
    index = -1 if position is None else int(targets.indices[batch, position])
    same = {key: record[key] for key in ("model", "seed", "answer", "kind")}
    return {**case, **same, "batch": batch, "index": index, "name": targets.names[batch], **own}


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


def _measured(
    targets: TargetSet, original: np.ndarray, found: np.ndarray, metrics: measures.Metrics
) -> dict[str, float]:
    """Metrics of an image and its reconstruction (C, H, W), both as the network's input."""
    clipped = targets.pixels(original), np.clip(targets.pixels(found), 0.0, 1.0)
    pair = original * targets.std, found * targets.std
    return {n: m(*clipped) if n in measures.CLIPPED else m(*pair) for n, m in metrics.items()}


def _twin(chain: Chain, weights: Weights, image: np.ndarray, task: Mapping[str, str]) -> Twin:
    """True μ of an image (C, H, W) with other facts, and its twin if any (R-GAP appendix B)."""
    loss = MarginLoss(task["loss"])
    label = margin_label(chain, weights, image, task["labels"])
    mu = label * float(forward(chain, weights, image)[0])
    gradients = weight_gradients(chain, weights, image, label, task["loss"])
    products = [
        float(weights[f"{layer}.weight"].ravel().astype(np.float64) @ gradient)
        for layer, gradient in gradients.items()
    ]
    # Largest over smallest ∇W_l · W_l of all layers, minus 1: 0 by R-GAP eq. 10.
    spread = max(products, key=abs) / min(products, key=abs) - 1.0
    facts = {"mu": mu, "layer_product_spread": spread}
    others = [m for m in loss.margins(float(loss.product(mu))) if abs(m - mu) > 1e-6 * abs(mu)]
    if not others:
        return facts, None
    facts["twin_scale"] = others[0] / mu
    twin = facts["twin_scale"] * image
    true, same = (
        np.concatenate(list(each.values()))
        for each in (gradients, weight_gradients(chain, weights, twin, label, task["loss"]))
    )
    facts["gradient_mismatch"] = float(np.linalg.norm(same - true) / np.linalg.norm(true))
    return facts, twin


@dataclass(frozen=True)
class _Scorer:
    """Metrics of the reconstructions in a file."""

    images: Mapping[str, np.ndarray]
    targets: TargetSet
    models: ModelFile
    task: Mapping[str, str]
    metrics: measures.Metrics
    # The same for each reconstruction of an image, and they need passes of the network.
    twins: dict[tuple[str, int, int], Twin] = field(default_factory=dict)

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
                self.twins[run] = _twin(chain, weights, targets.inputs(batch)[0], self.task)
            facts, twin = self.twins[run]
            values[0] |= facts
            if twin is not None:
                distance = float(np.linalg.norm(found[0] - twin) / np.linalg.norm(twin))
                values[0] |= {"mse_twin": measures.mse(twin, found[0]), "twin_error": distance}
        return values

    def _of_images(self, batch: int, found: np.ndarray) -> list[dict[str, float]]:
        """Metrics of each image of a batch; `found` (K', C, H, W), K' = K or 1."""
        targets, originals = self.targets, self.targets.inputs(batch)
        out = []
        for original, reconstruction in zip(originals, matched(originals, found), strict=True):
            out.append(_measured(targets, original, reconstruction, self.metrics))
            if targets.std != 1.0:
                out[-1]["mse_input"] = measures.mse(original, reconstruction)
        if len(found) < len(originals):
            weights, explained = measures.combination(originals, found[0])
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


@dataclass(frozen=True)
class ByClass:
    """Compare one reconstruction with a batch's images class by class.

    Each image is compared with the image reconstructed for its class, the mean of all images of
    that class: ``duplicates`` is their number, and ``psnr_class_mean`` compares with the true mean
    image. An image whose class the attack did not find has the status ``missed``. One more row per
    class, ``count``, has the number of images that the attack found there.
    """

    targets: TargetSet  # the originals
    batch: int
    chain: Chain  # the network, for its number of classes
    record: Mapping[str, Any]  # the reconstruction's record in its file

    def rows(self, found: np.ndarray, case: Row) -> list[Row]:
        """Tidy rows of images `found` (K', C, H, W), one for each class of the record."""
        labels = self.targets.labels[self.batch].tolist()
        classes, true = self.record["classes"], Counter(labels)
        place = {label: k for k, label in enumerate(classes)}
        means: dict[int, float] = {}
        out = []
        for position, label in enumerate(labels):
            image = found[place[label]] if label in place else None
            if image is None and self.record["partial"]:
                continue
            values = self._compared(position, image, case["paper"])
            status = "missed" if image is None else "ok"
            if label not in means:
                means[label] = self._to_mean(label, image)
            values |= {"psnr_class_mean": means[label], "duplicates": float(true[label])}
            out += [self._row(case, label, position, *item, status) for item in values.items()]
        told = dict(zip(classes, self.record["counts"], strict=True))
        for label in classes if self.record["partial"] else range(self.chain.classes):
            found_here = told.get(label, 0)
            status = STATUSES[true[label] > 0, found_here > 0]
            out.append(self._row(case, label, None, "count", float(found_here), status))
        return out

    def _compared(self, position: int, image: np.ndarray | None, paper: str) -> dict[str, float]:
        metrics = measures.of_paper(paper)
        if image is None:
            return dict.fromkeys((*metrics, "psnr_scaled"), np.nan)
        original, image = self._original(position), image.astype(np.float64)
        values = _measured(self.targets, original, image, metrics)
        # Up to scale, to ignore wrong brightness.
        original, image = original * self.targets.std, image * self.targets.std
        scale = float(np.vdot(image, original) / max(float(np.vdot(image, image)), 1e-30))
        return values | {"psnr_scaled": measures.psnr(original, scale * image)}

    def _original(self, position: int) -> np.ndarray:
        return self.targets.inputs(self.batch, slice(position, position + 1))[0]

    def _to_mean(self, label: int, image: np.ndarray | None) -> float:
        """PSNR of the reconstruction of a class against the mean of the class's images."""
        if image is None:
            return np.nan
        places = np.flatnonzero(self.targets.labels[self.batch] == label).tolist()
        mean = np.sum([self._original(place) for place in places], axis=0) / len(places)
        return measures.psnr(mean, image.astype(np.float64))

    def _row(
        self, case: Row, label: int, position: int | None, metric: str, value: float, status: str
    ) -> Row:
        words = self.targets.words.get(label, f"class {label}")
        reason = {
            "ok": "",
            "missed": f"The attack found no image of {words}.",
            "absent": f"No image of {words} is in the batch, and the attack found none.",
            "phantom": f"The attack found {value:g} images of {words}, but there is none.",
        }[status]
        own = {"label": words, "metric": metric, "value": value, "status": status, "reason": reason}
        return tidy_row(case, self.targets, self.record, self.batch, position, **own)
