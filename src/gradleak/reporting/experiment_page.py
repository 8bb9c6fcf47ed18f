"""results/experiments/{experiment}.html: scores and pictures of one experiment of the config."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from gradleak.data import terms
from gradleak.plotting.reader import Content, Panel, median
from gradleak.plotting.wording import described, precision
from gradleak.reporting import pages
from gradleak.reporting.page_text import TIMES, counted, fixed
from gradleak.reporting.pictures import Thumbnail, thumbnail
from gradleak.runtime.artifacts import FilePath, atomic
from gradleak.runtime.provenance import software
from gradleak.runtime.version import __version__
from gradleak.settings import registry

# Pictures on a page, with originals: more would make it larger than a few MB. Rows of each table.
MOST, ROWS = 240, 8
SIDE = 96  # CSS pixels of a picture

Part = dict[str, Any]  # of the page, as the template reads it
Panels = dict[tuple[str, str], Panel]  # of a network, by attack and defence


@dataclass(frozen=True)
class Told:
    """Facts about an experiment that the page tells besides its results."""

    name: str
    images: str
    scale: str
    settings: Mapping[str, Any]  # its entries in the config, by section
    seeds: int
    # Names that figures and tables give `models` and `attacks`, by id.
    names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def write(path: FilePath, files: Mapping[str, Any], told: Told) -> None:
    """Write the page from files of ``targets``, ``reconstructions`` and ``scores``.

    Raises `ArtifactError` if a file is missing, damaged, or does not fit the others.
    """
    content = Content.read(files, {"attacks": {}})
    with atomic(Path(path)) as temporary:
        temporary.write_text(render(content, told), encoding="utf-8")


def render(content: Content, told: Told) -> str:
    """Return the HTML of the page."""
    originals = content.originals
    networks: dict[str, Panels] = {}
    for (model, attack, defence), panel in content.panels.items():
        networks.setdefault(model, {})[attack, defence] = panel
    chosen, places = selected(networks, originals.indices.size)
    strips = [_strip(content, model, networks[model], places) for model in chosen]
    cells = [cell for strip in strips for row in strip["rows"] for cell in row["cells"]]
    return pages.template("experiment.html.j2").render(
        told=told,
        meanings=meanings(told.settings),
        settings=yaml.safe_dump(dict(told.settings), sort_keys=False, allow_unicode=True),
        images=described(originals) if originals.size == 1 else _batches(content),
        precision=precision([content.table()]),
        scores=[_scores(*key, panel) for key, panel in content.panels.items()],
        defended=len({defence for _, _, defence in content.panels}) > 1,
        strips=strips,
        kept=_terms(originals.source["dataset"]),
        count={
            "shown": sum(cell["picture"] is not None for cell in cells),
            "asked": len(content.panels) * originals.indices.size,
            "images": len(places),
            "of_images": originals.indices.size,
            "networks": len(chosen),
            "of_networks": len(networks),
        },
        channels=originals.shape[0],
        versions={"gradleak": __version__, **software()},
    )


def meanings(settings: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Say what networks, attacks and defences of the settings are, by their ids."""
    found = {"networks": {n: _network(one) for n, one in settings.get("models", {}).items()}}
    for section in ("attacks", "defences"):
        found[section] = {n: _method(section, e) for n, e in settings.get(section, {}).items()}
    return found


def _network(entry: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in entry.items() if key not in ("input", "layers")}
    layers = [_spelled(layer, TIMES) for layer in entry.get("layers") or []]
    sides = f"input {TIMES.join(map(str, entry['input']))}"
    return "; ".join(filter(None, [sides, *layers, _spelled(rest)]))


def _method(section: str, entry: Mapping[str, Any]) -> str:
    """First sentence on a method, and its settings."""
    doc = registry.class_of(section, entry["method"]).__doc__ or ""
    given = _spelled({key: value for key, value in entry.items() if key != "method"})
    said = f"{entry['method']}: {doc.partition(chr(10))[0].replace('`', '')}"
    return said + (f" Settings: {given}." if given else "")


def _spelled(value: Any, between: str = ", ") -> str:
    """Settings in one line; `between` are the entries of a list."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_spelled(one, between)}" for key, one in value.items())
    if isinstance(value, list):
        return between.join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def selected(networks: Mapping[str, Panels], images: int) -> tuple[list[str], range]:
    """Choose networks, and how many images of each, for at most `MOST` pictures; one at least."""
    kept: list[str] = []
    left = MOST
    for model, panels in networks.items():
        left -= 1 + len(panels)
        if left < 0 and kept:
            break
        kept.append(model)
    width = sum(1 + len(networks[model]) for model in kept)
    return kept, range(min(images, ROWS, max(1, MOST // width)))


def _batches(content: Content) -> str:
    first, count = described(content.originals, [0]), len(content.originals.images)
    each = f"{counted(count, 'batch', 'batches')} of {content.originals.size:,} images"
    return f"{each}; in the first: {first}" if content.originals.size <= ROWS else each


def _terms(dataset: str) -> str:
    """Why pictures of a data set must not be redistributed; empty if they may be."""
    found = terms.of(dataset)
    return "" if found.shareable else f"{dataset}: {found.reason}"


def _scores(model: str, attack: str, defence: str, panel: Panel) -> Part:
    """Scores of an attack on a network, over all seeds and images."""
    chosen = panel.chosen
    ok = chosen["status"] == "ok"
    worked = chosen[ok]
    reasons = chosen.loc[~ok, "reason"].replace("", np.nan).fillna(chosen.loc[~ok, "status"])
    return {
        "model": model,
        "attack": attack,
        "defence": defence,
        "runs": len(chosen),
        "ok": int(ok.sum()),
        "mse": _finite(median(chosen)),
        "best": _finite(worked["mse"].min()),
        "psnr": _finite(worked["psnr"].median()),
        "ssim": _finite(worked["ssim"].median()),
        "why": "" if reasons.empty else str(reasons.value_counts().index[0]),
    }


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _strip(content: Content, model: str, panels: Panels, places: Sequence[int]) -> Part:
    """Originals of a network with each attack's reconstruction, as rows."""
    originals = content.originals
    by_batch: dict[int, list[int]] = {}
    for place in places:
        by_batch.setdefault(place // originals.size, []).append(place % originals.size)
    rows = []
    for batch, positions in by_batch.items():
        found = {key: _cells(panel, batch, positions) for key, panel in panels.items()}
        words = originals.classes(batch)
        for line, position in enumerate(positions):
            name = originals.names[batch] if originals.size == 1 else words[position]
            pixels = originals.pixels(originals.inputs(batch, slice(position, position + 1))[0])
            number = batch * originals.size + position + 1
            cells = [
                {"attack": attack, "defence": defence, **each[line]}
                for (attack, defence), each in found.items()
            ]
            original = thumbnail(pixels, SIDE)
            rows.append({"number": number, "name": name, "original": original, "cells": cells})
    return {"model": model, "columns": list(panels), "rows": rows}


def _cells(panel: Panel, batch: int, positions: Sequence[int]) -> list[Part]:
    """Reconstructions of some images of a batch, with their scores."""
    values = panel.values(batch).iloc[list(positions)]
    images = panel.images(batch, positions)
    each = zip(images, values.to_dict("records"), strict=True)
    return [_cell(image, row, panel.reason(batch)) for image, row in each]


def _cell(image: np.ndarray | None, row: Mapping[Any, Any], reason: str) -> Part:
    shown: Thumbnail | None = None if image is None else thumbnail(image, SIDE)
    said = "" if pd.isna(row["psnr"]) else f"PSNR {fixed(row['psnr'], 1)} dB"
    if said and not pd.isna(row["ssim"]):
        said += f", SSIM {fixed(row['ssim'], 2)}"
    own = "" if pd.isna(row["reason"]) else str(row["reason"])
    return {"picture": shown, "said": said, "why": reason or own or "no image of this class"}
