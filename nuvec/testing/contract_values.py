"""The contract: what arrives, in every dtype and shape, bit for bit; and groups."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from nuvec.core.errors import DistributedError
from nuvec.distributed.communicator import Buffer, Communicator
from nuvec.testing.contract_tools import (
    BFLOAT16,
    DTYPES,
    LARGE,
    SHAPES,
    Case,
    folded,
    partners,
    raises,
    reductions,
    same_bits,
    values,
)

# Values.


def reduces_every_dtype_and_shape(c: Communicator) -> None:
    for dtype in DTYPES:
        for op in reductions(dtype):
            inputs = [[values(r, s, dtype) for s in SHAPES] for r in range(c.size)]
            results = c.all_reduce(op, inputs[c.rank])  # type: ignore[arg-type]
            for i, result in enumerate(results):
                folded(c, op, result, [inputs[r][i] for r in range(c.size)])


def reduces_large_messages_with_the_same_bits(c: Communicator) -> None:
    for dtype in (np.dtype(np.float32), BFLOAT16):
        inputs = [values(r, (LARGE,), dtype) for r in range(c.size)]
        # Mixed with others, so that parts end inside of arrays of different item sizes.
        extra: list[Buffer] = [np.full(5, c.rank, np.int8), np.zeros((0,)), np.ones(33)]
        large, *rest = c.all_reduce("sum", [inputs[c.rank], *extra])
        folded(c, "sum", large, inputs)
        same_bits(rest[0], np.full(5, sum(range(c.size)), np.int8))
        same_bits(rest[2], np.full(33, float(c.size)))
        piece = c.all_reduce("sum", [inputs[c.rank][777:1777]])[0]
        folded(c, "sum", piece, [x[777:1777] for x in inputs])


def same_scatter(c: Communicator, result: Buffer, inputs: list[Buffer]) -> None:
    """Raise unless `result` is this rank's slice of the sum, and the others have theirs."""
    rows = inputs[0].shape[0] // c.size
    own = [x[c.rank * rows : (c.rank + 1) * rows] for x in inputs]
    assert result.shape == own[0].shape and result.flags.c_contiguous
    folded(c, "sum", c.all_gather([result])[0], inputs)


def propagates_nan(c: Communicator) -> None:
    for dtype in (np.float16, np.float32, np.float64, BFLOAT16):
        x = np.full(3, c.rank, dtype)
        if c.rank == c.size - 1:
            x[1] = np.nan
        for op in ("max", "min"):
            got = c.all_reduce(op, [x])[0].astype(np.float64)
            assert np.isnan(got).tolist() == [False, True, False]


def moves_every_dtype(c: Communicator) -> None:
    n = c.size
    for dtype in DTYPES:
        for tail in ((), (3,), (0,)):
            x = [values(r, (2 * n, *tail), dtype) for r in range(n)]
            scalars = [values(r, (), dtype) for r in range(n)]
            gathered, vector = c.all_gather([x[c.rank], scalars[c.rank]])
            same_bits(gathered, np.concatenate(x))
            same_bits(vector, np.stack(scalars))
            mine = slice(2 * c.rank, 2 * c.rank + 2)
            same_bits(c.all_to_all([x[c.rank]])[0], np.concatenate([v[mine] for v in x]))
            if dtype != np.bool_:
                same_scatter(c, c.sum_scatter([x[c.rank]])[0], x)
            for root in range(n):
                results = c.broadcast([x[c.rank], scalars[c.rank]], root)
                same_bits(results[0], x[root])
                same_bits(results[1], scalars[root])


def moves_large_messages(c: Communicator) -> None:
    n = c.size
    x = [values(r, (n * 50_001, 3), np.dtype(np.float32)) for r in range(n)]
    mine = slice(c.rank * 50_001, (c.rank + 1) * 50_001)
    same_bits(c.all_gather([x[c.rank]])[0], np.concatenate(x))
    same_bits(c.all_to_all([x[c.rank]])[0], np.concatenate([v[mine] for v in x]))
    same_scatter(c, c.sum_scatter([x[c.rank], x[c.rank]])[1], x)
    same_bits(c.broadcast([x[c.rank]], n - 1)[0], x[n - 1])


def leaves_inputs_alone(c: Communicator) -> None:
    n = c.size
    x = np.arange(4.0 * n).reshape(n, 4)
    x.setflags(write=False)
    before = x.copy()
    calls: list[Callable[[list[Buffer]], list[Buffer]]] = [
        lambda a: c.all_reduce("sum", a),
        c.all_gather,
        c.sum_scatter,
        c.all_to_all,
        lambda a: c.broadcast(a, 0),
    ]
    for call in calls:
        result = call([x])[0]
        assert not np.shares_memory(result, x)
        assert result.flags.writeable and result.flags.c_contiguous
        result[...] = -1.0
        same_bits(x, before)
    view = np.arange(12.0).reshape(3, 4).T[::2]
    same_bits(c.all_reduce("max", [view])[0], np.ascontiguousarray(view))


def results_stay_as_they_are(c: Communicator) -> None:
    """Whatever is called afterwards, and also where a view is all that is left of them."""
    calls: list[Callable[[list[Buffer]], list[Buffer]]] = [
        lambda a: c.all_reduce("max", a),
        c.all_gather,
        c.sum_scatter,
        c.all_to_all,
        lambda a: c.broadcast(a, 0),
    ]
    kept: list[tuple[Buffer, Buffer]] = []
    for rows in (1, 5_000):
        for call in calls:
            for turn in range(5):
                result = call([np.full((rows * c.size, 13), 10.0 * turn + c.rank)])[0][:, 3:]
                kept.append((result, result.copy()))
    for result, before in kept:
        assert np.array_equal(result, before)


def wrong_arguments_leave_the_group_intact(c: Communicator) -> None:
    assert "all_max" in raises(TypeError, lambda: c.all_reduce("sum", [np.ones(2, bool)]))
    raises(TypeError, lambda: c.all_reduce("max", [np.ones(2, complex)]))
    raises(TypeError, lambda: c.all_gather([np.array(["text"])]))
    raises(ValueError, lambda: c.broadcast([np.ones(2)], c.size))
    if c.size > 1:
        text = raises(ValueError, lambda: c.sum_scatter([np.ones(c.size + 1)]))
        assert str(c.size) in text and str(c.size + 1) in text
        raises(ValueError, lambda: c.all_to_all([np.ones(())]))
        raises(ValueError, lambda: c.send([np.ones(2)], -1))
    else:
        raises(DistributedError, lambda: c.send([np.ones(2)], 0))
        raises(DistributedError, lambda: c.recv([((2,), np.dtype(float))], 0))
    _refuses_who_is_no_neighbour(c)
    same_bits(c.all_gather([np.array(c.rank)])[0], np.arange(c.size))


def _refuses_who_is_no_neighbour(c: Communicator) -> None:
    for peer in set(range(c.size)) - {c.rank, *partners(c)}:
        spec = ((2,), np.dtype(float))
        for call in (lambda: c.send([np.ones(2)], peer), lambda: c.recv([spec], peer)):  # noqa: B023
            text = raises(DistributedError, call)
            assert f"rank {peer}" in text and "neighbours" in text and "mesh" in text


def messages_may_be_empty(c: Communicator) -> None:
    assert c.all_reduce("sum", []) == []
    assert c.all_gather([]) == []
    c.barrier()


# Point to point.


def sends_in_order(c: Communicator) -> None:
    if c.size == 1:
        return
    n = c.size
    right, left = (c.rank + 1) % n, (c.rank - 1) % n
    messages = [[values(c.rank, s, d) for s in SHAPES] for d in DTYPES]
    for message in messages:
        c.send(message, right)
    c.barrier()
    for dtype in DTYPES:
        received = c.recv([(s, dtype) for s in SHAPES], left)
        for shape, array in zip(SHAPES, received, strict=True):
            same_bits(array, values(left, shape, dtype))


def sends_to_itself(c: Communicator) -> None:
    if c.size == 1:
        return
    x = np.arange(3) + c.rank
    c.send([x], c.rank)
    c.send([x + 1], c.rank)
    x[:] = -1
    spec = [((3,), x.dtype)]
    same_bits(c.recv(spec, c.rank)[0], np.arange(3) + c.rank)
    same_bits(c.recv(spec, c.rank)[0], np.arange(3) + c.rank + 1)


def all_may_send_first(c: Communicator) -> None:
    """To everyone, more than any buffer between them holds."""
    if c.size == 1:
        return
    count = 24_000_000 // c.size
    for peer in partners(c):
        c.send([np.full(count, c.rank, np.uint8)], peer)
    for peer in partners(c):
        got = c.recv([((count,), np.dtype(np.uint8))], peer)[0]
        same_bits(got, np.full(count, peer, np.uint8))


# Groups.


def splits_by_color_and_key(c: Communicator) -> None:
    n = c.size
    backwards = c.split(7, n - c.rank)
    assert (backwards.size, backwards.rank) == (n, n - 1 - c.rank)
    kept = c.split(-3)
    assert (kept.size, kept.rank) == (n, c.rank)
    parity = c.split(c.rank % 2)
    members = list(range(c.rank % 2, n, 2))
    assert (parity.size, parity.rank) == (len(members), members.index(c.rank))
    x = np.array([c.rank], np.float32)
    same_bits(backwards.all_gather([x])[0], np.arange(n, dtype=np.float32)[::-1].copy())
    same_bits(parity.all_gather([x])[0], np.array(members, np.float32))
    # The fold follows the group's own order.
    tricky = [values(r, (100,), np.dtype(np.float32)) for r in range(n)]
    folded(backwards, "sum", backwards.all_reduce("sum", [tricky[c.rank]])[0], tricky[::-1])
    again = parity.split(0, -parity.rank if parity.rank else 5)
    same_bits(again.all_reduce("max", [x])[0], np.array([members[-1]], np.float32))
    assert parity.name == c.name
    parity.close()
    c.barrier()


def permutes_every_dtype(c: Communicator) -> None:
    n = c.size
    perms = [
        [], [(r, (r + 1) % n) for r in range(n)], [(r, r) for r in range(n)], [(n - 1, 0)],
        [(r, r + 1) for r in range(n - 1)], [(r, n - 1 - r) for r in range(n)],
    ]  # fmt: skip
    for k, perm in enumerate(perms):
        source = {d: s for s, d in perm}.get(c.rank)
        for dtype in DTYPES:
            for shape in SHAPES:
                x = values(c.rank + k, shape, dtype)
                got, small = c.permute([x, np.array(c.rank)], perm)
                expected = np.zeros_like(x) if source is None else values(source + k, shape, dtype)
                same_bits(got, expected)
                same_bits(small, np.array(source or 0))
                assert not np.shares_memory(got, x)
    view = np.arange(12.0).reshape(3, 4).T
    for perm in ([(r, r) for r in range(n)], [(0, n - 1)]):
        got = c.permute([view], perm)[0]
        same_bits(got, np.ascontiguousarray(view if c.rank in dict(perm).values() else 0 * view))
    for wrong in ([(0, n)], [(0, 0), (0, n - 1)], [(-1, 0)]):
        raises(ValueError, partial(c.permute, [np.ones(2)], wrong))
    c.barrier()


def permutes_large_messages(c: Communicator) -> None:
    x = values(c.rank, (LARGE,), np.dtype(np.float32))
    got = c.permute([x], [(r, (r + 1) % c.size) for r in range(c.size)])[0]
    same_bits(got, values((c.rank - 1) % c.size, (LARGE,), np.dtype(np.float32)))


def groups_do_not_disturb_each_other(c: Communicator) -> None:
    if c.size == 1:
        return
    n = c.size
    evens = c.split(c.rank % 2)
    everyone = c.split(0)
    x = np.full(20_000, float(c.rank))
    members = list(range(c.rank % 2, n, 2))
    for turn in range(3):
        # Messages of three groups are under way between the same two ranks.
        everyone.send([x + turn], (c.rank + 1) % n)
        c.send([x - turn], (c.rank + 1) % n)
        if evens.size > 1:
            evens.send([x], (evens.rank + 1) % evens.size)
        same_bits(evens.all_reduce("sum", [x])[0], np.full(x.shape, float(sum(members))))
        same_bits(everyone.all_reduce("sum", [x])[0], np.full(x.shape, float(sum(range(n)))))
        left = (c.rank - 1) % n
        spec = [(x.shape, x.dtype)]
        same_bits(c.recv(spec, left)[0], np.full(x.shape, float(left - turn)))
        same_bits(everyone.recv(spec, left)[0], np.full(x.shape, float(left + turn)))
        if evens.size > 1:
            neighbour = members[(evens.rank - 1) % evens.size]
            got = evens.recv(spec, (evens.rank - 1) % evens.size)[0]
            same_bits(got, np.full(x.shape, float(neighbour)))
        c.barrier()


VALUES: list[Case] = [
    reduces_every_dtype_and_shape,
    reduces_large_messages_with_the_same_bits,
    propagates_nan,
    moves_every_dtype,
    moves_large_messages,
    leaves_inputs_alone,
    results_stay_as_they_are,
    wrong_arguments_leave_the_group_intact,
    messages_may_be_empty,
    sends_in_order,
    sends_to_itself,
    all_may_send_first,
    splits_by_color_and_key,
    permutes_every_dtype,
    permutes_large_messages,
    groups_do_not_disturb_each_other,
]
