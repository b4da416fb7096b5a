"""Random legal programs over several groups: every transport must agree with the local one.

A program is a list of steps that all ranks follow: collectives on the whole group or on a group
split from it, and messages that are sent long before they are received. Every rank derives it from
the same seed, so a failing seed is all that is needed to see it again.

A ring sends to neighbours only, so there the messages of a program go no further; and its sums have
bits of their own, which are held against the bound on their error, and count as those of the fold.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from nuvec.distributed.communicator import Buffer, Communicator
from nuvec.testing.contract_tools import DTYPES, folded, reductions, reference, values
from tests.distributed.worlds import TRANSPORTS, on_ranks

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

    def in_order(
        group: Communicator, op: str, results: list[Buffer], of: Callable[[int], list[Buffer]]
    ) -> list[Buffer]:
        """The fold in rank order, once it is seen that `results` is as near to it as it must be.
        `of(rank)`: what the rank of the whole group gave."""
        if group.folds_in_rank_order:
            return results
        inputs = list(zip(*[of(member) for member in places[groups.index(group)]], strict=True))
        for result, given in zip(results, inputs, strict=True):
            folded(group, op, result, given)
        return [reference(op, given) for given in inputs]

    def scattered(
        group: Communicator, arrays: list[Buffer], of: Callable[[int], list[Buffer]]
    ) -> list[Buffer]:
        slices = group.sum_scatter(arrays)
        if group.folds_in_rank_order:
            return slices
        whole = in_order(group, "sum", group.all_gather(slices), of)
        return [np.split(x, group.size)[group.rank] for x in whole]

    for step in range(steps):
        kind = rng.choice(["reduce", "reduce", "gather", "scatter", "all_to_all", "broadcast"])
        if rng.random() < 0.4:
            kind = "message"
        which, dtype = rng.randrange(len(groups)), rng.choice(DTYPES)
        lengths = [rng.choice(LENGTHS) for _ in range(rng.choice([1, 1, 2, 5]))]
        op, root = rng.choice(reductions(dtype)), rng.randrange(1 << 16)
        source, offset = rng.randrange(c.size), rng.randrange(c.size)
        if c.sends_to_neighbours_only:
            offset = (0, 1, c.size - 1)[offset % 3]
        target = (source + offset) % c.size
        group = groups[which]

        def given(
            rank: int, step: int = step, dtype: Any = dtype, lengths: list[int] = lengths
        ) -> list[Buffer]:
            return [values(rank + 7 * step, (n,), dtype) for n in lengths]

        arrays = given(c.rank)
        if kind == "message":
            if c.size == 1:
                continue
            if c.rank == source:
                c.send([np.full(lengths[0], step)], target)
            unreceived.append((source, target, lengths[0], step))
        elif kind == "reduce":
            reduced = group.all_reduce(op, arrays)  # type: ignore[arg-type]
            note(in_order(group, op, reduced, given))
        elif kind == "gather":
            note(group.all_gather(arrays))
        elif kind == "broadcast":
            note(group.broadcast(arrays, root % group.size))
        else:
            lengths = [n // 9 * group.size for n in lengths]
            arrays = given(c.rank, lengths=lengths)
            if kind == "all_to_all" or dtype == np.bool_:
                note(group.all_to_all(arrays))
            else:
                note(scattered(group, arrays, partial(given, lengths=lengths)))
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
        for name, found in digests.items():
            assert found == digests["local"], f"seed {seed}: {name}"
