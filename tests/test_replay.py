"""Steps of searches as CUDA graphs: what is captured asks the device for nothing."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from chains import chain, conv, image, run, view
from gradleak.attacks.optimization.dlg import Dlg
from gradleak.attacks.optimization.engine.replay import WARM, Replayed
from gradleak.attacks.optimization.grnn import Grnn
from gradleak.attacks.optimization.inverting import InvertingGradients

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
    for _ in range(WARM + 2):
        found, nothing = step(given.device, given)
        assert torch.equal(found, given + 1) and nothing is None
    assert len(seen) == WARM + 2 and all(x is given for x in seen)


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
