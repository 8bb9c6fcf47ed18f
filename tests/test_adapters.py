"""Adapters: a real Flower client with the audit among its mods, and Opacus beside our DP-SGD."""

import runpy
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn

import gradleak
from conftest import ROOT
from gradleak.adapters import opacus as budget
from gradleak.adapters.flower import LeakageAudit
from gradleak.errors import ConfigError, MissingExtra

EXAMPLE = ROOT / "examples/flower_client.py"


@pytest.fixture
def played(tmp_path, monkeypatch, capsys):
    """What the example's client leaves behind after two rounds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert "mean_psnr" in capsys.readouterr().out
    return tmp_path / "results/flower"


def test_the_example_reads_the_digit_of_each_update(played):
    table = pd.read_csv(played / "updates.csv")
    assert table["round"].tolist() == [1, 2] and (table["steps"] == 2).all()
    assert (table["mean_psnr"] > 40).all() and (table["distance"] < 1e-2).all()
    picture = np.asarray(Image.open(played / "client-0-round-1.png"), dtype=float)
    assert picture.shape == (16, 8)
    assert np.abs(picture[:8] - picture[8:]).max() <= 3  # original above reconstruction


class Records:
    """A client in the test's own process, whose training can be replaced."""

    def __init__(self, model, metrics=None, names=None):
        from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self.kinds = ArrayRecord, MetricRecord, RecordDict, Message
        self.metrics = {"num-examples": 1} if metrics is None else metrics
        state = model.state_dict()
        if names is not None:
            state = {names(name): value for name, value in state.items()}
        content = {"arrays": ArrayRecord(state), "config": ConfigRecord({"lr": 0.1})}
        self.message = Message(content=RecordDict(content), dst_node_id=1, message_type="train")
        self.context = Context(1, 1, {}, RecordDict(), {})
        self.partition = lambda number: Context(1, 1, {"partition-id": number}, RecordDict(), {})

    def app(self, mods):
        from flwr.clientapp import ClientApp

        app, (arrays, metrics, content, reply) = ClientApp(mods=mods), self.kinds

        @app.train()
        def train(message, context):
            state = message.content["arrays"].to_torch_state_dict()
            moved = {name: value - 0.01 * torch.ones_like(value) for name, value in state.items()}
            told = {"arrays": arrays(moved), "metrics": metrics(self.metrics)}
            return reply(content=content(told), reply_to=message)

        return app

    def call(self, *mods):
        return self.app(list(mods))(self.message, self.context)


def model_of():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))


def audit_of(model, folder, **more):
    return LeakageAudit(model, (1, 6, 6), gradleak.Recipe(rate=0.1), folder, **more)


def test_the_message_passes_unchanged_and_rounds_are_counted(tmp_path):
    model, client = model_of(), Records(model_of())
    plain = client.call().content["arrays"].to_torch_state_dict()
    audit = audit_of(model, tmp_path)
    for _ in range(2):
        seen = client.call(audit).content["arrays"].to_torch_state_dict()
    assert all(torch.equal(seen[name], value) for name, value in plain.items())
    table = pd.read_csv(tmp_path / "updates.csv")
    assert table["round"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"metrics": {"loss": 1.0}}, "num-examples"),
        ({"names": lambda name: f"module.{name}"}, "0.weight is in only one of"),
    ],
)
def test_what_cannot_be_attacked_is_told_in_the_table(tmp_path, wrong, words):
    reply = Records(model_of(), **wrong).call(audit_of(model_of(), tmp_path))
    assert not reply.has_error()
    (note,) = pd.read_csv(tmp_path / "updates.csv")["note"]
    assert words in note


def test_a_mod_listed_first_sees_what_local_dp_sends(tmp_path):
    from flwr.clientapp.mod import LocalDpMod

    model, noisy = model_of(), LocalDpMod(1.0, 0.1, 1.0, 1e-5)
    seen = []

    class Watch(LeakageAudit):
        def _update(self, before, reply):
            seen.append(super()._update(before, reply))
            return seen[-1]

    outer, inner = (
        Watch(model, (1, 6, 6), gradleak.Recipe(rate=0.1), tmp_path / name) for name in "ab"
    )
    Records(model_of()).call(outer, noisy, inner)
    # The inner one returns first.
    before, after = seen
    assert {round(float(v.max()), 6) for v in before.change.values()} == {0.01}
    spread = np.concatenate([v.ravel() for v in after.change.values()]).std()
    ours = gradleak.defend(
        before, model, "local_dp", clipping_norm=1.0, sensitivity=0.1, epsilon=1.0
    )
    own = np.concatenate([v.ravel() for v in ours.change.values()]).std()
    assert spread == pytest.approx(own, rel=0.25)


def test_shaped_weights_are_told_of_before_the_client_trains(tmp_path, caplog):
    model = model_of()
    audit = audit_of(model, tmp_path, received=True)
    Records(model).call(audit)
    assert not caplog.records
    with torch.no_grad():
        model[0].weight[:] = model[0].weight[0]
    Records(model).call(audit)
    table = pd.read_csv(tmp_path / "updates.csv")
    assert table["received"].tolist() == ["looks fresh", "looks shaped"]
    assert "0: 4 of 4 rows are proportional to another" in caplog.text


def test_clients_of_a_simulation_have_rows_of_their_own(tmp_path):
    client = Records(model_of())
    app = client.app([audit_of(model_of(), tmp_path)])
    for number in (0, 1, 0):
        app(client.message, client.partition(number))
    table = pd.read_csv(tmp_path / "updates.csv")
    assert list(zip(table["client"], table["round"], strict=True)) == [(0, 1), (1, 1), (0, 2)]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"attacks": {}}, "attacks"),
        ({"attacks": ["rgap"]}, "attacks"),
        ({"attacks": {"rgapp": {}}}, "rgapp"),
        ({"attacks": {"rgap": {"rows": "odd"}}}, "odd"),
        ({"mode": "eval"}, "mode"),
        ({"low": 2.0}, "low, high"),
        ({"loss": "hinge"}, "hinge"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_training(tmp_path, wrong, words):
    with pytest.raises(ConfigError, match=words):
        audit_of(model_of(), tmp_path, **wrong)


def test_an_audit_never_ends_a_training(tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    reply = Records(model_of()).call(audit_of(model_of(), blocked / "inside"))
    assert not reply.has_error() and "was not audited" in caplog.text


@pytest.mark.filterwarnings(
    "ignore:Secure RNG", "ignore:Full backward hook", "ignore:Ignoring drop_last"
)
def test_opacus_clips_as_we_do():
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    model, images, labels = model_of(), torch.rand(4, 1, 6, 6), torch.tensor([0, 1, 2, 0])
    shared = gradleak.capture(model, images, labels.tolist())
    given = {"images": images, "labels": labels.tolist()}
    ours = gradleak.defend(shared, model, "dp_sgd", norm=0.5, noise_multiplier=0.0, **given)
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    loader = DataLoader(TensorDataset(images, labels), batch_size=4)
    wrapped, private, _ = PrivacyEngine().make_private(
        module=model,
        optimizer=optimiser,
        data_loader=loader,
        noise_multiplier=0.0,
        max_grad_norm=0.5,
        poisson_sampling=False,
    )
    nn.functional.cross_entropy(wrapped(images), labels).backward()
    private.pre_step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-4, atol=1e-7)


def test_epsilon_is_that_of_all_rounds():
    one, hundred = (budget.epsilon(1.0, 0.01, steps) for steps in (10, 1000))
    assert 0 < one < hundred
    assert budget.epsilon(1.0, 0.01, 1000, accountant="rdp") > hundred
    assert budget.epsilon(2.0, 0.01, 1000) < hundred
    # One step on the whole data is the Gaussian mechanism.
    assert budget.epsilon(4.0, 1.0, 1) == pytest.approx(1.0, abs=0.35)
    for wrong, words in (
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"sample_rate": 2.0}, "sample_rate"),
        ({"steps": 0}, "steps"),
        ({"delta": 1.0}, "delta"),
    ):
        right = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 1}
        with pytest.raises(ConfigError, match=words):
            budget.epsilon(**{**right, **wrong})


def test_fixed_is_another_network():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 3))
    found = budget.fixed(model)
    assert isinstance(found[1], nn.GroupNorm) and isinstance(model[1], nn.BatchNorm2d)


def test_without_opacus_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus", None)
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    with pytest.raises(MissingExtra, match="gradleak's extra 'opacus': pip install"):
        budget.epsilon(1.0, 0.1, 1)
