"""Threat models: letters of attacks, experiments, figures and tables."""

import re
from pathlib import Path

import pytest
import torch

import gradleak
from gradleak.attacks.threat_models import NAMES, under
from gradleak.pipeline.results import threat_models
from gradleak.settings import registry
from test_library import SHAPE, chain_of
from test_results import results

PAGE = Path(__file__).parents[1] / "docs/threat_models.md"


def test_the_page_has_the_letter_of_every_attack():
    rows = dict(re.findall(r"^\| `(\w+)` \| ([A-H]) \|", PAGE.read_text(), re.MULTILINE))
    assert rows == {
        method: registry.class_of("attacks", method).threat
        for method in registry.modules("attacks")
    }


def test_the_page_has_the_name_of_every_letter():
    rows = dict(re.findall(r"^\| ([A-H]) \| ([\w -]+) \| yes", PAGE.read_text(), re.MULTILINE))
    assert rows == NAMES


@pytest.mark.parametrize(
    ("letter", "case", "found"),
    [
        ("A", {}, "A"),
        ("A", {"update": True}, "C"),
        ("D", {"update": True}, "D"),
        ("B", {"server": True}, "F"),
        ("D", {"server": True}, "G"),
        ("F", {"server": True, "update": True}, "F"),
    ],
)
def test_what_a_server_and_local_steps_add(letter, case, found):
    assert under(letter, **case) == found


def test_figures_and_tables_have_the_letters_of_their_attacks():
    found = threat_models.letters(results())
    expected = {
        "copa_fig1": "B",
        "rgap_fig2": "A, B",
        "rgap_table1": "A, B",
        "rgap_table3": "A, B",
        "fedkl_table6": "A, B, D",
        "mkor_table2": "A, B, F",
    }
    assert {name: found.get(name, "none") for name in expected} == expected
    assert "rgap_counts" not in found  # sizes of networks


def test_h_gap_needs_what_its_parts_need():
    config = results().config
    hybrid = next(n for n, e in config.attacks.items() if e.method == "h_gap")
    where = next(n for n, e in config.experiments.items() if hybrid in e.attacks)
    assert threat_models.of_attack(config, where, hybrid) == "B"


def test_an_inversion_tells_its_letter():
    model, images = chain_of(), torch.rand(1, *SHAPE)
    shared = gradleak.capture(model, images, [1])
    assert gradleak.invert(shared, model, SHAPE).threat == "B"
    update = gradleak.capture(model, images, [1], recipe=gradleak.Recipe(rate=0.1, epochs=2))
    assert gradleak.invert(update, model, SHAPE).threat == "C"
