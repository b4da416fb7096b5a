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


def nested(depth: int, calls: list[int], pulling: bool) -> Any:
    """sin in `depth` custom_vjps, each of which calls the one inside three times in its rules."""

    def innermost(x: Any) -> Any:
        calls.append(1)
        return nv.sin(x)

    def around(g: Any) -> Any:
        h = nv.custom_vjp(lambda x: g(x) * 1.1)
        if pulling:
            h.defvjp(lambda x: (g(x) * 1.1, x), lambda x, c: nv.vjp(g, x)[1](c * 1.1))
        else:
            h.defvjp(lambda x: (g(x) * 1.1, x), lambda x, c: (c * 1.1 * nv.cos(x),))
        return h

    f: Any = innermost
    for _ in range(depth):
        f = around(f)
    return f


@pytest.mark.parametrize("pulling", [False, True])
@pytest.mark.parametrize("transform", ["vmap", "compile of grad", "grad of compile", "scan"])
def test_nested_rules_are_recorded_once_each(transform: str, pulling: bool) -> None:
    counts = []
    for depth in (4, 8):
        calls: list[int] = []
        f = nested(depth, calls, pulling)
        if transform == "vmap":
            found = nv.vmap(nv.grad(f))(nv.array([0.5, 1.0]))[0]
        elif transform == "scan":
            found = grad(lambda x, f=f: nv.scan(lambda c, _: (f(c), None), x, None, 1)[0])(0.5)
        else:
            found = (compile(grad(f)) if transform == "compile of grad" else grad(compile(f)))(0.5)
        inner = 1.1**depth if pulling else 1.1
        np.testing.assert_allclose(found, inner * np.cos(0.5), rtol=1e-6)
        counts.append(len(calls))
    assert counts[1] <= 4 * counts[0]  # each level calls twice or more: 2^4 times as many


def test_recursion_through_an_argument() -> None:
    f = nv.custom_vjp(lambda n, x: x if n == 0 else f(n - 1, nv.sin(x)), nondiff_argnums=0)
    f.defvjp(
        lambda n, x: (f(n, x), x),
        lambda n, x, c: (c,) if n == 0 else vjp(lambda x: f(n - 1, nv.sin(x)), x)[1](c),
    )
    for n in range(6):
        assert np.allclose(compile(grad(lambda x, n=n: f(n, x)))(1.0), grad(f, 1)(n, 1.0))


def test_rules_that_call_each_other() -> None:
    """A rule known from within another that is still being built must not hold plain calls."""
    f = nv.custom_vjp(lambda x: nv.sin(x))
    g = nv.custom_vjp(lambda x: 2 * f(x))
    f.defvjp(lambda x: (g(x) / 2, x), lambda x, c: (10 * c * nv.cos(x),))
    g.defvjp(lambda x: (2 * f(x), x), lambda x, c: vjp(f, x)[1](2 * c))
    for h, factor in ((f, 10), (g, 20), (lambda x: f(x) + g(x), 30)):
        for form in (grad(h), compile(grad(h)), grad(compile(h)), grad(nv.checkpoint(h))):
            np.testing.assert_allclose(form(0.5), factor * np.cos(0.5), rtol=1e-6)


def test_a_rule_that_captures_is_recorded_anew_where_its_captures_are_others() -> None:
    held: list[Any] = [None]
    inner = nv.custom_vjp(lambda x: x * held[0])
    inner.defvjp(lambda x: (x * held[0], held[0]), lambda w, c: (c * w,))

    def fun(x: Any) -> Any:
        held[0] = x * 3
        return inner(x) + inner(x)

    outer = nv.custom_vjp(fun)
    outer.defvjp(lambda x: (fun(x), x), lambda x, c: (c * 12 * x,))
    for form in (grad(outer), compile(grad(outer)), grad(compile(outer))):
        np.testing.assert_allclose(form(2.0), 24.0)
    np.testing.assert_allclose(compile(outer)(2.0), 24.0)


@pytest.mark.parametrize("kind", [nv.custom_vjp, nv.custom_jvp])
@pytest.mark.parametrize("numbers", ["n", 1.0, True, (0, 0), 5])
def test_nondiff_argnums_that_are_none(kind: Any, numbers: Any) -> None:
    with pytest.raises(nv.ArgumentError, match="nondiff_argnums"):
        kind(lambda x, y: x, nondiff_argnums=numbers)(1.0, 2.0)


def test_an_argument_named_twice() -> None:
    f = nv.custom_jvp(lambda x, y: x, nondiff_argnums=(0, -2))
    f.defjvp(lambda x, p, t: (x, t[0]))
    with pytest.raises(nv.ArgumentError, match="names an argument twice"):
        f(1.0, 2.0)


def test_rules_that_cannot_be_called() -> None:
    f = nv.custom_vjp(nv.sin)
    for rules in ((3, 4), ("f", lambda r, c: c), (lambda x: (x, x), None)):
        with pytest.raises(nv.ArgumentError, match="custom_vjp sin: defvjp takes a function as"):
            f.defvjp(*rules)
    with pytest.raises(nv.ArgumentError, match="defjvp takes a function"):
        f.defjvp(None)
    g = nv.custom_jvp(nv.sin)
    with pytest.raises(nv.ArgumentError, match="custom_jvp sin: defjvp takes a function"):
        g.defjvp(3)
    with pytest.raises(nv.ArgumentError, match="custom_jvp sin: defjvps takes a function"):
        g.defjvps("rule")


def test_rules_that_take_other_arguments() -> None:
    f = nv.custom_vjp(nv.sin)
    f.defvjp(lambda: None, lambda r, c: (c,))
    with pytest.raises(nv.ArgumentError, match="fwd is called with the function's arguments"):
        grad(f)(1.0)
    f.defvjp(lambda x: (nv.sin(x), x), lambda c: (c,))
    with pytest.raises(nv.ArgumentError, match="bwd is called with residuals and cotangents"):
        grad(f)(1.0)
    f.defvjp(lambda x: (nv.sin(x), x), lambda r, c: (c,))
    f.defjvp(lambda primals: primals)
    with pytest.raises(nv.ArgumentError, match="jvp rule is called with primals, tangents"):
        jvp(f, (1.0,), (1.0,))


@pytest.mark.parametrize("junk", ["a", nv.ones(5), object()])
def test_cotangents_of_integers_are_arrays_or_none(junk: Any) -> None:
    f = nv.custom_vjp(lambda x, i: x * i)
    f.defvjp(lambda x, i: (x * i, i), lambda i, c: (c * i, junk))
    with pytest.raises((TypeError, ValueError), match="bwd's cotangent for argument 1"):
        grad(f)(2.0, 3)
    f.defvjp(lambda x, i: (x * i, (x, i)), lambda r, c: (c * r[1], c * r[0]))
    assert float(grad(f)(2.0, 3)) == 3.0
