"""Panels of MKOR's figures, as the rules name them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gradleak import config
from settings_files import whole

ROOT = Path(__file__).resolve().parents[1]


def rules(overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Names of panels.smk and mkor_panels.smk, which are Python, under config.yaml."""
    raw = whole()
    loaded = config.load({**raw, **(overrides or {})})
    here: dict[str, Any] = {
        "CONFIG": loaded,
        "TARGETS": "{targets}",
        "RECONSTRUCTION": "{experiment}/{model}/{defence}/{attack}.safetensors",
        "SCORE": "{experiment}/{model}/{defence}/{attack}.csv",
        "amounts_of_attack": lambda name: {"iterations": 7},
        "code": lambda name: name,
    }
    for name in ("panels", "mkor_panels"):
        exec((ROOT / f"workflow/rules/{name}.smk").read_text(encoding="utf-8"), here)
    return here


def test_every_figure_finds_all_its_panels() -> None:
    here = rules()
    assert sorted(here["MKOR_FIGURES"]) == list(range(3, 19))
    for number, figure in here["MKOR_FIGURES"].items():
        wildcards = SimpleNamespace(number=str(number))
        assert here["panels_there"](figure["panels"]) == figure["panels"], number
        inputs, words = here["mkor_inputs"](wildcards), here["mkor_words"](wildcards)
        assert {len(paths) for paths in inputs.values()} == {len(words["panels"])}
        assert f"(MKOR Figure {number})" in words["title"] and words["drawn"]
    relabelled = here["mkor_words"](SimpleNamespace(number="15"))["drawn"]
    assert "labels drawn at random since there is one photo a class" in relabelled


def test_experiments_that_were_taken_out_leave_their_panels_out() -> None:
    raw = whole()
    kept = {k: v for k, v in raw["experiments"].items() if k != "mkor_lenet_fishing"}
    here = rules({"experiments": kept})
    words = here["mkor_words"](SimpleNamespace(number="3"))
    assert len(words["panels"]) == 3
    assert not any("fishing" in panel["title"] for panel in words["panels"])
