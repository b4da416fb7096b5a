"""Sums and products of a few mapped elements, computed one element after the other.

The elements of a named axis are ranks, and a program gives them the bits that it gives as many
real ranks.  NumPy and BLAS sum in another order for another shape, so that the sums and products
of a whole batch differ in their last bits from those of its elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nuvec.core import dtypes
from nuvec.core.array import Array
from nuvec.core.ops.differentiation import zeros_of
from nuvec.core.ops.indexing import update_slice_p
from nuvec.core.ops.shape import move_axis, reshape_p
from nuvec.core.ops.structure import concatenate_p, slice_axis
from nuvec.core.primitive import Primitive
from nuvec.transforms.axis import walked_axis

MOST = 16  # elements of which each has an equation of its own


def separates(size: int) -> bool:
    """Whether what is batched now is mapped over a named axis of so few elements."""
    return size <= MOST and walked_axis() is not None


def is_separate(primitive: Primitive, size: int, out: Any) -> bool:
    """Whether elements of a named axis get their results one by one: where the order of a sum
    counts.  `out` is the aval of an element's result."""
    if size > MOST or primitive.kind not in ("contraction", "reduction") or primitive.multiple:
        return False
    return dtypes.is_inexact(out.dtype)


def batch_separately(
    primitive: Primitive, size: int, axes: Sequence[int | None], operands: Sequence[Array],
    params: dict[str, Any],
) -> tuple[Array, int]:  # fmt: skip
    """The batching rule of any primitive with one result: an equation for each element."""
    parts = []
    for i in range(size):
        mine = [_element(x, axis, i) for x, axis in zip(operands, axes, strict=True)]
        part = primitive.bind(*mine, **params)
        parts.append(reshape_p.bind(part, shape=(1, *part.shape)))
    return (concatenate_p.bind(*parts, axis=0) if size > 1 else parts[0]), 0


def in_rank_order(x: Array, axis: int | None, view: bool = False) -> tuple[Array, int | None]:
    """A batched value laid out as ranks have theirs, each element for itself: the batch first, and
    in memory too, so that the sum of an element is taken in the order of a rank's.  A `view` keeps
    the order of what it shows."""
    if axis is None or axis == 0:
        return x, axis
    moved = move_axis(x, axis, 0)
    return (moved if view else in_c_order(moved)), 0


def in_c_order(x: Array) -> Array:
    """`x`, copied into C order."""
    if x.ndim < 2:
        return x
    zeros, ones = (0,) * x.ndim, (1,) * x.ndim
    return update_slice_p.bind(zeros_of(x.aval), x, start=zeros, stop=x.shape, step=ones)


def _element(x: Array, axis: int | None, i: int) -> Array:
    if axis is None:
        return x
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    return reshape_p.bind(slice_axis(x, axis, i, i + 1), shape=shape)
