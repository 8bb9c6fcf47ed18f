"""Files of reconstructions and scores with made-up answers, and what tests look at in a figure."""

import numpy as np
import pandas as pd

from gradleak.data import targets
from gradleak.data.targets import TargetSet
from gradleak.runtime.artifacts import write_csv, write_tensors

REASON = "No start came below the objective that a success has."


def target_set(
    batches=2, size=1, shape=(3, 8, 8), dataset="photos10", first=0, labels=None, enlarged=1, seed=0
):
    """Random images; labels count up in each data set, or are the same in each batch."""
    rng, count = np.random.default_rng(seed), batches * size
    one = np.arange(count).reshape(batches, size) % 10
    return TargetSet(
        rng.integers(0, 256, (batches, size, *shape), dtype=np.uint8),
        one if labels is None else np.tile(np.array(labels, dtype=np.int64), (batches, 1)),
        first + np.arange(count).reshape(batches, size),
        0.0,
        tuple(f"batch {k}" for k in range(batches)),
        {"dataset": dataset, "split": "test", "origin": "embedded"},
        {k: f"class_{k}" for k in range(10)},
        enlarged,
    )


def run(model, batch, reason="", status="", **more):
    """Record of an answer; one with a reason failed."""
    place = {"model": model, "seed": 0, "batch": batch, "answer": 0, "kind": "answer"}
    return {**place, "status": status or ("failed" if reason else "ok"), "reason": reason, **more}


def rows(record, index, values):
    same = {**record, "precision": "float32", "index": index}
    shown = {metric: "" if value is None else value for metric, value in values.items()}
    return [{**same, "metric": metric, "value": value} for metric, value in shown.items()]


class Files:
    def __init__(self, folder):
        self.folder = folder
        self.files = {"targets": [], "reconstructions": [], "scores": []}

    def save(self, images, runs, scores, target=None):
        """Write a panel; images (seeds, batches, answers, K, C, H, W) by network."""
        stem = f"{self.folder}/panel-{len(self.files['scores'])}"
        if target is not None:
            targets.save(f"{stem}-targets.safetensors", target, {})
            self.files["targets"].append(f"{stem}-targets.safetensors")
        stored = {f"{model}/images": stack for model, stack in images.items()}
        write_tensors(f"{stem}.safetensors", stored, {"runs": list(runs)})
        table = pd.DataFrame(list(scores)).drop(columns=["classes", "counts"], errors="ignore")
        write_csv(f"{stem}.csv", table)
        self.files["reconstructions"].append(f"{stem}.safetensors")
        self.files["scores"].append(f"{stem}.csv")


def texts(figure):
    found = [text.get_text() for text in figure.texts]
    for axes in figure.axes:
        found += [axes.get_title(), axes.get_title(loc="left"), axes.get_xlabel()]
        legend = axes.get_legend().get_texts() if axes.get_legend() else []
        shown = [axes.yaxis.label, *axes.texts, *axes.get_xticklabels(), *legend]
        found += [text.get_text() for text in shown]
    return found


def flat(figure):
    """All words of a figure in one line; a line may end at the hyphen of a word."""
    return " ".join(" ".join(texts(figure)).split()).replace("- ", "-")


def outside(figure):
    renderer, page = figure.canvas.get_renderer(), figure.bbox.padded(2)
    shown = [*figure.texts, *(text for axes in figure.axes for text in axes.texts)]
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in shown]
    return [
        said
        for said, box in boxes
        if said and not (np.all(page.min < box.min) and np.all(box.max < page.max))
    ]


def pictures(figure):
    return [np.asarray(axes.images[0].get_array()) for axes in figure.axes if axes.images]
