"""Jobs that take a minute and more tell how far they are, and give what they give without it."""

import logging
import re
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from chains import chain as small
from chains import conv
from gradleak.analysis import copa_index
from gradleak.client import capture
from gradleak.client.defences.apply import defend_all
from gradleak.client.defences.soteria import Soteria
from gradleak.models import build
from gradleak.models.files import ModelFile
from gradleak.models.initial import family_weights
from gradleak.runtime import progress as told
from mkor_cases import network
from papers.mkor import inconspicuous
from rgap_files import target_set

KNOWN = {"seeds": 1, "precision": "float64", "granted": True, "device": "cpu"}


@pytest.fixture
def lines(monkeypatch, caplog):
    """What a function says in a job in which half a minute passes whenever one looks."""

    clock = SimpleNamespace(monotonic=count(40.0, 40.0).__next__)

    def run(function, *arguments, **options):
        caplog.set_level(logging.INFO, "gradleak.runtime.progress")
        caplog.clear()
        monkeypatch.setattr(told, "time", clock)
        told.begin_job("mine")
        try:
            function(*arguments, **options)
        finally:
            told.begin_job("")
        found = [record.getMessage() for record in caplog.records]
        # Only the time left is not known.
        return [re.sub(r", [^,]+ left$", "", line) for line in found]

    return run


@pytest.fixture
def case():
    chain = network(classes=6, side=8)
    return ModelFile((chain,), family_weights([chain], 1)), target_set(2, 3, (1, 8, 8))


def nested(outer, inner):
    """Lines of two loops of two items, one within the other."""
    each = [f", 1 of 2 {inner}", f", 2 of 2 {inner}"]
    first, second = ([f"{k} of 2 {outer}{words}" for words in each] for k in (0, 1))
    return [*first, f"1 of 2 {outer}", *second, f"2 of 2 {outer}"]


def in_parts(monkeypatch):
    """Let batches pass two images at a time."""
    monkeypatch.setattr(capture, "images_at_once", lambda chain: 2)


@pytest.mark.parametrize("kept", ["all", "classifier"])
def test_taking_gradients_tells_of_them_and_of_parts_of_batches(case, lines, monkeypatch, kept):
    whole = ["1 of 2 gradients", "2 of 2 gradients"]
    assert lines(capture.capture_all, *case, **KNOWN, kept=kept) == whole
    in_parts(monkeypatch)
    found = lines(capture.capture_all, *case, **KNOWN, kept=kept)
    assert found == nested("gradients", "parts of a batch")


def test_soteria_tells_of_gradients_and_of_channels(case, lines):
    tensors, metadata = capture.capture_all(*case, **KNOWN)
    found = lines(defend_all, *case, tensors, metadata, Soteria(prune=0.3))
    filters = case[0].chains[0].convolutions[-1].shape.filters
    each = [f"{k} of {filters} channels" for k in range(1, filters + 1)]
    assert [line for line in found if "channels" in line] == [
        f"{done} of 2 gradients, {words}" for done in (0, 1) for words in each
    ]
    assert found[-1] == "2 of 2 gradients"


def test_ranks_tell_of_networks_and_of_layers(lines):
    chains = [small(conv(6, 3), conv(2, 4, stride=2), side=14, name=name) for name in "ab"]
    models = ModelFile(tuple(chains), family_weights(chains, 1))
    found = lines(copa_index.index_table, models, target_set(1, 1, (2, 14, 14)), seeds=1)
    assert found == nested("networks", "layers")


def test_what_a_client_sees_tells_of_models_gradients_and_layers(case, lines):
    models, images = case
    found = lines(inconspicuous.table, models, ["one"], [models], images, 2, "cross_entropy")
    groups = len(models.chains[0].layers) + 2
    each = [
        *("1 of 2 gradients", "2 of 2 gradients"),
        *(f"{k} of {groups} groups of layers" for k in range(1, groups + 1)),
        "1 of 1 networks",
    ]
    first = [*each[:2], each[-1]]
    assert found == [
        *(f"0 of 2 models, {words}" for words in first),
        "1 of 2 models",
        *(f"1 of 2 models, {words}" for words in each),
        "2 of 2 models",
    ]


def test_parts_of_a_batch_add_up_to_its_gradient(case, monkeypatch):
    """As before there were lines; a whole batch in one part is bit for bit the plain gradient."""
    models, images = case
    chain, weights = models.chains[0], models.of(models.chains[0], 0)
    options = {"precision": "float64", "device": torch.device("cpu")}
    whole = capture.capture(chain, weights, images.inputs(0), images.labels[0], **options)
    module = build.load(chain, weights, torch.float64)
    outputs = module(torch.from_numpy(images.inputs(0)).double())
    value = capture.mean_loss("cross_entropy", outputs, torch.from_numpy(images.labels[0]))
    plain = torch.autograd.grad(value, list(module.parameters()))
    for name, expected in zip(whole, plain, strict=True):
        np.testing.assert_array_equal(whole[name], expected.numpy())
    in_parts(monkeypatch)
    parts = capture.capture(chain, weights, images.inputs(0), images.labels[0], **options)
    for name, expected in whole.items():
        np.testing.assert_allclose(parts[name], expected, rtol=1e-12, atol=1e-15)
