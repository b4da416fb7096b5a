"""Keys of random numbers, and raw bits from them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, from_numpy
from nuvec.core.errors import ArgumentError, DtypeError
from nuvec.core.functions.filled import as_shape
from nuvec.core.functions.stream import next_key, root_key, seed_key
from nuvec.core.ir import aval
from nuvec.core.node import constant
from nuvec.core.ops.comparison import right_shift
from nuvec.core.ops.random import (
    as_words,
    count_of,
    is_integer,
    key_batch,
    random_bits_p,
    random_fold_in_p,
    random_split_p,
    uint64_constant,
)  # fmt: skip
from nuvec.core.ops.selection import where
from nuvec.core.ops.shape import reshape_p
from nuvec.core.traceback import filtered


@filtered
def key(seed: Any) -> Array:
    """The key of a seed: uint64 [2], or [..., 2] for an integer array of seeds (traced ones too).

    Any Python int is a seed, negative and arbitrarily large ones included; different ints give
    different keys, and an int the same in any dtype.  As an argument of a compiled or mapped
    function a Python int becomes an int32: pass np.int64(seed) or np.uint64(seed) for one that
    does not fit, up to 64 bits.  Raises DtypeError for what is no integer, a bool included.

    >>> import nuvec as nv
    >>> nv.random.key(0).shape
    (2,)
    """
    if is_integer(seed):
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


def draw_key(key: Any, name: str) -> Array:
    """The key of a draw: the caller's, or the default stream's next."""
    if key is None:
        return next_key()
    if isinstance(key, np.ndarray):
        key = from_numpy(key)
    if isinstance(key, Array):
        key_batch(f"random.{name}", key.aval)
        return key
    if is_integer(key):
        hint = f"nv.random.key({key}) makes a key of a seed"
    else:
        hint = "the key comes first, as in nv.random.key(0)"
        if isinstance(key, tuple | list):
            hint += f"; nv.random.{name}(shape={key!r}) draws without one"
    raise DtypeError(f"random.{name}: the key is {key!r:.80}, not an array; {hint}")


def draw_shape(shape: Any, name: str) -> tuple[int, ...]:
    """The shape of a draw; ArgumentError for a bool among its sizes."""
    for n in shape if isinstance(shape, tuple | list) else (shape,):
        if isinstance(n, bool | np.bool_):
            raise ArgumentError(
                f"random.{name}: a shape is an integer or a tuple of integers, got {shape!r}"
            )
    return as_shape(shape, f"random.{name}")


@filtered
def split(key: Any = None, num: Any = 2) -> Array:
    """`num` new keys, independent of each other and of the old one: [..., num, 2].

    `num` is how many, or the shape of an array of keys: (2, 3) gives [..., 2, 3, 2], the keys of
    6 in order.  The old key should not be used for drawing again.  Raises TypeError for what is
    neither, and ShapeError for a negative size.

    >>> import nuvec as nv
    >>> a, b = nv.random.split(nv.random.key(0))
    """
    sizes = count_of(num, "random.split")
    keys = random_split_p.bind(draw_key(key, "split"), num=math.prod(sizes))
    if len(sizes) == 1:
        return keys
    return reshape_p.bind(keys, shape=(*keys.shape[:-2], *sizes, 2))


@filtered
def fold_in(key: Any, data: Any) -> Array:
    """A new key from a key and an integer (an epoch, a rank, a layer number): [..., 2].

    `data` is a Python int from -2^63 to 2^64 - 1, or an integer array that broadcasts with the
    batch of keys.  Raises DtypeError for other data, bools included.

    >>> import nuvec as nv
    >>> key = nv.random.fold_in(nv.random.key(0), 17)
    """
    if is_integer(data):
        if not -(2**63) <= data < 2**64:
            raise DtypeError(f"random.fold_in: {data} does not fit 64 bits; use nv.random.key")
        return random_fold_in_p.bind(draw_key(key, "fold_in"), uint64_constant(int(data)))
    return random_fold_in_p.bind(draw_key(key, "fold_in"), as_words(data, "random.fold_in"))


@filtered
def bits(key: Any = None, shape: Any = (), dtype: Any = dtypes.uint32) -> Array:
    """Random bits as unsigned integers: [..., *shape] of uint8, uint16, uint32 or uint64."""
    return draw_bits(draw_key(key, "bits"), draw_shape(shape, "bits"), dtypes.as_dtype(dtype))


def draw_bits(key: Array, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """`bits` of a key and a shape that are known to be good."""
    return random_bits_p.bind(key, shape=shape, dtype=dtype)


__all__ = ["bits", "draw_bits", "draw_key", "draw_shape", "fold_in", "key", "split"]
