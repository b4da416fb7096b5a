"""Which dtype each operation takes and gives, for every dtype; values against NumPy's."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nuvec.core import dtypes
from nuvec.core.array import from_numpy
from nuvec.core.errors import DtypeError, ShapeError
from nuvec.core.ops import arithmetic as ar
from nuvec.core.ops import comparison as co
from nuvec.core.ops import conversion as cv
from nuvec.core.ops import exponential as ex
from nuvec.core.ops import power as po
from nuvec.core.ops import reduction as re
from nuvec.core.ops import rounding as ro
from nuvec.core.ops import selection as se
from nuvec.core.ops import shape as sh
from nuvec.core.ops import signs as si

BOOL = [dtypes.bool_]
INTEGERS = [d for d in dtypes.ALL if dtypes.is_integer(d)]
FLOATS = [d for d in dtypes.ALL if dtypes.is_floating(d)]
COMPLEX = [d for d in dtypes.ALL if dtypes.is_complex(d)]
REAL = INTEGERS + FLOATS
NUMBERS = REAL + COMPLEX


def _values(dtype, seed=0):
    """Small numbers of both signs where the dtype has them; some 0."""
    rng = np.random.Generator(np.random.PCG64(seed))
    if dtypes.is_bool(dtype):
        return rng.integers(0, 2, 12).astype(bool)
    low = -3 if dtypes.is_signed(dtype) else 0
    values = rng.integers(low, 4, 12).astype(np.float64)
    if dtypes.is_inexact(dtype):
        values = values + 0.25 * rng.integers(0, 4, 12)
    if dtypes.is_complex(dtype):
        values = values + 1j * rng.integers(-3, 4, 12)
    return values.astype(dtype)


def _wide(x):
    """NumPy's own dtypes hold bfloat16's numbers for comparing."""
    return np.asarray(x).astype(np.float64) if x.dtype == dtypes.bfloat16 else np.asarray(x)


def _agree(result, expected):
    assert result.dtype == expected.dtype
    value = np.asarray(result)
    assert (value.dtype, value.shape) == (result.dtype, result.shape)
    close = {"rtol": 2 * float(dtypes.finfo(result.dtype).eps)} if dtypes.is_inexact(
        result.dtype) else {}  # fmt: skip
    np.testing.assert_allclose(_wide(result), _wide(expected), **close)


BINARY = [
    (ar.add, np.add, BOOL + NUMBERS),
    (ar.subtract, np.subtract, NUMBERS),
    (ar.multiply, np.multiply, BOOL + NUMBERS),
    (ar.divide, np.divide, FLOATS + COMPLEX),
    (ar.floor_divide, np.floor_divide, REAL),
    (ar.remainder, np.remainder, REAL),
    (co.equal, np.equal, BOOL + NUMBERS),
    (co.not_equal, np.not_equal, BOOL + NUMBERS),
    (co.less, np.less, BOOL + REAL),
    (co.greater_equal, np.greater_equal, BOOL + REAL),
    (co.logical_and, np.logical_and, BOOL + NUMBERS),
    (co.logical_or, np.logical_or, BOOL + NUMBERS),
    (co.logical_xor, np.logical_xor, BOOL + NUMBERS),
    (co.bitwise_and, np.bitwise_and, BOOL + INTEGERS),
    (co.bitwise_or, np.bitwise_or, BOOL + INTEGERS),
    (co.bitwise_xor, np.bitwise_xor, BOOL + INTEGERS),
    (se.maximum, np.maximum, BOOL + REAL),
    (se.minimum, np.minimum, BOOL + REAL),
]
UNARY = [
    (ar.negative, np.negative, NUMBERS),
    (si.abs, np.abs, BOOL + NUMBERS),
    (si.sign, np.sign, NUMBERS),
    (po.square, np.square, NUMBERS),
    (ro.floor, np.floor, FLOATS),
    (ro.ceil, np.ceil, FLOATS),
    (ro.trunc, np.trunc, FLOATS),
    (ro.round, np.rint, FLOATS + COMPLEX),
    (ex.exp, np.exp, FLOATS + COMPLEX),
    (ex.tanh, np.tanh, FLOATS + COMPLEX),
    (ex.sin, np.sin, FLOATS + COMPLEX),
    (ex.log1p, np.log1p, FLOATS),
    (ar.sqrt, np.sqrt, FLOATS + COMPLEX),
    (co.isnan, np.isnan, FLOATS + COMPLEX),
    (co.isfinite, np.isfinite, BOOL + NUMBERS),
    (co.logical_not, np.logical_not, BOOL + NUMBERS),
    (co.invert, np.invert, BOOL + INTEGERS),
    (cv.conj, np.conj, COMPLEX),
    (cv.real, np.real, BOOL + NUMBERS),
    (cv.imag, np.imag, COMPLEX),
]
REDUCTIONS = [
    (re.max, np.max, BOOL + REAL),
    (re.min, np.min, BOOL + REAL),
    (re.any, np.any, BOOL + NUMBERS),
    (re.all, np.all, BOOL + NUMBERS),
]


def _pairs(table):
    return [
        pytest.param(op, reference, d, id=f"{op.__name__}-{d}")
        for op, reference, accepted in table
        for d in accepted
    ]


@pytest.mark.parametrize(("op", "reference", "dtype"), _pairs(BINARY))
def test_binary_as_numpy_in_every_dtype(op, reference, dtype):
    x, y = _values(dtype), _values(dtype, seed=1)
    with np.errstate(all="ignore"):
        expected, of_scalars = reference(x, y), reference(x[0], y[0])
    _agree(op(from_numpy(x), from_numpy(y)), expected)
    _agree(op(from_numpy(x[0]), from_numpy(y[0])), np.asarray(of_scalars))


@pytest.mark.parametrize(("op", "reference", "dtype"), _pairs(UNARY))
def test_unary_as_numpy_in_every_dtype(op, reference, dtype):
    x = _values(dtype)
    with np.errstate(all="ignore"):
        expected, of_scalar = reference(x), reference(x[0])
    _agree(op(from_numpy(x)), expected)
    _agree(op(from_numpy(x[0])), np.asarray(of_scalar))


@pytest.mark.parametrize(("op", "reference", "dtype"), _pairs(REDUCTIONS))
def test_reduction_as_numpy_in_every_dtype(op, reference, dtype):
    x = _values(dtype).reshape(3, 4)
    _agree(op(from_numpy(x), axis=0), reference(x, axis=0))
    _agree(op(from_numpy(x)), np.asarray(reference(x)))
    _agree(op(from_numpy(x[0, 0])), np.asarray(reference(x[0, 0])))


@pytest.mark.parametrize("dtype", BOOL + REAL, ids=str)
def test_argmax_and_argmin(dtype):
    x = _values(dtype).reshape(3, 4)
    for op, reference in ((re.argmax, np.argmax), (re.argmin, np.argmin)):
        result = op(from_numpy(x), axis=1)
        assert result.dtype == np.int32
        np.testing.assert_array_equal(np.asarray(result), reference(x, axis=1))


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
@pytest.mark.parametrize("op", [sh.sum, re.prod], ids=["sum", "prod"])
def test_sum_and_prod_dtypes(op, dtype):
    x = _values(dtype)
    expected = sh.sum_dtype(dtype)
    wide = x.astype(np.complex128 if dtypes.is_complex(dtype) else np.float64)
    result = op(from_numpy(x))
    assert result.dtype == np.asarray(result).dtype == expected
    reference = getattr(np, op.__name__)(wide).astype(expected)
    np.testing.assert_allclose(_wide(result), _wide(reference), rtol=1e-2)


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
def test_narrow_floats_accumulate_in_float32(dtype):
    ones = from_numpy(np.ones(4096, dtype))  # in 8 bits of precision a count stops at 256
    assert float(sh.sum(ones)) == 4096
    factors = np.concatenate([np.full(8, 256.0), np.full(8, 1 / 256)]).astype(dtype)
    assert float(re.prod(from_numpy(factors))) == 1


@pytest.mark.parametrize("source", dtypes.ALL, ids=str)
@pytest.mark.parametrize("target", dtypes.ALL, ids=str)
def test_astype(source, target):
    x = np.abs(_values(source)).astype(source)
    if dtypes.is_complex(source) and not (dtypes.is_complex(target) or dtypes.is_bool(target)):
        with pytest.raises(DtypeError, match=r"nv\.real"):
            cv.astype(from_numpy(x), target)
        return
    _agree(cv.astype(from_numpy(x), target), x.astype(target))
    _agree(cv.astype(from_numpy(x[0]), target), x[0].astype(target))


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_masked_product_in_every_dtype(dtype):
    x, y = _values(dtype), _values(dtype, seed=1)
    _agree(ar.masked_product(from_numpy(x), from_numpy(y)), np.multiply(x, y))
    _agree(ar.masked_product(from_numpy(x[0]), from_numpy(y)), np.multiply(x[0], y))
    if dtypes.is_inexact(dtype):
        bad = np.array([np.inf, np.nan], dtype)
        zero = np.asarray(ar.masked_product(from_numpy(np.zeros(2, dtype)), from_numpy(bad)))
        np.testing.assert_array_equal(_wide(zero), 0)


@pytest.mark.parametrize("dtype", BOOL + INTEGERS, ids=str)
def test_integers_and_booleans_divide_in_float32(dtype):
    x = _values(dtype)
    for op in (ar.divide(from_numpy(x), from_numpy(x)), ex.exp(from_numpy(x)), ar.sqrt(x)):
        assert op.dtype == np.float32
    assert np.asarray(ar.divide(from_numpy(x), 4)).dtype == np.float32


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_division_by_zero_is_zero(dtype):
    x = from_numpy(np.array([5, 0], dtype))
    for op in (ar.floor_divide, ar.remainder):
        np.testing.assert_array_equal(np.asarray(op(x, 0)), 0)


def test_remainder_has_the_sign_of_the_divisor():
    x = np.array([7, -7, 7, -7], np.int32)
    y = np.array([3, 3, -3, -3], np.int32)
    np.testing.assert_array_equal(np.asarray(ar.remainder(x, y)), [1, 2, -2, -1])
    np.testing.assert_array_equal(np.asarray(ar.floor_divide(x, y)), [2, -3, -3, 2])


# Python scalars


@pytest.mark.parametrize(
    ("dtype", "scalar", "expected"),
    [
        ("float32", 2.0, "float32"), ("float16", 2, "float16"), ("bfloat16", 2.5, "bfloat16"),
        ("int32", 2.5, "float32"), ("int8", 2, "int8"), ("bool", 1, "int32"),
        ("bool", True, "bool"), ("bool", 1.0, "float32"), ("float32", 1j, "complex64"),
        ("float64", 1j, "complex128"), ("int64", 1j, "complex64"), ("uint8", 3, "uint8"),
    ],
)  # fmt: skip
def test_python_scalars_take_the_arrays_dtype(dtype, scalar, expected):
    x = from_numpy(np.ones(3, dtypes.as_dtype(dtype)))
    for _ in range(2):  # the second call takes the short way
        for result in (ar.multiply(x, scalar), ar.multiply(scalar, x)):
            assert result.dtype == np.asarray(result).dtype == dtypes.as_dtype(expected)


def test_scalars_that_are_equal_but_not_the_same_are_told_apart():
    x = from_numpy(np.ones(1, np.float32))
    for zero in (0.0, -0.0, 0.0):
        assert math.copysign(1, float(ar.multiply(x, zero))) == math.copysign(1, zero)
    ints = from_numpy(np.ones(1, np.int32))
    for scalar, expected in ((1, np.int32), (1.0, np.float32), (True, np.int32), (1, np.int32)):
        assert ar.add(ints, scalar).dtype == expected
        assert ar.add(scalar, ints).dtype == expected


def test_a_scalar_out_of_range_is_refused():
    with pytest.raises(DtypeError, match=r"1000 is out of range for int8"):
        ar.add(from_numpy(np.ones(2, np.int8)), 1000)


def test_mixed_arrays_promote_as_jax():
    def dtype_of(a, b):
        return ar.add(from_numpy(np.ones(1, a)), from_numpy(np.ones(1, b))).dtype

    assert dtype_of(np.int64, np.float16) == np.float16
    assert dtype_of(dtypes.bfloat16, np.float16) == np.float32
    assert dtype_of(np.uint8, np.int8) == np.int16
    assert dtype_of(np.bool_, np.uint8) == np.uint8
    assert dtype_of(np.float64, np.complex64) == np.complex128


def test_where_takes_any_condition_and_promotes_the_branches():
    result = se.where(from_numpy(np.array([0, 2], np.int8)), np.int32([1, 1]), 2.5)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(np.asarray(result), [2.5, 1.0])
    assert float(se.where(1, 5.0, 6.0)) == 5
    assert float(se.where(math.nan, 5.0, 6.0)) == 5  # nonzero, as in Python


def test_logic_of_scalars_and_mixed_dtypes():
    large = np.int64([2**53 + 1, 0])
    np.testing.assert_array_equal(np.asarray(co.logical_and(large, 0.5)), [True, False])
    with pytest.raises(TypeError, match="missing 1 required"):
        co.logical_and(large)


# What is refused, and how


def test_booleans_do_not_subtract():
    x = from_numpy(np.array([True, False]))
    for call in (lambda: ar.subtract(x, x), lambda: ar.negative(x)):
        with pytest.raises(TypeError, match=r"logical_xor.*logical_not"):
            call()
    for call in (
        lambda: ar.floor_divide(x, x), lambda: ar.remainder(x, x), lambda: po.power(x, x),
        lambda: si.sign(x), lambda: si.positive(x),
    ):  # fmt: skip
        with pytest.raises(DtypeError, match="bool"):
            call()
    assert ar.subtract(x, 1).dtype == np.int32


@pytest.mark.parametrize(
    "op", [co.less, co.less_equal, co.greater, co.greater_equal, se.maximum, se.minimum,
           ar.floor_divide, ar.remainder], ids=lambda op: op.__name__,
)  # fmt: skip
def test_complex_has_no_order(op):
    z = from_numpy(np.complex64([1, 1j]))
    with pytest.raises(DtypeError, match=r"complex64.*no order"):
        op(z, 1)


def test_complex_has_no_largest_element():
    z = from_numpy(np.complex64([1, 1j]))
    for op in (re.max, re.min, re.argmax, re.argmin):
        with pytest.raises(DtypeError, match="no order"):
            op(z)


def test_bits_of_floats_are_refused():
    x = from_numpy(np.ones(2, np.float32))
    for op in (co.bitwise_and, co.bitwise_or, co.bitwise_xor, co.left_shift, co.right_shift):
        with pytest.raises(DtypeError, match=r"astype\(nv.int32\)"):
            op(x, 1)


def test_shapes_that_do_not_broadcast():
    with pytest.raises(ShapeError, match=r"add: shapes \(2, 3\) and \(4,\)"):
        ar.add(np.ones((2, 3)), np.ones(4))
    with pytest.raises(ShapeError, match="where"):
        se.where(np.ones(2, bool), np.ones(3), 1.0)


def test_sum_and_prod_do_not_drop_an_imaginary_part():
    for op in (sh.sum, re.prod):
        with pytest.raises(DtypeError, match=r"nv\.real"):
            op(np.complex64([1j]), dtype=np.float32)
