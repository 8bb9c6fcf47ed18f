"""Scores, tables and claims files for tests of forms of claims."""

from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from gradleak.claims import Claims, Evidence, load


def score(where: dict[str, Any], index: int, metric: str, value: Any, **changes: Any) -> dict:
    row = {"paper": "fedkl", "defence": "none", "images": "real", "targets": "t", "seed": 0}
    row |= {key: where[key] for key in ("result", "attack", "model")}
    row |= {"batch": index, "index": index, "label": "x", "metric": metric, "value": value}
    row |= {"status": "ok", "reason": "", "answer": 0, "kind": "answer"}
    return {**row, **changes}


def read(folder: Path, scores: list[dict], **tables: list[dict]) -> Evidence:
    for name, found in {"scores": scores, **tables}.items():
        pd.DataFrame(found).to_csv(folder / f"{name}.csv", index=False)
    return Evidence.read(
        scores=[folder / "scores.csv"] if scores else [],
        tables=[folder / f"{name}.csv" for name in tables],
    )


def claims_file(folder: Path, claims: list[dict], **more: Any) -> Claims:
    rules: dict[str, dict] = {
        "prediction": {"rule": "prediction"},
        "mean": {"rule": "mean", "margin": 0.01},
        "twofold": {"rule": "mean", "factor": 2},
        "factor": {"rule": "factor", "factor": 1.1},
        "above": {"rule": "alpha"},
        "close": {"rule": "at_least", "amount": -3},
        "least": {"rule": "at_least", "amount": 2},
        "most": {"rule": "at_most", "amount": 2},
        "half": {"rule": "at_least", "amount": 0.5},
        "same": {"rule": "absolute", "amount": 0},
        "test": {"rule": "alpha"},
    }
    tolerances = {name: {**rule, "reason": "A test."} for name, rule in rules.items()}
    path = folder / "claims.yaml"
    content = {"paper": "fedkl", "tolerances": tolerances, "claims": claims, **more}
    path.write_text(yaml.safe_dump(content))
    return load(path)


def claim(name: str, query: dict, tolerance: str, **more: Any) -> dict:
    head = {"id": name, "locator": "x", "kind": "order", "statement": f"{name}."}
    return {**head, "query": query, "tolerance": tolerance, **more}
