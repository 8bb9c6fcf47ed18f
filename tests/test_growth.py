"""Growth: exponents, what is not run and why, measurements that are kept, the figure."""

import math

import numpy as np
import pandas as pd
import pytest

from benchmarks import growth, growth_attacks, growth_figure, growth_fits, growth_task
from benchmarks.growth_cases import CASES, COLUMNS

SIDES = (32, 64, 128, 224)


def made_up(what, seconds, memory, sizes=SIDES, n=lambda size: 80 * (size // 4) ** 2):
    """Rows of a case that grows by powers of n."""
    case = CASES[what]
    return [
        {"what": what, "axis": case.axis, "per": case.per, "size": size, "status": "ok"}
        | {"n": n(size), "seconds": 1e-6 * n(size) ** seconds, "cpu_s": 1e-5 * n(size) ** seconds}
        | {"mib": 1e-2 * n(size) ** memory, "peak_mib": 500 + 1e-2 * n(size) ** memory}
        for size in sizes
    ]


def frame(rows):
    return pd.DataFrame(rows, columns=list(COLUMNS))


def test_exponents_of_power_laws_are_found_beside_those_of_theory():
    rows = made_up("R-GAP", 1.5, 1.1) + made_up("layer, dense", 2.8, 2.0, SIDES[:2])
    rows += [{"what": "R-GAP", "size": 448, "status": "too long", "n": 1e6}]
    found = growth_fits.exponents(frame(rows)).set_index(["what", "measure"])
    one = found.loc[("R-GAP", "seconds")]
    assert (one["points"], one["first"], one["last"]) == (4, 32, 224)
    keys = ["exponent", "low", "high", "exponent_last", "exponent_theory"]
    np.testing.assert_allclose(one[keys].astype(float), 1.5, atol=1e-6)
    memory = found.loc[("R-GAP", "mib")]
    # n log n over these n.
    assert memory["exponent"] == pytest.approx(1.1) and 1.05 < memory["exponent_theory"] < 1.15
    side = (24 * 1024 - 500) / 1e-2
    assert memory["fits_24_gib"] == math.floor(4 * math.sqrt(side ** (1 / 1.1) / 80))
    dense = found.loc[("layer, dense", "seconds")]
    assert dense["exponent"] == pytest.approx(2.8) and dense["exponent_theory"] == pytest.approx(3)
    assert math.isnan(dense["low"])


@pytest.mark.parametrize(
    ("seconds", "gib", "status", "word"),
    [
        (1e15, 1e15, None, ""),
        (5, 1e15, "too long", "limit of 5 s"),
        (1e15, 1, "too large", "1 GiB"),
    ],
)
def test_what_smaller_sizes_predict_to_take_too_much_is_not_run(seconds, gib, status, word):
    known = made_up("layer, dense", 3.0, 2.0, SIDES[:2])
    (next_one,) = made_up("layer, dense", 3.0, 2.0, (128,))
    ahead = growth.predict(CASES["layer, dense"], 128, known)
    assert ahead["predicted_s"] == pytest.approx(next_one["cpu_s"])
    # With one size measured, theory predicts.
    assert growth.predict(CASES["layer, dense"], 64, known[:1])["predicted_s"] == pytest.approx(
        known[1]["cpu_s"]
    )
    # What the interpreter takes does not grow.
    assert ahead["predicted_mib"] == pytest.approx(next_one["peak_mib"])
    row = growth.beyond(ahead, {"seconds": seconds, "gib": gib})
    assert (row and row["status"]) == status and word in (row or {"reason": ""})["reason"]


def test_memory_is_extrapolated_from_what_has_grown_and_at_most_to_what_sizes_tell():
    small = made_up("layer, dense", 3.0, 2.0, SIDES[:2])
    for row, mib in zip(small, (0.01, 90.0), strict=True):
        row |= {"mib": mib, "peak_mib": 500.0 + mib}
    ahead = growth.predict(CASES["layer, dense"], 2 * SIDES[1], small)
    assert ahead["predicted_mib"] == pytest.approx(500.0 + 16 * 90.0)
    known = made_up("R-GAP", 1.5, 4.0, (64, 128))
    most = growth_attacks.solving_mib(224)
    assert 1000.0 < most < 10_000.0
    held = known[-1]["peak_mib"] - known[-1]["mib"]
    assert growth.predict(CASES["R-GAP"], 224, known)["predicted_mib"] == pytest.approx(held + most)


def test_a_size_that_an_attack_refuses_has_its_reason():
    case = CASES["GRNN"]
    row = growth_task.run(case.task, 24, 0, 60, case.options)
    assert row["status"] == "refused" and "power of two" in row["reason"]


def test_a_measurement_ends_at_its_limit():
    with pytest.raises(growth_task.TooLong), growth_task.cpu_limit(0.05):
        while True:
            math.sqrt(2.0)


def test_measurements_are_made_once_and_drawn(tmp_path, monkeypatch):
    few = {what: CASES[what] for what in ("Inverting Gradients", "snakemake -n")}
    for module in (growth, growth_fits):
        monkeypatch.setattr(module, "CASES", few)
    amounts = {"sizes": {"side": (24,), "jobs": (4, 40)}, "seconds": 60, "gib": 8}
    table = growth.growth(tmp_path, amounts)
    assert table["status"].tolist() == ["ok"] * 3
    assert table["n"].tolist() == [80 * 6**2, 4 + 1, 40 + 1]
    assert (table[["seconds", "peak_mib"]] > 0).all(axis=None)
    assert table["steps"][0] == "10, 60"
    # Snakemake's process holds no PyTorch.
    assert table["peak_mib"][2] < 0.6 * table["peak_mib"][0]
    monkeypatch.setattr(growth, "measure", lambda *_, **__: pytest.fail("measured again"))
    pd.testing.assert_frame_equal(growth.growth(tmp_path, amounts), table)


def test_the_figure_has_a_line_for_each_case_with_its_exponent():
    rows = made_up("R-GAP", 1.5, 1.1) + made_up("DLG", 1.0, 1.0)
    rows += made_up("MKOR", 1.0, 1.0, (100, 1000), int)
    table = frame(rows)
    figure = growth_figure.draw(table, growth_fits.exponents(table))
    labels = [[line.get_label() for line in axis.lines] for axis in figure.axes]
    assert labels[0] == ["R-GAP: n^1.50"] and labels[4] == ["R-GAP: n^1.10"]
    assert labels[1] == ["DLG, a step: n^1.00"] and labels[2] == ["MKOR: n^1.00"]
    assert labels[3] == [] and len(figure.axes) == 8
    shown = figure.axes[0].lines[0]
    np.testing.assert_allclose(shown.get_xdata(), SIDES)
    np.testing.assert_allclose(shown.get_ydata(), table["seconds"][:4])
    drawn = {what for _, names in growth_figure.PANELS for what in names}
    assert drawn < set(CASES)
