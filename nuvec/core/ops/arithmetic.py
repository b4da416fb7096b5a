"""Addition, subtraction, multiplication, division and roots, element by element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array
from nuvec.core.errors import DtypeError
from nuvec.core.ops.build import (
    Binary,
    Unary,
    binary,
    elementwise_rule,
    numeric,
    ordered,
    real_inexact,
    to_inexact,
    unary,
)
from nuvec.core.ops.shape import unbroadcast
from nuvec.core.primitive import MINUS_ONE, ONE, ZERO, Primitive


def _subtractable(dtype: np.dtype) -> np.dtype:
    """Convert: numbers as they are; booleans are refused, as NumPy does."""
    if dtypes.is_bool(dtype):
        raise DtypeError(
            "booleans have no `-`; use nv.logical_xor(x, y) or nv.logical_not(x), or convert with "
            ".astype(nv.int32)"
        )
    return dtype


def _real_numeric(dtype: np.dtype) -> np.dtype:
    """Convert: real numbers as they are; booleans and complex numbers are refused."""
    return numeric(ordered(dtype))


# The four operations

add_p = Primitive("add", np.add, elementwise_rule("add"), "elementwise",
                  derivatives=(ONE, ONE), out=True)  # fmt: skip
add = binary(
    add_p,
    doc="""`x + y`, elementwise; shapes broadcast, dtypes are promoted.

    The sum of booleans is `or`, as in NumPy.  Raises ShapeError when the shapes do not broadcast.

    >>> import nuvec as nv
    >>> nv.add(nv.array([1.0, 2.0]), 3)
    array([4., 5.], dtype=float32)
    """,
)

subtract_p = Primitive("subtract", np.subtract, elementwise_rule("subtract"), "elementwise",
                       derivatives=(ONE, MINUS_ONE), out=True)  # fmt: skip
subtract = binary(
    subtract_p,
    _subtractable,
    """`x - y`, elementwise; shapes broadcast.

    Raises DtypeError for booleans, ShapeError when the shapes do not broadcast.

    >>> import nuvec as nv
    >>> nv.subtract(nv.array([1.0, 2.0]), 3)
    array([-2., -1.], dtype=float32)
    """,
)

negative_p = Primitive("negative", np.negative, elementwise_rule("negative"), "elementwise",
                       derivatives=(MINUS_ONE,), out=True)  # fmt: skip
negative = unary(
    negative_p,
    _subtractable,
    """`-x`, elementwise.  Raises DtypeError for booleans.

    >>> import nuvec as nv
    >>> nv.negative(nv.array([1.0, -2.0]))
    array([-1.,  2.], dtype=float32)
    """,
)

multiply_p = Primitive(
    "multiply", np.multiply, elementwise_rule("multiply"), "elementwise",
    derivatives=(lambda out, x, y: y, lambda out, x, y: x), linear="each", out=True,
)  # fmt: skip
multiply = binary(
    multiply_p,
    doc="""`x * y`, elementwise; shapes broadcast, dtypes are promoted.

    The product of booleans is `and`, as in NumPy.  Raises ShapeError when the shapes do not
    broadcast.

    >>> import nuvec as nv
    >>> nv.multiply(nv.array([1.0, 2.0]), 3)
    array([3., 6.], dtype=float32)
    """,
)

divide_p = Primitive(
    "divide", np.divide, elementwise_rule("divide"), "elementwise",
    # d(x/y)/dx = 1/y; d(x/y)/dy = -(x/y)/y
    derivatives=(lambda out, x, y: reciprocal(y), lambda out, x, y: negative(divide(out, y))),
    linear="each", linear_operands=(0,), out=True,
)  # fmt: skip
divide: Binary = binary(
    divide_p,
    to_inexact,
    """`x / y`, elementwise; of integers in float32.

    Division by zero gives infinity or NaN.  Raises ShapeError when the shapes do not broadcast.

    >>> import nuvec as nv
    >>> nv.divide(nv.array([1, 2]), 4)
    array([0.25, 0.5 ], dtype=float32)
    """,
)

reciprocal_p = Primitive(
    "reciprocal", np.reciprocal, elementwise_rule("reciprocal"), "elementwise",
    # d(1/x) = -1/x^2
    derivatives=(lambda out, x: negative(multiply(out, out)),), out=True,
)  # fmt: skip
reciprocal: Unary = unary(
    reciprocal_p,
    to_inexact,
    """`1 / x`, elementwise; of integers in float32.

    >>> import nuvec as nv
    >>> nv.reciprocal(nv.array([2.0, -4.0]))
    array([ 0.5 , -0.25], dtype=float32)
    """,
)

floor_divide_p = Primitive(
    "floor_divide", np.floor_divide, elementwise_rule("floor_divide"), "elementwise",
    derivatives=(ZERO, ZERO), out=True,
)  # fmt: skip
floor_divide = binary(
    floor_divide_p,
    _real_numeric,
    """`x // y`: the quotient rounded down.

    Integers stay integers, and division of one by 0 gives 0, as in NumPy.  The derivative is
    zero.  Raises DtypeError for booleans and complex numbers.

    >>> import nuvec as nv
    >>> nv.floor_divide(nv.array([7, -7]), 2)
    array([ 3, -4], dtype=int32)
    """,
)

remainder_p = Primitive(
    "remainder", np.remainder, elementwise_rule("remainder"), "elementwise",
    # x % y = x - y * floor(x / y), and floor is constant between its steps
    derivatives=(ONE, lambda out, x, y: negative(floor_divide(x, y))), out=True,
)  # fmt: skip
remainder = mod = binary(
    remainder_p,
    _real_numeric,
    """`x % y`, with the sign of `y`.

    The remainder of an integer by 0 is 0, as in NumPy.  Raises DtypeError for booleans and
    complex numbers.

    >>> import nuvec as nv
    >>> nv.remainder(nv.array([7, -7]), 3)
    array([1, 2], dtype=int32)
    """,
)


# Roots

sqrt_p = Primitive(
    "sqrt", np.sqrt, elementwise_rule("sqrt"), "elementwise",
    # d sqrt(x) = 1 / (2 sqrt(x)), infinite at 0
    derivatives=(lambda out, x: divide(0.5, out),), out=True,
)  # fmt: skip
sqrt = unary(
    sqrt_p,
    to_inexact,
    """The square root, elementwise: NaN for negative numbers.

    The derivative at 0 is infinite.

    >>> import nuvec as nv
    >>> nv.sqrt(nv.array([4.0, 9.0]))
    array([2., 3.], dtype=float32)
    """,
)

rsqrt_p = Primitive(
    "rsqrt", lambda x, out=None: np.reciprocal(np.sqrt(x, out=out), out=out),
    elementwise_rule("rsqrt"), "elementwise",
    # d x^(-1/2) = -1/2 x^(-3/2) = -1/2 x^(-1/2) / x
    derivatives=(lambda out, x: divide(multiply(out, -0.5), x),), out=True,
)  # fmt: skip
rsqrt = unary(
    rsqrt_p,
    to_inexact,
    """`1 / sqrt(x)`, elementwise.

    >>> import nuvec as nv
    >>> nv.rsqrt(nv.array([4.0, 16.0]))
    array([0.5 , 0.25], dtype=float32)
    """,
)

cbrt_p = Primitive(
    "cbrt", np.cbrt, elementwise_rule("cbrt"), "elementwise",
    # d x^(1/3) = 1 / (3 x^(2/3))
    derivatives=(lambda out, x: reciprocal(multiply(multiply(out, out), 3)),), out=True,
)  # fmt: skip
cbrt = unary(
    cbrt_p,
    real_inexact,
    """The cube root, elementwise.

    Negative numbers have a negative root.  Raises DtypeError for complex numbers.

    >>> import nuvec as nv
    >>> nv.round(nv.cbrt(nv.array([8.0, -27.0])), 3)
    array([ 2., -3.], dtype=float32)
    """,
)


# masked_product(c, d) is c * d, and 0 where c is 0 whatever d is: the product with which a
# derivative meets a cotangent that may hold structural zeros.  In each
# factor it is linear, so its derivative there is itself with the other factor.


def _masked_product_lower(c: Any, d: Any, out: Any = None) -> Any:
    zero = np.equal(c, 0)  # first, for `out` may be c
    out = np.asarray(np.multiply(c, d, out=out))
    np.copyto(out, out.dtype.type(0), where=zero)
    return out


def _masked_product_jvp(tangents: Sequence[Array | None], out: Array, c: Array, d: Array) -> Array:
    terms = []
    if tangents[0] is not None:
        terms.append(masked_product(tangents[0], d))
    if tangents[1] is not None:
        terms.append(masked_product(c, tangents[1]))
    return terms[0] if len(terms) == 1 else add(*terms)


def _masked_product_vjp(i: int, g: Array, out: Array, c: Array, d: Array) -> Array:
    if i == 0:
        return unbroadcast(masked_product(g, d), c.shape)
    return unbroadcast(masked_product(c, g), d.shape)


masked_product_p = Primitive(
    "masked_product", _masked_product_lower, elementwise_rule("masked_product"), "elementwise",
    jvp=_masked_product_jvp, vjp=_masked_product_vjp, linear="each", out=True, selects=True,
)  # fmt: skip
masked_product = binary(
    masked_product_p,
    doc="""`c * d`, and 0 where `c` is 0 whatever `d` is.

    >>> import nuvec as nv
    >>> from nuvec.core.ops.arithmetic import masked_product
    >>> masked_product(nv.array([0.0, 2.0]), float("inf"))
    array([ 0., inf], dtype=float32)
    """,
)
