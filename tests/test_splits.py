"""Splits between clients: each image to one of them, seeded, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradleak.errors import DataError
from gradleak.training.client_sampling import Federated, chosen_number
from gradleak.training.partition import split

LABELS = np.arange(900) % 3


def held(labels, **more):
    return split(labels, Federated(**more), seed=0)


@settings(deadline=None, max_examples=60)
@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=150),
    clients=st.integers(1, 12),
    kind=st.sampled_from(["iid", "dirichlet"]),
    alpha=st.floats(0.05, 50),
    seed=st.integers(0, 10**6),
)
def test_each_image_goes_to_one_client(labels, clients, kind, alpha, seed):
    labels = np.array(labels)
    options = Federated(clients, split=kind, alpha=alpha)
    try:
        parts = split(labels, options, seed)
    except DataError as refused:
        said = str(refused)
        too_few = len(labels) < clients
        assert f"{clients} clients cannot share" in said if too_few else kind == "dirichlet"
        return
    assert len(parts) == clients
    assert all(len(part) and (np.diff(part) > 0).all() for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    if kind == "iid":
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1
    again = split(labels, options, seed)
    assert all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))


def test_other_seeds_split_otherwise():
    one, other = (split(LABELS, Federated(3), seed) for seed in (0, 1))
    assert not np.array_equal(one[0], other[0])


def _shares(parts):
    """Clients' shares of each class, (clients, classes)."""
    counts = np.array([np.bincount(LABELS[part], minlength=3) for part in parts])
    return counts / counts.sum(axis=0)


def test_alpha_says_how_unequal_clients_are():
    even = _shares(held(LABELS, clients=4, split="dirichlet", alpha=1e5))
    np.testing.assert_allclose(even, 0.25, atol=0.02)
    uneven = _shares(held(LABELS, clients=4, split="dirichlet", alpha=0.1))
    assert (uneven.max(axis=0) > 0.6).all()
    # Classes have shares of their own.
    assert len(np.unique(np.argmax(uneven, axis=0))) > 1


def test_shares_follow_the_dirichlet_distribution():
    """Mean 1/K and variance (K − 1) / (K² (K α + 1)) of the share of one client."""
    labels, clients, alpha = np.zeros(2000, int), 4, 0.7
    options = Federated(clients, split="dirichlet", alpha=alpha)
    found = []
    for seed in range(400):
        try:
            found.append([len(part) / 2000 for part in split(labels, options, seed)])
        except DataError:  # a client without an image
            continue
    shares = np.array(found)
    assert len(shares) > 350
    np.testing.assert_allclose(shares.mean(axis=0), 0.25, atol=0.04)
    variance = (clients - 1) / (clients**2 * (clients * alpha + 1))
    np.testing.assert_allclose(shares.var(axis=0).mean(), variance, rtol=0.15)


def test_a_client_without_an_image_is_named():
    with pytest.raises(DataError) as refused:
        held(LABELS, clients=40, split="dirichlet", alpha=0.01)
    said = str(refused.value)
    assert "the split (dirichlet, alpha: 0.01, seed: 0) leaves client " in said
    assert "of 40 without an image; raise alpha or train, lower federated.clients" in said
    for kind in ("iid", "dirichlet"):
        with pytest.raises(DataError, match=r"3 clients cannot share 2 images; lower fed.*clients"):
            held(LABELS[:2], clients=3, split=kind)


def test_clients_of_a_round():
    assert [chosen_number(0.1, clients) for clients in (3, 5, 10, 14, 15)] == [0, 1, 1, 1, 2]
    options = Federated(10, share=0.3, answering=0.6)
    rounds = [options.chosen(0, number) for number in range(300)]
    assert all(len(set(chosen)) == 3 and chosen == sorted(chosen) for chosen in rounds)
    assert rounds == [options.chosen(0, number) for number in range(300)]
    counts = np.bincount(np.concatenate(rounds), minlength=10)
    assert (np.abs(counts - 90) < 40).all()
    assert Federated(4).chosen(0, 7) == [0, 1, 2, 3]
    assert Federated(4).silent(0, 7) == []
    silent = np.mean([len(options.silent(0, number)) for number in range(300)]) / 10
    assert silent == pytest.approx(0.4, abs=0.04)
