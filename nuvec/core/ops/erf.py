"""The error function, which NumPy lacks.

With a = |x| and t = x^2, and G, H polynomials:

    a < 1:  erf(x) = x + x G(t)                               G(t) = erf(sqrt(t)) / sqrt(t) - 1
    else:   erf(a) = 1 - exp(-t) H(s) / (1 + 2a)              H = (1 + 2a) exp(t) erfc(a)

where s = (a - k) / (a + k) maps the tail to a short interval around 0 on which H is almost
constant (after Shepherd and Laframboise, "Chebyshev approximation of (1 + 2x) exp(x^2) erfc x in
0 <= x < infinity", Mathematics of Computation 36, 1981).  Past the end of the tail (6 in double,
4 in single precision) erf is 1 to the last bit.

The polynomials interpolate G and H at the Chebyshev nodes of t in [0, 1] and of a in [1, end],
computed with mpmath in 60 digits and written as coefficients of rising powers.  Their truncation
changes erf by less than 1e-17 in double and 2e-9 in single precision, so that what is left is
rounding: at most 1.5 ulp.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.ops.arithmetic import multiply, negative
from nuvec.core.ops.build import elementwise_rule, real_inexact, unary
from nuvec.core.ops.exponential import exp
from nuvec.core.primitive import Primitive

_CENTRE_DOUBLE = (
    0.1283791670955126,
    -0.3761263890318375,
    0.11283791670954879,
    -0.026866170645076792,
    0.0052239776248180145,
    -0.000854832698083379,
    0.0001205533111164271,
    -1.4925595266831182e-05,
    1.6461000484121368e-06,
    -1.6350312701054695e-07,
    1.4659775274047436e-08,
    -1.1372848856791674e-09,
    5.957176147748911e-11,
)
_TAIL_DOUBLE = (
    1.2648381843668615,
    -0.12235676308240442,
    -0.09902453957360156,
    0.15762991902325107,
    -0.10296705603860934,
    0.032760893266092744,
    0.0009318928190560251,
    -0.004382078248348745,
    0.0004918657861704021,
    0.0006321225819860732,
    -8.84792810981807e-05,
    -0.00011350320292983643,
    6.2715966287190965e-06,
    2.2580541464941125e-05,
    2.546661967565363e-06,
    -3.825259791058066e-06,
    -1.2945520583159156e-06,
)
_CENTRE_SINGLE = (
    0.12837917,
    -0.37612626,
    0.11283594,
    -0.026854211,
    0.0051890872,
    -0.00080168643,
    7.875875e-05,
)
_TAIL_SINGLE = (
    1.2769784,
    -0.09276365,
    -0.16603062,
    0.16403839,
    -0.054204665,
    -0.0077985954,
    0.008444948,
)

_POLYNOMIALS: dict[np.dtype, tuple[tuple[float, ...], tuple[float, ...], float, float]] = {
    dtypes.float64: (_CENTRE_DOUBLE, _TAIL_DOUBLE, 2.5, 6.0),  # G, H, k, end
    dtypes.float32: (_CENTRE_SINGLE, _TAIL_SINGLE, 2.0, 4.0),
}
_BLOCK = 32768  # elements that are taken through all steps while they are in the cache


def _horner(coefficients: tuple[float, ...], u: Any) -> Any:
    total = u * coefficients[-1]
    for c in coefficients[-2:0:-1]:
        total += c
        total *= u
    total += coefficients[0]
    return total


def _erf_block(x: Any) -> Any:
    """erf of a 1-d float32 or float64 array."""
    centre, tail, k, end = _POLYNOMIALS[x.dtype]
    a = np.minimum(np.abs(x), end)
    inside = np.minimum(a, 1)
    result = _horner(centre, np.multiply(inside, inside, out=inside))
    result *= x
    result += x
    far = np.flatnonzero(~(a < 1))  # NaN is among them, and stays NaN
    if far.size:
        b = a[far]
        h = _horner(tail, (b - k) / (b + k))
        result[far] = np.copysign(1 - np.exp(-(b * b)) * h / (1 + 2 * b), x[far])
    return result


def _erf_lower(x: Any, out: Any = None) -> Any:
    flat = np.ravel(x).astype(dtypes.accumulation(x.dtype), copy=False)
    if out is None:
        out = np.empty(np.shape(x), x.dtype)
    whole = out.reshape(-1)  # a view: what is given is C-contiguous
    for start in range(0, flat.size, _BLOCK):
        whole[start : start + _BLOCK] = _erf_block(flat[start : start + _BLOCK])
    return out


_SLOPE = 2 / math.sqrt(math.pi)

erf_p = Primitive(
    "erf", _erf_lower, elementwise_rule("erf"), "elementwise",
    # d erf(x) = 2/sqrt(pi) exp(-x^2)
    derivatives=(lambda out, x: multiply(exp(negative(multiply(x, x))), _SLOPE),),
    out=True,
)  # fmt: skip
erf = unary(
    erf_p,
    real_inexact,
    """The error function, elementwise; of integers in float32.

    2/sqrt(pi) times the integral of exp(-t^2) from 0 to `x`, within 1.5 ulp.
    Raises DtypeError for complex numbers.

    >>> import nuvec as nv
    >>> nv.round(nv.erf(nv.array([0.0, 1.0, 10.0])), 3)
    array([0.   , 0.843, 1.   ], dtype=float32)
    """,
)
