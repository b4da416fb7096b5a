"""pack_codes and unpack_codes: codes of a few bits each, in 32-bit words without gaps.

The words of a row are one stream of bits, the least significant first: code i of the row is bits
i * bits to (i + 1) * bits - 1 of it.  So 32 codes take `bits` words, whatever `bits` is.  In memory
(little-endian) the stream is a row of bytes, in which codes repeat their places with a short
period: of 3 bits, 8 codes in 3 bytes; of 4, 2 codes in a byte.  The codes at one place of every
period are a plane; each plane takes a few operations on whole arrays of bytes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array
from nuvec.core.errors import DtypeError, ShapeError
from nuvec.core.ir import Aval, aval
from nuvec.core.ops.shape import move_axis
from nuvec.core.primitive import NOT_DIFFERENTIABLE, Primitive

WORD = 32  # bits of a word, and the fewest codes that fill whole words


def plane_count(bits: int) -> int:
    """How many codes a period has: the number of planes."""
    return 8 // math.gcd(bits, 8)


def planes(words: Any, bits: int) -> Iterator[Any]:
    """The planes of the codes in `words`, a uint8 array each: (..., W) gives (..., count / P)."""
    count, width = plane_count(bits), bits // math.gcd(bits, 8)
    octets = _octets(words)
    octets = octets.reshape(*octets.shape[:-1], octets.shape[-1] // width, width)
    for i in range(count):
        byte, shift = divmod(i * bits, 8)
        plane = octets[..., byte] >> shift
        if shift + bits > 8:
            plane |= octets[..., byte + 1] << (8 - shift)
        if bits < 8:
            plane &= (1 << bits) - 1
        yield plane


def _octets(words: Any) -> Any:
    """The bytes of rows of words, the least significant first."""
    if sys.byteorder == "big":
        words = words.byteswap()
    return np.ascontiguousarray(words).view(np.uint8)


def _pack_lower(codes: Any, bits: int) -> Any:
    *rest, count = codes.shape
    stream = np.zeros((*rest, count // 8), np.uint64)
    for i in range(8):  # 8 codes fill `bits` bytes
        stream |= codes[..., i::8].astype(np.uint64) << (i * bits)
    if sys.byteorder == "big":
        stream = stream.byteswap()
    octets = stream.view(np.uint8).reshape(*rest, count // 8, 8)[..., :bits]
    words = np.ascontiguousarray(octets).reshape(*rest, count // 8 * bits).view(np.uint32)
    return words.byteswap() if sys.byteorder == "big" else words


def _unpack_lower(words: Any, bits: int) -> Any:
    count = plane_count(bits)
    codes = np.empty((*words.shape[:-1], words.shape[-1] * WORD // bits), np.uint8)
    for i, plane in enumerate(planes(words, bits)):
        codes[..., i::count] = plane
    return codes


def _pack_rule(codes: Aval, bits: int) -> Aval:
    if codes.dtype != dtypes.uint8:
        raise DtypeError(f"pack_codes: codes are uint8, got {codes}")
    if not codes.ndim or codes.shape[-1] % WORD:
        raise ShapeError(
            f"pack_codes: the codes of a row, here of {codes}, must be a multiple of {WORD}, so "
            "that they fill whole words"
        )
    return aval((*codes.shape[:-1], codes.shape[-1] // WORD * bits), dtypes.uint32)


def _unpack_rule(words: Aval, bits: int) -> Aval:
    if words.dtype != dtypes.uint32:
        raise DtypeError(f"unpack_codes: words are uint32, got {words}")
    if not words.ndim or words.shape[-1] % bits:
        raise ShapeError(
            f"unpack_codes: the words of a row, here of {words}, must be a multiple of {bits}: "
            f"{WORD} codes of {bits} bits fill so many"
        )
    return aval((*words.shape[:-1], words.shape[-1] * WORD // bits), dtypes.uint8)


def _pack_vmap(size: int, axes: Sequence[int | None], codes: Array, bits: int) -> tuple[Array, int]:
    assert axes[0] is not None
    return pack_codes_p.bind(move_axis(codes, axes[0], 0), bits=bits), 0


def _unpack_vmap(
    size: int, axes: Sequence[int | None], words: Array, bits: int
) -> tuple[Array, int]:
    assert axes[0] is not None
    return unpack_codes_p.bind(move_axis(words, axes[0], 0), bits=bits), 0


# uint8[..., count] -> uint32[..., count * bits / 32]; each code is below 2^bits
pack_codes_p = Primitive(
    "pack_codes", _pack_lower, _pack_rule, "other",
    jvp=NOT_DIFFERENTIABLE, vjp=NOT_DIFFERENTIABLE, vmap=_pack_vmap,
)  # fmt: skip

# The opposite.
unpack_codes_p = Primitive(
    "unpack_codes", _unpack_lower, _unpack_rule, "other",
    jvp=NOT_DIFFERENTIABLE, vjp=NOT_DIFFERENTIABLE, vmap=_unpack_vmap,
)  # fmt: skip
