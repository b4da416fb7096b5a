"""The contract: mismatches, aborts and departures are errors where they should be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nuvec.core.errors import DistributedError, MismatchError, PeerError
from nuvec.distributed.communicator import Communicator
from nuvec.testing.contract_tools import (
    LARGE,
    Case,
    raises,
    same_bits,
)

# Failures.


def _different_calls(c: Communicator, one: Callable[[], Any], other: Callable[[], Any]) -> str:
    """The last rank makes another call than the rest: all raise, at once and ever after."""
    text = raises(MismatchError, other if c.rank == c.size - 1 else one)
    assert "every rank must make the same calls" in text
    later = raises(MismatchError, c.barrier)
    assert text in later
    return text


def _mismatches() -> dict[str, Callable[[Communicator], Any]]:
    f32 = np.ones((4, 3), np.float32)
    return {
        "shape": lambda c: (
            lambda: c.all_reduce("sum", [f32]),
            lambda: c.all_reduce("sum", [f32[:3]]),
        ),
        "dtype": lambda c: (
            lambda: c.all_gather([f32]),
            lambda: c.all_gather([f32.astype(np.int32)]),
        ),
        "operation": lambda c: (lambda: c.all_reduce("sum", [f32]), lambda: c.all_gather([f32[0]])),
        "reduction": lambda c: (
            lambda: c.all_reduce("sum", [f32]),
            lambda: c.all_reduce("max", [f32]),
        ),
        "root": lambda c: (lambda: c.broadcast([f32], 0), lambda: c.broadcast([f32], c.size - 1)),
        "broadcast": lambda c: (lambda: c.broadcast([f32], 0), c.barrier),
        "count": lambda c: (
            lambda: c.all_reduce("sum", [f32]),
            lambda: c.all_reduce("sum", [f32, f32]),
        ),
        "large": lambda c: (
            lambda: c.all_reduce("sum", [np.ones(LARGE)]),
            lambda: c.all_reduce("sum", [np.ones(LARGE + 1)]),
        ),
        "receive": lambda c: (
            lambda: c.all_reduce("sum", [f32]),
            lambda: c.recv([((4, 3), np.dtype(np.float32))], 0),
        ),
    }


def _mismatch_case(name: str) -> Case:
    def case(c: Communicator) -> None:
        if c.size == 1:
            return
        text = _different_calls(c, *_mismatches()[name](c))
        if name == "operation":
            assert "all_sum #0 float32[4,3]" in text and "all_gather #0 float32[3]" in text
            assert f"rank {c.size - 1} " in text

    case.__name__ = f"a_mismatch_of_{name}"
    return case


def groups_in_another_order_are_a_mismatch(c: Communicator) -> None:
    if c.size == 1:
        return

    def calls() -> None:
        one, other = c.split(0), c.split(0)
        if c.rank == c.size - 1:
            one, other = other, one
        one.barrier()
        other.all_reduce("sum", [np.ones(2)])

    text = raises(MismatchError, calls)
    assert "group" in text


def other_pairs_in_a_permutation_are_a_mismatch(c: Communicator) -> None:
    if c.size == 1:
        return
    last = c.size - 1
    text = raises(
        MismatchError, lambda: c.permute([np.ones(2)], [(0, last)] if c.rank < last else [])
    )
    assert f"permute [(0, {last})], rank {last} at permute []" in text
    c.barrier()  # everybody has seen it, so the group is whole


def a_rank_that_does_not_permute_is_a_mismatch(c: Communicator) -> None:
    if c.size == 1:
        return
    if c.rank == c.size - 1:
        raises(MismatchError, lambda: c.all_reduce("sum", [np.ones(2)]))
    else:
        raises(MismatchError, lambda: c.permute([np.ones(2)], [(0, 1)]))


def a_wrong_receive_is_a_mismatch(c: Communicator) -> None:
    if c.size == 1:
        return
    if c.rank == 0:
        c.send([np.ones(3, np.float32)], 1)
        raises(MismatchError, c.barrier)
    elif c.rank == 1:
        text = raises(MismatchError, lambda: c.recv([((4,), np.dtype(np.float32))], 0))
        assert "rank 0 is at send #0 to rank 1 float32[3]" in text
        assert "rank 1 at recv #0 from rank 0 float32[4]" in text
    else:
        raises(MismatchError, c.barrier)


def abort_reaches_everyone(c: Communicator) -> None:
    if c.rank == c.size - 1:
        c.abort("the disk is full")
        assert "the disk is full" in raises(DistributedError, c.barrier)
    else:
        text = raises(PeerError, c.barrier)
        assert "the disk is full" in text and f"rank {c.size - 1}" in text
        assert "the disk is full" in raises(PeerError, lambda: c.all_gather([np.ones(2)]))


def a_message_outlives_its_sender(c: Communicator) -> None:
    if c.size == 1:
        return
    if c.rank == 0:
        c.send([np.arange(1000)], c.size - 1)
        c.close()
        raises(DistributedError, c.barrier)
    elif c.rank == c.size - 1:
        same_bits(c.recv([((1000,), np.dtype(int))], 0)[0], np.arange(1000))
        text = raises(PeerError, lambda: c.recv([((1000,), np.dtype(int))], 0))
        assert "rank 0" in text and "has left" in text


def a_circle_of_receives_is_a_mismatch(c: Communicator) -> None:
    """Rank r waits for rank r + 1, and the last one for the first."""
    if c.size == 1:
        return
    spec = ((4,), np.dtype(np.float32))
    text = raises(MismatchError, lambda: c.recv([spec], (c.rank + 1) % c.size))
    for rank in range(c.size):
        assert f"rank {rank} is at recv #0 from rank {(rank + 1) % c.size} float32[4]" in text
    assert text in raises(MismatchError, c.barrier)


def a_circle_with_a_subgroup_is_a_mismatch(c: Communicator) -> None:
    """Rank 0 waits for a message of rank 1, rank 1 for a collective with 2, and 2 for 0."""
    part = c.split(int(c.rank in (1, 2)))
    if c.size < 3 or (c.size > 3 and c.sends_to_neighbours_only):
        return
    if c.rank in (1, 2):
        wait = part.barrier if c.rank == 1 else lambda: c.recv([((), np.dtype(bool))], 0)
    else:
        wait = (lambda: c.recv([((), np.dtype(bool))], 1)) if c.rank == 0 else c.barrier
    text = raises(MismatchError, wait)
    assert "rank 0 is at recv #0 from rank 1 bool[]" in text
    assert "rank 1 is at barrier #0 on group" in text
    assert "rank 2 is at recv #0 from rank 0 bool[]" in text


def a_message_on_its_way_is_no_circle(c: Communicator) -> None:
    """Each waits for the next; one message breaks the circle, however late it comes."""
    if c.size == 1:
        return
    x = np.arange(3)
    spec = (x.shape, x.dtype)
    following, previous = (c.rank + 1) % c.size, (c.rank - 1) % c.size
    for _ in range(20):
        if c.rank == 0:
            c.send([x], previous)
            same_bits(c.recv([spec], following)[0], x)
        else:
            same_bits(c.recv([spec], following)[0], x)
            c.send([x], previous)


FAILURES: list[Case] = [
    other_pairs_in_a_permutation_are_a_mismatch,
    a_rank_that_does_not_permute_is_a_mismatch,
    a_circle_of_receives_is_a_mismatch,
    a_circle_with_a_subgroup_is_a_mismatch,
    a_message_on_its_way_is_no_circle,
    groups_in_another_order_are_a_mismatch,
    a_wrong_receive_is_a_mismatch,
    abort_reaches_everyone,
    a_message_outlives_its_sender,
    *(_mismatch_case(name) for name in _mismatches()),
]
