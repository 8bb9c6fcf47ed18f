"""What a layer takes, estimated, against what its factors hold; and what the record says of it."""

import numpy as np
import pytest
import torch
from torch import nn

import gradleak
from chains import system
from gradleak.attacks.closed_form.layerwise import linear_facts
from gradleak.operators import gram
from gradleak.operators import system as module
from gradleak.operators.shape import ConvShape

COLUMN = ConvShape(2, 6, (3, 3), (1, 1), (0, 0), (8, 8))
ROW = ConvShape(4, 2, (3, 3), (2, 2), (0, 0), (9, 9))
DENSE = ConvShape(2, 4, (2, 2), (2, 2), (1, 1), (8, 8))
BLOCKS = ConvShape(2, 8, (3, 3), (1, 1), (1, 1), (5, 5))


@pytest.mark.parametrize(("path", "shape"), [("column", COLUMN), ("row", ROW), ("dense", DENSE)])
def test_the_estimate_names_the_path_and_covers_what_is_held(path, shape):
    whole = system(shape, 3)
    found = whole.solve(whole.apply(np.ones(whole.shape[1])))
    estimate = found.estimate
    assert estimate.path == path and estimate.operations > 0 and not found.given_up
    assert (estimate.step_operations > 0) == (path == "column")
    held = whole.dense() if path == "dense" else whole.convolution.factor._factor
    assert estimate.bytes >= held.nbytes


def test_a_path_that_was_given_up_is_told(monkeypatch):
    monkeypatch.setattr(module, "DENSE_LIMIT", 0)
    whole = system(BLOCKS, 7)
    unended = np.full(whole.shape[1], np.nan), 1, "iteration limit"
    monkeypatch.setattr(gram, "refined_solve", lambda *_: unended)
    found = whole.solve(np.ones(whole.shape[0]))
    facts = linear_facts("conv1", "4", 0.0, found)
    assert facts.path == "gram" and "after 'blocks' did not converge" in facts.stop
    assert facts.bytes == found.estimate.bytes > 0


def test_a_reconstruction_records_its_layers_estimates():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(6 * 6 * 6, 3)
    )
    gradient = gradleak.capture(model, torch.rand(1, 2, 8, 8), [0])
    found = gradleak.invert(gradient, model, (2, 8, 8), "rgap", labels=[0])
    assert [layer.path for layer in found.layers] == ["", "column"]
    assert min(found.layers[1].operations, found.layers[1].bytes) > 0
