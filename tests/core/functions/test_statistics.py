"""Means, softmax and norms at the points where formulas break."""

from __future__ import annotations

import math

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.errors import AxisError, DtypeError, ShapeError

INF = math.inf


def test_mean_and_variance_dtypes():
    for dtype, expected in [
        (nv.int8, nv.float32), (nv.bool_, nv.float32), (nv.float16, nv.float16),
        (nv.bfloat16, nv.bfloat16), (nv.float64, nv.float64), (nv.complex64, nv.complex64),
    ]:  # fmt: skip
        assert nv.mean(nv.ones(3, dtype)).dtype == expected
        assert nv.var(nv.ones(3, dtype)).dtype == (
            nv.float32 if dtype == nv.complex64 else expected
        )
    assert nv.mean(nv.ones(3), dtype=nv.float64).dtype == nv.float64


def test_float16_goes_through_float32():
    x = nv.full((70000,), 1.0, nv.float16)
    assert float(nv.mean(x)) == 1 and float(nv.linalg.norm(nv.full(4, 40000.0, nv.float16))) == INF
    assert float(nv.linalg.norm(nv.full(4, 300.0, nv.float16))) == 600
    assert float(nv.softmax(x).sum()) == pytest.approx(1, abs=0.01)


def test_mean_of_nothing_is_nan():
    assert math.isnan(float(nv.mean(nv.zeros(0)))) and math.isnan(float(nv.std(nv.zeros(0))))
    assert math.isnan(float(nv.var(nv.ones(1), ddof=1)))


def test_correction_is_another_name_of_ddof():
    x = nv.array([1.0, 2.0, 4.0])
    assert float(nv.var(x, correction=1)) == float(nv.var(x, ddof=1))
    with pytest.raises(TypeError, match="two names"):
        nv.std(x, ddof=1, correction=1)


def test_gradients_at_zero():
    for f in (nv.std, nv.linalg.norm, lambda x: nv.linalg.norm(x, 3), lambda x: nv.std(x, axis=0)):
        assert nv.grad(f)(nv.zeros(3)).tolist() == [0, 0, 0]
        second = nv.jvp(nv.grad(f), (nv.zeros(3),), (nv.ones(3),))[1]
        assert np.isfinite(np.asarray(second)).all()
    tangent = nv.jvp(nv.linalg.norm, (nv.zeros(3),), (nv.ones(3),))[1]
    assert float(tangent) == 0
    assert math.isnan(float(nv.linalg.norm(nv.array([math.nan]))))


def test_softmax_far_out():
    assert nv.softmax(nv.array([1e4, 0.0, -1e4])).tolist() == [1, 0, 0]
    assert nv.softmax(nv.array([-INF, 0.0])).tolist() == [0, 1]
    assert nv.log_softmax(nv.array([1e4, 0.0])).tolist() == [0, -1e4]
    gradient = nv.grad(lambda x: nv.softmax(x)[1])(nv.array([-INF, 0.0, 0.0]))
    assert gradient.tolist() == [0, 0.25, -0.25]
    assert nv.softmax(nv.array([1, 1])).dtype == nv.float32
    with pytest.raises(DtypeError, match="complex"):
        nv.softmax(nv.array([1j]))
    with pytest.raises(AxisError):
        nv.softmax(nv.ones(2), axis=1)


def test_logsumexp_far_out():
    assert float(nv.logsumexp(nv.array([-INF, -INF]))) == -INF
    assert float(nv.logsumexp(nv.array([INF, 0.0]))) == INF
    assert float(nv.logsumexp(nv.zeros(0))) == -INF
    assert nv.logsumexp(nv.zeros((2, 0)), axis=1, keepdims=True).tolist() == [[-INF], [-INF]]
    assert math.isnan(float(nv.logsumexp(nv.array([math.nan, 0.0]))))
    for x in ([-INF, -INF], [INF, INF]):  # as softmax, and as in JAX
        assert np.isnan(nv.grad(nv.logsumexp)(nv.array(x))).all()
    gradient = nv.grad(nv.logsumexp)(nv.array([INF, 1.0]))
    assert np.isnan(gradient[0].item())
    assert gradient[1].item() == 0
    assert nv.grad(nv.logsumexp)(nv.array([-INF, 3.0])).tolist() == [0, 1]
    weighted = nv.logsumexp(nv.array([INF, 1.0]), b=nv.array([0.0, 2.0]))
    assert float(weighted) == pytest.approx(1 + math.log(2))


def test_one_hot():
    assert nv.one_hot(nv.array([0, 2, 3, -1]), 3).tolist() == [
        [1, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0],
    ]  # fmt: skip
    assert nv.one_hot(np.uint8(1), 300, bool).dtype == nv.bool_
    with pytest.raises(DtypeError, match="integers"):
        nv.one_hot(nv.ones(2), 3)
    with pytest.raises(ShapeError, match="num_classes"):
        nv.one_hot(nv.array([1]), -1)


def test_average():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    w = np.array([1, 2, 3], np.float32)
    out, total = nv.average(nv.array(x), axis=1, weights=w, returned=True)
    np.testing.assert_allclose(out, np.average(x, axis=1, weights=w))
    assert total.tolist() == [6, 6]
    assert float(nv.average(nv.array(x))) == 2.5
    with pytest.raises(ShapeError, match="weights"):
        nv.average(nv.array(x), axis=0, weights=w)


def test_norm_errors():
    x = nv.ones((2, 3, 4))
    with pytest.raises(AxisError, match="axis="):
        nv.linalg.norm(x, 1)
    with pytest.raises(AxisError):
        nv.linalg.norm(x, 1, axis=(0, 1, 2))
    with pytest.raises(ValueError, match="svd"):
        nv.linalg.norm(x[0], 2)
    with pytest.raises(ValueError, match="ord"):
        nv.linalg.norm(x[0, 0], "fro")


def test_norm_of_integers_and_zero_order():
    assert nv.linalg.norm(nv.array([3, 4])).dtype == nv.float32
    assert float(nv.linalg.norm(nv.array([3.0, 0.0, 4.0]), 0)) == 2
    assert nv.linalg.norm(nv.array([[3j, 4]])).dtype == nv.float32
