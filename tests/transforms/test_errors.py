"""What a mistake says: the class, the place in the arguments, the user's line, and what to do."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.errors import (
    AxisError,
    ConcretizationError,
    DtypeError,
    LeakedTracerError,
    NuvecError,
    ShapeError,
    TreeError,
)

X = nv.array([1.0, 2.0])
W = {"w": X}
DOUBLE = np.ones(2)


@dataclass(frozen=True)
class Row:
    """call  -- what goes wrong; its line is the one that the message must name
    error    -- the class
    says     -- what the message must contain: the path, what is wrong, what to do
    """

    name: str
    call: Callable[[], Any]
    error: type[Exception]
    says: tuple[str, ...]


def _leaked(run: Callable[[Callable[..., Any]], Any]) -> Any:
    """What a function kept of its argument while `run` transformed it."""
    kept: list[Any] = []

    def f(x: Any, *rest: Any) -> Any:
        kept.append(x * 2)
        return (x, *rest) if rest else x

    run(f)
    return kept[0]


def _custom(fwd: Any, bwd: Any) -> Any:
    """The gradient of a function of {"w": x} with these rules."""

    @nv.custom_vjp
    def double(p: Any) -> Any:
        return p["w"] * 2

    double.defvjp(fwd, bwd)
    return lambda: nv.grad(lambda p: double(p).sum())(W)


def _through_custom(f: Any) -> Any:
    g = nv.custom_vjp(f)
    g.defvjp(lambda x: (f(x), None), lambda _, c: (c,))
    return nv.compile(lambda x: g(x))(X)


PULL = nv.vjp(lambda x: {"y": x * 2}, X)[1]


def fwd(p: Any) -> Any:
    return p["w"] * 2, None


LEAK = ("was kept from inside", "return it from the function instead")
ROWS = [
    # Leaked tracers
    Row("vmap", lambda: np.asarray(_leaked(lambda f: nv.vmap(f)(X))), LeakedTracerError,
        (*LEAK, "argument 'x' of f")),
    Row("compile", lambda: np.asarray(_leaked(lambda f: nv.compile(f)(X))), LeakedTracerError,
        (*LEAK, "argument 'x' of f")),
    Row("scan", lambda: np.asarray(_leaked(lambda f: nv.scan(f, 0.0, X))), LeakedTracerError,
        (*LEAK, "the body of scan")),
    Row("cond", lambda: np.asarray(_leaked(lambda f: nv.cond(X[0] > 0, f, f, X))),
        LeakedTracerError, (*LEAK, "branch of cond")),
    Row("custom", lambda: np.asarray(_leaked(_through_custom)), LeakedTracerError,
        (*LEAK, "custom_vjp")),
    Row("make_ir", lambda: np.asarray(_leaked(lambda f: nv.make_ir(f)(X))), LeakedTracerError,
        (*LEAK, "argument 'x' of f")),
    Row("used later", lambda: np.asarray(_leaked(lambda f: nv.compile(f)(X)) + 1),
        LeakedTracerError, LEAK),
    # Gradients of what is no real scalar
    Row("grad vector", lambda: nv.grad(lambda p: p["w"] * 2)(W), TypeError,
        ("real scalar", "float32[2]", "reduce it", ".sum()")),
    Row("grad tuple", lambda: nv.grad(lambda x: (x, x))(1.0), TypeError,
        ("real scalar", "float32[]", "has_aux=True")),
    Row("grad nothing", lambda: nv.grad(lambda x: None)(1.0), TypeError,
        ("real scalar", "None", "return statement")),
    Row("grad complex", lambda: nv.grad(lambda x: x)(1j), TypeError,
        ("real scalar", "complex64[]", "real part")),
    Row("grad integer output", lambda: nv.grad(lambda x: (x > 0).sum())(1.0), TypeError,
        ("real scalar", "int32[]", ".astype(nv.float32)")),
    Row("grad integer leaf", lambda: nv.grad(lambda p: p["w"].sum())({"w": X, "n": [1]}),
        DtypeError, ("argument 'p'['n'][0]", "int32[]", ".astype(nv.float32)", "argnums")),
    Row("grad of text", lambda: nv.grad(lambda p: p["w"])({"w": "text"}), DtypeError,
        ("argument 'p'['w']", "str", "pass an Array")),
    # Tangents
    Row("jvp structure", lambda: nv.jvp(lambda p: p["w"], (W,), ({"v": X},)), TreeError,
        ("tangents have another structure", "[0]", "Missing keys: 'w'")),
    Row("jvp count", lambda: nv.jvp(lambda x: x, (X,), (X, X)), TreeError,
        ("1 primals but 2 tangents", "one for each")),
    Row("jvp no tuple", lambda: nv.jvp(lambda x: x, X, X), TreeError,
        ("takes tuples", "nv.jvp(f, (x,), (dx,))")),
    Row("jvp dtype", lambda: nv.jvp(lambda p: p["w"], (W,), ({"w": DOUBLE},)), DtypeError,
        ("primals[0]['w'] is float32[2]", "tangent float64[2]", ".astype('float32')")),
    Row("jvp shape", lambda: nv.jvp(lambda p: p["w"], (W,), ({"w": nv.ones(3)},)), ShapeError,
        ("primals[0]['w'] has shape (2,)", "(3,)", "must be equal")),
    # Cotangents
    Row("vjp structure", lambda: PULL(X), TreeError,
        ("cotangents have another structure", "{'y': *}", "got a leaf")),
    Row("vjp shape", lambda: PULL({"y": nv.ones(3)}), ShapeError,
        ("output['y'] has shape (2,)", "(3,)", "must be equal")),
    Row("vjp dtype", lambda: PULL({"y": DOUBLE}), DtypeError,
        ("output['y'] is float32[2]", "float64[2]", ".astype('float32')")),
    # vmap's axes
    Row("out_axes None", lambda: nv.vmap(lambda x: {"a": x}, out_axes=None)(X), ShapeError,
        ("out_axes is None for output['a']", "differs", "give it an axis")),
    Row("out_axes range", lambda: nv.vmap(lambda x: {"a": x}, out_axes=3)(X), AxisError,
        ("out_axes for output['a']", "axis 3 is out of bounds", "use -1 to 0")),
    Row("out_axes structure", lambda: nv.vmap(lambda x: {"a": x}, out_axes={"b": 0})(X),
        TreeError, ("out_axes does not fit", "Missing keys: 'a'")),
    Row("out_axes count", lambda: nv.vmap(lambda x: (x, x), out_axes=(0, 0, 0))(X), TreeError,
        ("out_axes does not fit", "a tuple of 2", "a tuple of 3")),
    Row("in_axes range", lambda: nv.vmap(lambda p: p["w"], in_axes=({"w": 2},))(W), AxisError,
        ("in_axes for argument 'p'['w']", "axis 2 is out of bounds", "use -1 to 0")),
    Row("in_axes structure", lambda: nv.vmap(lambda p: p["w"], in_axes=({"v": 0},))(W),
        TreeError, ("in_axes for argument 'p'", "Missing keys: 'w'")),
    Row("sizes", lambda: nv.vmap(lambda a, b: a)(X, nv.ones(3)), ShapeError,
        ("argument 'a': axis 0, size 2", "argument 'b': axis 0, size 3", "one size")),
    Row("nothing mapped", lambda: nv.vmap(lambda a: a, in_axes=None)(X), ShapeError,
        ("nothing is mapped", "in_axes")),
    Row("value in vmap", lambda: nv.vmap(lambda x: x if x > 0 else -x)(X), ConcretizationError,
        ("argument 'x'", "nv.where or nv.cond")),
    # Custom rules
    Row("no rule", lambda: nv.custom_vjp(lambda x: x)(X), NuvecError, ("no rule yet", "defvjp")),
    Row("fwd no pair", _custom(lambda p: p["w"], lambda r, c: (c,)), TreeError,
        ("fwd must return a pair (output, residuals)", "returned Array")),
    Row("bwd no tuple", _custom(fwd, lambda r, c: {"w": c}), TreeError,
        ("bwd must return a tuple", "returned dict")),
    Row("bwd count", _custom(fwd, lambda r, c: (c, c)), TreeError,
        ("each of the 1 differentiable arguments", "returned 2")),
    Row("bwd structure", _custom(fwd, lambda r, c: ({"v": c},)), TreeError,
        ("bwd's cotangents for argument 0", "Missing keys: 'w'")),
    Row("bwd shape", _custom(fwd, lambda r, c: ({"w": c.sum()},)), ShapeError,
        ("bwd's cotangent for argument 0['w'] has shape ()", "(2,)", "must be equal")),
    Row("bwd dtype", _custom(fwd, lambda r, c: ({"w": c.astype(nv.float64)},)), DtypeError,
        ("bwd's cotangent for argument 0['w'] is float64[2]", ".astype('float32')")),
    # Control flow
    Row("carry structure", lambda: nv.scan(lambda c, _: ({"b": c["w"]}, None), W, length=2),
        TreeError, ("the carry", "its next value", "Missing keys: 'w'")),
    Row("carry shape", lambda: nv.scan(lambda c, _: ({"w": c["w"][:1]}, None), W, length=2),
        ShapeError, ("output['w'] has shape (2,) in the carry", "(1,)", "must be equal")),
    Row("carry dtype",
        lambda: nv.scan(lambda c, _: ({"w": c["w"].astype(nv.float64)}, None), W, length=2),
        DtypeError, ("output['w'] is float32[2] in the carry", "float64[2]", ".astype")),
    Row("body no pair", lambda: nv.scan(lambda c, _: c, X, length=2), TreeError,
        ("must return a pair (next carry, y)", "return carry, None")),
    Row("scan sizes", lambda: nv.scan(lambda c, _: (c, None), X, {"a": X, "b": nv.ones(3)}),
        ShapeError, ("xs['a']: 2", "xs['b']: 3")),
    Row("scan scalar", lambda: nv.scan(lambda c, _: (c, None), X, {"a": 1.0}), ShapeError,
        ("xs['a'] is a scalar", "leading axis")),
    Row("branch structure", lambda: nv.cond(X[0] > 0, lambda x: {"a": x}, lambda x: {"b": x}, X),
        TreeError, ("the false branch", "the true branch", "Missing keys")),
    Row("branch shape", lambda: nv.cond(X[0] > 0, lambda x: [x], lambda x: [x[0]], X),
        ShapeError, ("output[0] has shape", "the false branch", "must be equal")),
    Row("branch dtype",
        lambda: nv.cond(X[0] > 0, lambda x: [x], lambda x: [x.astype(nv.float64)], X), DtypeError,
        ("output[0] is float", "the true branch", ".astype")),
    Row("predicate shape", lambda: nv.cond(X > 0, lambda x: x, lambda x: x, X), ShapeError,
        ("boolean scalar", "bool[2]", "nv.where")),
    Row("predicate dtype", lambda: nv.cond(X[0], lambda x: x, lambda x: x, X), DtypeError,
        ("boolean scalar", "float32[]", "x > 0")),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_an_error_says_where_and_what_to_do(row: Row) -> None:
    with pytest.raises(row.error) as caught:
        row.call()
    text = str(caught.value)
    for part in row.says:
        assert part in text, text
    assert isinstance(caught.value, NuvecError)
    lines, first = inspect.getsourcelines(row.call)
    named = [f"test_errors.py:{first + k} (in " for k in range(len(lines))]
    assert any(place in text for place in named), f"{text}\nnames none of {named}"


def test_a_line_inside_a_traced_function_is_the_one_that_is_named() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        return nv.scan(lambda c, _: (c[:1], None), y, length=3)[0]

    with pytest.raises(ShapeError, match=r"test_errors\.py:\d+ \(in f\)") as caught:
        nv.grad(lambda x: nv.compile(f)(x).sum())(X)
    assert str(caught.value).count("test_errors.py") == 1
    assert "the carry" in str(caught.value)
