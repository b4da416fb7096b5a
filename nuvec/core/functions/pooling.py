"""Pooling: the largest, smallest or mean element of windows that slide over the spatial axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nuvec.core.array import Array, from_numpy
from nuvec.core.errors import ShapeError
from nuvec.core.functions.convolution import paddings, sizes
from nuvec.core.ops.arithmetic import divide, multiply
from nuvec.core.ops.build import as_operand, ordered, promote_operands, to_inexact
from nuvec.core.ops.convolution import positions
from nuvec.core.ops.windows import check_windows, window_max_p, window_min_p, window_sum_p
from nuvec.core.primitive import Primitive
from nuvec.core.traceback import filtered

Size = int | Sequence[int]


@filtered
def max_pool(
    x: Any, window: Size, stride: Size | None = None, padding: Any = 0, dilation: Size = 1
) -> Array:
    """The largest element of each window over the spatial axes of `x` (N, *spatial, C), in its
    dtype; NaN where one is NaN.

    window   -- the size of windows: one number, or one for each spatial axis
    stride   -- steps between windows; their size by default
    padding  -- as for `conv_general`; what is added is never the largest
    dilation -- distance between neighbouring elements of a window

    Windows that do not fit at the end are left out.  Equal largest elements share the gradient, as
    for `max`.  Raises ShapeError where the window is larger than the padded array, or a window lies
    outside of it; DtypeError for complex numbers.

    >>> import nuvec as nv
    >>> nv.max_pool(nv.array([[[1], [5], [2], [4]]]), 2).reshape(-1)
    array([5, 4], dtype=int32)
    """
    return _pool("max_pool", window_max_p, x, ordered, window, stride, padding, dilation)[0]


@filtered
def min_pool(
    x: Any, window: Size, stride: Size | None = None, padding: Any = 0, dilation: Size = 1
) -> Array:
    """The smallest element of each window, otherwise as `max_pool`.

    >>> import nuvec as nv
    >>> nv.min_pool(nv.array([[[1], [5], [2], [4]]]), 2).reshape(-1)
    array([1, 2], dtype=int32)
    """
    return _pool("min_pool", window_min_p, x, ordered, window, stride, padding, dilation)[0]


@filtered
def avg_pool(
    x: Any, window: Size, stride: Size | None = None, padding: Any = 0, dilation: Size = 1,
    count_include_pad: bool = True,
) -> Array:  # fmt: skip
    """The mean of each window over the spatial axes of `x` (N, *spatial, C), the arguments as
    for `max_pool`; padding counts as zeros, or not at all with `count_include_pad=False`.

    Integers give the default float; float16 and bfloat16 are summed in float32.

    >>> import nuvec as nv
    >>> nv.avg_pool(nv.array([[[1.0], [5.0], [2.0], [4.0]]]), 2).reshape(-1)
    array([3., 3.], dtype=float32)
    """
    total, (kernel, *where) = _pool(
        "avg_pool", window_sum_p, x, to_inexact, window, stride, padding, dilation
    )
    if count_include_pad or not any(where[1] + where[2]):
        return multiply(total, 1 / math.prod(kernel)) if math.prod(kernel) else total
    counts = np.ones((), np.float64)
    steps, low, _, spread, spatial = where
    for k, s, a, d, n, o in zip(
        kernel, steps, low, spread, spatial, total.shape[1:-1], strict=True
    ):
        at = np.arange(o)[:, None] * s + np.arange(k) * d - a
        counts = counts[..., None] * ((at >= 0) & (at < n)).sum(1)
    present = as_operand(from_numpy(counts[..., None], copy=False), total.dtype)
    return divide(total, present)


def _pool(
    name: str, primitive: Primitive, x: Any, convert: Any, window: Any, stride: Any, padding: Any,
    dilation: Any,
) -> tuple[Array, tuple[Any, ...]]:  # fmt: skip
    (x,) = promote_operands(name, (x,), convert)
    if x.ndim < 3:
        raise ShapeError(
            f"{name} takes (N, *spatial, C) with one spatial axis or more, got shape {x.shape}"
        )
    count, given = x.ndim - 2, x.shape[1:-1]
    kernel = sizes(window, count, f"{name}'s window", 1)
    steps = kernel if stride is None else sizes(stride, count, f"{name}'s stride", 1)
    spread = sizes(dilation, count, f"{name}'s dilation", 1)
    extent = positions(kernel, spread)
    low, high = paddings(padding, given, extent, steps, name)
    if min(low + high) < 0:
        raise ShapeError(f"{name}: padding must not be negative, got {padding}")
    outputs = []
    for n, k, s, a, b in zip(given, extent, steps, low, high, strict=True):
        if n + a + b < k:
            raise ShapeError(
                f"{name}: a window that extends over {extent} positions does not fit into shape "
                f"{x.shape} with padding {low} before and {high} after; take a smaller window"
            )
        outputs.append((n + a + b - k) // s + 1)
    where = {
        "window": (1, *kernel, 1), "stride": (1, *steps, 1), "low": (0, *low, 0),
        "dilation": (1, *spread, 1), "sizes": (x.shape[0], *outputs, x.shape[-1]),
    }  # fmt: skip
    if primitive.selects:  # of no elements none is the largest
        check_windows(name, x.aval, **where)
    out = primitive.bind(x, **where)
    return out, (kernel, steps, low, high, spread, given)
