"""Synthetic evidence for tests of claims: runs around the paper's own values."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from claims_fedkl import score
from gradleak.claims import Claims, Evidence, Explanations, load, load_explanations
from gradleak.claims.evaluate import Judge
from gradleak.claims.outcome import Outcome

FILE = Path(__file__).parents[1] / "papers/copa/claims.yaml"
EXPLANATIONS = FILE.with_name("explanations.yaml")
SEEDS = 10
IMAGES = {"copa_pair": [("1", "truck"), ("3", "animal")], "copa_padding": [("1", ""), ("3", "")]}
IMAGES["copa_twenty"] = [(str(index), "") for index in range(6)]
CONTRIBUTIONS = {
    "1": [(3072, 3072, 0), (5400, 867, -2266.5)],
    "2": [(3072, 1602, -1470), (1350, 300, -525)],
    "3": [(3072, 3072, 0), (5400, 5400, 0)],
    "4": [(3072, 926, -2146), (900, 900, 0)],
}
LAYERS = {
    "1": [(3, 6, 1), (4, 3, 2), 588],
    "2": [(4, 6, 2), (3, 3, 2), 147],
    "3": [(3, 6, 1), (3, 9, 1), 7056],
    "4": [(3, 1, 1), (3, 6, 1), 4704],
}


@cache
def copa() -> Claims:
    return load(FILE)


@cache
def copa_scores() -> list[dict]:
    return score_rows(copa())


def paper_mse(claims: Claims) -> dict[tuple[str, str], list[float]]:
    """The paper's MSEs of truck and animal, from its PSNRs, for each model and attack."""
    found: dict[tuple[str, str], list[float]] = {}
    for claim in claims.numbers():
        if claim.id.startswith("copa.table2.") and claim.id.endswith(".psnr"):
            where: dict[str, Any] = claim.query.where  # type: ignore[union-attr]
            values = found.setdefault((where["model"], where["attack"]), [])
            values.append(255**2 / 10 ** (claim.paper_value / 10))
    return found


def score_rows(claims: Claims, images: str = "real", spread: float = 0.08) -> list[dict]:
    """Runs around the paper's own values, equal in all results; padding changes them by 5 %."""
    rng = np.random.default_rng(0)
    rows = []
    for (model, attack), (truck, animal) in paper_mse(claims).items():
        centers = np.array([truck, animal] * 3)
        draws = centers * 10 ** rng.normal(0, spread, (SEEDS, 6))
        for result, targets in IMAGES.items():
            padded = result == "copa_padding"
            if padded and "tanh" not in model:
                continue
            for seed in range(SEEDS):
                for place, (index, name) in enumerate(targets):
                    mse = draws[seed, place] * (1.05 if padded else 1)
                    values = {"mse": mse, "psnr_255": 10 * np.log10(255**2 / mse)}
                    if attack == "copa":
                        values |= {"fc_error": 1e-13, "label_correct": 1}
                    where = {"result": result, "attack": attack}
                    where["model"] = f"{model}_padded" if padded else model
                    more: dict = {"paper": "copa", "images": images, "seed": seed, "batch": 0}
                    rows += [score(where, index, *v, **more, name=name) for v in values.items()]
    return rows


def security_rows() -> list[dict]:
    rows = []
    for variant, layers in CONTRIBUTIONS.items():
        for act in ("tanh", "leaky"):
            for place, (unknowns, rank, contribution) in enumerate(layers):
                kernel, channels, stride = LAYERS[variant][place]
                row = {"model": f"cnn3_v{variant}_{act}", "seed": 0, "index": 1, "padding": 0}
                row |= {"layer": f"conv{place + 1}", "unknowns": unknowns, "rank": rank}
                row |= {"contribution": contribution, "fc_inputs": LAYERS[variant][2]}
                row |= {"kernel": kernel, "channels": channels, "stride": stride, "fc_outputs": 10}
                rows.append(row)
    return rows


def index_rows(n: int = 40) -> list[dict]:
    rng = np.random.default_rng(1)
    c = -rng.uniform(0, 3000, n)
    mse = 10 ** (-1 - c / -3000 * -1 + rng.normal(0, 0.1, n))
    columns = {"c": c, "expansion": 4 + c / 1000, "mse_copa": mse, "mse_rgap": mse}
    rows = pd.DataFrame(columns).to_dict("records")
    return [{"network": f"n{k}", **row} for k, row in enumerate(rows)]


def read(folder: Path, scores: list[dict], security: list[dict], index: list[dict]) -> Evidence:
    """Write the rows as CSV files, the scores in two parts, and read them."""
    paths = [folder / name for name in ("a.csv", "b.csv", "security.csv", "index.csv")]
    half = len(scores) // 2
    for path, rows in zip(paths, [scores[:half], scores[half:], security, index], strict=True):
        pd.DataFrame(rows).to_csv(path, index=False)
    return Evidence.read(
        paths[:2] if scores else [], paths[2:3] if security else [], paths[3:] if index else []
    )


class Judged:
    """Judges single claims when asked for them, on real images at laptop scale."""

    def __init__(self, claims: Claims, evidence: Evidence) -> None:
        self.judge = Judge(claims, evidence, "real", "laptop")
        self.by_id = {claim.id: claim for claim in claims.claims}

    def __getitem__(self, name: str) -> Outcome:
        return self.judge(self.by_id[name])


def content() -> dict[str, Any]:
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))


def write(tmp_path: Path, changed: Any) -> Path:
    path = tmp_path / "copa.yaml"
    path.write_text(yaml.safe_dump(changed, sort_keys=False), encoding="utf-8")
    return path


def explained(folder: Path, claims: Claims, texts: dict[str, str], **more: Any) -> Explanations:
    """Explanations by patterns of ids, of the recorded run, written to a file and read."""
    file = {
        "paper": claims.paper,
        "of": {"images": "real", "scale": "laptop"},
        "explanations": [
            {"claims": [pattern], "text": text, "evidence": ["docs/copa.md"]}
            for pattern, text in texts.items()
        ],
    }
    path = folder / "explanations.yaml"
    path.write_text(yaml.safe_dump({**file, **more}), encoding="utf-8")
    return load_explanations(path, claims)


def changed(rows: list[dict], where: dict[str, Any], **new: Any) -> list[dict]:
    """Copies of the rows, those that match changed; the value ``times`` and ``plus`` a number."""
    out, times, plus = [], new.pop("times", None), new.pop("plus", 0.0)
    for row in rows:
        if all(row[key] == value for key, value in where.items()):
            row = {**row, **new}
            if times is not None or plus:
                row["value"] = row["value"] * (times or 1.0) + plus
        out.append(row)
    return out
