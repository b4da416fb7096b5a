"""make_ir shows what a function records; every pass's result is a well-formed program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.check import check_ir
from nuvec.core.errors import ConcretizationError
from nuvec.core.interpreter import interpret
from nuvec.testing.compare import primitives_in
from nuvec.transforms.compile import compile
from nuvec.transforms.grad import grad
from nuvec.transforms.ir_tools import make_ir
from nuvec.transforms.jvp import jvp
from nuvec.transforms.scan import scan
from nuvec.transforms.vmap import vmap


def test_a_program_reads_as_it_was_written() -> None:
    ir = make_ir(lambda x: nv.sin(x) * 2)(nv.ones(3))
    text = "{ lambda x:float32[3] . let a:float32[3] = sin x b:float32[3] = multiply a 2.0 in (b) }"
    assert " ".join(str(ir).split()) == text


def test_inputs_are_named_after_the_arguments() -> None:
    ir = make_ir(lambda params, x: params["w"] * x)({"w": 1.0}, nv.ones(2))
    assert "x:float32[2]" in str(ir)


def test_captures_come_first() -> None:
    w = nv.ones(4)
    ir = make_ir(lambda x: w * x)(2.0)
    assert [a.shape for a in ir.in_avals] == [(4,), ()]


def test_dead_code_is_left_out_and_effects_are_not() -> None:
    def f(x: Any) -> Any:
        nv.exp(x)
        return nv.sin(x)

    assert primitives_in(make_ir(f)(1.0)) == {"sin"}


def test_values_have_no_place_in_a_program() -> None:
    def f(x: Any) -> Any:
        return x if x > 0 else -x

    with pytest.raises(ConcretizationError, match="argument 'x' of f"):
        make_ir(f)(1.0)


PASSES = {
    "plain": lambda f: f,
    "grad": lambda f: grad(lambda x: nv.sum(f(x))),
    "jvp": lambda f: lambda x: jvp(f, (x,), (x,))[1],
    "vmap": lambda f: lambda x: vmap(f)(nv.stack([x, x])),
    "compile": compile,
    "scan": lambda f: lambda x: scan(lambda c, _: (f(c), c), x, length=2),
    "hessian": lambda f: lambda x: jvp(grad(lambda x: nv.sum(f(x))), (x,), (x,))[1],
}


@pytest.mark.parametrize("name", PASSES)
def test_every_pass_records_a_program_that_means_the_same(name: str) -> None:
    def f(x: Any) -> Any:
        return nv.tanh(x) * nv.sum(x) + nv.exp(x)

    g = PASSES[name](f)
    x = np.array([0.1, 0.2, 0.3])
    ir = make_ir(g)(x)
    check_ir(ir)
    values = interpret(ir, x)
    for a, b in zip(values, nv.tree.leaves(g(nv.array(x))), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_users_line_is_noted() -> None:
    ir = make_ir(lambda x: nv.sin(x))(1.0)
    assert "test_make_ir.py" in str(ir.eqns[0].source)
