"""Products over axes, made of dot_general: inner, outer, tensordot, vdot, vecdot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nuvec.core.array import Array
from nuvec.core.errors import AxisError, ShapeError
from nuvec.core.ops.arithmetic import multiply
from nuvec.core.ops.build import normalize_axis, promote_operands
from nuvec.core.ops.contraction import NO_BATCH, Axes, dot_general, dot_general_p, matmul
from nuvec.core.ops.conversion import conj
from nuvec.core.ops.shape import move_axis, reshape_p
from nuvec.core.traceback import filtered


@filtered
def inner(x: Any, y: Any) -> Array:
    """Sums of products over the last axes of `x` and `y`, as `np.inner`; of scalars, x * y.

    >>> import nuvec as nv
    >>> nv.inner(nv.ones((2, 3)), nv.ones((4, 3))).shape
    (2, 4)
    """
    x, y = promote_operands("inner", (x, y))
    if not x.ndim or not y.ndim:
        return multiply(x, y)
    if x.shape[-1] != y.shape[-1]:
        raise ShapeError(
            f"inner: the last axes of shapes {x.shape} and {y.shape} have sizes {x.shape[-1]} and "
            f"{y.shape[-1]}; they must be equal. For a matrix product use x @ y"
        )
    return dot_general_p.bind(x, y, contract=((x.ndim - 1,), (y.ndim - 1,)), batch=NO_BATCH)


@filtered
def outer(x: Any, y: Any) -> Array:
    """All products of an element of `x` with one of `y`, both flattened: shape (M, N).

    >>> import nuvec as nv
    >>> nv.outer(nv.array([1, 2]), nv.array([3, 4, 5]))
    array([[ 3,  4,  5],
           [ 6,  8, 10]], dtype=int32)
    """
    x, y = promote_operands("outer", (x, y))
    return multiply(reshape_p.bind(x, shape=(x.size, 1)), reshape_p.bind(y, shape=(1, y.size)))


@filtered
def tensordot(x: Any, y: Any, axes: int | Sequence[Any] = 2) -> Array:
    """Sums of products over pairs of axes, as `np.tensordot`.

    `axes` is a number (so many last axes of `x` with the first of `y`) or a pair of axes or of
    sequences of axes.  Raises ShapeError when the sizes differ.

    >>> import nuvec as nv
    >>> nv.tensordot(nv.ones((2, 3, 4)), nv.ones((4, 3, 5)), ([1, 2], [1, 0])).shape
    (2, 5)
    """
    x, y = promote_operands("tensordot", (x, y))
    if isinstance(axes, int | np.integer):
        count = int(axes)
        if not 0 <= count <= min(x.ndim, y.ndim):
            raise AxisError(
                f"tensordot: cannot sum over {count} axes of shapes {x.shape} and {y.shape}"
            )
        xs, ys = tuple(range(x.ndim - count, x.ndim)), tuple(range(count))
    else:
        first, second = axes
        xs, ys = _axes_of(first, x.ndim), _axes_of(second, y.ndim)
    sizes = [x.shape[a] for a in xs], [y.shape[a] for a in ys]
    if sizes[0] != sizes[1]:
        raise ShapeError(
            f"tensordot: axes {xs} of shape {x.shape} have sizes {sizes[0]} and axes {ys} of shape "
            f"{y.shape} sizes {sizes[1]}; they must be the same, pair by pair"
        )
    return dot_general(x, y, (xs, ys))


def _axes_of(axes: Any, ndim: int) -> Axes:
    listed = axes if isinstance(axes, tuple | list) else (axes,)
    return tuple(normalize_axis(a, ndim, "tensordot") for a in listed)


@filtered
def vdot(x: Any, y: Any) -> Array:
    """The sum of conj(x) * y over all elements, both flattened.

    >>> import nuvec as nv
    >>> nv.vdot(nv.array([1, 2]), nv.array([3, 4]))
    array(11, dtype=int32)
    """
    x, y = promote_operands("vdot", (x, y))
    if x.size != y.size:
        raise ShapeError(
            f"vdot: shapes {x.shape} and {y.shape} have {x.size} and {y.size} elements; they must "
            "have as many"
        )
    x, y = (reshape_p.bind(a, shape=(a.size,)) for a in (x, y))
    return dot_general_p.bind(conj(x), y, contract=((0,), (0,)), batch=NO_BATCH)


@filtered
def vecdot(x: Any, y: Any, axis: int = -1) -> Array:
    """The sum of conj(x) * y over `axis` (counted from the end); the other axes broadcast.

    >>> import nuvec as nv
    >>> nv.vecdot(nv.ones((2, 3)), nv.ones(3))
    array([3., 3.], dtype=float32)
    """
    x, y = promote_operands("vecdot", (x, y))
    rank = min(x.ndim, y.ndim)
    if not rank or (not -rank <= axis < 0 and not (x.ndim == y.ndim and 0 <= axis < rank)):
        raise AxisError(
            f"vecdot: axis {axis} is not one that shapes {x.shape} and {y.shape} both have, "
            "counted from the end"
        )
    x, y = (move_axis(a, normalize_axis(axis, a.ndim, "vecdot"), a.ndim - 1) for a in (x, y))
    if x.shape[-1] != y.shape[-1]:
        raise ShapeError(
            f"vecdot: the axes to sum over have sizes {x.shape[-1]} and {y.shape[-1]}; they must "
            "be equal"
        )
    row = reshape_p.bind(conj(x), shape=(*x.shape[:-1], 1, x.shape[-1]))
    column = reshape_p.bind(y, shape=(*y.shape, 1))
    out = matmul(row, column)
    return reshape_p.bind(out, shape=out.shape[:-2])
