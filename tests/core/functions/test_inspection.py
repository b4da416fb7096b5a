"""Common dtypes and shapes, and agreement."""

from __future__ import annotations

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.errors import ShapeError


def test_result_type():
    assert nv.result_type(nv.int32, nv.float16) == nv.float16
    assert nv.result_type(nv.ones(2, nv.int8), 3) == nv.int8
    assert nv.result_type(nv.ones(2, nv.int8), 3.0) == nv.float32
    assert nv.result_type(np.ones(2), nv.float32) == nv.float64
    assert nv.result_type(np.float32(1), "complex64") == nv.complex64


def test_isdtype():
    assert nv.isdtype(nv.int8, "signed integer") and not nv.isdtype(nv.uint8, "signed integer")
    assert nv.isdtype(nv.uint8, "integral") and nv.isdtype(nv.uint8, "unsigned integer")
    assert nv.isdtype(nv.bool_, "bool") and not nv.isdtype(nv.bool_, "numeric")
    assert nv.isdtype(nv.complex64, ("integral", "complex floating"))
    assert nv.isdtype(nv.float32, nv.float32) and not nv.isdtype(nv.float32, nv.float64)
    with pytest.raises(ValueError, match="foo"):
        nv.isdtype(nv.int8, "foo")


def test_broadcast_arrays():
    x, y = nv.broadcast_arrays(nv.ones((2, 1)), np.arange(3))
    assert x.shape == y.shape == (2, 3) and nv.broadcast_arrays() == []
    with pytest.raises(ShapeError, match="broadcast"):
        nv.broadcast_arrays(nv.ones(2), nv.ones(3))


@pytest.mark.parametrize("equal_nan", [False, True])
def test_isclose_is_numpys(equal_nan):
    x = np.array([1, 1, np.inf, np.inf, np.nan, 1, np.nan, 0])
    y = np.array([1 + 1e-7, 1.1, np.inf, -np.inf, np.nan, np.nan, 1, 1e-9])
    expected = np.isclose(x, y, equal_nan=equal_nan)
    assert nv.isclose(x, y, equal_nan=equal_nan).tolist() == expected.tolist()
    assert bool(nv.allclose(x[:1], y[:1])) and not bool(nv.allclose(x, y))


def test_array_equal():
    assert bool(nv.array_equal(nv.ones(2), np.ones(2)))
    assert not bool(nv.array_equal(np.ones(1), np.ones(2)))
    nan = np.array([np.nan])
    assert not bool(nv.array_equal(nan, nan)) and bool(nv.array_equal(nan, nan, equal_nan=True))
