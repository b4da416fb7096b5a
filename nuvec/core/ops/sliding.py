"""Windows that slide over NumPy values: sums, extremes, and what equals the extreme.

A window is given as its size, stride and so on along each axis, as in windows.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.ops.choosing import choose

Ints = tuple[int, ...]
Axis = tuple[int, int, int, int, int]  # window, stride, low, dilation, size: one axis of a window
Index = tuple[slice, ...]

BLOCK = 1 << 19  # bytes of an operand that are gone through at a time


def axes_of(
    window: Ints, stride: Ints, low: Ints, dilation: Ints, sizes: Ints, shape: Ints
) -> list[tuple[int, int, Axis]]:
    """The axes along which something happens: which, its size in x, and its part of the window."""
    parts = zip(window, stride, low, dilation, sizes, strict=True)
    return [
        (a, n, axis)
        for a, (n, axis) in enumerate(zip(shape, parts, strict=True))
        if axis != (1, 1, 0, 1, n)
    ]


def _taps(n: int, axis: Axis) -> Iterator[tuple[slice, slice, bool]]:
    """For each tap, what it reads of n elements, for which outputs, and whether for all."""
    window, stride, low, dilation, size = axis
    for k in range(window):
        offset = k * dilation - low
        first = max(-(offset // stride), 0)
        last = min((n - 1 - offset) // stride, size - 1)
        if first <= last:
            start = first * stride + offset
            yield (
                slice(start, start + (last - first) * stride + 1, stride), slice(first, last + 1),
                last - first + 1 == size,
            )  # fmt: skip


def _at(axis: int, part: slice) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, part)


def fold(ufunc: Any, start: Callable[[np.dtype], Any]) -> Callable[..., Any]:
    """What folds every window with a ufunc, `start(dtype)` standing for a window of nothing."""

    def lower(x: Any, out: Any = None, sizes: Ints = (), **window: Ints) -> Any:
        dtype = x.dtype
        x = np.asarray(x)
        if ufunc is np.add:
            x = x.astype(dtypes.accumulation(dtype), copy=False)
        axes = axes_of(sizes=sizes, shape=x.shape, **window)
        for i, (a, n, axis) in enumerate(axes):
            last = i == len(axes) - 1 and out is not None and out.dtype == x.dtype
            shape = (*x.shape[:a], axis[-1], *x.shape[a + 1 :])
            x = along(x, a, n, axis, out if last else np.empty(shape, x.dtype))
        return _given(x, dtype, out, bool(axes))

    def along(x: Any, a: int, n: int, axis: Axis, into: Any) -> Any:
        taps = list(_taps(n, axis))
        whole = [t for t in taps if t[2]][:2]
        if whole:
            first, second = whole[0], whole[-1]
            if first is second:
                into[...] = x[_at(a, first[0])]
            else:
                ufunc(x[_at(a, first[0])], x[_at(a, second[0])], out=into)
        else:
            into[...] = start(x.dtype)
        for read, outputs, _ in [t for t in taps if not any(t is w for w in whole)]:
            place = into[_at(a, outputs)]
            ufunc(place, x[_at(a, read)], out=place)
        return into

    return lower


def spread(c: Any, out: Any = None, sizes: Ints = (), **window: Ints) -> Any:
    dtype = c.dtype
    c = np.asarray(c).astype(dtypes.accumulation(dtype), copy=False)
    axes = axes_of(sizes=c.shape, shape=sizes, **window)
    for i, (a, n, axis) in enumerate(reversed(axes)):  # it grows: the innermost axis first
        last = i == len(axes) - 1 and out is not None and out.dtype == c.dtype
        into = out if last else np.empty((*c.shape[:a], n, *c.shape[a + 1 :]), c.dtype)
        disjoint = (axis[0] - 1) * axis[3] < axis[1]
        taps = list(_taps(n, axis))
        if not disjoint or sum(t.stop - t.start for _, t, _ in taps) < n:
            into[...] = 0
        for read, outputs, _ in taps:
            place = into[_at(a, read)]
            if disjoint:
                place[...] = c[_at(a, outputs)]
            else:
                place += c[_at(a, outputs)]
        c = into
    return _given(c, dtype, out, bool(axes))


def _given(x: Any, dtype: np.dtype, out: Any, fresh: bool) -> Any:
    """The result in its dtype and, where there is one, in the buffer given; else in new memory."""
    if out is None:
        return x.astype(dtype, order="C", copy=not fresh)
    if x is not out:
        np.copyto(out, x, casting="unsafe")
    return out


def lowest(dtype: np.dtype) -> Any:
    """What no number of a dtype is less than."""
    if dtypes.is_bool(dtype):
        return False
    return dtypes.iinfo(dtype).min if dtypes.is_integer(dtype) else -math.inf


def highest(dtype: np.dtype) -> Any:
    """What no number of a dtype is greater than."""
    if dtypes.is_bool(dtype):
        return True
    return dtypes.iinfo(dtype).max if dtypes.is_integer(dtype) else math.inf


# What equals the extreme


def pick(t: Any, x: Any, m: Any, out: Any = None, **window: Ints) -> Any:
    """The mean of t over the elements of each window of x that equal its m."""
    out = np.empty(m.shape, m.dtype) if out is None else out
    zero = np.zeros((), dtypes.accumulation(x.dtype))
    for block, selected in _blocks(x, m, **window):
        total = np.zeros(selected.shape, zero.dtype)
        for (read, outputs), hit in zip(selected.taps, selected.hits, strict=True):
            place = total[outputs]
            place += choose(hit, _packed(t[block], read, selected.lead, total.dtype), zero)
        total /= selected.counts
        out[block] = total
    return out


def deal(c: Any, x: Any, m: Any, out: Any = None, **window: Ints) -> Any:
    """Each c dealt out, in equal parts, to the elements of its window of x that equal its m."""
    out = np.empty(x.shape, x.dtype) if out is None else out
    if not m.size:
        out[...] = 0
    dtype = dtypes.accumulation(x.dtype)
    zero = np.zeros((), dtype)
    sides = zip(window["window"], window["stride"], window["dilation"], strict=True)
    apart = all((w - 1) * d < s for w, s, d in sides)
    for block, selected in _blocks(x, m, **window):
        place = out[block]
        target = place
        if dtype != x.dtype or not place.flags.c_contiguous:
            target = np.empty(place.shape, dtype)
        if not apart or sum(hit.size for hit in selected.hits) < target.size:
            target[...] = 0
        share = np.divide(c[block], selected.counts, dtype=dtype)
        items = _items(target, selected.lead)
        for (read, outputs), hit in zip(selected.taps, selected.hits, strict=True):
            part = choose(hit, np.ascontiguousarray(share[outputs]), zero)
            if apart:
                items[read[: selected.lead]] = _items(part, selected.lead)
            else:
                target[read] += part
        if target is not place:
            place[...] = target
    return out


class _Selected:
    """Which elements of some windows equal their m.

    taps   -- for each tap, what it reads and for which outputs
    hits   -- for each tap, whether it is picked there
    counts -- how many of each window are picked
    lead   -- the axes in front of the last along which nothing slides: these are copied as one
    """

    def __init__(self, x: Any, m: Any, axes: list[tuple[int, int, Axis]], lead: int) -> None:
        self.shape, self.lead = m.shape, lead
        by_axis = {a: list(_taps(n, axis)) for a, n, axis in axes}
        self.taps: list[tuple[Index, Index]] = []
        self.hits: list[np.ndarray] = []
        counts = np.zeros(
            m.shape, np.int8 if math.prod([a[0] for _, _, a in axes]) < 128 else np.intp
        )
        for tap in itertools.product(*by_axis.values()):
            places = dict(zip(by_axis, tap, strict=True))
            read = tuple(places[a][0] if a in places else slice(None) for a in range(x.ndim))
            outputs = tuple(places[a][1] if a in places else slice(None) for a in range(x.ndim))
            hit = np.equal(_packed(x, read, lead, x.dtype), m[outputs])
            counts[outputs] += hit.view(np.int8)
            self.taps.append((read, outputs))
            self.hits.append(hit)
        self.counts = counts.astype(dtypes.accumulation(x.dtype))


def _blocks(x: Any, m: Any, **window: Ints) -> Iterator[tuple[slice, _Selected]]:
    """The windows a part at a time, cut along the first axis where nothing slides along it."""
    if not m.size:
        return
    axes = axes_of(sizes=m.shape, shape=x.shape, **window)
    sliding = [a for a, _, _ in axes]
    lead = max(sliding, default=-1) + 1
    count = x.shape[0]
    step = count
    if sliding and 0 not in sliding:
        step = max(1, BLOCK * count // max(x.nbytes, 1))
    for n in range(0, count, step):
        block = slice(n, n + step)
        yield block, _Selected(x[block], m[block], axes, lead)


def _items(x: Any, lead: int) -> Any:
    """A C-contiguous array with all but its first axes as one item, which copies faster."""
    shape = x.shape[:lead]
    run = math.prod(x.shape[lead:])
    item = np.dtype((np.void, run * x.itemsize))
    return x.reshape(*shape, run).view(item).reshape(shape)


def _packed(x: Any, read: Index, lead: int, dtype: np.dtype) -> Any:
    """x[read], in C order."""
    found = x[read]
    if lead == x.ndim or x.dtype != dtype or not x.flags.c_contiguous:
        return np.ascontiguousarray(found, dtype)
    packed = np.empty(found.shape, dtype)
    _items(packed, lead)[...] = _items(x, lead)[read[:lead]]
    return packed
