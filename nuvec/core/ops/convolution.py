"""Convolutions: conv_general, and conv_weight, its cotangent for the weight.

With x the input, w the weight and c a cotangent, both come from one form that is linear in each,

    T(x, w, c) = sum over n, o, k of  x[n, o * stride + k * kernel_dilation - low] w[k] c[n, o],

which conv_general is without c and conv_weight without w.  Without x it is a conv_general again:
the one of c with the kernel turned around, where stride and input dilation change places.  So the
two are all that derivatives of any order need.

The primitives are given how many outputs there are, and read zeros wherever the input ends, so that
padding may be negative, and need not be the same at both ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from nuvec.core.array import Array
from nuvec.core.errors import DtypeError, ShapeError
from nuvec.core.ir import Aval, Eqn, aval
from nuvec.core.ops.columns import Ints, Window, columns_bytes, convolve, correlate
from nuvec.core.ops.shape import move_axis, reshape_p, transpose_p
from nuvec.core.primitive import Primitive

# conv_general


def check_channels(name: str, x: Aval, y: Aval, window: Window, channels: bool = True) -> None:
    """Raise unless operands of these avals can be folded: ranks, dtypes and groups."""
    if x.dtype != y.dtype:
        raise DtypeError(f"{name}: the primitive takes one dtype, got {x} and {y}")
    rank = len(window.stride)
    if x.ndim != rank + 2 or y.ndim != rank + 2:
        raise ShapeError(f"{name}: operands {x} and {y} must have {rank} spatial axes and two more")
    inputs, groups = x.shape[-1], window.groups
    outputs = y.shape[0] if channels else y.shape[-1]
    if inputs % groups or outputs % groups:
        raise ShapeError(
            f"{name}: groups={groups} must divide the {inputs} input channels and the {outputs} "
            "output channels"
        )
    if channels and y.shape[-1] * groups != inputs:
        each = f" in {groups} groups of {inputs // groups}" if groups > 1 else ""
        raise ShapeError(
            f"{name}: an input of shape {x.shape} has {inputs} channels{each}; the last axis of "
            f"the weight, of shape {y.shape}, must have size {inputs // groups}, and has "
            f"{y.shape[-1]}"
        )


def _conv_rule(x: Aval, weight: Aval, outputs: Ints, **window: Any) -> Aval:
    check_channels("conv_general", x, weight, Window(**window))
    shape = (x.shape[0], *outputs, weight.shape[0])
    return aval(shape, x.dtype, x.weak and weight.weak)


def _conv_transpose(
    i: int, c: Array, out: Array, x: Array, weight: Array, outputs: Ints, **window: Any
) -> Array:
    if i == 0:
        return _input_cotangent(c, weight, Window(**window), x.shape[1:-1])
    return conv_weight_p.bind(x, c, kernel=weight.shape[1:-1], **window)


def _input_cotangent(c: Array, weight: Array, window: Window, inputs: Ints) -> Array:
    """Element i of the input meets tap k for output o where i d = o s + k m - low.  Backwards,
    k' = K - 1 - k, that is o s = i d + k' m - ((K - 1) m - low): a convolution."""
    kernel = weight.shape[1:-1]
    low = tuple(
        (n - 1) * d - p for n, d, p in zip(kernel, window.kernel_dilation, window.low, strict=True)
    )
    backward = window._replace(
        stride=window.input_dilation, low=low, input_dilation=window.stride, flip=not window.flip
    )
    swapped = _exchange(weight, window.groups)
    return conv_general_p.bind(c, swapped, outputs=inputs, **backward._asdict())


def _exchange(weight: Array, groups: int) -> Array:
    """(O, *kernel, C / groups) -> (C, *kernel, O / groups): inputs and outputs change places."""
    outputs, *kernel, inputs = weight.shape
    rank = len(kernel)
    if groups > 1:
        weight = reshape_p.bind(weight, shape=(groups, outputs // groups, *kernel, inputs))
        order = (0, rank + 2, *range(2, rank + 2), 1)
        weight = transpose_p.bind(weight, permutation=order)
        return reshape_p.bind(weight, shape=(groups * inputs, *kernel, outputs // groups))
    return transpose_p.bind(weight, permutation=(rank + 1, *range(1, rank + 1), 0))


def _conv_vmap(
    size: int,
    axes: Sequence[int | None],
    x: Array,
    weight: Array,
    outputs: Ints,
    **window: Any,
) -> tuple[Array, int]:
    """A batch of inputs is a larger batch, one of weights more filters a group, and one of both
    more groups."""
    ax, aw = axes
    if ax is not None and aw is None:
        out = conv_general_p.bind(_first_of(x, ax), weight, outputs=outputs, **window)
        return reshape_p.bind(out, shape=(size, out.shape[0] // size, *out.shape[1:])), 0
    assert aw is not None
    weight = move_axis(weight, aw, 0)
    filters = weight.shape[1]
    if ax is not None:
        x = _last_of(move_axis(x, ax, x.ndim - 2), size)
        window["groups"] *= size
        weight = reshape_p.bind(weight, shape=(size * filters, *weight.shape[2:]))
        out = conv_general_p.bind(x, weight, outputs=outputs, **window)
        return reshape_p.bind(out, shape=(*out.shape[:-1], size, filters)), out.ndim - 1
    weight = _within_groups(weight, 1, window["groups"])
    out = conv_general_p.bind(x, weight, outputs=outputs, **window)
    return _out_of_groups(out, out.ndim - 1, size, window["groups"])


def _conv_memory(eqn: Eqn) -> tuple[int, int]:
    """The piece of the columns that is made at a time."""
    x, weight, out = eqn.inputs[0].aval, eqn.inputs[1].aval, eqn.outputs[0].aval
    products = out.size * math.prod(weight.shape[1:])
    return out.nbytes, columns_bytes(x, weight.shape[1:-1], math.prod(out.shape[:-1]), products)


conv_general_p: Primitive = Primitive(
    "conv_general",
    lambda x, weight, outputs, out=None, **window: convolve(
        x, weight, Window(**window), outputs, out
    ),
    _conv_rule, "contraction",
    transpose=_conv_transpose, linear="each", vmap=_conv_vmap, out=True, memory=_conv_memory,
)  # fmt: skip


# conv_weight


def _weight_rule(x: Aval, c: Aval, kernel: Ints, **window: Any) -> Aval:
    check_channels("conv_weight", x, c, Window(**window), False)
    if x.shape[0] != c.shape[0]:
        raise ShapeError(
            f"conv_weight: batches of {x.shape[0]} and {c.shape[0]} elements, in {x} and {c}"
        )
    shape = (c.shape[-1], *kernel, x.shape[-1] // window["groups"])
    return aval(shape, x.dtype, x.weak and c.weak)


def _weight_transpose(
    i: int, v: Array, out: Array, x: Array, c: Array, kernel: Ints, **window: Any
) -> Array:
    if i == 0:
        return _input_cotangent(c, v, Window(**window), x.shape[1:-1])
    return conv_general_p.bind(x, v, outputs=c.shape[1:-1], **window)


def _weight_vmap(
    size: int, axes: Sequence[int | None], x: Array, c: Array, kernel: Ints, **window: Any
) -> tuple[Array, int]:
    ax, ac = axes
    if ax is not None and ac is not None:
        x = _last_of(move_axis(x, ax, x.ndim - 2), size)
        c = _last_of(move_axis(c, ac, c.ndim - 2), size)
        window["groups"] *= size
        out = conv_weight_p.bind(x, c, kernel=kernel, **window)
        return reshape_p.bind(out, shape=(size, out.shape[0] // size, *out.shape[1:])), 0
    if ax is not None:
        x = move_axis(x, ax, 0)
        channels = x.shape[-1] // window["groups"]
        x = _within_groups(x, x.ndim - 1, window["groups"])
        out = conv_weight_p.bind(x, c, kernel=kernel, **window)
        return reshape_p.bind(out, shape=(*out.shape[:-1], size, channels)), out.ndim - 1
    assert ac is not None
    c = _within_groups(move_axis(c, ac, 0), c.ndim - 1, window["groups"])
    out = conv_weight_p.bind(x, c, kernel=kernel, **window)
    return _out_of_groups(out, 0, size, window["groups"])


def _weight_memory(eqn: Eqn) -> tuple[int, int]:
    x, c, out = eqn.inputs[0].aval, eqn.inputs[1].aval, eqn.outputs[0].aval
    products, positions = c.size * math.prod(out.shape[1:]), math.prod(c.shape[:-1])
    return out.nbytes, columns_bytes(x, eqn.params["kernel"], positions, products)


conv_weight_p: Primitive = Primitive(
    "conv_weight",
    lambda x, c, kernel, out=None, **window: correlate(x, c, Window(**window), kernel, out),
    _weight_rule, "contraction",
    transpose=_weight_transpose, linear="each", vmap=_weight_vmap, out=True,
    memory=_weight_memory,
)  # fmt: skip


# Batches within channels


def _first_of(x: Array, batch: int) -> Array:
    """A batch of batches as one."""
    x = move_axis(x, batch, 0)
    return reshape_p.bind(x, shape=(x.shape[0] * x.shape[1], *x.shape[2:]))


def _last_of(x: Array, size: int) -> Array:
    """A batch in front of the channels as more groups of channels."""
    return reshape_p.bind(x, shape=(*x.shape[:-2], size * x.shape[-1]))


def _within_groups(x: Array, axis: int, groups: int) -> Array:
    """The batch, axis 0 of `x`, folded into each group of the channels at `axis`."""
    size, channels = x.shape[0], x.shape[axis]
    x = reshape_p.bind(x, shape=(*x.shape[:axis], groups, channels // groups, *x.shape[axis + 1 :]))
    x = move_axis(x, 0, axis)  # the groups, now at axis - 1, then the batch
    shape = (*x.shape[: axis - 1], groups * size * (channels // groups), *x.shape[axis + 2 :])
    return reshape_p.bind(x, shape=shape)


def _out_of_groups(x: Array, axis: int, size: int, groups: int) -> tuple[Array, int]:
    """The opposite: the batch out of the channels at `axis`, and where it is."""
    channels = x.shape[axis] // size
    front, back = x.shape[:axis], x.shape[axis + 1 :]
    x = reshape_p.bind(x, shape=(*front, groups, size, channels // groups, *back))
    x = move_axis(x, axis + 1, axis)
    return reshape_p.bind(x, shape=(*front, size, channels, *back)), axis


def positions(sizes: Ints, dilation: Ints) -> Ints:
    """How many positions a dilated array, or kernel, extends over."""
    return tuple(max((n - 1) * d + 1, 0) for n, d in zip(sizes, dilation, strict=True))
