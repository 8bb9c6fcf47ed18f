"""docs/reviewing.md, run as a reviewer would."""

import re

import pandas as pd
import pytest

from conftest import ROOT, copy_tree, shell

BLOCKS = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs/reviewing.md").read_text(), re.M | re.S)


@pytest.mark.slow
def test_every_command_shows_what_the_page_says(tmp_path):
    folder = copy_tree(tmp_path / "clone")
    run = shell(folder)
    table, trace, remake, other, seed = BLOCKS
    run(table)
    made = pd.read_csv(folder / "results/tables/copa_table2.csv")
    assert made.paper.notna().sum() == len(made) == 96
    assert set(made.verdict) == {"not judged"}
    shown = run(trace)
    ours = [float(line.split()[1]) for line in shown.splitlines()[:2]]
    assert ours[0] == pytest.approx(ours[1], rel=1e-9)
    for place in ("scores", "reconstructions", "gradients", "targets", "models"):
        assert f"results/{place}/" in shown
    assert "data/photos10-train.safetensors" in shown
    last = [line for line in shown.splitlines() if line.startswith("cnn3_v3_tanh/")]
    assert last and not any("image" in line for line in last)
    assert "the same bytes" in run(remake)
    said = run(other)
    assert "other numbers" in said and "the first numbers" in said
    assert "another draw" in run(seed)
