"""np.pad: constants, edges, mirror images and wrapped ends around an array."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, operand
from nuvec.core.errors import ShapeError
from nuvec.core.functions.indexing import cast_value, take
from nuvec.core.ops.shape import broadcast_to
from nuvec.core.ops.structure import concatenate_p, pad_with
from nuvec.core.traceback import filtered

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
                if dtypes.is_bool(x.dtype) and type(value) in (int, float) and value in (0, 1):
                    value = bool(value)  # np.pad's default is 0
                value = cast_value(value, x, "pad(constant_values=v)")
                shape = x.shape[:axis] + (width[end],) + x.shape[axis + 1 :]
                parts.insert(0 if end == 0 else len(parts), broadcast_to(value, shape))
        if len(parts) > 1:
            x = concatenate_p.bind(*parts, axis=axis)
    return x
