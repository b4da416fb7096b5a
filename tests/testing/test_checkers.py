"""The checkers are tested: each catches a rule that is slightly wrong, and says where to look."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec import distributed as nd
from nuvec.core.check import check_ir
from nuvec.core.errors import IRError
from nuvec.core.ir import IR, Eqn, aval
from nuvec.core.ops.build import elementwise_rule
from nuvec.core.ops.shape import move_axis
from nuvec.core.primitive import TABLE, Primitive
from nuvec.distributed.collectives.all_reduce import all_sum_p
from nuvec.distributed.collectives.gather_scatter import all_gather_p, sum_scatter_p
from nuvec.testing import (
    check_collective,
    check_compile,
    check_grads,
    check_jvp,
    check_lowering,
    check_second_order,
    check_vjp,
    check_vmap,
)  # fmt: skip
from nuvec.transforms.ir_tools import make_ir

X = np.array([0.3, 0.7, 1.1])
Make = Callable[..., Any]


@pytest.fixture
def made() -> Iterator[Make]:
    """Makes a square function with the given rules; the table is as before afterwards."""
    before = set(TABLE)

    def make(**rules: Any) -> Callable[[Any], Any]:
        defaults: dict[str, Any] = {
            "lower": lambda x: x * x, "shape_rule": elementwise_rule("square"),
            "kind": "elementwise", "derivatives": (lambda out, x: 2 * x,),
        }  # fmt: skip
        primitive = Primitive(f"toy.square{len(TABLE)}", **{**defaults, **rules})
        return lambda x: primitive.bind(nv.array(x) if not isinstance(x, nv.Array) else x)

    yield make
    for name in set(TABLE) - before:
        del TABLE[name]


def fails(check: Callable[[], None], *texts: str) -> str:
    with pytest.raises(AssertionError) as caught:
        check()
    text = str(caught.value)
    for t in texts:
        assert t in text, text
    return text


def test_right_rules_pass(made: Make) -> None:
    f = made()
    check_grads(f, (X,), order=3)
    check_vmap(f, (X,))
    check_lowering(f, (X,))
    check_compile(f, (X,))


def test_a_derivative_wrong_by_a_thousandth(made: Make) -> None:
    f = made(derivatives=(lambda out, x: 2.002 * x,))
    text = fails(lambda: check_jvp(f, (X,)), "finite differences", "the jvp rule", "toy.square",
                 "largest difference", "input 0: float64[3] [0.3 0.7 1.1]")  # fmt: skip
    assert "lambda" in text  # the program
    fails(lambda: check_grads(f, (X,)), "finite differences")
    check_vjp(f, (X,))  # both modes agree: they come from one rule


def test_a_vjp_wrong_by_a_thousandth(made: Make) -> None:
    f = made(derivatives=None, jvp=lambda t, out, x: 2 * x * t[0],
             vjp=lambda i, c, out, x: 2.002 * x * c)  # fmt: skip
    check_jvp(f, (X,))
    fails(lambda: check_vjp(f, (X,)), "<c, J v>", "the vjp rule", "toy.square")
    fails(lambda: check_grads(f, (X,), modes=("rev",)), "<c, J v>")
    check_grads(f, (X,), modes=("fwd",))


def test_a_wrong_second_derivative(made: Make) -> None:
    """A rule whose value is right and whose own derivative is not."""
    f = made(derivatives=(lambda out, x: 2 * x + 0.002 * (x - nv.stop_gradient(x)),))
    check_jvp(f, (X,))
    check_vjp(f, (X,))
    fails(lambda: check_second_order(f, (X,)), "finite differences")
    fails(lambda: check_grads(f, (X,), order=2), "finite differences")
    check_grads(f, (X,), order=1)


def test_a_vjp_that_is_wrong_for_one_operand_alone(made: Make) -> None:
    primitive = Primitive(
        "toy.product", lambda x, y: x * y, elementwise_rule("product"), "elementwise",
        jvp=lambda t, out, x, y: (
            (t[0] * y if t[0] is not None else x * 0) + (x * t[1] if t[1] is not None else 1e-3)
        ),
        vjp=lambda i, c, out, x, y: c * (y, x)[i],
    )  # fmt: skip
    fails(lambda: check_jvp(lambda x, y: primitive.bind(x, y), (X, X + 1)), "one input at a time")


def test_a_complex_rule_that_conjugates(made: Make) -> None:
    z = X + 1j * X[::-1]
    check_grads(made(), (z,), order=2)
    f = made(derivatives=(lambda out, x: 2 * nv.conj(x),))
    fails(lambda: check_jvp(f, (z,)), "finite differences")


def test_wrong_batching_rules(made: Make) -> None:
    def reversed_batch(size: int, axes: Any, x: Any) -> Any:
        return f_primitive.bind(nv.flip(move_axis(x, axes[0], 0), 0)), 0

    f_primitive = Primitive("toy.batch", lambda x: x * x, elementwise_rule("batch"), "elementwise",
                            derivatives=(lambda out, x: 2 * x,), vmap=reversed_batch)  # fmt: skip
    fails(lambda: check_vmap(lambda x: f_primitive.bind(x), (X,)), "vmap", "in_axes=(0,)",
          "the vmap rule", "toy.batch")  # fmt: skip

    def first_axis_only(size: int, axes: Any, x: Any) -> Any:
        return g_primitive.bind(x), 0

    g_primitive = Primitive("toy.axis", lambda x: x * x, elementwise_rule("axis"), "elementwise",
                            derivatives=(lambda out, x: 2 * x,), vmap=first_axis_only)  # fmt: skip
    fails(lambda: check_vmap(lambda x: g_primitive.bind(x), (X,)), "in_axes=(1,)")

    def off_by_a_thousandth(size: int, axes: Any, x: Any) -> Any:
        return h_primitive.bind(x) * 1.001, axes[0]

    h_primitive = Primitive("toy.scaled", lambda x: x * x, elementwise_rule("scaled"),
                            "elementwise", derivatives=(lambda out, x: 2 * x,),
                            vmap=off_by_a_thousandth)  # fmt: skip
    fails(lambda: check_vmap(lambda x: h_primitive.bind(x), (X,)), "largest difference")


def test_wrong_lowerings(made: Make) -> None:
    wrong_dtype = made(lower=lambda x: (x * x).astype(np.float64))
    fails(lambda: check_lowering(wrong_dtype, (X.astype(np.float32),)), "float64[3]",
          "the shape rule says float32[3]")  # fmt: skip
    wrong_shape = made(shape_rule=lambda x: aval((*x.shape, 1), x.dtype))
    fails(lambda: check_lowering(wrong_shape, (X,)), "the shape rule says float64[3,1]")
    by_layout = made(lower=lambda x: np.ravel(x, order="K").reshape(x.shape))
    fails(lambda: check_lowering(by_layout, (np.arange(6.0).reshape(2, 3),)), "strided operands")
    bad_out = made(lower=lambda x, out=None: np.multiply(x, 2 if out is not None else x, out=out),
                   out=True)  # fmt: skip
    fails(lambda: check_lowering(bad_out, (X,)), "into `out`")

    def changes_its_operand(x: Any) -> Any:
        x *= x
        return x

    with pytest.raises(ValueError, match="read-only"):
        check_lowering(made(lower=changes_its_operand), (X,))


def test_a_compiled_function_that_is_not_the_interpreted_one(made: Make) -> None:
    calls: list[int] = []

    def drifting(x: Any) -> Any:
        calls.append(1)
        return x * x + 1e-15 * len(calls)

    fails(lambda: check_compile(made(lower=drifting), (X,)), "not the same bits")


# Collectives


@pytest.fixture
def sabotage(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def replace(primitive: Primitive, **rules: Any) -> None:
        for name, rule in rules.items():
            monkeypatch.setattr(primitive, name, rule)

    return replace


def _all_sum(group: Any, x: Any) -> Any:
    return nd.all_sum(x, group)


ONES = (np.ones(3),)


def test_a_dropped_collective(sabotage: Any) -> None:
    sabotage(all_sum_p, vjp=lambda cs, outs, *xs, **params: list(cs))
    text = fails(lambda: check_collective(_all_sum, ONES, (2,)), "adjoint identity", "2 ranks",
                 "all_sum", "sum over ranks of <c, J dx>")  # fmt: skip
    assert "the vjp and jvp rules" in text


def test_a_dropped_collective_in_both_modes(sabotage: Any) -> None:
    """The modes agree with each other: finite differences tell."""
    sabotage(all_sum_p, vjp=lambda cs, outs, *xs, **params: list(cs),
             jvp=lambda ts, outs, *xs, **params: list(ts))  # fmt: skip
    fails(lambda: check_collective(_all_sum, ONES, (2,)), "finite differences")


def test_a_duplicated_collective(sabotage: Any) -> None:
    def twice(cs: Any, outs: Any, *xs: Any, **params: Any) -> Any:
        return all_sum_p.bind(*all_sum_p.bind(*cs, **params), **params)

    sabotage(all_sum_p, vjp=twice)
    fails(lambda: check_collective(_all_sum, ONES, (3,)), "adjoint identity")


def test_a_forward_that_is_communicated_again(sabotage: Any) -> None:
    """The numbers are right and the message goes out twice."""
    right = all_sum_p.jvp

    def again(ts: Any, outs: Any, *xs: Any, **params: Any) -> Any:
        return right(ts, outs, *xs, **params)

    sabotage(all_sum_p, jvp=again)
    check_collective(_all_sum, ONES, (2,), order=1)

    def restless(group: Any, x: Any) -> Any:
        if nv.core.node.context.traces:  # type: ignore[attr-defined]
            nd.all_sum(x, group)
        return nd.all_sum(x, group)

    fails(lambda: check_collective(restless, ONES, (2,)), "communications")


def test_swapped_collectives(sabotage: Any) -> None:
    def as_gather(cs: Any, outs: Any, *xs: Any, group: Any, active: bool) -> Any:
        n = group.size()
        parts = all_gather_p.bind(*cs, group=group, active=True)
        return [p[: c.shape[0] // n] for p, c in zip(parts, cs, strict=True)]

    sabotage(all_gather_p, vjp=as_gather)
    fails(lambda: check_collective(lambda g, x: nd.all_gather(x, g), ONES, (2,)),
          "adjoint identity")  # fmt: skip
    sabotage(sum_scatter_p, vjp=lambda cs, outs, *xs, **p: all_sum_p.bind(*cs, **p))
    with pytest.raises((AssertionError, Exception)):
        check_collective(lambda g, x: nd.sum_scatter(x, g), (np.ones(4),), (2,))


def test_a_wrong_rank_in_a_backward() -> None:
    def shift(group: Any, x: Any) -> Any:
        n = group.size()
        nd.send(x, (group.rank() + 1) % n, group)
        return nd.recv_like(x, (group.rank() + 1) % n, group)  # from the wrong side

    with pytest.raises(AssertionError, match=r"MismatchError"):
        check_collective(shift, ONES, (3,), timeout=0.5)


def test_a_wrong_batching_rule_of_a_collective(sabotage: Any) -> None:
    def first(size: int, axes: Any, *operands: Any, **params: Any) -> Any:
        moved = [move_axis(x, a or 0, 0) for x, a in zip(operands, axes, strict=True)]
        return all_gather_p.bind(*moved, **params), [0] * len(moved)

    sabotage(all_gather_p, vmap=first)
    with pytest.raises(AssertionError, match="vmap"):
        check_collective(lambda g, x: nd.all_gather(x, g), ONES, (2,))


def test_a_rank_that_goes_missing() -> None:
    def shy(group: Any, x: Any) -> Any:
        return nd.all_sum(x, group) if group.rank() else x * 1

    fails(lambda: check_collective(shy, ONES, (2,)), "Error", "2 ranks")


# The checker of programs


def test_mis_wired_programs() -> None:
    def f(x: Any, y: Any) -> Any:
        return nv.sin(x) * y + x

    ir = make_ir(f)(nv.ones(3), nv.ones(3))
    check_ir(ir)
    first, *rest = ir.eqns

    def rewired(eqns: list[Eqn], **changes: Any) -> IR:
        return IR(changes.get("inputs", ir.inputs), ir.constants, tuple(eqns), ir.outputs)

    other = make_ir(f)(nv.ones(4), nv.ones(4))
    for broken in (
        rewired(rest),  # an equation is dropped
        rewired([*rest, first]),  # or comes too late
        rewired([first, *ir.eqns]),  # or twice
        rewired(list(ir.eqns), inputs=ir.inputs[:1]),
        rewired([dataclasses.replace(first, inputs=other.inputs[:1]), *rest]),
        rewired([dataclasses.replace(first, inputs=()), *rest]),
        rewired([dataclasses.replace(first, outputs=other.eqns[0].outputs), *rest]),
    ):
        with pytest.raises(IRError):
            check_ir(broken)


def test_unknown_modes() -> None:
    with pytest.raises(ValueError, match="'fwd' and 'rev'"):
        check_grads(nv.sin, (X,), modes=("forward",))
