"""Convolutions as functions: conv_general in any number of dimensions, and the usual names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nuvec.core.array import Array
from nuvec.core.errors import ShapeError
from nuvec.core.ops.build import integer, numeric, promote_operands
from nuvec.core.ops.columns import Window
from nuvec.core.ops.convolution import Ints, check_channels, conv_general_p, positions
from nuvec.core.traceback import filtered

Size = int | Sequence[int]


@filtered
def conv_general(
    input: Any,
    weight: Any,
    stride: Size = 1,
    padding: Any = 0,
    kernel_dilation: Size = 1,
    input_dilation: Size = 1,
    groups: int = 1,
    flip: bool = False,
) -> Array:
    """The convolution (as in neural networks: a cross-correlation) of `input` (N, *spatial, C)
    with `weight` (O, *kernel, C / groups): an array (N, *outputs, O), as `mlx.core.conv_general`.

    stride           -- steps between outputs
    padding          -- zeros around the input: a number, one for each spatial axis, a pair of
                        such (before, after), or "valid" (none) or "same" (as many as make the
                        outputs input / stride).  Negative padding takes elements away
    kernel_dilation  -- distance between neighbouring taps of the kernel
    input_dilation   -- distance between neighbouring elements of the input, zeros between them
    groups           -- parts that the channels are divided into, each convolved for itself
    flip             -- with the kernel turned around, as convolutions are in mathematics

    All but `groups` and `flip` are given once for all spatial axes, or for each.  float16 and
    bfloat16 accumulate in float32; booleans are refused.  Raises ShapeError where the shapes do not
    fit, and where the kernel is larger than the padded input.

    >>> import nuvec as nv
    >>> image, weight = nv.ones((8, 28, 28, 3)), nv.ones((16, 3, 3, 3))
    >>> nv.conv_general(image, weight, stride=2, padding=1).shape
    (8, 14, 14, 16)
    """
    return _conv("conv_general", None, input, weight, stride, padding, kernel_dilation,
                 input_dilation, groups, flip)  # fmt: skip


def _conv(
    name: str, rank: int | None, x: Any, weight: Any, stride: Any, padding: Any, dilation: Any,
    spread: Any, groups: Any, flip: bool,
) -> Array:  # fmt: skip
    x, weight = promote_operands(name, (x, weight), numeric)
    if x.ndim != weight.ndim or x.ndim < 3 or rank not in (None, x.ndim - 2):
        given = f"got an input of shape {x.shape} and a weight of shape {weight.shape}"
        if rank is None:
            raise ShapeError(
                f"{name} takes an input (N, *spatial, C) and a weight (O, *kernel, C / groups) "
                f"with one spatial axis or more, {given}"
            )
        axes = ("L", "H, W", "D, H, W")[rank - 1]
        raise ShapeError(
            f"{name} takes an input (N, {axes}, C) and a weight (O, *kernel, C / groups) of "
            f"{rank + 2} axes each, {given}"
        )
    spatial = x.ndim - 2
    groups = integer(groups, f"{name}'s groups")
    if groups < 1:
        raise ShapeError(f"{name}: groups must be at least 1, got {groups}")
    strides = sizes(stride, spatial, f"{name}'s stride", 1)
    dilations = sizes(dilation, spatial, f"{name}'s kernel_dilation", 1)
    spreads = sizes(spread, spatial, f"{name}'s input_dilation", 1)
    extent, kernel = positions(x.shape[1:-1], spreads), positions(weight.shape[1:-1], dilations)
    low, high = paddings(padding, extent, kernel, strides, name)
    window = Window(strides, low, dilations, spreads, groups, bool(flip))
    check_channels(name, x.aval, weight.aval, window)
    outputs = []
    for n, k, s, a, b in zip(extent, kernel, strides, low, high, strict=True):
        if n + a + b < k:
            raise ShapeError(
                f"{name}: the kernel of weight {weight.shape} extends over {kernel} positions, "
                f"and the input of shape {x.shape} with padding {low} before and {high} after "
                f"over {tuple(n + a + b for n, a, b in zip(extent, low, high, strict=True))}; pad "
                "more, or take a smaller kernel"
            )
        outputs.append((n + a + b - k) // s + 1)
    return conv_general_p.bind(x, weight, outputs=tuple(outputs), **window._asdict())


def sizes(value: Any, count: int, name: str, least: int | None = None) -> Ints:
    """A number for all axes, or one for each, as a tuple."""
    listed = tuple(value) if isinstance(value, tuple | list) else (value,) * count
    if len(listed) == 1:
        listed *= count
    found = tuple(integer(v, name) for v in listed)
    if len(found) != count:
        raise ShapeError(f"{name} is one number or {count}, one for each spatial axis, got {value}")
    if least is not None and min(found, default=least) < least:
        raise ShapeError(f"{name} must be at least {least}, got {value}")
    return found


def paddings(
    padding: Any, given: Ints, kernel: Ints, strides: Ints, name: str
) -> tuple[Ints, Ints]:
    """The padding before and after, from any form of the argument."""
    count = len(given)
    if isinstance(padding, str):
        if padding.lower() == "valid":
            return (0,) * count, (0,) * count
        if padding.lower() != "same":
            raise ValueError(f"{name}: padding {padding!r} is neither 'same' nor 'valid'")
        totals = [
            max((-(-n // s) - 1) * s + k - n, 0)
            for n, k, s in zip(given, kernel, strides, strict=True)
        ]
        return tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)
    what = f"{name}'s padding"
    pair = isinstance(padding, tuple | list) and any(isinstance(p, tuple | list) for p in padding)
    if not pair:
        both = sizes(padding, count, what)
        return both, both
    if len(padding) != 2:
        raise ShapeError(f"{what} is a number, one for each axis or a pair of such, got {padding}")
    return sizes(padding[0], count, what), sizes(padding[1], count, what)


def _forward(rank: int) -> Callable[..., Array]:
    name, axes = f"conv{rank}d", ("L", "H, W", "D, H, W")[rank - 1]

    def conv(
        input: Any, weight: Any, stride: Size = 1, padding: Any = 0, dilation: Size = 1,
        groups: int = 1,
    ) -> Array:  # fmt: skip
        return _conv(name, rank, input, weight, stride, padding, dilation, 1, groups, False)

    conv.__doc__ = f"""`conv_general` over {rank} spatial {"axis" if rank == 1 else "axes"}:
    `input` (N, {axes}, C) and `weight` (O, *kernel, C / groups).

    >>> import nuvec as nv
    >>> x, weight = nv.ones((2, {"8, " * rank}3)), nv.ones((4, {"3, " * rank}3))
    >>> nv.{name}(x, weight, padding=1).shape
    (2, {"8, " * rank}4)
    """
    return _named(conv, name)


def _backward(rank: int) -> Callable[..., Array]:
    name, axes = f"conv_transpose{rank}d", ("L", "H, W", "D, H, W")[rank - 1]

    def conv(
        input: Any, weight: Any, stride: Size = 1, padding: Size = 0, dilation: Size = 1,
        output_padding: Size = 0, groups: int = 1,
    ) -> Array:  # fmt: skip
        strides, before, dilations, more = (
            sizes(value, rank, f"{name}'s {what}", least)
            for value, what, least in (
                (stride, "stride", 1), (padding, "padding", None), (dilation, "dilation", 1),
                (output_padding, "output_padding", 0),
            )
        )  # fmt: skip
        x, weight = promote_operands(name, (input, weight), numeric)
        if any(m >= max(s, d) for m, s, d in zip(more, strides, dilations, strict=True)):
            raise ShapeError(
                f"{name}: output_padding {more} must be smaller than the stride, {strides}, or the "
                f"dilation, {dilations}: it says which of the sizes that a convolution with this "
                "stride takes to the input's is meant"
            )
        kernel = positions(weight.shape[1:-1], dilations) if weight.ndim == rank + 2 else ()
        if kernel and x.ndim == rank + 2:
            extent = positions(x.shape[1:-1], strides)
            full = tuple(n + k - 1 + m for n, k, m in zip(extent, kernel, more, strict=True))
            if any(n <= 2 * p for n, p in zip(full, before, strict=True)):
                raise ShapeError(
                    f"{name}: an input of shape {x.shape} and a weight of shape {weight.shape} "
                    f"with stride {strides} give {full} positions, of which padding {before} "
                    "takes away as many at each end, which leaves none; take less padding"
                )
        low = tuple(k - 1 - p for k, p in zip(kernel, before, strict=False))
        high = tuple(p + m for p, m in zip(low, more, strict=False))
        pair = (low, high) if kernel else 0
        return _conv(name, rank, x, weight, 1, pair, dilations, strides, groups, True)

    conv.__doc__ = f"""The transpose of a convolution with this stride and padding: `input`
    (N, {axes}, C) and `weight` (O, *kernel, C / groups) give outputs of
    (n - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1 + output_padding along each axis.

    output_padding -- less than the stride, or the dilation: several sizes become the input's under
                      a convolution with a stride, and this says which is meant

    Raises ShapeError where that does not hold, or no output is left, and as `conv_general`.

    >>> import nuvec as nv
    >>> x, weight = nv.ones((2, {"8, " * rank}3)), nv.ones((4, {"2, " * rank}3))
    >>> nv.{name}(x, weight, stride=2).shape
    (2, {"16, " * rank}4)
    """
    return _named(conv, name)


def _named(function: Callable[..., Array], name: str) -> Callable[..., Array]:
    function.__name__ = function.__qualname__ = name
    named: Callable[..., Array] = filtered(function)
    return named


conv1d, conv2d, conv3d = map(_forward, (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = map(_backward, (1, 2, 3))
