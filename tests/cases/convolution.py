"""Rows for convolutions and windows."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np

from nuvec.core.functions.convolution import conv1d, conv_general, conv_transpose2d
from nuvec.core.functions.pooling import avg_pool, max_pool, min_pool
from nuvec.core.ops.convolution import conv_weight_p
from nuvec.core.ops.windows import (
    window_deal_p,
    window_max_p,
    window_pick_p,
    window_spread_p,
    window_sum_p,
)
from tests.cases.case import Case, integers, sample

Ints = tuple[int, ...]


def direct(
    x: np.ndarray, weight: np.ndarray, stride: Ints, padding: tuple[Ints, Ints],
    kernel_dilation: Ints, input_dilation: Ints, groups: int = 1, flip: bool = False,
) -> np.ndarray:  # fmt: skip
    """conv_general, by the formula: every output from every tap, in zeros that are really there."""
    spatial = range(x.ndim - 2)
    spread = [max((x.shape[a + 1] - 1) * input_dilation[a] + 1, 0) for a in spatial]
    room = 10  # more than any padding
    shape = (x.shape[0], *[n + 2 * room for n in spread], x.shape[-1])
    padded = np.zeros(shape, np.result_type(x, np.float32 if x.dtype.itemsize == 2 else x.dtype))
    inside = [slice(room, room + n, d) for n, d in zip(spread, input_dilation, strict=True)]
    padded[(slice(None), *inside)] = x
    kernel = weight.shape[1:-1]
    outputs = [
        (spread[a] + padding[0][a] + padding[1][a] - (kernel[a] - 1) * kernel_dilation[a] - 1)
        // stride[a] + 1
        for a in spatial
    ]  # fmt: skip
    out = np.zeros((x.shape[0], *outputs, weight.shape[0]), padded.dtype)
    m, n = x.shape[-1] // groups, weight.shape[0] // groups
    for where in itertools.product(*map(range, outputs)):
        for tap in itertools.product(*map(range, kernel)):
            at = tuple(
                room + where[a] * stride[a] + tap[a] * kernel_dilation[a] - padding[0][a]
                for a in spatial
            )
            read = tuple(k - 1 - t for k, t in zip(kernel, tap, strict=True)) if flip else tap
            for g in range(groups):
                seen = padded[(slice(None), *at, slice(g * m, (g + 1) * m))]
                taps = weight[(slice(g * n, (g + 1) * n), *read)].astype(padded.dtype)
                out[(slice(None), *where, slice(g * n, (g + 1) * n))] += seen @ taps.T
    return out.astype(x.dtype)


def _conv(
    label: str, x: Ints, weight: Ints, stride: Any = 1, padding: Any = 0, kernel_dilation: Any = 1,
    input_dilation: Any = 1, groups: int = 1, flip: bool = False, **options: Any,
) -> Case:  # fmt: skip
    def all_axes(value: Any) -> Ints:
        return value if isinstance(value, tuple) else (value,) * (len(x) - 2)

    pair = padding if isinstance(padding, tuple) else (padding, padding)
    low, high = map(all_axes, pair)
    return Case(
        "conv_general",
        lambda x, w: conv_general(
            x, w, stride, (low, high), kernel_dilation, input_dilation, groups, flip
        ),
        (sample(*x), sample(*weight, seed=1)),
        lambda x, w: direct(x, w, all_axes(stride), (low, high), all_axes(kernel_dilation),
                            all_axes(input_dilation), groups, flip),
        label, **options,
    )  # fmt: skip


def _typed(label: str, x: np.ndarray, weight: np.ndarray, rtol: float = 1e-5,
           **options: Any) -> Case:  # fmt: skip
    def reference(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return direct(x, w, (1,), ((1,), (1,)), (1,), (1,))

    return Case("conv_general", lambda x, w: conv1d(x, w, padding=1), (x, weight), reference, label,
                rtol=rtol, **options)  # fmt: skip


def _weight(label: str, x: Ints, c: Ints, kernel: Ints, **window: Any) -> Case:
    rank = len(kernel)
    given: Any = {
        "stride": (1,) * rank, "low": (0,) * rank, "kernel_dilation": (1,) * rank,
        "input_dilation": (1,) * rank, "groups": 1, "flip": False, **window,
    }  # fmt: skip
    return Case(
        "conv_weight", lambda x, c: conv_weight_p.bind(x, c, kernel=kernel, **given),
        (sample(*x), sample(*c, seed=1)), label=label,
    )  # fmt: skip


CONVOLUTIONS = [
    _conv("1d", (2, 5, 3), (4, 3, 3)),
    _conv("1d-padded-strided", (2, 6, 2), (3, 3, 2), 2, 1),
    _conv("1d-one-channel", (1, 7, 1), (2, 3, 1), 1, (1, 2)),
    _conv("2d", (2, 4, 5, 4), (3, 2, 3, 4), 1, 1),
    _conv("2d-one-channel", (2, 5, 4, 1), (2, 3, 3, 1), 1, 1),
    _conv("2d-all-options", (2, 5, 4, 4), (2, 2, 3, 2), (2, 1), ((1, 2), (2, 0)), (1, 2), (2, 1), 2,
          True),
    _conv("2d-1x1", (2, 3, 4, 3), (2, 1, 1, 3)),
    _conv("2d-1x1-strided", (2, 3, 4, 3), (2, 1, 1, 3), 2),
    _conv("2d-dilated-kernel", (1, 5, 5, 2), (2, 2, 2, 2), 1, 1, 2),
    _conv("2d-dilated-input", (1, 3, 2, 5), (2, 3, 2, 5), 1, 1, 1, (2, 3)),
    _conv("2d-outputs-of-nothing", (1, 2, 2, 2), (1, 1, 1, 2), 1, 0, 1, 3),
    _conv("2d-cropped", (1, 5, 6, 2), (2, 2, 2, 2), 1, ((-1, 0), (-1, -2))),
    _conv("2d-groups", (2, 3, 3, 6), (4, 2, 2, 3), 1, 1, groups=2),
    _conv("2d-depthwise", (2, 4, 3, 5), (10, 2, 2, 1), 1, 1, groups=5),
    _conv("3d", (1, 3, 2, 3, 2), (2, 2, 2, 2, 2), 1, ((1, 0, 0), (0, 1, 0))),
    _conv("no-batch", (0, 4, 3), (2, 3, 3), 1, 1),
    _conv("no-channels", (2, 4, 0), (2, 3, 0), 1, 1),
    _conv("no-filters", (2, 4, 3), (0, 3, 3), 1, 1),
    _typed("transposed", sample(2, 3, 4).transpose(2, 1, 0), sample(2, 3, 3).transpose(2, 1, 0)),
    _typed("strided", sample(3, 8, 4)[::2, ::-1, 1::2], sample(4, 3, 4)[:, ::-1, ::2]),
    _typed("the-other-dtype", sample(2, 4, 3).astype("f8"), sample(2, 3, 3).astype("f8"), 1e-12),
    _typed("complex", sample(2, 4, 3) + 1j * sample(2, 4, 3, seed=2),
           (sample(2, 3, 3) - 1j * sample(2, 3, 3, seed=3)).astype("c8")),
    _typed("integers", integers(2, 4, 3), integers(2, 3, 3), differentiable=False),
    _typed("float16", sample(2, 4, 9).astype("f2"), sample(2, 3, 9).astype("f2"), 1e-3,
           differentiable=False),
    _typed("bfloat16", sample(2, 4, 9).astype(ml_dtypes.bfloat16),
           sample(2, 3, 9).astype(ml_dtypes.bfloat16), 1e-2, differentiable=False),
    Case("conv_general", lambda x, w: conv_transpose2d(x, w, 2, 1, output_padding=1),
         (sample(1, 3, 2, 2), sample(2, 3, 3, 2, seed=1)),
         lambda x, w: direct(x, w, (1, 1), ((1, 1), (2, 2)), (1, 1), (2, 2), flip=True),
         "transpose"),
    _weight("1d", (2, 5, 2), (2, 5, 3), (3,), low=(1,)),
    _weight("2d-all-options", (2, 3, 4, 4), (2, 3, 2, 6), (2, 3), stride=(1, 2), low=(1, -1),
            kernel_dilation=(2, 1), input_dilation=(1, 2), groups=2, flip=True),
    _weight("depthwise", (2, 4, 3, 5), (2, 3, 2, 5), (2, 2), groups=5),
    _weight("one-channel", (2, 4, 4, 1), (2, 4, 4, 2), (3, 3), low=(1, 1)),
    _weight("no-outputs", (2, 4, 2), (2, 0, 3), (3,)),
    _weight("no-batch", (0, 4, 3), (0, 4, 2), (3,), low=(1,)),
]  # fmt: skip


# Windows


def pooled(
    x: np.ndarray, fold: Any, window: Ints, stride: Ints, low: Ints, outputs: Ints, fill: float,
    dilation: int = 1,
) -> np.ndarray:  # fmt: skip
    """Windows over the spatial axes of x, one at a time."""
    room = 10
    widths = [(0, 0), *[(room, room)] * (x.ndim - 2), (0, 0)]
    padded = np.pad(x, widths, constant_values=fill)
    out = np.empty((x.shape[0], *outputs, x.shape[-1]), x.dtype)
    for where in itertools.product(*map(range, outputs)):
        at = tuple(
            slice(room + o * s - p, room + o * s - p + (k - 1) * dilation + 1, dilation)
            for o, s, p, k in zip(where, stride, low, window, strict=True)
        )
        out[(slice(None), *where)] = fold(padded[(slice(None), *at)], tuple(range(1, x.ndim - 1)))
    return out


def _pool(label: str, function: Any, x: Ints, window: Ints, stride: Ints, low: Ints, outputs: Ints,
          dilation: int = 1, **options: Any) -> Case:  # fmt: skip
    name, fold, fill = {
        max_pool: ("window_max", np.max, -9), min_pool: ("window_min", np.min, 9),
        avg_pool: ("window_sum", np.mean, 0),
    }[function]  # fmt: skip
    return Case(
        name, lambda x: function(x, window, stride, low, dilation), (sample(*x),),
        lambda x: pooled(x, fold, window, stride, low, outputs, fill, dilation),
        f"{label}-{function.__name__}", **options,
    )  # fmt: skip


_TIES = np.array([1, 1, 0, 2, 2, 2, 3, 0, 3], np.float32).reshape(1, 3, 3, 1)
# Laid along an axis: two windows of 3 with steps of 2, the first one element before the array.
_OVERLAP: Any = {"window": (1, 3), "stride": (1, 2), "low": (0, 1), "dilation": (1, 1)}


def _select(label: str, x: np.ndarray, window: Ints, stride: Ints, low: Ints, outputs: Ints,
            **options: Any) -> list[Case]:  # fmt: skip
    """Rows for the derivatives of the largest: what equals it is picked from, and dealt to."""
    given: Any = {
        "window": (1, *window, 1), "stride": (1, *stride, 1), "low": (0, *low, 0),
        "dilation": (1,) * x.ndim,
    }  # fmt: skip
    sizes = (x.shape[0], *outputs, x.shape[-1])

    def largest(x: np.ndarray) -> np.ndarray:
        return pooled(x, np.max, window, stride, low, outputs, -9)

    def picked(t: np.ndarray, x: np.ndarray) -> np.ndarray:
        def fold(pairs: np.ndarray, axes: Ints) -> np.ndarray:
            hit = pairs.imag == pairs.imag.max(axis=axes, keepdims=True)
            return np.sum(pairs.real * hit, axis=axes) / np.sum(hit, axis=axes)

        pairs = (t + 1j * x).astype(np.complex128)
        return pooled(pairs, fold, window, stride, low, outputs, -9j).real

    def pick(t: Any, x: Any) -> Any:
        return window_pick_p.bind(t, x, window_max_p.bind(x, sizes=sizes, **given), **given)

    def deal(c: Any, x: Any) -> Any:
        return window_deal_p.bind(c, x, window_max_p.bind(x, sizes=sizes, **given), **given)

    t, c = sample(*x.shape, seed=3), sample(*sizes, seed=4)

    def dealt(c: np.ndarray, x: np.ndarray) -> np.ndarray:
        # The transpose, element by element.
        eye = np.eye(x.size).reshape(x.size, *x.shape)
        return np.array([np.sum(c * picked(e, x)) for e in eye]).reshape(x.shape)

    return [Case("window_pick", pick, (t, x), picked, label, **options),
            Case("window_deal", deal, (c, x), dealt, label, **options)]  # fmt: skip


POOLS = [
    *[row for f in (max_pool, min_pool, avg_pool) for row in (
        _pool("1d", f, (2, 6, 3), (2,), (2,), (0,), (3,)),
        _pool("2d", f, (2, 4, 6, 3), (2, 2), (2, 2), (0, 0), (2, 3)),
        _pool("rest", f, (2, 5, 7, 2), (2, 3), (2, 3), (0, 0), (2, 2)),
        _pool("apart", f, (2, 7, 3), (2,), (3,), (0,), (2,)),
        _pool("overlapping", f, (1, 5, 4, 2), (3, 2), (2, 1), (0, 0), (2, 3)),
        _pool("padded", f, (1, 4, 5, 2), (3, 3), (2, 2), (1, 1), (2, 3)),
        _pool("dilated", f, (1, 6, 5, 2), (2, 2), (1, 2), (0, 0), (4, 2), 2),
        _pool("3d", f, (1, 2, 4, 3, 2), (2, 2, 1), (2, 2, 1), (0, 0, 0), (1, 2, 3)),
        _pool("no-batch", f, (0, 4, 2), (2,), (2,), (0,), (2,)),
        _pool("no-channels", f, (2, 4, 0), (2,), (2,), (0,), (2,)),
    )],
    Case("window_max", lambda x: max_pool(x, 2), (integers(2, 4, 4, 3),),
         lambda x: pooled(x, np.max, (2, 2), (2, 2), (0, 0), (2, 2), -9), "integers",
         differentiable=False),
    Case("window_max", lambda x: max_pool(x, 3, 2, 1), (integers(1, 5, 5, 2),),
         lambda x: pooled(x, np.max, (3, 3), (2, 2), (1, 1), (3, 3), -9), "padded-integers",
         differentiable=False),
    Case("window_max", lambda x: max_pool(x, 2, 1), (_TIES,),
         lambda x: pooled(x, np.max, (2, 2), (1, 1), (0, 0), (2, 2), -9), "ties",
         differentiable=False),
    Case("window_max", lambda x: max_pool(x, 2), (sample(3, 4, 2).transpose(2, 1, 0),),
         lambda x: pooled(x, np.max, (2,), (2,), (0,), (2,), -9), "transposed"),
    *_select("apart", sample(2, 4, 5, 3), (2, 2), (2, 2), (0, 0), (2, 2)),
    *_select("overlapping", sample(1, 4, 5, 2), (3, 2), (2, 1), (1, 0), (2, 4)),
    *_select("steps", sample(2, 7, 1), (2,), (3,), (0,), (2,)),
    *_select("ties", np.floor(sample(2, 5, 4, 2)), (3, 2), (1, 2), (1, 0), (5, 2),
             differentiable=False),
    *_select("no-channels", sample(2, 4, 0), (2,), (2,), (0,), (2,)),
    Case("window_sum", lambda x: avg_pool(x, 3, 2, 1, count_include_pad=False),
         (np.ones((2, 5, 4, 1), np.float32),), lambda x: np.ones((2, 3, 2, 1), np.float32),
         "without-padding"),
    Case("window_sum", lambda x: window_sum_p.bind(x, sizes=(2, 3), **_OVERLAP), (sample(2, 5),),
         lambda x: np.stack([x[:, 0:2].sum(1), x[:, 1:4].sum(1), x[:, 3:5].sum(1)], 1), "plain"),
    Case("window_sum", lambda x: avg_pool(x, 4), (sample(1, 8, 2).astype("f2"),), None, "float16",
         differentiable=False),
    Case("window_spread", lambda c: window_spread_p.bind(c, sizes=(2, 5), **_OVERLAP),
         (sample(2, 3),),
         lambda c: np.stack([c[:, 0], c[:, 0] + c[:, 1], c[:, 1], c[:, 1] + c[:, 2], c[:, 2]], 1),
         "overlapping"),
    Case("window_spread",
         lambda c: window_spread_p.bind(c, sizes=(2, 5), **{**_OVERLAP, "window": (1, 1)}),
         (sample(2, 3),),
         lambda c: np.stack([0 * c[:, 0], c[:, 1], 0 * c[:, 0], c[:, 2], 0 * c[:, 0]], 1), "apart"),
]  # fmt: skip

CASES = [*CONVOLUTIONS, *POOLS]
