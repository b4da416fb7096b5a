"""Sums: their error against float64, for every order in memory, and their bits when compiled."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.ops.summation import reduced_sum

EPS = float(np.finfo(np.float32).eps)
TENTHS = np.full((70, 41, 33), np.float32(0.1))
LAYOUTS = {
    "contiguous": TENTHS,
    "fortran": np.asfortranarray(TENTHS),
    "permuted": TENTHS.transpose(1, 2, 0),
    "sliced": np.full((70, 82, 40), np.float32(0.1))[:, ::2, :33],
    "reversed": np.random.default_rng(0).random((66, 5, 40), np.float32)[::-1, :, ::-1],
    "repeated": np.broadcast_to(np.float32(0.1), (70, 41, 33)),
}


def relative_error(x, axes):
    exact = x.astype(np.float64).sum(axes)
    size = np.abs(x.astype(np.float64)).sum(axes)
    return np.max(np.abs(np.asarray(nv.sum(nv.array(x), axes)) - exact) / size)


@pytest.mark.parametrize("x", LAYOUTS.values(), ids=LAYOUTS)
def test_error_of_every_reduction(x):
    for count in range(1, 4):
        for axes in itertools.combinations(range(3), count):
            total = reduced_sum(x, axes)
            exact = x.astype(np.float64).sum(axes)
            assert total.dtype == np.float32
            assert total.shape == exact.shape
            assert np.max(np.abs(total - exact) / np.abs(exact)) < 4 * EPS, axes


@pytest.mark.parametrize("shape", [(200_000, 3), (33, 7), (64, 1000), (1025, 33), (3, 40_001, 2)])
def test_error_does_not_grow(shape):
    x = np.full(shape, np.float32(0.1))
    for axis in range(len(shape)):
        assert relative_error(x, (axis,)) < 4 * EPS


def test_error_of_means_and_other_dtypes():
    x = np.full((100_000, 2), np.float32(0.1))
    assert np.asarray(nv.mean(nv.array(x), 0)) == pytest.approx(np.float32(0.1), rel=4 * EPS)
    assert float(nv.var(nv.array(x), 0)[0]) < 1e-12
    half = nv.full((100_000, 2), 0.1, nv.float16)
    exact = 100_000 * float(np.float16(0.1))
    assert float(nv.sum(half, 0)[0]) == pytest.approx(exact, rel=1e-3)
    third = nv.sum(nv.array(x * 1j), 0)
    assert complex(third[1]).imag == pytest.approx(100_000 * float(np.float32(0.1)), rel=4 * EPS)
    double = nv.sum(nv.full((100_000, 2), 0.1, nv.float64), 0)
    assert float(double[0]) == pytest.approx(1e4, rel=1e-14)
    assert nv.sum(nv.full((1000, 2), 2**31 - 1, nv.int32), 0).tolist() == [-1000, -1000]


def test_infinities_pass_through():
    x = np.zeros((1000, 3), np.float32)
    x[500] = [np.inf, np.nan, -np.inf]
    total = np.asarray(nv.sum(nv.array(x), 0))
    assert total[0] == np.inf
    assert np.isnan(total[1])
    assert total[2] == -np.inf


@pytest.mark.parametrize("shape", [(100, 3), (1000, 40), (40, 50, 60)])
def test_compiled_bits(shape):
    x = nv.array(np.random.default_rng(1).standard_normal(shape).astype(np.float32))

    def f(x):
        y = x * 2
        return y.sum(0), y.T.sum(-1), (y + 1).sum(), nv.grad(lambda b: ((x + b) ** 2).sum())(x[0])

    compiled, interpreted = nv.compile(f), f(x)
    for ours, expected in zip(compiled(x), interpreted, strict=True):  # in tiles where it is large
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-3)
    with nv.config.override(passes=nv.config.passes - {"partial_sums"}):
        for ours, expected in zip(compiled(x), interpreted, strict=True):
            assert np.asarray(ours).tobytes() == np.asarray(expected).tobytes()
