"""`x.at[index]`: indexed updates as expressions.

`x.at[i].set(v)` is the new array that `x[i] = v` would make, without touching `x`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, from_numpy, literal, operand
from nuvec.core.functions.index import Index, read_index
from nuvec.core.functions.indexing import (
    broadcast_value,
    cast_value,
    index_operands,
    mask_of,
    natural_value,
    put,
    read,
    setitem_value,
    view_of,
    write,
    write_mask,
)  # fmt: skip
from nuvec.core.ops.arithmetic import add, multiply
from nuvec.core.ops.build import as_operand
from nuvec.core.ops.comparison import greater_equal, less, logical_and
from nuvec.core.ops.indexing import scatter_add_p
from nuvec.core.ops.scatter import scatter_max_p, scatter_min_p, scatter_multiply_p
from nuvec.core.ops.selection import clip, maximum, minimum, where
from nuvec.core.ops.shape import reshape_p
from nuvec.core.traceback import filtered

_MODES = ("raise", "clip", "fill", "drop")


class At:
    """`x.at`, to be indexed: `x.at[1:3]`."""

    __slots__ = ("_array",)

    def __init__(self, array: Array) -> None:
        self._array = operand(array, "the array of at")

    def __getitem__(self, index: Any) -> AtIndex:
        return AtIndex(self._array, index)

    def __repr__(self) -> str:
        return f"<at of {self._array.aval}; index it: x.at[i].set(v)>"


class AtIndex:
    """`x.at[index]`: reads and writes at an index, as expressions.

    Every method takes `mode`, which says what happens to an integer index out of bounds (a
    negative one counts from the end first; slices are always cut to the array):

    "raise" -- OutOfBoundsError, as `x[index]` does (the default)
    "clip"  -- the nearest element is used
    "drop"  -- nothing is written there
    "fill"  -- `get` gives `fill_value` there; nothing is written there

    Values are broadcast to the shape of `x[index]` and converted to x's dtype; DtypeError when it
    cannot hold their kind (float into int).

    >>> import nuvec as nv
    >>> x = nv.zeros(3)
    >>> x.at[nv.array([0, 0, 2])].add(1.0)
    array([2., 0., 1.], dtype=float32)
    """

    __slots__ = ("_array", "_index")

    def __init__(self, array: Array, index: Any) -> None:
        self._array = array
        self._index = index

    def __repr__(self) -> str:
        return f"<at of {self._array.aval}, indexed: call .get(), .set(v), .add(v), ...>"

    @filtered
    def get(self, *, mode: str = "raise", fill_value: Any = None) -> Array:
        """`x[index]`.  `fill_value` is NaN by default, and for integers the least value (the
        largest when unsigned)."""
        x = self._array
        if fill_value is not None and mode not in ("fill", "drop"):
            raise ValueError(f"x.at[i].get: fill_value goes with mode='fill', not {mode!r}")
        index, within = _resolve(x, self._index, mode)
        if mode not in ("fill", "drop") or within is None:
            return read(x, index)
        found = read(x, index, "drop")
        fill = _fill_value(x, fill_value)
        if not within.ndim:
            return where(within, found, fill)
        # The validity of the index, in the place where its axes stand in the result.
        trailing = found.ndim - index.place - within.ndim
        shape = within.shape + (1,) * trailing
        return where(reshape_p.bind(within, shape=shape), found, fill)

    @filtered
    def set(self, value: Any, *, mode: str = "raise") -> Array:
        """`x` with `value` at the index; of several values for one element the last one stays."""
        if mode == "raise":
            return setitem_value(self._array, self._index, value)
        index, _ = _resolve(self._array, self._index, mode)
        value = natural_value(value, self._array, index, "x.at[i].set(v)")
        return put(self._array, index, value, "raise" if mode == "clip" else "drop")

    @filtered
    def add(self, value: Any, *, mode: str = "raise") -> Array:
        """`x` with `value` added at the index; elements named several times get every term."""
        return self._combine("add", add, scatter_add_p, value, mode)

    @filtered
    def subtract(self, value: Any, *, mode: str = "raise") -> Array:
        """`x` with `value` subtracted at the index."""
        value = cast_value(value, self._array, "x.at[i].subtract(v)")
        return self._combine("subtract", add, scatter_add_p, multiply(value, -1), mode)

    @filtered
    def multiply(self, value: Any, *, mode: str = "raise") -> Array:
        """`x` multiplied by `value` at the index, by every factor for its element."""
        return self._combine("multiply", multiply, scatter_multiply_p, value, mode)

    mul = multiply

    @filtered
    def min(self, value: Any, *, mode: str = "raise") -> Array:
        """`x` with the least of itself and the values at the index."""
        return self._combine("min", minimum, scatter_min_p, value, mode)

    @filtered
    def max(self, value: Any, *, mode: str = "raise") -> Array:
        """`x` with the largest of itself and the values at the index."""
        return self._combine("max", maximum, scatter_max_p, value, mode)

    def _combine(self, name: str, operation: Any, primitive: Any, value: Any, mode: str) -> Array:
        x, name = self._array, f"x.at[i].{name}(v)"
        mask = mask_of(x, self._index)
        if mask is not None:
            cast = cast_value(value, x, name)
            if cast.ndim <= x.ndim - mask.ndim:
                cast = broadcast_value(cast, x.shape[mask.ndim :], x, name)
                return write_mask(x, mask, operation(x, cast))
        index, _ = _resolve(x, self._index, mode)
        value = natural_value(value, x, index, name)
        view = view_of(x, index)
        if not index.axes:
            return write(x, index, operation(view, value))
        mode = "raise" if mode == "clip" or mode == "raise" else "drop"
        operands = index_operands(index)
        out = primitive.bind(view, value, *operands, axes=index.axes, mode=mode)
        return write(x, index, out)


def _fill_value(x: Array, value: Any) -> Array:
    if value is not None:
        return cast_value(value, x, "x.at[i].get(fill_value=v)")
    dtype = x.dtype
    if dtypes.is_inexact(dtype):
        return as_operand(operand(float("nan")), dtype)
    if dtypes.is_bool(dtype):
        return operand(True)
    limits = dtypes.iinfo(dtype)
    return as_operand(operand(dtype.type(limits.min if dtypes.is_signed(dtype) else limits.max)),
                      dtype)  # fmt: skip


def _resolve(x: Array, given: Any, mode: str) -> tuple[Index, Array | None]:
    """The index, its arrays clipped with mode "clip"; with "fill" and "drop" also which of its
    elements are within bounds (None when all are)."""
    if mode not in _MODES:
        raise ValueError(f"x.at[i]: mode must be one of {', '.join(_MODES)}, got {mode!r}")
    if mode == "raise":
        return read_index(x.shape, given), None
    index = read_index(x.shape, _integers_as_arrays(given), checked=False)
    if not index.axes:
        return index, None
    sizes = [index.view[a] for a in index.axes]
    if mode == "clip":
        arrays = tuple(_clipped(a, n) for a, n in zip(index.arrays, sizes, strict=True))
        return index._replace(arrays=arrays), None
    within = None
    for array, n in zip(index_operands(index), sizes, strict=True):
        wide = _as_int64(array)  # -n may not fit a narrow dtype
        inside = logical_and(greater_equal(wide, -n), less(wide, n))
        within = inside if within is None else logical_and(within, inside)
    return index, within


def _as_int64(index: Array) -> Array:
    """An index as int64.  Numbers beyond it become its largest: no axis has either."""
    if index.dtype == dtypes.uint64:
        index = minimum(index, literal(2**63 - 1, dtypes.uint64))
    return as_operand(index, dtypes.int64)


def _integers_as_arrays(index: Any) -> Any:
    """The index with integers as 0-d Arrays, which may be out of bounds."""
    if isinstance(index, tuple):
        return tuple(_integers_as_arrays(i) for i in index)
    if isinstance(index, int | np.integer) and not isinstance(index, bool):
        return from_numpy(np.asarray(index, np.int64))
    return index


def _clipped(index: Any, n: int) -> Any:
    """An index with what is out of bounds moved to the nearest element."""
    if isinstance(index, np.ndarray):
        return np.clip(np.where(index < 0, index + n, index), 0, max(n - 1, 0))
    wide = _as_int64(index)
    return clip(where(less(wide, 0), add(wide, n), wide), 0, max(n - 1, 0))
