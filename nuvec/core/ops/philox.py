"""Random words: Philox4x64-10, a counter-based generator, on NumPy values.

A block of four 64-bit words is a function of a 128-bit key and a 256-bit counter; nothing is
remembered between draws.  (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2,
3", SC'11, doi 10.1145/2063384.2063405.)

`words` gives, for every key, the stream of one *purpose*: the blocks of the counters
(1, salt, 0, purpose), (2, salt, 0, purpose), ... which is
`numpy.random.Philox(key=key, counter=[0, salt, 0, purpose]).random_raw(count)`, a stream that NumPy
promises never to change.  Different purposes and salts never share a block.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

BITS, SPLIT, FOLD_IN, PERMUTE, STREAM = range(5)  # the purposes

_FEW_WORDS = 64  # a key
_MANY_KEYS = 200  # from which computing all keys together beats NumPy's generator key by key
_CHUNK = 8192  # blocks computed together: the working arrays stay in the cache

_MULTIPLIERS = (np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157))
_WEYL = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ROUNDS = 10


def words(keys: np.ndarray, purpose: int, count: int, salts: np.ndarray | None = None) -> Any:
    """The first `count` words of each key's stream: uint64 [n, 2] to [n, count]; `salts` [n]."""
    if len(keys) >= _MANY_KEYS and count <= _FEW_WORDS:
        return _all_keys(keys, purpose, count, salts)
    out = np.empty((len(keys), count), np.uint64)
    for i, key in enumerate(keys):
        out[i] = _one_key(key, purpose, count, 0 if salts is None else salts[i])
    return out


class _Generators(threading.local):
    """NumPy's generator, one a thread: setting its state is ten times cheaper than making one."""

    def __init__(self) -> None:
        self.philox = np.random.Philox(0)


_generators: _Generators | None = None  # made at the first draw: numpy.random is slow to import


def _one_key(key: np.ndarray, purpose: int, count: int, salt: Any) -> Any:
    global _generators
    if _generators is None:
        _generators = _Generators()
    counter = np.array((0, salt, 0, purpose), np.uint64)
    _generators.philox.state = {
        "bit_generator": "Philox",
        "state": {"counter": counter, "key": np.ascontiguousarray(key)},
        "buffer": counter,
        "buffer_pos": 4,  # nothing is buffered
        "has_uint32": 0,
        "uinteger": 0,
    }
    return _generators.philox.random_raw(count)


def _all_keys(keys: np.ndarray, purpose: int, count: int, salts: np.ndarray | None) -> np.ndarray:
    blocks = -(-count // 4)
    out = np.empty((len(keys), blocks, 4), np.uint64)
    step = max(1, _CHUNK // max(blocks, 1))
    first = np.arange(1, blocks + 1, dtype=np.uint64)
    for start in range(0, len(keys), step):
        some = slice(start, start + step)
        shape = (len(keys[some]), blocks)
        salt = np.zeros(1, np.uint64) if salts is None else salts[some, None]
        counter = (first, salt, np.zeros(1, np.uint64), np.full(1, purpose, np.uint64))
        out[some] = philox(
            [np.broadcast_to(c, shape) for c in counter], [keys[some, :1], keys[some, 1:]]
        )
    return out.reshape(len(keys), 4 * blocks)[:, :count]


def philox(counter: list[np.ndarray], key: list[np.ndarray]) -> np.ndarray:
    """The blocks of many counters (four uint64 arrays [...]) and keys (two): uint64 [..., 4]."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(_MULTIPLIERS[0], c0)
        high1, low1 = _multiply(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + _WEYL[0], k1 + _WEYL[1]
    return np.stack((c0, c1, c2, c3), axis=-1)


def _multiply(a: np.uint64, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The high and the low word of the 128-bit products a * b."""
    a0, a1 = a & _LOW, a >> _HALF
    b0, b1 = b & _LOW, b >> _HALF
    middle = a1 * b0 + ((a0 * b0) >> _HALF)  # at most 2^64 - 2^32: it does not overflow
    other = a0 * b1 + (middle & _LOW)
    return a1 * b1 + (middle >> _HALF) + (other >> _HALF), a * b


def as_unsigned(stream: np.ndarray, dtype: np.dtype, count: int) -> np.ndarray:
    """The first `count` numbers of an unsigned dtype in the streams [n, words], each word giving
    its low part first whatever the byte order of the machine."""
    narrow = np.dtype(f"<u{dtype.itemsize}")
    parts = np.ascontiguousarray(stream.astype("<u8", copy=False)).view(narrow)
    return parts[:, :count].astype(dtype, copy=False)


__all__ = ["BITS", "FOLD_IN", "PERMUTE", "SPLIT", "STREAM", "as_unsigned", "philox", "words"]
