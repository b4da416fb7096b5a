"""Powers: of an array exponent, and of a Python int, which is repeated multiplication."""

from __future__ import annotations

from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, literal, operand
from nuvec.core.errors import DtypeError
from nuvec.core.ops.arithmetic import multiply, sqrt, subtract
from nuvec.core.ops.build import binary, elementwise_rule, numeric, promote_operands
from nuvec.core.ops.comparison import equal, logical_and
from nuvec.core.ops.exponential import log
from nuvec.core.ops.selection import where
from nuvec.core.ops.shape import broadcast_to
from nuvec.core.primitive import Primitive
from nuvec.core.traceback import filtered

MULTIPLIED = 8  # up to this exponent the rounding of repeated multiplication stays negligible


class NegativePowerError(DtypeError, ValueError):
    """An integer to a negative power, which is no integer (NumPy raises ValueError)."""


# power


def _power_base(out: Array, x: Array, y: Array) -> Array:
    # d(x^y)/dx = y x^(y-1), and 0 where both are 0
    origin = logical_and(equal(x, 0), equal(y, 0))
    return multiply(y, power_p.bind(x, where(origin, 1, subtract(y, 1))))


def _power_exponent(out: Array, x: Array, y: Array) -> Array:
    # d(x^y)/dy = log(x) x^y, and 0 where x is 0 (its limit for positive y)
    return where(equal(x, 0), 0, multiply(log(x), out))


def _power_lower(x: Any, y: Any, out: Any = None) -> Any:
    try:
        return np.power(x, y, out=out)
    except ValueError:
        raise NegativePowerError(
            f"power: {dtypes.name(x.dtype)} of shape {np.shape(x)} to negative powers: an "
            "integer has none in its dtype; convert the base first, as in x.astype(nv.float32)"
        ) from None


def _power_guard(wanted: Array, x: Array, y: Array) -> tuple[tuple[Array, Array], dict[str, Any]]:
    if not dtypes.is_inexact(y.dtype):
        y = where(wanted, y, literal(0, y.dtype))
    return (x, y), {}


power_p = Primitive("power", _power_lower, elementwise_rule("power"), "elementwise",
                    derivatives=(_power_base, _power_exponent), guard=_power_guard,
                    out=True)  # fmt: skip
_power = binary(power_p, numeric)


@filtered
def power(x: Any, y: Any, /) -> Array:
    """`x ** y`, elementwise; shapes broadcast, dtypes are promoted.

    A Python number as the exponent is fast where it is a whole number (repeated multiplication:
    `x ** 2` is exactly `x * x`) or 0.5 (the square root).  Negative numbers to a fraction give
    NaN.  Where `x` is 0, the derivative by `y` is 0.

    Raises DtypeError for booleans, and NegativePowerError (a DtypeError and a ValueError) for an
    integer to a negative power: now for a Python int, when the result is evaluated for an array
    of exponents.

    >>> import nuvec as nv
    >>> nv.power(nv.array([1.0, 2.0, 3.0]), 2)
    array([1., 4., 9.], dtype=float32)
    """
    if type(y) is int:
        return _static_power(x, y)
    if type(y) is float and (y == 0.5 or (y.is_integer() and -MULTIPLIED <= y <= MULTIPLIED)):
        base, _ = promote_operands("power", (x, y), numeric)
        return sqrt(base) if y == 0.5 else _static_power(base, int(y))
    return _power(x, y)


def _static_power(x: Any, exponent: int) -> Array:
    x = operand(x, "operand 0 of power")
    if exponent < 0 and not dtypes.is_inexact(x.dtype):
        raise NegativePowerError(
            f"power: {x.aval} to the power {exponent}: an integer has no negative powers in its "
            f"dtype; convert it first, as in x.astype(nv.float32) ** {exponent}"
        )
    if dtypes.is_bool(x.dtype):
        (x, _) = promote_operands("power", (x, exponent), numeric)
    return integer_power(x, exponent)


# integer_power: the exponent is static


def _integer_power_lower(x: Any, exponent: int, out: Any = None) -> Any:
    if exponent == 2:
        return np.square(x, out=out)
    if out is None:
        return _product(x, exponent)
    np.copyto(out, _product(x, exponent))
    return out


def _product(x: Any, exponent: int) -> Any:
    size = -exponent if exponent < 0 else exponent
    if size > MULTIPLIED and dtypes.is_inexact(x.dtype):
        return _rounded_once(x, exponent)
    if size > 2 and x.dtype in (dtypes.float16, dtypes.bfloat16):
        return _rounded_once(x, exponent)
    result: Any = None
    square = x  # x^(2^k) in round k
    while True:
        if size & 1:
            result = square if result is None else np.multiply(result, square)
        size >>= 1
        if not size:
            return np.reciprocal(result) if exponent < 0 else result
        square = np.square(square)


def _rounded_once(x: Any, exponent: int) -> Any:
    """The power by NumPy's `power`, in a dtype that holds the exponent."""
    wide = np.float64 if dtypes.real_part(x.dtype).itemsize > 2 else np.float32
    if dtypes.is_complex(x.dtype):
        return np.power(x, np.asarray(exponent, x.dtype))
    return np.power(x, exponent, dtype=wide).astype(x.dtype)


integer_power_p = Primitive(
    "integer_power", _integer_power_lower, elementwise_rule("integer_power"), "elementwise",
    # d(x^n) = n x^(n-1)
    derivatives=(
        lambda out, x, exponent: multiply(integer_power(x, exponent - 1), float(exponent)),
    ),
    out=True,
)  # fmt: skip


def integer_power(x: Array, exponent: int) -> Array:
    """`x ** exponent` in `x`'s dtype; the exponent is part of the program."""
    if exponent == 1:
        return x
    if exponent == 0:
        return broadcast_to(literal(1, x.dtype, x.aval.weak), x.shape)
    return integer_power_p.bind(x, exponent=exponent)


@filtered
def square(x: Any, /) -> Array:
    """`x * x`, elementwise.

    >>> import nuvec as nv
    >>> nv.square(nv.array([1.0, -3.0]))
    array([1., 9.], dtype=float32)
    """
    x = operand(x, "square's operand")
    return multiply(x, x) if dtypes.is_bool(x.dtype) else _static_power(x, 2)
