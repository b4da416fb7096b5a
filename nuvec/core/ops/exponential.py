"""Exponentials, logarithms, and the circular and hyperbolic functions.

Integers and booleans are computed in float32, other dtypes in their own.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.ops.arithmetic import add, multiply, negative, reciprocal, subtract
from nuvec.core.ops.build import Unary, elementwise_rule, to_inexact, unary
from nuvec.core.primitive import Primitive

LN2 = math.log(2.0)
LN10 = math.log(10.0)

exp_p = Primitive(
    "exp", np.exp, elementwise_rule("exp"), "elementwise",
    derivatives=(lambda out, x: out,), out=True,
)  # fmt: skip
exp = unary(
    exp_p,
    to_inexact,
    """e to the power `x`, elementwise.

    >>> import nuvec as nv
    >>> nv.round(nv.exp(nv.array([0.0, 1.0])), 3)
    array([1.   , 2.718], dtype=float32)
    """,
)

expm1_p = Primitive(
    "expm1", np.expm1, elementwise_rule("expm1"), "elementwise",
    # d(e^x - 1) = e^x = out + 1
    derivatives=(lambda out, x: add(out, 1),), out=True,
)  # fmt: skip
expm1 = unary(
    expm1_p,
    to_inexact,
    """e to the power `x`, minus 1, precise where `x` is near 0.

    >>> import nuvec as nv
    >>> nv.expm1(nv.array([0.0, 1e-8]))
    array([0.e+00, 1.e-08], dtype=float32)
    """,
)

exp2_p = Primitive(
    "exp2", np.exp2, elementwise_rule("exp2"), "elementwise",
    # d 2^x = 2^x ln 2
    derivatives=(lambda out, x: multiply(out, LN2),), out=True,
)  # fmt: skip
exp2 = unary(
    exp2_p,
    to_inexact,
    """2 to the power `x`, elementwise.

    >>> import nuvec as nv
    >>> nv.round(nv.exp2(nv.array([0.0, 3.0])), 3)
    array([1., 8.], dtype=float32)
    """,
)

log_p = Primitive(
    "log", np.log, elementwise_rule("log"), "elementwise",
    derivatives=(lambda out, x: reciprocal(x),), out=True,
)  # fmt: skip
log = unary(
    log_p,
    to_inexact,
    """The natural logarithm, elementwise: -inf at 0, NaN below.

    >>> import nuvec as nv
    >>> nv.round(nv.log(nv.array([1.0, 2.0])), 3)
    array([0.   , 0.693], dtype=float32)
    """,
)

log1p_p = Primitive(
    "log1p", np.log1p, elementwise_rule("log1p"), "elementwise",
    derivatives=(lambda out, x: reciprocal(add(x, 1)),), out=True,
)  # fmt: skip
log1p = unary(
    log1p_p,
    to_inexact,
    """The natural logarithm of `1 + x`, precise where `x` is near 0.

    >>> import nuvec as nv
    >>> nv.log1p(nv.array([0.0, 1e-8]))
    array([0.e+00, 1.e-08], dtype=float32)
    """,
)

log2_p = Primitive(
    "log2", np.log2, elementwise_rule("log2"), "elementwise",
    # d log2(x) = 1 / (x ln 2)
    derivatives=(lambda out, x: reciprocal(multiply(x, LN2)),), out=True,
)  # fmt: skip
log2 = unary(
    log2_p,
    to_inexact,
    """The logarithm to base 2, elementwise.

    >>> import nuvec as nv
    >>> nv.round(nv.log2(nv.array([1.0, 8.0])), 3)
    array([0., 3.], dtype=float32)
    """,
)

log10_p = Primitive(
    "log10", np.log10, elementwise_rule("log10"), "elementwise",
    # d log10(x) = 1 / (x ln 10)
    derivatives=(lambda out, x: reciprocal(multiply(x, LN10)),), out=True,
)  # fmt: skip
log10 = unary(
    log10_p,
    to_inexact,
    """The logarithm to base 10, elementwise.

    >>> import nuvec as nv
    >>> nv.round(nv.log10(nv.array([1.0, 100.0])), 3)
    array([0., 2.], dtype=float32)
    """,
)


# Circular functions

sin_p = Primitive(
    "sin", np.sin, elementwise_rule("sin"), "elementwise",
    derivatives=(lambda out, x: cos(x),), out=True,
)  # fmt: skip
sin = unary(
    sin_p,
    to_inexact,
    """The sine of `x` in radians, elementwise.

    >>> import nuvec as nv
    >>> nv.round(nv.sin(nv.array([0.0, 1.0])), 3)
    array([0.   , 0.841], dtype=float32)
    """,
)

cos_p = Primitive(
    "cos", np.cos, elementwise_rule("cos"), "elementwise",
    derivatives=(lambda out, x: negative(sin(x)),), out=True,
)  # fmt: skip
cos: Unary = unary(
    cos_p,
    to_inexact,
    """The cosine of `x` in radians, elementwise.

    >>> import nuvec as nv
    >>> nv.round(nv.cos(nv.array([0.0, 1.0])), 3)
    array([1.  , 0.54], dtype=float32)
    """,
)

tan_p = Primitive(
    "tan", np.tan, elementwise_rule("tan"), "elementwise",
    # d tan(x) = 1 + tan(x)^2
    derivatives=(lambda out, x: add(multiply(out, out), 1),), out=True,
)  # fmt: skip
tan = unary(
    tan_p,
    to_inexact,
    """The tangent of `x` in radians, elementwise.

    >>> import nuvec as nv
    >>> nv.round(nv.tan(nv.array([0.0, 1.0])), 3)
    array([0.   , 1.557], dtype=float32)
    """,
)


# Hyperbolic functions

sinh_p = Primitive(
    "sinh", np.sinh, elementwise_rule("sinh"), "elementwise",
    derivatives=(lambda out, x: cosh(x),), out=True,
)  # fmt: skip
sinh = unary(
    sinh_p,
    to_inexact,
    """The hyperbolic sine, elementwise.

    >>> import nuvec as nv
    >>> nv.round(nv.sinh(nv.array([0.0, 1.0])), 3)
    array([0.   , 1.175], dtype=float32)
    """,
)

cosh_p = Primitive(
    "cosh", np.cosh, elementwise_rule("cosh"), "elementwise",
    derivatives=(lambda out, x: sinh(x),), out=True,
)  # fmt: skip
cosh: Unary = unary(
    cosh_p,
    to_inexact,
    """The hyperbolic cosine, elementwise.

    >>> import nuvec as nv
    >>> nv.round(nv.cosh(nv.array([0.0, 1.0])), 3)
    array([1.   , 1.543], dtype=float32)
    """,
)

tanh_p = Primitive(
    "tanh", np.tanh, elementwise_rule("tanh"), "elementwise",
    # d tanh(x) = 1 - tanh(x)^2
    derivatives=(lambda out, x: subtract(1, multiply(out, out)),), out=True,
)  # fmt: skip
tanh = unary(
    tanh_p,
    to_inexact,
    """The hyperbolic tangent, elementwise.

    >>> import nuvec as nv
    >>> nv.round(nv.tanh(nv.array([0.0, 1.0])), 3)
    array([0.   , 0.762], dtype=float32)
    """,
)


# sigmoid: exp(-x) overflows only where the result is below the smallest normal number, and
# 1 / inf is 0 there; float16 has too few exponents for that and computes in float32


# NumPy takes an array for an operand in less time than a number.
_ONE = {d: np.ones((), d) for d in dtypes.ALL if dtypes.is_inexact(d)}


def _sigmoid_lower(x: Any, out: Any = None) -> Any:
    if x.dtype.itemsize > 2:
        y = np.exp(np.negative(x, out=out), out=out)
        return np.reciprocal(np.add(y, _ONE[x.dtype], out=out), out=out)
    y = np.asarray(_sigmoid_lower(x.astype(np.float32)))
    if out is None:
        return y.astype(x.dtype)
    np.copyto(out, y, casting="unsafe")
    return out


sigmoid_p = Primitive(
    "sigmoid", _sigmoid_lower, elementwise_rule("sigmoid"), "elementwise",
    # d sigmoid(x) = sigmoid(x) (1 - sigmoid(x))
    derivatives=(lambda out, x: multiply(out, subtract(1, out)),), out=True,
)  # fmt: skip
sigmoid = unary(
    sigmoid_p,
    to_inexact,
    """The logistic function `1 / (1 + exp(-x))`, elementwise.

    >>> import nuvec as nv
    >>> nv.sigmoid(nv.array([0.0, -1000.0]))
    array([0.5, 0. ], dtype=float32)
    """,
)
