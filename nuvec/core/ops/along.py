"""Reads and additions along an axis, where every line of it has indices of its own: take_along
and add_along, each other's transpose.

The index has the axes of the array it reads, from the last on, and is repeated over those it lacks
or has size 1 in.  So each line is read and added to by itself, and lines can be cut into tiles,
which the gather of the same elements cannot.  `axis` is negative, counted from the end: neither a
batch nor a tile changes it.

Bounds are as in nuvec.core.ops.indexing: with mode "raise" an index out of bounds raises
OutOfBoundsError when the equation is evaluated; with "drop" it reads zero and adds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array
from nuvec.core.errors import DtypeError, ShapeError
from nuvec.core.ir import Aval, Eqn, aval
from nuvec.core.ops.bounds import as_intp, check_bounds, checked_index_p, is_inside, is_known_inside
from nuvec.core.ops.differentiation import zeros_of
from nuvec.core.ops.indexing import scatter_add_p
from nuvec.core.ops.shape import move_axis, reshape_p, unbroadcast
from nuvec.core.ops.structure import Ints
from nuvec.core.primitive import Primitive
from nuvec.core.tiling import Rows, Tile, aligned_roles, has_rows

# Shapes


def _read_shape(shape: Ints, index: Ints, axis: int) -> Ints:
    """The shape of what is read of an array: the index's size along `axis`."""
    out = list(shape)
    out[axis] = index[axis]
    return tuple(out)


def _check_index(name: str, shape: Ints, index: Aval, axis: int) -> None:
    if not dtypes.is_integer(index.dtype):
        raise DtypeError(f"{name}: indices must be integers, got {index}; use .astype(nv.int32)")
    lacking = len(shape) - index.ndim
    fits = axis < 0 and lacking >= 0 and -index.ndim <= axis
    if not fits or any(
        n not in (1, shape[a]) for a, n in enumerate(index.shape, lacking) if a != len(shape) + axis
    ):
        raise ShapeError(
            f"{name}: indices {index} do not go with an array of shape {shape} along axis {axis}: "
            "its other sizes, aligned from the right, must be equal or 1"
        )


def _repeats(a: Aval, shape: Ints) -> bool:
    try:
        return np.broadcast_shapes(a.shape, shape) == shape
    except ValueError:
        return False


# What the lowerings share


def lines(shape: Ints, index: Any, axis: int) -> tuple[Any, ...]:
    """The NumPy index whose element at (i, j, ...) names the element at that place but for
    `axis`, a negative number."""
    last = len(shape) - 1
    full = [np.arange(n).reshape((n,) + (1,) * (last - a)) for a, n in enumerate(shape)]
    full[axis] = index
    return tuple(full)


def _all_inside(index: Any, shape: Ints, axis: int, mode: str, whole: Ints | None) -> bool:
    """Whether all of an index is within bounds; with mode "raise", an error if it is not."""
    inside = is_inside(index, shape[axis])
    if not inside and mode == "raise":
        shape = shape if whole is None else whole
        check_bounds(index, len(shape) + axis, shape[axis], shape)
    return inside


def _guard(
    wanted: Array, index: Array, shape: Ints, axis: int, mode: str
) -> tuple[Array, str]:  # fmt: skip
    """The index and mode with which only a wanted index can be an error."""
    if mode != "raise" or is_known_inside(index, shape[axis]):
        return index, mode
    place = {"axis": len(shape) + axis, "shape": shape}
    return checked_index_p.bind(index, wanted, **place), "drop"


def _batch_in_front(x: Array, batch: int | None, rank: int) -> Array:
    """`x` with its batch axis in front of `rank` others; one without is repeated as it is."""
    if batch is None:
        return x
    x = move_axis(x, batch, 0)
    shape = (*x.shape[:1], *(1,) * (rank + 1 - x.ndim), *x.shape[1:])
    return x if x.shape == shape else reshape_p.bind(x, shape=shape)


# take_along.  `whole` is the shape of which a tile reads a part: errors name it


def _take_rule(x: Aval, index: Aval, axis: int, mode: str, whole: Ints | None = None) -> Aval:
    _check_index("take_along", x.shape, index, axis)
    return aval(_read_shape(x.shape, index.shape, axis), x.dtype, x.weak)


def _take_lower(x: Any, index: Any, axis: int, mode: str, whole: Ints | None = None) -> Any:
    index = as_intp(index, mode)
    if _all_inside(index, x.shape, axis, mode, whole):
        return np.ascontiguousarray(x[lines(x.shape, index, axis)])
    size = x.shape[axis]
    if not size:
        return np.zeros(_read_shape(x.shape, index.shape, axis), x.dtype)
    valid = (index >= -size) & (index < size)
    found = x[lines(x.shape, np.where(valid, index, 0), axis)]
    return np.ascontiguousarray(np.where(valid, found, np.zeros((), x.dtype)))


def _take_transpose(
    i: int, c: Array, out: Array, x: Array, index: Array, axis: int, mode: str
) -> Array:
    zero = zeros_of(aval((), c.dtype))
    return add_along_p.bind(zero, index, c, axis=axis, shape=x.shape, mode=mode)


def _take_vmap(
    size: int, batch: Sequence[int | None], x: Array, index: Array, axis: int, mode: str
) -> tuple[Array, int]:
    if batch[0] is not None:
        x = move_axis(x, batch[0], 0)
        index = _batch_in_front(index, batch[1], x.ndim - 1)
        return take_along_p.bind(x, index, axis=axis, mode=mode), 0
    # One array for all elements: their indices are read one after the other along the axis.
    assert batch[1] is not None
    at = index.ndim - 1 + axis
    index = move_axis(index, batch[1], at)
    each = index.shape[axis]
    joined = (*index.shape[:at], size * each, *index.shape[at + 2 :])
    out = take_along_p.bind(x, reshape_p.bind(index, shape=joined), axis=axis, mode=mode)
    at = x.ndim + axis
    return reshape_p.bind(out, shape=(*out.shape[:at], size, each, *out.shape[at + 1 :])), at


def _take_guard(
    wanted: Array, x: Array, index: Array, axis: int, mode: str
) -> tuple[Sequence[Array], dict[str, Any]]:
    index, mode = _guard(wanted, index, x.shape, axis, mode)
    return (x, index), {"axis": axis, "mode": mode}


def _take_tile(eqn: Eqn, rows: Rows, count: int) -> Tile | None:
    x, index = (a.aval for a in eqn.inputs)
    axis, lead = eqn.params["axis"], len(rows)
    if x.ndim + axis < lead or not has_rows(x, rows):
        return None
    roles = aligned_roles((x, index), x.ndim, rows)
    return None if roles is None else Tile({**eqn.params, "whole": x.shape}, roles)


take_along_p: Primitive = Primitive(
    "take_along", _take_lower, _take_rule, "gather", transpose=_take_transpose, linear="joint",
    linear_operands=(0,), vmap=_take_vmap, guard=_take_guard, tile=_take_tile,
)  # fmt: skip


# add_along: x, repeated to `shape`, with values added, in the order of the index


def _add_rule(
    x: Aval, index: Aval, values: Aval, axis: int, shape: Ints, mode: str,
    whole: Ints | None = None,
) -> Aval:  # fmt: skip
    _check_index("add_along", shape, index, axis)
    target = _read_shape(shape, index.shape, axis)
    if values.dtype != x.dtype or not _repeats(x, shape) or not _repeats(values, target):
        raise ShapeError(
            f"add_along: {x} and values {values} must have one dtype, and broadcast to {shape} "
            f"and to {target}, the shape of what the indices select of it"
        )
    return aval(shape, x.dtype, x.weak and values.weak)


def _add_lower(
    x: Any, index: Any, values: Any, axis: int, shape: Ints, mode: str,
    whole: Ints | None = None, out: Any = None,
) -> Any:  # fmt: skip
    index = as_intp(index, mode)
    inside = _all_inside(index, shape, axis, mode, whole)
    if inside and index.shape[axis] == 1:  # one element of each line: no two alike
        if out is None:
            out = np.empty(shape, x.dtype)
        if out is not x:
            out[...] = x
        out[lines(shape, index, axis)] += values
        return out
    values = np.broadcast_to(values, _read_shape(shape, index.shape, axis))
    places = lines(shape, index, axis)
    axes = tuple(range(len(shape)))
    if out is not x:
        x = np.broadcast_to(x, shape)
    return scatter_add_p.lower(x, values, *places, axes=axes, mode="drop", out=out)


def _add_transpose(
    i: int, c: Array, out: Array, x: Array, index: Array, values: Array,
    axis: int, shape: Ints, mode: str,
) -> Array:  # fmt: skip
    if i == 0:
        return unbroadcast(c, x.shape)
    return unbroadcast(take_along_p.bind(c, index, axis=axis, mode=mode), values.shape)


def _add_vmap(
    size: int, batch: Sequence[int | None], *operands: Array, axis: int, shape: Ints, mode: str
) -> tuple[Array, int]:
    operands = tuple([
        _batch_in_front(a, b, len(shape)) for a, b in zip(operands, batch, strict=True)
    ])  # fmt: skip
    return add_along_p.bind(*operands, axis=axis, shape=(size, *shape), mode=mode), 0


def _add_guard(
    wanted: Array, x: Array, index: Array, values: Array, axis: int, shape: Ints, mode: str
) -> tuple[Sequence[Array], dict[str, Any]]:
    index, mode = _guard(wanted, index, shape, axis, mode)
    return (x, index, values), {"axis": axis, "shape": shape, "mode": mode}


def _add_tile(eqn: Eqn, rows: Rows, count: int) -> Tile | None:
    axis, shape, lead = eqn.params["axis"], eqn.params["shape"], len(rows)
    if len(shape) + axis < lead or shape[:lead] != rows:
        return None
    roles = aligned_roles([a.aval for a in eqn.inputs], len(shape), rows)
    if roles is None:
        return None
    return Tile({**eqn.params, "shape": (count, *shape[lead:]), "whole": shape}, roles)


add_along_p: Primitive = Primitive(
    "add_along", _add_lower, _add_rule, "gather", transpose=_add_transpose, linear="joint",
    linear_operands=(0, 2), vmap=_add_vmap, guard=_add_guard, out=True, updates=0, tile=_add_tile,
)  # fmt: skip
