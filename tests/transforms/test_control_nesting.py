"""Control flow inside every transform and every transform inside control flow: as Python's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.array import from_numpy
from tests.transforms.test_nesting import TRANSFORMS, Function, X, base

# Each takes a function of a vector to a vector of its shape, and there is the same in Python.


def _while(f: Function) -> Function:
    return lambda x: nv.while_loop(
        lambda c: c[0] < 2, lambda c: (c[0] + 1, f(c[1]) * 0.5 + x), (0, x), max_steps=3
    )[1]


def _unbounded(f: Function) -> Function:
    return lambda x: nv.while_loop(
        lambda c: c[0] < 2, lambda c: (c[0] + 1, f(c[1]) * 0.5 + x), (0, x)
    )[1]


def _fori(f: Function) -> Function:
    return lambda x: nv.fori_loop(0, 2, lambda i, c: f(c) * 0.5 + x, x)


def _two_steps(f: Function) -> Function:
    def looped(x: Any) -> Any:
        c = x
        for _ in range(2):
            c = f(c) * 0.5 + x
        return c

    return looped


def _switch(f: Function) -> Function:
    branches = [lambda x: x, f, lambda x: -x]
    return lambda x: nv.switch(nv.argmax(nv.stack([nv.zeros(()), nv.ones(())])), branches, x)


def _map(f: Function) -> Function:
    return lambda x: nv.map(lambda k: nv.sum(f(x * k)), x)


def _stacked(f: Function) -> Function:
    return lambda x: nv.stack([nv.sum(f(x * x[i])) for i in range(3)])


def _prefixes(f: Function) -> Function:
    def scanned(x: Any) -> Any:
        rows = nv.stack([x, x * 2, x * x])
        return nv.sum(nv.associative_scan(lambda a, b: a * 0.5 + f(b[0])[None], rows), axis=0)

    return scanned


CONTROL = {
    "while": (_while, _two_steps), "while, forward": (_unbounded, _two_steps),
    "fori": (_fori, _two_steps), "switch": (_switch, lambda f: f), "map": (_map, _stacked),
}  # fmt: skip
FORWARD = frozenset(("jvp", "vmap", "compile", "scan", "cond"))


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", CONTROL)
def test_both_orders(name: str, transform: str) -> None:
    control, python = CONTROL[name]
    t = TRANSFORMS[transform]
    x = from_numpy(X)
    if name != "while, forward" or transform in FORWARD:
        np.testing.assert_allclose(t(control(base))(x), t(python(base))(x), rtol=1e-9)
        np.testing.assert_allclose(
            nv.compile(t(control(base)))(x), t(python(base))(x), rtol=1e-9
        )  # fmt: skip
    np.testing.assert_allclose(control(t(base))(x), python(t(base))(x), rtol=1e-9)


@pytest.mark.parametrize("outer", CONTROL)
@pytest.mark.parametrize("inner", CONTROL)
def test_control_flow_in_control_flow(outer: str, inner: str) -> None:
    (a, pa), (b, pb) = CONTROL[outer], CONTROL[inner]
    x = from_numpy(X)
    f, g = a(b(base)), pa(pb(base))
    np.testing.assert_allclose(f(x), g(x), rtol=1e-10)
    np.testing.assert_allclose(
        nv.jvp(f, (x,), (x,))[1], nv.jvp(g, (x,), (x,))[1], rtol=1e-9
    )  # fmt: skip
    batch = nv.stack([x, x * 0.5])
    np.testing.assert_allclose(nv.vmap(f)(batch), nv.vmap(g)(batch), rtol=1e-10)
    if "while, forward" not in (outer, inner):
        square = lambda f: nv.grad(lambda x: nv.sum(f(x) ** 2))  # noqa: E731
        np.testing.assert_allclose(square(f)(x), square(g)(x), rtol=1e-8)


def test_prefixes_of_a_traced_combination() -> None:
    f = _prefixes(base)
    nv.testing.check_grads(f, (X,), order=2)
