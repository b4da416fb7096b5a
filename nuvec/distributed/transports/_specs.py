"""How messages describe their arrays: dtype codes, and shapes and dtypes as bytes and as text."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from nuvec.core.errors import DistributedError, DtypeError
from nuvec.distributed.communicator import Buffer, Spec

try:  # bfloat16 is not NumPy's own; without the package there are no such arrays to send.
    import ml_dtypes

    BFLOAT16: np.dtype[Any] | None = np.dtype(ml_dtypes.bfloat16)
except ImportError:  # pragma: no cover - depends on the installation
    BFLOAT16 = None

_NAMES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)

# Codes are part of the wire format: append, never renumber. 0 is left out so that a zeroed
# header is not a valid one.
_CODE_OF: dict[np.dtype[Any], int] = {np.dtype(name): 1 + i for i, name in enumerate(_NAMES)}
if BFLOAT16 is not None:
    _CODE_OF[BFLOAT16] = 32
_DTYPE_OF = {code: dtype for dtype, code in _CODE_OF.items()}

_MAX_NDIM = 64


def check_dtype(dtype: np.dtype[Any]) -> None:
    """Raise unless arrays of `dtype` can be communicated."""
    if dtype not in _CODE_OF:
        raise DtypeError(f"arrays of dtype {dtype} cannot be communicated")


@lru_cache(maxsize=4096)
def _encode_one(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    return struct.pack(f"<BB{len(shape)}q", _CODE_OF[dtype], len(shape), *shape)


def encode_specs(arrays: Iterable[Buffer]) -> bytes:
    """The dtypes and shapes of a message as bytes: equal exactly if the messages match."""
    return b"".join([_encode_one(a.shape, a.dtype) for a in arrays])


def encode_spec_list(specs: Iterable[Spec]) -> bytes:
    """As `encode_specs`, of shapes and dtypes."""
    return b"".join([_encode_one(tuple(shape), np.dtype(dtype)) for shape, dtype in specs])


def decode_specs(data: bytes) -> list[Spec]:
    """The inverse of `encode_specs`; every field is checked."""
    specs: list[Spec] = []
    position = 0
    while position < len(data):
        if position + 2 > len(data):
            raise DistributedError("malformed frame: truncated array description")
        code, ndim = data[position], data[position + 1]
        position += 2
        if code not in _DTYPE_OF or ndim > _MAX_NDIM or position + 8 * ndim > len(data):
            raise DistributedError("malformed frame: bad array description")
        shape = struct.unpack_from(f"<{ndim}q", data, position)
        position += 8 * ndim
        if any(n < 0 for n in shape):
            raise DistributedError("malformed frame: negative dimension")
        specs.append((shape, _DTYPE_OF[code]))
    return specs


def describe_specs(data: bytes) -> str:
    """``float32[4,3]``, or ``(float32[4,3], int32[])`` for several arrays."""
    texts = [f"{dtype.name}[{','.join(map(str, shape))}]" for shape, dtype in decode_specs(data)]
    if len(texts) == 1:
        return texts[0]
    if len(texts) > 32:
        texts = [*texts[:32], f"and {len(texts) - 32} more"]
    return f"({', '.join(texts)})" if texts else ""


def as_bytes(array: Buffer) -> memoryview:
    """The memory of a C-contiguous array, without a copy."""
    # Through uint8 because bfloat16 arrays do not export the buffer protocol.
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
