"""grad, value_and_grad and vjp: signatures, structures, kinks, errors."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.array import from_numpy
from nuvec.core.errors import DtypeError, LeakedTracerError, ShapeError, TreeError
from nuvec.core.node import context
from nuvec.core.ops.differentiation import stop_gradient
from nuvec.transforms.grad import grad, value_and_grad, vjp


def loss(p: Any, x: Any, scale: Any = 1.0) -> Any:
    return nv.sum(nv.tanh(x @ p["w"] + p["b"])) * scale


P = {"w": np.ones((3, 2), np.float32), "b": np.zeros(2, np.float32)}
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_trees_of_parameters() -> None:
    g = grad(loss)(P, X)
    assert sorted(g) == ["b", "w"]
    assert g["w"].shape == (3, 2) and g["w"].dtype == np.float32
    np.testing.assert_allclose(g["b"], np.sum(1 - np.tanh(X @ P["w"]) ** 2, 0), rtol=1e-4)


def test_argnums_and_argnames() -> None:
    first, second = grad(loss, argnums=(0, 1))(P, X)
    assert sorted(first) == ["b", "w"] and second.shape == X.shape
    only = grad(loss, argnums=-1)(P, X)
    np.testing.assert_array_equal(only, second)
    named = grad(loss, argnames="scale")(P, X, scale=2.0)
    np.testing.assert_allclose(named["scale"], loss(P, X), rtol=1e-6)
    by_position, by_name = grad(loss, argnums=1, argnames=("scale",))(P, X, scale=2.0)
    np.testing.assert_allclose(by_position, 2 * np.asarray(second), rtol=1e-6)
    assert set(by_name) == {"scale"}
    with pytest.raises(TypeError, match="argnames='scale' must be passed by keyword"):
        grad(loss, argnames="scale")(P, X, 2.0)
    with pytest.raises(TypeError, match="argnums=5"):
        grad(loss, argnums=5)(P, X)


def test_has_aux() -> None:
    def f(x: Any) -> Any:
        return nv.sum(x * x), {"x": x, "n": 3}

    (value, aux), g = value_and_grad(f, has_aux=True)(nv.array([1.0, 2.0]))
    assert value.item() == 5 and aux["n"] == 3 and g.tolist() == [2, 4]
    g, aux = grad(f, has_aux=True)(nv.array([1.0, 2.0]))
    assert g.tolist() == [2, 4]
    assert aux["x"].tolist() == [1, 2]
    _, pull, aux = vjp(f, nv.array([1.0, 2.0]), has_aux=True)
    assert pull(1.0)[0].tolist() == [2, 4]
    with pytest.raises(TreeError, match="has_aux"):
        grad(lambda x: x, has_aux=True)(1.0)


def test_what_cannot_be_differentiated() -> None:
    with pytest.raises(TypeError, match=r"real scalar.*float32\[2\].*sum"):
        grad(lambda x: x)(nv.ones(2))
    with pytest.raises(TypeError, match=r"real scalar.*complex64"):
        grad(lambda x: x * 1j)(1.0)
    with pytest.raises(TypeError, match="has_aux"):
        grad(lambda x: (x, x))(1.0)
    with pytest.raises(DtypeError, match=r"argument 'x'.*int32.*argnums"):
        grad(lambda x: x * 1.0)(nv.array(1))
    with pytest.raises(DtypeError, match=r"argument 'p'\['n'\]"):
        grad(lambda p: p["w"] * 1.0)({"w": nv.array(1.0), "n": nv.array(1)})
    with pytest.raises(TypeError, match="takes a function"):
        grad(3.0)  # type: ignore[arg-type]


def test_an_output_that_does_not_depend_on_the_input() -> None:
    assert grad(lambda x: nv.array(1.0))(2.0).item() == 0
    assert grad(lambda x: 1.0)(nv.ones(2)).tolist() == [0, 0]
    assert grad(lambda x: stop_gradient(x) * 2.0)(2.0).item() == 0


def test_the_output_is_the_input() -> None:
    assert grad(lambda x: x)(2.0).item() == 1
    _, pull = vjp(lambda x: (x, x, x + x), nv.array(1.0))
    assert pull((1.0, 10.0, 100.0))[0].item() == 211
    assert vjp(lambda x, y: y, 1.0, 2.0)[1](3.0)[0].item() == 0


def test_branches_on_traced_values() -> None:
    def f(x: Any) -> Any:
        total = x
        while total < 10:
            total = total * total
        return total if x > 0 else -total

    assert grad(f)(nv.array(2.0)).item() == 4 * 2**3  # ((x^2)^2)
    assert int(nv.array(3)) == 3


def test_evaluating_the_output_before_pulling_and_pulling_twice() -> None:
    def f(x: Any) -> Any:
        y = nv.sin(x)
        return y * y

    y, pull = vjp(f, from_numpy(np.array([0.5, 1.0])))
    nv.eval(y)
    expected = 2 * np.sin([0.5, 1.0]) * np.cos([0.5, 1.0])
    for c in (1.0, 2.0):
        found = pull(nv.full(2, c, dtype=np.float64))[0]
        np.testing.assert_allclose(found, c * expected, rtol=1e-12)
        nv.eval(found)


def test_pull_checks_its_cotangent() -> None:
    _, pull = vjp(lambda x: (x, x * 2), nv.ones(2))
    with pytest.raises(TreeError, match="structure"):
        pull(nv.ones(2))
    with pytest.raises(ShapeError, match=r"\(2,\).*\(3,\)"):
        pull((nv.ones(2), nv.ones(3)))
    with pytest.raises(DtypeError, match=r"astype\('float32'\)"):
        pull((nv.ones(2), nv.ones(2, dtype=np.float64)))
    assert pull((None, nv.ones(2)))[0].tolist() == [2, 2]
    _, pull = vjp(lambda x, n: x * n, nv.ones(2), nv.array(3))
    x, n = pull(nv.ones(2))
    assert x.tolist() == [3, 3] and n is None


def test_assignments_are_differentiable_and_local() -> None:
    x = nv.array([1.0, 2.0, 3.0])

    def f(x: Any) -> Any:
        y = x * 1
        x[0] = 5.0
        x += y * x
        y[1:] *= 3
        return nv.sum(x * y)

    found = grad(f)(x)
    assert x.tolist() == [1, 2, 3]
    # (5 + 5 x0) x0 + sum over 1, 2 of (x + x^2) 3 x
    np.testing.assert_allclose(found, [5 + 10 * 1, 6 * 2 + 9 * 4, 6 * 3 + 9 * 9], rtol=1e-6)


def test_assigning_a_traced_value_into_an_outer_array_raises() -> None:
    kept = nv.zeros(2)

    def f(x: Any) -> Any:
        kept[0] = x
        return x

    with pytest.raises(LeakedTracerError):
        grad(f)(1.0)
    assert kept.tolist() == [0, 0]
    assert context.traces == ()


def test_turning_a_differentiated_value_into_numpy_raises() -> None:
    with pytest.raises(TypeError, match=r"nv\.X|stop_gradient"):
        grad(lambda x: np.asarray(x).sum())(nv.ones(2))
    assert grad(lambda x: np.sum(np.exp(x)))(nv.zeros(2)).tolist() == [1, 1]


KINKS = {
    "abs": (lambda x: nv.abs(x), 0.0, 0.0),
    "maximum tie": (lambda x: nv.maximum(x, 1.0), 1.0, 0.5),
    "max tie": (lambda x: nv.max(nv.stack([x, x * 1, x - 1])), 1.0, 1.0),
    "sqrt": (lambda x: nv.sqrt(x), 0.0, np.inf),
    "norm": (lambda x: nv.linalg.norm(nv.stack([x, x])), 0.0, 0.0),
    "std": (lambda x: nv.std(nv.stack([x, x])), 0.0, 0.0),
    "safe where": (lambda x: nv.where(x >= 0, x, nv.sqrt(-x)), 1.0, 1.0),
    "where with a pole": (lambda x: nv.where(x > 0, x, 1 / (x * 0)), 2.0, 1.0),
    "relu at a pole": (lambda x: nv.maximum(x, nv.log(x - x)), 3.0, 1.0),
    "nested selection": (lambda x: nv.where(x > 1, nv.exp(nv.log(nv.sqrt(x - 2))), x), 1.0, 1.0),
}


@pytest.mark.parametrize("name", KINKS)
def test_kinks_and_structural_zeros(name: str) -> None:
    f, at, expected = KINKS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = from_numpy(np.float64(at))
        assert grad(f)(x).item() == expected
        assert nv.jvp(f, (x,), (from_numpy(np.float64(1)),))[1].item() == expected
        assert nv.compile(grad(f))(x).item() == expected
        assert nv.vmap(grad(f))(nv.stack([x, x])).tolist() == [expected, expected]


def test_complex_follows_jax() -> None:
    z = from_numpy(np.complex128(1 + 2j))
    assert grad(lambda z: nv.real(z * z))(z).item() == 2 * (1 + 2j)  # no conjugation
    assert vjp(lambda z: z * z, z)[1](from_numpy(np.complex128(1)))[0].item() == 2 + 4j
    # |z|^2: 2 conj(z)
    assert grad(lambda z: nv.real(z * nv.conj(z)))(z).item() == 2 - 4j


def test_gradients_keep_their_dtype() -> None:
    for dtype in (np.float16, nv.bfloat16, np.float32, np.float64):
        x = nv.ones(3, dtype=dtype)
        value, g = value_and_grad(lambda x: nv.sum(nv.exp(x) * 2))(x)
        assert value.dtype == g.dtype == dtype


def test_gradient_of_an_integer_python_scalar_is_refused() -> None:
    with pytest.raises(DtypeError):
        grad(lambda x: x * 1.0)(3)


FORMS: dict[str, Any] = {
    "plain": lambda f: f,
    "checkpoint": nv.checkpoint,
    "compile": nv.compile,
    "cond": lambda f: lambda x: nv.cond(nv.array(True), f, f, x),
    "scan": lambda f: lambda x: nv.scan(lambda c, _: (f(c), None), x, None, 1)[0],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("f", [lambda x: x * x, lambda x: x * 2, nv.sin])
def test_derivatives_at_python_numbers_are_weak_as_these_are(form: str, f: Any) -> None:
    g = FORMS[form](f)
    half = nv.ones((), nv.float16)
    found = [
        nv.grad(g)(2.0), nv.vjp(g, 2.0)[1](1.0)[0], *nv.jvp(g, (2.0,), (1.0,)),
        nv.linearize(g, 2.0)[1](1.0), nv.compile(nv.grad(g))(2.0),
    ]  # fmt: skip
    assert [(x + half).dtype for x in found] == [nv.float16] * len(found)
    strong = nv.grad(g)(nv.array(2.0))
    assert (strong + half).dtype == nv.float32


def test_cotangents_of_reads_are_added_in_place() -> None:
    rows, columns = nv.array([0, 2, 2]), nv.array([[1], [0], [1], [0]])

    def loss(x):
        read = nv.take(x, rows, axis=0) * 3.0
        picked = nv.take_along_axis(x, columns, axis=1) * x.sum()
        return (x * x).sum() + read.sum() + picked.sum() + x[1, 0]

    x = nv.arange(8.0).reshape(4, 2)
    ir = nv.make_ir(nv.grad(loss))(x)
    (along,) = [e for e in ir.eqns if e.primitive.name == "add_along"]
    assert along.inputs[0].aval.shape == (4, 2), "zeros and an addition"
    wide = np.arange(8.0).reshape(4, 2)
    picked = np.take_along_axis(wide, np.asarray(columns), 1).sum()
    expected = 2 * wide + picked
    np.add.at(expected, np.asarray(rows), 3.0)
    expected[np.arange(4), np.asarray(columns)[:, 0]] += wide.sum()
    expected[1, 0] += 1
    np.testing.assert_allclose(nv.grad(loss)(x), expected)
    np.testing.assert_allclose(nv.vmap(nv.grad(loss))(x[None])[0], expected)
    hessian = nv.hessian(lambda v: loss(v.reshape(4, 2)))(x.reshape(8))
    numeric = np.asarray(nv.jacfwd(nv.grad(lambda v: loss(v.reshape(4, 2))))(x.reshape(8)))
    np.testing.assert_allclose(hessian, numeric, rtol=1e-6)


def test_many_small_cotangents_do_not_vanish_in_a_large_one() -> None:
    rows = nv.zeros(100_000, dtype="int32")

    def loss(x):
        return (x * 1e7).sum() + (x[rows] * 0.25).sum()

    def along(x):
        index = rows.reshape(1, -1)
        return (x * 1e7).sum() + (nv.take_along_axis(x[None], index, axis=1) * 0.25).sum()

    for f in (loss, along, nv.compile(loss), nv.compile(along)):
        np.testing.assert_allclose(nv.grad(f)(nv.ones(2)), [10_025_000, 1e7], rtol=1e-6)
