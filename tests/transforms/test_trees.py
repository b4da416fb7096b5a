"""Trees that must match, and arguments whose assignments stay local."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
