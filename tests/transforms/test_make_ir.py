"""make_ir shows what a function records; every pass's result is a well-formed program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.check import check_ir
from nuvec.core.errors import ConcretizationError, IRError
from nuvec.core.interpreter import interpret
from nuvec.core.parser import parse
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


# What it looks like


def _layer(params: Any, x: Any) -> Any:
    hidden = nv.tanh(x @ params["w"] + params["b"])
    return hidden


def _loss(params: Any, x: Any) -> Any:
    hidden = _layer(params, x)
    total = nv.distributed.all_sum(nv.sum(hidden))
    carry, steps = scan(lambda c, h: (c * 0.5 + h, nv.distributed.all_sum(c)), total, hidden[:, 0])
    chosen = nv.cond(carry > 0, lambda c: c * 2, lambda c: -c, carry)
    return chosen + nv.sum(steps)


PARAMS = {"w": np.ones((3, 2), np.float32), "b": np.ones(2, np.float32)}


def _programs(f: Any = _loss) -> list[Any]:
    """The IR of `f` on two ranks, and the group of each."""
    x = np.ones((4, 3), np.float32)
    return nv.distributed.run_local(lambda group: (make_ir(f)(PARAMS, x), group), 2)


def test_values_are_named_after_arguments_and_local_variables() -> None:
    text = str(_programs()[0][0])
    for name in ("params_w:float32[3,2]", "params_b:float32[2]", "hidden:float32[4,2] = tanh",
                 "total:float32[] = all_sum", "carry:float32[] steps:float32[4] = scan",
                 "chosen:float32[] = cond"):  # fmt: skip
        assert name in text, text


@pytest.mark.parametrize("transform", ["plain", "grad", "vmap", "compile", "hessian"])
def test_real_programs_come_back_from_text(transform: str) -> None:
    functions: dict[str, Any] = {
        "plain": _loss,
        "grad": grad(_loss),
        "vmap": lambda params, x: vmap(_loss, in_axes=(None, 0))(params, nv.stack([x, x])),
        "compile": lambda params, x: compile(_loss)(params, x),
        "hessian": lambda params, x: jvp(
            lambda x: grad(_loss, argnums=1)(params, x), (x,), (x,)
        )[1],
    }  # fmt: skip
    for ir, group in _programs(functions[transform]):
        text = str(ir)
        again = parse(text, groups={"world": group})
        check_ir(again)
        assert str(again) == text
        assert [e.params.get("group") for e in again.eqns] == [
            e.params.get("group") for e in ir.eqns
        ]


def test_what_does_not_come_back_says_so() -> None:
    text = str(_programs()[0][0])
    with pytest.raises(IRError, match=r"the group @world.*parse\(text, groups=\{'world': group\}"):
        parse(text)
    policy = nv.checkpoint(nv.sin, policy=lambda name, avals, params: True)
    with pytest.raises(IRError, match="the parameter policy of checkpoint cannot be read back"):
        parse(str(make_ir(policy)(1.0)))


def test_two_groups_have_two_symbols() -> None:
    def program(group: Any) -> str:
        half = group.split(0)
        return str(make_ir(lambda x: nv.distributed.all_sum(nv.distributed.all_sum(x), half))(1.0))

    text = nv.distributed.run_local(program, 2)[0]
    assert "group=@world" in text and "group=@group " in text


def test_the_view_folds_and_explains_its_values() -> None:
    page = _programs(grad(_loss))[0][0]._repr_html_()
    assert page.count("<details") == page.count("</details>") > 3
    assert page.count('class="eqn effect"') >= 5
    assert "title=" in page and "test_make_ir.py" in page
    title = "total:float32[] = all_sum[group=@world active=True]"
    assert title in page
    for outside in ("http", "<script", "<link", "url("):
        assert outside not in page


def test_the_graph_has_a_cluster_for_each_program_inside() -> None:
    graph = _programs()[0][0].to_dot()
    assert graph.startswith("digraph ir {") and graph.count("{") == graph.count("}")
    assert graph.count("subgraph cluster") == 3  # the body and two branches
    assert "all_sum" in graph and "fillcolor" in graph and "style=dotted" in graph
    assert 'tooltip="test_make_ir.py' in graph
