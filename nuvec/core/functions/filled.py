"""The usual constants: zeros, ones, and other numbers everywhere."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, operand
from nuvec.core.errors import DtypeError, ShapeError
from nuvec.core.functions.creation import asarray, on_cpu
from nuvec.core.ir import aval
from nuvec.core.node import constant
from nuvec.core.ops.build import sizes_of
from nuvec.core.ops.shape import broadcast_to_p
from nuvec.core.traceback import filtered

_LARGE = 4096  # elements from which zeros, ones and full keep one element and strides of 0


def as_shape(shape: Any, name: str) -> tuple[int, ...]:
    """A shape from an integer or a sequence of integers; ShapeError for a negative size."""
    sizes = sizes_of(shape, name)
    if any(n < 0 for n in sizes):
        raise ShapeError(f"{name}: shape {sizes} has a negative size")
    return sizes


def _fill(shape: tuple[int, ...], value: np.ndarray) -> Array:
    """A constant with `value` everywhere.  A large one keeps a single element: nothing writes to
    the value of an array, so strides of 0 cost neither memory nor time."""
    if math.prod(shape) < _LARGE:
        whole = np.full(shape, value, value.dtype)
    else:
        whole = np.broadcast_to(value, shape)
    return Array(constant(whole, aval(shape, value.dtype)))


@filtered
def zeros(shape: Any, dtype: Any = None, *, device: Any = None) -> Array:
    """An array of zeros; float32 by default.

    >>> import nuvec as nv
    >>> nv.zeros((2, 2), nv.int32)
    array([[0, 0],
           [0, 0]], dtype=int32)
    """
    on_cpu(device, "zeros")
    dtype = dtypes.default_float if dtype is None else dtypes.as_dtype(dtype)
    return _fill(as_shape(shape, "zeros"), np.zeros((), dtype))


@filtered
def ones(shape: Any, dtype: Any = None, *, device: Any = None) -> Array:
    """An array of ones; float32 by default.

    >>> import nuvec as nv
    >>> nv.ones(2)
    array([1., 1.], dtype=float32)
    """
    on_cpu(device, "ones")
    dtype = dtypes.default_float if dtype is None else dtypes.as_dtype(dtype)
    return _fill(as_shape(shape, "ones"), np.ones((), dtype))


def empty(shape: Any, dtype: Any = None, *, device: Any = None) -> Array:
    """An array to be filled later; it holds zeros, for values here are never undefined."""
    return zeros(shape, dtype, device=device)


@filtered
def full(shape: Any, fill_value: Any, dtype: Any = None, *, device: Any = None) -> Array:
    """An array with `fill_value` everywhere; an Array (broadcast to `shape`) keeps its derivative.

    The dtype is the fill value's by default (int32 for an int, float32 for a float).

    >>> import nuvec as nv
    >>> nv.full(3, 7)
    array([7, 7, 7], dtype=int32)
    """
    on_cpu(device, "full")
    sizes = as_shape(shape, "full")
    value = _fill_value(fill_value, dtype, "full")
    if value.shape == () and value._node.primitive is None:
        return _fill(sizes, np.asarray(value._node.value))
    return broadcast_to_p.bind(value, shape=sizes)


def _fill_value(value: Any, dtype: Any, name: str) -> Array:
    try:
        return asarray(value, dtype)
    except DtypeError as error:
        raise DtypeError(str(error).replace("nv.array", name, 1)) from None


def _like(
    x: Any, dtype: Any, shape: Any, device: Any, name: str
) -> tuple[tuple[int, ...], np.dtype]:
    on_cpu(device, name)
    x = operand(x, f"{name}'s operand")
    return (
        x.shape if shape is None else as_shape(shape, name),
        x.dtype if dtype is None else dtypes.as_dtype(dtype),
    )


@filtered
def zeros_like(x: Any, dtype: Any = None, *, shape: Any = None, device: Any = None) -> Array:
    """Zeros of the shape and dtype of `x`."""
    sizes, dtype = _like(x, dtype, shape, device, "zeros_like")
    return _fill(sizes, np.zeros((), dtype))


@filtered
def ones_like(x: Any, dtype: Any = None, *, shape: Any = None, device: Any = None) -> Array:
    """Ones of the shape and dtype of `x`."""
    sizes, dtype = _like(x, dtype, shape, device, "ones_like")
    return _fill(sizes, np.ones((), dtype))


@filtered
def empty_like(x: Any, dtype: Any = None, *, shape: Any = None, device: Any = None) -> Array:
    """Zeros of the shape and dtype of `x`: values here are never undefined."""
    return zeros_like(x, dtype, shape=shape, device=device)


@filtered
def full_like(
    x: Any, fill_value: Any, dtype: Any = None, *, shape: Any = None, device: Any = None
) -> Array:
    """`fill_value` everywhere, in the shape and dtype of `x`."""
    sizes, dtype = _like(x, dtype, shape, device, "full_like")
    return full(sizes, _fill_value(fill_value, dtype, "full_like"), dtype)


__all__ = [
    "as_shape",
    "empty",
    "empty_like",
    "full",
    "full_like",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]
