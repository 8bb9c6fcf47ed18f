"""Networks at full size against plain dense linear algebra; takes minutes and some GB."""

import numpy as np
import pytest

from benchmarks import copa_settings, dense
from benchmarks.rgap import measured, read_case, write_case
from gradleak.analysis.copa_index import layer_system
from gradleak.attacks.closed_form.least_squares import OPTIMISERS, LayerProblem
from gradleak.config import loader
from gradleak.models.initial import initial_weights
from gradleak.models.numpy_autodiff import deltas as true_deltas
from gradleak.models.numpy_autodiff import margin_label
from gradleak.operators.convolution import Convolution
from gradleak.operators.structure import structural_rank
from gradleak.scoring.metrics.image import mse
from pipeline_trees import whole

pytestmark = pytest.mark.slow

CONFIG = loader.load(whole())
VARIANTS = [CONFIG.chain(f"cnn3_v{number}_tanh") for number in (1, 2, 3, 4)]
# Variants 1 and 3 begin with layers of the same sizes.
LAYERS = {layer.shape: (chain, layer) for chain in VARIANTS for layer in chain.convolutions}
MEMORY_MIB, LABEL = 500, 3


def _image(chain):
    return np.random.default_rng(5).uniform(-0.5, 0.5, chain.input)


@pytest.fixture(scope="module")
def third(tmp_path_factory):
    path, chain = str(tmp_path_factory.mktemp("third") / "case.safetensors"), VARIANTS[2]
    write_case(path, chain, initial_weights(chain, 0), _image(chain), LABEL, -0.5)
    return path


@pytest.mark.parametrize(("chain", "layer"), LAYERS.values())
def test_dense_structural_and_numerical_rank_are_equal(chain, layer):
    weights = initial_weights(chain, 0)
    deltas = true_deltas(chain, weights, _image(chain), LABEL)
    matrix = dense.layer_matrix(weights[f"{layer.name}.weight"], deltas[layer.name], layer.shape)
    expected, structure = np.linalg.matrix_rank(matrix), structural_rank(layer.shape)
    assert len(LAYERS) == 7 and structure.exact and structure.bound == expected
    assert layer_system(layer, weights, deltas).rank == expected


def test_rgap_on_variant_3_equals_dense_least_squares_within_500_mib(third):
    ours, plain = measured("rgap", third), measured("dense", third)
    found, expected = np.array(ours["image"]), np.array(plain["image"])
    assert np.linalg.norm(found - expected) <= 1e-8 * np.linalg.norm(expected)
    assert ours["error"] == mse(read_case(third).image, found) < 1e-12
    assert 0 < ours["mib"] < MEMORY_MIB < plain["mib"]


def test_rgap_on_cnn6_from_float32_gradients_is_exact_to_1e_9_within_500_mib(tmp_path):
    path = str(tmp_path / "case.safetensors")
    chain = CONFIG.chain("rgap_cnn6")
    weights, image = initial_weights(chain, 0), np.random.default_rng(5).uniform(size=chain.input)
    label = margin_label(chain, weights, image, "opposite")
    write_case(path, chain, weights, image, label, 0.0, single=True)
    ours = measured("rgap_balanced", path)
    assert ours["error"] < 1e-9
    assert 0 < ours["mib"] < MEMORY_MIB


@pytest.mark.parametrize("task", ["index", "ranks", "sizes"])
def test_the_index_of_variant_3_takes_less_than_500_mib(third, task):
    found = measured(task, third)
    assert 0 < found["mib"] < MEMORY_MIB
    ranks = [layer.shape.unknowns for layer in VARIANTS[2].convolutions]
    assert found["ranks"] == ranks if task == "ranks" else found["index"] == 0.0


def test_all_optimisers_lower_a_hidden_layer_of_variant_1():
    chain = VARIANTS[0]
    weights, image = initial_weights(chain, 0), _image(chain)
    first, hidden = chain.convolutions
    before = Convolution(weights["conv1.weight"], first.shape)
    system = layer_system(hidden, weights, true_deltas(chain, weights, image, LABEL))
    true = before.apply(image.ravel())
    values = system.apply(first.activation.forward(true))
    problem = LayerProblem(system, values, first.activation, lambda y: y - before.project(y))
    assert problem.start_value(true) < 1e-20
    start = np.random.default_rng(1).uniform(-0.05, 0.05, true.size)
    assert set(OPTIMISERS) == set(copa_settings.LIMITS)
    # Relative residuals; the start lies at about 1. Adam's fixed rate keeps it from zero.
    highest = {"lbfgs": 1e-4, "levenberg_marquardt": 1e-8, "adam": 1e-1}
    for name, limit in copa_settings.LIMITS.items():
        found = OPTIMISERS[name](problem, start, limit)
        assert np.sqrt(found.trace[-1]) / np.linalg.norm(values) < highest[name], name
