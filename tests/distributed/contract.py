"""The contract of `Communicator` as tests that any transport can be put through.

`communicator_contract(make_world, size)` runs all of it. `make_world(size)` returns one function a
rank, each of which is called on that rank's own thread and returns its communicator.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from nuvec.core.errors import DistributedError, MismatchError, PeerError
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


# Values.


def reduces_every_dtype_and_shape(c: Communicator) -> None:
    for dtype in DTYPES:
        for op in reductions(dtype):
            inputs = [[values(r, s, dtype) for s in SHAPES] for r in range(c.size)]
            results = c.all_reduce(op, inputs[c.rank])  # type: ignore[arg-type]
            for i, result in enumerate(results):
                same_bits(result, reference(op, [inputs[r][i] for r in range(c.size)]))


def reduces_large_messages_with_the_same_bits(c: Communicator) -> None:
    for dtype in (np.dtype(np.float32), BFLOAT16):
        inputs = [values(r, (LARGE,), dtype) for r in range(c.size)]
        expected = reference("sum", inputs)
        # Mixed with others, so that parts end inside of arrays of different item sizes.
        extra: list[Buffer] = [np.full(5, c.rank, np.int8), np.zeros((0,)), np.ones(33)]
        large, *rest = c.all_reduce("sum", [inputs[c.rank], *extra])
        same_bits(large, expected)
        same_bits(rest[0], np.full(5, sum(range(c.size)), np.int8))
        same_bits(rest[2], np.full(33, float(c.size)))
        piece = c.all_reduce("sum", [inputs[c.rank][777:1777]])[0]
        same_bits(piece, expected[777:1777])


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
                same_bits(c.sum_scatter([x[c.rank]])[0], reference("sum", x)[mine])
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
    same_bits(c.sum_scatter([x[c.rank], x[c.rank]])[1], reference("sum", x)[mine])
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
    c.barrier()


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
    """With more than any buffer between them holds."""
    if c.size == 1:
        return
    count = 24_000_000 // c.size
    for peer in range(c.size):
        if peer != c.rank:
            c.send([np.full(count, c.rank, np.uint8)], peer)
    for peer in range(c.size):
        if peer != c.rank:
            got = c.recv([((count,), np.dtype(np.uint8))], peer)[0]
            assert (got == peer).all()


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
    same_bits(backwards.all_reduce("sum", [tricky[c.rank]])[0], reference("sum", tricky[::-1]))
    again = parity.split(0, -parity.rank if parity.rank else 5)
    same_bits(again.all_reduce("max", [x])[0], np.array([members[-1]], np.float32))
    assert parity.name == c.name
    parity.close()
    c.barrier()


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


VALUES: list[Case] = [
    reduces_every_dtype_and_shape,
    reduces_large_messages_with_the_same_bits,
    propagates_nan,
    moves_every_dtype,
    moves_large_messages,
    leaves_inputs_alone,
    wrong_arguments_leave_the_group_intact,
    messages_may_be_empty,
    sends_in_order,
    sends_to_itself,
    all_may_send_first,
    splits_by_color_and_key,
    groups_do_not_disturb_each_other,
]
FAILURES: list[Case] = [
    groups_in_another_order_are_a_mismatch,
    a_wrong_receive_is_a_mismatch,
    abort_reaches_everyone,
    a_message_outlives_its_sender,
]
CASES: dict[str, Case] = {case.__name__: case for case in [*VALUES, *FAILURES]}
CASES |= {f"a_mismatch_of_{name}": _mismatch_case(name) for name in _mismatches()}


def communicator_contract(make_world: MakeWorld, size: int) -> None:
    """Run every case on a fresh world of `size` ranks; raises the first error."""
    for case in CASES.values():
        on_ranks(make_world, size, case)
