"""What a sum of gradients tells of one of them: formula, estimates, table and figure."""

import numpy as np
import pandas as pd
import pytest

from chains import conv, models, net, shared
from figure_files import flat, target_set
from gradleak.data import targets
from gradleak.errors import ArtifactError, ConfigError
from gradleak.models.activations import Activation
from gradleak.models.chain import LinearSpec
from gradleak.runtime.artifacts import write_csv
from papers.mkor import leakage
from papers.mkor.figures import leakage as mkor_leakage


def test_formula_is_the_difference_of_two_entropies():
    k = np.array([2.0, 10.0, 1000.0])
    entropies = [0.5 * np.log(2 * np.pi * n * 0.3) + 0.5 for n in (k, k - 1)]
    np.testing.assert_allclose(leakage.gaussian(k), entropies[0] - entropies[1])
    assert leakage.gaussian(1000) == pytest.approx(leakage.asymptote(1000), rel=1e-3)


def test_entropy_of_known_distributions():
    rng = np.random.default_rng(0)
    samples = np.stack([rng.standard_normal(20000), rng.random(20000)], axis=1)
    expected = [0.5 * np.log(2 * np.pi * np.e), 0.0]
    np.testing.assert_allclose(leakage.entropy(samples), expected, atol=0.02)


def test_normal_gradients_leak_what_the_formula_says():
    gradients = np.random.default_rng(0).standard_normal((500, 40))
    gradients[:, 0] = 1.0  # a parameter whose gradient never changes tells nothing
    for size in (2, 10):
        found, entropies = leakage.measured(gradients, size, 4000)
        assert found == pytest.approx(float(leakage.gaussian(size)), rel=0.06)
        assert np.isnan(entropies) or entropies == pytest.approx(found, rel=0.25)


FIRST = conv(2, 3, bias=True, activation="sigmoid")
HIDDEN = LinearSpec(5, True, Activation("sigmoid"))
LENET = net(FIRST, HIDDEN, LinearSpec(10), size=(1, 8, 8), name="lenet")
MODELS, TARGET = models(LENET), target_set(1, 20, (1, 8, 8), "digits")


def test_gradients_of_samples_add_up_to_that_of_the_batch():
    given = LENET, MODELS.of(LENET, 0), TARGET.inputs(0), TARGET.labels[0]
    each, whole = leakage.of_samples(*given), shared(*given, "float32")
    for layer in leakage.LAYERS:
        assert each[layer].shape == (20, whole[layer].size)
        np.testing.assert_allclose(each[layer].mean(axis=0), whole[layer].ravel(), atol=1e-6)


def test_leakage_table_and_figure(tmp_path):
    table = leakage.table(MODELS, TARGET, "lenet", draws=300)
    assert list(table.columns) == leakage.COLUMNS
    assert len(table) == len(leakage.SIZES) * len(leakage.LAYERS)
    pd.testing.assert_frame_equal(table, leakage.table(MODELS, TARGET, "lenet", draws=300))
    with pytest.raises(ConfigError, match="has no other"):
        leakage.table(MODELS, TARGET, "other", draws=300)
    files = {"table": str(tmp_path / "t.csv"), "targets": str(tmp_path / "t.safetensors")}
    write_csv(files["table"], table)
    targets.save(files["targets"], TARGET, {})
    words = {"title": "Leakage", "note": "Drawn anew from:"}
    figure = mkor_leakage.make(files, words, "smoke")
    for fact in ("20 digits test images", "Scale smoke", "in place of MNIST"):
        assert fact in flat(figure)
    write_csv(files["table"], table.iloc[:0])
    with pytest.raises(ArtifactError, match="has no rows"):
        mkor_leakage.make(files, words, "smoke")
