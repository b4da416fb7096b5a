"""Edges of transforms that a user comes upon."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec import distributed as nd

w = nv.array([1.0, 2.0, 3.0])

LINEAR = {
    "compile": nv.compile(lambda x: 3 * x),
    "scan": lambda x: nv.scan(lambda c, y: (c + y, None), 0.0 * x[0], x)[0],
    "cond": lambda x: nv.cond(nv.array(True), lambda x: 2 * x, lambda x: x, x),
    "checkpoint": nv.checkpoint(lambda x: 2 * x),
    "fori_loop": lambda x: nv.fori_loop(0, 3, lambda i, c: 2 * c, x),
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_transpose_of_what_holds_programs(name: str) -> None:
    f = LINEAR[name]
    out = f(w)
    c = nv.ones(out.shape) * 2
    (found,) = nv.linear_transpose(f, w)(c)
    np.testing.assert_allclose((found * w).sum(), (c * out).sum(), rtol=1e-6)


def test_linear_transpose_of_collectives_and_of_a_linearized_loop() -> None:
    def on_rank(group: Any) -> Any:
        return nv.linear_transpose(lambda x: nd.all_sum(2 * x, group), w)(w)[0]

    for found in nd.run_local(on_rank, 2):
        assert found.tolist() == [4.0, 8.0, 12.0]
    x = nv.array(2.0)
    _, push = nv.linearize(
        lambda x: nv.scan(lambda c, _: (nv.sin(c) * x, None), x, None, length=3)[0], x
    )
    (found,) = nv.linear_transpose(push, nv.array(1.0))(nv.array(1.0))
    np.testing.assert_allclose(found, push(nv.array(1.0)), rtol=1e-6)


MODES = {
    "grad": lambda f: nv.grad(f),
    "compile of grad": lambda f: nv.compile(nv.grad(f)),
    "grad of compile": lambda f: nv.grad(nv.compile(f)),
    "vmap of grad": lambda f: lambda x: nv.vmap(nv.grad(f))(nv.stack([x, x]))[0],
}


@pytest.mark.parametrize("mode", MODES)
def test_residuals_that_are_no_arrays(mode: str) -> None:
    f = nv.custom_vjp(lambda x: x * x)
    f.defvjp(
        lambda x: (x * x, (x, x.shape, 3, "up")),
        lambda r, c: (c * 2 * r[0] * (5 if r[2] == 3 and r[3] == "up" else 1) + nv.zeros(r[1]),),
    )
    assert MODES[mode](lambda x: f(x).sum())(w).tolist() == [10.0, 20.0, 30.0]


@pytest.mark.parametrize("mode", MODES)
def test_default_arguments_of_custom_functions(mode: str) -> None:
    f = nv.custom_vjp(lambda x, s=2.0: x * s)
    f.defvjp(lambda x, s: (x * s, s), lambda s, c: (c * 10, None))
    g = nv.custom_jvp(lambda x, s=2.0: x * s)
    g.defjvp(lambda primals, tangents: (primals[0] * primals[1], tangents[0] * 10))
    for h in (f, g):
        assert MODES[mode](lambda x, h=h: h(x).sum())(w).tolist() == [10.0] * 3


def test_arguments_that_are_not_there() -> None:
    with pytest.raises(TypeError, match="twice"):
        nv.jacfwd(lambda x, y: x * y, argnums=(0, 0))(w, w)
    with pytest.raises(TypeError, match="twice"):
        nv.grad(lambda x, y: (x * y).sum(), argnums=(1, -1))(w, w)
    with pytest.raises(ValueError, match="static_argnums"):
        nv.compile(lambda x: x, static_argnums=3)
    with pytest.raises(ValueError, match="'zz'"):
        nv.compile(lambda x: x, static_argnames="zz")
    for length in (-1, 2.0, True):
        with pytest.raises(ValueError, match="length"):
            nv.scan(lambda c, _: (c, None), w, length=length)  # type: ignore[arg-type]


def test_a_rule_that_reads_across_the_batch_is_caught() -> None:
    from nuvec.core.ops.build import elementwise_rule, to_inexact, unary
    from nuvec.core.primitive import TABLE

    centred = nv.Primitive(
        "test.centred", lambda x: x - x.mean(), elementwise_rule("test.centred"), "elementwise",
        derivatives=(lambda out, x: 1.0 + 0 * x,),
    )  # fmt: skip
    try:
        with pytest.raises(AssertionError, match="vmap"):
            nv.testing.check_vmap(unary(centred, to_inexact), (np.array([0.0, 1.0, 5.0]),))
    finally:
        del TABLE["test.centred"]
