"""Helpers for batching rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nuvec.core.array import Array
from nuvec.core.ops.shape import broadcast_to_p, move_axis, reshape_p
from nuvec.core.primitive import Primitive


def batch_first(x: Array, axis: int | None, size: int) -> Array:
    """`x` with its batch axis first; an unbatched operand is broadcast to the batch."""
    if axis is None:
        return broadcast_to_p.bind(x, shape=(size, *x.shape))
    return move_axis(x, axis, 0)


def batch_elementwise(
    primitive: Primitive, size: int, axes: Sequence[int | None], operands: Sequence[Array],
    params: dict[str, Any],
) -> tuple[Array, int]:  # fmt: skip
    """The batching rule of every elementwise primitive: batch axes first, ranks aligned."""
    rank = max(x.ndim - (a is not None) for x, a in zip(operands, axes, strict=True))
    aligned = []
    for x, axis in zip(operands, axes, strict=True):
        if axis is not None:
            x = move_axis(x, axis, 0)
            if x.ndim <= rank:
                shape = (size, *(1,) * (rank + 1 - x.ndim), *x.shape[1:])
                x = reshape_p.bind(x, shape=shape)
        aligned.append(x)
    return primitive.bind(*aligned, **params), 0
