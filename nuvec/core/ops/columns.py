"""Convolutions on NumPy values, as matrix products of columns.

What one output position sees of the input, over all taps of the kernel, is copied into one row of a
matrix ("im2col"); then the products of all positions with all filters are one BLAS call.  The
matrix is made a piece at a time, of at most `PIECE` bytes, so that it is read back from the cache.
How it is cut depends on shapes alone.

A dilated input has zeros between its elements.  They are never made: the outputs that meet the
same taps form a phase, and each phase is a convolution of the input itself with those taps
(`phases`).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from nuvec.core import dtypes
from nuvec.core.blas import hold, threads_for
from nuvec.core.ir import Aval
from nuvec.core.threads import run_all, thread_count

Ints = tuple[int, ...]
Index = tuple[slice, ...]

SHARES = 4  # parts of the batch that a large product, or a sum of products, is made of
LEAST = 1 << 25  # multiplications and additions of a part: with fewer, threads wait for one another
PIECE = 1 << 21  # bytes of columns made at a time
FEW = 4  # channels below which the columns are made the other way round


class Window(NamedTuple):
    """Where outputs read, along each spatial axis: output o meets tap k at o * stride
    + k * kernel_dilation - low; outside of the input they meet zeros.

    With an input dilation d that is a position among the dilated input's, of which every d-th has
    an element.  The kernel is read backwards with `flip`."""

    stride: Ints
    low: Ints
    kernel_dilation: Ints
    input_dilation: Ints
    groups: int
    flip: bool


class Phase(NamedTuple):
    """The outputs of one phase, the taps they meet, and where, as in `Window`."""

    outputs: Index
    taps: Index
    stride: Ints
    low: Ints
    dilation: Ints


@functools.lru_cache(maxsize=1024)
def phases(window: Window, outputs: Ints, kernel: Ints) -> tuple[tuple[Phase, ...], bool]:
    """What a convolution of a dilated input is made of, and whether every output is in a phase
    (the others meet zeros only)."""
    axes = [
        _axis_phases(*given)
        for given in zip(
            window.stride, window.low, window.kernel_dilation, window.input_dilation, outputs,
            kernel, strict=True,
        )
    ]  # fmt: skip
    found = [Phase(*zip(*parts, strict=True)) for parts in itertools.product(*[a for a, _ in axes])]
    return tuple(found), all(whole for _, whole in axes)


def _axis_phases(
    stride: int, low: int, dilation: int, spread: int, outputs: int, kernel: int
) -> tuple[list[tuple[slice, slice, int, int, int]], bool]:
    """The phases of one axis.  Output p + q j meets tap k0 + r t of the input itself, which has
    `spread` - 1 zeros between its elements, at (p s + k0 m - low + j q s + t r m) / d, for
    s = `stride`, m = `dilation`, d = `spread`, q = d / gcd(s, d) and r = d / gcd(m, d)."""
    every = spread // math.gcd(stride, spread)
    step = spread // math.gcd(dilation, spread)
    found = []
    for p in range(min(every, outputs)):
        for k in range(min(step, kernel)):
            start = p * stride + k * dilation - low
            if start % spread == 0:
                found.append((
                    slice(p, None, every), slice(k, None, step), every * stride // spread,
                    -(start // spread), step * dilation // spread,
                ))  # fmt: skip
                break
    return found, len(found) == min(every, outputs)


# The two products


def convolve(x: Any, weight: Any, window: Window, outputs: Ints, out: Any = None) -> Any:
    """x (N, *spatial, C) with weight (O, *kernel, C / groups) -> (N, *outputs, O)."""
    weight = _in_order(weight, window)
    if out is None:
        out = np.empty((x.shape[0], *outputs, weight.shape[0]), x.dtype)
    parts, whole = phases(window, outputs, weight.shape[1:-1])
    if not whole or not parts or not x.size or not weight.size:
        out[...] = 0
    if not out.size or not x.size or not weight.size:
        return out
    products = out.size * math.prod(weight.shape[1:])
    hold(products)
    step = _share_of(len(x), products)

    def share(k: int) -> None:
        some = slice(k * step, (k + 1) * step)
        _convolve(x[some], weight, window, parts, out[some])

    count = -(-len(x) // step)
    run_all(share, count, threads_for(count))
    return out


def _share_of(count: int, products: int) -> int:
    """The elements of a batch that one thread takes at a time: it depends on shapes alone."""
    return -(-count // SHARES) if products >= SHARES * LEAST else count


def _convolve(
    x: Any, weight: Any, window: Window, parts: Sequence[Phase], out: Any
) -> None:  # fmt: skip
    rank = out.ndim - 2
    for phase in parts:
        taps = weight[(slice(None), *phase.taps)]
        target = out[(slice(None), *phase.outputs)]
        if _is_depthwise(weight, window):
            _depthwise(x, taps, phase, target)
            continue
        for xs, os in _channels(x.shape[-1], weight.shape[0], window.groups):
            matrix = np.moveaxis(taps[os], 0, -1).reshape(-1, os.stop - os.start)
            matrix = matrix.astype(dtypes.accumulation(x.dtype), copy=False)
            for batch, rows, columns in _pieces(x[..., xs], phase, taps.shape[1:-1],
                                                target.shape[1 : rank + 1]):  # fmt: skip
                place = target[batch, rows, ..., os]
                if place.flags.c_contiguous and place.dtype == columns.dtype:
                    np.dot(columns, matrix, out=place.reshape(-1, place.shape[-1]))
                else:
                    place[...] = np.dot(columns, matrix).reshape(place.shape)


def correlate(x: Any, c: Any, window: Window, kernel: Ints, out: Any = None) -> Any:
    """The products of x (N, *spatial, C) and c (N, *outputs, O) that meet at each tap of a kernel,
    summed over N and the outputs -> (O, *kernel, C / groups): a convolution's cotangent for its
    weight."""
    shape = (c.shape[-1], *kernel, x.shape[-1] // window.groups)
    products = c.size * math.prod(shape[1:])
    hold(products)
    step = _share_of(len(x), products) or 1
    totals = np.zeros((-(-len(x) // step) or 1, *shape), dtypes.accumulation(x.dtype))

    def share(k: int) -> None:
        some = slice(k * step, (k + 1) * step)
        _correlate(x[some], c[some], window, kernel, totals[k])

    run_all(share, len(totals), threads_for(len(totals)))
    total = totals[0]
    for further in totals[1:]:
        total += further
    total = _in_order(total, window)
    if out is None:
        return total.astype(x.dtype, order="C", copy=False)
    np.copyto(out, total, casting="unsafe")
    return out


def _correlate(x: Any, c: Any, window: Window, kernel: Ints, total: Any) -> None:
    if x.size and c.size and total.size:
        for phase in phases(window, c.shape[1:-1], kernel)[0]:
            taps = total[(slice(None), *phase.taps)]
            part = c[(slice(None), *phase.outputs)]
            if _is_depthwise(total, window):
                _depthwise_taps(x, part, phase, taps)
                continue
            spatial = taps.shape[1:-1]
            for xs, os in _channels(x.shape[-1], c.shape[-1], window.groups):
                # Taps and inputs by outputs: BLAS is faster this way round.
                width = math.prod(spatial) * taps.shape[-1]
                matrix = np.zeros((width, os.stop - os.start), total.dtype)
                for batch, rows, columns in _pieces(x[..., xs], phase, spatial, part.shape[1:-1]):
                    seen = part[batch, rows, ..., os].reshape(-1, os.stop - os.start)
                    matrix += np.dot(columns.T, seen.astype(columns.dtype, copy=False))
                taps[os] += matrix.T.reshape(taps[os].shape)


def _in_order(weight: Any, window: Window) -> Any:
    if not window.flip:
        return weight
    return weight[(slice(None), *(slice(None, None, -1),) * (weight.ndim - 2))]


def _channels(inputs: int, outputs: int, groups: int) -> Iterator[tuple[slice, slice]]:
    """The input and output channels of each group."""
    m, n = inputs // groups, outputs // groups
    for g in range(groups):
        yield slice(g * m, (g + 1) * m), slice(g * n, (g + 1) * n)


# Columns


def _pieces(
    x: Any, phase: Phase, kernel: Ints, outputs: Ints
) -> Iterator[tuple[slice, slice, np.ndarray]]:
    """The rows of the matrix of columns, a piece at a time: elements of the batch, rows of
    outputs (along the first spatial axis), and what these see, (positions, taps * channels)."""
    count, channels = x.shape[0], x.shape[-1]
    dtype = dtypes.accumulation(x.dtype)
    everything = slice(0, outputs[0])
    if _sees_all(x, phase, kernel, outputs) and x.dtype == dtype:
        yield slice(0, count), everything, x.reshape(-1, channels)
        return
    row = math.prod(outputs[1:]) * math.prod(kernel) * channels * dtype.itemsize
    batch = _share(count, PIECE // (row * outputs[0]))
    rows = outputs[0] if batch > 1 else _share(outputs[0], PIECE // row)
    few = channels < FEW
    seen = _Seen(x, phase, kernel, outputs, batch, few)
    make = _columns_of_few if few else _columns
    buffer = np.empty(row // dtype.itemsize * rows * batch, dtype)
    for n in range(0, count, batch):
        views = seen.read(n, min(batch, count - n))
        for r in range(0, outputs[0], rows):
            stop = min(r + rows, outputs[0])
            columns = make(views, phase, kernel, (stop - r, *outputs[1:]), r, buffer)
            yield slice(n, n + batch), slice(r, stop), columns


def columns_bytes(x: Aval, kernel: Ints, positions: int, products: int) -> int:
    """What the columns of an input take at once, for so many outputs, and products, in all."""
    width = math.prod(kernel) * x.shape[-1] * dtypes.accumulation(x.dtype).itemsize
    if math.prod(kernel) == 1 or not x.size:
        return 0
    count = x.shape[0]
    shares = -(-count // _share_of(count, products))
    return min(shares, thread_count()) * min(PIECE, positions * width // shares)


def _share(count: int, most: int) -> int:
    """The size of as few even parts as possible of at most `most`."""
    return -(-count // -(-count // max(min(most, count), 1)))


def _sees_all(x: Any, phase: Phase, kernel: Ints, outputs: Ints) -> bool:
    """Whether every output meets one tap, at its own place: the columns are the input."""
    return (
        math.prod(kernel) == 1 and outputs == x.shape[1:-1] and not any(phase.low)
        and phase.stride == (1,) * len(outputs) and x.flags.c_contiguous
    )  # fmt: skip


class _Seen:
    """What some elements of the batch show to all outputs, without gaps and in C order: a part of
    the input where it is all inside, else a copy within zeros.  With `few` channels, these come
    first."""

    def __init__(
        self, x: Any, phase: Phase, kernel: Ints, outputs: Ints, batch: int, few: bool
    ) -> None:
        dtype = dtypes.accumulation(x.dtype)
        spans = [
            (o - 1) * s + (k - 1) * d + 1
            for o, s, k, d in zip(outputs, phase.stride, kernel, phase.dilation, strict=True)
        ]
        self.x, self.few = x, few
        inside, here = [], []
        for low, span, n in zip(phase.low, spans, x.shape[1:-1], strict=True):
            start, stop = max(low, 0), max(min(low + n, span), max(low, 0))
            inside.append(slice(start, stop))
            here.append(slice(start - low, stop - low))
        self.inside, self.here = tuple(inside), tuple(here)
        self.whole = (
            not few and x.dtype == dtype and x.flags.c_contiguous
            and x.shape[1:-1] == tuple(spans) and not any(phase.low)
        )  # fmt: skip
        if not self.whole:
            shape = (x.shape[-1], batch, *spans) if few else (batch, *spans, x.shape[-1])
            self.padded = np.zeros(shape, dtype)

    def read(self, n: int, count: int) -> np.ndarray:
        part = self.x[(slice(n, n + count), *self.here)]
        if self.whole:
            return part
        if self.few:
            padded = self.padded[:, :count]
            padded[(slice(None), slice(None), *self.inside)] = np.moveaxis(part, -1, 0)
        else:
            padded = self.padded[:count]
            padded[(slice(None), *self.inside)] = part
        return padded


def _columns(
    seen: Any, phase: Phase, kernel: Ints, outputs: Ints, row: int, buffer: Any
) -> np.ndarray:
    """Columns as rows of memory.  What lies together in the input (the channels, and the taps of
    the last axis where they are neighbours) is copied as one item."""
    count, channels = seen.shape[0], seen.shape[-1]
    together = kernel[-1] if phase.dilation[-1] == 1 else 1
    taps = (*kernel[:-1], kernel[-1] // together)
    item = np.dtype((np.void, together * channels * seen.itemsize))
    size = count * math.prod(outputs) * math.prod(kernel) * channels
    columns = buffer[:size].view(item).reshape(count, *outputs, math.prod(taps))
    steps = seen.strides[1:-1]
    strides = [step * s for step, s in zip(steps, phase.stride, strict=True)]
    start = row * strides[0]
    strides.insert(0, seen.strides[0])
    for k, tap in enumerate(itertools.product(*map(range, taps))):
        at = sum(t * d * step for t, d, step in zip(tap, phase.dilation, steps, strict=True))
        columns[..., k] = np.ndarray((count, *outputs), item, seen, start + at, strides)
    return buffer[:size].reshape(-1, math.prod(kernel) * channels)


def _columns_of_few(
    seen: Any, phase: Phase, kernel: Ints, outputs: Ints, row: int, buffer: Any
) -> np.ndarray:
    """Columns as columns of memory: with few channels, it is outputs that lie together."""
    channels, count = seen.shape[:2]
    steps = seen.strides[2:]
    shape = (*kernel, channels, count, *outputs)
    strides = (
        *(step * d for step, d in zip(steps, phase.dilation, strict=True)), *seen.strides[:2],
        *(step * s for step, s in zip(steps, phase.stride, strict=True)),
    )  # fmt: skip
    shifted = seen[:, :, row * phase.stride[0] :]
    columns = buffer[: math.prod(shape)]
    columns.reshape(shape)[...] = np.lib.stride_tricks.as_strided(shifted, shape, strides)
    return columns.reshape(math.prod(kernel) * channels, -1).T


# A few outputs from each channel alone: element by element, all channels at once


def _is_depthwise(weight: Any, window: Window) -> bool:
    return window.groups > FEW and weight.shape[-1] == 1


def _depthwise_parts(
    x: Any, phase: Phase, kernel: Ints, outputs: Ints, multiple: int
) -> Iterator[tuple[slice, list[tuple[Ints, Any]]]]:
    """Elements of the batch, and for each tap what all outputs meet, (n, *outputs, C, 1)."""
    count, channels = x.shape[0], x.shape[-1]
    itemsize = dtypes.accumulation(x.dtype).itemsize
    one = math.prod(outputs) * channels * multiple * itemsize
    batch = _share(count, PIECE // 2 // one)
    seen = _Seen(x, phase, kernel, outputs, batch, False)
    for n in range(0, count, batch):
        views = seen.read(n, min(batch, count - n))[..., None]
        found = []
        for tap in itertools.product(*map(range, kernel)):
            where = tuple(
                slice(t * d, t * d + (o - 1) * s + 1, s)
                for t, d, o, s in zip(tap, phase.dilation, outputs, phase.stride, strict=True)
            )
            found.append((tap, views[(slice(None), *where)]))
        yield slice(n, n + batch), found


def _depthwise(x: Any, weight: Any, phase: Phase, out: Any) -> None:
    channels = x.shape[-1]
    outputs = out.shape[1:-1]
    dtype = dtypes.accumulation(x.dtype)
    kernel = weight.shape[1:-1]
    taps = np.moveaxis(weight[..., 0], 0, -1).astype(dtype, copy=False)
    taps = np.ascontiguousarray(taps.reshape(*kernel, channels, -1))
    for batch, views in _depthwise_parts(x, phase, kernel, outputs, taps.shape[-1]):
        total = scratch = None
        for tap, view in views:
            if total is None:
                total = view * taps[tap]
                scratch = np.empty_like(total)
            else:
                total += np.multiply(view, taps[tap], out=scratch)
        assert total is not None
        out[batch] = total.reshape(out[batch].shape)


def _depthwise_taps(x: Any, c: Any, phase: Phase, total: Any) -> None:
    channels = x.shape[-1]
    outputs = c.shape[1:-1]
    c = c.reshape(*c.shape[:-1], channels, -1).astype(total.dtype, copy=False)
    for batch, views in _depthwise_parts(x, phase, total.shape[1:-1], outputs, c.shape[-1]):
        part = c[batch]
        ones = np.ones(math.prod(part.shape[: 1 + len(outputs)]), total.dtype)
        scratch = np.empty(part.shape, total.dtype)
        for tap, view in views:
            np.multiply(view, part, out=scratch)
            total[(slice(None), *tap, 0)] += np.dot(ones, scratch.reshape(len(ones), -1))
