"""`lower(...).memory.peak` is what a first call takes: loops, branches, layouts and donation.

Each program runs in a process of its own: the bodies of loops keep memory from call to call.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

MEASURE = """
import gc, tracemalloc
import numpy as np
import nuvec as nv

x = nv.array(np.random.default_rng(0).random((800, 800), np.float32))
row = nv.array(x[0])

@nv.custom_jvp
def custom(x):
    return nv.sin(x) @ x

custom.defjvp(lambda primals, tangents: (custom(*primals), tangents[0]))

def peak(f, *args, **how):
    nv.eval(args)
    compiled = nv.compile(f, **how)
    predicted = compiled.lower(*args).memory.peak
    gc.collect()
    tracemalloc.start()
    results = compiled(*args)
    measured = tracemalloc.get_traced_memory()[1]
    assert results is not None
    print(predicted, measured)
"""

PROGRAMS = {
    "scan": "peak(lambda x: nv.scan(lambda c, _: (c * 2.5, None), x, None, length=3)[0], x)",
    "scan with temporaries": """
        peak(lambda x: nv.scan(lambda c, _: (nv.sin(c) @ c, None), x, None, length=3)[0], x)""",
    "scan that keeps its carries": """
        peak(lambda x: nv.scan(lambda c, _: (c * 2.5, c), x, None, length=3), x)""",
    "scan with rows": "peak(lambda x: nv.scan(lambda c, _: (c + 1, c[0]), x, None, length=3), x)",
    "gradient of a scan": """
        f = lambda x: nv.sum(nv.scan(lambda c, _: (nv.sin(c) * 2.5, None), x, None, length=3)[0])
        peak(nv.grad(f), x)""",
    "fori_loop": "peak(lambda x: nv.fori_loop(0, 3, lambda i, c: nv.sin(c) @ c, x), x)",
    "gradient of fori_loop": """
        peak(nv.grad(lambda x: nv.sum(nv.fori_loop(0, 3, lambda i, c: nv.sin(c) @ c, x))), x)""",
    "while_loop": """
        peak(lambda x: nv.while_loop(lambda c: nv.sum(c) < 1e9, lambda c: c * 3 + 1, x), x)""",
    "after a while_loop": """
        w = lambda x: nv.while_loop(lambda c: nv.sum(c) < 1e9, lambda c: c * 3 + 1, x)
        peak(lambda x: nv.sin(w(x)) * 2 @ x, x)""",
    "cond": """
        peak(lambda x: nv.cond(nv.sum(x) > 0, lambda x: nv.sin(x) @ x, lambda x: x, x), x)""",
    "after a cond": """
        c = lambda x: nv.cond(nv.sum(x) > 0, lambda x: nv.sin(x) @ x, lambda x: x, x)
        peak(lambda x: nv.sin(c(x)) @ x, x)""",
    "switch": """
        branches = [lambda x: x, lambda x: nv.sin(x) @ x + nv.cos(x) @ x]
        peak(lambda x: nv.switch(nv.array(1), branches, x) * 2 @ x, x)""",
    "custom rule": "peak(lambda x: nv.sum(custom(x), axis=0) + x, x)",
    "loop in a scan": """
        f = lambda c, _: (nv.fori_loop(0, 2, lambda i, c: nv.sin(c) @ c, c), None)
        peak(lambda x: nv.scan(f, x, None, length=3)[0], x)""",
    "a broadcast argument": "peak(lambda x: nv.exp(x) * 2 + 1, nv.ones((800, 800)))",
    "of two, one broadcast": "peak(lambda x, y: x * y @ x, nv.broadcast_to(row, (800, 800)), x)",
    "a transposed argument": "peak(lambda x, y: nv.exp(x) + y, x.T, x)",
    "a captured broadcast": """
        a = nv.ones((800, 800))
        nv.eval(a)
        peak(lambda x: nv.exp(a) * x @ a, x)""",
    "donated": "peak(lambda x, y: (x * 2, nv.sin(y) @ y), x + 1, x, donate_argnums=0)",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_prediction(name: str) -> None:
    program = MEASURE + textwrap.dedent(PROGRAMS[name])
    # One thread: whether a second one gets a tile, and memory for it, is a matter of luck.
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "NUVEC_THREADS": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    predicted, measured = map(int, done.stdout.split())
    assert measured > 2**20
    # The programs themselves take some 0.4 MB when they are made.
    assert abs(predicted - measured) <= max(0.1 * measured, 2**19)
