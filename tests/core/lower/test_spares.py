"""The memory of large outputs is used again once nobody has them, and not before."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.lower import arena, lower, owns_memory
from nuvec.core.lower.arena import ALIGNED, KEPT, SPARE, Spares, aligned
from tests.core.lower.programs import f4, program

SHAPE = (300, 400)


def _address(x: np.ndarray) -> int:
    return x.__array_interface__["data"][0]


def _spares() -> Spares:
    return Spares(SHAPE, np.dtype(np.float32))


def test_what_is_gone_is_used_again() -> None:
    empty = _spares()
    x = empty()
    assert type(x) is np.ndarray
    assert (x.shape, x.dtype, x.flags.c_contiguous, x.flags.writeable) == (
        SHAPE, np.float32, True, True,
    )  # fmt: skip
    place = _address(x)
    del x
    assert _address(empty()) == place


@pytest.mark.parametrize("hold", [
    lambda x: x, lambda x: x[3:5, ::2], lambda x: x.T, lambda x: x.reshape(-1)[:1], memoryview,
    lambda x: x.base, lambda x: x.view(np.int32), lambda x: np.lib.stride_tricks.as_strided(x),
    lambda x: np.frombuffer(x, np.float32), iter, lambda x: x.base[1:],
    lambda x: np.from_dlpack(x), lambda x: x.flags, lambda x: x.base.T[2:],
])  # fmt: skip
def test_what_is_seen_is_not(hold) -> None:
    empty = _spares()
    x = empty()
    x[...] = 1
    place = _address(x)
    held = hold(x)
    del x
    others = [empty() for _ in range(2 * KEPT)]
    assert len({_address(o) for o in others} | {place}) == 2 * KEPT + 1
    for o in others:
        o[...] = 2
    del o, others
    for _ in range(KEPT + 1):
        other = empty()
        assert _address(other) != place
        other[...] = 3
    del held


def test_no_more_is_kept_than_two() -> None:
    empty = _spares()
    held = [empty() for _ in range(10)]
    assert len(empty._kept) == KEPT
    del held
    empty.clear()
    assert not empty._kept


def test_threads_never_share_an_array() -> None:
    empty = _spares()
    wrong: list[int] = []

    def run(number: int) -> None:
        for _ in range(300):
            x = empty()
            x[...] = number
            if not (x == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 100_000])
def test_memory_begins_with_a_line_of_the_cache(size: int) -> None:
    for _ in range(5):
        memory = aligned(size)
        assert memory.nbytes == size
        assert not size or _address(memory) % ALIGNED == 0


def test_a_compiled_loop_and_what_it_returned_before() -> None:
    step = nv.compile(lambda x: (x + 1, nv.exp(x * 0)))
    x = nv.zeros((300, 400))
    assert x.nbytes >= SPARE
    kept = []
    for k in range(8):
        x, ones = step(x)
        nv.eval(x, ones)
        assert _address(np.asarray(x)) % ALIGNED == 0
        if k % 3 == 0:
            kept.append((k, x, np.asarray(ones)))
    for k, then, ones in kept:
        assert (np.asarray(then) == k + 1).all()
        assert (ones == 1).all()


def test_a_program_lets_go_of_it() -> None:
    plan = lower(program(lambda x: nv.exp(x) * 2, f4(300, 400)))
    x = np.zeros((300, 400), np.float32)
    plan.run(x)
    (empty,) = [m for m in plan._emitted[0].memory if isinstance(m, Spares)]
    assert len(empty._kept) == 1
    plan.release()
    assert not empty._kept
    gc.collect()


def test_all_programs_together_keep_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each size is a program of its own, with outputs and an arena."""
    monkeypatch.setattr(arena, "_keeping", {})
    monkeypatch.setattr(arena, "MOST", 1 << 22)
    made = []
    x = np.zeros((300, 400), np.float32)
    for _ in range(20):
        plan = lower(program(lambda x: nv.sum(nv.exp(x) * 2, axis=0) + nv.tanh(x), f4(300, 400)))
        plan.run(x)
        made.append(plan)
    owners = [m for p in made for m in p._emitted[0].memory]
    held = sum(x.nbytes * len(m._kept) for m in owners if isinstance(m, Spares))
    held += sum(sum(m._slots) * len(m._free) for m in owners if isinstance(m, arena.Arenas))
    assert 1 << 20 < held <= 1 << 22
    assert sum(arena._keeping.values()) <= 1 << 22
    assert any(m._kept for m in made[-1]._emitted[0].memory if isinstance(m, Spares))
    first = made[0]
    first.run(x)  # it takes memory again
    assert any(m._kept for m in first._emitted[0].memory if isinstance(m, Spares))
    del made, owners, plan, first
    gc.collect()
    arena.keep(_spares(), 1)
    assert len(arena._keeping) <= 1


def test_whose_memory_it_is() -> None:
    x = _spares()()
    assert owns_memory(x)
    assert not owns_memory(x[1:])
    assert not owns_memory(x.reshape(-1))
    assert owns_memory(np.zeros(3))
    assert not owns_memory(np.zeros(3)[1:])


def test_donated_outputs_are_written_over() -> None:
    step = nv.compile(lambda x: x * 2 + 1, donate_argnums=0)
    x = step(nv.ones((300, 400)))
    nv.eval(x)
    place = _address(np.asarray(x))
    x = step(x)
    nv.eval(x)
    assert _address(np.asarray(x)) == place
    assert (np.asarray(x) == 7).all()
