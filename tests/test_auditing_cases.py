"""Attacks of an audit run on whole networks: what they read, what fails, what is left as it was."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import audited
from audited import CPU, SIZE, bench, chain_network, changes, made, network_of, of_menu, refused
from gradleak.attacks.base import AttackerView
from gradleak.attacks.optimization.engine.module_gradients import ModuleGradients, ModuleView
from gradleak.attacks.optimization.inverting import InvertingGradients
from gradleak.attacks.optimization.module_inversion import invert
from gradleak.client.capture import capture
from gradleak.errors import NumericsError
from gradleak.models.chain import Chain
from gradleak.reading.conversion import convert
from gradleak.reading.fx_graph import read
from gradleak.reading.gradients import gradient
from gradleak_audit.attack.attack_suite import ANALYTIC, DLG, MASKED, MKOR, SEARCH, UNLOCK, menu
from gradleak_audit.attack.malicious import chapter
from gradleak_audit.attack.networks import ChainNetwork, Shared
from gradleak_audit.attack.trials import cases
from gradleak_audit.run import NetworkAudit, Origin, Settings

photos = pytest.fixture(scope="module")(audited.photos)
ORIGIN = Origin("net", "a test", "fresh")
SMOKE = Settings(scale="smoke", count=2, seeds=1, batches=(1, 2))


def module_view(module, shared, labels, mode, size=SIZE):
    known = Chain("net", size, ()), {}, shared, tuple(labels), 0.0, 1.0
    return ModuleView(module, AttackerView(*known, batch=len(labels), mode=mode))


def tried(variant, samples):
    entries = menu("smoke", variant.network.multiply_adds, variant.network.parameters)
    found, best = cases(variant, entries.values(), bench(samples))
    return {case.attack: case for case in found}, best


def audited_network(build, photos, settings=SMOKE):
    given = made(build), SIZE, lambda *_: photos, settings, ORIGIN
    return NetworkAudit(*given, lambda seed: made(build, seed)).run(timed=False)


@pytest.mark.parametrize("mode", ["training", "evaluation"])
@pytest.mark.parametrize("build", [audited.solvable, audited.normed])
def test_both_ways_of_inverting_gradients_agree_on_a_chain(build, mode, photos):
    network, module = chain_network(build, SIZE, mode)
    names = convert(read(module, SIZE), module, "net").names
    attack = InvertingGradients(iterations=25, precision="float64")
    views, others = [], []
    for number in range(2):
        images, labels = bench(photos).batch(2, number)
        how = {"precision": "float64", "device": CPU, "mode": mode}
        shared = capture(network.chain, network.weights(0), images, labels, **how)
        views.append(network.view(0, Shared(shared, labels, 0)))
        own = {names[key]: value for key, value in shared.items()}
        others.append(module_view(module, own, labels.tolist(), mode))
    ours = attack.run_many(views, [3, 4])
    theirs = invert(attack, others, [3, 4])
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one.trace, other.trace, rtol=1e-6)
        np.testing.assert_allclose(one.images, other.images, atol=1e-6)
        assert one.trace[-1] < one.trace[0]


def test_a_network_that_begins_in_place_leaves_its_images_as_they_were():
    def net():
        return nn.Sequential(nn.SiLU(), nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(8, 3))

    images = np.random.default_rng(0).normal(size=(2, 3, 4, 4)).astype(np.float32)
    kept, labels = images.copy(), np.array([0, 1])
    shared, answers = [], []
    for inplace in (False, True):
        module = made(net)
        module[0].inplace = inplace
        shared.append(gradient(module, images, labels, "cross_entropy", "training"))
        attack = InvertingGradients(iterations=3, tv=0.0, device="cpu")
        view = module_view(module, shared[-1], (0, 1), "training", (3, 4, 4))
        answers.append(invert(attack, [view], [0])[0].images)
        assert np.array_equal(images, kept)
    for name, value in shared[0].items():
        assert np.array_equal(value, shared[1][name]), name
    assert np.array_equal(*answers)


def test_what_is_withheld_is_not_compared(photos):
    network = network_of(audited.solvable)
    soteria = changes(network)["soteria"]
    images, labels = bench(photos).batch(1)
    shared = network.share(0, images, labels, soteria.defence, 0)
    (view,) = network._masked(0, [network.view(0, Shared(shared, labels, 0))])
    attack = InvertingGradients(iterations=1, tv=0.0, start="normal")
    for masked, near in ((view, True), (replace(view, compared={}), False)):
        (answer,) = invert(attack, [replace(masked, module=copy.deepcopy(masked.module))], [0])
        assert (cosine(masked, images, labels) < 1e-6) == near
        assert isinstance(answer.loss, float)


def cosine(view, images, labels):
    network = ModuleGradients(view, torch.float64, CPU)
    with network.running():
        found = network(network.tensor(images)[None], torch.from_numpy(labels)[None], torch.ones(1))
    a = np.concatenate([value.detach().numpy().ravel() for value in found])
    b = np.concatenate([view.known.gradients[name].ravel() for name in network.names])
    return 1.0 - a @ b / np.linalg.norm(a) / np.linalg.norm(b)


@pytest.mark.parametrize(
    "build", [pytest.param(audited.vit, marks=pytest.mark.slow), audited.normed]
)
def test_a_search_leaves_network_and_switches_as_they_were(build, photos):
    module = made(build)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    images, labels = bench(photos).batch(2)
    shared = gradient(module, images, labels, "cross_entropy", "training")
    view = module_view(module, shared, labels.tolist(), "training")
    fast = torch.backends.mha.get_fastpath_enabled()
    first, second = (invert(InvertingGradients(iterations=4), [view], [s])[0] for s in (1, 1))
    np.testing.assert_array_equal(first.images, second.images)
    assert first.trace[-1] < first.trace[0]
    assert module.training and torch.backends.mha.get_fastpath_enabled() == fast
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]) and value.dtype == before[name].dtype
    zero = {name: 0 * value for name, value in shared.items()}
    blank = module_view(module, zero, labels.tolist(), "training")
    (error,) = invert(InvertingGradients(iterations=1), [blank], [0])
    assert isinstance(error, NumericsError)


def test_closed_forms_and_gauss_newton_read_a_network_of_full_rank(photos):
    found, best = tried(changes(network_of(audited.solvable))["none"], photos)
    for attack in ("rgap", "copa", "gauss_newton"):
        assert (found[attack].read, found[attack].matched, found[attack].ok) == (2, 2, 2)
        assert set(best.pictures[attack]) == {0, 1}
    assert found["rgap"].psnr.low > 60
    assert found["gauss_newton"].psnr.low >= found["rgap"].psnr.low - 1e-6
    for attack in (UNLOCK, MASKED):
        assert found[attack].attempted == 0
        assert all(run.status == "not_applicable" and run.reason for run in found[attack].runs)
    # A lock is attacked by what is made against it.
    found, _ = tried(changes(network_of(audited.solvable, mode="training"))["lock"], photos)
    assert found["rgap"].attempted == 0 and "norm" in found["rgap"].runs[0].reason
    assert found[UNLOCK].read == 2
    # Without rank no attack reads the image.
    narrow = nn.Conv2d(3, 2, 4, 4), nn.Tanh(), nn.Flatten(), nn.Linear(32, 10)
    found, _ = tried(changes(network_of(lambda: nn.Sequential(*narrow)))["none"], photos)
    assert all(case.read == 0 for case in found.values())


class Broken(ChainNetwork):
    def share(self, draw, images, labels, defence, seed):
        if labels[0] == 1:
            raise NumericsError("This gradient is zero.")
        return super().share(draw, images, labels, defence, seed)

    def answers(self, entry, draw, shared):
        if entry.id == "copa":
            return ["It gave up." for _ in shared]
        return super().answers(entry, draw, shared)


def test_failed_runs_stay_with_their_reason(photos):
    network = network_of(audited.solvable)
    broken = Broken(network.task, network.chain, network.weights, network.names)
    found, _ = tried(replace(changes(network)["none"], network=broken), photos)
    rgap, copa = found["rgap"], found["copa"]
    assert (rgap.attempted, rgap.ok, rgap.read) == (2, 1, 1)
    assert [run.reason for run in rgap.runs] == ["", "This gradient is zero."]
    assert (copa.attempted, copa.ok, copa.psnr) == (2, 0, None)
    assert [run.reason for run in copa.runs] == ["It gave up.", "This gradient is zero."]


def test_a_malicious_server_reads_a_batch(photos):
    def strided():
        conv = nn.Conv2d(3, 6, 3, padding=1), nn.ReLU()
        return nn.Sequential(*conv, nn.Flatten(), nn.Linear(6 * 256, 10))

    network = network_of(strided)
    entry = of_menu(network, MKOR)
    found = chapter(entry, network, bench(photos))
    assert not found.reason and found.case.batch == 8
    assert found.case.attempted == 8 and found.case.read >= 7
    assert sorted({run.image for run in found.case.runs}) == list(range(8))
    shifted = replace(bench(photos), offset=-0.5)
    assert "fold both into its first layer" in chapter(entry, network, shifted).reason


@pytest.mark.parametrize("name", ["two_branches", "vit", "pooled", "normed"])
def test_networks_of_all_sorts_are_audited_twice_alike(name, photos):
    first, second = (audited_network(getattr(audited, name), photos) for _ in range(2))
    assert first.audit == second.audit
    for attack, answers in first.pictures.answers.items():
        for image, picture in answers.items():
            np.testing.assert_array_equal(picture, second.pictures.answers[attack][image])
            assert picture.shape == first.pictures.originals.shape[1:]
    more = {"pooled": (MASKED, MKOR), "normed": (MASKED,), "vit": (ANALYTIC,)}
    audit, attacks = first.audit, {SEARCH, DLG, *more.get(name, ())}
    assert {case.attack for case in audit.cases if case.attempted} == attacks
    assert all(part.reason for part in audit.attacks if part.id not in attacks)
    for change in audit.changes:
        assert bool(change.reason) == (change.leak is None) == (change.price is None)
        assert bool(change.effect) == (change.leak is not None and change.id != "none")
    helpful = [change.id for change in audit.changes if change.effect == "helps"]
    assert sorted(audit.verdict.ranking) == sorted(helpful)
    assert audit.verdict.worst.image in (0, 1)
    assert first.timed == audit and not first.seconds


def test_weights_that_are_given_stay_and_draws_are_searches(photos):
    module = made(audited.pooled)
    before = copy.deepcopy(module.state_dict())
    module[0].requires_grad_(False)
    settings = replace(SMOKE, count=1, seeds=2, mode="training", batches=(1,))
    found = NetworkAudit(module, SIZE, lambda *_: photos, settings, ORIGIN).run()
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
    assert not module[0].weight.requires_grad
    text = " ".join(found.audit.verdict.limits)
    assert "Frozen parameters" in text and "without dropout" in text
    assert "Weights are fresh" not in text
    one, other = found.audit.cases[0].runs
    assert (one.image, one.seed, other.image, other.seed) == (0, 0, 0, 1)
    assert one.ssim != other.ssim
    assert set(found.seconds) == {c.id for c in found.audit.changes if c.price is not None}
    assert all(value > 0 for value in found.seconds.values())
    assert next(c.price.seconds for c in found.timed.changes if c.id == "none") == 1.0


def test_norms_with_one_value_run_in_evaluation_mode_unless_training_is_asked_for(photos):
    def small():
        head = nn.ReLU(), nn.Flatten(), nn.Linear(4, 10)
        return nn.Sequential(nn.Conv2d(3, 4, 16), nn.BatchNorm2d(4), *head)

    found = audited_network(small, photos, replace(SMOKE, count=1, batches=(1,)))
    assert found.audit.setting.mode == "evaluation"
    assert any("evaluation mode" in limit for limit in found.audit.verdict.limits)
    with refused("one value a channel"):
        audited_network(small, photos, replace(SMOKE, count=1, mode="training"))
    pair = audited_network(small, photos, replace(SMOKE, count=1, batches=(2,)))
    assert pair.audit.setting.mode == "training"


def test_changes_touch_another_layer_than_the_last_and_say_what_did_not_apply(photos):
    # By RA-i the last layer decides, but its outputs are the classes; unlock needs a bare lock.
    def wide():
        first = nn.Conv2d(3, 12, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        return nn.Sequential(*first, nn.Linear(12 * 49, 60), nn.ReLU(), nn.Linear(60, 10))

    audit = audited_network(wide, photos, replace(SMOKE, count=1, batches=(1,))).audit
    found = {change.id: change for change in audit.changes}
    assert found["fewer"].price is not None and not found["fewer"].reason
    (refused,) = [c for c in audit.cases if (c.change, c.attack) == ("lock", UNLOCK)]
    assert refused.attempted == 0 and refused.runs[0].reason
    text = " ".join(audit.verdict.limits)
    assert "made against it, could not be tried: " + refused.runs[0].reason in text
    assert "numbers of the first gradient" in found["soteria"].note


def test_a_network_of_one_output_takes_labels_of_a_margin(photos):
    def one():
        conv = nn.Conv2d(3, 6, 3, bias=False)
        return nn.Sequential(conv, nn.Tanh(), nn.Flatten(), nn.Linear(6 * 196, 1))

    audit = audited_network(one, photos, replace(SMOKE, loss="logistic", batches=(1,))).audit
    (rgap,) = [c for c in audit.cases if c.change == "none" and c.attack == "rgap"]
    assert rgap.ok == 2
    with refused("takes an output for each class"):
        audited_network(one, photos, SMOKE)
