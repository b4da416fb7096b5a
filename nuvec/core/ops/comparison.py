"""Comparisons, logical and bitwise operations, and tests for NaN and infinity.

The results are booleans or integers, so none of these has a derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, operand
from nuvec.core.errors import DtypeError
from nuvec.core.ops.build import (
    Binary,
    Convert,
    binary,
    elementwise_rule,
    ordered,
    promote_operands,
    unary,
)
from nuvec.core.primitive import NOT_DIFFERENTIABLE, Primitive
from nuvec.core.traceback import filtered


def to_bool(dtype: np.dtype) -> np.dtype:
    """Result dtype, or convert: bool."""
    return dtypes.bool_


def _integral(dtype: np.dtype) -> np.dtype:
    """Convert: integers and booleans as they are; floating and complex refused."""
    if dtypes.is_inexact(dtype):
        raise DtypeError(
            "bitwise operations take integers and booleans; convert with .astype(nv.int32)"
        )
    return dtype


def _integer(dtype: np.dtype) -> np.dtype:
    """Convert: integers as they are, all else refused."""
    if not dtypes.is_integer(dtype):
        raise DtypeError("shifts take integers; convert with .astype(nv.int32)")
    return dtype


def _primitive(name: str, lower: Any, arity: int, result: Convert | None = to_bool) -> Primitive:
    rule = elementwise_rule(name) if result is None else elementwise_rule(name, result)
    return Primitive(
        name, lower, rule, "elementwise", derivatives=(NOT_DIFFERENTIABLE,) * arity, out=True
    )


# Comparisons


def _outside(above: bool, below: bool, turned: str) -> Callable[[Any, Any], Array | None]:
    """The comparison of integers with a Python int that their dtype cannot hold, which NumPy
    answers without converting it: `above` or `below` it as the int lies; `turned` names the
    comparison with its sides exchanged."""

    def special(x: Any, y: Any) -> Array | None:
        if type(y) is int:
            array, number, truths = x, y, (above, below)
        elif type(x) is int:
            array, number, truths = y, x, _OUTSIDE[turned]
        else:
            return None
        if not isinstance(array, Array | np.ndarray | np.generic):
            return None
        if dtypes.is_inexact(dtypes.as_dtype(array.dtype)):
            return None
        limits = np.iinfo(dtypes.default_int if array.dtype == np.bool_ else array.dtype)
        if limits.min <= number <= limits.max:
            return None
        array = operand(array)
        same = equal_p if truths[number < limits.min] else not_equal_p
        return same.bind(array, array)  # true, or false, in the array's shape

    return special


_OUTSIDE = {  # whether a comparison holds with an int above all values, and below all values
    "equal": (False, False),
    "not_equal": (True, True),
    "less": (True, False),
    "less_equal": (True, False),
    "greater": (False, True),
    "greater_equal": (False, True),
}
_TURNED = {"less": "greater", "less_equal": "greater_equal", "greater": "less",
           "greater_equal": "less_equal"}  # fmt: skip
_SPECIAL = {n: _outside(*truths, _TURNED.get(n, n)) for n, truths in _OUTSIDE.items()}

equal_p = _primitive("equal", np.equal, 2)
equal = binary(
    equal_p,
    special=_SPECIAL["equal"],
    doc="""`x == y` at each element, as bool; shapes broadcast.

    >>> import nuvec as nv
    >>> nv.equal(nv.array([1, 2]), 2)
    array([False,  True], dtype=bool)
    """,
)

not_equal_p = _primitive("not_equal", np.not_equal, 2)
not_equal = binary(
    not_equal_p,
    special=_SPECIAL["not_equal"],
    doc="""`x != y` at each element, as bool; shapes broadcast.

    >>> import nuvec as nv
    >>> nv.not_equal(nv.array([1, 2]), 2)
    array([ True, False], dtype=bool)
    """,
)

less_p = _primitive("less", np.less, 2)
less = binary(
    less_p,
    ordered,
    special=_SPECIAL["less"],
    doc="""`x < y` at each element, as bool; shapes broadcast.

    Raises DtypeError for complex numbers, which have no order.

    >>> import nuvec as nv
    >>> nv.less(nv.array([1, 2, 3]), 2)
    array([ True, False, False], dtype=bool)
    """,
)

less_equal_p = _primitive("less_equal", np.less_equal, 2)
less_equal = binary(
    less_equal_p,
    ordered,
    special=_SPECIAL["less_equal"],
    doc="""`x <= y` at each element, as bool; shapes broadcast.

    Raises DtypeError for complex numbers, which have no order.

    >>> import nuvec as nv
    >>> nv.less_equal(nv.array([1, 2, 3]), 2)
    array([ True,  True, False], dtype=bool)
    """,
)

greater_p = _primitive("greater", np.greater, 2)
greater = binary(
    greater_p,
    ordered,
    special=_SPECIAL["greater"],
    doc="""`x > y` at each element, as bool; shapes broadcast.

    Raises DtypeError for complex numbers, which have no order.

    >>> import nuvec as nv
    >>> nv.greater(nv.array([1, 2, 3]), 2)
    array([False, False,  True], dtype=bool)
    """,
)

greater_equal_p = _primitive("greater_equal", np.greater_equal, 2)
greater_equal = binary(
    greater_equal_p,
    ordered,
    special=_SPECIAL["greater_equal"],
    doc="""`x >= y` at each element, as bool; shapes broadcast.

    Raises DtypeError for complex numbers, which have no order.

    >>> import nuvec as nv
    >>> nv.greater_equal(nv.array([1, 2, 3]), 2)
    array([False,  True,  True], dtype=bool)
    """,
)


# Logic: operands of other dtypes count as true where they are not zero (NaN is true)


def as_condition(name: str, x: Any) -> Array:
    """`x` as booleans.  Each operand is converted by itself: what promotion would round to zero
    (1e-10 beside a float16) is true."""
    if type(x) is Array and dtypes.is_bool(x.dtype):
        return x
    return promote_operands(name, (x,), to_bool)[0]


def _logical(primitive: Primitive, doc: str) -> Binary:
    """The public operation of a logical primitive, which itself takes booleans."""

    @filtered
    def operation(x: Any, y: Any, /) -> Array:
        name = primitive.name
        return primitive.bind(as_condition(name, x), as_condition(name, y))

    operation.__name__ = operation.__qualname__ = primitive.name
    operation.__doc__ = doc
    return operation


logical_and_p = _primitive("logical_and", np.logical_and, 2)
logical_and = _logical(
    logical_and_p,
    """`x and y` at each element; nonzero values are true.

    >>> import nuvec as nv
    >>> nv.logical_and(nv.array([0, 1, 2]), True)
    array([False,  True,  True], dtype=bool)
    """,
)

logical_or_p = _primitive("logical_or", np.logical_or, 2)
logical_or = _logical(
    logical_or_p,
    """`x or y` at each element; nonzero values are true.

    >>> import nuvec as nv
    >>> nv.logical_or(nv.array([0, 1, 2]), False)
    array([False,  True,  True], dtype=bool)
    """,
)

logical_xor_p = _primitive("logical_xor", np.logical_xor, 2)
logical_xor = _logical(
    logical_xor_p,
    """Whether exactly one of `x` and `y` is true, elementwise.

    >>> import nuvec as nv
    >>> nv.logical_xor(nv.array([0, 1, 2]), True)
    array([ True, False, False], dtype=bool)
    """,
)

logical_not_p = _primitive("logical_not", np.logical_not, 1)


@filtered
def logical_not(x: Any, /) -> Array:
    """`not x` at each element; nonzero values are true.

    >>> import nuvec as nv
    >>> nv.logical_not(nv.array([0, 1, 2]))
    array([ True, False, False], dtype=bool)
    """
    return logical_not_p.bind(as_condition("logical_not", x))


# Bits

bitwise_and_p = _primitive("bitwise_and", np.bitwise_and, 2, None)
bitwise_and = binary(
    bitwise_and_p,
    _integral,
    """`x & y`: bits of integers; logic of booleans.

    Raises DtypeError for floating and complex operands.

    >>> import nuvec as nv
    >>> nv.bitwise_and(nv.array([5, 6]), 3)
    array([1, 2], dtype=int32)
    """,
)

bitwise_or_p = _primitive("bitwise_or", np.bitwise_or, 2, None)
bitwise_or = binary(
    bitwise_or_p,
    _integral,
    """`x | y`: bits of integers; logic of booleans.

    Raises DtypeError for floating and complex operands.

    >>> import nuvec as nv
    >>> nv.bitwise_or(nv.array([5, 6]), 3)
    array([7, 7], dtype=int32)
    """,
)

bitwise_xor_p = _primitive("bitwise_xor", np.bitwise_xor, 2, None)
bitwise_xor = binary(
    bitwise_xor_p,
    _integral,
    """`x ^ y`: bits of integers; logic of booleans.

    Raises DtypeError for floating and complex operands.

    >>> import nuvec as nv
    >>> nv.bitwise_xor(nv.array([5, 6]), 3)
    array([6, 5], dtype=int32)
    """,
)

invert_p = _primitive("invert", np.invert, 1, None)
invert = bitwise_invert = unary(
    invert_p,
    _integral,
    """`~x`: every bit flipped; booleans negated.

    Raises DtypeError for floating and complex operands.

    >>> import nuvec as nv
    >>> nv.invert(nv.array([0, 5]))
    array([-1, -6], dtype=int32)
    """,
)

left_shift_p = _primitive("left_shift", np.left_shift, 2, None)
left_shift = bitwise_left_shift = binary(
    left_shift_p,
    _integer,
    """`x << y` for integers.

    Shifting by the width of the dtype or more gives 0.  Raises DtypeError for other dtypes.

    >>> import nuvec as nv
    >>> nv.left_shift(nv.array([1, 2]), 3)
    array([ 8, 16], dtype=int32)
    """,
)

right_shift_p = _primitive("right_shift", np.right_shift, 2, None)
right_shift = bitwise_right_shift = binary(
    right_shift_p,
    _integer,
    """`x >> y` for integers.

    Negative numbers shift in ones (an arithmetic shift).  Raises DtypeError for other dtypes.

    >>> import nuvec as nv
    >>> nv.right_shift(nv.array([16, -16]), 2)
    array([ 4, -4], dtype=int32)
    """,
)


# Special values

isnan_p = _primitive("isnan", np.isnan, 1)
isnan = unary(
    isnan_p,
    doc="""Whether each element is NaN (in either part, when complex).

    >>> import nuvec as nv
    >>> nv.isnan(nv.array([1.0, float("nan")]))
    array([False,  True], dtype=bool)
    """,
)

isinf_p = _primitive("isinf", np.isinf, 1)
isinf = unary(
    isinf_p,
    doc="""Whether each element is infinite (in either part, when complex).

    >>> import nuvec as nv
    >>> nv.isinf(nv.array([1.0, float("inf")]))
    array([False,  True], dtype=bool)
    """,
)

isfinite_p = _primitive("isfinite", np.isfinite, 1)
isfinite = unary(
    isfinite_p,
    doc="""Whether each element is neither infinite nor NaN.

    >>> import nuvec as nv
    >>> nv.isfinite(nv.array([1.0, float("inf")]))
    array([ True, False], dtype=bool)
    """,
)
