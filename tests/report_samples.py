"""A small report for tests: figures, tables and claims of two papers, every verdict among them."""

from itertools import cycle
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from gradleak.claims import COLUMNS, load, recorded, tally
from gradleak.claims.evaluate import OF_CLAIM, PART_OF
from gradleak.claims.outcome import DIFFERS, NOT_JUDGED, VERDICTS
from gradleak.reporting import page
from gradleak.runtime import tidy

ROOT = Path(__file__).resolve().parents[1]
# Differs and is explained for real images at laptop scale; differs and is explained nowhere.
EXPLAINED, OPEN = "copa.table2.fig1.v3.truck.copa.mse", "copa.table1.v1.layer1.kernel"
# All equal to 10; a number that is drawn; two that are said to be alike.
EXACT, DRAWN = "copa.table1.v1.layer1.channels", "copa.table2.fig1.v1.truck.copa.mse"
CLOSE = "copa.fig1.close.v3"
OURS = "copa.c.full.fig1.copa"  # a stricter reading
# Claims that stand in tables, and sentences.
CELLS, SENTENCES = 45, 16
ODD = 'a <b>reason</b> & "more"'


def papers():
    found = []
    for name in ("copa", "rgap"):
        numbers = load(ROOT / f"papers/{name}/claims.yaml").judged()
        cells = [c for c in numbers if c.cell and c.cell.table in ("copa_table1", "copa_table2")]
        sentences = [claim for claim in numbers if claim.cell is None]
        wanted = [claim for claim in cells if claim.id == EXPLAINED]
        alike = [claim for claim in sentences[SENTENCES:] if claim.id in (CLOSE, OURS)]
        found += [*cells[:CELLS], *wanted, *sentences[:SENTENCES], *alike]
    return list({claim.id: claim for claim in found}.values())


def ours(claim, n_ok=5, images="real", scale="laptop"):
    low, high = (10, 10) if claim.id == EXACT else (0.041, 0.062)
    counts = {"n": 5, "n_ok": n_ok, "images": images, "scale": scale}
    return {"ours": 0.05123, "low": low, "high": high, **counts}


def frame(images, scale):
    """All claims files: verdicts in turn, but for the two that are to differ."""
    rows, sentences = [], {}
    for claim, verdict in zip(papers(), cycle(VERDICTS), strict=False):
        given = claim.id == EXPLAINED and (images, scale) == ("real", "laptop")
        row = {key: getattr(claim, key) for key in OF_CLAIM} | {"reason": ODD}
        row |= ours(claim, 4 if verdict == DIFFERS else 5, images, scale)
        row["verdict"] = DIFFERS if claim.id in (EXPLAINED, OPEN) else verdict
        row |= {"window": "factor 3", "closeness": "25 %", "evidence": "copa_pair"}
        row |= {"p": 0.01, "holm": 0.2} if row["verdict"] == DIFFERS else {}
        row |= {"explanation": "It is solved to rounding." if given else "", PART_OF: ""}
        if whole := claim.sentence:
            head = {"id": whole.id, "statement": whole.statement, "paper_value": None}
            sentences.setdefault(whole.id, {**row, **head, "verdict": NOT_JUDGED, "p": None})
        rows.append({**row, PART_OF: whole.id if whole else ""})
    return pd.DataFrame([*rows, *sentences.values()], columns=COLUMNS)


def tables(folder, claimed):
    """Tables with verdicts, one of ours alone, one that is long, one that is not tidy."""
    verdicts = claimed.set_index("id")["verdict"]
    cells = [claim for claim in papers() if claim.cell]
    made = {}
    for name in ("copa_table1", "copa_table2"):
        rows = [
            {key: getattr(claim.cell, key) for key in ("row", "column", "metric")}
            | {"paper": claim.paper_value, "note": ODD, "verdict": verdicts[claim.id]}
            | ours(claim)
            for claim in cells
            if claim.cell.table == name
        ]
        made[name] = pd.DataFrame(rows, columns=tidy.TABLES)
    alone = {"row": "Network <1>", "column": "COPA", "metric": "mse", "ours": 1e-13, "n": 3}
    made["copa_images"] = pd.DataFrame([{**alone, "n_ok": 2}], columns=tidy.TABLES)
    made["copa_index"] = pd.DataFrame([alone] * 500, columns=tidy.TABLES)
    speed = {"what": ["<a>", "b"], "ours_s": [1.131e7, np.nan], "note": ["some words", np.nan]}
    made["rgap_speed"] = pd.DataFrame(speed)
    # As wide as our widest.
    wide = {f"metric_{place}_mean": [1.234, 5.678, 9.012] for place in range(12)}
    made["rgap_wide"] = pd.DataFrame({"loss": ["cross_entropy", "raw_logits", "squares"], **wide})
    paths = [folder / f"results/tables/{name}.csv" for name in made]
    for path in paths:
        made[path.stem].to_csv(path, index=False)
    return paths


def figures(folder):
    names = ("copa_fig1", "copa_index", "rgap_fig9", "rgap_fig1")
    paths = [folder / f"figures/{name}.png" for name in names]
    for path in paths:
        Image.linear_gradient("L").resize((900, 500)).save(path)
        path.with_suffix(".pdf").write_bytes(b"%PDF-1.7")
    return paths


def sources(folder, images="real", scale="laptop"):
    for part in ("figures", "results/tables"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    claimed, files = frame(images, scale), []
    for kind, name in recorded.FILES.items():
        files.append(folder / "results" / name)
        tally.of_kind(claimed, kind).to_csv(files[-1], index=False)
    return page.Sources(
        figures=figures(folder),
        tables=tables(folder, claimed),
        claimed=files,
        claims=sorted(ROOT.glob("papers/*/claims.yaml")),
        explanations=sorted(ROOT.glob("papers/*/explanations.yaml")),
        captions=sorted(ROOT.glob("papers/*/results.yaml")),
    )


def write(folder, **case):
    path = folder / "results/report.html"
    page.write(path, sources(folder, **case))
    return path
