"""custom_jvp: one forward-mode rule that serves every mode, order and nesting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec import distributed as nd
from nuvec.testing import check_vmap, recorded

a, b = nv.array(0.3), nv.array(2.0)


@nv.custom_jvp
def f(x: Any, y: Any) -> Any:
    return nv.sin(x) * y


@f.defjvp
def _rule(primals: Any, tangents: Any) -> Any:
    x, y = primals
    dx, dy = tangents
    return f(x, y), 10 * nv.cos(x) * y * dx + nv.sin(x) * dy  # ten times too much, to be seen


FIRST = {
    "grad": lambda: nv.grad(f)(a, b),
    "jvp": lambda: nv.jvp(lambda x: f(x, b), (a,), (nv.array(1.0),))[1],
    "compile of grad": lambda: nv.compile(nv.grad(f))(a, b),
    "grad of compile": lambda: nv.grad(nv.compile(f))(a, b),
    "vmap of grad": lambda: nv.vmap(nv.grad(f), in_axes=(0, None))(nv.stack([a, a]), b)[1],
    "grad of vmap": lambda: nv.grad(
        lambda x: nv.vmap(f, in_axes=(0, None))(nv.stack([x, x]), b).sum() / 2
    )(a),
    "jvp of compile": lambda: nv.jvp(lambda x: nv.compile(f)(x, b), (a,), (nv.array(1.0),))[1],
    "grad of scan": lambda: nv.grad(
        lambda x: nv.scan(lambda c, _: (f(c, b), None), x, length=1)[0]
    )(a),
    "jacfwd": lambda: nv.jacfwd(lambda x: f(x, b))(a),
}


@pytest.mark.parametrize("name", FIRST)
def test_first_order(name: str) -> None:
    np.testing.assert_allclose(FIRST[name](), 10 * np.cos(0.3) * 2, rtol=1e-5)


def inner(x: Any) -> Any:
    return nv.grad(f)(x, b)


SECOND = {
    "grad of grad": lambda: nv.grad(inner)(a),
    "compile": lambda: nv.compile(nv.grad(inner))(a),
    "grad of compile": lambda: nv.grad(nv.compile(inner))(a),
    "jvp of grad": lambda: nv.jvp(inner, (a,), (nv.array(1.0),))[1],
    "grad of jvp": lambda: nv.grad(lambda x: nv.jvp(lambda x: f(x, b), (x,), (nv.array(1.0),))[1])(
        a
    ),
    "vmap": lambda: nv.vmap(nv.grad(inner))(nv.stack([a, a]))[0],
    "hessian": lambda: nv.hessian(lambda x: f(x, b))(a),
}


@pytest.mark.parametrize("name", SECOND)
def test_second_order_differentiates_the_rule(name: str) -> None:
    np.testing.assert_allclose(SECOND[name](), -10 * np.sin(0.3) * 2, rtol=1e-5)


@pytest.mark.parametrize("wrap", [lambda f: f, nv.compile], ids=["eager", "compiled"])
def test_closures_have_their_own_derivative(wrap: Any) -> None:
    def outer(c: Any) -> Any:
        h = nv.custom_jvp(lambda x: x * c)
        h.defjvp(lambda primals, tangents: (h(*primals), 100 * tangents[0]))
        return h(c * 2.0)

    assert nv.grad(wrap(outer))(3.0).item() == 206.0
    assert wrap(nv.grad(outer))(3.0).item() == 206.0
    assert nv.jvp(wrap(outer), (3.0,), (1.0,))[1].item() == 206.0


def test_nondiff_arguments() -> None:
    power = nv.custom_jvp(lambda n, x: x**n, nondiff_argnums=0)
    power.defjvp(lambda n, primals, tangents: (power(n, *primals), n * tangents[0]))
    assert nv.grad(lambda x: power(3, x))(2.0).item() == 3.0
    assert nv.compile(nv.grad(lambda x: power(3, x)))(2.0).item() == 3.0
    check_vmap(lambda x: power(3, x), (np.float32([1, 2]),))


def test_defjvps() -> None:
    g = nv.custom_jvp(lambda x, y: x * y)
    g.defjvps(lambda t, out, x, y: 7 * t * y, None)
    assert [v.item() for v in nv.grad(g, argnums=(0, 1))(2.0, 3.0)] == [21.0, 0.0]


def test_trees_integers_and_none() -> None:
    @nv.custom_jvp
    def g(d: Any, n: Any, nothing: Any) -> Any:
        return {"y": d["x"] * n, "n": n}

    @g.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        n = primals[1]
        return g(*primals), {"y": 2 * tangents[0]["x"] * n, "n": None}

    d = {"x": nv.array(3.0)}
    assert nv.grad(lambda d: g(d, nv.array(4), None)["y"])(d)["x"].item() == 8.0
    assert nv.compile(nv.grad(lambda d: g(d, nv.array(4), None)["y"]))(d)["x"].item() == 8.0


def test_communications_run_once_forward() -> None:
    def on_rank(group: Any) -> Any:
        group, calls = recorded(group)
        g = nv.custom_jvp(lambda x: nd.all_sum(x, group) ** 2)
        g.defjvp(lambda primals, tangents: (g(*primals), 3 * nd.all_sum(tangents[0], group)))
        value, gradient = nv.value_and_grad(g)(a)
        nv.eval(value)
        forward = len(calls)
        nv.eval(gradient)
        return value, gradient, forward

    for value, gradient, forward in nd.run_local(on_rank, 2):
        np.testing.assert_allclose(value, 0.36, rtol=1e-6)
        assert gradient.item() == 6.0
        assert forward <= 2  # the function's, and the rule's zeros


def test_errors() -> None:
    g = nv.custom_jvp(lambda x: x)
    with pytest.raises(nv.NuvecError, match="defjvp"):
        g(1.0)
    g.defjvp(lambda primals, tangents: primals[0])
    with pytest.raises(nv.TreeError, match="must return"):
        nv.grad(g)(1.0)
    g.defjvp(lambda primals, tangents: (primals[0], nv.ones(3)))
    with pytest.raises(nv.ShapeError, match="tangent"):
        nv.grad(g)(1.0)
    with pytest.raises(TypeError, match="nondiff"):
        nv.custom_jvp(lambda n, x: x, nondiff_argnums=(0,)).defjvps(None)
