"""Choosing between values: where, maximum, minimum, clip.

Their rules choose too, instead of multiplying by a mask of ones and zeros: the operand that was
not chosen gets an exact zero even where the cotangent is infinite or NaN.  `selects=True` tells
the walk that such zeros are structural, and must survive an infinite derivative further back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, operand
from nuvec.core.errors import DtypeError
from nuvec.core.ir import Aval, Eqn, Literal, aval
from nuvec.core.ops.arithmetic import add, multiply
from nuvec.core.ops.build import (
    binary,
    broadcast_shapes,
    elementwise_rule,
    ordered,
    promote_operands,
)
from nuvec.core.ops.choosing import choose, is_zero, working_elements
from nuvec.core.ops.comparison import as_condition, equal, greater, less
from nuvec.core.ops.shape import unbroadcast
from nuvec.core.primitive import Primitive
from nuvec.core.traceback import filtered

# where: linear in x and y together


def _where_rule(condition: Aval, x: Aval, y: Aval) -> Aval:
    if not dtypes.is_bool(condition.dtype) or x.dtype != y.dtype:
        raise DtypeError(
            f"where: the primitive takes bool and two of one dtype, got {(condition, x, y)}"
        )
    shape = broadcast_shapes("where", condition.shape, x.shape, y.shape)
    return aval(shape, x.dtype, x.weak and y.weak)


def _where_transpose(i: int, c: Array, out: Array, condition: Array, x: Array, y: Array) -> Array:
    if i == 1:
        return unbroadcast(where(condition, c, 0), x.shape)
    return unbroadcast(where(condition, 0, c), y.shape)


def _where_memory(eqn: Eqn) -> tuple[int, int]:
    out = eqn.outputs[0].aval
    masked = any(isinstance(a, Literal) and is_zero(a.value) for a in eqn.inputs[1:])
    return out.nbytes, working_elements(out.size, masked) * out.dtype.itemsize


where_p = Primitive(
    "where", choose, _where_rule, "elementwise", transpose=_where_transpose, linear="joint",
    linear_operands=(1, 2), selects=True, out=True, memory=_where_memory,
)  # fmt: skip


@filtered
def where(condition: Any, x: Any, y: Any) -> Array:
    """`x` where `condition` is true, else `y`.  All three broadcast; `x` and `y` are promoted.

    The gradient of the operand not chosen is exactly zero, whatever it computed there.
    `condition` is bool, or any dtype whose nonzero elements count as true.  Raises ShapeError
    when the shapes do not broadcast.

    >>> import nuvec as nv
    >>> nv.where(nv.array([True, False]), 1.0, nv.array([5.0, 6.0]))
    array([1., 6.], dtype=float32)
    """
    if not (type(x) is Array and type(y) is Array and x.dtype == y.dtype):
        x, y = promote_operands("where", (x, y))
    return where_p.bind(as_condition("where", condition), x, y)


# maximum, minimum: the chosen operand takes all, equal ones a half each


def _choice(name: str, lower: Any, beats: Callable[[Array, Array], Array]) -> Primitive:
    """The primitive that keeps, of two values, the one that `beats` the other."""

    def share(c: Array, mine: Array, other: Array) -> Array:
        return where(beats(mine, other), c, where(equal(mine, other), multiply(c, 0.5), 0))

    def jvp(tangents: Sequence[Array | None], out: Array, x: Array, y: Array) -> Array:
        terms = []
        if tangents[0] is not None:
            terms.append(share(tangents[0], x, y))
        if tangents[1] is not None:
            terms.append(share(tangents[1], y, x))
        return terms[0] if len(terms) == 1 else add(*terms)

    def vjp(i: int, c: Array, out: Array, x: Array, y: Array) -> Array:
        if i == 0:
            return unbroadcast(share(c, x, y), x.shape)
        return unbroadcast(share(c, y, x), y.shape)

    return Primitive(name, lower, elementwise_rule(name), "elementwise", jvp=jvp, vjp=vjp,
                     out=True, selects=True)  # fmt: skip


maximum_p = _choice("maximum", np.maximum, greater)
maximum = binary(
    maximum_p,
    ordered,
    """The larger of `x` and `y` at each element; NaN wins.

    Where they are equal, each gets half of the gradient.  Raises DtypeError for complex numbers.

    >>> import nuvec as nv
    >>> nv.maximum(nv.array([1.0, 5.0]), 3.0)
    array([3., 5.], dtype=float32)
    """,
)

minimum_p = _choice("minimum", np.minimum, less)
minimum = binary(
    minimum_p,
    ordered,
    """The smaller of `x` and `y` at each element; NaN wins.

    Where they are equal, each gets half of the gradient.  Raises DtypeError for complex numbers.

    >>> import nuvec as nv
    >>> nv.minimum(nv.array([1.0, 5.0]), 3.0)
    array([1., 3.], dtype=float32)
    """,
)


@filtered
def clip(x: Any, min: Any = None, max: Any = None) -> Array:
    """`x` with values below `min` raised to it, and those above `max` lowered to it.

    The bounds broadcast with `x`; None means no bound.  Where `min > max`, the result is `max`.
    At a bound the gradient is shared equally between `x` and the bound.  Raises DtypeError for
    complex numbers.

    >>> import nuvec as nv
    >>> nv.clip(nv.array([-2.0, 0.5, 2.0]), 0, 1)
    array([0. , 0.5, 1. ], dtype=float32)
    """
    x = operand(x, "clip's operand")
    if dtypes.is_integer(x.dtype):  # a bound beyond all values of the dtype bounds nothing
        limits = np.iinfo(x.dtype)
        min = None if type(min) is int and min < limits.min else min
        max = None if type(max) is int and max > limits.max else max
    if min is not None:
        x = maximum(x, min)
    return x if max is None else minimum(x, max)
