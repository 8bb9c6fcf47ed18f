"""MKOR's system of classes against its pseudo-inverse."""

import numpy as np
import pytest

from gradleak.attacks.mkor import class_system
from gradleak.attacks.mkor.class_system import ClassSystem

EPS = np.finfo(float).eps


def of_softmax(classes, seed=0, spread=1.0):
    """p − e of one image a class (N, N), scaled as unequal counts scale it."""
    generator = np.random.default_rng(seed)
    outputs = spread * generator.standard_normal((classes, classes))
    p = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    return (p - np.eye(classes)).T * generator.integers(1, 4, classes) / classes


def without_least(matrix):
    """Pseudo-inverse without the least singular value, its direction, and the condition number."""
    u, size, v = np.linalg.svd(matrix)
    return (v[:-1].T / size[:-1]) @ u[:, : len(size) - 1].T, np.abs(v[-1]), size[0] / size[-2]


@pytest.mark.parametrize("classes", [2, 7, 60])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_an_open_system_is_solved_without_its_direction(classes, dtype, monkeypatch):
    matrix = of_softmax(classes).astype(dtype).astype(np.float64)
    rows = np.random.default_rng(1).standard_normal((classes, 5))
    monkeypatch.setattr(class_system, "COLUMNS", 2)
    # Elimination alone is to do it.
    monkeypatch.setattr(ClassSystem, "_by_singular_values", None)
    system = ClassSystem(matrix, open_=True)
    inverse, direction, condition = without_least(matrix)
    # e is the left null vector up to the rounding of the matrix.
    limit = 10 * classes * (EPS + np.finfo(dtype).eps) * condition**2
    expected, found = inverse @ rows, system.solve(rows)
    assert np.linalg.norm(found - expected) <= limit * np.linalg.norm(expected)
    np.testing.assert_allclose(system.direction, direction, atol=limit)
    assert np.abs(direction @ found).max() <= limit * np.linalg.norm(found)


def test_a_closed_system_is_solved_exactly(monkeypatch):
    matrix = of_softmax(9) - 0.05 * np.eye(9)
    rows = np.random.default_rng(1).standard_normal((9, 4))
    monkeypatch.setattr(ClassSystem, "_by_singular_values", None)
    system = ClassSystem(matrix, open_=False)
    assert system.direction is None
    np.testing.assert_allclose(matrix @ system.solve(rows), rows, atol=1e-12)


def of_other_kinds():
    generator = np.random.default_rng(2)
    yield "more rows", generator.standard_normal((12, 6)), True
    yield "another direction", generator.standard_normal((6, 6)), True
    singular = generator.standard_normal((6, 6))
    singular[:, 5] = singular[:, 4]
    yield "singular", singular, False
    twice = of_softmax(6)
    twice[:, 5] = twice[:, 4]
    yield "two directions", twice, True


@pytest.mark.parametrize(("kind", "matrix", "open_"), list(of_other_kinds()))
def test_others_are_solved_by_singular_values(kind, matrix, open_):
    rows = np.random.default_rng(1).standard_normal((len(matrix), 3))
    u, size, v = np.linalg.svd(matrix, full_matrices=False)
    rank = min(int((size > 1e-12 * size[0]).sum()), len(size) - int(open_))
    expected = (v[:rank].T / size[:rank]) @ u[:, :rank].T @ rows
    np.testing.assert_allclose(ClassSystem(matrix, open_).solve(rows), expected, atol=1e-9)
