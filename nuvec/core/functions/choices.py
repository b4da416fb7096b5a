"""Random integers, permutations and choices, from the bits of a key."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, from_numpy, operand
from nuvec.core.errors import ArgumentError, DtypeError, ShapeError
from nuvec.core.functions.distributions import gumbel_noise
from nuvec.core.functions.indexing import take
from nuvec.core.functions.keys import draw_bits, draw_key, draw_shape
from nuvec.core.ops.build import broadcast_shapes, convert_dtype, normalize_axis
from nuvec.core.ops.comparison import bitwise_and, less, right_shift
from nuvec.core.ops.exponential import log
from nuvec.core.ops.parameters import looked_at
from nuvec.core.ops.random import as_words, is_integer, random_permutation_p, uint64_constant
from nuvec.core.ops.reduction import argmax
from nuvec.core.ops.selection import where
from nuvec.core.ops.shape import move_axis, reshape_p
from nuvec.core.ops.structure import slice_axis
from nuvec.core.traceback import filtered


@filtered
def randint(
    key: Any = None, shape: Any = (), minval: Any = 0, maxval: Any = 2, dtype: Any = dtypes.int32
) -> Array:
    """Uniform integers from `minval` to below `maxval`: [..., *shape].

    The bounds are ints or integer arrays of any dtype that broadcast to `shape`; `maxval` may be
    one above the largest number of the dtype (of a 64-bit one as an int).  Where an array's
    interval is empty the result is `minval`; ints with an empty interval raise ValueError.
    Probabilities are off by less than 2^-32 of themselves (2^-64 for 64-bit dtypes).

    Raises DtypeError for ints that the dtype cannot hold and for bounds that are no integers,
    bools included, and ValueError for arrays with values that the dtype cannot hold, at evaluation
    if they are not known before.

    >>> import nuvec as nv
    >>> x = nv.random.randint(nv.random.key(0), (100,), 1, 7)
    >>> int(x.min()), int(x.max())
    (1, 6)
    """
    dtype = dtypes.as_dtype(dtype)
    if not dtypes.is_integer(dtype):
        raise DtypeError(f"random.randint draws integers, got dtype {dtypes.name(dtype)}")
    sizes = draw_shape(shape, "randint")
    low, span = _interval(minval, maxval, dtype)
    broadcast = broadcast_shapes("random.randint", low.shape, span.shape, sizes)
    if broadcast != sizes:
        raise ShapeError(
            f"random.randint: bounds of shapes {low.shape} and {span.shape} do not broadcast to "
            f"the shape drawn, {sizes}; pass shape={broadcast}"
        )
    drawn = draw_key(key, "randint")
    if dtype.itemsize < 8:
        offset = _high_product(draw_bits(drawn, sizes, dtypes.uint64), span)
    else:
        offset = _wide_offset(draw_bits(drawn, (2, *sizes), dtypes.uint64), len(sizes), span)
    return convert_dtype.bind(offset + low, dtype=dtype)  # modulo 2^64: wraps to negative numbers


def _interval(minval: Any, maxval: Any, dtype: np.dtype) -> tuple[Array, Array]:
    """The lower bound and the number of values, modulo 2^64; 0 values stand for 2^64."""
    limits = np.iinfo(dtype)
    for name, bound, top in (("minval", minval, 0), ("maxval", maxval, 1)):
        if is_integer(bound) and not limits.min <= bound <= limits.max + top:
            raise DtypeError(
                f"random.randint: {name} {bound} is out of range for {dtypes.name(dtype)}, which "
                f"holds {limits.min} to {limits.max}; pass a dtype= that holds the numbers wanted"
            )
    if is_integer(minval) and is_integer(maxval):
        if not minval < maxval:
            raise ArgumentError(f"random.randint: no integers from {minval} to below {maxval}")
        return uint64_constant(int(minval)), uint64_constant(int(maxval) - int(minval))
    if is_integer(maxval) and int(maxval) == limits.max + 1 and dtype.itemsize == 8:
        raise DtypeError(
            f"random.randint: maxval {maxval} needs an int as minval too; an array of "
            f"{dtypes.name(dtype)} cannot be compared with it"
        )
    bounds = [_bound(b, dtype, name) for b, name in ((minval, "minval"), (maxval, "maxval"))]
    low, high = (as_words(b, "random.randint") for b in bounds)
    return low, where(less(*bounds), high - low, uint64_constant(1))


def _bound(bound: Any, dtype: np.dtype, name: str) -> Array:
    """A bound in the 64-bit dtype of the same signedness, which holds every bound of `dtype`."""
    wide = dtypes.int64 if dtypes.is_signed(dtype) else dtypes.uint64
    if is_integer(bound):
        return from_numpy(np.array(int(bound), wide), copy=False)
    what = f"random.randint's {name}"
    bound = operand(bound, what)
    if not dtypes.is_integer(bound.dtype):
        raise DtypeError(f"random.randint: bounds are integers, and {name} is {bound.aval}")
    if not dtypes.can_cast(bound.dtype, dtype):
        above = name == "maxval" and dtype.itemsize < 8
        bound = looked_at(bound, what, "end" if above else "number", dtype)
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


# Permutations and choices


@filtered
def permutation(key: Any = None, x: Any = None, axis: int = 0) -> Array:
    """The items of `x` along `axis` in random order; of an int n, the integers 0 to n - 1.

    Every order has the same probability.  The result is differentiable in `x`.

    >>> import nuvec as nv
    >>> sorted(nv.random.permutation(nv.random.key(0), 4).tolist())
    [0, 1, 2, 3]
    """
    drawn = draw_key(key, "permutation")
    if is_integer(x):
        return random_permutation_p.bind(drawn, num=_item_count(x, "permutation"))
    if x is None:
        raise TypeError("random.permutation(key, x) needs x, an array or a number of items")
    x = _items(x, "permutation", "x")
    axis = normalize_axis(axis, x.ndim, "random.permutation")
    order = random_permutation_p.bind(_one_key(drawn, "permutation"), num=x.shape[axis])
    return take(x, order, axis)


def _item_count(n: Any, name: str) -> int:
    if not 0 <= n < 2**31:
        raise ShapeError(f"random.{name}: {n} is no number of items: use 0 to 2^31 - 1")
    return int(n)


def _items(x: Any, name: str, argument: str) -> Array:
    x = operand(x, f"random.{name}'s {argument}")
    if not x.ndim:
        raise ShapeError(
            f"random.{name}: {argument} is {x.aval}; it takes an array of at least one dimension, "
            "or a number of items as an int"
        )
    return x


def _one_key(key: Array, name: str) -> Array:
    if key.ndim != 1:
        raise ShapeError(
            f"random.{name} of an array takes one key, got {key.aval}; map over keys with nv.vmap"
        )
    return key


@filtered
def choice(
    key: Any = None, a: Any = None, shape: Any = (), replace: bool = True, p: Any = None,
    axis: int = 0,
) -> Array:  # fmt: skip
    """Random items of `a` along `axis` (an int n stands for 0 to n - 1), put there in `shape`.

    replace -- whether an item may come up again; without it there must be enough of them
    p       -- the items' probabilities [n], uniform by default; they are scaled to sum to 1.
               For replace=True only: it is refused without replacement

    Raises ShapeError when there are too few items or `p` has another size, and ValueError for `p`
    with replace=False and for a `p` that is negative, infinite or NaN somewhere or 0 everywhere,
    at evaluation if its values are not known before.

    >>> import nuvec as nv
    >>> nv.random.choice(nv.random.key(0), nv.array([5, 6, 7]), (2,)).shape
    (2,)
    """
    if a is None:
        raise TypeError("random.choice(key, a) needs a, an array or a number of items")
    sizes = draw_shape(shape, "choice")
    drawn = _one_key(draw_key(key, "choice"), "choice")
    if is_integer(a):
        count, items = _item_count(a, "choice"), None
    else:
        items = _items(a, "choice", "a")
        axis = normalize_axis(axis, items.ndim, "random.choice")
        count = items.shape[axis]
    indices = _choose(drawn, count, sizes, replace, p)
    return indices if items is None else take(items, indices, axis)


def _choose(key: Array, count: int, shape: tuple[int, ...], replace: bool, p: Any) -> Array:
    wanted = math.prod(shape)
    if not replace and wanted > count:
        raise ShapeError(
            f"random.choice: {wanted} items are wanted of {count}; replace=True may choose an "
            "item again"
        )
    if wanted and not count:
        raise ShapeError("random.choice: there are no items to choose from")
    if p is not None:
        p = _real(p, "random.choice's p")
        if p.shape != (count,):
            raise ShapeError(f"random.choice: p has shape {p.shape} and there are {count} items")
        if not replace:
            raise ArgumentError(
                "random.choice: p is for replace=True only; without it items come up alike, with "
                "no p"
            )
        if count:
            weights = looked_at(p, "random.choice's p", "weights")
            return _most_likely(key, log(_inexact(weights)), shape)
    if replace:
        return randint(key, shape, 0, max(count, 1))
    order = random_permutation_p.bind(key, num=count)
    return reshape_p.bind(slice_axis(order, 0, 0, wanted), shape=shape)


def _real(x: Any, what: str) -> Array:
    x = operand(x, what)
    if dtypes.is_complex(x.dtype):
        raise DtypeError(f"{what} must be real, got {x.aval}; use nv.real(x) or nv.abs(x)")
    return x


def _inexact(x: Array) -> Array:
    dtype = dtypes.inexact(x.dtype)
    return x if x.dtype == dtype else convert_dtype.bind(x, dtype=dtype)


@filtered
def categorical(key: Any = None, logits: Any = None, axis: int = -1, shape: Any = None) -> Array:
    """Random classes, with probabilities softmax(logits) along `axis`: int32.

    The result has the shape of `logits` without `axis`, or `shape`, to which that broadcasts.
    A class whose logit is -inf never comes up.

    Raises ValueError for logits that are NaN or infinite somewhere, or -inf along all of `axis`,
    at evaluation if their values are not known before.

    >>> import nuvec as nv
    >>> nv.random.categorical(nv.random.key(0), nv.array([[0.0, 100.0], [100.0, 0.0]]))
    array([1, 0], dtype=int32)
    """
    if logits is None:
        raise TypeError("random.categorical(key, logits) needs logits")
    logits = _real(logits, "random.categorical's logits")
    axis = normalize_axis(axis, logits.ndim, "random.categorical")
    if not logits.shape[axis]:
        raise ShapeError(
            f"random.categorical: logits are {logits.aval}, with no classes along axis {axis}"
        )
    logits = looked_at(logits, "random.categorical's logits", "logits", axis=axis)
    logits = move_axis(_inexact(logits), axis, logits.ndim - 1)
    batch = logits.shape[:-1]
    sizes = batch if shape is None else draw_shape(shape, "categorical")
    if broadcast_shapes("random.categorical", batch, sizes) != sizes:
        raise ShapeError(
            f"random.categorical: a batch of shape {batch} does not broadcast to shape {sizes}"
        )
    return _most_likely(draw_key(key, "categorical"), logits, sizes)


def _most_likely(key: Array, logits: Array, shape: tuple[int, ...]) -> Array:
    """argmax(logits + Gumbel noise), distributed as softmax(logits) (Gumbel, 1954)."""
    noise = gumbel_noise(key, (*shape, logits.shape[-1]), logits.dtype)
    return argmax(logits + noise, axis=-1)


__all__ = ["categorical", "choice", "permutation", "randint"]
