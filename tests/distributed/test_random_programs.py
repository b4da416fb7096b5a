"""Random legal programs over several groups: the mesh must agree with the local transport.

A program is a list of steps that all ranks follow: collectives on the whole group or on a group
split from it, and messages that are sent long before they are received. Every rank derives it from
the same seed, so a failing seed is all that is needed to see it again.
"""

from __future__ import annotations

import hashlib
import random
from functools import partial

import numpy as np
import pytest

from nuvec.distributed.communicator import Buffer, Communicator
from tests.distributed.contract_tools import DTYPES, on_ranks, reductions, values
from tests.distributed.worlds import TRANSPORTS

pytestmark = pytest.mark.timeout(120)

# Around the sizes where something changes: empty, the frame buffer, the segment.
LENGTHS = [0, 1, 3, 100, 8191, 16384, 16385, 70_000, 131_072, 300_001]


def run_program(c: Communicator, seed: int, steps: int) -> str:
    """Follow the program; the digest of all that this rank received."""
    rng = random.Random(seed)
    digest = hashlib.sha256()
    colors = [[rng.randrange(2) for _ in range(c.size)] for _ in range(2)]
    keys = [rng.randrange(-1, 5) for _ in range(c.size)]
    groups = [c, *(c.split(color[c.rank], keys[c.rank]) for color in colors)]
    # Everyone knows who is where in every group, to play the others' part of the program too.
    places = [g.all_gather([np.array(c.rank)])[0].tolist() for g in groups]
    unreceived: list[tuple[int, int, int, int]] = []

    def note(arrays: list[Buffer]) -> None:
        for array in arrays:
            digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())

    for step in range(steps):
        kind = rng.choice(["reduce", "reduce", "gather", "scatter", "all_to_all", "broadcast"])
        if rng.random() < 0.4:
            kind = "message"
        which, dtype = rng.randrange(len(groups)), rng.choice(DTYPES)
        lengths = [rng.choice(LENGTHS) for _ in range(rng.choice([1, 1, 2, 5]))]
        op, root = rng.choice(reductions(dtype)), rng.randrange(1 << 16)
        source, target = rng.randrange(c.size), rng.randrange(c.size)
        group = groups[which]
        arrays = [values(c.rank + 7 * step, (n,), dtype) for n in lengths]
        if kind == "message":
            if c.size == 1:
                continue
            if c.rank == source:
                c.send([np.full(lengths[0], step)], target)
            unreceived.append((source, target, lengths[0], step))
        elif kind == "reduce":
            note(group.all_reduce(op, arrays))  # type: ignore[arg-type]
        elif kind == "gather":
            note(group.all_gather(arrays))
        elif kind == "broadcast":
            note(group.broadcast(arrays, root % group.size))
        else:
            whole = [values(c.rank, (n // 9 * group.size,), dtype) for n in lengths]
            if kind == "all_to_all" or dtype == np.bool_:
                note(group.all_to_all(whole))
            else:
                note(group.sum_scatter(whole))
        while unreceived and (rng.random() < 0.4 or step == steps - 1):
            source, target, length, value = unreceived.pop(0)
            if c.rank == target:
                received = c.recv([((length,), np.dtype(int))], source)
                assert (received[0] == value).all()
    note([np.array(place) for place in places])
    return digest.hexdigest()


@pytest.mark.parametrize("size", [2, 3, 5])
def test_transports_agree_on_random_programs(size: int, slow: bool) -> None:
    for seed in range(100 if slow else 4):
        program = partial(run_program, seed=seed, steps=40)
        digests = {name: on_ranks(make(60.0), size, program) for name, make in TRANSPORTS.items()}
        assert digests["mesh-unix"] == digests["local"], f"seed {seed}"
        assert digests["mesh-tcp"] == digests["local"], f"seed {seed}"
