"""Laziness: what is kept and let go, order, errors, threads, and very long programs."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.array import from_numpy
from nuvec.core.errors import LeakedTracerError
from nuvec.core.interpreter import PENDING_LIMIT
from nuvec.core.node import Node, context
from nuvec.transforms.compile import compile
from nuvec.transforms.grad import grad, value_and_grad, vjp
from nuvec.transforms.jvp import jvp
from nuvec.transforms.vmap import vmap

LENGTH = 100_000


def chain(x: Any, length: int = LENGTH) -> Any:
    for _ in range(length // 2):
        x = x * 1.0000001
        x = x + 0.0
    return x


def test_a_long_chain_evaluates_and_is_freed() -> None:
    y = chain(nv.array(1.0))
    assert y.item() == pytest.approx(1, rel=0.1)
    unevaluated = chain(nv.array(1.0), PENDING_LIMIT - 10)
    del unevaluated, y
    gc.collect()


def nodes_alive() -> int:
    gc.collect()
    return sum(type(o) is Node for o in gc.get_objects())


def test_a_long_chain_is_differentiated_and_freed() -> None:
    x = from_numpy(np.float64(1))
    before = nodes_alive()
    gradient = grad(chain)(x)
    assert gradient.item() == pytest.approx(1.0000001 ** (LENGTH / 2))
    assert nodes_alive() < before + 100
    del gradient


def test_a_long_chain_in_the_other_passes() -> None:
    x, length = from_numpy(np.float64(1)), 20_000
    _, moved = jvp(lambda x: chain(x, length), (x,), (x,))
    assert moved.item() == pytest.approx(1, rel=0.1)
    batched = vmap(lambda x: chain(x, length))(nv.ones(2))
    assert batched.shape == (2,)
    nv.eval(batched)
    assert sys.getrecursionlimit() < length


def test_an_unevaluated_gradient_is_dropped_without_recursion() -> None:
    value, gradient = value_and_grad(chain)(nv.array(1.0))
    del value, gradient
    gc.collect()


def test_a_loop_that_never_evaluates_stays_bounded() -> None:
    x = nv.zeros(10)
    refs = []
    for i in range(3 * PENDING_LIMIT):
        x = x + 1.0
        if i % 1000 == 0:
            refs.append(weakref.ref(x))
    node, depth = x._node, 0
    while node.inputs:
        node, depth = node.inputs[0], depth + 1
    assert depth <= 2 * PENDING_LIMIT
    assert x.tolist() == [3.0 * PENDING_LIMIT] * 10
    assert x._node.inputs == ()


def test_evaluating_lets_go_of_intermediates() -> None:
    x = nv.ones(1000)
    y = nv.sin(x)
    node = y._node
    z = y * 2
    nv.eval(z)
    assert z._node.inputs == () and node.inputs == ()


def test_values_are_kept_and_the_graph_dropped() -> None:
    x = nv.ones(3) + 1
    first = np.asarray(x)
    assert np.shares_memory(first, np.asarray(x))
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 5


def test_handles_and_values() -> None:
    x = nv.array([1.0, 2.0])
    derived = x * 10
    alias = x
    x[0] = 5.0
    assert derived.tolist() == [10, 20]
    assert alias.tolist() == [5, 2] and alias is x
    x += 1
    assert alias.tolist() == [6, 3]
    source = np.ones(2)
    copied = nv.array(source)
    source[0] = 9
    assert copied.tolist() == [1, 1]


def test_errors_are_raised_at_each_force_and_others_stay_good() -> None:
    x = nv.arange(3.0)
    bad = x[nv.array(7)]
    dependent = bad * 2
    good = x + 1
    for _ in range(2):
        for array in (bad, dependent):
            with pytest.raises(IndexError):
                array.item()
    assert good.tolist() == [1, 2, 3]
    with pytest.raises(IndexError):
        nv.eval(good * 2, dependent)
    assert (good * 2).tolist() == [2, 4, 6]


def test_an_exception_in_any_transform_leaves_the_context_clean() -> None:
    def fails(x: Any) -> Any:
        raise KeyError("on purpose")

    for g in (
        grad(fails), vmap(fails), compile(fails), lambda x: jvp(fails, (x,), (x,)),
        lambda x: vjp(fails, x), lambda x: nv.scan(lambda c, _: fails(c), x, length=2),
        lambda x: nv.cond(nv.array(True), fails, fails, x), nv.make_ir(fails),
        lambda x: grad(lambda y: compile(vmap(fails))(y))(x),
    ):  # fmt: skip
        with pytest.raises(KeyError, match="on purpose"):
            g(nv.ones(2))
        assert context.traces == () and context.scope is None and context.observed is None
    assert (nv.ones(2) + 1).tolist() == [2, 2]
    assert nv.ones(2)._node.marks is None and (nv.ones(2) * 2)._node.marks is None


def test_values_that_outlive_their_trace_are_plain() -> None:
    kept = []

    def f(x: Any) -> Any:
        y = nv.sin(x)
        kept.append(y)
        return y * y

    grad(f)(nv.array(0.5))
    assert kept[0].item() == pytest.approx(np.sin(0.5), rel=1e-6)  # it was real all the time
    z = kept[0] * 2
    assert z._node.marks is None
    assert grad(lambda x: x * kept[0])(1.0).item() == pytest.approx(np.sin(0.5), rel=1e-6)
    kept.clear()
    vmap(f)(nv.ones(2))
    with pytest.raises(LeakedTracerError):
        kept[0].tolist()


def test_a_pull_function_keeps_what_it_needs_and_no_more() -> None:
    big = from_numpy(np.ones(1000))
    y, pull = vjp(lambda x: nv.sum(nv.exp(x)), big)
    nv.eval(y)
    first = pull(from_numpy(np.float64(1)))[0]
    del big, y
    gc.collect()
    assert np.array_equal(np.asarray(first), np.asarray(pull(from_numpy(np.float64(1)))[0]))


def test_threads_trace_and_evaluate_at_once() -> None:
    shared = nv.sin(nv.ones(1000)) * 2
    failures: list[BaseException] = []
    start = threading.Barrier(4)
    step = compile(lambda x, k: nv.sum(nv.sin(x) * k))

    def work(k: int) -> None:
        try:
            start.wait(timeout=20)
            np.testing.assert_allclose(shared, 2 * np.sin(np.ones(1000)), rtol=1e-6)
            for _ in range(20):
                x = from_numpy(np.full(10, k / 10))
                assert context.traces == ()
                g = grad(lambda x: step(x, float(k)))(x)
                np.testing.assert_allclose(g, k * np.cos(np.full(10, k / 10)), rtol=1e-6)
                b = vmap(grad(lambda x: nv.sin(x) * k))(x)
                np.testing.assert_allclose(b, k * np.cos(np.full(10, k / 10)), rtol=1e-6)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(timeout=60)
    assert not failures, failures


def test_evaluation_inside_a_trace_does_not_cut_it() -> None:
    def f(x: Any) -> Any:
        for _ in range(3):
            x = nv.sin(x) * 2
            nv.eval(x)
            float(x)
        return x

    x = from_numpy(np.float64(0.3))
    with_eval = grad(f)(x).item()

    def g(x: Any) -> Any:
        for _ in range(3):
            x = nv.sin(x) * 2
        return x

    assert with_eval == grad(g)(x).item()
    assert grad(grad(f))(x).item() == pytest.approx(grad(grad(g))(x).item(), rel=1e-12)
