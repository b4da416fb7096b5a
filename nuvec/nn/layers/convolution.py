"""Convolutions, and their transposes, in one, two and three dimensions; channels last."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from nuvec.core.array import Array
from nuvec.core.errors import ShapeError
from nuvec.core.functions.convolution import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
    sizes,
)
from nuvec.core.functions.filled import zeros
from nuvec.nn.arguments import check_size
from nuvec.nn.init import uniform
from nuvec.nn.module import Module
from nuvec.nn.structure import leaves_text

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
]

Size = int | Sequence[int]


class _Convolution(Module):
    """What all of them share: weight [out_channels, *kernel_size, in_channels / groups], drawn
    from U(-k, k) with k = 1 / sqrt(in_channels * prod(kernel_size)), and bias [out_channels]."""

    weight: Array
    bias: Array
    rank: ClassVar[int]
    convolve: ClassVar[Callable[..., Array]]
    options: ClassVar[tuple[str, ...]] = ("stride", "padding", "dilation", "groups")

    def _set_up(
        self, in_channels: int, out_channels: int, kernel_size: Size, bias: bool, groups: int = 1,
        **options: Any,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        in_channels = check_size(name, "in_channels", in_channels)
        out_channels = check_size(name, "out_channels", out_channels)
        self.groups = check_size(name, "groups", groups)
        if in_channels % groups or out_channels % groups:
            raise ValueError(
                f"{name}: groups={groups} must divide in_channels={in_channels} and "
                f"out_channels={out_channels}."
            )
        kernel = sizes(kernel_size, self.rank, f"{name}'s kernel_size", 1)
        for option, value in options.items():
            if not isinstance(value, str):
                least = 0 if "padding" in option else 1
                value = sizes(value, self.rank, f"{name}'s {option}", least)
            setattr(self, option, value)
        scale = 1 / math.sqrt(in_channels * math.prod(kernel))
        self.weight = uniform(-scale, scale)((out_channels, *kernel, in_channels // groups))
        if bias:
            self.bias = zeros((out_channels,))

    def __call__(self, x: Array) -> Array:
        """x[N, *spatial, in_channels] -> [N, *outputs, out_channels]"""
        channels = self.weight.shape[-1] * self.groups
        if x.ndim != self.rank + 2 or x.shape[-1] != channels:
            raise ShapeError(
                f"{type(self).__name__} with weight {self.weight.aval} and groups={self.groups} "
                f"needs an input of {self.rank + 2} axes, the batch first and {channels} channels "
                f"last, got {x.aval}."
            )
        given = {name: getattr(self, name) for name in self.options}
        y = type(self).convolve(x, self.weight, **given)
        return y + self.bias if "bias" in self else y

    def _extra_repr(self) -> str:
        weight = self.weight
        if not isinstance(weight, Array) or weight.ndim != self.rank + 2:
            return leaves_text(self)
        given = {"kernel_size": weight.shape[1:-1]}
        given |= {name: getattr(self, name) for name in self.options}
        listed = ", ".join(f"{name}={_short(value)}" for name, value in given.items())
        inputs = weight.shape[-1] * self.groups
        return f"{inputs}, {weight.shape[0]}, {listed}, bias={'bias' in self}"


def _short(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


class _Forward(_Convolution):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self._set_up(in_channels, out_channels, kernel_size, bias, groups, stride=stride,
                     padding=padding, dilation=dilation)  # fmt: skip


class _Transpose(_Convolution):
    options = ("stride", "padding", "dilation", "output_padding")

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        dilation: Size = 1,
        output_padding: Size = 0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self._set_up(in_channels, out_channels, kernel_size, bias, stride=stride, padding=padding,
                     dilation=dilation, output_padding=output_padding)  # fmt: skip


class Conv1d(_Forward):
    """A convolution over one axis, of inputs (N, L, in_channels).

    weight -- [out_channels, kernel_size, in_channels / groups], drawn from U(-k, k) with
              k = 1 / sqrt(in_channels * kernel_size)
    bias   -- [out_channels], zeros; absent with `bias=False`

    `stride`, `padding` (a number, "same" or "valid"), `dilation` (of the kernel) and `groups` are
    as for `nv.conv_general`.  A ShapeError tells when the input does not fit.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> layer = nn.Conv1d(4, 8, kernel_size=3, padding=1)
    >>> layer
    Conv1d(4, 8, kernel_size=3, stride=1, padding=1, dilation=1, groups=1, bias=True)  # 104 parameters
    >>> layer(nv.ones((2, 10, 4))).shape
    (2, 10, 8)
    """  # noqa: E501 (the repr is one line)

    rank = 1
    convolve = staticmethod(conv1d)


class Conv2d(_Forward):
    """A convolution over two axes, of inputs (N, H, W, in_channels).

    weight -- [out_channels, *kernel_size, in_channels / groups], drawn from U(-k, k) with
              k = 1 / sqrt(in_channels * prod(kernel_size))
    bias   -- [out_channels], zeros; absent with `bias=False`

    `kernel_size`, `stride`, `padding` (also "same" and "valid") and `dilation` (of the kernel) are
    given once for both axes, or for each; these and `groups` are as for `nv.conv_general`.  A
    ShapeError tells when the input does not fit.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> nn.Conv2d(3, 16, kernel_size=3, stride=2, padding=1)(nv.ones((8, 28, 28, 3))).shape
    (8, 14, 14, 16)
    """

    rank = 2
    convolve = staticmethod(conv2d)


class Conv3d(_Forward):
    """A convolution over three axes, of inputs (N, D, H, W, in_channels); otherwise as `Conv2d`.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> nn.Conv3d(2, 4, kernel_size=(1, 3, 3))(nv.ones((2, 4, 6, 6, 2))).shape
    (2, 4, 4, 4, 4)
    """

    rank = 3
    convolve = staticmethod(conv3d)


class ConvTranspose1d(_Transpose):
    """The transpose of a convolution over one axis, of inputs (N, L, in_channels): it gives
    (L - 1) * stride - 2 * padding + dilation * (kernel_size - 1) + 1 + output_padding positions.

    weight and bias are those of `Conv1d`.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> nn.ConvTranspose1d(4, 8, kernel_size=2, stride=2)(nv.ones((2, 5, 4))).shape
    (2, 10, 8)
    """

    rank = 1
    convolve = staticmethod(conv_transpose1d)


class ConvTranspose2d(_Transpose):
    """The transpose of a convolution over two axes, of inputs (N, H, W, in_channels); otherwise
    as `ConvTranspose1d`.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> nn.ConvTranspose2d(4, 8, kernel_size=2, stride=2)(nv.ones((2, 5, 6, 4))).shape
    (2, 10, 12, 8)
    """

    rank = 2
    convolve = staticmethod(conv_transpose2d)


class ConvTranspose3d(_Transpose):
    """The transpose of a convolution over three axes, of inputs (N, D, H, W, in_channels);
    otherwise as `ConvTranspose1d`.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> nn.ConvTranspose3d(4, 8, kernel_size=2, stride=2)(nv.ones((2, 3, 3, 3, 4))).shape
    (2, 6, 6, 6, 8)
    """

    rank = 3
    convolve = staticmethod(conv_transpose3d)
