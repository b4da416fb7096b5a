"""The contract: messages far larger than any buffer. Slow cases, which can be left out."""

from __future__ import annotations

import numpy as np

from nuvec.distributed.communicator import Buffer, Communicator
from nuvec.testing.contract_tools import Case, partners

__all__ = ["LARGE_CASES"]

COUNT = 1 << 24
"""Of float32: 64 MB."""

PERIOD = 1021


def _values(factor: int, count: int = COUNT) -> Buffer:
    """Whole numbers that repeat after a prime number of places: cheap, and exact in any order."""
    return np.resize(np.arange(PERIOD, dtype=np.float32) * np.float32(factor), count)


def _rotated(factor: int, start: int, count: int) -> Buffer:
    """``_values(factor)[start : start + count]``."""
    pattern = np.arange(PERIOD, dtype=np.float32) * np.float32(factor)
    return np.resize(np.roll(pattern, -(start % PERIOD)), count)


def _equal(one: Buffer, other: Buffer) -> None:
    assert one.dtype == other.dtype and one.shape == other.shape
    assert np.array_equal(one, other)


def reduces_64_megabytes(c: Communicator) -> None:
    total = sum(range(1, c.size + 1))
    _equal(c.all_reduce("sum", [_values(c.rank + 1)])[0], _values(total))


def moves_64_megabytes(c: Communicator) -> None:
    rows = COUNT // c.size
    count = rows * c.size
    factors = range(1, c.size + 1)
    mine = _values(c.rank + 1, count)
    start = c.rank * rows
    _equal(c.sum_scatter([mine])[0], _rotated(sum(factors), start, rows))
    exchanged = np.concatenate([_rotated(f, start, rows) for f in factors])
    _equal(c.all_to_all([mine])[0], exchanged)
    _equal(c.broadcast([mine], c.size - 1)[0], _values(c.size, count))
    gathered = c.all_gather([mine[:rows]])[0]
    _equal(gathered, np.concatenate([_rotated(f, 0, rows) for f in factors]))


def neighbours_send_100_megabytes_first(c: Communicator) -> None:
    """Both send to each other, and receive afterwards."""
    count = 100_000_000
    pairs = c.split(c.rank // 2)
    if pairs.size == 1:
        return
    (other,) = partners(pairs)
    pairs.send([np.resize(np.arange(251, dtype=np.uint8) + np.uint8(pairs.rank), count)], other)
    got = pairs.recv([((count,), np.dtype(np.uint8))], other)[0]
    assert np.array_equal(got, np.resize(np.arange(251, dtype=np.uint8) + np.uint8(other), count))


LARGE_CASES: list[Case] = [
    reduces_64_megabytes,
    moves_64_megabytes,
    neighbours_send_100_megabytes_first,
]
