"""Dtypes: names, promotion against JAX's documented table, Python scalars."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nuvec.core import dtypes
from nuvec.core.errors import DtypeError

# The promotion table of https://docs.jax.dev/en/latest/type_promotion.html, row by row.
TABLE = """\
    b1 u1 u2 u4 u8 i1 i2 i4 i8 bf f2 f4 f8 c4 c8 i* f* c*
b1  b1 u1 u2 u4 u8 i1 i2 i4 i8 bf f2 f4 f8 c4 c8 i* f* c*
u1  u1 u1 u2 u4 u8 i2 i2 i4 i8 bf f2 f4 f8 c4 c8 u1 f* c*
u2  u2 u2 u2 u4 u8 i4 i4 i4 i8 bf f2 f4 f8 c4 c8 u2 f* c*
u4  u4 u4 u4 u4 u8 i8 i8 i8 i8 bf f2 f4 f8 c4 c8 u4 f* c*
u8  u8 u8 u8 u8 u8 f* f* f* f* bf f2 f4 f8 c4 c8 u8 f* c*
i1  i1 i2 i4 i8 f* i1 i2 i4 i8 bf f2 f4 f8 c4 c8 i1 f* c*
i2  i2 i2 i4 i8 f* i2 i2 i4 i8 bf f2 f4 f8 c4 c8 i2 f* c*
i4  i4 i4 i4 i8 f* i4 i4 i4 i8 bf f2 f4 f8 c4 c8 i4 f* c*
i8  i8 i8 i8 i8 f* i8 i8 i8 i8 bf f2 f4 f8 c4 c8 i8 f* c*
bf  bf bf bf bf bf bf bf bf bf bf f4 f4 f8 c4 c8 bf bf c4
f2  f2 f2 f2 f2 f2 f2 f2 f2 f2 f4 f2 f4 f8 c4 c8 f2 f2 c4
f4  f4 f4 f4 f4 f4 f4 f4 f4 f4 f4 f4 f4 f8 c4 c8 f4 f4 c4
f8  f8 f8 f8 f8 f8 f8 f8 f8 f8 f8 f8 f8 f8 c8 c8 f8 f8 c8
c4  c4 c4 c4 c4 c4 c4 c4 c4 c4 c4 c4 c4 c8 c4 c8 c4 c4 c4
c8  c8 c8 c8 c8 c8 c8 c8 c8 c8 c8 c8 c8 c8 c8 c8 c8 c8 c8
i*  i* u1 u2 u4 u8 i1 i2 i4 i8 bf f2 f4 f8 c4 c8 i* f* c*
f*  f* f* f* f* f* f* f* f* f* bf f2 f4 f8 c4 c8 f* f* c*
c*  c* c* c* c* c* c* c* c* c* c4 c4 c4 c8 c4 c8 c* c* c*
"""
CODES = {
    "b1": (dtypes.bool_, False),
    **{f"u{n}": (dtypes.as_dtype(f"uint{8 * n}"), False) for n in (1, 2, 4, 8)},
    **{f"i{n}": (dtypes.as_dtype(f"int{8 * n}"), False) for n in (1, 2, 4, 8)},
    "bf": (dtypes.bfloat16, False),
    **{f"f{n}": (dtypes.as_dtype(f"float{8 * n}"), False) for n in (2, 4, 8)},
    **{f"c{n}": (dtypes.as_dtype(f"complex{16 * n}"), False) for n in (4, 8)},
    "i*": (dtypes.int32, True),
    "f*": (dtypes.float32, True),
    "c*": (dtypes.complex64, True),
}
ITEMS = st.sampled_from(sorted(CODES)).map(CODES.__getitem__)


def test_promotion_table():
    header, *rows = (line.split() for line in TABLE.splitlines())
    assert len(header) == len(rows) == len(CODES)
    for left, *results in rows:
        for right, result in zip(header, results, strict=True):
            got = dtypes.promote(CODES[left], CODES[right])
            assert got == CODES[result], f"{left} with {right}: {got}, expected {result}"


@given(st.lists(ITEMS, min_size=1, max_size=5), st.randoms())
def test_promotion_ignores_order(items, random):
    shuffled = random.sample(items, len(items))
    assert dtypes.promote(*items) == dtypes.promote(*shuffled)


@given(ITEMS, ITEMS, ITEMS)
def test_promotion_is_associative(a, b, c):
    whole = dtypes.promote(a, b, c)
    assert dtypes.promote(dtypes.promote(a, b), c) == whole
    assert dtypes.promote(a, dtypes.promote(b, c)) == whole


def test_promotion_of_a_weak_bool_and_of_nothing():
    weak_bool = (dtypes.bool_, True)
    assert dtypes.promote(weak_bool, weak_bool) == (dtypes.bool_, False)
    assert dtypes.promote(weak_bool, (dtypes.int8, False)) == (dtypes.int8, False)
    with pytest.raises(DtypeError, match="at least one"):
        dtypes.promote()


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=dtypes.name)
@pytest.mark.parametrize("foreign", [object(), "no such dtype", 3, (), [], {}, "i4,foo", ...])
def test_comparing_with_a_foreign_object_is_false(dtype, foreign):
    assert (dtype == foreign) is False
    assert (dtype != foreign) is True


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=dtypes.name)
def test_as_dtype_accepts_every_spelling(dtype):
    spellings = [dtype, dtype.type, dtypes.name(dtype), str(dtype)]
    if dtype != dtypes.bfloat16:
        spellings += [dtype.char, dtype.newbyteorder(">"), dtype.newbyteorder("<")]
    for spelling in spellings:
        found = dtypes.as_dtype(spelling)
        assert found is dtype
        assert found.isnative


def test_as_dtype_of_python_types_and_c_names():
    wanted = {bool: "bool", int: "int32", float: "float32", complex: "complex64"}
    for python_type, name in wanted.items():
        assert dtypes.as_dtype(python_type) == name
        assert dtypes.as_dtype(python_type.__name__) == name
    assert dtypes.as_dtype(np.longlong) is dtypes.int64
    assert dtypes.as_dtype(np.dtype("f4", metadata={"unit": "m"})) is dtypes.float32


UNSUPPORTED = [
    object, str, "U3", "datetime64[s]", "timedelta64[s]", np.dtype([("a", "f4")]),
    np.dtype(("f4", (2,))), None, 3, [], "no such dtype", "i4,f4", np.floating,
]  # fmt: skip


@pytest.mark.parametrize("spec", UNSUPPORTED, ids=repr)
def test_as_dtype_refuses(spec):
    with pytest.raises(DtypeError, match="bfloat16, float32"):
        dtypes.as_dtype(spec)


def test_as_dtype_of_long_double():
    """Refused where it is wider than float64; on some platforms it is float64 itself."""
    wide = np.dtype("longdouble").itemsize > 8
    same = {np.longdouble: dtypes.float64, np.clongdouble: dtypes.complex128}
    for spec, narrow in same.items():
        for form in (spec, np.dtype(spec)):
            if wide:
                with pytest.raises(DtypeError, match="Supported"):
                    dtypes.as_dtype(form)
            else:
                assert dtypes.as_dtype(form) == narrow


def test_predicates():
    def holding(predicate):
        return {dtypes.name(dtype) for dtype in dtypes.ALL if predicate(dtype)}

    signed = {"int8", "int16", "int32", "int64"}
    unsigned = {f"u{name}" for name in signed}
    floating = {"float16", "bfloat16", "float32", "float64"}
    complexes = {"complex64", "complex128"}
    assert holding(dtypes.is_bool) == {"bool"}
    assert holding(dtypes.is_integer) == signed | unsigned
    assert holding(dtypes.is_floating) == floating
    assert holding(dtypes.is_complex) == complexes
    assert holding(dtypes.is_inexact) == floating | complexes
    assert holding(dtypes.is_signed) == signed | floating | complexes


def test_relatives():
    for dtype in dtypes.ALL:
        exact = dtypes.is_bool(dtype) or dtypes.is_integer(dtype)
        assert dtypes.inexact(dtype) is (dtypes.float32 if exact else dtype)
        half = dtype in (dtypes.float16, dtypes.bfloat16)
        assert dtypes.accumulation(dtype) is (dtypes.float32 if half else dtype)
        wide = dtype in (dtypes.float64, dtypes.complex128)
        assert dtypes.complex_of(dtype) is (dtypes.complex128 if wide else dtypes.complex64)
    assert dtypes.real_part(dtypes.complex64) is dtypes.float32
    assert dtypes.real_part(dtypes.complex128) is dtypes.float64
    assert dtypes.real_part(dtypes.bfloat16) is dtypes.bfloat16


def test_limits():
    assert dtypes.finfo(dtypes.bfloat16).eps == 2.0**-7
    assert dtypes.finfo("float16").eps == 2.0**-10
    assert dtypes.finfo(dtypes.complex64).eps == 2.0**-23
    assert dtypes.iinfo(dtypes.uint8).max == 255
    with pytest.raises(DtypeError, match="use iinfo"):
        dtypes.finfo(dtypes.int8)
    with pytest.raises(DtypeError, match="use finfo"):
        dtypes.iinfo(float)


def test_can_cast():
    assert dtypes.can_cast(dtypes.uint8, dtypes.int16)
    assert dtypes.can_cast("int64", "bfloat16")
    assert not dtypes.can_cast(dtypes.int8, dtypes.uint8)
    assert not dtypes.can_cast(dtypes.float16, dtypes.bfloat16)


# --- Python scalars


def test_scalar_dtype():
    assert dtypes.scalar_dtype(False) is dtypes.bool_
    assert dtypes.scalar_dtype(1) is dtypes.int32
    assert dtypes.scalar_dtype(1.0) is dtypes.float32
    assert dtypes.scalar_dtype(1j) is dtypes.complex64
    assert dtypes.scalar_dtype(np.float64(1)) is dtypes.float64
    for foreign in ("1", None, [1], np.zeros(2)):
        with pytest.raises(DtypeError, match="scalar"):
            dtypes.scalar_dtype(foreign)


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=dtypes.name)
def test_python_scalar_has_exactly_the_dtype(dtype):
    values = [True] if dtypes.is_bool(dtype) else [True, 0, 3]
    values += [2.5, -0.0, math.inf] if dtypes.is_inexact(dtype) else []
    values += [2.5 - 1j] if dtypes.is_complex(dtype) else []
    for value in values:
        scalar = dtypes.python_scalar(value, dtype)
        assert scalar.dtype is dtype or scalar.dtype == dtype
        assert scalar == value
        assert np.shape(scalar) == ()


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if dtypes.is_integer(d)], ids=dtypes.name)
def test_python_scalar_checks_the_range(dtype):
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    assert dtypes.python_scalar(low, dtype) == low
    assert dtypes.python_scalar(high, dtype) == high
    for value in (low - 1, high + 1):
        with pytest.raises(DtypeError, match=rf"{value}.*{dtype.name}.*{low} to {high}"):
            dtypes.python_scalar(value, dtype)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(1.0, "int32"), (1j, "float32"), (1j, "int8"), (1, "bool"), (0.0, "bool"),
     (np.float32(1), "int8"), (1j, "bfloat16")],
)  # fmt: skip
def test_python_scalar_refuses_another_category(value, dtype):
    with pytest.raises(DtypeError, match=dtype):
        dtypes.python_scalar(value, dtypes.as_dtype(dtype))


def test_python_scalar_does_not_wrap_numpy_integers():
    with pytest.raises(DtypeError, match=r"300.*int8"):
        dtypes.python_scalar(np.int64(300), dtypes.int8)


@pytest.mark.filterwarnings("error")
def test_python_scalar_beyond_a_floating_dtype_is_infinite():
    for dtype in (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64):
        assert dtypes.python_scalar(10**400, dtype) == math.inf
        assert dtypes.python_scalar(-(10**400), dtype) == -math.inf
    assert dtypes.python_scalar(sys.float_info.max, dtypes.float16) == math.inf
    assert np.isnan(dtypes.python_scalar(math.nan, dtypes.float16))
