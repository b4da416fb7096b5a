"""Softmax and its kin: exponentials that neither overflow nor vanish."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, operand
from nuvec.core.errors import DtypeError, ShapeError
from nuvec.core.functions.filled import full
from nuvec.core.ops.build import (
    as_operand,
    convert_dtype,
    integer,
    normalize_axes,
    promote_operands,
)
from nuvec.core.ops.comparison import equal, isfinite
from nuvec.core.ops.differentiation import stop_gradient
from nuvec.core.ops.exponential import exp, log
from nuvec.core.ops.reduction import max
from nuvec.core.ops.selection import where
from nuvec.core.ops.shape import reduced_shape, reshape_p, restore_axes, sum
from nuvec.core.traceback import filtered

Axis = int | Sequence[int] | None


def _working(x: Any, name: str) -> tuple[Array, np.dtype]:
    """The operand in the dtype to compute in, and the dtype of the result: integers give float32;
    float16 and bfloat16 work in float32."""
    x = operand(x, f"{name}'s operand")
    if dtypes.is_complex(x.dtype):
        raise DtypeError(f"{name}: complex numbers have no largest one to scale by, got {x.aval}")
    dtype = dtypes.inexact(x.dtype)
    return as_operand(x, dtypes.accumulation(dtype), x.aval.weak), dtype


def _finished(x: Array, dtype: np.dtype) -> Array:
    return x if x.dtype == dtype else convert_dtype.bind(x, dtype=dtype)


@filtered
def softmax(x: Any, axis: Axis = -1) -> Array:
    """exp(x) / sum(exp(x)) over `axis`, scaled so that nothing overflows.

    float16 and bfloat16 are computed in float32.  Where all of `axis` is -inf it is NaN.

    >>> import nuvec as nv
    >>> nv.softmax(nv.array([0.0, 0.0]))
    array([0.5, 0.5], dtype=float32)
    """
    x, dtype = _working(x, "softmax")
    if not x.size:
        return _finished(x, dtype)
    # Softmax does not change when a constant is subtracted, so the largest one may be taken for it.
    axis = normalize_axes(axis, x.ndim, "softmax")
    scaled = exp(x - stop_gradient(max(x, axis, keepdims=True)))
    return _finished(scaled / sum(scaled, axis, keepdims=True), dtype)


@filtered
def log_softmax(x: Any, axis: Axis = -1) -> Array:
    """x - logsumexp(x): the logarithm of `softmax`, accurate where that vanishes.

    >>> import nuvec as nv
    >>> nv.log_softmax(nv.array([0.0, 1000.0]))
    array([-1000.,     0.], dtype=float32)
    """
    x, dtype = _working(x, "log_softmax")
    if not x.size:
        return _finished(x, dtype)
    axis = normalize_axes(axis, x.ndim, "log_softmax")
    shifted = x - stop_gradient(max(x, axis, keepdims=True))
    return _finished(shifted - log(sum(exp(shifted), axis, keepdims=True)), dtype)


@filtered
def logsumexp(x: Any, axis: Axis = None, *, b: Any = None, keepdims: bool = False) -> Array:
    """log(sum(b exp(x))) over `axis` (all axes by default), without overflow; b is 1 by default.

    Where `axis` is empty or all of it is -inf, the result is -inf.  The gradient is the softmax:
    NaN where all is -inf and at +inf.

    >>> import nuvec as nv
    >>> nv.logsumexp(nv.array([1000.0, 1000.0]))
    array(1000.6932, dtype=float32)
    """
    if b is None:
        x, dtype = _working(x, "logsumexp")
    else:
        x, b = promote_operands("logsumexp", (x, b), dtypes.inexact)
        x, dtype = _working(x, "logsumexp")
        b = as_operand(b, x.dtype)
        # Weights of 0 keep an infinite x from mattering; the largest x is sought without them.
        x = where(equal(b, 0), -math.inf, x)
    axes = normalize_axes(axis, x.ndim, "logsumexp")
    if not x.size:
        empty = full(reduced_shape(x.shape, axes), -math.inf, x.dtype)
        return _finished(restore_axes(empty, x.shape, axes) if keepdims else empty, dtype)
    largest = stop_gradient(max(x, axes, keepdims=True))
    largest = where(isfinite(largest), largest, 0)
    terms = exp(x - largest)
    if b is not None:
        terms = b * terms
    out = log(sum(terms, axes, keepdims=True)) + largest
    if not keepdims:
        out = reshape_p.bind(out, shape=reduced_shape(x.shape, axes))
    return _finished(out, dtype)


@filtered
def one_hot(x: Any, num_classes: int, dtype: Any = dtypes.float32, axis: int = -1) -> Array:
    """Integers as unit vectors of size `num_classes` along a new axis: [..., num_classes].

    An integer outside [0, num_classes) gives zeros.

    >>> import nuvec as nv
    >>> nv.one_hot(nv.array([1, 0]), 2)
    array([[0., 1.],
           [1., 0.]], dtype=float32)
    """
    x = operand(x, "one_hot's operand")
    if not dtypes.is_integer(x.dtype):
        raise DtypeError(f"one_hot: the classes are integers, got {x.aval}")
    num_classes = integer(num_classes, "one_hot's num_classes")
    if num_classes < 0:
        raise ShapeError(f"one_hot: num_classes is {num_classes}; it counts the classes")
    (place,) = normalize_axes(axis, x.ndim + 1, "one_hot")
    # In int64 every class is its own number; uint64 beyond it only loses what matches no class.
    wide = x.dtype if x.dtype == dtypes.uint64 else dtypes.int64
    classes = operand(np.arange(num_classes).astype(wide))
    classes = reshape_p.bind(classes, shape=(num_classes, *(1,) * (x.ndim - place)))
    x = reshape_p.bind(as_operand(x, wide), shape=(*x.shape[:place], 1, *x.shape[place:]))
    return convert_dtype.bind(equal(x, classes), dtype=dtypes.as_dtype(dtype))


__all__ = ["log_softmax", "logsumexp", "one_hot", "softmax"]
