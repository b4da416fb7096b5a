"""Powers: exactness, whole exponents, integers."""

from __future__ import annotations

import numpy as np
import pytest

from nuvec.core import dtypes
from nuvec.core.array import from_numpy
from nuvec.core.errors import DtypeError
from nuvec.core.ops.power import NegativePowerError, power, square

FLOATS = [d for d in dtypes.ALL if dtypes.is_floating(d)]


@pytest.mark.parametrize("dtype", dtypes.ALL[1:], ids=str)
def test_the_square_is_exactly_the_product(dtype):
    x = np.linspace(0, 11, 50).astype(dtype)
    for result in (power(from_numpy(x), 2), square(from_numpy(x))):
        assert result.dtype == dtype
        np.testing.assert_array_equal(np.asarray(result), x * x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("exponent", [-12, -3, -1, 0, 1, 3, 5, 8, 9, 31])
def test_whole_exponents_are_accurate(dtype, exponent):
    x = np.linspace(0.7, 1.3, 50).astype(dtype)
    exact = x.astype(np.longdouble) ** exponent
    for n in (exponent, float(exponent)):
        result = power(from_numpy(x), n)
        assert result.dtype == np.asarray(result).dtype == dtype
        error = np.abs(np.asarray(result).astype(np.longdouble) - exact) / exact
        assert error.max() <= 5 * float(dtypes.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if dtypes.is_integer(d)], ids=str)
def test_integers_are_exact_or_wrap_as_numpy(dtype):
    x = np.array([0, 1, 2, 3, 5], dtype)
    for n in (0, 1, 2, 3, 7, 20):
        result = np.asarray(power(from_numpy(x), n))
        np.testing.assert_array_equal(result, x ** dtype.type(n))
        assert result.dtype == dtype


def test_integers_have_no_negative_powers():
    with pytest.raises(NegativePowerError, match=r"int32\[2\] to the power -1.*astype"):
        power(np.int32([1, 2]), -1)
    with pytest.raises(ValueError, match="negative"):
        power(np.uint8([1, 2]), -1)
    with pytest.raises(DtypeError):
        power(2, -1)
    with pytest.raises(NegativePowerError, match=r"int32.*\(2,\) to negative powers.*astype"):
        np.asarray(power(np.int32([1, 2]), np.int32([1, -1])))


def test_dtypes_of_powers():
    ones = from_numpy(np.ones(2, np.int32))
    assert power(ones, 2).dtype == np.int32
    assert power(ones, 2.0).dtype == np.float32
    assert power(ones, 0.5).dtype == np.float32
    assert power(2.0, ones).dtype == np.float32
    assert power(from_numpy(np.ones(2, bool)), 2).dtype == np.int32
    assert power(from_numpy(np.ones(2, np.complex64)), 2).dtype == np.complex64


def test_zero_and_huge_exponents():
    x = np.float32([0, np.nan, np.inf, -2])
    np.testing.assert_array_equal(np.asarray(power(x, 0)), 1)
    assert float(power(np.float32(-1), 2**40 + 1)) == -1
    assert complex(power(np.complex64(1j), 5)) == pytest.approx(1j)
