"""Trees that must match, and arguments whose assignments stay local."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nuvec as nv


def a(*values: float) -> Any:
    return nv.array(list(values), dtype=nv.float32)


MISMATCHES: dict[str, Callable[[], Any]] = {
    "keys of tangents": lambda: nv.jvp(
        lambda d: d["a"] + d["b"], ({"a": a(1), "b": a(1)},), ({"b": a(1), "c": a(10)},)
    ),
    "a tree for a leaf": lambda: nv.jvp(lambda x: x, (a(1),), ({"a": a(1)},)),
    "keys of cotangents": lambda: nv.vjp(lambda x: {"a": x, "b": x}, a(1))[1](
        {"a": a(1), "c": a(1)}
    ),
    "nesting": lambda: nv.vjp(lambda x: ((x, x), x), a(1))[1]((a(1), (a(1), a(1)))),
    "list for tuple": lambda: nv.vjp(lambda x: (x, x), a(1))[1]([a(1), a(1)]),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_a_tree_that_does_not_match_is_refused(name: str) -> None:
    with pytest.raises(nv.TreeError, match="another structure"):
        MISMATCHES[name]()


def test_none_stands_for_a_zero_cotangent() -> None:
    _, pull = nv.vjp(lambda x: (x * 2, x * 3), a(1))
    assert pull((a(1), None))[0].tolist() == [2.0]
    assert nv.vjp(lambda x: x * 2, a(1, 2))[1](None)[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("zero", [None, 0, np.zeros(1, bool), np.zeros(1, np.int8)])
def test_integers_take_none_or_zeros(zero: Any) -> None:
    n = nv.array(3) if zero == 0 and not isinstance(zero, np.ndarray) else nv.array([3])
    assert nv.jvp(lambda n, x: n * x, (n, 2.0), (zero, 1.0))[1].sum().item() == 3
    assert nv.linearize(lambda n, x: n * x, n, 2.0)[1](zero, 1.0).sum().item() == 3
    pull = nv.vjp(lambda x: (n + x.astype(nv.int32), x * 2), 2.0)[1]
    assert pull((zero, 1.0))[0].item() == 2


def _write(p: Any, q: Any) -> Any:
    p[0] = 9.0
    return q


def _custom_vjp() -> Any:
    rule = nv.custom_vjp(_write)
    rule.defvjp(lambda p, q: (_write(p, q), None), lambda _, c: (c, c))
    return rule


def _custom_jvp() -> Any:
    rule = nv.custom_jvp(_write)
    rule.defjvp(lambda primals, tangents: (_write(*primals), tangents[1]))
    return rule


TWICE: dict[str, Callable[[Any], Any]] = {
    "compile": lambda x: nv.compile(_write)(x, x),
    "vmap": lambda x: nv.vmap(_write)(x[None], x[None])[0],
    "vmap of one": lambda x: (lambda b: nv.vmap(_write)(b, b)[0])(x[None]),
    "vmap, not mapped": lambda x: nv.vmap(
        lambda i, p, q: _write(p, q), in_axes=(0, None, None), out_axes=None
    )(nv.ones(1), x, x),
    "grad": lambda x: nv.value_and_grad(lambda t: _write(*t)[0])((x, x))[0] * nv.ones(2),
    "grad, others": lambda x: (
        nv.value_and_grad(lambda s, p, q: s * _write(p, q)[0])(1.0, x, x)[0] * nv.ones(2)
    ),
    "grad, keywords": lambda x: (
        nv.value_and_grad(lambda s, p, q: s * _write(p, q)[0])(1.0, p=x, q=x)[0] * nv.ones(2)
    ),
    "vjp": lambda x: nv.vjp(_write, x, x)[0],
    "jvp": lambda x: nv.jvp(_write, (x, x), (x, x))[0],
    "linearize": lambda x: nv.linearize(_write, x, x)[0],
    "checkpoint": lambda x: nv.checkpoint(_write)(x, x),
    "vectorize": lambda x: nv.vectorize(_write, signature="(n),(n)->(n)")(x, x),
    "vectorize, excluded": lambda x: nv.vectorize(
        lambda s, p, q: s * _write(p, q)[1], excluded={1, 2}
    )(x, x, x),
    "custom_vjp": lambda x: _custom_vjp()(x, x),
    "custom_jvp": lambda x: _custom_jvp()(x, x),
    "scan": lambda x: nv.scan(lambda c, _: (c, _write(*c)), (x, x), length=1)[1][0],
    "while_loop": lambda x: nv.while_loop(
        lambda c: c[0] < 1, lambda c: (c[0] + 1, c[1], _write(c[1], c[2])), (0, x, x)
    )[2],
    "fori_loop": lambda x: nv.fori_loop(0, 1, lambda i, c: (c[0], _write(*c)), (x, x))[1],
    "cond": lambda x: nv.cond(True, _write, lambda p, q: q, x, x),
    "map": lambda x: nv.map(lambda t: _write(*t), (x[None], x[None]))[0],
}


@pytest.mark.parametrize("inside", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("name", TWICE)
def test_an_array_passed_twice_is_two_handles(name: str, inside: bool) -> None:
    x = nv.ones(2)
    run = nv.compile(TWICE[name]) if inside else TWICE[name]
    assert run(x).tolist() == [1, 1]
    assert x.tolist() == [1, 1]


def test_assignments_to_other_arguments_stay_local() -> None:
    d = {"k": a(1, 2)}
    log: list[Any] = []

    def f(w: Any, d: Any, log: Any) -> Any:
        d["k"][0] = w
        log.append(d["k"])  # the caller's own containers
        return w * d["k"].sum()

    for _ in range(2):
        assert nv.grad(f)(nv.array(2.0), d, log).item() == 6.0
    assert d["k"].tolist() == [1.0, 2.0]
    assert len(log) == 2


def test_assignments_in_a_custom_function_stay_local() -> None:
    def fun(x: Any) -> Any:
        x[0] = 9.0
        return x

    rule = nv.custom_vjp(fun)
    rule.defvjp(lambda x: (fun(x), None), lambda residuals, c: (c,))
    for transform in (lambda f: f, lambda f: nv.grad(lambda x: f(x).sum()), nv.compile):
        y = a(1, 2)
        transform(rule)(y)
        assert y.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("function", "hint"),
    [
        (lambda x: None, "return statement"),
        (lambda x: x * nv.ones(2), "reduce it"),
        (lambda x: (x, x), "has_aux"),
        (lambda x: [x], "the scalar itself"),
        (lambda x: x * 1j, "real part"),
        (lambda x: x > 0, "astype"),
    ],
)
def test_grad_says_why_an_output_will_not_do(function: Any, hint: str) -> None:
    with pytest.raises(TypeError, match=hint):
        nv.grad(function)(1.0)
