"""Keys and random bits.

A key is an Array of dtype uint64 whose last axis has size 2; leading axes make a batch of keys,
which draws exactly what a loop over them draws.  The primitives are functions of the key
alone, so a program draws the same bits on every platform, eagerly, batched or compiled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, literal
from nuvec.core.errors import ArgumentError, DtypeError, ShapeError
from nuvec.core.ir import Aval, aval
from nuvec.core.node import constant
from nuvec.core.ops import philox
from nuvec.core.ops.build import broadcast_shapes, convert_dtype, integer
from nuvec.core.ops.shape import move_axis, reshape_p
from nuvec.core.primitive import NOT_DIFFERENTIABLE, Primitive

# Shape rules


def key_batch(name: str, key: Aval) -> tuple[int, ...]:
    """The batch shape of keys; `name` is the function they were given to."""
    if key.dtype != dtypes.uint64 or key.shape[-1:] != (2,):
        raise DtypeError(
            f"{name}: a key is a uint64 array of shape [..., 2], got {key}; make one with "
            "nv.random.key(seed), and several, as for a map over keys, with "
            "nv.random.split(key, num)"
        )
    return key.shape[:-1]


def _bits_rule(key: Aval, shape: tuple[int, ...], dtype: np.dtype) -> Aval:
    if dtype.kind != "u":
        raise DtypeError(f"random.bits are unsigned integers, got dtype {dtypes.name(dtype)}")
    return aval(key_batch("random.bits", key) + shape, dtype)


def _split_rule(key: Aval, num: int) -> Aval:
    return aval((*key_batch("random.split", key), num, 2), dtypes.uint64)


def _fold_in_rule(key: Aval, data: Aval) -> Aval:
    if data.dtype != dtypes.uint64:
        raise DtypeError(f"random.fold_in: the primitive folds in uint64 data, got {data}")
    batch = broadcast_shapes("random.fold_in", key_batch("random.fold_in", key), data.shape)
    return aval((*batch, 2), dtypes.uint64)


def _permutation_rule(key: Aval, num: int) -> Aval:
    return aval((*key_batch("random.permutation", key), num), dtypes.int32)


# Lowerings


def _bits_lower(key: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    keys = key.reshape(-1, 2)
    count = math.prod(shape)
    stream = philox.words(keys, philox.BITS, -(-count * dtype.itemsize // 8))
    return philox.as_unsigned(stream, dtype, count).reshape(key.shape[:-1] + shape)


def _split_lower(key: Any, num: int) -> Any:
    stream = philox.words(key.reshape(-1, 2), philox.SPLIT, 2 * num)
    return stream.reshape(*key.shape[:-1], num, 2)


def _permutation_lower(key: Any, num: int) -> Any:
    # The order of random words: two of num are equal with probability below num^2 / 2^65.
    words = philox.words(key.reshape(-1, 2), philox.PERMUTE, num)
    order = np.argsort(words, axis=-1, kind="stable")
    return order.astype(np.int32).reshape(*key.shape[:-1], num)


def _fold_in_lower(key: Any, data: Any) -> Any:
    batch = np.broadcast_shapes(key.shape[:-1], np.shape(data))
    keys = np.broadcast_to(key, (*batch, 2)).reshape(-1, 2)
    salts = np.broadcast_to(data, batch).reshape(-1)
    return philox.words(keys, philox.FOLD_IN, 2, salts).reshape(*batch, 2)


# Batching: a batch of keys is a leading axis


def _bits_vmap(
    size: int, axes: Sequence[int | None], key: Array, **params: Any
) -> tuple[Array, int]:
    assert axes[0] is not None
    return random_bits_p.bind(move_axis(key, axes[0], 0), **params), 0


def _split_vmap(size: int, axes: Sequence[int | None], key: Array, num: int) -> tuple[Array, int]:
    assert axes[0] is not None
    return random_split_p.bind(move_axis(key, axes[0], 0), num=num), 0


def _permutation_vmap(
    size: int, axes: Sequence[int | None], key: Array, num: int
) -> tuple[Array, int]:
    assert axes[0] is not None
    return random_permutation_p.bind(move_axis(key, axes[0], 0), num=num), 0


def _fold_in_vmap(
    size: int, axes: Sequence[int | None], key: Array, data: Array
) -> tuple[Array, int]:
    key_axis, data_axis = axes
    rank = max(key.ndim - 1 - (key_axis is not None), data.ndim - (data_axis is not None))
    if key_axis is not None:
        key = move_axis(key, key_axis, 0)
        fill = (1,) * (rank + 2 - key.ndim)
        key = reshape_p.bind(key, shape=(size, *fill, *key.shape[1:]))
    if data_axis is not None:
        data = move_axis(data, data_axis, 0)
        fill = (1,) * (rank + 1 - data.ndim)
        data = reshape_p.bind(data, shape=(size, *fill, *data.shape[1:]))
    return random_fold_in_p.bind(key, data), 0


random_bits_p = Primitive("random_bits", _bits_lower, _bits_rule, "random", vmap=_bits_vmap,
                          jvp=NOT_DIFFERENTIABLE, vjp=NOT_DIFFERENTIABLE)  # fmt: skip
random_split_p = Primitive("random_split", _split_lower, _split_rule, "random", vmap=_split_vmap,
                           jvp=NOT_DIFFERENTIABLE, vjp=NOT_DIFFERENTIABLE)  # fmt: skip
random_permutation_p = Primitive("random_permutation", _permutation_lower, _permutation_rule,
                                 "random", vmap=_permutation_vmap, jvp=NOT_DIFFERENTIABLE,
                                 vjp=NOT_DIFFERENTIABLE)  # fmt: skip
random_fold_in_p = Primitive("random_fold_in", _fold_in_lower, _fold_in_rule, "random",
                             vmap=_fold_in_vmap, jvp=NOT_DIFFERENTIABLE,
                             vjp=NOT_DIFFERENTIABLE)  # fmt: skip


# Words of data


def uint64_constant(value: int) -> Array:
    """A Python int, modulo 2^64, as a scalar that is written into equations."""
    return literal(value & (2**64 - 1), dtypes.uint64)


def is_integer(x: Any) -> bool:
    """Whether `x` is an int, Python's or NumPy's; a bool, which counts nothing, is none here."""
    return isinstance(x, int | np.integer) and not isinstance(x, bool)


def as_words(x: Any, name: str) -> Array:
    """Integers as uint64: negative ones modulo 2^64, so that an int is the same in any dtype."""
    if isinstance(x, np.ndarray | np.generic):
        x = Array(constant(np.array(x), aval(np.shape(x), dtypes.as_dtype(x.dtype))))
    if not isinstance(x, Array) or not dtypes.is_integer(x.dtype):
        got = x.aval if isinstance(x, Array) else repr(x)
        raise DtypeError(f"{name} takes an int or an integer array, got {got}")
    if dtypes.is_signed(x.dtype) and x.dtype != dtypes.int64:
        x = convert_dtype.bind(x, dtype=dtypes.int64)  # extends the sign
    return x if x.dtype == dtypes.uint64 else convert_dtype.bind(x, dtype=dtypes.uint64)


def count_of(num: Any, name: str) -> tuple[int, ...]:
    """How many keys are wanted, as a shape; a traced number raises ConcretizationError, for it
    decides a shape."""
    sizes = num if isinstance(num, tuple | list) else (num,)
    whole = []
    for n in sizes:
        if isinstance(n, bool | np.bool_):
            raise ArgumentError(f"{name}'s num is an integer or a shape, got {num!r}")
        whole.append(integer(n, f"{name}'s num"))
    if any(n < 0 for n in whole):
        raise ShapeError(f"{name}: num is {num}; it counts the keys wanted")
    return tuple(whole)


__all__ = [
    "as_words",
    "count_of",
    "is_integer",
    "key_batch",
    "random_bits_p",
    "random_fold_in_p",
    "random_permutation_p",
    "random_split_p",
    "uint64_constant",
]
