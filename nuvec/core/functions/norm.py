"""Norms of vectors and matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from nuvec.core import dtypes
from nuvec.core.array import Array, operand
from nuvec.core.errors import AxisError
from nuvec.core.functions.statistics import root
from nuvec.core.ops.build import as_operand, convert_dtype, normalize_axes, normalize_axis
from nuvec.core.ops.comparison import greater, not_equal
from nuvec.core.ops.conversion import conj, real
from nuvec.core.ops.power import power, square
from nuvec.core.ops.reduction import max, min
from nuvec.core.ops.selection import where
from nuvec.core.ops.shape import sum
from nuvec.core.ops.signs import abs
from nuvec.core.traceback import filtered


@filtered
def norm(
    x: Any, ord: Any = None, axis: int | Sequence[int] | None = None, keepdims: bool = False
) -> Array:
    """The norm of vectors (an axis) or matrices (two axes), as `numpy.linalg.norm`.

    ord None is the square root of the sum of squares over `axis` (all axes by default); its
    gradient is 0 where it is 0.  Of vectors `ord` may be any number, inf or -inf; of matrices
    "fro", 1, -1, inf or -inf.  Integers are computed in float32, float16 and bfloat16 through
    float32.  Nothing is scaled: squares beyond the range of the dtype (of numbers from about 1e19
    in float32) are infinite, and those below it 0; divide by nv.max(nv.abs(x)) where that
    matters.  Raises AxisError when `axis` names neither one axis nor two, ValueError for another
    `ord`.

    >>> import nuvec as nv
    >>> nv.linalg.norm(nv.array([3.0, 4.0]))
    array(5., dtype=float32)
    """
    x = operand(x, "norm's operand")
    dtype = dtypes.inexact(x.dtype)
    x = as_operand(x, dtypes.accumulation(dtype), x.aval.weak)
    if axis is None and ord is not None and x.ndim not in (1, 2):
        raise AxisError(
            f"norm: ord={ord!r} is for vectors and matrices; say with axis= which axes of an array "
            f"of shape {x.shape} they are"
        )
    axes = normalize_axes(axis, x.ndim, "norm")
    if ord is None or (ord == 2 and len(axes) == 1) or (ord == "fro" and len(axes) == 2):
        out = root(sum(_squares(x), axes, keepdims=keepdims))
    elif len(axes) == 1:
        out = _vector_norm(x, ord, axes[0], keepdims)
    elif len(axes) == 2:
        pair = (0, 1) if axis is None else tuple(axis)  # type: ignore[arg-type]
        out = _matrix_norm(x, ord, pair, keepdims)
    else:
        raise AxisError(f"norm: axis is one axis or a pair of them, got {axis!r}")
    dtype = dtypes.real_part(dtype)
    return out if out.dtype == dtype else convert_dtype.bind(out, dtype=dtype)


def _squares(x: Array) -> Array:
    return real(x * conj(x)) if dtypes.is_complex(x.dtype) else square(x)


def _vector_norm(x: Array, ord: Any, axis: int, keepdims: bool) -> Array:
    if not isinstance(ord, int | float):
        raise ValueError(f"norm: of vectors ord is None or a number, got {ord!r}")
    size = abs(x)
    if ord == math.inf:
        return max(size, axis, keepdims=keepdims)
    if ord == -math.inf:
        return min(size, axis, keepdims=keepdims)
    if ord == 0:
        counted = sum(not_equal(x, 0), axis, keepdims=keepdims)
        return convert_dtype.bind(counted, dtype=size.dtype)
    if ord == 1:
        return sum(size, axis, keepdims=keepdims)
    total = sum(power(size, float(ord)), axis, keepdims=keepdims)
    # As in `root`: derivative 0 at 0, and NaN passes through.
    positive = greater(total, 0)
    out = power(where(positive, total, 1), 1 / float(ord))
    return where(positive, out, where(not_equal(total, total), total, 0))


def _matrix_norm(x: Array, ord: Any, axes: tuple[int, ...], keepdims: bool) -> Array:
    rows, columns = (normalize_axis(a, x.ndim, "norm") for a in axes)
    if ord not in (1, -1, math.inf, -math.inf):
        raise ValueError(
            f"norm: of matrices ord is None, 'fro', 1, -1, inf or -inf, got {ord!r}; norms of "
            "singular values are sums and maxima of nv.linalg.svd's"
        )
    summed, other = (rows, columns) if ord in (1, -1) else (columns, rows)
    sums = sum(abs(x), summed, keepdims=True)
    out = (max if ord > 0 else min)(sums, other, keepdims=True)
    if keepdims:
        return out
    return sum(out, (rows, columns))  # of one element each: drops the two axes


__all__ = ["norm"]
