"""results/provenance.json: the chain behind each result, what was changed, what is not known.

Results lie as jobs leave them, each with its sidecar, without any that ran.
"""

import hashlib
import json
import shutil
from functools import cache
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from safetensors.numpy import save_file

from conftest import ROOT, sentence
from gradleak.config import loader
from gradleak.data import catalogue, terms
from gradleak.errors import ArtifactError
from gradleak.reporting import provenance_record
from gradleak.reporting.provenance_record import Layout
from gradleak.runtime import job_records
from gradleak.runtime.artifacts import write_json
from pipeline_trees import whole

SCHEMA = json.loads((ROOT / "workflow/schemas/provenance.schema.json").read_text())
KIND = jsonschema.Draft202012Validator
VALIDATOR = KIND(SCHEMA, format_checker=KIND.FORMAT_CHECKER)


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
    told = json.loads(json.dumps(provenance_record.make(results, config, LAYOUT, **SOURCES)))
    VALIDATOR.validate(told)
    return told


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


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lay_out()


def of(told, path):
    (found,) = [entry for entry in told["results"] if entry["path"] == path]
    return found


def test_the_record_follows_its_schema(results):
    KIND.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    told = record(results)
    for wrong in ({"commit": "abc"}, {"scale": "tiny"}, {"code": 3}, {"results": []}, {"more": 1}):
        assert not VALIDATOR.is_valid(told | wrong), wrong
    for key in told:
        assert not VALIDATOR.is_valid({k: v for k, v in told.items() if k != key}), key


def test_the_chain_of_a_figure_goes_back_to_the_images_and_settings_and_versions_are_told(results):
    told = record(results)
    found = of(told, "figures/imagenet_pictures.pdf")
    assert found["rules"] == ["attack", "gradient", "pictures", "score", "targets"]
    assert found["datasets"] == ["imagenet"] and found["unrecorded"] == []
    assert found["sha256"] == sum_of("figures/imagenet_pictures.pdf")
    entry = told["artifacts"]["papers/copa/claims.yaml"]
    assert entry["sha256"] == sum_of(ROOT / "papers/copa/claims.yaml")
    assert entry["made"] is False
    assert told["config"]["scale"] == "smoke" and told["config"]["images"] == "real"
    assert told["amounts"]["copa_seeds"] == 2
    assert told["seeds"]["experiments.copa_pair.seeds"] == 2
    assert record(results, scale="paper")["seeds"]["experiments.copa_pair.seeds"] == 100
    assert told["versions"]["torch"] == told["packages"]["torch"]["version"]
    assert all(entry["locked"] for entry in told["packages"].values())
    assert len(told["packages"]) > 100
    assert told["files"]["config.yaml"] == sum_of("config.yaml")
    assert told["commits"] == {"c" * 40: len([e for e in told["artifacts"].values() if e["made"]])}


def test_every_seed_of_config_is_among_them():
    config = settings(scale="laptop")
    found = provenance_record.seeds(config)

    def paths(value, where=()):
        for key, entry in value.items() if isinstance(value, dict) else ():
            if key in ("seed", "seeds") and entry is not None:
                yield ".".join((*where, key)), entry
            yield from paths(entry, (*where, key))

    assert len(found) > 50
    assert dict(paths(config.model_dump(mode="json"))) == found


def test_a_changed_figure_and_a_changed_score_are_seen(results):
    Path("figures/mnist_chart.pdf").write_text("drawn by hand")
    Path("results/scores/real-smoke/mnist.csv").write_text("better")
    told = record(results)
    altered = [entry["path"] for entry in told["results"] if entry["altered"]]
    assert altered == ["figures/mnist_chart.pdf"]
    changed = {path for path, entry in told["artifacts"].items() if entry.get("altered")}
    assert changed == {"figures/mnist_chart.pdf", "results/scores/real-smoke/mnist.csv"}


def test_files_that_are_gone_or_large_are_not_read_again(results, monkeypatch):
    gradient = Path("results/gradients/real-smoke/mnist.safetensors")
    gradient.unlink()
    monkeypatch.setattr(provenance_record, "MOST_BYTES", 10)
    told = record(results)
    entry = told["artifacts"][str(gradient)]
    assert entry["altered"] is None and entry["recorded"] is True
    assert provenance_record.altered("results/claims.csv", "0" * 64) is None
    monkeypatch.setattr(provenance_record, "MOST_BYTES", 10**4)
    assert provenance_record.altered("results/claims.csv", "0" * 64) is True


def test_files_without_a_sidecar_are_named(results):
    gradient = "results/gradients/real-smoke/mnist.safetensors"
    job_records.path_of(gradient).unlink()
    job_records.path_of("figures/mnist_chart.png").unlink()
    told = record(results)
    found = of(told, "figures/mnist_pictures.pdf")
    assert found["unrecorded"] == [gradient]
    # Behind it lies what cannot be known; targets are still inputs of the score.
    assert found["pictures_of"] is None
    assert of(told, "figures/mnist_originals.pdf")["pictures_of"] == ["mnist"]
    alone = of(told, "figures/mnist_chart.png")
    assert alone["altered"] is None and alone["pictures_of"] is None and alone["rules"] == []
    unknown = {"made": True, "recorded": False, "sha256": None, "input": []}
    assert told["artifacts"][gradient] == unknown


def test_charts_show_numbers_pictures_images_and_data_put_there_by_hand_is_said_to_be(results):
    told, shown = record(results), {"imagenet_chart": [], "imagenet_originals": ["imagenet"]}
    entries = {entry["dataset"]: entry for entry in told["datasets"]}
    assert set(entries) == {"imagenet", "mnist"}
    for name, entry in entries.items():
        assert entry["by_hand"] and entry["made_by"] is None
        assert entry["sha256"] == sum_of(f"data/{name}-{entry['split']}.safetensors")
        assert entry["terms"] == terms.of(name).reason
    assert not entries["imagenet"]["shareable"] and entries["mnist"]["shareable"]
    for name, images in (shown | {"mnist_pictures": ["mnist"]}).items():
        for suffix in ("pdf", "png"):
            assert of(told, f"figures/{name}.{suffix}")["pictures_of"] == images
    both = ["results/reconstructions/real-smoke/mnist.safetensors", "data/imagenet-val.safetensors"]
    made("figures/both.pdf", "both", both)
    told = record([*results, "figures/both.pdf"])
    assert of(told, "figures/both.pdf")["pictures_of"] == ["imagenet", "mnist"]


def test_a_damaged_sidecar_is_named_and_that_of_another_folder_s_file_not_taken(results):
    """And a ring of sidecars ends."""
    job_records.path_of("results/tables/mnist.csv").write_text("{")
    text = sentence(ArtifactError, record, results)
    assert "results/provenance/tables/mnist.csv.json is damaged" in text
    assert "delete it and results/tables/mnist.csv" in text
    path = job_records.path_of("data/mnist-test.safetensors")
    assert path == job_records.path_of("/elsewhere/data/mnist-test.safetensors")
    write_json(path, {"artifact": "/elsewhere/data/mnist-test.safetensors", "input": []})
    assert provenance_record.sidecar("data/mnist-test.safetensors") is None
    read = {"a": {"input": ["b"]}, "b": {"input": ["a"]}}.get
    files = provenance_record.graph(["a"], read)
    assert set(files) == provenance_record.behind(["a"], files) == {"a", "b"}


def test_arrays_are_told_by_their_place(tmp_path, monkeypatch):
    assert LAYOUT.dataset("data/imagenet-val.safetensors") == ("imagenet", "val")
    for other in ("data/imagenet-train", "elsewhere/imagenet-val", "data/raw/imagenet-val"):
        assert LAYOUT.dataset(f"{other}.safetensors") is None
    assert LAYOUT.dataset("data/imagenet-val.csv") is None
    monkeypatch.chdir(tmp_path)
    by_hand(Path("data/mnist-test.safetensors"), "mnist", "test")
    Path("data/mnist-test.safetensors.sha256").write_text("f" * 64 + "  mnist-test.safetensors\n")
    entry = provenance_record.dataset_entry("data/mnist-test.safetensors", LAYOUT, None)
    assert entry["sha256"] == "f" * 64
    # What its own sidecar recorded goes before both, whatever lies there now.
    recorded = {"sha256": "e" * 64, "rule": "data"}
    entry = provenance_record.dataset_entry("data/mnist-test.safetensors", LAYOUT, recorded)
    assert (entry["sha256"], entry["made_by"]) == ("e" * 64, "data")


def test_the_package_rules_and_scripts_are_hashed(tmp_path):
    code = provenance_record.package_code()
    assert len(code) == 16 and code == provenance_record.package_code()
    (tmp_path / "workflow/rules").mkdir(parents=True)
    found = set()
    for name in ("Snakefile", "workflow/rules/a.smk"):
        (tmp_path / name).touch()
        found.add(provenance_record.digest_of(["Snakefile", "workflow/rules/*.smk"], tmp_path))
    assert len(found) == 2


def test_every_data_set_has_terms():
    assert set(terms.TERMS) == set(catalogue.CATALOGUE)
    for name, info in catalogue.CATALOGUE.items():
        found = terms.of(name)
        assert found.reason and not found.reason.endswith(".")
        assert found.shareable or info.source != "embedded"
    assert not terms.of("imagenet").shareable
