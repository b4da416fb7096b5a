"""Calls that were seen before take a short way: they must not be told apart from the first."""

from __future__ import annotations

import numpy as np
import pytest

import nuvec as nv
from nuvec.transforms.compile import CACHE_SIZE


def _short(f) -> int:
    """How many signatures may go the short way."""
    return len(f._seen._seen)


def test_the_same_results_and_structure() -> None:
    f = nv.compile(lambda d, x: {"s": d["a"] + x, "t": (d["b"], None, [x * 2])})
    d, x = {"b": nv.ones(3), "a": nv.arange(3.0)}, nv.array(2.0)
    first = f(d, x)
    assert _short(f) == 1
    second = f(d, x)
    assert nv.tree.structure(first) == nv.tree.structure(second)
    for a, b in zip(nv.tree.leaves(first), nv.tree.leaves(second), strict=True):
        assert a.aval is b.aval
        np.testing.assert_array_equal(a, b)


def test_signatures_are_told_apart() -> None:
    traced = []

    def function(*args):
        traced.append(1)
        return [x + 1 for x in nv.tree.leaves(args)]

    f = nv.compile(function)
    x, y = nv.ones(3), nv.ones(3, dtype="int32")
    calls = [(x,), (y,), (x, x), ((x, x),), ([x, x],), ({"a": x},), ({"b": x},), (nv.ones((3, 1)),)]
    for _ in range(3):
        for args in calls:
            assert [np.asarray(v).ravel()[0] for v in f(*args)] == [2] * len(nv.tree.leaves(args))
    assert len(traced) == len(calls)


def test_arguments_that_are_not_evaluated_arrays() -> None:
    f = nv.compile(lambda x, y: x * y)
    x = nv.ones(3) * 2
    for _ in range(3):
        assert f(x, 3.0).tolist() == [6, 6, 6]
        assert f(x + 1, nv.ones(3) * 4).tolist() == [12, 12, 12]
        assert f(np.ones(3, np.float32), x).tolist() == [2, 2, 2]
    assert f(x=x, y=x).tolist() == [4, 4, 4]


def test_transforms_and_scopes_see_the_call() -> None:
    f = nv.compile(lambda x: x * x)
    x = nv.array(3.0)
    f(x), f(x)
    assert nv.grad(f)(x).item() == 6
    assert nv.vmap(f)(nv.arange(3.0)).tolist() == [0, 1, 4]
    assert nv.compile(lambda x: f(x) + 1)(x).item() == 10
    with pytest.raises(TypeError, match="argument 'x' is a object"):
        f(object())


def test_captures_are_read_anew() -> None:
    w = nv.array([1.0, 2.0])
    f = nv.compile(lambda x: x * w)
    x = nv.ones(2)
    assert f(x).tolist() == [1, 2]
    w[0] = 5.0
    assert f(x).tolist() == [5, 2]
    assert _short(f) == 0


def test_draws_move_on() -> None:
    f = nv.compile(lambda x: x + nv.random.uniform(shape=(3,)))
    x = nv.zeros(3)
    assert f(x).tolist() != f(x).tolist()


def test_settings_hold_at_once() -> None:
    f = nv.compile(lambda x: x + 1)
    x = nv.ones(3)
    f(x), f(x)
    with nv.config.override(passes=()):
        assert f(x).tolist() == [2, 2, 2]
    ran = []
    g = nv.compile(lambda x: (ran.append(1), x + 1)[1])
    g(x), g(x)
    with nv.config.override(disable_compile=True):
        g(x)
    assert len(ran) == 2


def test_the_default_group_belongs_to_the_signature() -> None:
    f = nv.compile(lambda x: x * nv.distributed.init().size())
    x = nv.ones(2)
    assert f(x).tolist() == f(x).tolist() == [1, 1]
    assert (
        nv.distributed.run_local(lambda group: [f(x).tolist(), f(x).tolist()], 2)
        == [[[2, 2], [2, 2]]] * 2
    )
    assert f(x).tolist() == [1, 1]


def test_what_is_used_stays_in_the_cache() -> None:
    traced = []

    def function(x):
        traced.append(x.shape)
        return x + 1

    f = nv.compile(function)
    hot = nv.ones(1000)
    f(hot)
    for n in range(1, CACHE_SIZE + 20):
        f(hot)
        f(nv.ones(n))
    f(hot)
    assert traced.count((1000,)) == 1
    assert len(f._cache) == CACHE_SIZE
    f.clear_cache()
    assert _short(f) == 0
    f(hot)
    assert traced.count((1000,)) == 2


def test_an_error_names_the_line_and_leaves_the_way_open() -> None:
    f = nv.compile(lambda x, i: nv.take(x, i, axis=0))
    x = nv.arange(3.0)
    f(x, nv.array([0])), f(x, nv.array([1]))
    for _ in range(2):
        with pytest.raises(IndexError, match="out of bounds"):
            f(x, nv.array([7]))
        assert f(x, nv.array([2])).tolist() == [2]


def test_a_donated_array_still_raises() -> None:
    g = nv.compile(lambda x: x + 1, donate_argnums=0)
    f = nv.compile(lambda x: x * 2)
    x = nv.ones(3)
    nv.eval(x)
    f(x), f(x)
    g(x)
    with pytest.raises(nv.NuvecError, match="donated"):
        f(x)
