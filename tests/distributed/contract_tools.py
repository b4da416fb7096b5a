"""What the contract's cases are written with: ranks as threads, known values, exact comparison."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from nuvec.distributed.communicator import Buffer, Communicator

MakeWorld = Callable[[int], Sequence[Callable[[], Communicator]]]
Case = Callable[[Communicator], None]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [
    *map(np.dtype, ["bool", "int8", "int16", "int32", "int64"]),
    *map(np.dtype, ["uint8", "uint16", "uint32", "uint64"]),
    *map(np.dtype, ["float16", "float32", "float64", "complex64", "complex128"]),
    BFLOAT16,
]
SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (7,), (3, 0, 2), (2, 3, 5), (1031,)]
LARGE = 1_000_003


def on_ranks(make_world: MakeWorld, size: int, body: Callable[[Communicator], Any]) -> list[Any]:
    """Run `body` on every rank; returns results by rank, raises the first error."""
    factories = make_world(size)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        communicator = None
        try:
            communicator = factories[rank]()
            results[rank] = body(communicator)
        except BaseException as error:
            errors.append(error)
            if communicator is not None:
                communicator.abort(f"test failed: {error!r}")
        finally:
            if communicator is not None:
                communicator.close()

    threads = [threading.Thread(target=run, args=(r,), daemon=True) for r in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


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
