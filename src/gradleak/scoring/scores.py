"""Scores of reconstructions: the only step that reads originals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradleak.attacks import reconstructions
from gradleak.data.targets import TargetSet
from gradleak.models.chain import Chain
from gradleak.models.files import ModelFile
from gradleak.models.losses import BINARY, MarginLoss
from gradleak.models.numpy_autodiff import fc_input, forward, margin_label, weight_gradients
from gradleak.runtime.tidy import SCORES
from gradleak.scoring.metrics.image import CLIPPED, Metrics, assignment, combination, mse, of_paper
from gradleak.scoring.scores_by_class import ByClass

COLUMNS = [*SCORES, "name", "precision", "mode", "training", "answer", "kind"]


def score(
    path: str,
    targets: TargetSet,
    models: ModelFile,
    case: dict[str, Any],
    task: Mapping[str, str],
) -> list[dict[str, Any]]:
    """One tidy row per reconstruction, image and metric.

    Parameters
    ----------
    path
        Reconstruction file.
    targets
        Originals.
    models
        Networks, for the true input of their fully connected layers and the true μ.
    case
        Values of constant columns: paper, result, attack, defence, images, targets, precision,
        mode, training. ``mode`` is left empty for networks without norm and dropout, for which
        it makes no difference.
    task
        ``loss`` and ``labels`` of the experiment.

    Returns
    -------
    list of dict
        Records with the keys `COLUMNS`. Failed reconstructions keep their rows, with an empty
        value. SSIM is computed in [0, 1], on the clipped reconstruction; other metrics do not clip.
        Reconstructions of a batch are assigned to its images so that the sum of MSEs is least; one
        image for a whole batch is compared with each; those given by class, with the images of
        that class (`gradleak.scoring.scores_by_class`). Further metrics, where they are defined:

        ``fc_error``
            Relative error of the first fully connected layer's input (COPA Lemma A.1).
        ``label_correct``
            0 or 1.
        ``coefficient``, ``r2``
            Least-squares weight of each image in one image for a batch, and the share of the
            variance that the combination explains (R-GAP appendix F); r2 on the first row only.
        ``mu``, ``twin_scale``, ``mse_twin``, ``twin_error``
            True μ; μ of the twin over it; MSE to the twin data (R-GAP appendix B), and the
            distance to them relative to their own norm, since they may be dark.
        ``layer_product_spread``
            Difference of ∇W_l · W_l between layers (R-GAP eq. 10), of the true gradient.
        ``gradient_mismatch``
            ||∇(twin) − ∇(image)|| / ||∇(image)|| over all weights, of the true twin.
        ``objective``, ``evaluations``
            Of an iterative attack: final value, and number of gradient evaluations.
    """
    images, records = reconstructions.read(path)
    chains = {chain.name: chain for chain in models.chains}
    rows = []
    metrics = of_paper(case["paper"])
    # Facts of the image are the same for each reconstruction, and need passes of the network.
    twins: dict[tuple[str, int, int], _Twin] = {}
    for record in records:
        batch, seed, model = record["batch"], record["seed"], record["model"]
        chain, weights = chains[model], models.of(chains[model], seed)
        own = own_case(case, chain)
        size = targets.images.shape[1]
        values = [dict.fromkeys(metrics, np.nan) for _ in range(size)]
        if record["status"] == "ok":
            if record.get("classes"):
                found = images[f"{model}/images"][seed, batch, record["answer"]]
                by_class = ByClass(targets, batch, chain, record)
                rows += by_class.rows(found[: len(record["classes"])], own)
                continue
            found = answer(images, record)
            values = _image_metrics(targets, batch, found, metrics)
            values[0] |= _facts(record, targets, batch, weights, chain, task)
            if record["answer"] == 0 and f"{model}/fc_input" in images:
                true = fc_input(chain, weights, targets.inputs(batch)[0])
                error = images[f"{model}/fc_input"][seed, batch] - true
                values[0]["fc_error"] = float(np.linalg.norm(error) / np.linalg.norm(true))
            if size == 1 and task["loss"] in BINARY and chain.is_homogeneous:
                run_of = (model, seed, batch)
                if run_of not in twins:
                    twins[run_of] = _Twin.of(chain, weights, targets.inputs(batch)[0], task)
                values[0] |= twins[run_of].metrics(found[0])
        rows += tidy(values, record, targets, own)
    return rows


def own_case(case: dict[str, Any], chain: Chain) -> dict[str, Any]:
    """Constant columns for one network; the mode is empty without norm and dropout."""
    random = chain.is_normalised or chain.has_dropout
    return {**case, "mode": case["mode"] if random else ""}


def answer(images: Mapping[str, np.ndarray], record: Mapping[str, Any]) -> np.ndarray:
    """Images (K', C, H, W) of one reconstruction, without those that are not finite."""
    key = f"{record['model']}/images"
    found: np.ndarray = images[key][record["seed"], record["batch"], record["answer"]]
    return found[np.isfinite(found).all(axis=(1, 2, 3))]


def matched(originals: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Reconstruction for each original (K, C, H, W); one image may stand for all."""
    if len(found) == len(originals):
        return found[assignment(originals, found)]
    return found[np.zeros(len(originals), dtype=int)]


def tidy(
    values: list[dict[str, float]],
    record: Mapping[str, Any],
    targets: TargetSet,
    case: dict[str, Any],
) -> list[dict[str, Any]]:
    """Tidy rows of one reconstruction; `values` has the metrics of each image of its batch."""
    batch = record["batch"]
    return [
        {
            **case,
            "model": record["model"],
            "seed": record["seed"],
            "batch": batch,
            "index": int(targets.indices[batch, position]),
            "label": targets.classes(batch)[position],
            "metric": metric,
            "value": value,
            "status": record["status"],
            "reason": record["reason"],
            "name": targets.names[batch],
            "answer": record["answer"],
            "kind": record["kind"],
        }
        for position, metrics in enumerate(values)
        for metric, value in metrics.items()
    ]


def _image_metrics(
    targets: TargetSet, batch: int, found: np.ndarray, metrics: Metrics
) -> list[dict[str, float]]:
    """Metrics of each image of a batch; `found` (K', C, H, W), K' = K or 1."""
    originals = targets.inputs(batch)
    out = []
    for original, reconstruction in zip(originals, matched(originals, found), strict=True):
        clipped = (targets.pixels(original), np.clip(targets.pixels(reconstruction), 0.0, 1.0))
        pair = (original * targets.std, reconstruction * targets.std)
        out.append({n: m(*clipped) if n in CLIPPED else m(*pair) for n, m in metrics.items()})
        if targets.std != 1.0:
            out[-1]["mse_input"] = mse(original, reconstruction)
    if len(found) < len(originals):
        weights, explained = combination(originals, found[0])
        for values, weight in zip(out, weights, strict=True):
            values["coefficient"] = float(weight)
        out[0]["r2"] = explained
    return out


def _facts(
    record: Mapping[str, Any],
    targets: TargetSet,
    batch: int,
    weights: dict[str, np.ndarray],
    chain: Chain,
    task: Mapping[str, str],
) -> dict[str, float]:
    """Facts that the attack reports, and whether its label is right."""
    out = {}
    if record["evaluations"]:
        out["evaluations"] = float(record["evaluations"])
        out["objective"] = np.nan if record["loss"] is None else float(record["loss"])
    if record["label"] is not None and targets.images.shape[1] == 1:
        true = int(targets.labels[batch, 0])
        if task["loss"] in BINARY:
            true = margin_label(chain, weights, targets.inputs(batch)[0], task["labels"])
        out["label_correct"] = float(record["label"] == true)
    return out


@dataclass(frozen=True)
class _Twin:
    """True μ of an image, and its twin data if there are any (R-GAP appendix B)."""

    facts: dict[str, float]
    image: np.ndarray | None

    @staticmethod
    def of(
        chain: Chain, weights: dict[str, np.ndarray], image: np.ndarray, task: Mapping[str, str]
    ) -> _Twin:
        """For one image (C, H, W); `task` as of `score`."""
        loss = MarginLoss(task["loss"])
        label = margin_label(chain, weights, image, task["labels"])
        mu = label * float(forward(chain, weights, image)[0])
        gradients = weight_gradients(chain, weights, image, label, task["loss"])
        facts = {"mu": mu, "layer_product_spread": _spread(weights, gradients)}
        others = [m for m in loss.margins(float(loss.product(mu))) if abs(m - mu) > 1e-6 * abs(mu)]
        if not others:
            return _Twin(facts, None)
        facts["twin_scale"] = others[0] / mu
        twin = facts["twin_scale"] * image
        true, same = (
            np.concatenate(list(each.values()))
            for each in (gradients, weight_gradients(chain, weights, twin, label, task["loss"]))
        )
        facts["gradient_mismatch"] = float(np.linalg.norm(same - true) / np.linalg.norm(true))
        return _Twin(facts, twin)

    def metrics(self, found: np.ndarray) -> dict[str, float]:
        """The facts, and the distance of a reconstruction (C, H, W) from the twin."""
        if self.image is None:
            return self.facts
        distance = float(np.linalg.norm(found - self.image) / np.linalg.norm(self.image))
        return {**self.facts, "mse_twin": mse(self.image, found), "twin_error": distance}


def _spread(weights: dict[str, np.ndarray], gradients: Mapping[str, np.ndarray]) -> float:
    """Largest over smallest ∇W_l · W_l of all layers, minus 1 (0 by R-GAP eq. 10)."""
    products = [
        float(weights[f"{layer}.weight"].ravel().astype(np.float64) @ gradient)
        for layer, gradient in gradients.items()
    ]
    return max(products, key=abs) / min(products, key=abs) - 1.0
