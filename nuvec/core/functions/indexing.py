"""NumPy indexing: `x[index]`, `x[index] = v` and `take`, made of slices, gather and scatter."""

from __future__ import annotations

from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, from_numpy, operand
from nuvec.core.errors import DtypeError, OutOfBoundsError, ShapeError
from nuvec.core.functions.creation import asarray
from nuvec.core.functions.index import Index, index_message, index_of, read_index
from nuvec.core.ops.arithmetic import remainder
from nuvec.core.ops.build import as_operand, normalize_axis
from nuvec.core.ops.indexing import gather_p, scatter_set_p, update_slice_p
from nuvec.core.ops.selection import clip, where
from nuvec.core.ops.shape import broadcast_to_p, reshape_p, transpose_p
from nuvec.core.ops.structure import Ints, slice_p, slice_shape
from nuvec.core.traceback import filtered

# Reading and writing at an Index


def index_operands(index: Index) -> list[Array]:
    """The index arrays as operands."""
    return [from_numpy(a, copy=False) if isinstance(a, np.ndarray) else a for a in index.arrays]


def view_of(x: Array, index: Index) -> Array:
    """`x` cut and reshaped: what the arrays of the index then index."""
    if not index.whole:
        x = slice_p.bind(x, start=index.start, stop=index.stop, step=index.step)
    return x if x.shape == index.view else reshape_p.bind(x, shape=index.view)


def read(x: Array, index: Index, mode: str = "raise") -> Array:
    """`x[index]`; with mode "drop", zero where an index is out of bounds."""
    x = view_of(x, index)
    if index.axes:
        x = gather_p.bind(x, *index_operands(index), axes=index.axes, mode=mode)
        if index.permutation is not None:
            x = transpose_p.bind(x, permutation=index.permutation)
    return x


def write(x: Array, index: Index, view: Array) -> Array:
    """`x` with what `view_of` cuts from it replaced."""
    if index.whole:
        return view if view.shape == x.shape else reshape_p.bind(view, shape=x.shape)
    bounds = {"start": index.start, "stop": index.stop, "step": index.step}
    shape = slice_shape(**bounds)
    if view.shape != shape:
        view = reshape_p.bind(view, shape=shape)
    return update_slice_p.bind(x, view, **bounds)


def is_unique(index: Index) -> bool:
    """Whether it is known that no two positions of the index are the same."""
    if not all(isinstance(a, np.ndarray) for a in index.arrays):
        return False
    sizes = [index.view[a] for a in index.axes]
    if 0 in sizes:
        return True
    inside = [a % n for a, n in zip(index.arrays, sizes, strict=True)]
    linear = np.ravel_multi_index(np.broadcast_arrays(*inside), sizes)
    return np.unique(linear).size == linear.size


def natural_value(value: Any, x: Array, index: Index, name: str) -> Array:
    """A value to be written to `x[index]`: in x's dtype, in the shape and order of the gather."""
    value = cast_value(value, x, name)
    permutation, target = index.permutation, index.shape
    if permutation is not None:
        target = tuple(target[p] for p in permutation)
    value = broadcast_value(value, target, x, name)
    if permutation is not None:
        inverse = tuple(map(permutation.index, range(len(permutation))))
        value = transpose_p.bind(value, permutation=inverse)
    return value


def broadcast_value(value: Array, target: Ints, x: Array, name: str) -> Array:
    shape = value.shape
    while len(shape) > len(target) and shape[0] == 1:  # NumPy lets go of leading ones here
        shape = shape[1:]
    try:
        fits = shape == target or np.broadcast_shapes(shape, target) == target
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(
            f"{name}: a value of shape {value.shape} does not broadcast to {target}, the shape of "
            f"what the index selects from an array of shape {x.shape}"
        )
    if shape != value.shape:
        value = reshape_p.bind(value, shape=shape)
    return value if shape == target else broadcast_to_p.bind(value, shape=target)


def _rank(dtype: np.dtype) -> int:
    if dtypes.is_bool(dtype):
        return 0
    if dtypes.is_integer(dtype):
        return 2 if dtypes.is_signed(dtype) else 1
    return 4 if dtypes.is_complex(dtype) else 3


def cast_value(value: Any, x: Array, name: str) -> Array:
    """A value in the dtype of the array it is written into.  Widths may change; a kind that holds
    more (float into int, complex into float, signed into unsigned) is refused."""
    value = asarray(value) if isinstance(value, list | tuple) else operand(value, f"{name}'s value")
    weak_int = value.aval.weak and dtypes.is_integer(value.dtype) and dtypes.is_integer(x.dtype)
    if _rank(value.dtype) > _rank(x.dtype) and not weak_int:
        wanted = dtypes.name(value.dtype)
        raise DtypeError(
            f"{name}: {value.aval} cannot be written into {x.aval} without losing what it is. "
            f"Convert the array first, x = x.astype(nv.{wanted}), or the value, "
            f"v.astype(nv.{dtypes.name(x.dtype)})"
        )
    return as_operand(value, x.dtype)


# Public


@filtered
def getitem(x: Any, index: Any) -> Array:
    """`x[index]` with NumPy's rules: integers, slices, `None`, `...`, integer arrays and lists
    (which broadcast together), boolean masks.

    Raises OutOfBoundsError (an IndexError) for an integer out of bounds: now when it is a Python
    or NumPy value, when the result is evaluated when it is an Array.  A boolean mask must have
    its values, for the result's shape depends on them: ConcretizationError inside vmap and
    compile.

    >>> import nuvec as nv
    >>> x = nv.array([[1, 2, 3], [4, 5, 6]])
    >>> x[:, [0, 2]]
    array([[1, 3],
           [4, 6]], dtype=int32)
    """
    if type(x) is not Array:
        x = operand(x, "the indexed array")
    return read(x, index_of(x.shape, index))


def mask_of(x: Array, index: Any) -> Array | None:
    """The mask, where the index is nothing but one that fits the leading axes of `x`."""
    if type(index) is tuple and len(index) == 1:
        index = index[0]
    if not isinstance(index, Array | np.ndarray) or not dtypes.is_bool(index.dtype):
        return None
    if not index.ndim or index.shape != x.shape[: index.ndim]:
        return None
    return operand(index)


def write_mask(x: Array, mask: Array, value: Array) -> Array:
    """`x` with `value` where `mask` (on the leading axes) is true."""
    mask = reshape_p.bind(mask, shape=mask.shape + (1,) * (x.ndim - mask.ndim))
    return where(mask, value, x)


@filtered
def setitem_value(x: Array, index: Any, value: Any) -> Array:
    """The new value of `x` for the statement `x[index] = value`.

    `value` is broadcast to the shape of `x[index]` and converted to x's dtype; of several values
    for one element the last one stays.  A mask with a value that does not depend on its true
    positions needs no values, so it works inside vmap and compile.  Raises as `getitem`,
    ShapeError when `value` does not broadcast, and DtypeError when x's dtype is of a kind that
    cannot hold it (float into int).
    """
    x = operand(x, "the indexed array")
    mask = mask_of(x, index)
    if mask is not None:
        cast = cast_value(value, x, "x[mask] = v")
        if cast.ndim <= x.ndim - mask.ndim:
            cast = broadcast_value(cast, x.shape[mask.ndim :], x, "x[mask] = v")
            return write_mask(x, mask, cast)
    meaning = index_of(x.shape, index)
    value = natural_value(value, x, meaning, "x[i] = v")
    return put(x, meaning, value)


def put(x: Array, index: Index, value: Array, mode: str = "raise") -> Array:
    """`x` with a natural value at an index."""
    if index.axes:
        value = scatter_set_p.bind(
            view_of(x, index), value, *index_operands(index),
            axes=index.axes, mode=mode, unique=is_unique(index),
        )  # fmt: skip
    return write(x, index, value)


@filtered
def take(x: Any, indices: Any, axis: int | None = None, mode: str = "raise") -> Array:
    """The items of `x` along `axis` at `indices`, an integer array of any shape, as `np.take`.

    Without an axis `x` is flattened.  mode "raise" refuses indices out of bounds, "wrap" takes
    them modulo the size, "clip" takes the nearest item (so negative ones are the first).

    >>> import nuvec as nv
    >>> nv.take(nv.array([10, 20, 30]), nv.array([2, 0]))
    array([30, 10], dtype=int32)
    """
    x = operand(x, "take's operand")
    if axis is None:
        x, axis = reshape_p.bind(x, shape=(x.size,)), 0
    axis = normalize_axis(axis, x.ndim, "take")
    n = x.shape[axis]
    if mode not in ("raise", "wrap", "clip"):
        raise ValueError(f"take: mode must be 'raise', 'wrap' or 'clip', got {mode!r}")
    if not isinstance(indices, Array):
        indices = np.asarray(indices)
        if not indices.size:
            indices = indices.astype(np.intp)
    if not dtypes.is_integer(indices.dtype):
        raise DtypeError(index_message(str(indices.dtype)))
    if mode != "raise":
        if not n and indices.size:
            raise OutOfBoundsError(f"take: axis {axis} of shape {x.shape} has no items to take")
        indices = _into_range(indices, n, mode)
    return read(x, read_index(x.shape, (slice(None),) * axis + (indices,)))


def _into_range(indices: Any, n: int, mode: str) -> Any:
    """Indices made to lie in [0, n), in a dtype that can tell them apart."""
    if isinstance(indices, np.ndarray):
        wide = indices.astype(np.intp)
        return wide % max(n, 1) if mode == "wrap" else np.clip(wide, 0, max(n - 1, 0))
    wide_array = as_operand(indices, dtypes.int64)
    if mode == "wrap":
        return remainder(wide_array, max(n, 1))
    return clip(wide_array, 0, max(n - 1, 0))
