"""Activation functions.

They take an array of any shape and a floating dtype and return the same shape and dtype;
`softmax` and its like work along an axis. Numbers such as slopes take the dtype of the array.
Names follow MLX.
"""

from __future__ import annotations

import math

from nuvec.core.array import Array
from nuvec.core.errors import ShapeError
from nuvec.core.functions.exponentials import log_softmax as _log_softmax
from nuvec.core.functions.exponentials import softmax as _softmax
from nuvec.core.functions.joining import split
from nuvec.core.ops.erf import erf
from nuvec.core.ops.exponential import expm1
from nuvec.core.ops.exponential import sigmoid as _sigmoid
from nuvec.core.ops.exponential import tanh as _tanh
from nuvec.core.ops.logaddexp import logaddexp
from nuvec.core.ops.selection import clip, where
from nuvec.nn.arguments import like


def relu(x: Array) -> Array:
    """x where it is positive, else 0. The derivative at 0 is 0.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> nn.relu(nv.array([-1.0, 0.0, 2.0]))
    array([0., 0., 2.], dtype=float32)
    """
    # A selection rather than maximum(x, 0), whose two sides share the derivative at a tie. The
    # comparison is false for NaN, so NaN stays NaN.
    return where(x <= 0, 0, x)


def relu2(x: Array) -> Array:
    """relu(x)^2"""
    y = relu(x)
    return y * y


def relu6(x: Array) -> Array:
    """min(relu(x), 6)"""
    return where(x >= 6, 6, relu(x))


def leaky_relu(x: Array, negative_slope: float = 0.01) -> Array:
    """x where it is positive, else negative_slope * x."""
    return where(x > 0, x, like(negative_slope, x) * x)


def prelu(x: Array, alpha: Array) -> Array:
    """x where it is positive, else alpha * x, with an alpha that broadcasts with x."""
    alpha = alpha if isinstance(alpha, Array) else like(alpha, x)
    return where(x > 0, x, alpha * x)


def elu(x: Array, alpha: float = 1.0) -> Array:
    """x where it is positive, else alpha (exp(x) - 1)."""
    return where(x > 0, x, like(alpha, x) * expm1(x))


def celu(x: Array, alpha: float = 1.0) -> Array:
    """x where it is positive, else alpha (exp(x / alpha) - 1)."""
    alpha = like(alpha, x)
    return where(x > 0, x, alpha * expm1(x / alpha))


def selu(x: Array) -> Array:
    """1.0507 elu(x, 1.6733), which keeps mean 0 and variance 1 (arXiv:1706.02515)."""
    return elu(x, 1.6732632423543772) * 1.0507009873554805


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))"""
    return _sigmoid(x)


def log_sigmoid(x: Array) -> Array:
    """log(sigmoid(x)) = -softplus(-x), without overflow."""
    return -softplus(-x)


def tanh(x: Array) -> Array:
    """The hyperbolic tangent."""
    return _tanh(x)


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), without overflow."""
    return logaddexp(x, 0.0)


def softsign(x: Array) -> Array:
    """x / (1 + |x|)"""
    return x / (1 + abs(x))


def silu(x: Array) -> Array:
    """x sigmoid(x), also called swish."""
    return x * _sigmoid(x)


def mish(x: Array) -> Array:
    """x tanh(softplus(x)) (arXiv:1908.08681)"""
    return x * _tanh(softplus(x))


def gelu(x: Array) -> Array:
    """x P(Z <= x) for a standard normal Z: x (1 + erf(x / sqrt 2)) / 2 (arXiv:1606.08415).

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> nn.gelu(nv.array([0.0, 1.0])).tolist()
    [0.0, 0.8413447141647339]
    """
    return x * (1 + erf(x * math.sqrt(0.5))) * 0.5


def gelu_approx(x: Array) -> Array:
    """gelu, nearly: x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2."""
    scale = math.sqrt(2 / math.pi)
    return x * (1 + _tanh(x * (scale + 0.044715 * scale * (x * x)))) * 0.5


def gelu_fast_approx(x: Array) -> Array:
    """gelu, roughly: x sigmoid(1.702 x)."""
    return x * _sigmoid(1.702 * x)


def hard_tanh(x: Array, min_val: float = -1.0, max_val: float = 1.0) -> Array:
    """x, clipped to [min_val, max_val]."""
    return clip(x, like(min_val, x), like(max_val, x))


def hard_shrink(x: Array, lambd: float = 0.5) -> Array:
    """x where |x| > lambd, else 0."""
    return where(abs(x) <= like(lambd, x), 0, x)  # NaN stays NaN


def softshrink(x: Array, lambd: float = 0.5) -> Array:
    """x brought nearer to 0 by lambd, and 0 where |x| <= lambd."""
    lambd = like(lambd, x)
    return x - clip(x, -lambd, lambd)


def hardswish(x: Array) -> Array:
    """x relu6(x + 3) / 6"""
    return x * relu6(x + 3) / 6


def step(x: Array, threshold: float = 0.0) -> Array:
    """1 where x > threshold, else 0, in x's dtype."""
    return (x > like(threshold, x)).astype(x.dtype)


def softmax(x: Array, axis: int = -1) -> Array:
    """exp(x) / sum(exp(x)) along an axis."""
    return _softmax(x, axis=axis)


def softmin(x: Array, axis: int = -1) -> Array:
    """softmax(-x)"""
    return _softmax(-x, axis=axis)


def log_softmax(x: Array, axis: int = -1) -> Array:
    """log(softmax(x)) along an axis, without underflow.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> nn.log_softmax(nv.array([0.0, 1000.0]))
    array([-1000.,     0.], dtype=float32)
    """
    return _log_softmax(x, axis=axis)


def glu(x: Array, axis: int = -1) -> Array:
    """a sigmoid(b), where a and b are the halves of x along an axis (arXiv:1612.08083).

    The axis comes out half as long; a ShapeError tells when its size is odd.
    """
    if x.shape[axis] % 2:
        raise ShapeError(f"glu halves axis {axis} of {x.aval}, whose size is odd.")
    first, second = split(x, 2, axis=axis)
    return first * _sigmoid(second)
