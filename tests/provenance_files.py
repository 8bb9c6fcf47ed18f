"""Results as jobs leave them, each with its sidecar, without running any."""

import hashlib
import shutil
from functools import cache
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from conftest import ROOT
from gradleak.config import loader
from gradleak.data import catalogue
from gradleak.reporting import provenance_record
from gradleak.reporting.provenance_record import Layout
from gradleak.runtime import job_records
from gradleak.runtime.artifacts import write_json
from settings_files import whole

LAYOUT = Layout(
    data_root="data",
    made=("results/", "figures/"),
    pictured=("results/targets/", "results/reconstructions/", "results/generators/"),
)
SOURCES = {"settings": {"config.yaml": "config.yaml"}, "lock": "requirements.lock"}


# What a sidecar says of any job.
OF_JOB = {
    "wildcards": {}, "params": {"code": "0123456789abcdef"}, "versions": {"python": "3.11.7"},
    "commit": "c" * 40, "changed": False, "host": "node1", "ended": "2026-01-02T03:04:05+00:00",
    "threads": 1, "seconds": 1.5, "cpu_seconds": 1.0, "peak_mib": 100.0, "torch_threads": 0,
}  # fmt: skip


def sum_of(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@cache
def settings(**changes):
    return loader.load({**whole(), **changes})


def by_hand(path, dataset, split, count=2):
    shape = (count, *catalogue.info(dataset).shape)
    values = np.random.default_rng(3).integers(0, 256, shape, dtype=np.uint8)
    tensors = {"images": values, "labels": np.arange(count, dtype=np.int64) % 10}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, metadata={"dataset": dataset, "split": split})


def made(path, rule, inputs=(), content=None, **more):
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(content if content is not None else f"content of {path}")
    own = {"artifact": path, "rule": rule, "input": sorted(inputs), "sha256": sum_of(place)}
    write_json(job_records.path_of(path), {**OF_JOB, **own, **more})
    return path


def record(results, **changes):
    config = settings(**{"images": "real", "scale": "smoke", **changes})
    return provenance_record.make(results, config, LAYOUT, **SOURCES)


def lay_out(case="real-smoke"):
    """In the working folder: two data sets put there by hand, pictures and charts of both."""
    for name in ("config.yaml", "requirements.lock"):
        shutil.copy(ROOT / name, name)
    shutil.copytree(ROOT / "papers", "papers")
    results = []
    for dataset, split in (("imagenet", "val"), ("mnist", "test")):
        arrays = f"data/{dataset}-{split}.safetensors"
        by_hand(Path(arrays), dataset, split)
        targets = made(f"results/targets/{case}/{dataset}.safetensors", "targets", [arrays])
        gradient = made(f"results/gradients/{case}/{dataset}.safetensors", "gradient", [targets])
        found = made(f"results/reconstructions/{case}/{dataset}.safetensors", "attack", [gradient])
        score = made(f"results/scores/{case}/{dataset}.csv", "score", [found, targets])
        table = made(f"results/tables/{dataset}.csv", "table", [score, "papers/copa/claims.yaml"])
        results += [table]
        kinds = {"pictures": [found, score], "originals": [targets], "chart": [table, score]}
        for kind, inputs in kinds.items():
            for suffix in ("pdf", "png"):
                results.append(made(f"figures/{dataset}_{kind}.{suffix}", kind, inputs))
    tables = [path for path in results if "tables" in path]
    return [*results, made("results/claims.csv", "claims_table", tables)]
