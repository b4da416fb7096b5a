"""Reads and writes at indices: gather and scatter_add, each other's transpose; scatter_set;
update_slice.

These work on whole axes: `axes` are indexed by as many integer arrays, which broadcast together,
and the other axes are taken whole.  The indexed axes give way to the axes of the index, at the
place of the first of them if they are neighbours, else in front: that is NumPy's rule.  `getitem`
and its kin (nuvec.core.functions.indexing) reduce every NumPy index to these and to slices.

A negative index counts from the end.  With mode "raise" an index out of bounds raises
OutOfBoundsError when the equation is evaluated; with "drop" it reads zero and writes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, from_numpy
from nuvec.core.errors import DtypeError, ShapeError
from nuvec.core.ir import Aval, aval
from nuvec.core.ops.batching import batch_first
from nuvec.core.ops.bounds import all_inside, as_intp, check_all, index_guard, valid_elements
from nuvec.core.ops.build import broadcast_shapes
from nuvec.core.ops.comparison import equal
from nuvec.core.ops.differentiation import zeros_of
from nuvec.core.ops.selection import where
from nuvec.core.ops.shape import move_axis, reshape_p, transpose_p
from nuvec.core.ops.structure import Ints, as_slices, slice_p, slice_shape
from nuvec.core.primitive import Primitive

# Where the axes of an index stand in the result


def index_place(axes: Ints) -> int:
    """The position of the index's axes in the result: NumPy's rule."""
    return axes[0] if axes == tuple(range(axes[0], axes[0] + len(axes))) else 0


def gathered_shape(shape: Ints, index_shape: Ints, axes: Ints) -> Ints:
    rest = tuple(n for a, n in enumerate(shape) if a not in axes)
    place = index_place(axes)
    return rest[:place] + index_shape + rest[place:]


def _index_shape(name: str, indices: Sequence[Aval]) -> Ints:
    for i in indices:
        if not dtypes.is_integer(i.dtype):
            raise DtypeError(f"{name}: indices must be integers, got {i}; use .astype(nv.int32)")
    return broadcast_shapes(name + "'s indices", *[i.shape for i in indices])


# What the lowerings share


def _numpy_index(ndim: int, axes: Ints, indices: Sequence[Any]) -> tuple[Any, ...]:
    index: list[Any] = [slice(None)] * ndim
    for a, i in zip(axes, indices, strict=True):
        index[a] = i
    return tuple(index)


def copy_to_change(x: Any, dtype: np.dtype, out: Any) -> Any:
    """What an update writes to: `out` holding x, where it has the dtype, else a new C-ordered copy.
    `out` may be x itself, which is then changed in place."""
    if out is None or out.dtype != dtype:
        return np.array(x, dtype=dtype, order="C")
    if out is not x:
        out[...] = x
    return out


def changed(found: Any, dtype: np.dtype, out: Any) -> Any:
    """The result of an update in its dtype, in `out` where that is given."""
    if out is None:
        return found if found.dtype == dtype else found.astype(dtype)
    if found is not out:
        out[...] = found
    return out


# gather


def _gather_rule(x: Aval, *indices: Aval, axes: Ints, mode: str) -> Aval:
    index_shape = _index_shape("gather", indices)
    return aval(gathered_shape(x.shape, index_shape, axes), x.dtype, x.weak)


def _gather_lower(x: Any, *indices: Any, axes: Ints, mode: str) -> Any:
    indices = tuple(as_intp(i, mode) for i in indices)
    try:
        if not np.size(x) and all(np.size(i) for i in indices):
            check_all(x.shape, axes, indices)  # NumPy does not look where it reads nothing
        if len(axes) == 1:
            return np.take(x, indices[0], axis=axes[0])
        return np.asarray(x)[_numpy_index(x.ndim, axes, indices)]
    except IndexError:
        if mode == "drop":
            return _gather_or_zero(x, indices, axes)
        check_all(x.shape, axes, indices)
        raise


def _gather_or_zero(x: Any, indices: tuple[Any, ...], axes: Ints) -> Any:
    index_shape = np.broadcast_shapes(*[np.shape(i) for i in indices])
    shape = gathered_shape(x.shape, index_shape, axes)
    if 0 in [x.shape[a] for a in axes]:
        return np.zeros(shape, x.dtype)
    valid = np.broadcast_to(valid_elements(x.shape, axes, indices), index_shape)
    clipped = [np.where(valid, i, 0) for i in indices]
    found = np.asarray(x)[_numpy_index(x.ndim, axes, clipped)]
    place = index_place(axes)
    trailing = len(shape) - place - len(index_shape)
    valid = valid.reshape(index_shape + (1,) * trailing)
    return np.where(valid, found, np.zeros((), x.dtype))


def _gather_transpose(
    i: int, c: Array, out: Array, x: Array, *indices: Array, axes: Ints, mode: str
) -> Array:
    return scatter_add_p.bind(zeros_of(x.aval), c, *indices, axes=axes, mode=mode)


def _gather_vmap(
    size: int, batch: Sequence[int | None], x: Array, *indices: Array, axes: Ints, mode: str
) -> tuple[Array, int]:
    if all(b is None for b in batch[1:]):
        assert batch[0] is not None
        x = move_axis(x, batch[0], 0)
        shifted = tuple(a + 1 for a in axes)
        out = gather_p.bind(x, *indices, axes=shifted, mode=mode)
        return out, _batch_place(shifted, indices)
    batched, rank = _batch_indices(batch[1:], indices)
    if batch[0] is None:
        return gather_p.bind(x, *batched, axes=axes, mode=mode), index_place(axes)
    x = move_axis(x, batch[0], 0)
    # Element b of the batch is read with row b of the indices: one more index says so.
    rows = _rows(size, rank)
    out = gather_p.bind(x, rows, *batched, axes=(0, *(a + 1 for a in axes)), mode=mode)
    return _move_block(out, 1, 1 + index_place(axes), rank), 0


def _batch_place(shifted: Ints, indices: Sequence[Array]) -> int:
    """Where a leading axis that is not indexed ends up: behind the index's axes if those go in
    front."""
    if index_place(shifted):
        return 0
    return max(i.ndim for i in indices)


def _batch_indices(
    batch: Sequence[int | None], indices: Sequence[Array]
) -> tuple[list[Array], int]:
    """The indices with the batch axis in front where they have one, ranks aligned; and the rank
    of the unbatched index."""
    rank = max(i.ndim - (b is not None) for i, b in zip(indices, batch, strict=True))
    aligned = []
    for i, b in zip(indices, batch, strict=True):
        if b is None:
            shape = (1,) * (rank + 1 - i.ndim) + i.shape
        else:
            i = move_axis(i, b, 0)
            shape = i.shape[:1] + (1,) * (rank + 1 - i.ndim) + i.shape[1:]
        aligned.append(i if i.shape == shape else reshape_p.bind(i, shape=shape))
    return aligned, rank


def _rows(size: int, rank: int) -> Array:
    return from_numpy(np.arange(size).reshape((size,) + (1,) * rank), copy=False)


def _move_block(x: Array, source: int, destination: int, count: int) -> Array:
    """`x` with `count` neighbouring axes moved so that they begin at `destination`."""
    if source == destination or not count:
        return x
    block = list(range(source, source + count))
    order = [a for a in range(x.ndim) if a not in block]
    order[destination:destination] = block
    return transpose_p.bind(x, permutation=tuple(order))


gather_p: Primitive = Primitive(
    "gather", _gather_lower, _gather_rule, "gather",
    transpose=_gather_transpose, linear="joint", linear_operands=(0,), vmap=_gather_vmap,
    guard=index_guard(1),
)  # fmt: skip


# scatter_add and scatter_set: x with updates added, or put, at indices


def scatter_rule(
    x: Aval, updates: Aval, *indices: Aval, axes: Ints, mode: str, unique: bool = False
) -> Aval:
    expected = gathered_shape(x.shape, _index_shape("scatter", indices), axes)
    if updates.shape != expected or updates.dtype != x.dtype:
        raise ShapeError(
            f"scatter: updates {updates} must be {dtypes.name(x.dtype)} of shape {expected}, the "
            f"shape of what the indices select of {x}"
        )
    return aval(x.shape, x.dtype, x.weak and updates.weak)


def flat_updates(
    x: Any, updates: Any, indices: Sequence[Any], axes: Ints, mode: str
) -> tuple[tuple[Any, ...], Any]:
    """One flat index an axis, without those out of bounds, and the updates as rows."""
    indices = tuple(as_intp(i, mode) for i in indices)
    index_shape = np.broadcast_shapes(*[np.shape(i) for i in indices])
    place, count = index_place(axes), math.prod(index_shape)
    rest = tuple(n for a, n in enumerate(x.shape) if a not in axes)
    if place:
        rank = len(index_shape)
        updates = np.moveaxis(updates, range(place, place + rank), range(rank))
    rows = np.reshape(updates, (count, *rest))
    flat = tuple(np.broadcast_to(i, index_shape).reshape(count) for i in indices)
    if mode == "drop":
        if all_inside(x.shape, axes, flat):
            return flat, rows
        valid = valid_elements(x.shape, axes, flat)
        return tuple(i[valid] for i in flat), rows[valid]
    check_all(x.shape, axes, flat)
    return flat, rows


def _scatter_add_lower(
    x: Any, updates: Any, *indices: Any, axes: Ints, mode: str, out: Any = None
) -> Any:
    flat, rows = flat_updates(x, updates, indices, axes, mode)
    dtype, shape = x.dtype, x.shape
    found = copy_to_change(x, dtypes.accumulation(dtype), out)
    front = np.moveaxis(found, axes, range(len(axes)))  # a view: writing to it writes to found
    if dtype == np.bool_:
        np.logical_or.at(front, flat, rows)
    else:
        _add_rows(front, tuple(shape[a] for a in axes), flat, rows)
    return changed(found, dtype, out)


def _add_rows(front: Any, sizes: Ints, flat: tuple[Any, ...], rows: Any) -> None:
    """front[flat[n]] += rows[n] for each n in order.  Every way gives the same bits."""
    if not len(rows):
        return
    linear = np.ravel_multi_index(tuple(i % n for i, n in zip(flat, sizes, strict=True)), sizes)
    if _all_distinct(linear, math.prod(sizes)):
        front[flat] += rows
    elif rows.size // len(rows) < 128:
        np.add.at(front, flat, rows)
    else:  # few long rows: NumPy's loop over rows beats its loop over elements
        for n, position in enumerate(zip(*flat, strict=True)):
            front[position] += rows[n]


def _all_distinct(linear: Any, size: int) -> bool:
    """Whether no two of these positions among `size` are alike."""
    if len(linear) > size:
        return False
    if 64 * len(linear) < size:  # to sort the few is less than to look at all
        ordered = np.sort(linear)
        return not (ordered[1:] == ordered[:-1]).any()
    hit = np.zeros(size, np.bool_)
    hit[linear] = True
    return int(np.count_nonzero(hit)) == len(linear)


def _scatter_add_transpose(
    i: int, c: Array, out: Array, x: Array, updates: Array, *indices: Array, axes: Ints, mode: str
) -> Array:
    return c if i == 0 else gather_p.bind(c, *indices, axes=axes, mode=mode)


def scatter_vmap(primitive: Any) -> Any:
    """The batching rule of both: as gather's, with the updates arranged as it arranges results."""

    def vmap(
        size: int, batch: Sequence[int | None], x: Array, updates: Array, *indices: Array,
        axes: Ints, **params: Any,
    ) -> tuple[Array, int]:  # fmt: skip
        x = batch_first(x, batch[0], size)
        updates = batch_first(updates, batch[1], size)
        shifted = tuple(a + 1 for a in axes)
        if all(b is None for b in batch[2:]):
            updates = move_axis(updates, 0, _batch_place(shifted, indices))
            return primitive().bind(x, updates, *indices, axes=shifted, **params), 0
        batched, rank = _batch_indices(batch[2:], indices)
        updates = _move_block(updates, 1 + index_place(axes), 1, rank)
        indices = (_rows(size, rank), *batched)
        return primitive().bind(x, updates, *indices, axes=(0, *shifted), **params), 0

    return vmap


scatter_add_p: Primitive = Primitive(
    "scatter_add", _scatter_add_lower, scatter_rule, "gather", transpose=_scatter_add_transpose,
    linear="joint", linear_operands=(0, 1), vmap=scatter_vmap(lambda: scatter_add_p),
    guard=index_guard(2), out=True, updates=0,
)  # fmt: skip


def _scatter_set_lower(
    x: Any, updates: Any, *indices: Any, axes: Ints, mode: str, unique: bool, out: Any = None
) -> Any:
    flat, rows = flat_updates(x, updates, indices, axes, mode)
    out = copy_to_change(x, x.dtype, out)
    if not unique and len(rows):
        # NumPy does not promise in which order it writes: keep the last update of each element.
        sizes = tuple(x.shape[a] for a in axes)
        inside = tuple(i % n for i, n in zip(flat, sizes, strict=True))
        linear = np.ravel_multi_index(inside, sizes)
        _, last = np.unique(linear[::-1], return_index=True)
        if len(last) < len(linear):
            last = len(linear) - 1 - last
            flat, rows = tuple(i[last] for i in inside), rows[last]
    np.moveaxis(out, axes, range(len(axes)))[flat] = rows
    return out


def _scatter_set_transpose(
    i: int, c: Array, out: Array, x: Array, updates: Array, *indices: Array,
    axes: Ints, mode: str, unique: bool,
) -> Array:  # fmt: skip
    """What was overwritten has no influence; of several updates of an element, only the last."""
    where_to: dict[str, Any] = {"axes": axes, "mode": mode}
    if i == 0:
        zeros = zeros_of(updates.aval)
        return scatter_set_p.bind(c, zeros, *indices, unique=unique, **where_to)
    got = gather_p.bind(c, *indices, **where_to)
    if unique:
        return got
    # Number the updates and put the numbers: an update is the winner where it reads its own.
    index_shape = np.broadcast_shapes(*[j.shape for j in indices])
    numbers = np.arange(1, math.prod(index_shape) + 1).reshape(index_shape)
    sizes = tuple(x.shape[a] for a in axes)
    front: dict[str, Any] = {"axes": tuple(range(len(axes))), "mode": mode}
    mine = from_numpy(numbers, copy=False)
    blank = zeros_of(aval(sizes, mine.dtype))
    put = scatter_set_p.bind(blank, mine, *indices, unique=False, **front)
    wins = equal(gather_p.bind(put, *indices, **front), mine)
    trailing = got.ndim - index_place(axes) - len(index_shape)
    if trailing:
        wins = reshape_p.bind(wins, shape=wins.shape + (1,) * trailing)
    return where(wins, got, zeros_of(aval((), got.dtype)))


scatter_set_p: Primitive = Primitive(
    "scatter_set", _scatter_set_lower, scatter_rule, "gather", transpose=_scatter_set_transpose,
    linear="joint", linear_operands=(0, 1), vmap=scatter_vmap(lambda: scatter_set_p), selects=True,
    guard=index_guard(2), out=True, updates=0,
)  # fmt: skip


# update_slice: x with updates put where a slice reads


def _update_rule(x: Aval, updates: Aval, start: Ints, stop: Ints, step: Ints) -> Aval:
    expected = slice_shape(start, stop, step)
    if updates.shape != expected or updates.dtype != x.dtype:
        raise ShapeError(f"update_slice: updates {updates} must have shape {expected}, as in {x}")
    return aval(x.shape, x.dtype, x.weak and updates.weak)


def _update_lower(
    x: Any, updates: Any, start: Ints, stop: Ints, step: Ints, out: Any = None
) -> Any:
    out = copy_to_change(x, x.dtype, out)
    out[as_slices(start, stop, step)] = updates
    return out


def _update_transpose(
    i: int, c: Array, out: Array, x: Array, updates: Array, start: Ints, stop: Ints, step: Ints
) -> Array:
    if i == 1:
        return slice_p.bind(c, start=start, stop=stop, step=step)
    zeros = zeros_of(updates.aval)
    return update_slice_p.bind(c, zeros, start=start, stop=stop, step=step)


def _update_vmap(
    size: int, axes: Sequence[int | None], x: Array, updates: Array,
    start: Ints, stop: Ints, step: Ints,
) -> tuple[Array, int]:  # fmt: skip
    x, updates = batch_first(x, axes[0], size), batch_first(updates, axes[1], size)
    return update_slice_p.bind(
        x, updates, start=(0, *start), stop=(size, *stop), step=(1, *step)
    ), 0


update_slice_p = Primitive(
    "update_slice", _update_lower, _update_rule, "other",
    transpose=_update_transpose, linear="joint", vmap=_update_vmap, out=True, selects=True,
    updates=0,
)  # fmt: skip
