"""A Flower client with an audit of what it sends, on digits of scikit-learn.

`app` is an ordinary `ClientApp`, for `flwr run` or a SuperNode. This file run by itself,
`python examples/flower_client.py`, plays two rounds in this process, without server and Ray, and
writes the reconstructions to `results/flower`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits
from torch import nn

import gradleak
from gradleak.adapters.flower import LeakageAudit

RECIPE = gradleak.Recipe(rate=0.05, epochs=2)
FOLDER = Path("results/flower")
SHAPE = (1, 8, 8)


def network() -> nn.Module:
    """Return the network that server and clients train."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(512, 10))


def data(context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the client's own images (K, 1, 8, 8) in [0, 1] and classes (K,): one here."""
    digits = load_digits()
    first = int(context.node_config.get("partition-id", 0))
    images = torch.tensor(digits.images[first : first + 1, None] / 16.0, dtype=torch.float32)
    return images, torch.tensor(digits.target[first : first + 1])


audit = LeakageAudit(
    network(), SHAPE, RECIPE, FOLDER, originals=lambda message, context: data(context)[0]
)
# Mods before DP mods see what leaves the client, those after them what there was before.
app = ClientApp(mods=[audit])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on all images at once, for the epochs of the recipe."""
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    images, labels = data(context)
    optimiser = torch.optim.SGD(model.parameters(), lr=RECIPE.rate)
    for _ in range(RECIPE.epochs):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimiser.step()
    told = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": len(images)}),
    }
    return Message(content=RecordDict(told), reply_to=message)


def play(rounds: int) -> None:
    """Call the client as a node does, with messages of a server that takes its weights."""
    # A node sets this before it runs a ClientApp; messages read it.
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    context = Context(1, 1, {"partition-id": 0}, RecordDict(), {})
    arrays = ArrayRecord(network().state_dict())
    for number in range(1, rounds + 1):
        content = {"arrays": arrays, "config": ConfigRecord({"server-round": number})}
        message = Message(content=RecordDict(content), dst_node_id=1, message_type="train")
        arrays = app(message, context).content["arrays"]


if __name__ == "__main__":
    started = time.monotonic()
    play(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
    print((FOLDER / "updates.csv").read_text())
    print(f"{time.monotonic() - started:.0f} s; images are in {FOLDER}")
