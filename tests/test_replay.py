"""Steps of searches as CUDA graphs: what is captured asks the device for nothing."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from chains import chain, conv, image, run, view
from gradleak.attacks.optimization.dlg import Dlg
from gradleak.attacks.optimization.engine import replay
from gradleak.attacks.optimization.engine.replay import Replayed
from gradleak.attacks.optimization.grnn import Grnn
from gradleak.attacks.optimization.inverting import InvertingGradients
from test_locked_attacks import view as locked_view

PLAIN = chain(conv(4, 3, 2, 1, bias=True, activation="sigmoid"), side=8, last="identity")
NORMED = chain(
    conv(4, 3, 1, 1, activation="relu", norm="batch"),
    conv(4, 3, 2, 1, activation="sigmoid"),
    side=8,
    last="identity",
)
SEARCHES = {
    "dlg": Dlg(iterations=4),
    "dlg, unknown label": Dlg(iterations=4, label="unknown"),
    "inverting gradients": InvertingGradients(iterations=4),
    "grnn": Grnn(iterations=4, latent=8),
    "grnn, known label": Grnn(iterations=4, latent=8, label="from_view", wasserstein=0.1),
}


def test_elsewhere_than_on_cuda_a_function_is_called_as_it_is():
    seen = []

    def add(x):
        seen.append(x)
        return (x + 1, None)

    step, given = Replayed(add), torch.zeros(3)
    for _ in range(replay.WARM + 2):
        found, nothing = step(given.device, given)
        assert torch.equal(found, given + 1) and nothing is None
    assert len(seen) == replay.WARM + 2 and all(x is given for x in seen)


@pytest.mark.parametrize("network", [PLAIN, NORMED], ids=["plain", "normed"])
@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_no_step_asks_the_device_for_a_value(search, network, monkeypatch):
    # Tensors without values: whatever would have to know one raises an error.
    calls = []

    def checked(self, device, *inputs):
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            given = [mode.from_tensor(x) for x in inputs]
            for own, x in zip(given, inputs, strict=True):
                own.requires_grad_(x.requires_grad)
            calls.append(self._function(*given))
        return self._function(*inputs)

    monkeypatch.setattr(Replayed, "__call__", checked)
    run(search, view(network, image(network)))
    assert calls


class Recorded(TorchDispatchMode):
    """Operations as a CUDA graph has them: on the tensors that they met, and on no others."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        self.operations.append((function, args, kwargs or {}, found))
        return found

    def replay(self):
        for function, args, kwargs, before in self.operations:
            now = function(*args, **kwargs)
            for old, new in zip(tensors(before), tensors(now), strict=True):
                # Views, and what an operation in place returns, have changed with their storage.
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def tensors(values):
    return [x for x in tree_leaves(values) if isinstance(x, torch.Tensor)]


class Emulated:
    """A graph of recorded operations."""

    def __init__(self, step):
        with Recorded() as self.mode:
            step._found = step._function(*step._given)
        self.is_new = True

    def replay(self):
        # The recording has computed the first of the replays; on CUDA it computes nothing.
        if not self.is_new:
            with torch.no_grad():
                self.mode.replay()
        self.is_new = False


def capture(step, inputs):
    step._given = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    step._graph = Emulated(step)


FITTING = {
    f"{search.method}, lock": search.model_copy(update={"lock": "fit"})
    for search in (Dlg(), InvertingGradients(), Grnn(latent=8))
}


@pytest.mark.parametrize(
    "search", [*SEARCHES.values(), *FITTING.values()], ids=[*SEARCHES, *FITTING]
)
def test_a_search_of_replayed_steps_is_the_search(search, monkeypatch):
    # Members of one end at different steps, so that others are captured anew.
    ends = {"target": 0.01} if isinstance(search, Dlg) else {"patience": 0.05}
    rate = 1e-3 if isinstance(search, Grnn) else 0.5
    longer = search.model_copy(update={"iterations": 60, "rate": rate, **ends})
    seen = [view(NORMED, image(NORMED, seed)) for seed in range(3)]
    if search.lock == "fit":
        seen = [locked_view(seed=seed) for seed in range(3)]
    plain = longer.run_many(seen, [0, 1, 2])
    replayed = []
    monkeypatch.setattr(replay, "WARM", 1)
    monkeypatch.setattr(Replayed, "_applies", staticmethod(lambda device: True))
    monkeypatch.setattr(Replayed, "_warmed", lambda self, inputs: self._function(*inputs))
    monkeypatch.setattr(
        Replayed, "_capture", lambda self, inputs: (replayed.append(1), capture(self, inputs))
    )
    found = longer.run_many(seen, [0, 1, 2])
    assert len(replayed) > 1
    for one, other in zip(found, plain, strict=True):
        np.testing.assert_array_equal(one.images, other.images)
        np.testing.assert_array_equal(one.trace, other.trace)
        assert (one.stop, one.evaluations) == (other.stop, other.evaluations)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA: the emulation above stands in")
@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_on_cuda_a_search_follows_that_of_the_cpu(search):
    seen = [view(NORMED, image(NORMED, seed)) for seed in range(3)]
    long = search.model_copy(update={"iterations": 8, "precision": "float64"})
    on_cuda = long.model_copy(update={"device": "cuda"}).run_many(seen, [0, 1, 2])
    for one, other in zip(on_cuda, long.run_many(seen, [0, 1, 2]), strict=True):
        np.testing.assert_allclose(one.images, other.images, atol=1e-6)
