"""A rule that returns what does not belong to its operand or result is refused, and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import nuvec as nv
from nuvec.core.ir import aval
from nuvec.core.ops.build import elementwise_rule
from nuvec.core.primitive import MINUS_ONE, NOT_DIFFERENTIABLE, ONE, TABLE, Primitive

Function = Callable[..., Any]


pytestmark = pytest.mark.usefixtures("own_primitives")


def own(**rules: Any) -> Function:
    """`test.own`, which is sin unless the rules say otherwise."""
    full: dict[str, Any] = {
        "lower": lambda x: x, "shape_rule": lambda x: x, "kind": "other",
        "vmap": lambda size, axes, x: (x, axes[0]), **rules,
    }  # fmt: skip
    return Primitive("test.own", **full).bind


def grad(f: Function, x: Any) -> Any:
    return nv.grad(lambda x: nv.sum(nv.real(f(x))))(x)


def jvp(f: Function, x: Any) -> Any:
    return nv.jvp(f, (x,), (nv.ones_like(x),))


def compiled_grad(f: Function, x: Any) -> Any:
    return nv.compile(nv.grad(lambda x: nv.sum(f(x))))(x)


def grad_of_compiled(f: Function, x: Any) -> Any:
    return nv.grad(lambda x: nv.sum(nv.compile(f)(x)))(x)


def linearized(f: Function, x: Any) -> Any:
    return nv.linearize(f, x)[1](nv.ones_like(x))


REVERSE = (grad, compiled_grad, grad_of_compiled)
FORWARD = (jvp, linearized)
X = nv.array([1.0, 2.0, 3.0])

# What a rule returns for X (float32[3]) instead of what it should, and what the error says.
WRONG: list[tuple[Any, str]] = [
    (lambda c: nv.sum(c), r"float32\[\]"),
    (lambda c: c[:2], r"float32\[2\]"),
    (lambda c: nv.stack([c, c]), r"float32\[2,3\]"),
    (lambda c: c[:, None], r"float32\[3,1\]"),
    (lambda c: c.astype(nv.float64), r"float64\[3\]"),
    (lambda c: c.astype(nv.float16), r"float16\[3\]"),
    (lambda c: c.astype(nv.int32), r"int32\[3\]"),
    (lambda c: c.astype(nv.complex64), r"complex64\[3\]"),
    (lambda c: "c", r"a str"),
    (lambda c: [c, c], r"a list"),
]


@pytest.mark.parametrize("transform", REVERSE)
@pytest.mark.parametrize(("wrong", "says"), WRONG)
@pytest.mark.parametrize("name", ["vjp", "transpose"])
def test_cotangents(transform: Any, wrong: Function, says: str, name: str) -> None:
    reverse: dict[str, Any] = {name: lambda i, c, out, x: wrong(c)}
    f = own(**reverse, **({"jvp": lambda ts, out, x: ts[0]} if name == "vjp" else {}))
    text = rf"the {name} of test.own returned a cotangent that is {says}, .*float32\[3\]"
    with pytest.raises(nv.NuvecError, match=text):
        transform(f, X)


@pytest.mark.parametrize("transform", FORWARD)
@pytest.mark.parametrize(("wrong", "says"), WRONG)
def test_tangents(transform: Any, wrong: Function, says: str) -> None:
    f = own(jvp=lambda ts, out, x: wrong(ts[0]), vjp=lambda i, c, out, x: c)
    text = rf"the jvp of test.own returned a tangent that is {says}, .*float32\[3\]"
    with pytest.raises(nv.NuvecError, match=text):
        transform(f, X)


def elementwise(*derivatives: Any, lower: Any = lambda x: x) -> Function:
    return Primitive(
        "test.own", lower, elementwise_rule("test.own"), "elementwise", derivatives=derivatives
    ).bind


# A derivative may be any array that broadcasts to the result, of a dtype that keeps the result's.
DERIVATIVES: list[tuple[Any, str]] = [
    (lambda out, x: nv.stack([x, x]), r"float32\[2,3\]"),
    (lambda out, x: x[:2], r"float32\[2\]"),
    (lambda out, x: x[:, None], r"float32\[3,"),
    (lambda out, x: x.astype(nv.float64), r"float64\[3\]"),
    (lambda out, x: x.astype(nv.complex64), r"complex64\[3\]"),
    (lambda out, x: None, "a NoneType"),
    (lambda out, x: "x", "a str"),
]


@pytest.mark.parametrize("transform", [*REVERSE, *FORWARD])
@pytest.mark.parametrize(("derivative", "says"), DERIVATIVES)
def test_derivatives(transform: Any, derivative: Function, says: str) -> None:
    text = rf"the derivatives of test.own returned .*{says}.*float32\[3\]"
    with pytest.raises(nv.NuvecError, match=text):
        transform(elementwise(derivative), X)


def test_derivatives_that_broadcast_are_right() -> None:
    for derivative in (lambda out, x: 2.0, lambda out, x: nv.array(2), lambda out, x: x[:1] * 2):
        f = elementwise(derivative)
        assert grad(f, X).tolist() == [2, 2, 2]
        assert jvp(f, X)[1].tolist() == [2, 2, 2]
        del TABLE["test.own"]
    product = elementwise(
        lambda out, x, y: y, lambda out, x, y: x, lower=lambda x, y: x * y
    )  # operands that are broadcast
    gx, gy = nv.grad(lambda x, y: product(x, y).sum(), (0, 1))(X, nv.ones((2, 3)))
    assert gx.tolist() == [2, 2, 2] and gy.shape == (2, 3)


@pytest.mark.parametrize("one", [ONE, MINUS_ONE])
def test_a_constant_derivative_between_dtypes(one: Any) -> None:
    """d/dx of a conversion is no ONE: the cotangent has the result's dtype."""
    f = Primitive(
        "test.own", lambda x: x.astype("float64"), lambda x: aval(x.shape, nv.float64),
        "elementwise", derivatives=(one,),
    ).bind  # fmt: skip
    with pytest.raises(nv.NuvecError, match=r"derivatives of test.own .*float64\[3\].* float32\["):
        grad(f, X)
    with pytest.raises(nv.NuvecError, match=r"derivatives of test.own .*float32\[3\].* float64\["):
        jvp(f, X)


def pair(**rules: Any) -> Function:
    return own(
        lower=lambda x, y: (x, y), shape_rule=lambda x, y: (x, y), multiple=True,
        vmap=lambda size, axes, x, y: ([x, y], list(axes)), **rules,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda a, b: a, "cotangent .*for each of the 2 operands, and it returned a"),
        (lambda a, b: [a], "for each of the 2 operands, and it returned 1"),
        (lambda a, b: [a, b, b], "for each of the 2 operands, and it returned 3"),
        (lambda a, b: [b, a], r"a cotangent that is float32\[2\], and operand 0 is float32\[3\]"),
        (lambda a, b: [a, a], r"a cotangent that is float32\[3\], and operand 1 is float32\[2\]"),
    ],
)
def test_several_results(wrong: Function, says: str) -> None:
    f = pair(jvp=lambda ts, outs, x, y: wrong(*ts), vjp=lambda cs, outs, x, y: wrong(*cs))

    def total(x: Any, y: Any) -> Any:
        return sum(nv.sum(o) for o in f(x, y))

    with pytest.raises(nv.NuvecError, match=f"the vjp of test.own .*{says}"):
        nv.grad(total, (0, 1))(X, X[:2])
    says = says.replace("cotangent", "tangent").replace("operand", "result")
    with pytest.raises(nv.NuvecError, match=f"the jvp of test.own .*{says}"):
        nv.jvp(total, (X, X[:2]), (X, X[:2]))


def test_none_is_zero_and_integer_operands_are_not_looked_at() -> None:
    f = pair(
        jvp=lambda ts, outs, x, y: [ts[0], None], vjp=lambda cs, outs, x, y: [cs[0], "nothing"]
    )
    g = nv.grad(lambda x: f(x, nv.array([1, 2]))[0].sum())(X)
    assert g.tolist() == [1, 1, 1]
    assert nv.jvp(lambda x: f(x, nv.array([1, 2]))[0], (X,), (X,))[1].tolist() == X.tolist()


def test_the_linear_part_of_an_own_higher_order_primitive() -> None:
    def split(trace: Any, operands: Any, params: Any) -> Any:
        return [operands[0] * 1], lambda moving: [nv.sum(moving[0])]

    f = Primitive(
        "test.own", lambda x: (x,), lambda x: (x,), "other", multiple=True, split=split,
        vmap=lambda size, axes, x: ([x], list(axes)),
    ).bind  # fmt: skip
    for transform in (grad, jvp):
        with pytest.raises(nv.ShapeError, match=r"linear part of test.own .*float32\[\].*\[3\]"):
            transform(lambda x: f(x)[0], X)


def test_a_weak_scalar_takes_the_dtype() -> None:
    x = nv.array(2.0, nv.float64)
    f = own(jvp=lambda ts, out, x: 3.0, vjp=lambda i, c, out, x: 3.0)
    assert nv.grad(f)(x).dtype == nv.float64 and nv.grad(f)(x) == 3
    assert nv.jvp(f, (x,), (x,))[1].dtype == nv.float64


def test_what_has_no_derivative_is_not_asked() -> None:
    f = own(jvp=NOT_DIFFERENTIABLE, vjp=NOT_DIFFERENTIABLE)
    assert nv.grad(lambda x: nv.sum(f(x) + x))(X).tolist() == [1, 1, 1]
