"""Initialisers: functions that make the first value of a parameter.

As in MLX, each function here returns the initialiser, which takes an array (or a shape) and
returns a new array of that shape. Random ones draw from the default stream, or from `key`.

>>> import nuvec.nn as nn
>>> nn.init.constant(0.5)((2,))
array([0.5, 0.5], dtype=float32)
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from nuvec import random
from nuvec.core import dtypes
from nuvec.core.array import Array
from nuvec.core.errors import ShapeError
from nuvec.core.functions.filled import full
from nuvec.core.functions.ranges import eye
from nuvec.core.ops.build import sizes_of
from nuvec.nn import arguments
from nuvec.nn.arguments import as_number

__all__ = [
    "Initializer",
    "constant",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "identity",
    "normal",
    "ones",
    "uniform",
    "zeros",
]


class Initializer(Protocol):
    """`initializer(like, key=None)`: an array of the shape `like` has, or is."""

    def __call__(self, like: Any, key: Array | None = None) -> Array: ...


def constant(value: float, dtype: Any = dtypes.float32) -> Initializer:
    """All elements `value`."""
    return lambda like, key=None: full(_shape(like), value, dtype=dtype)


def zeros(dtype: Any = dtypes.float32) -> Initializer:
    """All elements 0."""
    return constant(0.0, dtype)


def ones(dtype: Any = dtypes.float32) -> Initializer:
    """All elements 1."""
    return constant(1.0, dtype)


def normal(mean: float = 0.0, std: float = 1.0, dtype: Any = dtypes.float32) -> Initializer:
    """Draws from the normal distribution N(mean, std^2)."""
    mean, std = as_number(mean, "init.normal: mean"), as_number(std, "init.normal: std")

    def initialize(like: Any, key: Array | None = None) -> Array:
        draw = random.normal(key, _shape(like), dtype)
        return draw * arguments.like(std, draw) + arguments.like(mean, draw)

    return initialize


def uniform(low: float = 0.0, high: float = 1.0, dtype: Any = dtypes.float32) -> Initializer:
    """Draws from the uniform distribution on [low, high)."""
    low, high = as_number(low, "init.uniform: low"), as_number(high, "init.uniform: high")

    def initialize(like: Any, key: Array | None = None) -> Array:
        return random.uniform(key, _shape(like), dtype, minval=low, maxval=high)

    return initialize


def identity(dtype: Any = dtypes.float32) -> Initializer:
    """The identity matrix; ShapeError unless the shape is [n, n]."""

    def initialize(like: Any, key: Array | None = None) -> Array:
        shape = _shape(like)
        if len(shape) != 2 or shape[0] != shape[1]:
            raise ShapeError(f"init.identity needs a square matrix, got the shape {shape}.")
        return eye(shape[0], dtype=dtype)

    return initialize


def glorot_normal(dtype: Any = dtypes.float32, *, gain: float = 1.0) -> Initializer:
    """N(0, s^2), s = gain sqrt(2 / (fan_in + fan_out)).

    (Glorot and Bengio 2010, https://proceedings.mlr.press/v9/glorot10a.html)
    """

    def initialize(like: Any, key: Array | None = None) -> Array:
        fan_in, fan_out = _fans(like)
        return normal(0.0, gain * math.sqrt(2 / (fan_in + fan_out)), dtype)(like, key)

    return initialize


def glorot_uniform(dtype: Any = dtypes.float32, *, gain: float = 1.0) -> Initializer:
    """U(-s, s), s = gain sqrt(6 / (fan_in + fan_out)); the paper as for `glorot_normal`."""

    def initialize(like: Any, key: Array | None = None) -> Array:
        fan_in, fan_out = _fans(like)
        bound = gain * math.sqrt(6 / (fan_in + fan_out))
        return uniform(-bound, bound, dtype)(like, key)

    return initialize


def he_normal(
    dtype: Any = dtypes.float32, *, mode: str = "fan_in", gain: float = 1.0
) -> Initializer:
    """N(0, s^2), s = gain / sqrt(fan), where mode says which fan: "fan_in" or "fan_out".

    (He et al. 2015, https://arxiv.org/abs/1502.01852; gain sqrt(2) is theirs for ReLU)
    """
    position = _mode(mode)

    def initialize(like: Any, key: Array | None = None) -> Array:
        return normal(0.0, gain / math.sqrt(_fans(like)[position]), dtype)(like, key)

    return initialize


def he_uniform(
    dtype: Any = dtypes.float32, *, mode: str = "fan_in", gain: float = 1.0
) -> Initializer:
    """U(-s, s), s = gain sqrt(3 / fan); mode and the paper as for `he_normal`."""
    position = _mode(mode)

    def initialize(like: Any, key: Array | None = None) -> Array:
        bound = gain * math.sqrt(3 / _fans(like)[position])
        return uniform(-bound, bound, dtype)(like, key)

    return initialize


def _shape(like: Any) -> tuple[int, ...]:
    # A NumPy integer is a size, though it has a shape of its own.
    if hasattr(like, "shape") and not isinstance(like, np.generic):
        return tuple(like.shape)
    return sizes_of(like, "an initializer")


def _fans(like: Any) -> tuple[int, int]:
    """fan_in and fan_out of a weight [out, ..., in], as MLX lays them out."""
    shape = _shape(like)
    if len(shape) < 2:
        raise ShapeError(f"a fan needs a weight of two or more axes, got the shape {shape}.")
    window = math.prod(shape[1:-1])
    return shape[-1] * window, shape[0] * window


def _mode(mode: str) -> int:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f'mode must be "fan_in" or "fan_out", got {mode!r}.')
    return ("fan_in", "fan_out").index(mode)
