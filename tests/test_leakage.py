"""What a sum of gradients tells of one of them: formula, estimates, table and figure."""

import numpy as np
import pandas as pd
import pytest
import torch

from figure_files import target_set
from figure_words import flat
from gradleak.client.capture import capture
from gradleak.data import targets
from gradleak.errors import ArtifactError, ConfigError
from gradleak.models.activations import Activation
from gradleak.models.chain import Chain, ConvSpec, LinearSpec
from gradleak.models.files import ModelFile
from gradleak.models.initial import family_weights
from gradleak.runtime.artifacts import write_csv
from papers.mkor import leakage
from papers.mkor.figures import leakage as mkor_leakage

CLASSES = 10


def test_formula_is_the_difference_of_two_entropies():
    k = np.array([2.0, 10.0, 1000.0])
    entropies = [0.5 * np.log(2 * np.pi * n * 0.3) + 0.5 for n in (k, k - 1)]
    np.testing.assert_allclose(leakage.gaussian(k), entropies[0] - entropies[1])
    assert leakage.gaussian(1000) == pytest.approx(leakage.asymptote(1000), rel=1e-3)


def test_entropy_of_known_distributions():
    rng = np.random.default_rng(0)
    samples = np.stack([rng.standard_normal(20000), rng.random(20000)], axis=1)
    normal, uniform = leakage.entropy(samples)
    assert normal == pytest.approx(0.5 * np.log(2 * np.pi * np.e), abs=0.02)
    assert uniform == pytest.approx(0.0, abs=0.02)


def test_normal_gradients_leak_what_the_formula_says():
    gradients = np.random.default_rng(0).standard_normal((500, 40))
    gradients[:, 0] = 1.0  # a parameter whose gradient never changes tells nothing
    for size in (2, 10):
        found, entropies = leakage.measured(gradients, size, 4000)
        assert found == pytest.approx(float(leakage.gaussian(size)), rel=0.06)
        assert np.isnan(entropies) or entropies == pytest.approx(found, rel=0.25)


@pytest.fixture(scope="module")
def lenet():
    sigmoid = Activation("sigmoid")
    conv = ConvSpec(2, (3, 3), activation=sigmoid, bias=True)
    chain = Chain("lenet", (1, 8, 8), (conv, LinearSpec(5, True, sigmoid), LinearSpec(CLASSES)))
    models = ModelFile((chain,), family_weights([chain], 1))
    return models, target_set(1, 20, (1, 8, 8), "digits")


def test_gradients_of_samples_add_up_to_that_of_the_batch(lenet):
    models, target = lenet
    chain, weights = models.chains[0], models.of(models.chains[0], 0)
    inputs, labels = target.inputs(0), target.labels[0]
    each = leakage.of_samples(chain, weights, inputs, labels)
    whole = capture(chain, weights, inputs, labels, precision="float32", device=torch.device("cpu"))
    for layer in leakage.LAYERS:
        assert each[layer].shape == (20, whole[layer].size)
        np.testing.assert_allclose(each[layer].mean(axis=0), whole[layer].ravel(), atol=1e-6)


def test_leakage_table_and_figure(lenet, tmp_path):
    models, target = lenet
    table = leakage.table(models, target, "lenet", draws=300)
    assert list(table.columns) == leakage.COLUMNS
    assert len(table) == len(leakage.SIZES) * len(leakage.LAYERS)
    pd.testing.assert_frame_equal(table, leakage.table(models, target, "lenet", draws=300))
    with pytest.raises(ConfigError, match="has no other"):
        leakage.table(models, target, "other", draws=300)
    files = {"table": str(tmp_path / "t.csv"), "targets": str(tmp_path / "t.safetensors")}
    write_csv(files["table"], table)
    targets.save(files["targets"], target, {})
    words = {"title": "Leakage", "note": "Drawn anew from:"}
    figure = mkor_leakage.make(files, words, "smoke")
    for fact in ("20 digits test images", "Scale smoke", "in place of MNIST"):
        assert fact in flat(figure)
    write_csv(files["table"], table.iloc[:0])
    with pytest.raises(ArtifactError, match="has no rows"):
        mkor_leakage.make(files, words, "smoke")
