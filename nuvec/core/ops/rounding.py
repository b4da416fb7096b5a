"""Rounding to whole numbers, or to decimals.  Constant between its steps: derivative zero.

Integers and booleans are whole already and come back as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, operand
from nuvec.core.ops.build import elementwise_rule, integer, ordered, promote_operands
from nuvec.core.primitive import ZERO, Primitive
from nuvec.core.traceback import filtered


def _rounding(primitive: Primitive, doc: str) -> Callable[[Any], Array]:
    """The public operation of a primitive that rounds floating numbers."""

    @filtered
    def operation(x: Any, /) -> Array:
        (x,) = promote_operands(primitive.name, (x,), ordered)
        return primitive.bind(x) if dtypes.is_floating(x.dtype) else x

    operation.__name__ = operation.__qualname__ = primitive.name
    operation.__doc__ = doc
    return operation


floor_p = Primitive("floor", np.floor, elementwise_rule("floor"), "elementwise",
                    derivatives=(ZERO,), out=True)  # fmt: skip
floor = _rounding(
    floor_p,
    """The largest whole number not above `x`, elementwise, in its dtype.

    The derivative is zero.  Raises DtypeError for complex numbers.

    >>> import nuvec as nv
    >>> nv.floor(nv.array([1.5, -1.5]))
    array([ 1., -2.], dtype=float32)
    """,
)

ceil_p = Primitive("ceil", np.ceil, elementwise_rule("ceil"), "elementwise",
                   derivatives=(ZERO,), out=True)  # fmt: skip
ceil = _rounding(
    ceil_p,
    """The smallest whole number not below `x`, elementwise, in its dtype.

    The derivative is zero.  Raises DtypeError for complex numbers.

    >>> import nuvec as nv
    >>> nv.ceil(nv.array([1.5, -1.5]))
    array([ 2., -1.], dtype=float32)
    """,
)

trunc_p = Primitive("trunc", np.trunc, elementwise_rule("trunc"), "elementwise",
                    derivatives=(ZERO,), out=True)  # fmt: skip
trunc = _rounding(
    trunc_p,
    """`x` without its fraction, elementwise, in its dtype.

    The derivative is zero.  Raises DtypeError for complex numbers.

    >>> import nuvec as nv
    >>> nv.trunc(nv.array([1.5, -1.5]))
    array([ 1., -1.], dtype=float32)
    """,
)


def _round_lower(x: Any, decimals: int) -> Any:
    if decimals == 0:
        return np.rint(x) if dtypes.is_inexact(x.dtype) else x
    if dtypes.is_complex(x.dtype):
        out = np.empty(np.shape(x), x.dtype)
        out.real = _round_lower(x.real, decimals)
        out.imag = _round_lower(x.imag, decimals)
        return out
    wide = dtypes.accumulation(x.dtype)
    values = x if wide is x.dtype else x.astype(wide)
    rounded = np.round(values, decimals)
    if dtypes.is_floating(x.dtype):
        # Where scaling by 10^decimals overflows, x has no such digit, or is less than one step.
        lost = ~np.isnan(values) & ~np.isfinite(rounded)
        if np.any(lost):
            small = np.isfinite(values) & (decimals < 0)
            rounded = np.where(lost, np.where(small, np.zeros((), wide), values), rounded)
    return rounded if wide is x.dtype else np.asarray(rounded).astype(x.dtype)


round_p = Primitive("round", _round_lower, elementwise_rule("round"), "elementwise",
                    derivatives=(ZERO,))  # fmt: skip


@filtered
def round(x: Any, decimals: int = 0) -> Array:
    """`x` rounded to `decimals` digits after the point, elementwise, in its dtype.

    A half goes to the even neighbour.  Negative `decimals` round before the point, integers too;
    complex numbers are rounded in both parts.  The derivative is zero.

    >>> import nuvec as nv
    >>> nv.round(nv.array([0.5, 1.5, 2.5]))
    array([0., 2., 2.], dtype=float32)
    >>> nv.round(nv.array([1234, 1250]), -2)
    array([1200, 1200], dtype=int32)
    """
    x = operand(x, "round's operand")
    decimals = integer(decimals, "round's decimals")
    if dtypes.is_bool(x.dtype) or (dtypes.is_integer(x.dtype) and decimals >= 0):
        return x
    return round_p.bind(x, decimals=decimals)
