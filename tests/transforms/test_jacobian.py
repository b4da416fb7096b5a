"""linearize, linear_transpose, jacfwd, jacrev, hessian."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec import distributed as nd
from nuvec.testing import recorded

x = nv.array([0.3, -0.7, 1.2])


def f(x: Any) -> Any:
    return nv.stack([nv.sin(x[0]) * x[1], x[2] ** 2, x.sum(), (x * x).sum()])


def scalar(x: Any) -> Any:
    return nv.tanh(nv.outer(x, x)).sum()


def numerical(f: Any, x: Any) -> np.ndarray:
    point, step = np.asarray(x).astype(np.float64), 1e-6
    columns = []
    for i in range(point.size):
        move = np.zeros_like(point)
        move[i] = step
        up, down = f(nv.array(point + move)), f(nv.array(point - move))
        columns.append((np.asarray(up) - np.asarray(down)) / (2 * step))
    return np.stack(columns, -1)


@pytest.mark.parametrize("jacobian", [nv.jacfwd, nv.jacrev])
@pytest.mark.parametrize("wrap", [lambda f: f, nv.compile], ids=["eager", "compiled"])
def test_jacobians(jacobian: Any, wrap: Any) -> None:
    np.testing.assert_allclose(wrap(jacobian(f))(x), numerical(f, x), atol=1e-5)


def test_hessian_in_every_order_of_modes() -> None:
    expected = numerical(nv.grad(scalar), x)
    for h in (
        nv.hessian(scalar),
        nv.jacfwd(nv.jacfwd(scalar)),
        nv.jacrev(nv.jacrev(scalar)),
        nv.jacrev(nv.jacfwd(scalar)),
        nv.compile(nv.hessian(scalar)),
        lambda x: nv.vmap(nv.hessian(scalar))(nv.stack([x, x]))[1],
    ):
        np.testing.assert_allclose(h(x), expected, atol=1e-5)


@pytest.mark.parametrize("jacobian", [nv.jacfwd, nv.jacrev])
def test_trees_and_argnums(jacobian: Any) -> None:
    def g(d: Any, y: Any) -> Any:
        return {"p": d["a"] * y, "q": (d["b"] @ d["b"].T).sum(0)}

    d, y = {"a": nv.array([1.0, 2.0]), "b": nv.ones((2, 3))}, nv.array(2.0)
    by_d, by_y = jacobian(g, argnums=(0, 1))(d, y)["p"]
    assert by_d["a"].tolist() == [[2, 0], [0, 2]]
    assert by_d["b"].shape == (2, 2, 3)
    assert by_y.tolist() == [1, 2]
    assert jacobian(g, argnums=-1)(d, y)["q"].tolist() == [0, 0]


@pytest.mark.parametrize("jacobian", [nv.jacfwd, nv.jacrev, nv.hessian])
def test_aux(jacobian: Any) -> None:
    result, aux = jacobian(lambda x: (scalar(x), {"n": x.sum()}), has_aux=True)(x)
    np.testing.assert_array_equal(result, jacobian(scalar)(x))
    assert set(aux) == {"n"}


def test_holomorphic() -> None:
    z = nv.array([1 + 2j, 0.5j])
    found = nv.jacrev(lambda z: z * z, holomorphic=True)(z)
    np.testing.assert_allclose(found, np.diag(2 * np.asarray(z)))
    np.testing.assert_allclose(nv.jacfwd(lambda z: z * z, holomorphic=True)(z), found)
    with pytest.raises(TypeError, match="holomorphic=True"):
        nv.jacfwd(lambda z: z * z)(z)
    with pytest.raises(TypeError, match="complex"):
        nv.jacrev(nv.sin, holomorphic=True)(x)


def test_integers_are_refused() -> None:
    with pytest.raises(TypeError, match="float32"):
        nv.jacfwd(lambda n: n * 2.0)(nv.array([1, 2]))
    with pytest.raises(TypeError, match="output is"):
        nv.jacrev(lambda x: x > 0)(x)


def test_linearize_evaluates_the_function_once() -> None:
    def on_rank(group: Any) -> Any:
        group, calls = recorded(group)
        y, push = nv.linearize(lambda x: nv.sin(nd.all_sum(x, group)), x)
        nv.eval(y)
        once = len(calls)
        pushed = [push(nv.ones(3) * k) for k in (1, 2)]
        nv.eval(pushed)
        return y, pushed, once, len(calls)

    for y, pushed, once, calls in nd.run_local(on_rank, 2):
        assert (once, calls) == (1, 3)
        np.testing.assert_allclose(y, np.sin(2 * np.asarray(x)), rtol=1e-6)
        np.testing.assert_allclose(pushed[1], 4 * np.cos(2 * np.asarray(x)), rtol=1e-5)


def test_linearize_under_vmap_compile_and_with_aux() -> None:
    y, push, aux = nv.linearize(lambda x: (f(x), x), x, has_aux=True)
    assert aux is not None
    columns = nv.vmap(push)(nv.eye(3))
    np.testing.assert_allclose(columns.T, nv.jacrev(f)(x), rtol=1e-6)
    np.testing.assert_allclose(nv.compile(push)(nv.ones(3)), push(nv.ones(3)), rtol=1e-6)
    assert y.shape == (4,)


def test_linearize_checks_its_tangents() -> None:
    _, push = nv.linearize(lambda d: d["a"] * 2, {"a": x})
    with pytest.raises(nv.TreeError, match="structure"):
        push({"b": x})
    with pytest.raises(nv.ShapeError, match=r"\(2,\)"):
        push({"a": nv.ones(2)})
    with pytest.raises(nv.DtypeError, match="float64"):
        push({"a": nv.ones(3, dtype=nv.float64)})


LINEAR = {
    "scale and slice": lambda x: 3 * x[::2],
    "quotient": lambda x: x / nv.array([1.0, 2.0, 4.0]),
    "select": lambda x: nv.where(nv.array([True, False, True]), x, 0.0),
    "matmul": lambda x: nv.ones((2, 3)) @ x - x[0],
    "gather": lambda x: x[nv.array([0, 0, 2])].reshape(3, 1).T,
    "concatenate": lambda x: nv.concatenate([x, -x, nv.flip(x)]),
    "sum": lambda x: nv.broadcast_to(x.sum(), (2, 2)),
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_transpose(name: str) -> None:
    f = LINEAR[name]
    out = f(x)
    c = nv.array(np.random.default_rng(0).normal(size=out.shape).astype(np.float32))
    (found,) = nv.linear_transpose(f, nv.zeros(3))(c)
    np.testing.assert_allclose((c * out).sum(), (found * x).sum(), rtol=1e-5)


@pytest.mark.parametrize(
    ("f", "name"),
    [
        (lambda x: x * x, "multiply"),
        (lambda x: x + 1, "add"),
        (nv.sin, "sin"),
        (lambda x: 1 / x, "divide"),
        (nv.max, "max"),
        (lambda x: x @ x, "dot_general"),
    ],
)
def test_linear_transpose_refuses_what_is_not_linear(f: Any, name: str) -> None:
    with pytest.raises(nv.NuvecError, match=f"not linear.*{name}"):
        nv.linear_transpose(f, nv.zeros(3))


def test_jacobians_of_nothing() -> None:
    for jac in (nv.jacfwd, nv.jacrev, nv.hessian):
        assert jac(lambda x: x * x, argnums=())(2.0) == ()
        assert jac(lambda x: None)(2.0) is None
