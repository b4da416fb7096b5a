"""Random numbers of the usual distributions, from the bits of a key.

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
from nuvec.core.array import Array, from_numpy, operand
from nuvec.core.errors import DtypeError, ShapeError
from nuvec.core.functions.creation import as_shape
from nuvec.core.functions.stream import next_key, root_key, seed_key
from nuvec.core.ir import aval
from nuvec.core.node import constant
from nuvec.core.ops.arithmetic import sqrt
from nuvec.core.ops.build import broadcast_shapes, convert_dtype, promote_operands
from nuvec.core.ops.comparison import bitwise_and, less, right_shift
from nuvec.core.ops.conversion import make_complex
from nuvec.core.ops.exponential import cos, log
from nuvec.core.ops.random import (
    as_words, count_of, random_bits_p, random_fold_in_p, random_split_p, uint64_constant,
)  # fmt: skip
from nuvec.core.ops.selection import where
from nuvec.core.ops.shape import reshape_p
from nuvec.core.ops.structure import slice_axis
from nuvec.core.traceback import filtered

# Keys


@filtered
def key(seed: Any) -> Array:
    """The key of a seed: uint64 [2], or [..., 2] for an integer array of seeds (traced ones too).

    Any Python int is a seed, negative and arbitrarily large ones included; different ints give
    different keys.  Raises DtypeError for what is no integer.

    >>> import nuvec as nv
    >>> nv.random.key(0).shape
    (2,)
    """
    if isinstance(seed, int | np.integer):
        return Array(constant(seed_key(int(seed)), aval((2,), dtypes.uint64)))
    data = as_words(seed, "random.key")
    keys = random_fold_in_p.bind(_root(1), data)
    if seed.dtype != dtypes.uint64:
        return keys
    # From 2^63 on a seed has a second word, 0, for the first one alone is that of a negative int.
    large = reshape_p.bind(right_shift(data, 63), shape=(*data.shape, 1))
    two = random_fold_in_p.bind(random_fold_in_p.bind(_root(2), data), uint64_constant(0))
    return where(large, two, keys)


def _root(words: int) -> Array:
    return Array(constant(root_key(words), aval((2,), dtypes.uint64)))


def _key(key: Any, name: str) -> Array:
    """The key of a draw: the caller's, or the default stream's next."""
    if key is None:
        return next_key()
    if isinstance(key, np.ndarray):
        key = from_numpy(key)
    if isinstance(key, Array):
        return key  # the shape rules check its shape and dtype
    if isinstance(key, int | np.integer):
        hint = f"nv.random.key({key}) makes a key of a seed"
    else:
        hint = "the key comes first; nv.random.uniform(shape=(3,)) draws without one"
    raise DtypeError(f"random.{name}: the key is {key!r}, not an array; {hint}")


@filtered
def split(key: Any = None, num: int = 2) -> Array:
    """`num` new keys, independent of each other and of the old one: [..., num, 2].

    The old key should not be used for drawing again.

    >>> import nuvec as nv
    >>> a, b = nv.random.split(nv.random.key(0))
    """
    return random_split_p.bind(_key(key, "split"), num=count_of(num, "random.split"))


@filtered
def fold_in(key: Any, data: Any) -> Array:
    """A new key from a key and an integer (an epoch, a rank, a layer number): [..., 2].

    `data` is a Python int from -2^63 to 2^64 - 1, or an integer array that broadcasts with the
    batch of keys.  Raises DtypeError for other data.

    >>> import nuvec as nv
    >>> key = nv.random.fold_in(nv.random.key(0), 17)
    """
    if isinstance(data, int | np.integer):
        if not -(2**63) <= data < 2**64:
            raise DtypeError(f"random.fold_in: {data} does not fit 64 bits; use nv.random.key")
        return random_fold_in_p.bind(_key(key, "fold_in"), uint64_constant(int(data)))
    return random_fold_in_p.bind(_key(key, "fold_in"), as_words(data, "random.fold_in"))


@filtered
def bits(key: Any = None, shape: Any = (), dtype: Any = dtypes.uint32) -> Array:
    """Random bits as unsigned integers: [..., *shape] of uint8, uint16, uint32 or uint64."""
    return _bits(_key(key, "bits"), as_shape(shape, "random.bits"), dtypes.as_dtype(dtype))


def _bits(key: Array, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    return random_bits_p.bind(key, shape=shape, dtype=dtype)


# Uniform

# The unsigned dtype drawn for a float, and the bits it keeps: as many as the float's significand,
# so that the conversion and the scaling by a power of two are exact.
_SIGNIFICAND = {
    dtypes.bfloat16: (dtypes.uint16, 8),
    dtypes.float16: (dtypes.uint16, 11),
    dtypes.float32: (dtypes.uint32, 24),
    dtypes.float64: (dtypes.uint64, 53),
}


def _real_dtype(dtype: Any, name: str) -> np.dtype:
    dtype = dtypes.as_dtype(dtype)
    if not dtypes.is_floating(dtype):
        raise DtypeError(
            f"random.{name} draws real floating numbers, got dtype {dtypes.name(dtype)}"
            + ("; nv.random.randint draws integers" if dtypes.is_integer(dtype) else "")
        )
    return dtype


def _unit(key: Array, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """Uniform in [0, 1): the multiples of 2^-p, p the precision of the dtype."""
    unsigned, precision = _SIGNIFICAND[dtype]
    drawn = right_shift(_bits(key, shape, unsigned), unsigned.itemsize * 8 - precision)
    return convert_dtype.bind(drawn, dtype=dtype) * 2.0**-precision


@filtered
def uniform(
    key: Any = None, shape: Any = (), dtype: Any = dtypes.float32, minval: Any = 0.0,
    maxval: Any = 1.0,
) -> Array:  # fmt: skip
    """Uniform numbers from `minval` to below `maxval`: [..., *shape].

    The bounds are numbers or arrays that broadcast to `shape`; the result is differentiable in
    them.  Where both are equal it is `minval`.  Raises ValueError for numbers with
    minval > maxval.

    >>> import nuvec as nv
    >>> x = nv.random.uniform(nv.random.key(0), (1000,), minval=-1.0)
    >>> bool(nv.all((x >= -1) & (x < 1)))
    True
    """
    dtype = _real_dtype(dtype, "uniform")
    unit = _unit(_key(key, "uniform"), as_shape(shape, "random.uniform"), dtype)
    plain = isinstance(minval, int | float) and isinstance(maxval, int | float)
    if plain and minval == 0 and maxval == 1:
        return unit
    if plain and not minval <= maxval:
        raise ValueError(f"random.uniform: minval {minval} is not at most maxval {maxval}")
    low, high = (_parameter(p, dtype, "uniform") for p in (minval, maxval))
    x = unit * (high - low) + low
    _same_shape(x, unit, "uniform")
    # The sum may round up to the excluded bound; where it would, the interval starts over.
    return where(less(x, high), x, low)


def _parameter(value: Any, dtype: np.dtype, name: str) -> Array:
    value = operand(value, f"a parameter of random.{name}")
    if dtypes.is_complex(value.dtype):
        raise DtypeError(f"random.{name}: its parameters are real, got {value.aval}")
    return value if value.dtype == dtype else convert_dtype.bind(value, dtype=dtype)


def _same_shape(out: Array, drawn: Array, name: str) -> None:
    if out.shape != drawn.shape:
        raise ShapeError(
            f"random.{name}: a parameter does not broadcast to the shape drawn, {drawn.shape}: "
            f"together they have shape {out.shape}; pass shape={out.shape}"
        )


@filtered
def bernoulli(key: Any = None, p: Any = 0.5, shape: Any = None) -> Array:
    """True with probability `p`: bool [..., *shape]; by default the shape of `p`.

    p = 1 is always True and p = 0 never.

    >>> import nuvec as nv
    >>> nv.random.bernoulli(nv.random.key(0), 1.0, (2,))
    array([ True,  True], dtype=bool)
    """
    p = operand(p, "random.bernoulli's p")
    dtype = dtypes.float64 if p.dtype == dtypes.float64 else dtypes.float32
    sizes = p.shape if shape is None else as_shape(shape, "random.bernoulli")
    unit = _unit(_key(key, "bernoulli"), sizes, dtype)
    out = less(unit, _parameter(p, dtype, "bernoulli"))
    _same_shape(out, unit, "bernoulli")
    return out


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
    sizes = as_shape(shape, "random.normal")
    drawn = _key(key, "normal")
    if dtypes.is_complex(dtype):
        pair = _normal(drawn, (2, *sizes), dtypes.real_part(dtype)) * math.sqrt(0.5)
        axis = pair.ndim - 1 - len(sizes)
        whole = pair.shape[:axis] + sizes
        re, im = (
            reshape_p.bind(slice_axis(pair, axis, i, i + 1), shape=whole) for i in range(2)
        )
        return make_complex(re, im)
    working = dtypes.accumulation(_real_dtype(dtype, "normal"))
    out = _normal(drawn, sizes, working)
    return out if working == dtype else convert_dtype.bind(out, dtype=dtype)


def _normal(key: Array, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """sqrt(-2 log u) cos(2 pi v) and sqrt(-2 log u) sin(2 pi v) for uniform u and v."""
    unsigned = dtypes.uint64 if dtype == dtypes.float64 else dtypes.uint32
    width = 8 * unsigned.itemsize
    count = math.prod(shape)
    half = -(-count // 2)
    drawn = convert_dtype.bind(_bits(key, (2, half), unsigned), dtype=dtype)
    axis = drawn.ndim - 2
    # u is in (0, 1]: it is never 0, and has its full relative precision where the tails are.
    u = slice_axis(drawn, axis, 0, 1) * 2.0**-width + 2.0 ** -(width + 1)
    angle = slice_axis(drawn, axis, 1, 2) * (2 * math.pi * 2.0**-width)
    turn = np.array([[0.0], [math.pi / 2]], dtype)  # sin a = cos(a - pi/2)
    both = sqrt(log(u) * -2.0) * cos(angle - from_numpy(turn, copy=False))
    batch = both.shape[:axis]
    flat = reshape_p.bind(both, shape=(*batch, 2 * half))
    return reshape_p.bind(slice_axis(flat, axis, 0, count), shape=(*batch, *shape))


# Integers


@filtered
def randint(
    key: Any = None, shape: Any = (), minval: Any = 0, maxval: Any = 2, dtype: Any = dtypes.int32
) -> Array:
    """Uniform integers from `minval` to below `maxval`: [..., *shape].

    The bounds are ints or integer arrays that broadcast to `shape`; as an int `maxval` may be one
    above the largest number of the dtype.  Where an array's interval is empty the result is
    `minval`; ints with an empty interval raise ValueError, and DtypeError where the dtype cannot
    hold the numbers.  Probabilities are off by less than 2^-32 of themselves (2^-64 for 64-bit
    dtypes).

    >>> import nuvec as nv
    >>> x = nv.random.randint(nv.random.key(0), (100,), 1, 7)
    >>> int(x.min()), int(x.max())
    (1, 6)
    """
    dtype = dtypes.as_dtype(dtype)
    if not dtypes.is_integer(dtype):
        raise DtypeError(f"random.randint draws integers, got dtype {dtypes.name(dtype)}")
    sizes = as_shape(shape, "random.randint")
    low, span = _interval(minval, maxval, dtype)
    broadcast = broadcast_shapes("random.randint", low.shape, span.shape, sizes)
    if broadcast != sizes:
        raise ShapeError(
            f"random.randint: bounds of shapes {low.shape} and {span.shape} do not broadcast to "
            f"the shape drawn, {sizes}; pass shape={broadcast}"
        )
    drawn = _key(key, "randint")
    if dtype.itemsize < 8:
        offset = _high_product(_bits(drawn, sizes, dtypes.uint64), span)
    else:
        offset = _wide_offset(_bits(drawn, (2, *sizes), dtypes.uint64), len(sizes), span)
    return convert_dtype.bind(offset + low, dtype=dtype)  # modulo 2^64: wraps to negative numbers


def _interval(minval: Any, maxval: Any, dtype: np.dtype) -> tuple[Array, Array]:
    """The lower bound and the number of values, modulo 2^64; 0 values stand for 2^64."""
    limits = np.iinfo(dtype)
    numbers = (int, np.integer)
    for name, bound, top in (("minval", minval, 0), ("maxval", maxval, 1)):
        if isinstance(bound, numbers) and not limits.min <= bound <= limits.max + top:
            raise DtypeError(
                f"random.randint: {name} {bound} is out of range for {dtypes.name(dtype)}, which "
                f"holds {limits.min} to {limits.max}"
            )
    if isinstance(minval, numbers) and isinstance(maxval, numbers):
        if not minval < maxval:
            raise ValueError(f"random.randint: no integers from {minval} to below {maxval}")
        low, span = int(minval), int(maxval) - int(minval)
        return uint64_constant(low), uint64_constant(span)
    if isinstance(maxval, numbers) and int(maxval) == limits.max + 1 and dtype.itemsize == 8:
        raise DtypeError(
            f"random.randint: maxval {maxval} needs an int as minval too; an array of "
            f"{dtypes.name(dtype)} cannot be compared with it"
        )
    bounds = [_bound(b, dtype) for b in (minval, maxval)]
    low, high = (as_words(b, "random.randint") for b in bounds)
    return low, where(less(*bounds), high - low, uint64_constant(1))


def _bound(bound: Any, dtype: np.dtype) -> Array:
    """A bound in the 64-bit dtype of the same signedness, which holds every bound of `dtype`."""
    wide = dtypes.int64 if dtypes.is_signed(dtype) else dtypes.uint64
    if isinstance(bound, int | np.integer):
        return from_numpy(np.array(int(bound), wide), copy=False)
    (bound,) = promote_operands("random.randint", (bound,))
    if not dtypes.is_integer(bound.dtype):
        raise DtypeError(f"random.randint: its bounds are integers, got {bound.aval}")
    return bound if bound.dtype == wide else convert_dtype.bind(bound, dtype=wide)


_LOW = 2**32 - 1


def _halves(x: Array) -> tuple[Array, Array]:
    return right_shift(x, 32), bitwise_and(x, uint64_constant(_LOW))


def _high_product(bits: Array, span: Array) -> Array:
    """floor(bits * span / 2^64) for span up to 2^32: uniform in [0, span)."""
    high, low = _halves(bits)
    return right_shift(high * span + right_shift(low * span, 32), 32)


def _high_word(x: Array, y: Array) -> Array:
    """The high word of the 128-bit product x * y."""
    x1, x0 = _halves(x)
    y1, y0 = _halves(y)
    middle = x1 * y0 + right_shift(x0 * y0, 32)
    middle1, middle0 = _halves(middle)
    return x1 * y1 + middle1 + right_shift(x0 * y1 + middle0, 32)


def _wide_offset(bits: Array, rank: int, span: Array) -> Array:
    """floor((w1 2^64 + w0) * span / 2^128) for the two words w; w1 itself for span 2^64."""
    axis = bits.ndim - rank - 1
    shape = bits.shape[:axis] + bits.shape[axis + 1 :]
    w1, w0 = (reshape_p.bind(slice_axis(bits, axis, i, i + 1), shape=shape) for i in range(2))
    low = w1 * span
    carry = less(low + _high_word(w0, span), low)  # the sum of the low words passed 2^64
    offset = _high_word(w1, span) + convert_dtype.bind(carry, dtype=dtypes.uint64)
    return where(span, offset, w1)


# From these


@filtered
def gumbel(key: Any = None, shape: Any = (), dtype: Any = dtypes.float32) -> Array:
    """Standard Gumbel numbers, -log(-log u): [..., *shape]."""
    dtype = _real_dtype(dtype, "gumbel")
    working = dtypes.accumulation(dtype)
    unit = _unit(_key(key, "gumbel"), as_shape(shape, "random.gumbel"), working)
    precision = _SIGNIFICAND[working][1]
    # Half a step up keeps u away from 0; 1 - 2^-(p+1) rounds to below 1 for every step but one.
    u = where(less(unit, 0.5), unit + 2.0 ** -(precision + 1), unit)
    out = -log(-log(where(less(u, 1.0), u, 1 - 2.0**-precision)))
    return out if working == dtype else convert_dtype.bind(out, dtype=dtype)


@filtered
def exponential(key: Any = None, shape: Any = (), dtype: Any = dtypes.float32) -> Array:
    """Exponential numbers of rate 1, -log(1 - u): [..., *shape]."""
    dtype = _real_dtype(dtype, "exponential")
    working = dtypes.accumulation(dtype)
    unit = _unit(_key(key, "exponential"), as_shape(shape, "random.exponential"), working)
    out = -log(1.0 - unit)  # 1 - u is exact, and never 0
    return out if working == dtype else convert_dtype.bind(out, dtype=dtype)


__all__ = [
    "bernoulli",
    "bits",
    "exponential",
    "fold_in",
    "gumbel",
    "key",
    "normal",
    "randint",
    "split",
    "uniform",
]
