"""Appendix B of COPA: the table's two forms of the constraint against dense matrices of its SVD."""

import numpy as np
import pytest

from chains import TARGETS, chain, conv, dataset
from gradleak.data import targets
from gradleak.models import files
from gradleak.models.initial import family_weights
from gradleak.operators.convolution import Convolution
from gradleak.operators.shape import ConvShape
from papers.copa.tables import pull_back

TALL = ConvShape(2, 5, (2, 2), (1, 1), (0, 0), (6, 5))
WIDE = ConvShape(3, 4, (3, 3), (2, 2), (0, 0), (7, 7))


def weight(shape, equal=False):
    size = (shape.filters, shape.channels, *shape.kernel)
    drawn = np.random.default_rng(1).uniform(-1.0, 1.0, size)
    return np.repeat(drawn[:1], shape.filters, axis=0) if equal else drawn


def dense(matrix):
    """Eq. (17) and (18) as matrices: written out from (15) and (16), with NumPy's whole SVD."""
    m = len(matrix)
    left, values, right = np.linalg.svd(matrix)
    rank = int((values > 1e-9).sum())
    projection = np.eye(rank, m)
    # Of rank r < n, the first r rows of S^T, whose inverse on them is their transpose.
    inverse = right[:rank].T @ np.diag(1.0 / values[:rank])
    eq17 = matrix @ inverse @ projection @ left.T - np.eye(m)
    block = np.diag((np.arange(m) >= rank).astype(float))
    return rank, eq17, left @ block @ left.T


@pytest.mark.parametrize(
    ("shape", "equal", "rank"), [(TALL, False, 60), (TALL, True, 20), (WIDE, False, 36)]
)
def test_both_forms_are_those_of_the_paper(shape, equal, rank):
    """A full column rank, a deficient one, and a full row rank, where nothing is left."""
    convolution = Convolution(weight(shape, equal), shape)
    found = pull_back.PullBack(convolution)
    expected, eq17, eq18 = dense(convolution.dense())
    assert found.rank == expected == rank
    z = np.random.default_rng(2).standard_normal((convolution.shape[0], 3))
    np.testing.assert_allclose(found.eq17(z), eq17 @ z, atol=1e-11)
    np.testing.assert_allclose(found.eq18(z), eq18 @ z, atol=1e-11)
    np.testing.assert_allclose(eq17, -eq18, atol=1e-11)


def test_equations_by_the_text_and_by_the_algorithm():
    """The algorithm takes (7) where no constraint is left, and (5) where appendix B has one."""
    chosen = [pull_back.equations(*sizes) for sizes in ((3, 5, 3), (4, 4, 9), (4, 4, 4), (2, 4, 9))]
    assert [one["appendix_b"] for one in chosen] == [7, 5, 5, 5]
    assert [one["algorithm_1"] for one in chosen] == [5, 7, 7, 5]
    assert [one["defined"] for one in chosen] == [1, 0, 0, 0]
    cases = [pull_back.DEFINED, pull_back.FULL, pull_back.FULL, pull_back.DEFICIENT]
    assert [one["case"] for one in chosen] == cases


def test_table(tmp_path):
    """Layers in order, a constraint that true outputs meet and random ones do not."""
    widens = chain(conv(5, 2, bias=True), conv(3, 2), conv(2, 2), side=6, name="widens")
    target = targets.build(dataset(2, 2, 6, 6), TARGETS, 2, 1)
    model, images = (str(tmp_path / name) for name in ("model.safetensors", "t.safetensors"))
    files.save(model, [widens], family_weights([widens], 1), {})
    targets.save(images, target, {})
    case = {"images": "real", "scale": "laptop"}
    table = pull_back.make({"models": [model], "targets": images}, {"equal": ["widens"]}, case)
    assert list(table["case"]) == [
        *(pull_back.FIRST, pull_back.DEFINED, pull_back.FULL),
        *(pull_back.FIRST, pull_back.DEFICIENT, pull_back.FULL),
    ]
    assert list(table["position"]) == [1, 2, 3, 1, 2, 3]
    assert list(table["filters"]) == ["drawn"] * 3 + ["equal"] * 3
    known = table.loc[[1, 4]]
    assert list(known["constraints"]) == [125 - 72, 125 - 25]
    assert table.loc[1, "projector"] < 1e-10 and known["difference"].max() < 1e-10
    assert known["residual"].max() < 1e-12 and known["rejected"].min() > 0.1
    assert table.loc[[0, 2, 3, 5], ["difference", "residual", "projector"]].isna().all(axis=None)
    assert set(table["images"]) == {"real"}
