"""Pooling layers in one, two and three dimensions; channels last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from nuvec.core.array import Array
from nuvec.core.errors import ShapeError
from nuvec.core.functions.convolution import sizes
from nuvec.core.functions.pooling import avg_pool, max_pool
from nuvec.nn.module import Module

__all__ = ["AvgPool1d", "AvgPool2d", "AvgPool3d", "MaxPool1d", "MaxPool2d", "MaxPool3d"]

Size = int | Sequence[int]


class _Pool(Module):
    """Windows of `kernel_size`, `stride` (by default their size) apart, over `rank` axes with
    `padding` around them."""

    rank: ClassVar[int]
    pool: ClassVar[Callable[..., Array]]

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> None:
        super().__init__()
        name = type(self).__name__
        self.kernel_size = sizes(kernel_size, self.rank, f"{name}'s kernel_size", 1)
        self.stride = (
            self.kernel_size if stride is None
            else sizes(stride, self.rank, f"{name}'s stride", 1)
        )  # fmt: skip
        self.padding = sizes(padding, self.rank, f"{name}'s padding", 0)

    def __call__(self, x: Array) -> Array:
        """x[N, *spatial, C] -> [N, *outputs, C]"""
        if x.ndim != self.rank + 2:
            raise ShapeError(
                f"{type(self).__name__} needs an input of {self.rank + 2} axes, the batch first "
                f"and channels last, got {x.aval}."
            )
        return type(self).pool(x, self.kernel_size, self.stride, self.padding)

    def _extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _MaxPool(_Pool):
    pool = staticmethod(max_pool)


class _AvgPool(_Pool):
    pool = staticmethod(avg_pool)


class MaxPool1d(_MaxPool):
    """The largest element of each window over one axis, of inputs (N, L, C).

    `stride` is the window's size by default; `padding` is never the largest.  Windows that do not
    fit at the end are left out.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> nn.MaxPool1d(2)
    MaxPool1d(kernel_size=(2,), stride=(2,), padding=(0,))
    >>> nn.MaxPool1d(2)(nv.array([[[1.0], [5.0], [2.0], [4.0]]])).reshape(-1)
    array([5., 4.], dtype=float32)
    """

    rank = 1


class MaxPool2d(_MaxPool):
    """The largest element of each window over two axes, of inputs (N, H, W, C); sizes are given
    once for both axes, or for each.  Otherwise as `MaxPool1d`.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> nn.MaxPool2d(3, stride=2, padding=1)(nv.ones((8, 28, 28, 16))).shape
    (8, 14, 14, 16)
    """

    rank = 2


class MaxPool3d(_MaxPool):
    """The largest element of each window over three axes, of inputs (N, D, H, W, C); otherwise as
    `MaxPool2d`.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> nn.MaxPool3d(2)(nv.ones((2, 4, 6, 8, 3))).shape
    (2, 2, 3, 4, 3)
    """

    rank = 3


class AvgPool1d(_AvgPool):
    """The mean of each window over one axis, of inputs (N, L, C); `padding` counts as zeros.

    `stride` is the window's size by default.  Windows that do not fit at the end are left out.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> nn.AvgPool1d(2)(nv.array([[[1.0], [5.0], [2.0], [4.0]]])).reshape(-1)
    array([3., 3.], dtype=float32)
    """

    rank = 1


class AvgPool2d(_AvgPool):
    """The mean of each window over two axes, of inputs (N, H, W, C); sizes are given once for both
    axes, or for each.  Otherwise as `AvgPool1d`.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> nn.AvgPool2d(2)(nv.ones((8, 28, 28, 16))).shape
    (8, 14, 14, 16)
    """

    rank = 2


class AvgPool3d(_AvgPool):
    """The mean of each window over three axes, of inputs (N, D, H, W, C); otherwise as
    `AvgPool2d`.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> nn.AvgPool3d(2)(nv.ones((2, 4, 6, 8, 3))).shape
    (2, 2, 3, 4, 3)
    """

    rank = 3
