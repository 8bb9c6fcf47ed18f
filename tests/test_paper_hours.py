"""Arithmetic that a scale takes: what the estimate counts is what PyTorch counts."""

import subprocess
import sys

import pandas as pd
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import paper_hours
from chains import chain, conv, image, view
from conftest import ROOT
from gradleak.attacks.optimization.engine.distances import Squared
from gradleak.attacks.optimization.engine.generators import Generators, Layout, draw
from gradleak.attacks.optimization.engine.residual_gradients import BranchGradients
from gradleak.attacks.optimization.grnn import Grnn
from gradleak.config import loader, yaml_checks
from gradleak.models.build import ChainModule

NETWORK = chain(conv(6, 3, 1, 1), conv(8, 3, 2, 1), side=8, channels=3, classes=10)


@pytest.fixture(scope="module")
def config():
    return loader.load(
        {**yaml_checks.read(ROOT / "config.yaml"), "scale": "paper", "images": "real"}
    )


def counted(call):
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def test_a_forward_pass_and_one_of_the_generator_are_what_pytorch_counts():
    images = torch.zeros(1, *NETWORK.input)
    assert counted(lambda: ChainModule(NETWORK)(images)) == paper_hours.forward(NETWORK)
    layout = Layout(NETWORK.input, NETWORK.classes, 16)
    generators = Generators(layout, [draw(layout, 1, (0, 1))])
    attack = Grnn(latent=16)
    found, told = counted(generators), paper_hours.generator(attack, NETWORK)
    # All but its first layers, which are products with a fixed vector.
    assert told == pytest.approx(found, rel=0.02)


def test_a_step_of_a_search_is_at_most_seven_forward_passes():
    seen = view(NETWORK, image(NETWORK))
    network = BranchGradients(NETWORK, seen.weights, seen.loss, dtype=torch.float64)
    targets = network.targets([seen.gradients])
    x = torch.zeros(1, 1, *NETWORK.input, dtype=torch.float64)
    label, scale = torch.tensor([[1]]), torch.ones(1, dtype=torch.float64)
    step = counted(lambda: network.descend_scaling(x, label, Squared(targets), scale))
    # The first layer has one pass less than the others: images do not move.
    most = paper_hours.SEARCH * paper_hours.forward(NETWORK)
    assert 0.8 * most <= step <= most


def test_counts_grow_with_images_steps_and_networks(config):
    small = loader.load({**yaml_checks.read(ROOT / "config.yaml"), "scale": "night"})
    case = ("fedkl_lenet_cifar10", "fedkl_lenet_cifar10_nets", "fedkl_ig")
    steps = [own.attacks["fedkl_ig"].iterations for own in (config, small)]
    found = [paper_hours.of_attack(own, *case) for own in (config, small)]
    assert found[0] / found[1] == pytest.approx(steps[0] / steps[1])
    assert paper_hours.of_attack(config, "copa_pair", "cnn3_v1_tanh", "copa") == 0.0
    # He et al. (2016) give 41 and 69 million multiplications for ResNet-20 and -32.
    count = paper_hours.of_training(config, "fedkl_central_cifar10", "fedkl_small_cifar10")
    assert count == pytest.approx(3 * 2 * (41e6 + 69e6) * 45000 * 200, rel=0.03)
    federated = paper_hours.of_training(config, "fedkl_federated_cifar10", "fedkl_small_cifar10")
    assert federated == count


def test_batches_and_what_searches_take_of_them(config):
    """Class fishing searches one image of a batch of 100, other attacks all of it."""
    honest = ("mkor_lenet_honest", "mkor_lenets", "mkor_gi")
    fishing = ("mkor_lenet_fishing", "mkor_lenets", "class_fishing")
    assert config.attacks["mkor_gi"].iterations == config.attacks["class_fishing"].iterations
    found = [paper_hours.of_attack(config, *case) for case in (honest, fishing)]
    assert config.targets["mkor_mnist"].batch == 100 and found[0] == 100 * found[1]


def test_generators_grow_with_their_images(config):
    own = config.generators["fedkl_photos"]
    more = own.model_copy(update={"images": 2 * own.images})
    twice = config.model_copy(update={"generators": {"fedkl_photos": more}})
    found = paper_hours.of_generator(config, "fedkl_photos")
    assert paper_hours.of_generator(twice, "fedkl_photos") == 2 * found > 0


def test_the_table_has_a_line_for_what_takes_long(config):
    files = [
        "results/scores/real-paper/fedkl_lenet_mnist_key/fedkl_lenet_mnist_locks/none/fedkl_ig.csv",
        "results/training/real-paper/fedkl_central_cifar10/fedkl_small_cifar10.curve.csv",
        "results/training/real-paper/fedkl_central_cifar10/fedkl_small_cifar10.csv",
        "figures/copa_fig1.pdf",
    ]
    rows = pd.DataFrame(paper_hours.jobs(config, files))
    page, curve = "results/experiments/fedkl_lenet_mnist_key.html", files[1]
    assert list(rows.target) == [page, curve]
    lines = paper_hours.table(rows, paper_hours.RATE).splitlines()
    assert len(lines) == 5 and lines[2].startswith(f"| `{curve}` | training | 5.9 | 0.21 |")
    assert lines[3].startswith("| 1 shorter |") and lines[4].startswith("| all |  | 5.9 |")


def test_the_page_has_the_numbers_of_claims_that_wait():
    page = " ".join((ROOT / "docs/gpu.md").read_text(encoding="utf-8").split())
    for paper, name in (("fedkl", "FedKL"), ("mkor", "MKOR"), ("rgap", "R-GAP")):
        claims = pd.read_csv(ROOT / "docs/results" / paper / "claims.csv")
        # A sentence with such a part may be refuted all the same: it waits for nothing.
        waiting = claims[claims.verdict == "not judged"]
        count = waiting.reason.str.contains("scale: needs at least paper", regex=False).sum()
        assert f"{count} of {name}'s" in page


@pytest.mark.slow
def test_the_page_has_todays_table():
    command = [sys.executable, "-m", "benchmarks.paper_hours"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert told.strip() in (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
