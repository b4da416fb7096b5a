"""What a transform records is freed when its results are, without the cycle collector."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nuvec as nv

SIZE = 100_000
compiled = nv.compile(lambda x: nv.sin(nv.sin(x)).sum())
rule = nv.custom_vjp(lambda x: x * 2)
rule.defvjp(lambda x: (x * 2, x), lambda residual, c: (c * residual,))

CASES: dict[str, Callable[[Any], Any]] = {
    "grad": nv.grad(lambda x: nv.sin(nv.sin(x)).sum()),
    "grad of compile": nv.grad(compiled),
    "vmap of grad of compile": lambda x: nv.vmap(nv.grad(compiled))(x.reshape(100, -1)),
    "grad of scan": nv.grad(
        lambda x: nv.scan(lambda c, _: (nv.sin(c), None), x, length=5)[0].sum()
    ),
    "jvp of scan": lambda x: nv.jvp(
        lambda x: nv.scan(lambda c, _: (nv.sin(c), None), x, length=5)[0].sum(), (x,), (x,)
    ),
    "grad of cond": nv.grad(lambda x: nv.cond(x[0] > 0, nv.sin, nv.cos, x).sum()),
    "grad of custom_vjp": nv.grad(lambda x: rule(x).sum()),
}


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_left(name: str) -> None:
    x = nv.array(np.ones(SIZE, np.float32))
    nv.eval(CASES[name](x))  # traces, plans and arenas are made once
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(4):
            nv.eval(CASES[name](x))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert held < SIZE * 4, f"{held} bytes are still held"


def test_a_long_training_loop_holds_what_it_held() -> None:
    def loss(w: Any, x: Any) -> Any:
        return ((nv.tanh(x @ w)) ** 2).mean()

    w = nv.array(np.eye(8, dtype=np.float32))
    x = nv.array(np.ones((4, 8), np.float32))
    step = nv.compile(lambda w: w - 0.1 * nv.grad(loss)(w, x))

    def run(steps: int, w: Any, function: Callable[[Any], Any]) -> Any:
        for _ in range(steps):
            w = function(w)
        nv.eval(w)
        return w

    for function in (step, lambda w: w - 0.1 * nv.grad(loss)(w, x)):
        w = run(20, w, function)
        gc.collect()
        tracemalloc.start()
        try:
            w = run(50, w, function)
            gc.collect()
            before, _ = tracemalloc.get_traced_memory()
            w = run(300, w, function)
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert after - before < 50_000
