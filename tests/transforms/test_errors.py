"""What a mistake says: the class, the place in the arguments, the user's line, and what to do."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.errors import (
    ArgumentError,
    AxisError,
    ConcretizationError,
    DistributedError,
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


N = {"n": nv.array([3])}


def _at_n(p: Any) -> Any:
    return p["n"] * 2.0


def _wide_rule() -> Any:
    @nv.custom_jvp
    def double(x: Any) -> Any:
        return x * 2

    double.defjvp(lambda primals, tangents: (primals[0] * 2, tangents[0].astype(nv.float64)))
    return double


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
PUSH = nv.linearize(lambda x: x * 2, X)[1]
TRANSPOSED = nv.linear_transpose(lambda x: x * 2, X)


def fwd(p: Any) -> Any:
    return p["w"] * 2, None


def _leaked_group() -> Any:
    """The group of a mapped axis that is mapped no more."""
    kept: list[Any] = []

    def f(x: Any) -> Any:
        kept.append(nv.distributed.axis_group("a"))
        return x

    nv.vmap(f, axis_name="a")(X)
    return kept[0]


def _leaked_rank() -> Any:
    kept: list[Any] = []

    def f(x: Any) -> Any:
        kept.append(nv.distributed.axis_group("a").rank())
        return x

    nv.vmap(f, axis_name="a")(X)
    return kept[0]


TEXT = {"w": "text"}
GONE = ("mapped axis 'a'", "return the result from the mapped function instead")
LEAK = ("was kept from inside", "return it from the function instead")
ROWS = [
    # Functions, and which of their arguments are meant
    *[Row(f"{t.__name__} of no function", lambda t=t: t(3, X), ArgumentError,
          (f"{t.__name__} takes a function", "got int"))
      for t in (nv.vjp, nv.linearize, nv.linear_transpose, nv.map, nv.associative_scan)],
    *[Row(f"{t.__name__} of no function", lambda t=t: t(3), ArgumentError,
          (f"{t.__name__} takes a function", "got int"))
      for t in (nv.grad, nv.value_and_grad, nv.jacfwd, nv.jacrev, nv.hessian, nv.vmap, nv.compile,
                nv.vectorize, nv.checkpoint, nv.make_ir)],
    Row("jvp of no function", lambda: nv.jvp(3, (X,), (X,)), ArgumentError,
        ("jvp takes a function", "got int")),
    *[Row(f"{t.__name__} argnums", lambda t=t: t(lambda x: x.sum(), argnums=2)(X), ArgumentError,
          (f"{t.__name__} of <lambda>", "argnums=2 names no positional argument", "has 1"))
      for t in (nv.grad, nv.value_and_grad, nv.jacfwd, nv.jacrev, nv.hessian)],
    *[Row(f"{t.__name__} argnums twice", lambda t=t: t(lambda x: x, argnums=(0, -1))(X),
          ArgumentError, (f"{t.__name__} of <lambda>: argnums=(0, -1) names an argument twice",))
      for t in (nv.grad, nv.value_and_grad, nv.jacfwd, nv.jacrev, nv.hessian)],
    *[Row(f"{t.__name__} argnums type", lambda t=t: t(lambda x: x, argnums=1.0), ArgumentError,
          (f"{t.__name__} of <lambda>", "argnums must be an integer or a sequence", "1.0"))
      for t in (nv.grad, nv.value_and_grad, nv.jacfwd, nv.jacrev, nv.hessian)],
    Row("argnames", lambda: nv.value_and_grad(lambda x: x, argnames="y")(X), ArgumentError,
        ("value_and_grad of <lambda>", "argnames='y' must be passed by keyword")),
    Row("argnames type", lambda: nv.grad(lambda x: x, argnames=3), ArgumentError,
        ("argnames must be a name or a sequence of names", "3")),
    *[Row(f"{t.__name__} pair", lambda t=t: t(lambda x: x, has_aux=True)(X), TreeError,
          (f"{t.__name__} of <lambda>", "has_aux=True", "(output, aux)", "returned Array"))
      for t in (nv.grad, nv.value_and_grad, nv.jacfwd, nv.jacrev, nv.hessian)],
    Row("vmap arguments", lambda: nv.vmap(lambda x: x)(X, X), ArgumentError,
        ("vmap of <lambda>: too many positional arguments", "it takes (x)")),
    # Outputs and arguments that are no arrays
    *[Row(f"{t.__name__} of text", lambda t=t: t(lambda p: p)(TEXT), DtypeError,
          (f"{t.__name__} of <lambda>: argument 'p'['w'] is a str", "pass an Array"))
      for t in (nv.grad, nv.value_and_grad, nv.jacfwd, nv.jacrev, nv.hessian, nv.vmap, nv.compile,
                nv.checkpoint, nv.make_ir)],
    *[Row(f"{t.__name__} output", lambda t=t: t(lambda x: TEXT)(X), DtypeError,
          (f"{t.__name__} of <lambda>: output['w'] is a str", "pass an Array"))
      for t in (nv.grad, nv.value_and_grad, nv.jacfwd, nv.jacrev, nv.hessian, nv.vmap, nv.compile,
                nv.checkpoint, nv.make_ir)],
    *[Row(f"{t.__name__} of text", lambda t=t: t(lambda p: p, TEXT), DtypeError,
          (f"{t.__name__} of <lambda>: primals[0]['w'] is a str", "pass an Array"))
      for t in (nv.vjp, nv.linearize, nv.linear_transpose)],
    *[Row(f"{t.__name__} output", lambda t=t: t(lambda x: TEXT, X), DtypeError,
          (f"{t.__name__} of <lambda>: output['w'] is a str", "pass an Array"))
      for t in (nv.vjp, nv.linearize, nv.linear_transpose)],
    Row("jvp output", lambda: nv.jvp(lambda x: TEXT, (X,), (X,)), DtypeError,
        ("jvp of <lambda>: output['w'] is a str", "pass an Array")),
    Row("stop_gradient of text", lambda: nv.stop_gradient(TEXT), DtypeError,
        ("stop_gradient: x['w'] is a str", "pass an Array")),
    # Jacobians
    Row("jacfwd integer", lambda: nv.jacfwd(lambda p: p["w"])({"w": nv.array([1])}), DtypeError,
        ("jacfwd of <lambda>: argument 'p'['w'] is int32[1]", ".astype(nv.float32)")),
    Row("hessian complex", lambda: nv.hessian(lambda x: x.sum())(X * 1j), DtypeError,
        ("hessian of <lambda>: argument 'x' is complex64[2]", "holomorphic=True where",
         "real and imaginary parts")),
    Row("holomorphic of real", lambda: nv.jacrev(lambda x: x, holomorphic=True)(X), DtypeError,
        ("jacrev of <lambda>: argument 'x' is float32[2]", "leave out holomorphic=True",
         ".astype(nv.complex64)")),
    # compile
    Row("unhashable", lambda: nv.compile(lambda x, y: x, static_argnums=1)(X, [1]), ArgumentError,
        ("compile of <lambda>", "argument 1 is a list", "hashable", "a tuple")),
    Row("static_argnums", lambda: nv.compile(lambda x: x, static_argnums=3), ArgumentError,
        ("compile of <lambda>: static_argnums=[3]", "has 1 positional")),
    Row("donate_argnums", lambda: nv.compile(lambda x: x, donate_argnums=3), ArgumentError,
        ("compile of <lambda>: donate_argnums=[3]", "has 1 positional")),
    Row("static type", lambda: nv.compile(lambda x: x, static_argnums="x"), ArgumentError,
        ("static_argnums must be an integer", "'x'")),
    Row("policy", lambda: nv.checkpoint(lambda x: x, policy=3), ArgumentError,
        ("checkpoint: policy must be a name or a function", "3")),
    # Leaked tracers
    Row("rank", lambda: np.asarray(_leaked_rank()), LeakedTracerError, GONE),
    Row("rank, used", lambda: np.asarray(_leaked_rank() + 1), LeakedTracerError, GONE),
    Row("rank, compiled", lambda: nv.compile(lambda x, r: x + r)(X, _leaked_rank()),
        LeakedTracerError, GONE),
    Row("group", lambda: _leaked_group().rank(), DistributedError,
        ("rank(): the mapped axis 'a' exists only inside the vmap", "axis_group in the mapped")),
    Row("group barrier", lambda: _leaked_group().barrier(), DistributedError,
        ("barrier: the mapped axis 'a' exists only inside the vmap",)),
    Row("group split", lambda: _leaked_group().split(1), DistributedError,
        ("split of the mapped axis 'a'", "nest two vmaps")),
    Row("group communicator", lambda: _leaked_group().communicator, LeakedTracerError, GONE),
    Row("axis_group", lambda: nv.distributed.axis_group("b"), DistributedError,
        ("axis_group('b')", "no vmap around this call", "axis_name='b'")),
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
    *[Row(f"jvp integer, {what}", call, DtypeError,
          ("primals[0]['n'] is int32[1], which has no derivative", says, "pass None", "zeros"))
      for what, call, says in (
          ("floating", lambda: nv.jvp(_at_n, (N,), ({"n": np.zeros(1)},)), "float64[1]"),
          ("not zero", lambda: nv.jvp(_at_n, (N,), ({"n": np.ones(1, int)},)), "and not zero"),
          ("linearized", lambda: nv.linearize(_at_n, N)[1]({"n": nv.ones(1)}), "float32[1]"))],
    Row("jvp integer shape", lambda: nv.jvp(_at_n, (N,), ({"n": np.zeros(2, int)},)), ShapeError,
        ("primals[0]['n'] has shape (1,)", "(2,)")),
    # Cotangents
    Row("vjp structure", lambda: PULL(X), TreeError,
        ("cotangents have another structure", "{'y': *}", "got a leaf")),
    Row("vjp shape", lambda: PULL({"y": nv.ones(3)}), ShapeError,
        ("output['y'] has shape (2,)", "(3,)", "must be equal")),
    Row("vjp dtype", lambda: PULL({"y": DOUBLE}), DtypeError,
        ("output['y'] is float32[2]", "float64[2]", ".astype('float32')")),
    Row("vjp integer output", lambda: nv.vjp(lambda x: {"n": nv.argmax(x)}, X)[1]({"n": 1.0}),
        DtypeError, ("output['n'] is int32[], which has no derivative", "~float32[]", "pass None")),
    *[Row(f"{name} arguments", call, ArgumentError, (f"{name} of ", "one argument, a cotangent",
                                                     "given 2"))
      for name, call in (("vjp", lambda: PULL(X, X)),
                         ("linear_transpose", lambda: TRANSPOSED(X, X)))],
    Row("vjp keywords", lambda: PULL(c=X), ArgumentError,
        ("one argument, a cotangent", "the keywords ['c']")),
    Row("linearize arguments", lambda: PUSH(X, X), ArgumentError,
        ("linearize of <lambda>", "one tangent for each primal, 1", "given 2")),
    # vmap's axes
    Row("axis_size", lambda: nv.vmap(lambda x: x, axis_size=True)(nv.ones(1)), ArgumentError,
        ("axis_size must be an integer", "True")),
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
    Row("jvp rule dtype", lambda: nv.jvp(_wide_rule(), (X,), (X,)), DtypeError,
        ("custom_jvp double: the jvp rule's tangent is float64[2]", "the output float32[2]",
         ".astype('float32')")),
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
]  # fmt: skip


def check_row(row: Row) -> None:
    """The error's class, its text, and that it names the line of the call."""
    with pytest.raises(row.error) as caught:
        row.call()
    text = str(caught.value)
    for part in row.says:
        assert part in text, text
    assert isinstance(caught.value, NuvecError)
    lines, first = inspect.getsourcelines(row.call)
    file = os.path.basename(row.call.__code__.co_filename)
    named = [f"{file}:{first + k} (in " for k in range(len(lines))]
    assert any(place in text for place in named), f"{text}\nnames none of {named}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_an_error_says_where_and_what_to_do(row: Row) -> None:
    check_row(row)


def test_a_line_inside_a_traced_function_is_the_one_that_is_named() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        return nv.scan(lambda c, _: (c[:1], None), y, length=3)[0]

    with pytest.raises(ShapeError, match=r"test_errors\.py:\d+ \(in f\)") as caught:
        nv.grad(lambda x: nv.compile(f)(x).sum())(X)
    assert str(caught.value).count("test_errors.py") == 1
    assert "the carry" in str(caught.value)
