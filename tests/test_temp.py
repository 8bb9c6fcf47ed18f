"""Gradients of large networks: gone once all attacks have read them, made again when asked for."""

import re

import pytest

CELL = "embedded-smoke/copa_pair/cnn3_v3_tanh/none"
SMOKE = ("--cores", "2", "--config", "scale=smoke")
LINE = "MEDIUM, LARGE = 1_000_000, 30_000_000"


@pytest.fixture
def large(tree):
    path = tree / "src/gradleak/pipeline/resources.py"
    text = path.read_text()
    assert text.count(LINE) == 1
    path.write_text(text.replace(LINE, "MEDIUM, LARGE = 100, 1_000"))
    return tree


def rules(done):
    """Number of jobs of each rule, from the table that a dry run prints."""
    text = done.stdout + done.stderr
    return {name: int(n) for name, n in re.findall(r"^(\w+) +(\d+)$", text, re.MULTILINE)}


@pytest.mark.slow
def test_a_large_gradient_is_gone_once_it_was_read(large, snakemake):
    """And nothing is to be done; --notemp keeps it; another attack makes it again for itself."""
    gradient = large / f"results/gradients/{CELL}.safetensors"
    scores = [f"results/scores/{CELL}/{attack}.csv" for attack in ("rgap", "copa")]
    snakemake(large, *SMOKE, "--notemp", "--", scores[0])
    first = (large / scores[0]).read_bytes()
    gradient.unlink()
    done = snakemake(large, *SMOKE, "-n", "--", scores[0])
    assert "Nothing to be done" in done.stdout + done.stderr

    done = snakemake(large, *SMOKE, "-n", "--", scores[1])
    assert rules(done) == {"large_gradient": 1, "attack": 1, "score": 1, "total": 3}
    snakemake(large, *SMOKE, "--", scores[1])
    assert not gradient.exists()
    assert (large / scores[0]).read_bytes() == first


def test_networks_of_a_hundred_million_weights_alone_have_large_gradients(tree, snakemake):
    """Of them those go that closed forms alone have read."""
    done = snakemake(tree, "-n", "--verbose", "--config", "scale=laptop")
    found = rules(done)
    blocks = re.findall(r"rule large_\w+:\n(?: .*\n)+", done.stdout + done.stderr)
    assert found["large_gradient"] == 20 and found["large_defended_gradient"] == 3
    assert len(blocks) == 23
    for block in blocks:
        assert re.search(r"model=mkor_(vgg16_1000?(_strided)?|modified_1000),", block)
