"""What a compiled function reads at every call, however deep inside it is used."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import nuvec as nv

w = nv.array([3.0])
custom = nv.custom_vjp(lambda x: x * w[0])
custom.defvjp(lambda x: (custom(x), None), lambda residuals, c: (c * w[0],))


def in_a_thread(function: Callable[..., Any], *args: Any) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()


def scanned(x: Any) -> Any:
    return nv.scan(lambda c, _: (c * w, c), x, nv.array([1.0]))[0]


USES = {
    "directly": (lambda x: x * w, 10.0),
    "scan": (scanned, 10.0),
    "cond": (lambda x: nv.cond(x[0] > 0, lambda: w * x, lambda: x), 10.0),
    "custom_vjp": (custom, 10.0),
    "vmap of custom_vjp": (nv.vmap(custom), 10.0),
    "compile in scan": (
        lambda x: nv.scan(lambda c, _: (nv.compile(lambda c: c * w)(c), None), x, length=1)[0],
        10.0,
    ),
    "unmapped argument": (lambda x: nv.vmap(lambda a, b: a * b, in_axes=(None, 0))(w[0], x), 10.0),
    "grad of scan": (nv.grad(lambda x: scanned(x).sum()), 5.0),
    "thread": (lambda x: x * in_a_thread(lambda: w * 1), 10.0),
}


@pytest.mark.parametrize("name", USES)
def test_a_rebound_capture_is_seen(name: str) -> None:
    function, expected = USES[name]
    w[0] = 3.0
    compiled = nv.compile(function)
    compiled(nv.array([2.0]))
    w[0] = 5.0
    assert compiled(nv.array([2.0])).tolist() == [expected]


def test_a_capture_prints_in_compile() -> None:
    seen = []
    nv.compile(lambda x: (seen.append(f"{w} {w!r}"), x * w)[1])(nv.array([1.0]))
    assert seen[0].count("<captured float32[1] in compile of <lambda>>") == 2


def test_a_thread_inherits_the_open_traces() -> None:
    rule = nv.custom_vjp(lambda x: x * 2)
    rule.defvjp(lambda x: (x * 2, None), lambda residuals, c: (c * 100,))
    assert nv.grad(lambda x: in_a_thread(rule, x).sum())(nv.array([1.0])).tolist() == [100.0]
    with pytest.raises(nv.ConcretizationError, match="captured"):
        nv.compile(lambda x: x * in_a_thread(lambda: np.asarray(w)))(nv.array([1.0]))
    draw = nv.compile(lambda x: in_a_thread(nv.random.uniform) + x)
    assert draw(nv.array(0.0)).item() != draw(nv.array(0.0)).item()


def test_threads_outside_traces_are_left_alone() -> None:
    import threading

    start = threading.Thread.start
    nv.grad(nv.sin)(1.0)
    assert threading.Thread.start is start
    with pytest.raises(ZeroDivisionError):
        nv.grad(lambda x: x * (1 // 0))(1.0)
    assert threading.Thread.start is start


def test_a_thread_may_outlive_the_traces_it_began_with() -> None:
    import threading

    go, done, seen = threading.Event(), threading.Event(), []

    def late() -> None:
        go.wait(20)
        seen.append(nv.sin(nv.array(1.0)).item())
        seen.append(nv.grad(nv.sin)(0.0).item())
        done.set()

    def f(x: Any) -> Any:
        threading.Thread(target=late).start()
        return x * 2

    nv.grad(f)(1.0)
    go.set()
    assert done.wait(20)
    assert seen == [pytest.approx(np.sin(1.0), rel=1e-6), 1.0]
