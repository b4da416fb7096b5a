"""Means, variances and counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, operand
from nuvec.core.errors import DtypeError, ShapeError
from nuvec.core.ops.arithmetic import multiply, sqrt
from nuvec.core.ops.build import (
    as_operand,
    broadcast_shapes,
    checked_cast,
    convert_dtype,
    normalize_axes,
)
from nuvec.core.ops.comparison import greater, not_equal
from nuvec.core.ops.conversion import conj, real
from nuvec.core.ops.power import square
from nuvec.core.ops.selection import where
from nuvec.core.ops.shape import broadcast_to_p, reshape_p, sum
from nuvec.core.traceback import filtered

Axis = int | Sequence[int] | None


def _count(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    return math.prod(shape[a] for a in axes)


def _working(x: Any, name: str, dtype: Any) -> tuple[Array, np.dtype]:
    """The operand in the dtype to compute in (float16 and bfloat16 work in float32), and the
    dtype of the result."""
    x = operand(x, f"{name}'s operand")
    if dtype is None:
        result = dtypes.inexact(x.dtype)
        return as_operand(x, dtypes.accumulation(result), x.aval.weak), result
    result = dtypes.as_dtype(dtype)
    if not dtypes.is_inexact(result):
        raise DtypeError(
            f"{name}: dtype={dtypes.name(result)} holds no fractions; leave it out, and convert "
            f"the result with .astype(nv.{dtypes.name(result)}) if that is what you want"
        )
    return checked_cast(name, x, dtypes.accumulation(result)), result


def _finished(x: Array, dtype: np.dtype) -> Array:
    return x if x.dtype == dtype else convert_dtype.bind(x, dtype=dtype)


@filtered
def mean(x: Any, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False) -> Array:
    """The mean over `axis` (all axes by default).

    Integers and booleans in float32; float16 and bfloat16 accumulate in float32.  The mean of
    nothing is NaN.

    >>> import nuvec as nv
    >>> nv.mean(nv.array([[1, 2], [3, 5]]), axis=1)
    array([1.5, 4. ], dtype=float32)
    """
    x, dtype = _working(x, "mean", dtype)
    return _finished(_mean(x, axis, keepdims, "mean"), dtype)


def _mean(x: Array, axis: Axis, keepdims: bool, name: str) -> Array:
    count = _count(x.shape, normalize_axes(axis, x.ndim, name))
    return sum(x, axis, keepdims=keepdims) / float(count)


@filtered
def var(
    x: Any, axis: Axis = None, *, dtype: Any = None, ddof: float = 0, keepdims: bool = False,
    correction: float | None = None,
) -> Array:  # fmt: skip
    """The variance over `axis` (all axes by default): the mean of |x - mean(x)|^2.

    The divisor is the count less `ddof` (also called `correction`).  Of complex numbers it is
    real.  Dtypes as for `mean`.

    >>> import nuvec as nv
    >>> nv.var(nv.array([1.0, 2.0, 3.0]), ddof=1)
    array(1., dtype=float32)
    """
    x, dtype = _working(x, "var", dtype)
    ddof = _correction(ddof, correction, "var")
    return _finished(_variance(x, axis, ddof, keepdims, "var"), dtypes.real_part(dtype))


def _correction(ddof: float, correction: float | None, name: str) -> float:
    if correction is None:
        return ddof
    if ddof:
        raise TypeError(f"{name}: ddof and correction are two names of one number; pass one")
    return correction


def _variance(x: Array, axis: Axis, ddof: float, keepdims: bool, name: str) -> Array:
    centered = x - _mean(x, axis, True, name)
    squares = real(centered * conj(centered)) if dtypes.is_complex(x.dtype) else square(centered)
    count = _count(x.shape, normalize_axes(axis, x.ndim, name))
    return sum(squares, axis, keepdims=keepdims) / max(float(count - ddof), 0.0)


@filtered
def std(
    x: Any, axis: Axis = None, *, dtype: Any = None, ddof: float = 0, keepdims: bool = False,
    correction: float | None = None,
) -> Array:  # fmt: skip
    """The standard deviation over `axis`: the square root of `var`; its gradient is 0 where it
    is 0.

    >>> import nuvec as nv
    >>> nv.std(nv.array([1.0, 3.0]))
    array(1., dtype=float32)
    """
    x, dtype = _working(x, "std", dtype)
    ddof = _correction(ddof, correction, "std")
    variance = _variance(x, axis, ddof, keepdims, "std")
    return _finished(root(variance), dtypes.real_part(dtype))


def root(x: Array) -> Array:
    """The square root of a sum of squares, with derivative 0 where it is 0.

    There sqrt has an infinite derivative and its operand a zero one; selecting on both sides of
    sqrt keeps their product from being NaN.  NaN passes through the second branch."""
    positive = greater(x, 0)
    return where(positive, sqrt(where(positive, x, 1)), where(not_equal(x, x), x, 0))


@filtered
def average(
    x: Any, axis: Axis = None, weights: Any = None, returned: bool = False, *,
    keepdims: bool = False,
) -> Any:  # fmt: skip
    """The mean over `axis`, each element with its weight: sum(w x) / sum(w).

    `weights` has the shape of `x`, or one size per averaged axis.  With `returned` also the sum
    of the weights.  Raises ShapeError when the weights do not fit.
    """
    x, dtype = _working(x, "average", None)
    axes = normalize_axes(axis, x.ndim, "average")
    if weights is None:
        total: Any = broadcast_to_p.bind(
            as_operand(operand(float(_count(x.shape, axes))), x.dtype),
            shape=sum(x, axes, keepdims=keepdims).shape,
        )
        out = mean(x, axis, keepdims=keepdims)
    else:
        w = operand(weights, "average's weights")
        if w.shape != x.shape:
            if axis is None or w.shape != tuple(x.shape[a] for a in axes):
                raise ShapeError(
                    f"average: weights of shape {w.shape} fit neither x, of shape {x.shape}, nor "
                    f"its averaged axes {axes}"
                )
            w = reshape_p.bind(w, shape=tuple(n if a in axes else 1 for a, n in enumerate(x.shape)))
        w = broadcast_to_p.bind(w, shape=broadcast_shapes("average", w.shape, x.shape))
        total = sum(as_operand(w, x.dtype), axes, keepdims=keepdims)
        out = sum(multiply(x, w), axes, keepdims=keepdims) / total
    out = _finished(out, dtype)
    return (out, _finished(total, dtype)) if returned else out


@filtered
def count_nonzero(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """How many elements over `axis` are not zero: int32.

    >>> import nuvec as nv
    >>> nv.count_nonzero(nv.array([0, 3, 4]))
    array(2, dtype=int32)
    """
    x = operand(x, "count_nonzero's operand")
    return sum(not_equal(x, 0), normalize_axes(axis, x.ndim, "count_nonzero"), keepdims=keepdims)


__all__ = ["average", "count_nonzero", "mean", "root", "std", "var"]
