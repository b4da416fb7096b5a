"""erf against the C library's, in every floating dtype."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nuvec.core import dtypes
from nuvec.core.array import from_numpy
from nuvec.core.errors import DtypeError
from nuvec.core.ops.erf import erf


def _points():
    """Both sides of every seam, the whole range, and numbers of every size."""
    rng = np.random.Generator(np.random.PCG64(0))
    return np.concatenate(
        [
            rng.uniform(-7, 7, 4000),
            rng.uniform(0.9, 1.1, 1000),
            rng.uniform(3.9, 4.1, 500),
            rng.uniform(5.8, 6.2, 500),
            10 ** rng.uniform(-300, 0, 1000),
            [1.0, np.nextafter(1.0, 0), 4.0, 6.0, 1e300],
        ]
    )


def _exact(x):
    return np.array([math.erf(v) for v in x.astype(np.float64).ravel()]).reshape(x.shape)


def test_float64_is_within_two_ulp():
    x = _points()
    expected = _exact(x)
    error = np.abs(np.asarray(erf(from_numpy(x))) - expected) / np.spacing(np.abs(expected))
    assert error.max() <= 2


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16, dtypes.bfloat16], ids=str)
def test_narrow_dtypes_are_within_two_ulp(dtype):
    x = _points().clip(-1e4, 1e4).astype(dtype)
    x = x[np.abs(x.astype(np.float64)) > float(dtypes.finfo(dtype).tiny)]
    expected = _exact(x)
    result = np.asarray(erf(from_numpy(x)))
    assert result.dtype == dtype
    ulp = np.abs(expected) * float(dtypes.finfo(dtype).eps)  # at most twice the spacing
    assert (np.abs(result.astype(np.float64) - expected) / ulp).max() <= 1.5
    assert np.abs(result.astype(np.float64)).max() == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_special_values(dtype):
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, np.finfo(dtype).smallest_subnormal], dtype)
    result = np.asarray(erf(from_numpy(x)))
    np.testing.assert_array_equal(result, np.array([0, -0.0, 1, -1, np.nan, x[-1]], dtype))
    assert np.signbit(result[1])
    assert not np.signbit(result[0])


def test_an_element_does_not_depend_on_its_neighbours():
    x = _points()
    whole = np.asarray(erf(from_numpy(x)))
    alone = [float(np.asarray(erf(from_numpy(v)))) for v in x[::97]]
    np.testing.assert_array_equal(whole[::97], alone)


def test_large_arrays_go_through_in_blocks():
    x = np.linspace(-3, 3, 20000).reshape(100, 200)
    np.testing.assert_allclose(np.asarray(erf(from_numpy(x))), _exact(x), rtol=5e-16, atol=0)


def test_integers_are_computed_in_float32():
    assert np.asarray(erf(np.int64(1))).dtype == np.float32


def test_complex_is_refused():
    with pytest.raises(DtypeError, match="complex"):
        erf(np.complex64(1j))
