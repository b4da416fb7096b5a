"""compile(donate_argnums=...): results written over arguments that nothing else can see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv


def step(w: Any, g: Any) -> Any:
    total = (w * g).sum()
    return w - 0.1 * g, total


def arrays() -> tuple[Any, Any]:
    return nv.array(np.arange(6, dtype=np.float32)), nv.ones(6) + 0


def address(x: Any) -> int:
    return np.asarray(x).__array_interface__["data"][0]


def test_the_memory_is_taken_and_the_array_says_so() -> None:
    compiled = nv.compile(step, donate_argnums=0)
    expected = nv.compile(step)(*arrays())
    w, g = arrays()
    nv.eval(w, g)
    before = w._node.value.__array_interface__["data"][0]
    new, total = compiled(w, g)
    assert address(new) == before
    np.testing.assert_array_equal(new, expected[0])
    np.testing.assert_array_equal(total, expected[1])
    for use in (lambda: np.asarray(w), lambda: (w + 1).tolist(), lambda: compiled(w, g)):
        with pytest.raises(nv.NuvecError, match="donated to step"):
            use()
    assert g.tolist() == [1.0] * 6


def test_updates_are_written_into_the_donated_array() -> None:
    def update(x: Any, v: Any) -> Any:
        for i in range(3):
            x[i] = v * i
            x = x.at[np.array([i, 4])].add(v)
        return x

    def arguments() -> tuple[Any, Any]:
        return nv.array(np.ones((5, 300), np.float32)), nv.ones(300) + 0

    expected = update(*arguments())
    x, v = arguments()
    nv.eval(x, v)
    before = x._node.value.__array_interface__["data"][0]
    compiled = nv.compile(update, donate_argnums=0)
    found = compiled(x, v)
    assert address(found) == before
    np.testing.assert_array_equal(found, expected)
    x, v = arguments()
    view = np.asarray(x)
    np.testing.assert_array_equal(compiled(x, v), expected)
    assert (view == 1).all()


def test_what_something_else_can_see_is_left_alone() -> None:
    compiled = nv.compile(step, donate_argnums=(0,))
    w, g = arrays()
    view = np.asarray(w)
    compiled(w, g)
    assert view.tolist() == w.tolist() == [0, 1, 2, 3, 4, 5]
    w, g = arrays()
    nv.eval(w)
    pending = w * 2
    compiled(w, g)
    assert pending.tolist() == [0, 2, 4, 6, 8, 10]
    w, g = arrays()
    other = nv.array(w)
    compiled(w, g)
    assert other.tolist() == [0, 1, 2, 3, 4, 5]
    w, _ = arrays()
    nv.eval(w)
    new, _ = compiled(w, w)  # the same array twice
    np.testing.assert_allclose(new, 0.9 * np.arange(6), rtol=1e-6)
    assert w.tolist() == [0, 1, 2, 3, 4, 5]
    weird = nv.array(np.arange(12, dtype=np.float32))[::2]
    np.testing.assert_allclose(compiled(weird, g)[0], np.arange(0, 12, 2) - 0.1, rtol=1e-6)


def test_trees_static_arguments_and_captures() -> None:
    scale = nv.array(2.0)

    def update(kind: str, params: Any, grads: Any) -> Any:
        assert kind == "sgd"
        return nv.tree.map(lambda p, g: p - scale * g, params, grads)

    compiled = nv.compile(update, static_argnums=0, donate_argnums=1)
    params = {"w": nv.ones((2, 3)) * 3, "b": [nv.ones(3) * 4]}
    nv.eval(params)
    grads = {"w": nv.ones((2, 3)), "b": [nv.ones(3)]}
    for _ in range(3):
        old = params
        params = compiled("sgd", params, grads)
        with pytest.raises(nv.NuvecError, match="donated"):
            old["w"].item(0)
    assert params["w"].tolist() == [[-3.0] * 3] * 2
    assert params["b"][0].tolist() == [-2.0] * 3


def test_transforms_ignore_donation() -> None:
    compiled = nv.compile(lambda w: (w * w).sum(), donate_argnums=0)
    w, _ = arrays()
    assert nv.grad(compiled)(w).tolist() == [0, 2, 4, 6, 8, 10]
    assert w.tolist() == [0, 1, 2, 3, 4, 5]


def test_bits_over_a_training_run() -> None:
    import nuvec.nn as nn

    optimizer = nn.adam(0.01)

    def loss(w: Any, x: Any) -> Any:
        return (nv.tanh(x @ w) ** 2).mean()

    def train(w: Any, state: Any, x: Any) -> Any:
        updates, state = optimizer.update(nv.grad(loss)(w, x), state, w)
        return nn.apply_updates(w, updates), state

    x = nv.array(np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32))
    results = []
    for options in ({}, {"donate_argnums": (0, 1)}):
        compiled = nv.compile(train, **options)
        w = nv.array(np.random.default_rng(1).normal(size=(8, 8)).astype(np.float32))
        state = optimizer.init(w)
        for _ in range(20):
            w, state = compiled(w, state, x)
        results.append(np.asarray(w))
    np.testing.assert_array_equal(*results)
