"""Joining, cutting and padding: concatenate, and slice and pad, which are each other's transpose.

A `slice` takes from every axis what `range(start, stop, step)` names.  A `pad` writes its operand
into zeros: `low` zeros before it, `high` after it and `interior` between its elements.  So they
undo each other with start = low and step = interior + 1; a negative step also turns the axis
around.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nuvec.core.array import Array, operand
from nuvec.core.errors import DtypeError, ShapeError
from nuvec.core.ir import Aval, Eqn, aval
from nuvec.core.ops.batching import batch_first
from nuvec.core.ops.build import normalize_axes, normalize_axis, promote_operands
from nuvec.core.ops.differentiation import zeros_of
from nuvec.core.ops.shape import reshape_p
from nuvec.core.primitive import Primitive
from nuvec.core.tiling import Role, Rows, Tile, has_rows
from nuvec.core.traceback import filtered

Ints = tuple[int, ...]

# concatenate: linear in its operands together; the cotangent of each is its slice


def _concatenate_rule(*xs: Aval, axis: int) -> Aval:
    first = xs[0]
    for x in xs:
        if x.dtype != first.dtype:
            raise DtypeError(f"concatenate: the primitive takes one dtype, got {xs}")
        if x.ndim != first.ndim or any(
            m != n for a, (m, n) in enumerate(zip(x.shape, first.shape, strict=True)) if a != axis
        ):
            raise ShapeError(
                f"concatenate along axis {axis}: shapes {' and '.join(str(x.shape) for x in xs)} "
                "must have the same number of axes and be equal in all but that axis. "
                "nv.stack joins along a new axis; nv.expand_dims adds one"
            )
    shape = list(first.shape)
    shape[axis] = sum(x.shape[axis] for x in xs)
    return aval(tuple(shape), first.dtype, all(x.weak for x in xs))


def _concatenate_lower(*xs: Any, axis: int, out: Any = None) -> Any:
    return np.concatenate(xs, axis=axis, out=out)


def _concatenate_transpose(i: int, c: Array, out: Array, *xs: Array, axis: int) -> Array:
    start = sum(x.shape[axis] for x in xs[:i])
    return slice_axis(c, axis, start, start + xs[i].shape[axis])


def _concatenate_vmap(
    size: int, axes: Sequence[int | None], *xs: Array, axis: int
) -> tuple[Array, int]:
    batched = [batch_first(x, a, size) for x, a in zip(xs, axes, strict=True)]
    return concatenate_p.bind(*batched, axis=axis + 1), 0


def _concatenate_tile(eqn: Eqn, rows: Rows, count: int) -> Tile | None:
    axis, lead = eqn.params["axis"], len(rows)
    if axis < lead or not all(has_rows(a.aval, rows) for a in eqn.inputs):
        return None
    return Tile({"axis": axis - lead + 1}, (Role.CUT,) * len(eqn.inputs))


concatenate_p = Primitive(
    "concatenate", _concatenate_lower, _concatenate_rule, "view",
    transpose=_concatenate_transpose, linear="joint", vmap=_concatenate_vmap, out=True,
    tile=_concatenate_tile,
)  # fmt: skip


@filtered
def concatenate(arrays: Sequence[Any], axis: int | None = 0, *, dtype: Any = None) -> Array:
    """The arrays joined along an axis they have; flattened first when `axis` is None.

    They are promoted to one dtype (`dtype` when given) and must have the same shape but for
    `axis`.  Raises ShapeError for shapes that do not fit, 0-d arrays and an empty list.

    >>> import nuvec as nv
    >>> nv.concatenate([nv.array([1, 2]), nv.array([3])])
    array([1, 2, 3], dtype=int32)
    """
    xs = operands_of("concatenate", arrays, dtype)
    if axis is None:
        xs = [reshape_p.bind(x, shape=(x.size,)) if x.ndim != 1 else x for x in xs]
        axis = 0
    if not xs[0].ndim:
        raise ShapeError("concatenate: 0-d arrays cannot be joined; nv.stack makes a 1-d array")
    axis = normalize_axis(axis, xs[0].ndim, "concatenate")
    return xs[0] if len(xs) == 1 else concatenate_p.bind(*xs, axis=axis)


def operands_of(name: str, arrays: Any, dtype: Any = None) -> list[Array]:
    """What is to be joined, promoted to one dtype; an Array counts as the list of its items."""
    if isinstance(arrays, Array | np.ndarray):
        array = operand(arrays)
        if not array.ndim:
            raise ShapeError(f"{name} takes a sequence of arrays, got one of shape ()")
        shape = array.shape[1:]
        arrays = [
            reshape_p.bind(slice_axis(array, 0, i, i + 1), shape=shape) for i in range(len(array))
        ]
    listed = list(arrays)
    if not listed:
        raise ShapeError(f"{name} needs at least one array, got none")
    if dtype is None:
        return promote_operands(name, listed)
    wanted = np.dtype(dtype)
    return promote_operands(name, listed, lambda _: wanted)


# slice and pad


def slice_shape(start: Ints, stop: Ints, step: Ints) -> Ints:
    return tuple(len(range(*r)) for r in zip(start, stop, step, strict=True))


def _slice_rule(x: Aval, start: Ints, stop: Ints, step: Ints) -> Aval:
    for n, *r in zip(x.shape, start, stop, step, strict=True):
        taken = range(*r)
        if len(taken) and not (0 <= taken[0] < n and 0 <= taken[-1] < n):
            raise ShapeError(f"slice: {taken} is outside an axis of size {n} of shape {x.shape}")
    return aval(slice_shape(start, stop, step), x.dtype, x.weak)


def as_slices(start: Ints, stop: Ints, step: Ints) -> tuple[slice, ...]:
    """Python slices.  In a range a stop of -1 is in front of 0; in a slice it is the last item."""
    slices = []
    for a, b, s in zip(start, stop, step, strict=True):
        if not range(a, b, s):
            slices.append(slice(0, 0))
        else:
            slices.append(slice(a, b if b >= 0 else None, s))
    return tuple(slices)


def _slice_lower(x: Any, start: Ints, stop: Ints, step: Ints) -> Any:
    return x[as_slices(start, stop, step)]


def _slice_transpose(
    i: int, c: Array, out: Array, x: Array, start: Ints, stop: Ints, step: Ints
) -> Array:
    return pad_slice(c, x.shape, start, stop, step)


def pad_slice(c: Array, shape: Ints, start: Ints, stop: Ints, step: Ints) -> Array:
    """Zeros of `shape` with `c` written where the slice reads."""
    low, high, interior, backward = [], [], [], []
    for axis, (n, *r) in enumerate(zip(shape, start, stop, step, strict=True)):
        taken = range(*r)
        if not taken:
            low.append(n)
            high.append(0)
            interior.append(0)
            continue
        if taken.step < 0:
            if len(taken) > 1:
                backward.append(axis)
            taken = taken[::-1]
        low.append(taken[0])
        high.append(n - 1 - taken[-1])
        interior.append(taken.step - 1)
    return pad_with(flip_axes(c, backward), tuple(low), tuple(high), tuple(interior))


def _slice_vmap(
    size: int, axes: Sequence[int | None], x: Array, start: Ints, stop: Ints, step: Ints
) -> tuple[Array, int]:
    axis = axes[0]
    assert axis is not None
    return slice_p.bind(
        x,
        start=start[:axis] + (0,) + start[axis:],
        stop=stop[:axis] + (size,) + stop[axis:],
        step=step[:axis] + (1,) + step[axis:],
    ), axis


def _slice_tile(eqn: Eqn, rows: Rows, count: int) -> Tile | None:
    """Of the axes behind the rows; of the rows it must take all in order."""
    lead, given = len(rows), eqn.params
    taken = [given[k][:lead] for k in ("start", "stop", "step")]
    if not has_rows(eqn.inputs[0].aval, rows) or taken != [(0,) * lead, rows, (1,) * lead]:
        return None
    first = {"start": 0, "stop": count, "step": 1}
    return Tile({k: (n, *given[k][lead:]) for k, n in first.items()}, (Role.CUT,))


slice_p = Primitive("slice", _slice_lower, _slice_rule, "view",
                    transpose=_slice_transpose, vmap=_slice_vmap, tile=_slice_tile)  # fmt: skip


def _pad_rule(x: Aval, low: Ints, high: Ints, interior: Ints) -> Aval:
    if min(low + high + interior, default=0) < 0:
        raise ShapeError(f"pad: no width may be negative, got {low}, {high} and {interior}")
    sizes = zip(x.shape, low, high, interior, strict=True)
    shape = tuple(a + n + max(n - 1, 0) * between + b for n, a, b, between in sizes)
    return aval(shape, x.dtype, x.weak)


def _inside(shape: Ints, low: Ints, interior: Ints) -> tuple[Ints, Ints, Ints]:
    """Where a pad writes its operand, as the parameters of a slice."""
    sizes = list(zip(shape, low, interior, strict=True))
    stop = tuple(a + max(n - 1, 0) * (between + 1) + min(n, 1) for n, a, between in sizes)
    return low, stop, tuple(between + 1 for between in interior)


def _pad_lower(x: Any, low: Ints, high: Ints, interior: Ints, out: Any = None) -> Any:
    sizes = zip(x.shape, low, high, interior, strict=True)
    if out is None:
        shape = [a + n + max(n - 1, 0) * between + b for n, a, b, between in sizes]
        out = np.zeros(shape, x.dtype)
    else:
        out[...] = 0
    out[as_slices(*_inside(x.shape, low, interior))] = x
    return out


def _pad_transpose(
    i: int, c: Array, out: Array, x: Array, low: Ints, high: Ints, interior: Ints
) -> Array:
    return slice_with(c, *_inside(x.shape, low, interior))


def _pad_vmap(
    size: int, axes: Sequence[int | None], x: Array, low: Ints, high: Ints, interior: Ints
) -> tuple[Array, int]:
    axis = axes[0]
    assert axis is not None
    low, high, interior = (w[:axis] + (0,) + w[axis:] for w in (low, high, interior))
    return pad_p.bind(x, low=low, high=high, interior=interior), axis


def _pad_tile(eqn: Eqn, rows: Rows, count: int) -> Tile | None:
    """Around the axes behind the rows."""
    lead = len(rows)
    if not has_rows(eqn.inputs[0].aval, rows) or any(any(w[:lead]) for w in eqn.params.values()):
        return None
    return Tile({k: (0, *w[lead:]) for k, w in eqn.params.items()}, (Role.CUT,))


pad_p = Primitive("pad", _pad_lower, _pad_rule, "other",
                  transpose=_pad_transpose, vmap=_pad_vmap, out=True, tile=_pad_tile)  # fmt: skip


# In terms of Arrays, nothing recorded where nothing happens


def slice_with(x: Array, start: Ints, stop: Ints, step: Ints) -> Array:
    """The slice of normalised bounds; `x` itself where it takes everything in order."""
    if start == (0,) * x.ndim and stop == x.shape and step == (1,) * x.ndim:
        return x
    return slice_p.bind(x, start=start, stop=stop, step=step)


def slice_axis(x: Array, axis: int, start: int, stop: int, step: int = 1) -> Array:
    """`x` with one axis cut to range(start, stop, step)."""
    starts, stops, steps = [0] * x.ndim, list(x.shape), [1] * x.ndim
    starts[axis], stops[axis], steps[axis] = start, stop, step
    return slice_with(x, tuple(starts), tuple(stops), tuple(steps))


def pad_with(x: Array, low: Ints, high: Ints, interior: Ints | None = None) -> Array:
    """Zeros around and between; `x` itself where there are none."""
    if interior is None:
        interior = (0,) * x.ndim
    if not x.size:  # nothing of x is left
        shape = _pad_rule(x.aval, low, high, interior).shape
        return zeros_of(aval(shape, x.dtype))
    if not any(low) and not any(high) and not any(interior):
        return x
    return pad_p.bind(x, low=low, high=high, interior=interior)


def flip_axes(x: Array, axes: Sequence[int]) -> Array:
    """`x` backwards along some axes."""
    axes = [a for a in axes if x.shape[a] > 1]
    if not axes:
        return x
    return slice_p.bind(
        x,
        start=tuple(n - 1 if a in axes else 0 for a, n in enumerate(x.shape)),
        stop=tuple(-1 if a in axes else n for a, n in enumerate(x.shape)),
        step=tuple(-1 if a in axes else 1 for a in range(x.ndim)),
    )


@filtered
def flip(x: Any, axis: int | Sequence[int] | None = None) -> Array:
    """`x` with the order of its elements reversed along `axis` (all axes by default).

    >>> import nuvec as nv
    >>> nv.flip(nv.array([1, 2, 3]))
    array([3, 2, 1], dtype=int32)
    """
    x = operand(x, "flip's operand")
    return flip_axes(x, normalize_axes(axis, x.ndim, "flip"))


@filtered
def expand_dims(x: Any, axis: int | Sequence[int]) -> Array:
    """`x` with axes of size 1 inserted, so that they stand at `axis` in the result.

    Raises AxisError for an axis outside the result or named twice.

    >>> import nuvec as nv
    >>> nv.expand_dims(nv.ones((2, 3)), (0, -1)).shape
    (1, 2, 3, 1)
    """
    x = operand(x, "expand_dims' operand")
    count = len(axis) if isinstance(axis, tuple | list) else 1
    axes = normalize_axes(axis, x.ndim + count, "expand_dims")
    sizes = iter(x.shape)
    shape = tuple(1 if a in axes else next(sizes) for a in range(x.ndim + count))
    return x if not axes else reshape_p.bind(x, shape=shape)


@filtered
def squeeze(x: Any, axis: int | Sequence[int] | None = None) -> Array:
    """`x` without the axes `axis`, which must have size 1; without all such axes by default.

    >>> import nuvec as nv
    >>> nv.squeeze(nv.ones((1, 3, 1)), axis=0).shape
    (3, 1)
    """
    x = operand(x, "squeeze's operand")
    if axis is None:
        axes: Ints = tuple(a for a, n in enumerate(x.shape) if n == 1)
    else:
        axes = normalize_axes(axis, x.ndim, "squeeze")
        for a in axes:
            if x.shape[a] != 1:
                raise ShapeError(
                    f"squeeze: axis {a} of an array of shape {x.shape} has size {x.shape[a]}, not "
                    "1; take one item with indexing, or sum over it"
                )
    if not axes:
        return x
    return reshape_p.bind(x, shape=tuple(n for a, n in enumerate(x.shape) if a not in axes))
