"""custom_jvp: one forward-mode rule that serves every mode, order and nesting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec import distributed as nd
from nuvec.core.errors import ConcretizationError, NuvecError, ShapeError, TreeError
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


def ruled(rule: Any, kind: Any = nv.custom_jvp) -> Any:
    f = kind(nv.sin)
    if kind is nv.custom_vjp:
        f.defvjp(lambda x: (nv.sin(x), x), lambda x, c: (c * nv.cos(x),))
    f.defjvp(rule)
    return f


POINT = nv.array([1.0, 2.0, -0.5])
LINEAR_RULES: dict[str, Any] = {
    "product": lambda x, t: nv.cos(x) * t,
    "selection": lambda x, t: nv.where(x > 0, t, 0.0),
    "if on a primal": lambda x, t: t if float(x.sum()) > 0 else -t,
    "none": lambda x, t: None,
    "zeros": lambda x, t: nv.zeros_like(x),
    "jvp": lambda x, t: nv.jvp(nv.sin, (x,), (t,))[1],
    "linearize": lambda x, t: nv.linearize(nv.sin, x)[1](t),
    "scan": lambda x, t: nv.scan(lambda c, _: (c * 0.5 + t, None), t, None, 3)[0],
    "cond": lambda x, t: nv.cond(x.sum() > 0, lambda t: t, lambda t: 2 * t, t),
    "compile": lambda x, t: nv.compile(lambda x, t: nv.cos(x) * t)(x, t),
    "difference": lambda x, t: t - t.mean(),
    "matmul": lambda x, t: nv.ones((3, 3)) @ t,
    "set to zero": lambda x, t: t.at[0].set(0.0),
    "draw": lambda x, t: t * nv.random.bernoulli(shape=(3,)),
    "gather": lambda x, t: t[nv.argmax(x)] * nv.ones(3),
}
OTHER_RULES: dict[str, tuple[Any, str]] = {
    "square": (lambda x, t: t * t, "multiplies two values"),
    "affine": (lambda x, t: t + 1, "constant that is not zero"),
    "constant": (lambda x, t: nv.ones(3), "constant that is not zero"),
    "abs": (lambda x, t: nv.abs(t), "abs of"),
    "clip": (lambda x, t: nv.clip(t, -1, 1), "m[axin]*imum of"),
    "comparison": (lambda x, t: nv.where(t > 0, t, 0.0), "greater of"),
    "in a scan": (
        lambda x, t: nv.scan(lambda c, _: (c * t, None), t, None, 3)[0], "multiplies two values",
    ),
}  # fmt: skip


def total(f: Any) -> Any:
    return lambda x: nv.sum(f(x))


USES: dict[str, Any] = {
    "jvp": lambda f: nv.jvp(f, (POINT,), (POINT,)),
    "grad": lambda f: nv.grad(total(f))(POINT),
    "compile of jvp": lambda f: nv.compile(lambda x: nv.jvp(f, (x,), (x,)))(POINT),
    "jvp of compile": lambda f: nv.jvp(nv.compile(f), (POINT,), (POINT,)),
    "vmap": lambda f: nv.vmap(f)(nv.stack([POINT, POINT])),
}
CONCRETE = ("jvp", "grad")


@pytest.mark.parametrize("name", LINEAR_RULES)
@pytest.mark.parametrize("use", USES)
def test_rules_that_are_linear(name: str, use: str) -> None:
    rule = LINEAR_RULES[name]
    f = ruled(lambda primals, tangents: (nv.sin(primals[0]), rule(primals[0], tangents[0])))
    if name == "if on a primal" and use not in CONCRETE:
        with pytest.raises(ConcretizationError):
            USES[use](f)
        return
    nv.random.seed(1)
    first = nv.tree.leaves(USES[use](f))
    nv.random.seed(1)
    for a, b in zip(first, nv.tree.leaves(USES[use](f)), strict=True):  # judged once
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", OTHER_RULES)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", [nv.custom_jvp, nv.custom_vjp])
def test_rules_that_are_not_linear_are_refused(name: str, use: str, kind: Any) -> None:
    rule, why = OTHER_RULES[name]
    f = ruled(lambda p, t: (nv.sin(p[0]), rule(p[0], t[0])), kind)
    if kind is nv.custom_vjp and use == "grad":  # its forward-mode rule is not asked for
        USES[use](f)
        return
    with pytest.raises(NuvecError, match=f"jvp rule is not linear in its tangents: .*{why}"):
        USES[use](f)


def test_outputs_that_depend_on_tangents_are_refused() -> None:
    f = ruled(lambda p, t: (nv.sin(p[0]) + t[0], t[0]))
    with pytest.raises(NuvecError, match="output 0 depends on them"):
        nv.jvp(f, (POINT,), (POINT,))


def test_if_on_a_tangent_is_refused() -> None:
    f = ruled(lambda p, t: (nv.sin(p[0]), t[0] if float(t[0].sum()) > 0 else -t[0]))
    with pytest.raises(ConcretizationError, match="tangent 0 of the jvp rule"):
        nv.jvp(f, (POINT,), (POINT,))


@pytest.mark.parametrize("transform", ["jvp", "compile"])
def test_outputs_of_the_rule_are_those_of_the_function(transform: str) -> None:
    def tried(out: Any, tangent: Any) -> Any:
        f = ruled(lambda p, t: (out(p[0]), tangent(t[0])), nv.custom_vjp)
        if transform == "jvp":
            return nv.jvp(f, (POINT,), (POINT,))
        return nv.compile(f)(POINT)

    with pytest.raises(ShapeError, match=r"output of the function is float32\[3\], and of the jvp"):
        tried(lambda x: x[:2], lambda t: t[:2])
    with pytest.raises(TreeError, match=r"the jvp rule returns the output .* must be the same"):
        tried(lambda x: (x,), lambda t: (t,))


def test_a_function_with_an_if_of_its_own() -> None:
    @nv.custom_jvp
    def f(x: Any) -> Any:
        return x * 2 if float(x.sum()) > 0 else x

    f.defjvps(lambda t, out, x: t * 5)
    np.testing.assert_array_equal(nv.grad(total(f))(POINT), [5.0] * 3)
    np.testing.assert_array_equal(nv.grad(total(f))(-POINT), [5.0] * 3)
