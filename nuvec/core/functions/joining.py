"""Joining arrays along axes, and cutting them apart: stack and split, and their kin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nuvec.core.array import Array, operand
from nuvec.core.errors import ShapeError
from nuvec.core.functions.structure import atleast_1d, atleast_2d, atleast_3d
from nuvec.core.ops.build import normalize_axis
from nuvec.core.ops.shape import reshape_p
from nuvec.core.ops.structure import (
    concatenate,
    concatenate_p,
    expand_dims,
    operands_of,
    slice_axis,
)
from nuvec.core.size import slice_indices
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
        first, last, _ = slice_indices(slice(start, stop), n)
        parts.append(slice_axis(x, axis, first, max(first, last)))
    return parts


@filtered
def unstack(x: Any, axis: int = 0) -> tuple[Array, ...]:
    """The items of `x` along an axis, which they do not have any more.

    >>> import nuvec as nv
    >>> [item.shape for item in nv.unstack(nv.ones((2, 3)))]
    [(3,), (3,)]
    """
    x = operand(x, "unstack's operand")
    axis = normalize_axis(axis, x.ndim, "unstack")
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    return tuple([
        reshape_p.bind(slice_axis(x, axis, i, i + 1), shape=shape) for i in range(x.shape[axis])
    ])  # fmt: skip
