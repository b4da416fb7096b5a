"""logaddexp: the logarithm of a sum of exponentials, without overflow."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from nuvec.core.array import Array
from nuvec.core.ops.arithmetic import subtract
from nuvec.core.ops.build import binary, elementwise_rule, real_inexact
from nuvec.core.ops.comparison import equal, isinf, logical_and
from nuvec.core.ops.exponential import sigmoid
from nuvec.core.ops.selection import where
from nuvec.core.primitive import Primitive


def _lower(x: Any, y: Any) -> Any:
    if x.dtype == ml_dtypes.bfloat16:  # NumPy's ufunc knows its own floats only
        wide = np.logaddexp(x.astype(np.float32), y.astype(np.float32))
        return np.asarray(wide).astype(x.dtype)
    return np.logaddexp(x, y)


def _share(a: Array, b: Array) -> Array:
    """d logaddexp(a, b)/da = e^a / (e^a + e^b); a half where the two are the same infinity."""
    same = logical_and(equal(a, b), isinf(a))
    return sigmoid(where(same, 0.0, subtract(a, b)))


logaddexp_p = Primitive(
    "logaddexp", _lower, elementwise_rule("logaddexp"), "elementwise",
    derivatives=(lambda out, x, y: _share(x, y), lambda out, x, y: _share(y, x)),
)  # fmt: skip
logaddexp = binary(
    logaddexp_p,
    real_inexact,
    """log(exp(`x`) + exp(`y`)), elementwise.

    Shapes broadcast; the dtype is the promoted one, float32 for integers. Raises DtypeError for
    complex numbers.

    >>> import nuvec as nv
    >>> nv.logaddexp(nv.array([1000.0, -1000.0]), 0.0)
    array([1000.,    0.], dtype=float32)
    """,
)
