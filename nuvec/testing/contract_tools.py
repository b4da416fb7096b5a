"""What the contract's cases are written with: known values, and exact comparison."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from nuvec.distributed.communicator import Buffer, Communicator

__all__ = [
    "BFLOAT16",
    "DTYPES",
    "LARGE",
    "SHAPES",
    "Case",
    "folded",
    "narrowed",
    "partners",
    "raises",
    "reductions",
    "reference",
    "same_bits",
    "values",
]

Case = Callable[[Communicator], None]
"""A case: called on every rank of a fresh group, it raises where the contract is broken."""

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [
    *map(np.dtype, ["bool", "int8", "int16", "int32", "int64"]),
    *map(np.dtype, ["uint8", "uint16", "uint32", "uint64"]),
    *map(np.dtype, ["float16", "float32", "float64", "complex64", "complex128"]),
    BFLOAT16,
]
SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (7,), (3, 0, 2), (2, 3, 5), (1031,)]
LARGE = 1_000_003


def values(rank: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Buffer:
    """Some numbers that every rank can compute for every rank."""
    random = np.random.default_rng([rank, len(shape), *shape, dtype.itemsize])
    if dtype == np.bool_:
        return np.asarray(random.integers(0, 2, shape) == 1)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.asarray(random.integers(info.min, info.max, shape, dtype, endpoint=True))
    # Magnitudes that differ make the order of a sum visible in its bits.
    real = random.normal(size=shape) * 10.0 ** random.integers(-3, 4, shape)
    if dtype.kind == "c":
        return np.asarray(real + 1j * random.normal(size=shape), dtype=dtype)
    return np.asarray(real, dtype=dtype)


def reference(op: str, inputs: Sequence[Buffer]) -> Buffer:
    """The left fold in rank order, in float32 for the 16-bit floats, rounded once."""
    combine = {"sum": np.add, "max": np.maximum, "min": np.minimum}[op]
    dtype = inputs[0].dtype
    wide = np.dtype(np.float32) if dtype in (np.dtype(np.float16), BFLOAT16) else dtype
    with np.errstate(all="ignore"):
        total = inputs[0].astype(wide)
        for value in inputs[1:]:
            total = np.asarray(combine(total, value.astype(wide)), dtype=wide)
        return np.asarray(total.astype(dtype))


def same_bits(one: Buffer, other: Buffer) -> None:
    """Raise unless the arrays agree in dtype, shape and every bit."""
    assert isinstance(one, np.ndarray)
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    assert one.flags.c_contiguous
    assert one.tobytes() == other.tobytes(), f"{one!r}\n{other!r}"


def reductions(dtype: np.dtype[Any]) -> list[str]:
    """The reductions that `dtype` has."""
    if dtype == np.bool_:
        return ["max", "min"]
    return ["sum"] if dtype.kind == "c" else ["sum", "max", "min"]


def raises(error: type[BaseException], call: Callable[[], Any]) -> str:
    """The text of the error that `call` must raise."""
    try:
        call()
    except error as caught:
        return str(caught)
    raise AssertionError(f"{error.__name__} was not raised")


def folded(c: Communicator, op: str, result: Buffer, inputs: Sequence[Buffer]) -> None:
    """Raise unless `result` is the reduction of every rank's `inputs`, in this rank's bits and, as
    all ranks call this, in everyone's."""
    expected = reference(op, inputs)
    exact = op != "sum" or expected.dtype.kind in "iu"
    if c.folds_in_rank_order or exact or c.size < 3:
        same_bits(result, expected)
        return
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    assert result.flags.c_contiguous
    _rounded_once(result, inputs)
    digest = np.frombuffer(hashlib.sha256(result.tobytes()).digest(), np.uint8)
    digests = c.all_gather([digest[None]])[0]
    assert (digests == digests[0]).all(), "ranks have different bits"


def _rounded_once(result: Buffer, inputs: Sequence[Buffer]) -> None:
    """The bound on a sum in any order: N - 1 additions, and one rounding of a 16-bit float."""
    dtype = result.dtype
    narrow = dtype in (np.dtype(np.float16), BFLOAT16)
    exact_dtype = np.complex128 if dtype.kind == "c" else np.float64
    wide = [x.astype(exact_dtype) for x in inputs]
    total, sizes = np.sum(wide, axis=0), np.sum(np.abs(wide), axis=0)
    unit = float(np.finfo(np.float32 if narrow else dtype).eps)
    bound = 2 * len(inputs) * unit * sizes
    if narrow:
        bound = bound + 0.5 * float(ml_dtypes.finfo(dtype).eps) * (1 + 1e-3) * abs(total) + 1e-7
    with np.errstate(all="ignore"):
        off = abs(result.astype(exact_dtype) - total)
        overflowed = ~np.isfinite(result.astype(exact_dtype)) & (sizes > 6e4)
    assert ((off <= bound) | overflowed).all(), f"off by {np.max(off - bound)} more than it may be"


def partners(c: Communicator) -> list[int]:
    """The other ranks that this one can send to."""
    others = [rank for rank in range(c.size) if rank != c.rank]
    if c.sends_to_neighbours_only:
        return [rank for rank in others if (rank - c.rank) % c.size in (1, c.size - 1)]
    return others


def narrowed(c: Communicator) -> list[str]:
    """What is not checked of a transport because it declares to promise less."""
    less = []
    if not c.folds_in_rank_order:
        less.append("sums have the same bits on every rank, not those of the fold in rank order")
    if c.sends_to_neighbours_only:
        less.append("messages are sent to the next and the previous rank only")
    return less
