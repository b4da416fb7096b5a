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


def descend(w: Any, x: Any) -> Any:
    def loss(w: Any) -> Any:
        return ((nv.tanh(x @ w)) ** 2).mean()

    return w - 0.1 * nv.grad(loss)(w)


LOOPS: dict[str, Callable[[], Callable[..., Any]]] = {
    "compiled": lambda: nv.compile(descend),
    "donating": lambda: nv.compile(descend, donate_argnums=0),
    "lazy": lambda: lambda w, x: nv.eval(new := descend(w, x)) or new,
}


@pytest.mark.parametrize("loop", [*LOOPS, "lazy, evaluated at the end"])
@pytest.mark.parametrize("width", [8, 600])  # the wider one runs in tiles
def test_a_long_training_loop_holds_what_it_held(loop: str, width: int) -> None:
    steps = 300 if width == 8 else 60  # a lazy graph of another length is another program
    at_the_end = loop not in LOOPS
    step = descend if at_the_end else LOOPS[loop]()
    x = nv.array(np.ones((4, width), np.float32))

    def run(steps: int, w: Any) -> Any:
        for _ in range(steps):
            w = step(w, x)
        nv.eval(w)
        return w

    w = run(20, nv.array(np.eye(width, dtype=np.float32)))
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(2):  # a lazy graph that is met again makes a program
            w = run(steps, w)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        w = run(steps, w)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 50_000
    tiled = "tiles_1" in nv.compile(descend).lower(w, x).source
    assert tiled == (width > 8)
