"""Windows and pooling: arguments, errors, ties, and how they are cut up.

Rows in tests/cases/convolution.py hold each rule against a loop over windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.errors import DtypeError, ShapeError
from nuvec.core.ops import sliding
from nuvec.core.ops.windows import window_max_p, window_spread_p, window_sum_p


def column(*values: float) -> nv.Array:
    """One element of a batch, one channel."""
    return nv.array([[[v] for v in values]])


def flat(x: Any) -> list[float]:
    return np.asarray(x).reshape(-1).tolist()


def test_a_stride_is_the_window_by_default_and_rests_are_left_out() -> None:
    x = column(1.0, 5.0, 2.0, 4.0, 9.0)
    assert flat(nv.max_pool(x, 2)) == [5, 4]
    assert flat(nv.min_pool(x, 2)) == [1, 2]
    assert flat(nv.avg_pool(x, 2)) == [3, 3]
    assert flat(nv.max_pool(x, 2, stride=1)) == [5, 5, 4, 9]
    assert flat(nv.max_pool(x, 2, stride=1, dilation=2)) == [2, 5, 9]


def test_padding_is_never_the_extreme_and_counts_in_a_mean_unless_told() -> None:
    x = column(-1.0, -2.0, -3.0)
    assert flat(nv.max_pool(x, 2, 1, 1)) == [-1, -1, -2, -3]
    assert flat(nv.min_pool(-x, 2, 1, 1)) == [1, 1, 2, 3]
    assert flat(nv.max_pool(x.astype(nv.int8), 2, 1, 1)) == [-1, -1, -2, -3]
    assert flat(nv.avg_pool(x, 2, 1, 1)) == [-0.5, -1.5, -2.5, -1.5]
    assert flat(nv.avg_pool(x, 2, 1, 1, count_include_pad=False)) == [-1, -1.5, -2.5, -3]
    assert flat(nv.max_pool(x, 2, 2, "same")) == [-1, -3]
    assert flat(nv.max_pool(x, 2, 2, ([1], [0]))) == [-1, -2]


def test_dtypes() -> None:
    x = nv.array([[[1], [2], [4], [8]]], dtype=nv.int16)
    assert nv.max_pool(x, 2).dtype == nv.int16
    assert nv.avg_pool(x, 2).dtype == nv.float32
    assert flat(nv.max_pool(x > 2, 2)) == [False, True]
    big = nv.full((1, 4096, 1), 3, dtype=nv.bfloat16)
    assert flat(nv.avg_pool(big, 4096)) == [3.0]  # summed in float32
    with pytest.raises(DtypeError, match="no order"):
        nv.max_pool(nv.ones((1, 2, 1), dtype=nv.complex64), 2)


def test_nan_is_the_extreme_and_has_no_gradient_to_share() -> None:
    x = column(np.nan, 1.0, 2.0, 3.0)
    assert np.isnan(flat(nv.max_pool(x, 2))[0]) and flat(nv.max_pool(x, 2))[1] == 3
    assert flat(nv.grad(lambda x: nv.max_pool(x, 2).sum())(x)) == [0, 0, 0, 1]  # as of max
    row = nv.array([np.nan, 1.0])
    assert flat(nv.grad(lambda x: nv.max(x))(row)) == [0, 0]


@pytest.mark.parametrize("pool", [nv.max_pool, nv.min_pool])
def test_ties_share_equally(pool: Any) -> None:
    x = column(2.0, 2.0, 2.0, 2.0)
    assert flat(nv.grad(lambda x: pool(x, 2).sum())(x)) == [0.5] * 4
    overlapping = nv.grad(lambda x: (pool(x, 3, 1) * column(3.0, 6.0)).sum())(x)
    assert flat(overlapping) == [1, 3, 3, 2]
    _, moved = nv.jvp(lambda x: pool(x, 2), (x,), (column(1.0, 3.0, 5.0, 7.0),))
    assert flat(moved) == [2, 6]


def test_what_is_not_picked_gets_an_exact_zero() -> None:
    x = column(1.0, 2.0, 4.0, 3.0)
    _, pull = nv.vjp(lambda x: nv.max_pool(x, 2), x)
    assert flat(pull(column(np.inf, 1.0))[0]) == [0, np.inf, 1, 0]
    _, moved = nv.jvp(lambda x: nv.max_pool(x, 2), (x,), (column(np.nan, 1.0, 2.0, np.inf),))
    assert flat(moved) == [1, 2]


def test_a_window_without_padding_agrees_with_a_reduction() -> None:
    x = nv.array(np.random.default_rng(0).integers(0, 4, (2, 4, 6, 3)).astype(np.float32))

    def tiled(x: Any) -> Any:
        return nv.max(x.reshape(2, 2, 2, 3, 2, 3), axis=(2, 4))

    c = nv.array(np.arange(36.0, dtype=np.float32).reshape(2, 2, 3, 3))
    y, pull = nv.vjp(lambda x: nv.max_pool(x, 2), x)
    z, back = nv.vjp(tiled, x)
    np.testing.assert_array_equal(y, z)
    np.testing.assert_array_equal(pull(c)[0], back(c)[0])


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_blocks_of_any_size_give_the_same(
    stride: int, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(0).integers(0, 4, (5, 6, 7, 3)).astype(dtype)
    padding = stride - 1

    def results() -> list[np.ndarray]:
        y, pull = nv.vjp(lambda x: nv.max_pool(x, 2, stride, padding), nv.array(x))
        _, moved = nv.jvp(lambda x: nv.max_pool(x, 2, stride, padding), (x,), (x,))
        return [np.asarray(a) for a in (y, *pull(y), moved)]

    whole = results()
    monkeypatch.setattr(sliding, "BLOCK", 1)
    for a, b in zip(results(), whole, strict=True):
        np.testing.assert_array_equal(a, b)


def test_many_taps_are_counted() -> None:
    x = nv.ones((1, 20, 20, 1))
    grad = nv.grad(lambda x: nv.max_pool(x, 20).sum())(x)
    np.testing.assert_allclose(grad, np.full(x.shape, 1 / 400), rtol=1e-6)


def test_windows_may_slide_along_any_axis_or_none() -> None:
    x = np.arange(12.0).reshape(3, 4)
    still: Any = {"window": (1, 1), "stride": (1, 1), "low": (0, 0), "dilation": (1, 1)}
    for primitive in (window_max_p, window_sum_p, window_spread_p):
        out = primitive.lower(x, sizes=(3, 4), **still)
        np.testing.assert_array_equal(out, x)
        assert not np.shares_memory(out, x)  # it is new memory
    first: Any = {"window": (2, 1), "stride": (1, 1), "low": (0, 0), "dilation": (1, 1)}

    def largest(x: Any) -> Any:
        return window_max_p.bind(x, sizes=(2, 4), **first)

    np.testing.assert_array_equal(largest(nv.array(x)), x[1:])
    grad = nv.grad(lambda x: largest(x).sum())(nv.array(x))
    np.testing.assert_array_equal(grad, np.repeat([[0.0], [1.0], [1.0]], 4, axis=1))


def test_no_windows_at_all() -> None:
    """What is dealt from none is zero, though there are elements."""
    none: Any = {"window": (2,), "stride": (1,), "low": (0,), "dilation": (1,)}
    x = nv.arange(3.0)
    y, pull = nv.vjp(lambda x: window_max_p.bind(x, sizes=(0,), **none), x)
    assert y.shape == (0,) and flat(pull(y)[0]) == [0, 0, 0]
    _, pull = nv.vjp(lambda x: window_sum_p.bind(x, sizes=(0,), **none), x)
    assert flat(pull(y)[0]) == [0, 0, 0]


def test_errors() -> None:
    x = nv.ones((2, 5, 5, 3))
    with pytest.raises(ShapeError, match="one spatial axis or more, got shape"):
        nv.max_pool(nv.ones((5, 5)), 2)
    with pytest.raises(ShapeError, match=r"extends over \(6, 6\) positions does not fit"):
        nv.avg_pool(x, 6)
    with pytest.raises(ShapeError, match="window must be at least 1"):
        nv.max_pool(x, 0)
    with pytest.raises(ShapeError, match="padding must not be negative"):
        nv.max_pool(x, 2, padding=-1)
    with pytest.raises(
        ShapeError, match=r"^max_pool: along axis 1 of shape .* outside of the 5 el"
    ):
        nv.max_pool(x, 2, padding=2)
    with pytest.raises(ShapeError, match="an entry for each axis"):
        window_sum_p.bind(x, sizes=(2,), window=(1,), stride=(1,), low=(0,), dilation=(1,))
