"""custom_vjp: whose rule applies when, closures, structures, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.array import from_numpy
from nuvec.core.errors import DtypeError, NuvecError, ShapeError, TreeError
from nuvec.transforms.compile import compile
from nuvec.transforms.custom import custom_vjp
from nuvec.transforms.grad import grad, vjp
from nuvec.transforms.jvp import jvp
from nuvec.transforms.scan import scan
from nuvec.transforms.vmap import vmap


def marked(with_jvp: bool = False) -> Any:
    """sin, with a derivative of 10 cos: its own rule is recognizable."""

    @custom_vjp
    def f(x: Any) -> Any:
        return nv.sin(x)

    f.defvjp(lambda x: (f(x), x), lambda x, c: (10 * c * nv.cos(x),))
    if with_jvp:
        f.defjvp(lambda p, t: (f(p[0]), 10 * t[0] * nv.cos(p[0])))
    return f


X = np.float64(0.7)


@pytest.mark.parametrize("outer", [lambda f: f, compile, lambda f: lambda x: vmap(f)(x[None])[0]])
def test_the_rule_is_used_everywhere(outer: Any) -> None:
    f = marked()
    x = from_numpy(X)
    expected = 10 * np.cos(X)
    for g in (grad(f), grad(lambda x: outer(f)(x)), outer(grad(f)), compile(outer(grad(f)))):
        np.testing.assert_allclose(g(x), expected, rtol=1e-12)
    np.testing.assert_allclose(outer(f)(x), np.sin(X), rtol=1e-12)

    def looped(x: Any) -> Any:
        return scan(lambda c, _: (f(c), None), x, length=2)[0]

    twice = 100 * np.cos(np.sin(X)) * np.cos(X)
    np.testing.assert_allclose(grad(looped)(x), twice, rtol=1e-12)
    np.testing.assert_allclose(outer(grad(looped))(x), twice, rtol=1e-12)


def test_second_order_differentiates_the_rule() -> None:
    x = from_numpy(X)
    f = marked()
    np.testing.assert_allclose(grad(grad(f))(x), -10 * np.sin(X), rtol=1e-12)
    np.testing.assert_allclose(compile(grad(grad(f)))(x), -10 * np.sin(X), rtol=1e-12)
    np.testing.assert_allclose(grad(compile(grad(compile(f))))(x), -10 * np.sin(X), rtol=1e-12)


def test_forward_mode() -> None:
    x, one = from_numpy(X), from_numpy(np.float64(1))
    plain, ruled = marked(), marked(with_jvp=True)
    np.testing.assert_allclose(jvp(plain, (x,), (one,))[1], np.cos(X), rtol=1e-12)
    np.testing.assert_allclose(jvp(ruled, (x,), (one,))[1], 10 * np.cos(X), rtol=1e-12)
    for f in (compile(ruled), lambda x: vmap(ruled)(x[None])[0]):
        np.testing.assert_allclose(jvp(f, (x,), (one,))[1], 10 * np.cos(X), rtol=1e-12)
    # Forward over reverse differentiates the backward.
    np.testing.assert_allclose(jvp(grad(plain), (x,), (one,))[1], -10 * np.sin(X), rtol=1e-12)


def test_reverse_over_forward_without_a_rule_is_an_error() -> None:
    x, one = from_numpy(X), from_numpy(np.float64(1))

    def tangent(f: Any) -> Any:
        return grad(lambda x: jvp(f, (x,), (one,))[1])

    with pytest.raises(NuvecError, match="defjvp"):
        tangent(marked())(x)
    np.testing.assert_allclose(tangent(marked(with_jvp=True))(x), -10 * np.sin(X), rtol=1e-12)


@pytest.mark.parametrize("wrap", [lambda f: f, compile])
def test_closures_over_outer_traced_values(wrap: Any) -> None:
    """What the forward closes over keeps its own derivative."""

    def outer(a: Any) -> Any:
        @custom_vjp
        def f(x: Any) -> Any:
            return a * x

        f.defvjp(lambda x: (a * x, x), lambda x, c: (c * a * 10,))
        return wrap(f)(a + 1)

    # d/da a (a + 1): through the closure a + 1, through the argument 10 a
    np.testing.assert_allclose(grad(outer)(from_numpy(X)), X + 1 + 10 * X, rtol=1e-12)
    np.testing.assert_allclose(compile(grad(outer))(from_numpy(X)), X + 1 + 10 * X, rtol=1e-12)


def test_integer_arguments_none_cotangents_and_unused_outputs() -> None:
    seen = []

    @custom_vjp
    def f(x: Any, n: Any, y: Any) -> Any:
        return x * n, y * 2, nv.zeros(3)

    def bwd(residuals: Any, cs: Any) -> Any:
        seen.append([c.shape for c in cs])
        assert all(c.dtype == np.float32 for c in cs)
        return cs[0] * residuals, None, None

    f.defvjp(lambda x, n, y: (f(x, n, y), n), bwd)
    x, y = grad(lambda x, y: f(x, nv.array(3), y)[0], argnums=(0, 1))(2.0, 5.0)
    assert (x.item(), y.item()) == (3, 0)
    assert seen == [[(), (), (3,)]]
    compiled = compile(grad(lambda x, y: f(x, nv.array(3), y)[0], argnums=(0, 1)))(2.0, 5.0)
    assert [c.item() for c in compiled] == [3, 0]


def test_trees_and_nondiff_arguments() -> None:
    @custom_vjp
    def plain(x: Any) -> Any:
        return x

    def power(p: Any, n: int, name: str) -> Any:
        assert name == "cube"
        return {"y": p["x"] ** n}

    f = custom_vjp(power, nondiff_argnums=(1, 2))
    f.defvjp(
        lambda p, n, name: (power(p, n, name), p),
        lambda n, name, p, c: ({"x": c["y"] * n * p["x"] ** (n - 1)},),
    )
    g = grad(lambda p: nv.sum(f(p, 3, "cube")["y"]))({"x": nv.array([1.0, 2.0])})
    assert g["x"].tolist() == [3, 12]
    assert f({"x": nv.array(2.0)}, 3, name="cube")["y"].item() == 8


def test_a_forward_that_calls_the_function_under_every_transform() -> None:
    f = marked()
    x = from_numpy(np.array([0.1, 0.2]))
    expected = 10 * np.cos([0.1, 0.2])
    np.testing.assert_allclose(vmap(grad(f))(x), expected, rtol=1e-12)
    np.testing.assert_allclose(grad(lambda x: nv.sum(vmap(f)(x)))(x), expected, rtol=1e-12)
    np.testing.assert_allclose(compile(vmap(compile(grad(f))))(x), expected, rtol=1e-12)
    np.testing.assert_allclose(vmap(vmap(grad(f)))(x[None])[0], expected, rtol=1e-12)


def test_errors() -> None:
    @custom_vjp
    def f(x: Any) -> Any:
        return x

    with pytest.raises(NuvecError, match=r"f.defvjp\(fwd, bwd\)"):
        f(1.0)
    f.defvjp(lambda x: x, lambda r, c: (c,))
    with pytest.raises(TreeError, match=r"pair \(output, residuals\)"):
        grad(f)(1.0)
    f.defvjp(lambda x: (x, None), lambda r, c: c)
    with pytest.raises(TreeError, match="must return a tuple"):
        grad(f)(1.0)
    f.defvjp(lambda x: (x, None), lambda r, c: (nv.ones(3),))
    with pytest.raises(ShapeError, match=r"\(3,\)"):
        grad(f)(1.0)
    f.defvjp(lambda x: (x, None), lambda r, c: (nv.ones((), dtype=np.float64),))
    with pytest.raises(DtypeError, match="float64"):
        grad(f)(1.0)
    f.defvjp(lambda x: ((x, x), None), lambda r, c: (c,))
    with pytest.raises(TreeError, match=r"fwd returns the pair"):
        compile(f)(1.0)


def test_methods() -> None:
    class Layer:
        scale = 2.0

        @custom_vjp
        def apply(self: Any, x: Any) -> Any:
            return x * 2

    nv.tree.register(Layer, lambda layer: ((), None), lambda aux, children: Layer())
    Layer.apply.defvjp(  # type: ignore[attr-defined]
        lambda self, x: (x * 2, None), lambda r, c: (None, 7 * c)
    )
    layer = Layer()
    assert layer.apply(nv.array(3.0)).item() == 6  # type: ignore[call-arg]
    assert grad(lambda x: layer.apply(x))(nv.array(3.0)).item() == 7  # type: ignore[call-arg]


def test_a_constant_function_with_a_derivative() -> None:
    @custom_vjp
    def f(x: Any) -> Any:
        return nv.array(3.0)

    f.defvjp(lambda x: (nv.array(3.0), ()), lambda r, c: (5 * c,))
    for g in (vjp(f, nv.array(1.0))[1], vjp(compile(f), nv.array(1.0))[1]):
        assert g(1.0)[0].item() == 5
