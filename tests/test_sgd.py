"""SGD without torch.compile."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from gradleak.training.sgd import Sgd

TRAINED = """
import sys
import torch
from gradleak.models.chain import Chain, LinearSpec
from gradleak.models.initial import initial_weights
from gradleak.training.learner import Learner
from gradleak.training.recipe import Recipe

chain = Chain("small", (1, 4, 4), (LinearSpec(3),))
learner = Learner(chain, initial_weights(chain, 0), Recipe(1), 0, torch.device("cpu"))
learner._step(torch.ones(2, 1, 4, 4), torch.zeros(2, dtype=torch.int64), 0.1)
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.parametrize("momentum", [0.9, 0.0])
@pytest.mark.parametrize("weight_decay", [5e-4, 0.0])
def test_steps_are_those_of_torch_to_the_last_bit(momentum: float, weight_decay: float) -> None:
    """Rates that change, and a parameter that has a gradient in every second step only."""
    settings = {"momentum": momentum, "nesterov": momentum > 0, "weight_decay": weight_decay}
    ours, theirs = (nn.Linear(7, 5), nn.Linear(7, 5))
    theirs.load_state_dict(ours.state_dict())
    mine = Sgd(ours.parameters(), **settings)
    reference = torch.optim.SGD(theirs.parameters(), lr=1.0, **settings)
    generator = torch.Generator().manual_seed(0)
    for step in range(6):
        rate = 0.1 / (step + 1)
        mine.forget_gradients()
        reference.zero_grad()
        assert all(p.grad is None for p in ours.parameters())
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            if one.dim() == 2 or step % 2:
                one.grad = torch.randn(one.shape, generator=generator)
                other.grad = one.grad.clone()
        mine.step(rate)
        reference.param_groups[0]["lr"] = rate
        reference.step()
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(one, other)
    assert len(mine.buffers) == (2 if momentum else 0)


def test_a_training_step_does_not_import_torch_compile() -> None:
    """Its import takes as long as that of PyTorch, in every job that trains."""
    done = subprocess.run([sys.executable, "-c", TRAINED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"
