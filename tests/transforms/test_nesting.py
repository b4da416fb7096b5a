"""Transforms nest in any order and to any depth, and do not confuse their perturbations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.array import from_numpy
from nuvec.core.node import context
from nuvec.transforms.compile import compile
from nuvec.transforms.cond import cond
from nuvec.transforms.custom import custom_vjp
from nuvec.transforms.grad import grad, vjp
from nuvec.transforms.jvp import jvp
from nuvec.transforms.scan import scan
from nuvec.transforms.vmap import vmap

X = np.array([0.3, 0.7, 1.1])
Function = Callable[[Any], Any]

# Each takes a function of a vector to a vector of its shape and gives another such.


def _grad(f: Function) -> Function:
    return grad(lambda x: nv.sum(f(x) * f(x)))


def _jvp(f: Function) -> Function:
    return lambda x: jvp(f, (x,), (nv.cos(x),))[1]


def _vmap(f: Function) -> Function:
    def element(x: Any) -> Any:
        return f(nv.stack([x, x * 2, x * x]))

    return lambda x: nv.sum(vmap(element)(x), axis=1)


def _compile(f: Function) -> Function:
    return compile(f)


def _scan(f: Function) -> Function:
    def step(c: Any, x: Any) -> Any:
        c = f(c * 0.5)
        return c, nv.sum(c) * x

    def looped(x: Any) -> Any:
        c, ys = scan(step, x, x)
        return c + ys

    return looped


def _cond(f: Function) -> Function:
    return lambda x: cond(nv.sum(x) > 0, f, lambda x: x * 2, x)


def _custom(f: Function) -> Function:
    """The function with its derivative given by itself."""

    @custom_vjp
    def ruled(x: Any) -> Any:
        return f(x)

    def fwd(x: Any) -> Any:
        return f(x), x

    def bwd(x: Any, c: Any) -> Any:
        return vjp(f, x)[1](c)

    ruled.defvjp(fwd, bwd)
    ruled.defjvp(lambda primals, tangents: jvp(f, primals, tangents))
    return ruled


TRANSFORMS = {
    "grad": _grad, "jvp": _jvp, "vmap": _vmap, "compile": _compile, "scan": _scan, "cond": _cond,
    "custom_vjp": _custom,
}  # fmt: skip


def base(x: Any) -> Any:
    return nv.tanh(x) * (1 + 0.5 * nv.sin(nv.sum(x)))


def numeric(f: Function) -> Function:
    """d sum(f(x)^2) / dx by central differences."""

    def gradient(x: Any) -> Any:
        x = np.asarray(x)
        found = []
        for i in range(x.size):
            step = np.zeros_like(x)
            step[i] = 1e-5
            plus, minus = [np.sum(np.asarray(f(from_numpy(x + s * step))) ** 2) for s in (1, -1)]
            found.append((plus - minus) / 2e-5)
        return np.array(found)

    return gradient


# What each transform means, without it: numbers, loops, branches.
MEANINGS: dict[str, Callable[[Function], Function]] = {
    "grad": numeric,
    "jvp": lambda f: (
        lambda x: (
            (
                np.asarray(f(from_numpy(np.asarray(x) + 1e-5 * np.cos(np.asarray(x)))))
                - np.asarray(f(from_numpy(np.asarray(x) - 1e-5 * np.cos(np.asarray(x)))))
            )
            / 2e-5
        )
    ),
    "vmap": lambda f: (
        lambda x: np.stack(
            [np.sum(np.asarray(f(from_numpy(np.stack([v, v * 2, v * v]))))) for v in np.asarray(x)]
        )
    ),
    "compile": lambda f: f,
    "cond": lambda f: f,
    "custom_vjp": lambda f: f,
}


def _loop(f: Function) -> Function:
    def looped(x: Any) -> Any:
        x = np.asarray(x)
        c, ys = x, []
        for v in x:
            c = np.asarray(f(from_numpy(np.asarray(c * 0.5))))
            ys.append(np.sum(c) * v)
        return c + np.stack(ys)

    return looped


MEANINGS["scan"] = _loop


@pytest.mark.parametrize("outer", TRANSFORMS)
@pytest.mark.parametrize("inner", TRANSFORMS)
def test_every_pair(inner: str, outer: str) -> None:
    """The outer transform's meaning, applied to the inner transform's function."""
    f = TRANSFORMS[inner](base)
    found = TRANSFORMS[outer](f)(from_numpy(X))
    expected = MEANINGS[outer](f)(from_numpy(X))
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6)
    assert context.traces == () and context.scope is None


@pytest.mark.parametrize("outer", TRANSFORMS)
@pytest.mark.parametrize("inner", TRANSFORMS)
def test_a_gradient_around_every_pair(inner: str, outer: str) -> None:
    f = TRANSFORMS[outer](TRANSFORMS[inner](base))
    x = from_numpy(X)
    plain = _grad(f)(x)
    np.testing.assert_allclose(plain, numeric(f)(x), rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(compile(_grad(f))(x), plain, rtol=1e-12)
    v = nv.cos(x)
    _, moved = jvp(lambda x: nv.sum(f(x) ** 2), (x,), (v,))
    np.testing.assert_allclose(moved, nv.sum(plain * v), rtol=1e-9)
    batch = nv.stack([x, x * 0.5])
    batched = vmap(_grad(f))(batch)
    np.testing.assert_allclose(
        batched, np.stack([np.asarray(_grad(f)(b)) for b in (x, x * 0.5)]), rtol=1e-9
    )


def test_the_product_with_the_gradient_of_a_closure() -> None:
    """d/dx (x * d/dy (x + y)) = 1; a mixed-up perturbation gives 2."""
    assert grad(lambda x: x * grad(lambda y: x + y)(1.0))(1.0).item() == 1
    assert grad(lambda x: x * grad(lambda y: x * y)(2.0))(3.0).item() == 6
    forward = jvp(lambda x: x * jvp(lambda y: x + y, (1.0,), (1.0,))[1], (1.0,), (1.0,))
    assert forward[1].item() == 1
    mixed = grad(lambda x: x * jvp(lambda y: x * y, (2.0,), (1.0,))[1])(3.0)
    assert mixed.item() == 6
    mixed = jvp(lambda x: x * grad(lambda y: x * y)(2.0), (3.0,), (1.0,))[1]
    assert mixed.item() == 6


@pytest.mark.parametrize("inner", [compile, lambda f: f])
def test_closures_over_every_level(inner: Any) -> None:
    """f(x) = d/dy [y * d/dz (x y z)] = 2 x y: three levels see each other's variables."""

    def f(x: Any) -> Any:
        return grad(inner(lambda y: y * grad(inner(lambda z: x * y * z))(1.0)))(5.0)

    assert f(3.0).item() == 30
    assert grad(f)(3.0).item() == 10
    assert vmap(f)(nv.array([1.0, 2.0])).tolist() == [10, 20]
    assert compile(vmap(grad(f)))(nv.array([1.0, 2.0])).tolist() == [10, 10]


def test_a_closure_under_vmap_of_grad() -> None:
    def outer(a: Any) -> Any:
        return vmap(grad(lambda b: nv.sin(a * b)))(nv.array([1.0, 2.0]))

    a = 0.5
    np.testing.assert_allclose(outer(a), 0.5 * np.cos([0.5, 1.0]), rtol=1e-6)
    found = grad(lambda a: nv.sum(outer(a)))(a)
    b = np.array([1.0, 2.0])
    np.testing.assert_allclose(found, np.sum(np.cos(a * b) - a * b * np.sin(a * b)), rtol=1e-5)


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_repeated_gradients(order: int) -> None:
    f: Function = nv.sin
    for _ in range(order):
        f = grad(f)
    expected = [np.cos, lambda x: -np.sin(x), lambda x: -np.cos(x), np.sin, np.cos][order - 1]
    x = from_numpy(np.float64(0.7))
    np.testing.assert_allclose(f(x), expected(0.7), rtol=1e-12)
    np.testing.assert_allclose(compile(f)(x), expected(0.7), rtol=1e-12)


def test_gradients_of_a_compiled_function_of_every_order() -> None:
    f: Function = compile(lambda x: nv.exp(nv.sin(x)))
    g: Function = lambda x: nv.exp(nv.sin(x))  # noqa: E731
    x = from_numpy(np.float64(0.7))
    for _ in range(4):
        f, g = compile(grad(f)), grad(g)
        np.testing.assert_allclose(f(x), g(x), rtol=1e-12)


def test_forcing_inside_nested_gradients() -> None:
    """Values inside grad are real; forcing one cuts neither trace."""
    seen = []

    def inner(y: Any, x: Any) -> Any:
        z = x * y * y
        seen.append(float(z))
        if z > 0:
            z = z * 2
        return nv.sin(z)

    def outer(x: Any) -> Any:
        g = grad(lambda y: inner(y, x))(x * 1.0)
        seen.append(g.item())
        str(g)
        return g * x

    x = 0.4
    found = grad(outer)(from_numpy(np.float64(x)))

    def plain(x: float) -> float:  # x * d/dy sin(2 x y^2) at y = x, both moving
        return x * 4 * x * x * np.cos(2 * x**3)

    np.testing.assert_allclose(found, (plain(x + 1e-6) - plain(x - 1e-6)) / 2e-6, rtol=1e-7)
    np.testing.assert_allclose(seen, [x**3, 4 * x * x * np.cos(2 * x**3)], rtol=1e-12)


def test_jacobians_by_both_modes_agree() -> None:
    x = from_numpy(X)
    eye = nv.eye(3, dtype=nv.float64)
    forward = vmap(lambda v: jvp(base, (x,), (v,))[1], out_axes=1)(eye)
    pull = vjp(base, x)[1]
    backward = vmap(lambda c: pull(c)[0])(eye)
    np.testing.assert_allclose(forward, backward, rtol=1e-12)
    hessian = vmap(lambda v: jvp(_grad(base), (x,), (v,))[1])(eye)
    np.testing.assert_allclose(hessian, np.asarray(hessian).T, rtol=1e-12)
