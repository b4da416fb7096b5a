"""A recurrent network as a scan: 100 steps of tanh(x @ W + h @ U + b), batch 32, width 128.

value     the loss alone, milliseconds
gradient  its value and the gradient of W, U and b, compiled, milliseconds
eager     the same without compile around it (JAX compiles the body anew: the step is another
          function at every call)

    python benchmarks/setup_peers.py          # once: torch, autograd, jax, mlx in .peers/
    python benchmarks/scan.py [--json FILE]

The loss is the mean square of all hidden states.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from _compare import Case, main
from _worker import Task

STEPS, BATCH, WIDTH = 100, 32, 128
TARGET = 1.5
CASES = [
    Case("value", "the loss, compiled"),
    Case("gradient", "value and gradient, compiled", targets={"jax": TARGET}),
    Case("eager", "value and gradient, not compiled"),
]
_random = np.random.Generator(np.random.PCG64(0))


def _normal(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (_random.standard_normal(shape) * scale).astype(np.float32)


XS = _normal(STEPS, BATCH, WIDTH)
H = np.zeros((BATCH, WIDTH), np.float32)
PARAMETERS = (
    _normal(WIDTH, WIDTH, scale=WIDTH**-0.5),
    _normal(WIDTH, WIDTH, scale=WIDTH**-0.5),
    _normal(WIDTH, scale=0.1),
)


def _flat(value: Any, gradients: Any) -> np.ndarray:
    """A result that is cheap to make and says enough: the value, and a row of each gradient."""
    rows = [np.asarray(g).reshape(-1)[:WIDTH] for g in gradients]
    return np.concatenate([np.asarray(value).reshape(1), *rows])


# Each framework is imported where it is there: in its own process.


def nuvec() -> Mapping[str, Task]:
    import nuvec as nv

    xs, h = nv.array(XS), nv.array(H)
    parameters = tuple(nv.array(p) for p in PARAMETERS)

    def loss(parameters: Any) -> Any:
        w, u, b = parameters

        def step(h: Any, x: Any) -> Any:
            h = nv.tanh(x @ w + h @ u + b)
            return h, h

        return (nv.scan(step, h, xs)[1] ** 2).mean()

    value = nv.compile(loss)
    gradient = nv.value_and_grad(loss)
    compiled = nv.compile(gradient)

    def eager() -> np.ndarray:
        value, gradients = gradient(parameters)
        nv.eval(value, gradients)
        return _flat(value, gradients)

    return {
        "value": lambda: np.asarray(value(parameters)),
        "gradient": lambda: _flat(*compiled(parameters)),
        "eager": eager,
    }


def jax() -> Mapping[str, Task]:
    import jax

    xs, h = jax.numpy.asarray(XS), jax.numpy.asarray(H)
    parameters = tuple(jax.numpy.asarray(p) for p in PARAMETERS)

    def loss(parameters: Any) -> Any:
        w, u, b = parameters

        def step(h: Any, x: Any) -> Any:
            h = jax.numpy.tanh(x @ w + h @ u + b)
            return h, h

        return (jax.lax.scan(step, h, xs)[1] ** 2).mean()

    value = jax.jit(loss)
    gradient = jax.value_and_grad(loss)
    compiled = jax.jit(gradient)
    return {
        "value": lambda: np.asarray(value(parameters)),
        "gradient": lambda: _flat(*jax.block_until_ready(compiled(parameters))),
        "eager": lambda: _flat(*jax.block_until_ready(gradient(parameters))),
    }


def torch() -> Mapping[str, Task]:
    import torch

    xs, h0 = torch.tensor(XS), torch.tensor(H)
    parameters = [torch.tensor(p, requires_grad=True) for p in PARAMETERS]

    def loss() -> Any:
        w, u, b = parameters
        h, total = h0, []
        for x in xs:
            h = torch.tanh(x @ w + h @ u + b)
            total.append(h)
        return (torch.stack(total) ** 2).mean()

    def gradient() -> np.ndarray:
        value = loss()
        gradients = torch.autograd.grad(value, parameters)
        return _flat(value.detach(), gradients)

    def value() -> np.ndarray:
        with torch.no_grad():
            return loss().numpy()

    return {"value": value, "gradient": gradient, "eager": gradient}


def numpy() -> Mapping[str, Task]:
    w, u, b = PARAMETERS

    def value() -> np.ndarray:
        h, total = H, []
        for x in XS:
            h = np.tanh(x @ w + h @ u + b)
            total.append(h)
        return np.mean(np.stack(total) ** 2)

    return {"value": value}


FRAMEWORKS = {"nuvec": nuvec, "numpy": numpy, "torch": torch, "jax": jax}

if __name__ == "__main__":
    sys.exit(main(__file__, __doc__, CASES, FRAMEWORKS))
