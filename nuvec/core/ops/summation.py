"""Sums of NumPy values whose error does not grow with their length.

NumPy adds pairwise along the axis that is innermost in memory, and one after the other along all
others: a million float32 numbers summed over a leading axis lose percents.  Here runs of at most
`RUN` elements are added one after the other, and their sums in a wider dtype, so the error stays
within a few units of rounding of sum(|x|).  How a sum is cut up depends on shape and strides
alone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nuvec.core import dtypes

RUN = 32  # elements added one after the other
SMALL = 4096  # elements up to which one call in the wider dtype is faster than cutting

_WIDER = {
    dtypes.float32: dtypes.float64,
    dtypes.complex64: dtypes.complex128,
    dtypes.float64: dtypes.float64,
    dtypes.complex128: dtypes.complex128,
}


def reduced_sum(x: Any, axes: tuple[int, ...]) -> Any:
    """The sum of a NumPy value over sorted `axes`, in its dtype; float16 and bfloat16 are summed
    in float32, and integers modulo 2^n."""
    dtype = x.dtype
    accumulation = dtypes.accumulation(dtype)
    # At once: left to convert them itself, NumPy would add up what its buffer holds, whatever
    # size that has.
    x = x if dtype == accumulation else x.astype(accumulation)
    if is_plain(x.shape, dtype, axes):
        total = np.add.reduce(x, axes, accumulation)
    else:
        total = _sum(x, axes, accumulation)
    return total if total.dtype == dtype else np.asarray(total).astype(dtype)


def is_plain(shape: tuple[int, ...], dtype: np.dtype, axes: tuple[int, ...]) -> bool:
    """Whether one call of `np.add.reduce` is accurate, whatever the strides."""
    if not dtypes.is_inexact(dtype) or len(shape) < 2:
        return True
    return math.prod([shape[a] for a in axes]) <= RUN or not math.prod(shape)


def _sum(x: np.ndarray, axes: tuple[int, ...], dtype: np.dtype) -> Any:
    order = _memory_order(x)
    if order is None:
        return _cut(x, axes, dtype)
    # Work in memory order, so that every step writes in it; the result has it too.
    places = sorted(range(x.ndim), key=order.__getitem__)
    total = _cut(x.transpose(order), tuple(sorted(places[a] for a in axes)), dtype)
    kept = [a for a in order if a not in axes]
    return np.transpose(total, sorted(range(len(kept)), key=kept.__getitem__))


def _memory_order(x: np.ndarray) -> list[int] | None:
    """The axes from the widest stride to the narrowest; None where they are in order."""
    if x.flags.c_contiguous or 0 in x.strides:
        return None
    order = sorted(range(x.ndim), key=lambda a: -abs(x.strides[a]))
    return None if order == list(range(x.ndim)) else order


def _cut(x: np.ndarray, axes: tuple[int, ...], dtype: np.dtype) -> Any:
    """`_sum` of an array whose axes are in memory order."""
    serial = _serial_axes(x, axes)
    count = math.prod([x.shape[a] for a in serial])
    if count <= RUN:
        return np.add.reduce(x, axes, dtype)
    wider = _WIDER[dtype]
    if wider is not dtype and x.size <= SMALL:
        return _narrow(np.add.reduce(x.astype(wider), axes), dtype)
    longest = max(serial, key=x.shape.__getitem__)
    size = x.shape[longest]
    others = tuple([a for a in axes if a != longest])
    place = longest - sum(a < longest for a in others)  # of the longest axis, without the others
    run = RUN * size // count  # so that a run with what the other serial axes add stays short
    if run < 2:
        parts = _cut(x, others, dtype)
    else:
        parts = _runs(x, axes, longest, place, run, dtype)
    if wider is dtype or parts.shape[place] <= RUN:
        return _cut(parts, (place,), dtype)
    return _narrow(np.add.reduce(parts.astype(wider), place), dtype)


def _runs(
    x: np.ndarray, axes: tuple[int, ...], longest: int, place: int, run: int, dtype: np.dtype
) -> np.ndarray:
    """The sums of the runs of one axis (and of all of the other reduced axes).

    A run's elements lie as far apart as there are runs, so that NumPy adds long rows: all first
    elements of the runs, and so on."""
    whole, rest = divmod(x.shape[longest], run)
    before = (slice(None),) * longest
    head = x[(*before, slice(0, whole * run))] if rest else x
    head = head.reshape(*x.shape[:longest], run, whole, *x.shape[longest + 1 :])  # a view
    head_axes = tuple([a + (a > longest) for a in axes])
    if not rest:
        return np.add.reduce(head, head_axes, dtype)
    shape = [n for a, n in enumerate(x.shape) if a not in axes]
    parts = np.empty((*shape[:place], whole + 1, *shape[place:]), dtype)
    kept = (slice(None),) * place
    np.add.reduce(head, head_axes, dtype, out=parts[(*kept, slice(0, whole))])
    tail = x[(*before, slice(whole * run, None))]
    np.add.reduce(tail, axes, dtype, out=parts[(*kept, whole, ...)])
    return parts


def _serial_axes(x: np.ndarray, axes: tuple[int, ...]) -> list[int]:
    """The reduced axes along which NumPy adds one after the other: all but those that are one run
    in memory with the innermost axis."""
    serial = []
    inner = True
    stride = 0
    for a in reversed(range(x.ndim)):
        size = x.shape[a]
        if size == 1:
            continue
        if inner and a in axes and stride in (0, x.strides[a]):
            stride = x.strides[a] * size
            continue
        inner = False
        if a in axes:
            serial.append(a)
    return serial


def _narrow(total: Any, dtype: np.dtype) -> Any:
    return np.asarray(total).astype(dtype)


__all__ = ["is_plain", "reduced_sum"]
