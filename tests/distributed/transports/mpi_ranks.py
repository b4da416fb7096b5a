"""Programs that `test_mpi.py` runs under mpirun: `python -m tests.distributed.transports.mpi_ranks`
and the name of a function, which each rank calls."""

from __future__ import annotations

import sys
import traceback
from typing import Any

import numpy as np
from mpi4py import MPI

from nuvec.distributed.transports import _messages, mpi
from nuvec.testing.contract import CONTRACT
from nuvec.testing.contract_tools import BFLOAT16, LARGE, reference, same_bits, values

WORLD = MPI.COMM_WORLD


def contract(*names: str) -> None:
    """The whole contract, or some of its cases, each in a world of its own."""
    failed = 0
    for name in names or CONTRACT:
        communicator = mpi.mpi_communicator(timeout=30)
        try:
            CONTRACT[name](communicator)
            print(f"ok {name}", flush=True)
        except BaseException as error:
            failed += 1
            traceback.print_exc()
            communicator.abort(f"test failed: {error!r}")
        finally:
            communicator.close()
        WORLD.Barrier()
    sys.exit(failed)


def in_short_chunks() -> None:
    """What goes for messages beyond MPI's 32-bit counts, with a limit that small ones pass."""
    _messages.CHUNK = mpi.CHUNK = 1000
    mpi.NATIVE = 2000
    contract("moves_large_messages", "moves_every_dtype", "sends_in_order", "all_may_send_first")


def beyond_32_bits() -> None:
    """A message of more than 2^31 bytes, every way it can go."""
    c = mpi.mpi_communicator()
    n = (1 << 31) + 4099
    mine = np.full(n, c.rank + 1, np.uint8)
    mine[-1] = 100 + c.rank
    for root in range(2):
        got = c.broadcast([mine], root)[0]
        assert got.size == n and (got[:-1] == root + 1).all() and got[-1] == 100 + root
    c.send([mine], 1 - c.rank)
    got = c.recv([((n,), np.dtype(np.uint8))], 1 - c.rank)[0]
    assert (got[:-1] == 2 - c.rank).all() and got[-1] == 101 - c.rank
    del got
    half = mine[: n // 2 + 1]  # together more than counts can say
    rows = c.all_gather([half])[0].reshape(2, -1)
    assert (rows[0] == 1).all() and (rows[1] == 2).all()
    del rows, half
    total = c.all_reduce("max", [mine])[0]
    assert (total[:-1] == 2).all() and total[-1] == 101
    c.close()
    print("ok", flush=True)


def both_ways() -> None:
    """100 MB to each other at once, sent first; and the 16-bit sums that MPI has not."""
    c = mpi.mpi_communicator(timeout=60)
    mine = np.full(100_000_000, c.rank, np.uint8)
    other = (c.rank + 1) % c.size
    c.send([mine], other)
    got = c.recv([(mine.shape, mine.dtype)], (c.rank - 1) % c.size)[0]
    assert (got == (c.rank - 1) % c.size).all()
    for dtype in (np.dtype(np.float16), BFLOAT16):
        inputs = [values(r, (LARGE,), dtype) for r in range(c.size)]
        same_bits(c.all_reduce("sum", [inputs[c.rank]])[0], reference("sum", inputs))
    c.close()
    print("ok", flush=True)


def uses_mpi_split() -> None:
    """A group has an MPI communicator with its ranks in its order, apart from the program's own."""
    c = mpi.mpi_communicator()
    part = c.split(c.rank % 2, c.size - c.rank)
    assert isinstance(part, mpi.MpiCommunicator)
    ours: Any = part._comm
    assert (ours.Get_rank(), ours.Get_size()) == (part.rank, part.size)
    assert MPI.Comm.Compare(ours, WORLD) == MPI.UNEQUAL
    assert MPI.Comm.Compare(c._comm, WORLD) == MPI.CONGRUENT  # a duplicate: messages do not mix
    x = np.full(50_000, float(c.rank))
    members = range(c.rank % 2, c.size, 2)[::-1]
    same_bits(part.all_gather([x])[0], np.repeat([float(m) for m in members], 50_000))
    assert WORLD.allreduce(1) == c.size
    c.close()
    print("ok", flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
