"""Synthetic evidence for tests of claims: runs around the paper's own values."""

from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from gradleak.claims import Evidence, evaluate, load, load_explanations
from gradleak.claims.evaluate import Judge

ROOT = Path(__file__).parents[1]
FILE = ROOT / "papers/copa/claims.yaml"
EXPLANATIONS = FILE.with_name("explanations.yaml")
SEEDS = 10
IMAGES = {"copa_pair": [("1", "truck"), ("3", "animal")], "copa_padding": [("1", ""), ("3", "")]}
IMAGES["copa_twenty"] = [(str(index), "") for index in range(6)]
# Unknowns, rank and contribution, then kernel, channels and stride, of the layers of each variant;
# and inputs of its last layer.
LAYERS = {
    "1": [(3072, 3072, 0, 3, 6, 1), (5400, 867, -2266.5, 4, 3, 2), 588],
    "2": [(3072, 1602, -1470, 4, 6, 2), (1350, 300, -525, 3, 3, 2), 147],
    "3": [(3072, 3072, 0, 3, 6, 1), (5400, 5400, 0, 3, 9, 1), 7056],
    "4": [(3072, 926, -2146, 3, 1, 1), (900, 900, 0, 3, 6, 1), 4704],
}


@cache
def copa():
    return load(FILE)


# Queries of two attacks on a network, one for each form.
WHERE = {"result": "r", "model": "m", "attack": "a"}
OTHER = {**WHERE, "attack": "b"}
RUNS = {"form": "runs", "metric": "mse", "where": WHERE}
COMPARE = {"form": "compare", "unit": "image", "comparisons": [{"better": WHERE, "than": OTHER}]}
CLOSE = {"form": "close", "unit": "image", "measure": "value", "one": WHERE, "other": OTHER}
LIMIT = {"form": "limit", "metric": "mse", "unit": "image", "where": WHERE}
SHARE = {
    "form": "share", "unit": "image", "more": {"where": WHERE, "amount": 0.5},
    "less": {"where": OTHER, "amount": 0.5},
}  # fmt: skip


def paper_mse():
    """The paper's MSEs of truck and animal, from its PSNRs, for each model and attack."""
    found = {}
    for claim in copa().claims:
        if claim.is_printed and claim.id.startswith("copa.table2.") and claim.id.endswith(".psnr"):
            where = claim.query.where
            values = found.setdefault((where["model"], where["attack"]), [])
            values.append(255**2 / 10 ** (claim.paper_value / 10))
    return found


@cache
def copa_scores(images="real", spread=0.08):
    """Runs around the paper's own values, equal in all results; padding changes them by 5 %."""
    rng = np.random.default_rng(0)
    rows = []
    for (model, attack), (truck, animal) in paper_mse().items():
        centers = np.array([truck, animal] * 3)
        draws = centers * 10 ** rng.normal(0, spread, (SEEDS, 6))
        for result, targets in IMAGES.items():
            padded = result == "copa_padding"
            if padded and "tanh" not in model:
                continue
            where = {"result": result, "attack": attack, "model": model + "_padded" * padded}
            for seed, (place, (index, name)) in product(range(SEEDS), enumerate(targets)):
                mse = draws[seed, place] * (1.05 if padded else 1)
                values = {"mse": mse, "psnr_255": 10 * np.log10(255**2 / mse)}
                if attack == "copa":
                    values |= {"fc_error": 1e-13, "label_correct": 1}
                more = {
                    "paper": "copa",
                    "images": images,
                    "seed": seed,
                    "batch": place,
                    "name": name,
                }
                rows += [score(where, index, *value, **more) for value in values.items()]
    return rows


def security_rows():
    columns = ("unknowns", "rank", "contribution", "kernel", "channels", "stride")
    rows = []
    for (variant, (*layers, inputs)), act in product(LAYERS.items(), ("tanh", "leaky")):
        for place, values in enumerate(layers):
            row = {"model": f"cnn3_v{variant}_{act}", "seed": 0, "index": 1, "padding": 0}
            row |= {"layer": f"conv{place + 1}", "fc_inputs": inputs, "fc_outputs": 10}
            rows.append(row | dict(zip(columns, values, strict=True)))
    return rows


def index_rows(n=40):
    rng = np.random.default_rng(1)
    c = -rng.uniform(0, 3000, n)
    mse = 10 ** (-1 - c / -3000 * -1 + rng.normal(0, 0.1, n))
    names = [f"n{k}" for k in range(n)]
    columns = {"network": names, "c": c, "expansion": 4 + c / 1000, "mse_copa": mse}
    return pd.DataFrame({**columns, "mse_rgap": mse}).to_dict("records")


def read(folder, scores=(), security=(), index=(), rank=(), **tables):
    """Write rows as CSV files, scores in two parts, ranks in a folder per experiment; read them."""

    def written(name, rows):
        path = folder / f"{name}.csv"
        path.parent.mkdir(exist_ok=True)
        pd.DataFrame(rows).to_csv(path, index=False)
        return path

    half = len(scores) // 2
    parts = {"a": scores[:half], "b": scores[half:], "security": security, "copa_index": index}
    made = {name: [written(name, rows)] if rows else [] for name, rows in parts.items()}
    groups = pd.DataFrame(rank).groupby("result") if rank else ()
    layers = [written(f"{name}/layers", part.drop(columns="result")) for name, part in groups]
    more = [written(name, rows) for name, rows in tables.items()]
    return Evidence.read(made["a"] + made["b"], made["security"], made["copa_index"], layers, more)


class Judged:
    """Judges single claims when asked for them, on real images at laptop scale."""

    def __init__(self, claims, evidence):
        self.judge = Judge(claims, evidence, "real", "laptop")
        self.by_id = {claim.id: claim for claim in claims.claims}

    def __getitem__(self, name):
        return self.judge(self.by_id[name])


def verdicts(claims, evidence=None, images="real", scale="laptop", why=None):
    """Outcomes by the claims' ids."""
    return evaluate(claims, evidence or Evidence(), images, scale, why).set_index("id")


def edited(folder, change, file=FILE):
    """A paper's claims with a change, written to a file."""
    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    change(data)
    path = folder / f"{file.parent.name}.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return path


def explained(folder, claims, texts, **more):
    """Explanations by patterns of ids, of the recorded run, written to a file and read."""
    entries = [
        {"claims": [pattern], "text": text, "evidence": ["docs/copa.md"]}
        for pattern, text in texts.items()
    ]
    run = {"images": "real", "scale": "laptop"}
    file = {"paper": claims.paper, "of": run, "explanations": entries}
    path = folder / "explanations.yaml"
    path.write_text(yaml.safe_dump({**file, **more}), encoding="utf-8")
    return load_explanations(path, claims)


def changed(rows, where, **new):
    """Copies of the rows, those that match changed; the value ``times`` and ``plus`` a number."""
    out, times, plus = [], new.pop("times", 1.0), new.pop("plus", 0.0)
    for row in rows:
        if all(row[key] == value for key, value in where.items()):
            row = {**row, **new}
            if (times, plus) != (1.0, 0.0):
                row["value"] = row["value"] * times + plus
        out.append(row)
    return out


def score(where, index, metric, value, **changes):
    row = {"paper": "fedkl", "defence": "none", "images": "real", "targets": "t", "seed": 0}
    row |= {key: where[key] for key in ("result", "attack", "model")}
    row |= {"batch": index, "index": index, "label": "x", "metric": metric, "value": value}
    row |= {"status": "ok", "reason": "", "answer": 0, "kind": "answer"}
    return {**row, **changes}


def claims_file(folder, claims, **more):
    rules = {
        "prediction": {"rule": "prediction"}, "mean": {"rule": "mean", "margin": 0.01},
        "twofold": {"rule": "mean", "factor": 2},
        "test": {"rule": "alpha"}, "same": {"rule": "absolute", "amount": 0},
        "close": {"rule": "at_least", "amount": -3}, "least": {"rule": "at_least", "amount": 2},
        "half": {"rule": "at_least", "amount": 0.5}, "most": {"rule": "at_most", "amount": 2},
        "rarely": {"rule": "at_least", "amount": 0.05}, "any": {"rule": "at_most", "amount": 1e6},
    }  # fmt: skip
    tolerances = {name: {**rule, "reason": "A test."} for name, rule in rules.items()}
    path = folder / "claims.yaml"
    tolerances |= more.pop("tolerances", {})
    content = {"paper": "fedkl", "tolerances": tolerances, "claims": claims, **more}
    path.write_text(yaml.safe_dump(content))
    return load(path)


def claim(name, query, tolerance, **more):
    head = {"id": name, "locator": "x", "kind": "order", "statement": f"{name}."}
    return {**head, "query": query, "tolerance": tolerance, **more}


def outcome(folder, query, tolerance, evidence=None, grids=(), **more):
    """Outcome of a file's one claim of its own."""
    claims = claims_file(folder, [claim("c", query, tolerance, **more)], grids=[*grids])
    return verdicts(claims, evidence).loc["c"]
