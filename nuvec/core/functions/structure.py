"""Rearranging arrays: stack, split, roll, tile, repeat, axis moves, and np.pad."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nuvec.core.array import Array, operand
from nuvec.core.errors import AxisError, ShapeError
from nuvec.core.functions.indexing import cast_value, take
from nuvec.core.ops.build import normalize_axes, normalize_axis
from nuvec.core.ops.shape import broadcast_to, broadcast_to_p, reshape_p, transpose_p
from nuvec.core.ops.structure import (
    Ints, concatenate, concatenate_p, expand_dims, flip_axes, operands_of, pad_with, slice_axis,
)  # fmt: skip
from nuvec.core.traceback import filtered

# Joining


@filtered
def stack(arrays: Sequence[Any], axis: int = 0, *, dtype: Any = None) -> Array:
    """The arrays, all of one shape, joined along a new axis.

    Raises ShapeError when the shapes differ and for an empty list.

    >>> import nuvec as nv
    >>> nv.stack([nv.array([1, 2]), nv.array([3, 4])], axis=1)
    array([[1, 3],
           [2, 4]], dtype=int32)
    """
    xs = operands_of("stack", arrays, dtype)
    shapes = [x.shape for x in xs]
    if any(s != shapes[0] for s in shapes):
        raise ShapeError(
            f"stack: all arrays must have one shape, got {' and '.join(map(str, shapes))}; "
            "broadcast them first, or join them along an axis they have with nv.concatenate"
        )
    axis = normalize_axis(axis, xs[0].ndim + 1, "stack")
    xs = [expand_dims(x, axis) for x in xs]
    return xs[0] if len(xs) == 1 else concatenate_p.bind(*xs, axis=axis)


@filtered
def vstack(arrays: Sequence[Any]) -> Array:
    """The arrays joined along the first axis, 1-D ones as rows.

    >>> import nuvec as nv
    >>> nv.vstack([nv.ones(3), nv.zeros((2, 3))]).shape
    (3, 3)
    """
    return concatenate([atleast_2d(x) for x in operands_of("vstack", arrays)], 0)


@filtered
def hstack(arrays: Sequence[Any]) -> Array:
    """The arrays joined along the second axis, 1-D ones along their first.

    >>> import nuvec as nv
    >>> nv.hstack([nv.ones(3), nv.zeros(2)]).shape
    (5,)
    """
    xs = [atleast_1d(x) for x in operands_of("hstack", arrays)]
    return concatenate(xs, 0 if xs[0].ndim == 1 else 1)


@filtered
def dstack(arrays: Sequence[Any]) -> Array:
    """The arrays joined along the third axis, as `np.dstack`.

    >>> import nuvec as nv
    >>> nv.dstack([nv.ones(3), nv.zeros(3)]).shape
    (1, 3, 2)
    """
    return concatenate([atleast_3d(x) for x in operands_of("dstack", arrays)], 2)


@filtered
def column_stack(arrays: Sequence[Any]) -> Array:
    """The arrays joined along the second axis, 1-D ones as columns.

    >>> import nuvec as nv
    >>> nv.column_stack([nv.ones(3), nv.zeros(3)]).shape
    (3, 2)
    """
    xs = operands_of("column_stack", arrays)
    return concatenate([x if x.ndim > 1 else reshape_p.bind(x, shape=(x.size, 1)) for x in xs], 1)


# Cutting


@filtered
def split(x: Any, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Array]:
    """`x` cut along `axis` into so many equal parts, or before each of the given indices.

    Raises ShapeError when equal parts are impossible; `array_split` allows unequal ones.

    >>> import nuvec as nv
    >>> [part.shape for part in nv.split(nv.ones(5), [2, 3])]
    [(2,), (1,), (2,)]
    """
    x = operand(x, "split's operand")
    axis = normalize_axis(axis, x.ndim, "split")
    if isinstance(indices_or_sections, int | np.integer):
        count, n = int(indices_or_sections), x.shape[axis]
        if count < 1 or n % count:
            raise ShapeError(
                f"split: axis {axis} of shape {x.shape} has size {n}, which does not divide into "
                f"{count} equal parts; nv.array_split allows unequal parts"
            )
    return array_split(x, indices_or_sections, axis)


@filtered
def array_split(x: Any, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Array]:
    """As `split`, where the first parts may be longer by one.

    >>> import nuvec as nv
    >>> [len(part) for part in nv.array_split(nv.ones(5), 3)]
    [2, 2, 1]
    """
    x = operand(x, "array_split's operand")
    axis = normalize_axis(axis, x.ndim, "array_split")
    n = x.shape[axis]
    if isinstance(indices_or_sections, int | np.integer):
        count = int(indices_or_sections)
        if count < 1:
            raise ShapeError(f"array_split: the number of parts must be positive, got {count}")
        size, longer = divmod(n, count)
        starts = [i * size + min(i, longer) for i in range(count)]
    else:
        starts = [0, *[int(i) for i in indices_or_sections]]
    stops = [*starts[1:], n]
    parts = []
    for start, stop in zip(starts, stops, strict=True):
        first, last, _ = slice(start, stop).indices(n)
        parts.append(slice_axis(x, axis, first, max(first, last)))
    return parts


@filtered
def unstack(x: Any, axis: int = 0) -> list[Array]:
    """The items of `x` along an axis, which they do not have any more.

    >>> import nuvec as nv
    >>> [item.shape for item in nv.unstack(nv.ones((2, 3)))]
    [(3,), (3,)]
    """
    x = operand(x, "unstack's operand")
    axis = normalize_axis(axis, x.ndim, "unstack")
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    return [
        reshape_p.bind(slice_axis(x, axis, i, i + 1), shape=shape) for i in range(x.shape[axis])
    ]


# Axes


@filtered
def moveaxis(x: Any, source: int | Sequence[int], destination: int | Sequence[int]) -> Array:
    """`x` with axes moved to other positions, the others in their order.

    Raises AxisError for axes that do not exist, are named twice or differ in number.

    >>> import nuvec as nv
    >>> nv.moveaxis(nv.ones((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    x = operand(x, "moveaxis' operand")
    pairs = []
    for axes in (source, destination):
        listed = axes if isinstance(axes, tuple | list) else (axes,)
        normal = [normalize_axis(a, x.ndim, "moveaxis") for a in listed]
        if len(set(normal)) != len(normal):
            raise AxisError(f"moveaxis: {axes} names an axis twice for {x.ndim} dimensions")
        pairs.append(normal)
    if len(pairs[0]) != len(pairs[1]):
        raise AxisError(f"moveaxis: {source} and {destination} must name as many axes")
    order = [a for a in range(x.ndim) if a not in pairs[0]]
    for to, a in sorted(zip(pairs[1], pairs[0], strict=True)):
        order.insert(to, a)
    return permute(x, tuple(order))


@filtered
def swapaxes(x: Any, axis1: int, axis2: int) -> Array:
    """`x` with two axes exchanged.

    >>> import nuvec as nv
    >>> nv.swapaxes(nv.ones((2, 3, 4)), 0, 2).shape
    (4, 3, 2)
    """
    x = operand(x, "swapaxes' operand")
    a, b = (normalize_axis(k, x.ndim, "swapaxes") for k in (axis1, axis2))
    order = list(range(x.ndim))
    order[a], order[b] = b, a
    return permute(x, tuple(order))


@filtered
def matrix_transpose(x: Any) -> Array:
    """`x` with its last two axes exchanged; AxisError for fewer than two dimensions.

    >>> import nuvec as nv
    >>> nv.matrix_transpose(nv.ones((2, 3, 4))).shape
    (2, 4, 3)
    """
    return swapaxes(x, -1, -2)


def permute(x: Array, order: Ints) -> Array:
    """`x` with its axes in another order; itself when that is the one it has."""
    return x if order == tuple(range(x.ndim)) else transpose_p.bind(x, permutation=order)


@filtered
def ravel(x: Any) -> Array:
    """`x` as one axis, row by row.

    >>> import nuvec as nv
    >>> nv.ravel(nv.ones((2, 3))).shape
    (6,)
    """
    x = operand(x, "ravel's operand")
    return x if x.ndim == 1 else reshape_p.bind(x, shape=(x.size,))


flatten = ravel


def _atleast(x: Any, ndim: int, name: str) -> Array:
    x = operand(x, f"{name}'s operand")
    if x.ndim >= ndim:
        return x
    shapes = {0: (1,) * ndim, 1: (1, *x.shape, 1)[:ndim] if ndim > 1 else x.shape}
    return reshape_p.bind(x, shape=shapes.get(x.ndim, (*x.shape, 1)))


def _each(arrays: tuple[Any, ...], ndim: int) -> Any:
    found = [_atleast(x, ndim, f"atleast_{ndim}d") for x in arrays]
    return found[0] if len(found) == 1 else tuple(found)


@filtered
def atleast_1d(*arrays: Any) -> Any:
    """Each array, a scalar as shape (1,); a tuple of them when there are several.

    >>> import nuvec as nv
    >>> nv.atleast_1d(3.0).shape
    (1,)
    """
    return _each(arrays, 1)


@filtered
def atleast_2d(*arrays: Any) -> Any:
    """Each array with at least two axes, (N,) as (1, N); a tuple when there are several.

    >>> import nuvec as nv
    >>> nv.atleast_2d(nv.ones(3)).shape
    (1, 3)
    """
    return _each(arrays, 2)


@filtered
def atleast_3d(*arrays: Any) -> Any:
    """Each array with at least three axes, (N,) as (1, N, 1) and (M, N) as (M, N, 1).

    >>> import nuvec as nv
    >>> nv.atleast_3d(nv.ones(3)).shape
    (1, 3, 1)
    """
    return _each(arrays, 3)


# Moving and repeating elements


@filtered
def roll(x: Any, shift: int | Sequence[int], axis: int | Sequence[int] | None = None) -> Array:
    """`x` with its elements moved `shift` places along `axis`, those at the end to the front.

    Without an axis `x` is flattened for it.  Several axes take several shifts, or one for all.

    >>> import nuvec as nv
    >>> nv.roll(nv.array([1, 2, 3, 4]), 1)
    array([4, 1, 2, 3], dtype=int32)
    """
    x = operand(x, "roll's operand")
    if axis is None:
        return reshape_p.bind(roll(ravel(x), shift, 0), shape=x.shape)
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    shifts = shift if isinstance(shift, tuple | list) else (shift,)
    if 1 not in (len(shifts), len(axes)) and len(shifts) != len(axes):
        raise ShapeError(f"roll: {len(shifts)} shifts for {len(axes)} axes: {shift} and {axis}")
    count = max(len(shifts), len(axes))
    shifts, axes = (s * count if len(s) == 1 else s for s in (tuple(shifts), tuple(axes)))
    for by, a in zip(shifts, axes, strict=True):
        a = normalize_axis(a, x.ndim, "roll")
        n = x.shape[a]
        by = int(by) % n if n else 0
        if by:
            ends = (slice_axis(x, a, n - by, n), slice_axis(x, a, 0, n - by))
            x = concatenate_p.bind(*ends, axis=a)
    return x


@filtered
def tile(x: Any, reps: int | Sequence[int]) -> Array:
    """`x` repeated as a whole, `reps` times along each axis, as `np.tile`.

    >>> import nuvec as nv
    >>> nv.tile(nv.array([1, 2]), (2, 2))
    array([[1, 2, 1, 2],
           [1, 2, 1, 2]], dtype=int32)
    """
    x = operand(x, "tile's operand")
    listed = tuple(int(r) for r in reps) if isinstance(reps, tuple | list) else (int(reps),)  # type: ignore[arg-type]
    if any(r < 0 for r in listed):
        raise ShapeError(f"tile: reps must not be negative, got {reps}")
    rank = max(x.ndim, len(listed))
    listed = (1,) * (rank - len(listed)) + listed
    shape = (1,) * (rank - x.ndim) + x.shape
    if shape != x.shape:
        x = reshape_p.bind(x, shape=shape)
    if all(r == 1 for r in listed):
        return x
    x = reshape_p.bind(x, shape=tuple(m for n in shape for m in (1, n)))
    x = broadcast_to(x, tuple(m for r, n in zip(listed, shape, strict=True) for m in (r, n)))
    return reshape_p.bind(x, shape=tuple(r * n for r, n in zip(listed, shape, strict=True)))


@filtered
def repeat(x: Any, repeats: Any, axis: int | None = None) -> Array:
    """`x` with every item along `axis` repeated; flattened first without an axis.

    `repeats` is a number, or a list or NumPy array with one for every item (values are needed,
    for the shape depends on them).  Raises ShapeError for another number of them.

    >>> import nuvec as nv
    >>> nv.repeat(nv.array([1, 2]), 2)
    array([1, 1, 2, 2], dtype=int32)
    """
    x = operand(x, "repeat's operand")
    if axis is None:
        x, axis = ravel(x), 0
    axis = normalize_axis(axis, x.ndim, "repeat")
    n = x.shape[axis]
    counts = repeats._value() if isinstance(repeats, Array) else repeats
    counts = np.asarray(counts)
    if counts.size and (counts.dtype.kind not in "iu" or counts.min() < 0):
        raise ShapeError(f"repeat: repeats must be non-negative integers, got {repeats}")
    if counts.ndim and counts.size != 1:
        if counts.shape != (n,):
            raise ShapeError(
                f"repeat: axis {axis} of shape {x.shape} has {n} items, and there are repeats of "
                f"shape {counts.shape}; give one number, or one for each item"
            )
        return take(x, np.repeat(np.arange(n), counts), axis)
    count = int(counts.reshape(()))
    if count == 1:
        return x
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    x = reshape_p.bind(x, shape=(*before, n, 1, *after))
    x = broadcast_to_p.bind(x, shape=(*before, n, count, *after))
    return reshape_p.bind(x, shape=(*before, n * count, *after))


@filtered
def rot90(x: Any, k: int = 1, axes: Sequence[int] = (0, 1)) -> Array:
    """`x` turned by k quarter turns in the plane of two axes, from the first to the second.

    >>> import nuvec as nv
    >>> nv.rot90(nv.array([[1, 2], [3, 4]]))
    array([[2, 4],
           [1, 3]], dtype=int32)
    """
    x = operand(x, "rot90's operand")
    a, b = (normalize_axis(axis, x.ndim, "rot90") for axis in axes)
    if a == b:
        raise AxisError(f"rot90: the two axes must differ, got {tuple(axes)}")
    k %= 4
    if k == 0:
        return x
    if k == 2:
        return flip_axes(x, (a, b))
    return swapaxes(flip_axes(x, (b,)), a, b) if k == 1 else flip_axes(swapaxes(x, a, b), (b,))


@filtered
def flipud(x: Any) -> Array:
    """`x` with its first axis reversed."""
    x = operand(x, "flipud's operand")
    return flip_axes(x, normalize_axes(0, x.ndim, "flipud"))


@filtered
def fliplr(x: Any) -> Array:
    """`x` with its second axis reversed."""
    x = operand(x, "fliplr's operand")
    return flip_axes(x, normalize_axes(1, x.ndim, "fliplr"))


# np.pad

_INDEXED = ("edge", "reflect", "symmetric", "wrap")


@filtered
def pad(x: Any, pad_width: Any, mode: str = "constant", *, constant_values: Any = 0) -> Array:
    """`x` with `pad_width` elements added at the ends of its axes, as `np.pad`.

    `pad_width` is a number (for both ends of every axis), a pair (before, after), or one pair an
    axis.  mode "constant" adds `constant_values` (given in the same forms), "edge" the last
    element, "reflect" a mirror image about it, "symmetric" one that repeats it, "wrap" the other
    end.  Raises ShapeError for widths that are negative or do not fit the axes.

    >>> import nuvec as nv
    >>> nv.pad(nv.array([1, 2, 3]), (1, 2))
    array([0, 1, 2, 3, 0, 0], dtype=int32)
    >>> nv.pad(nv.array([1, 2, 3]), 2, mode="reflect")
    array([3, 2, 1, 2, 3, 2, 1], dtype=int32)
    """
    x = operand(x, "pad's operand")
    widths = _pad_widths(pad_width, x)
    if mode == "constant":
        return _pad_constant(x, widths, constant_values)
    if mode not in _INDEXED:
        raise ValueError(
            f"pad: mode must be 'constant', {', '.join(map(repr, _INDEXED))}, got {mode!r}"
        )
    for axis, width in enumerate(widths):
        if width != (0, 0):
            n = x.shape[axis]
            if not n:
                raise ShapeError(f"pad: axis {axis} of shape {x.shape} is empty; {mode} needs one")
            # The positions are padded by NumPy; then each axis is a gather.
            x = take(x, np.pad(np.arange(n), width, mode=mode), axis)  # type: ignore[call-overload]
    return x


def _pad_widths(pad_width: Any, x: Array) -> list[tuple[int, int]]:
    widths = np.asarray(pad_width)
    try:
        pairs = np.broadcast_to(widths, (x.ndim, 2))
    except ValueError:
        raise ShapeError(
            f"pad: pad_width {pad_width} does not fit an array of shape {x.shape}: give a number, "
            "a pair (before, after), or one pair for each axis"
        ) from None
    if widths.dtype.kind not in "iu" or (widths.size and widths.min() < 0):
        raise ShapeError(f"pad: pad_width must be non-negative integers, got {pad_width}")
    return [(int(before), int(after)) for before, after in pairs]


def _pad_constant(x: Array, widths: list[tuple[int, int]], values: Any) -> Array:
    low, high = tuple(w[0] for w in widths), tuple(w[1] for w in widths)
    if type(values) in (int, float, bool) and values == 0 and math.copysign(1, values) > 0:
        return pad_with(x, low, high)
    if isinstance(values, list | tuple):
        rows: Any = np.asarray(values)
        pairs = [[rows[a][b] for b in (0, 1)] for rows in [np.broadcast_to(rows, (x.ndim, 2))]
                 for a in range(x.ndim)]  # fmt: skip
    else:
        pairs = [[values, values]] * x.ndim
    for axis, (width, pair) in enumerate(zip(widths, pairs, strict=True)):
        parts = [x]
        for end in (0, 1):
            if width[end]:
                value = pair[end]
                value = value.item() if isinstance(value, np.generic) else value
                value = cast_value(value, x, "pad(constant_values=v)")
                shape = x.shape[:axis] + (width[end],) + x.shape[axis + 1 :]
                parts.insert(0 if end == 0 else len(parts), broadcast_to(value, shape))
        if len(parts) > 1:
            x = concatenate_p.bind(*parts, axis=axis)
    return x


@filtered
def diagonal(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """The diagonals of the matrices in two axes of `x`, as a new last axis.

    `offset` is how many columns above (or, negative, below) the main diagonal.

    >>> import nuvec as nv
    >>> nv.diagonal(nv.array([[1, 2], [3, 4]]))
    array([1, 4], dtype=int32)
    """
    x = operand(x, "diagonal's operand")
    a, b = (normalize_axis(axis, x.ndim, "diagonal") for axis in (axis1, axis2))
    if a == b:
        raise AxisError(f"diagonal: the two axes must differ, got {axis1} and {axis2}")
    others = tuple(k for k in range(x.ndim) if k not in (a, b))
    x = permute(x, (*others, a, b))
    m, n = x.shape[-2:]
    offset = int(offset)
    count = max(0, min(m, n - offset) if offset >= 0 else min(m + offset, n))
    first = offset if offset >= 0 else -offset * n
    x = reshape_p.bind(x, shape=(*x.shape[:-2], m * n))
    # In a row-major matrix the diagonal is every (n + 1)th element.
    if not count:
        return slice_axis(x, x.ndim - 1, 0, 0)
    return slice_axis(x, x.ndim - 1, first, first + (count - 1) * (n + 1) + 1, n + 1)
