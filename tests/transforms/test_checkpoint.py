"""checkpoint: the same bits with less memory; nothing sent or drawn twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec import distributed as nd
from nuvec.testing import check_compile, check_grads, check_vmap, recorded

POLICIES = ["nothing", "dots", "everything", lambda name, avals, params: name == "sin"]
LAYERS, PIECE, WIDTH = 16, 4, 8
weights = [
    nv.array(np.random.default_rng(i).normal(size=(WIDTH, WIDTH)).astype(np.float32) / 3)
    for i in range(LAYERS)
]
x = nv.array(np.random.default_rng(99).normal(size=(64, WIDTH)).astype(np.float32))


def layers(x: Any, ws: Any) -> Any:
    for w in ws:
        x = nv.tanh(x @ w)
    return x


def deep(policy: Any) -> Any:
    piece = layers if policy is None else nv.checkpoint(layers, policy)

    def loss(ws: Any, x: Any) -> Any:
        for i in range(0, LAYERS, PIECE):
            x = piece(x, ws[i : i + PIECE])
        return (x * x).mean()

    return loss


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("wrap", [lambda f: f, nv.compile], ids=["eager", "compiled"])
def test_gradients_are_bit_equal(policy: Any, wrap: Any) -> None:
    expected = nv.grad(deep(None))(weights, x)
    found = wrap(nv.grad(deep(policy)))(weights, x)
    for a, b in zip(expected, found, strict=True):
        assert np.array_equal(np.asarray(a), np.asarray(b))


def test_less_memory_when_less_is_kept() -> None:
    def peak(policy: Any) -> int:
        return nv.compile(nv.grad(deep(policy))).lower(weights, x).memory.peak

    unit = x.nbytes
    assert peak(None) > LAYERS * unit
    assert peak("nothing") < (LAYERS // PIECE + 2 * PIECE + 3) * unit


@pytest.mark.parametrize("policy", POLICIES)
def test_rules(policy: Any) -> None:
    f = nv.checkpoint(lambda x, y: nv.sin(nv.sin(x) * y) @ y, policy)
    args = (np.linspace(-1, 1, 3).astype(np.float32), np.linspace(0, 1, 3).astype(np.float32))
    check_grads(f, args, order=2)
    check_vmap(f, args)
    check_compile(nv.grad(f), args)


def test_trees_keywords_and_closures() -> None:
    w = nv.array([2.0, 3.0])
    f = nv.checkpoint(lambda d, *, scale: {"y": nv.sin(d["x"] * w).sum() * scale})
    gradient = nv.grad(lambda d: f(d, scale=2.0)["y"])({"x": nv.array([0.1, 0.2])})["x"]
    np.testing.assert_allclose(gradient, 2 * np.cos([0.2, 0.6]) * [2, 3], rtol=1e-6)
    through = nv.grad(lambda w: nv.checkpoint(lambda x: nv.sin(x * w).sum())(w))(w)
    np.testing.assert_allclose(through, np.cos([4.0, 9.0]) * [4, 6], rtol=1e-5)


def test_draws_are_kept() -> None:
    f = nv.checkpoint(lambda x: (x * nv.random.uniform(shape=(3,))).sum())
    nv.random.seed(3)
    gradient = nv.grad(f)(nv.ones(3))
    nv.random.seed(3)
    value = f(nv.ones(3))
    np.testing.assert_allclose(gradient.sum(), value, rtol=1e-6)


def test_nothing_is_communicated_twice() -> None:
    def on_rank(group: Any) -> Any:
        group, calls = recorded(group)

        def f(x: Any) -> Any:
            return (nd.all_sum(nv.sin(x), group) ** 2).sum()

        found = nv.grad(nv.checkpoint(f))(x)
        nv.eval(found)
        count = len(calls)
        return found, nv.grad(f)(x), count

    for found, expected, calls in nd.run_local(on_rank, 2):
        assert np.array_equal(np.asarray(found), np.asarray(expected))
        assert calls == 2  # one forward, one backward


def test_errors() -> None:
    with pytest.raises(nv.ConfigurationError, match="'dots'"):
        nv.checkpoint(nv.sin, "some")
    with pytest.raises(TypeError, match="function"):
        nv.checkpoint(3)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (lambda *a: nv.array([True, False]), "returned array.*must return True or False"),
        (lambda *a: None, "returned None"),
        (lambda: True, r"checkpoint calls its policy with \(primitive_name"),
        (3, "policy must be a name or a function"),
    ],
)
def test_policies_that_are_none(policy: Any, message: str) -> None:
    with pytest.raises(nv.ArgumentError, match=message):
        nv.grad(nv.checkpoint(lambda x: nv.sin(nv.sin(x)), policy=policy))(1.0)
