"""Random numbers of the usual continuous distributions, from the bits of a key.

Every function takes the key first; without one it draws from the default stream.  A batch of keys
[..., 2] gives results [..., *shape], each what its key alone gives.  The bits, and the uniform
numbers and integers made of them, are the same on every platform; what passes through log or cos
agrees to a few units in the last place.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, from_numpy, literal, operand
from nuvec.core.errors import ArgumentError, DtypeError, ShapeError
from nuvec.core.functions.keys import draw_bits, draw_key, draw_shape
from nuvec.core.ops.arithmetic import sqrt
from nuvec.core.ops.build import convert_dtype
from nuvec.core.ops.comparison import isfinite, less, right_shift
from nuvec.core.ops.conversion import make_complex
from nuvec.core.ops.exponential import cos, log
from nuvec.core.ops.parameters import known_value, looked_at
from nuvec.core.ops.selection import where
from nuvec.core.ops.shape import reshape_p
from nuvec.core.ops.structure import slice_axis
from nuvec.core.traceback import filtered

# Uniform

# The unsigned dtype drawn for a float, and the bits it keeps: as many as the float's significand,
# so that the conversion and the scaling by a power of two are exact.
_SIGNIFICAND = {
    dtypes.bfloat16: (dtypes.uint16, 8),
    dtypes.float16: (dtypes.uint16, 11),
    dtypes.float32: (dtypes.uint32, 24),
    dtypes.float64: (dtypes.uint64, 53),
}


def real_dtype(dtype: Any, name: str) -> np.dtype:
    dtype = dtypes.as_dtype(dtype)
    if not dtypes.is_floating(dtype):
        raise DtypeError(
            f"random.{name} draws real floating numbers, got dtype {dtypes.name(dtype)}"
            + ("; nv.random.randint draws integers" if dtypes.is_integer(dtype) else "")
        )
    return dtype


def unit_interval(key: Array, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """Uniform in [0, 1): the multiples of 2^-p, p the precision of the dtype."""
    unsigned, precision = _SIGNIFICAND[dtype]
    drawn = right_shift(draw_bits(key, shape, unsigned), unsigned.itemsize * 8 - precision)
    return convert_dtype.bind(drawn, dtype=dtype) * 2.0**-precision


@filtered
def uniform(
    key: Any = None, shape: Any = (), dtype: Any = dtypes.float32, minval: Any = 0.0,
    maxval: Any = 1.0,
) -> Array:  # fmt: skip
    """Uniform numbers from `minval` to below `maxval`: [..., *shape].

    The bounds are numbers or real arrays that broadcast to `shape`; the result is differentiable
    in them.  Where both are equal it is `minval`.

    Raises ValueError for bounds that are not finite in `dtype`, at evaluation if their values are
    not known before, and for minval > maxval where both are known at the call (where they are
    not, the result is `minval`).  Raises DtypeError for complex and boolean bounds.

    >>> import nuvec as nv
    >>> x = nv.random.uniform(nv.random.key(0), (1000,), minval=-1.0)
    >>> bool(nv.all((x >= -1) & (x < 1)))
    True
    """
    dtype = real_dtype(dtype, "uniform")
    sizes = draw_shape(shape, "uniform")
    plain = type(minval) in (int, float) and type(maxval) in (int, float)
    if plain and minval == 0 and maxval == 1:
        return unit_interval(draw_key(key, "uniform"), sizes, dtype)
    (low, lowest), (high, highest) = (
        _bound(b, dtype, f"random.uniform's {name}")
        for name, b in (("minval", minval), ("maxval", maxval))
    )
    unit = unit_interval(draw_key(key, "uniform"), sizes, dtype)
    _check_shape(low, unit, "random.uniform's minval")
    _check_shape(high, unit, "random.uniform's maxval")
    known = lowest is not None and highest is not None
    if known and np.any(lowest > highest):
        raise ArgumentError(f"random.uniform: minval {minval} is not at most maxval {maxval}")
    span = high - low
    with np.errstate(over="ignore"):
        fits = known and np.all(np.isfinite(highest - lowest))
    if fits:
        x = unit * span + low
    else:
        # Where the difference of the bounds overflows, the one of their halves does not.
        scale = where(isfinite(span), literal(1.0, dtype), literal(0.5, dtype))
        x = (unit * (high * scale - low * scale) + low * scale) / scale
    # The sum may round up to the excluded bound; where it would, the interval starts over.
    return where(less(x, high), x, low)


def _bound(value: Any, dtype: np.dtype, what: str) -> tuple[Array, Any]:
    """A bound of uniform in the dtype drawn, and its values in it where they are known."""
    # A Python number goes by way of float64: in float32, 0.1 would lose its digits.
    number = type(value) in (int, float)
    x = literal(value, dtypes.float64) if number else operand(value, what)
    if dtypes.is_complex(x.dtype) or dtypes.is_bool(x.dtype):
        raise DtypeError(f"{what} is a real number or an array of them, got {x.aval}")
    x = looked_at(x, what, "number", dtype)
    known = known_value(x)
    if known is not None:
        known = np.asarray(known).astype(dtype)
    return literal(value, dtype) if number else _converted(x, dtype), known


def _converted(x: Array, dtype: np.dtype) -> Array:
    return x if x.dtype == dtype else convert_dtype.bind(x, dtype=dtype)


def _check_shape(parameter: Array, drawn: Array, what: str) -> None:
    """Raise ShapeError unless a parameter broadcasts to the shape drawn."""
    sizes = zip(reversed(parameter.shape), reversed(drawn.shape), strict=False)
    if parameter.ndim > drawn.ndim or any(n not in (1, m) for n, m in sizes):
        raise ShapeError(
            f"{what} has shape {parameter.shape}, which does not broadcast to the shape drawn, "
            f"{drawn.shape}; pass a shape= that it broadcasts to"
        )


@filtered
def bernoulli(key: Any = None, p: Any = 0.5, shape: Any = None) -> Array:
    """True with probability `p`: bool [..., *shape]; by default the shape of `p`.

    p = 1 is always True and p = 0 never.  Raises ValueError for a `p` outside [0, 1] and for NaN,
    at evaluation if its values are not known before.

    >>> import nuvec as nv
    >>> nv.random.bernoulli(nv.random.key(0), 1.0, (2,))
    array([ True,  True], dtype=bool)
    """
    what = "random.bernoulli's p"
    p = operand(p, what)
    if dtypes.is_complex(p.dtype):
        raise DtypeError(f"{what} holds probabilities, which are real, got {p.aval}")
    p = looked_at(p, what, "probability")
    dtype = dtypes.float64 if p.dtype == dtypes.float64 else dtypes.float32
    sizes = p.shape if shape is None else draw_shape(shape, "bernoulli")
    unit = unit_interval(draw_key(key, "bernoulli"), sizes, dtype)
    _check_shape(p, unit, what)
    return less(unit, _converted(p, dtype))


# Normal


@filtered
def normal(key: Any = None, shape: Any = (), dtype: Any = dtypes.float32) -> Array:
    """Standard normal numbers: [..., *shape].  Scale and shift them (`mean + std * x`) for others.

    Complex ones have independent real and imaginary parts of variance 1/2.  By the method of Box
    and Muller (1958), from 32 bits a number (64 in float64): the tails reach 6.6 (9.4) standard
    deviations.  float16 and bfloat16 are computed in float32.

    >>> import nuvec as nv
    >>> x = nv.random.normal(nv.random.key(0), (10000,))
    >>> bool(nv.abs(x.mean()) < 0.05)
    True
    """
    dtype = dtypes.as_dtype(dtype)
    sizes = draw_shape(shape, "normal")
    drawn = draw_key(key, "normal")
    if dtypes.is_complex(dtype):
        pair = _normal(drawn, (2, *sizes), dtypes.real_part(dtype)) * math.sqrt(0.5)
        axis = pair.ndim - 1 - len(sizes)
        whole = pair.shape[:axis] + sizes
        re, im = (reshape_p.bind(slice_axis(pair, axis, i, i + 1), shape=whole) for i in range(2))
        return make_complex(re, im)
    working = dtypes.accumulation(real_dtype(dtype, "normal"))
    out = _normal(drawn, sizes, working)
    return out if working == dtype else convert_dtype.bind(out, dtype=dtype)


def _normal(key: Array, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """sqrt(-2 log u) cos(2 pi v) and sqrt(-2 log u) sin(2 pi v) for uniform u and v."""
    unsigned = dtypes.uint64 if dtype == dtypes.float64 else dtypes.uint32
    width = 8 * unsigned.itemsize
    count = math.prod(shape)
    half = -(-count // 2)
    drawn = convert_dtype.bind(draw_bits(key, (2, half), unsigned), dtype=dtype)
    axis = drawn.ndim - 2
    # u is in (0, 1]: it is never 0, and has its full relative precision where the tails are.
    u = slice_axis(drawn, axis, 0, 1) * 2.0**-width + 2.0 ** -(width + 1)
    angle = slice_axis(drawn, axis, 1, 2) * (2 * math.pi * 2.0**-width)
    turn = np.array([[0.0], [math.pi / 2]], dtype)  # sin a = cos(a - pi/2)
    both = sqrt(log(u) * -2.0) * cos(angle - from_numpy(turn, copy=False))
    batch = both.shape[:axis]
    flat = reshape_p.bind(both, shape=(*batch, 2 * half))
    return reshape_p.bind(slice_axis(flat, axis, 0, count), shape=(*batch, *shape))


# From these


@filtered
def gumbel(key: Any = None, shape: Any = (), dtype: Any = dtypes.float32) -> Array:
    """Standard Gumbel numbers, -log(-log u): [..., *shape]."""
    dtype = real_dtype(dtype, "gumbel")
    return gumbel_noise(draw_key(key, "gumbel"), draw_shape(shape, "gumbel"), dtype)


def gumbel_noise(key: Array, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """`gumbel` of a key, a shape and a dtype that are known to be good."""
    working = dtypes.accumulation(dtype)
    unit = unit_interval(key, shape, working)
    precision = _SIGNIFICAND[working][1]
    # Half a step up keeps u away from 0; 1 - 2^-(p+1) rounds to below 1 for every step but one.
    u = where(less(unit, 0.5), unit + 2.0 ** -(precision + 1), unit)
    out = -log(-log(where(less(u, 1.0), u, 1 - 2.0**-precision)))
    return out if working == dtype else convert_dtype.bind(out, dtype=dtype)


@filtered
def exponential(key: Any = None, shape: Any = (), dtype: Any = dtypes.float32) -> Array:
    """Exponential numbers of rate 1, -log(1 - u): [..., *shape]."""
    dtype = real_dtype(dtype, "exponential")
    working = dtypes.accumulation(dtype)
    sizes = draw_shape(shape, "exponential")
    unit = unit_interval(draw_key(key, "exponential"), sizes, working)
    out = -log(1.0 - unit)  # 1 - u is exact, and never 0
    return out if working == dtype else convert_dtype.bind(out, dtype=dtype)


__all__ = ["bernoulli", "exponential", "gumbel", "gumbel_noise", "normal", "uniform"]
