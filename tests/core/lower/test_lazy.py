"""Large lazy graphs run as programs: the bits of evaluation one by one, and nothing lost."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.lower import lazy
from nuvec.core.lower.arena import Arenas, Spares

SHAPE = (512, 600)


def _x(seed: int = 0, shape=SHAPE) -> nv.Array:
    random = np.random.Generator(np.random.PCG64(seed))
    return nv.array(random.standard_normal(shape).astype(np.float32))


def _made() -> int:
    return sum(program is not None for program in lazy._programs.values())


def _one_by_one(function, *args):
    with nv.config.override(passes=nv.config.passes - {"fuse"}):
        out = function(*args)
        nv.eval(out)
        return out


def _same(function, *args) -> None:
    nv.eval(function(*args))  # what is met once is run one by one
    before = _made()
    found = function(*args)
    nv.eval(found)
    assert _made() > before, "no program was made"
    expected = _one_by_one(function, *args)
    pairs = zip(nv.tree.leaves(found), nv.tree.leaves(expected), strict=True)
    for a, b in pairs:
        assert a.aval is b.aval
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.fixture(autouse=True)
def empty() -> None:
    lazy._programs.clear()


def test_the_bits_are_those_of_evaluation_one_by_one() -> None:
    def function(x, w):
        y = nv.tanh(nv.matmul(x, w) * 0.1 + 1)
        z = y - y.mean(axis=-1, keepdims=True)
        return z * nv.exp(-z), z.sum(axis=0), nv.transpose(y) + 1, (z * z).sum()

    _same(function, _x(), _x(1, (600, 600)))


def test_sums_are_not_added_up_in_another_order() -> None:
    def function(x):
        y = x * x + 1
        return y.sum(), y.sum(axis=0), y * 2

    _same(function, _x())


def test_gradients_and_maps() -> None:
    def loss(x):
        return (nv.sigmoid(x) * nv.where(x > 0, x, 0.1 * x)).sum()

    _same(nv.grad(loss), _x())
    _same(nv.value_and_grad(lambda x: nv.grad(loss)(x).sum()), _x())
    _same(nv.vmap(lambda row: nv.softmax(row * 2) - row), _x())


def test_what_somebody_holds_keeps_its_value() -> None:
    x = _x()
    y = x * 2
    z = y + 1
    view = nv.reshape(z, (-1,))
    w = nv.exp(z) - y
    assert np.shares_memory(np.asarray(view), np.asarray(z))
    for held, expected in ((y, np.asarray(x) * 2), (z, np.asarray(x) * 2 + 1)):
        np.testing.assert_array_equal(held, expected)
        assert held._node.inputs == ()
    np.testing.assert_array_equal(w, np.exp(np.asarray(z)) - np.asarray(y))


def test_a_node_that_another_pending_one_needs_keeps_its_value() -> None:
    x = _x()
    y = nv.exp(x * 2)
    later = nv.log(y + 1)
    now = y * y - 1
    del y
    nv.eval(now)
    np.testing.assert_allclose(later, np.log(np.exp(2 * np.asarray(x)) + 1), rtol=1e-5)


def test_what_nobody_holds_is_let_go() -> None:
    x = _x()
    y = nv.exp(x * 2)
    node = y._node.inputs[0]
    gone = weakref.ref(y)
    z = y + x
    del y
    nv.eval(z)
    del node
    gc.collect()
    assert gone() is None
    assert z._node.inputs == ()


def test_a_graph_of_the_same_structure_uses_its_program_again() -> None:
    def function(x, s):
        return nv.exp(x * s) + x

    for k in range(4):
        x = _x(k)
        for _ in range(2):
            np.testing.assert_array_equal(
                function(x, 2.0 + k), _one_by_one(lambda x=x, k=k: function(x, 2.0 + k))
            )
    assert _made() == 4  # a Python number is written into the program
    for k in range(4):
        nv.eval(function(_x(k), nv.array(float(k))))
    assert _made() == 5  # an array is not
    for _ in range(2):
        nv.eval(function(nv.array(np.asfortranarray(np.asarray(_x()))), nv.array(1.0)))
    assert _made() <= 6


def test_what_is_met_once_makes_no_program_and_programs_keep_no_memory() -> None:
    def function(x):
        y = nv.tanh(nv.matmul(x, w))
        return nv.tanh(nv.matmul(y, w)).sum()

    w = nv.array(np.eye(600, dtype=np.float32))
    for rows in range(500, 520):
        nv.eval(function(_x(0, (rows, 600))))
    assert _made() == 0
    for _ in range(2):
        for rows in range(500, 503):
            nv.eval(function(_x(0, (rows, 600))))
    made = [p for p in lazy._programs.values() if p is not None]
    assert len(made) == 3
    assert not any(m._free for p in made for m in p.memory if isinstance(m, Arenas))
    assert not any(isinstance(m, Spares) for p in made for m in p.memory)


def test_strided_arrays() -> None:
    x = _x(0, (600, 1024))
    _same(lambda x: nv.exp(nv.transpose(x)) * 2 + nv.transpose(x).sum(0), x)
    _same(lambda x: (nv.exp(x[:, ::2]) * 2).sum(1), _x(0, (1024, 1024)))


def test_an_error_by_value_is_that_of_its_equation() -> None:
    x = _x()
    good = nv.exp(x) * 2
    bad = nv.take(x + 1, nv.array([10_000]), axis=0) + (x * 2)[:1]
    with pytest.raises(IndexError, match="10000"):
        nv.eval(good, bad)
    np.testing.assert_array_equal(good, np.exp(np.asarray(x)) * 2)
    with pytest.raises(IndexError, match="10000"):
        nv.eval(bad)


def test_between_communications() -> None:
    def on_rank(group):
        def function(x):
            y = nv.exp(x * 0.1) + 1
            z = nv.distributed.all_sum(y, group)
            return (z * 2 - y).sum(), nv.tanh(z) * z

        x = _x(group.rank())
        found = function(x)
        nv.eval(found)
        expected = _one_by_one(function, x)
        return [
            np.asarray(a).tobytes() == np.asarray(b).tobytes()
            for a, b in zip(found, expected, strict=True)
        ]

    # The setting is one for both ranks: they take their turns.
    assert nv.distributed.run_local(on_rank, 1) == [[True, True]]
    assert all(all(r) for r in nv.distributed.run_local(_with_two_ranks, 2))


def _with_two_ranks(group):
    x = nv.array(np.full(SHAPE, 1.0 + group.rank(), np.float32))
    y = nv.sqrt(x * x) + 1
    z = nv.distributed.all_sum(y, group)
    w = z * 2 - y
    return [
        bool((np.asarray(z) == 5).all()),
        bool((np.asarray(w) == 10 - np.asarray(y)).all()),
    ]


def test_small_arrays_run_one_by_one() -> None:
    x = _x(0, (10, 10))
    nv.eval(nv.exp(x * 2) + x)
    assert not lazy._programs
