"""Claims files against the rest of the repository: what the config makes, limits of figures."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from claims_rgap import FILE, ROOT
from claims_synthetic import FILE as COPA
from gradleak.analysis.copa_index import COLUMNS as SECURITY_COLUMNS
from gradleak.analysis.rank_table import COLUMNS as RANK_COLUMNS
from gradleak.claims import load
from gradleak.claims.forms import Query
from gradleak.claims.statement import Rule
from gradleak.runtime.tidy import TABLES
from gradleak.scoring.metrics.image import AT_TWIN, INVISIBLE
from papers.fedkl.distributions import COLUMNS as FIG4
from papers.fedkl.tables.accuracy import COLUMNS as ACCURACY
from papers.fedkl.tables.parameters import COLUMNS as PARAMETERS
from papers.mkor.inconspicuous import COLUMNS as INCONSPICUOUS
from papers.mkor.tables.pruned import COLUMNS as PRUNED
from settings_files import whole


def _wheres(value: Any, outer: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every selection in a query, with what stands around it, and the mapping it stands in."""
    if isinstance(value, list):
        for item in value:
            yield from _wheres(item, outer)
    if not isinstance(value, dict):
        return
    outer = {**outer, **value.get("where", {})}
    inner = {key: value[key] for key in ("better", "than", "one", "other") if key in value}
    sides = {key: side for key, side in inner.items() if "where" not in side}
    for side in sides.values():
        yield {**outer, **side}, value
    rest = [item for key, item in value.items() if key not in ("where", *sides)]
    deeper = [found for item in rest for found in _wheres(item, outer)]
    yield from deeper
    if not sides and not deeper and outer:
        yield outer, value


def _listed(value: Any) -> set[str]:
    return {str(item) for item in (value if isinstance(value, list) else [value])}


MKOR = ROOT / "papers/mkor/claims.yaml"
FEDKL = ROOT / "papers/fedkl/claims.yaml"
IMAGE_METRICS = "src/gradleak/scoring/metrics/image.py"
# Columns of other tables that claims read.
TIDY = {
    "mkor_inconspicuous": INCONSPICUOUS,
    "mkor_unique_samples": ["images", "classes", "expected", "simulated", "low", "high"],
    "mkor_bound": ["bound", "metric", "value", "n"],
    "mkor_soteria_pruned": PRUNED,
    **{name: [*TABLES, "model"] for name in ("rgap_fig4", "rgap_resnet101")},
    "mkor_soteria_cost": ["model", "features", "passes", "gradient_passes"],
    "fedkl_accuracy": ACCURACY,
    "fedkl_parameters": PARAMETERS,
    "fedkl_propositions": TABLES,
    "fedkl_fig4": FIG4,
}


@pytest.mark.parametrize("path", [COPA, FILE, MKOR, FEDKL], ids=["copa", "rgap", "mkor", "fedkl"])
def test_claims_name_only_what_the_config_makes(path: Path) -> None:
    config = whole()
    experiments, groups = config["experiments"], config.get("groups", {})
    code = [*ROOT.glob("src/gradleak/scoring/scores*.py"), ROOT / IMAGE_METRICS]
    metrics = "".join(path.read_text(encoding="utf-8") for path in code)
    tables = {"rank": [*RANK_COLUMNS, "local"], "security": SECURITY_COLUMNS, **TIDY}
    looked_at = 0
    for claim in load(path).claims:
        for where, inside in _wheres(claim.query.model_dump(), {}):
            looked_at += 1
            assert _listed(where.get("model", [])) <= set(config["models"]), claim.id
            if "column" in inside and claim.query.form in ("column", "columns", "estimates"):
                assert inside["column"] in tables[inside["table"]], claim.id
                known = {*tables[inside["table"]], "result", "position"}
                assert where.keys() <= known, claim.id
            assert _listed(where.get("server", [])) <= set(config["servers"]), claim.id
            if "result" not in where:
                continue
            entry = experiments[where["result"]]
            made = {m for name in entry["models"] for m in groups.get(name, [name])}
            assert _listed(where.get("model", [])) <= made, claim.id
            for key in ("attack", "defence"):
                assert _listed(where.get(key, [])) <= set(entry[f"{key}s"]), (claim.id, key)
            metric = inside.get("metric") or getattr(claim.query, "metric", "mse")
            assert f'"{metric}"' in metrics, (claim.id, metric)
    assert looked_at > 100


def test_sentences_that_tests_check_name_them() -> None:
    named = 0
    for claim in load(MKOR).claims:
        reason = getattr(claim.query, "reason", "")
        assert reason.split(": ")[0] in ("", "data", "scale", "time", "test"), claim.id
        if reason.startswith("test: "):
            file, name = reason.removeprefix("test: ").split(";")[0].split("::")
            assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), claim.id
            named += 1
    assert named >= 4


def test_the_page_on_claims_has_every_form_with_its_rules() -> None:
    page = (ROOT / "docs/claims.md").read_text(encoding="utf-8")
    rows = page.partition("\n## Forms")[2].partition("\n## ")[0].splitlines()
    shown = {}
    for names, _, rules, asks in (row.strip("| ").split(" | ") for row in rows if "| `" in row):
        for name in re.findall(r"`(\w+)`", names):
            shown[name] = (re.findall(r"`(\w+)`", rules) or list(get_args(Rule)), asks)
    forms = get_args(get_args(Query)[0])
    named = {get_args(form.model_fields["form"].annotation)[0]: form for form in forms}
    assert shown == {name: (list(form.rules), form.asks) for name, form in named.items()}


def test_figures_and_claims_have_the_same_limits() -> None:
    amounts = {name: tolerance.amount for name, tolerance in load(FILE).tolerances.items()}
    assert amounts["invisible"] == amounts["visible"] == INVISIBLE
    assert amounts["at_twin"] == amounts["off_twin"] == AT_TWIN
    query = next(c.query for c in load(FILE).claims if c.id == "rgap.twin.dlg_random")
    assert query.model_dump()["more"]["amount"] == AT_TWIN


def test_the_papers_sentences_rest_on_its_own_arithmetic() -> None:
    for claim in load(FILE).claims:
        selected = [where for where, _ in _wheres(claim.query.model_dump(), {})]
        attacks = {name for where in selected for name in _listed(where.get("attack", []))}
        if claim.reading == "paper" and claim.id != "rgap.label":
            assert "rgap_balanced" not in attacks, claim.id
