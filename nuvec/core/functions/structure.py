"""Rearranging one array: axis moves, roll, tile, repeat, rot90, diagonals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nuvec.core.array import Array, operand
from nuvec.core.errors import AxisError, ShapeError
from nuvec.core.functions.indexing import take
from nuvec.core.ops.build import integer, normalize_axes, normalize_axis
from nuvec.core.ops.shape import (
    broadcast_to,
    broadcast_to_p,
    reshape_p,
    row_by_row,
    transpose_p,
)
from nuvec.core.ops.structure import Ints, concatenate_p, flip_axes, slice_axis
from nuvec.core.traceback import filtered

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
def ravel(x: Any, order: str = "C") -> Array:
    """`x` as one axis, row by row; ValueError for an `order` other than "C".

    >>> import nuvec as nv
    >>> nv.ravel(nv.ones((2, 3))).shape
    (6,)
    """
    x = operand(x, "ravel's operand")
    row_by_row("ravel", order)
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
        by = integer(by, "roll's shift") % n if n else 0
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
    given = reps if isinstance(reps, tuple | list) else (reps,)
    listed = tuple([integer(r, "tile's reps") for r in given])
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
