"""What an operation costs beyond its arithmetic: chains of 100 operations on 16 floats.

forward   recording and evaluating the chain, microseconds an operation
gradient  its uncompiled gradient, microseconds a forward operation

    python benchmarks/setup_peers.py          # once: torch, autograd, jax, mlx in .peers/
    python benchmarks/overhead.py [--json FILE]

Nothing is compiled in any framework.  NumPy alone and autograd's forward record nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from _compare import Case, main
from _worker import Task

OPERATIONS = 100
TARGET = 1.6
CASES = [
    Case("forward", "recording and evaluating, an operation",
         divisor=OPERATIONS, unit="us", targets={"torch": TARGET}),
    Case("gradient", "the uncompiled gradient, a forward operation",
         divisor=OPERATIONS, unit="us", targets={"torch": TARGET}),
]  # fmt: skip
X = np.linspace(0.5, 1.5, 16, dtype=np.float32)


def chain(tanh: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """100 operations: multiply, add, multiply, tanh, over and over."""

    def run(x: Any) -> Any:
        y = x
        for _ in range(OPERATIONS // 4):
            y = y * x
            y = y + x
            y = y * x
            y = tanh(y)
        return y

    return run


# Each framework is imported where it is there: in its own process.


def nuvec() -> Mapping[str, Task]:
    import nuvec as nv

    x = nv.array(X)
    run = chain(nv.tanh)
    gradient = nv.grad(lambda x: run(x).sum())

    def evaluated(function: Callable[[Any], Any]) -> Any:
        y = function(x)
        nv.eval(y)
        return y

    return {"forward": lambda: evaluated(run), "gradient": lambda: evaluated(gradient)}


def numpy() -> Mapping[str, Task]:
    run = chain(np.tanh)
    return {"forward": lambda: run(X)}


def torch() -> Mapping[str, Task]:
    import torch

    x = torch.tensor(X)
    variable = torch.tensor(X, requires_grad=True)
    run = chain(torch.tanh)
    return {
        "forward": lambda: run(x),
        "gradient": lambda: torch.autograd.grad(run(variable).sum(), variable)[0],
    }


def autograd() -> Mapping[str, Task]:
    import autograd
    import autograd.numpy as anp

    run = chain(anp.tanh)
    gradient = autograd.grad(lambda x: anp.sum(run(x)))
    return {"forward": lambda: run(X), "gradient": lambda: gradient(X)}


def jax() -> Mapping[str, Task]:
    import jax

    x = jax.numpy.asarray(X)
    run = chain(jax.numpy.tanh)
    gradient = jax.grad(lambda x: run(x).sum())
    return {
        "forward": lambda: run(x).block_until_ready(),
        "gradient": lambda: gradient(x).block_until_ready(),
    }


def mlx() -> Mapping[str, Task]:
    import mlx.core as mx

    x = mx.array(X)
    run = chain(mx.tanh)
    gradient = mx.grad(lambda x: run(x).sum())

    def evaluated(function: Callable[[Any], Any]) -> Any:
        y = function(x)
        mx.eval(y)
        return y

    return {"forward": lambda: evaluated(run), "gradient": lambda: evaluated(gradient)}


FRAMEWORKS = {
    "nuvec": nuvec, "numpy": numpy, "torch": torch, "autograd": autograd, "jax": jax, "mlx": mlx,
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(__file__, __doc__, CASES, FRAMEWORKS))
