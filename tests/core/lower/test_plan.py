"""What the plan relies on is true of every lowering; it reuses what it may and nothing else."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nuvec.core import dtypes
from nuvec.core.array import Array, operand
from nuvec.core.config import config
from nuvec.core.ir import IR, Eqn, Literal, Var, aval
from nuvec.core.lower import lower
from nuvec.core.lower.arena import Block, Scratch
from nuvec.core.lower.inplace import keeps_bits_in_place
from nuvec.core.lower.layout import Layout, layout_of, result_layout
from nuvec.core.lower.plan import place, surely_fresh, takes_out
from nuvec.core.lower.schedule import schedule
from nuvec.core.ops.along import add_along_p
from nuvec.core.ops.arithmetic import add, multiply, multiply_p
from nuvec.core.ops.exponential import exp, exp_p
from nuvec.core.ops.rounding import round_p
from nuvec.core.ops.selection import where
from nuvec.core.ops.shape import reshape, sum, sum_p, transpose, transpose_p
from nuvec.core.ops.structure import slice_p
from nuvec.core.primitive import TABLE, Primitive
from tests.cases.rows import all_rows
from tests.core.lower.programs import (
    LAYOUTS,
    bits,
    check,
    eqn,
    f4,
    laid_out,
    program,
    random_program,
    values,
)  # fmt: skip
from tests.core.toy_ir import NO_RULES


def hold_claims(ir: IR, arguments: list[Any], contiguous: bool) -> None:
    """Run an IR equation by equation and hold the plan's claims against what happens."""
    env: dict[Any, Any] = dict(zip(ir.inputs, arguments, strict=True)) | dict(ir.constants)
    claimed = dict.fromkeys(ir.inputs, Layout.CONTIGUOUS if contiguous else Layout.UNKNOWN)
    claimed |= {v: layout_of(c) for v, c in ir.constants}
    for e in ir.eqns:
        operands = [a.value if type(a) is Literal else env[a] for a in e.inputs]
        result = e.primitive.lower(*operands, **e.params)
        results = result if e.primitive.multiple else (result,)
        env.update(zip(e.outputs, results, strict=True))
        for k, (v, value) in enumerate(zip(e.outputs, results, strict=True)):
            claimed[v] = result_layout(
                e, lambda a: Layout.CONTIGUOUS if type(a) is Literal else claimed[a], k
            )
            assert value.dtype == v.aval.dtype, e.primitive
            assert value.shape == v.aval.shape, e.primitive
            assert layout_of(value) >= claimed[v], f"{e.primitive}: the layout is not as claimed"
            if surely_fresh(e.primitive):
                shared = [a for a in operands if np.shares_memory(value, a) and value.ndim]
                assert not shared, f"{e.primitive} gives back its operand"
        if takes_out(e.primitive, e.outputs[0].aval):
            hold_out(e, operands, result)


def hold_out(e: Eqn, operands: list[Any], expected: Any) -> None:
    """Lowering with out= gives the same bits, in that array; in place too, where so measured."""
    out = np.empty(e.outputs[0].aval.shape, e.outputs[0].aval.dtype)
    assert e.primitive.lower(*operands, out=out, **e.params) is out
    if expected.flags.c_contiguous:
        assert bits(out) == bits(expected), f"{e.primitive} differs with out="
    if e.primitive.kind != "elementwise":
        return
    for k, a in enumerate(e.inputs):
        same = type(a) is Var and a.aval.shape == out.shape and a.aval.dtype == out.dtype
        if same and keeps_bits_in_place(e, k) and expected.flags.c_contiguous:
            copies = {id(b): np.array(b, order="C") for b in operands}
            written = [copies[id(b)] for b in operands]
            result = e.primitive.lower(*written, out=written[k], **e.params)
            assert bits(result) == bits(expected), f"{e.primitive} differs in place"


@pytest.mark.parametrize("case", all_rows(), ids=str)
def test_claims_hold_for_every_primitive(case: Any) -> None:
    arguments = [np.ascontiguousarray(a).reshape(np.shape(a)) for a in case.args]
    ir = program(case.function, *[aval(a.shape, dtypes.as_dtype(a.dtype)) for a in arguments])
    assert not ir.effect
    assert not any(e.primitive.higher_order for e in ir.eqns), "rows are of single operations"
    with np.errstate(all="ignore"):
        hold_claims(ir, arguments, True)
        hold_claims(ir, [laid_out(a, "F") for a in arguments], False)
    check(ir, *arguments)
    check(ir, *[laid_out(a, "F") for a in arguments])


@pytest.mark.parametrize("seed", range(20))
def test_claims_hold_in_random_programs(seed: int) -> None:
    ir = random_program(seed + 77, 25)
    generator = np.random.Generator(np.random.PCG64(seed))
    arguments = [values(v.aval, generator) for v in ir.inputs]
    with np.errstate(all="ignore"):
        hold_claims(ir, arguments, True)
        hold_claims(ir, [laid_out(a, LAYOUTS[seed % 4]) for a in arguments], False)


# Reuse


def targets(ir: IR) -> list[Any]:
    plan = lower(ir)
    placement = place(plan.ir, plan.groups, (True,) * len(ir.inputs))
    return [step.target for step in placement.steps]


def test_a_chain_runs_in_the_memory_of_its_output() -> None:
    ir = program(lambda x: exp(multiply(exp(add(x, 1)), 2)), f4(1000))
    plan = check(ir, np.linspace(0, 1, 1000, dtype=np.float32))
    assert [type(t) for t in targets(ir)] == [type(None), Var, Var, Var]
    assert plan.memory == (4000, 0, 4000)


def test_temporaries_live_in_the_arena_and_are_reused() -> None:
    ir = program(
        lambda x: [sum(multiply(exp(x), x), axis=0), sum(multiply(add(x, 1), x), axis=0)],
        f4(100, 10),
    )
    plan = check(ir, np.ones((100, 10), np.float32))
    assert plan.memory.arena == 4000  # two temporaries, one after the other
    assert targets(ir).count(0) == 2


def test_an_argument_a_constant_and_a_live_value_are_not_written() -> None:
    constant = np.arange(50, dtype=np.float32)
    for function in (
        lambda x: [exp(x)],
        lambda x: [multiply(x, x), x],
        lambda x: (lambda y: [exp(y), multiply(y, 2)])(add(x, 1)),
        lambda x: (lambda y: [exp(y), transpose(reshape(y, (5, 10)))])(add(x, 1)),
        lambda x: [exp(add(x, constant)), add(exp(x), constant)],
        lambda x: (lambda y: [y, y, reshape(y, (5, 10)), reshape(x, (10, 5)), x])(exp(x)),
    ):
        check(program(function, f4(50)), np.linspace(-1, 1, 50, dtype=np.float32))


def test_a_view_keeps_its_base_alive() -> None:
    def function(x: Array) -> list[Array]:
        y = exp(x)
        view = transpose(y)
        z = multiply(y, 2)  # y is dead, its view is not
        return [sum(multiply(view, 3)), z]

    check(program(function, f4(40, 50)), np.random.rand(40, 50).astype(np.float32))


def test_a_result_that_may_be_its_operand_is_not_written() -> None:
    # rounding integers gives the operand back
    def function(x: Array) -> list[Array]:
        y = round_p.bind(x, decimals=0)
        return [add(y, 1), round_p.bind(x, decimals=0)]

    check(program(function, aval((64,), dtypes.int32)), np.arange(64, dtype=np.int32))


def test_many_values_that_may_share_memory() -> None:
    ir = program(lambda *xs: round_p.bind(xs[0], decimals=0), aval((9,), dtypes.int32))
    check(ir, np.arange(9, dtype=np.int32))
    merge = Primitive(
        "test.first", lambda *xs: xs[-1], lambda *xs: xs[0], "other", out=False, **NO_RULES
    )
    try:
        xs = [Var(f4(9)) for _ in range(12)]
        made = [eqn(exp_p, x) for x in xs]
        last, out = eqn(merge, *[v for _, v in made])
        after, final = eqn(multiply_p, out, out)
        ir = IR(tuple(xs), (), (*(e for e, _ in made), last, after), (final, out))
        check(ir, *[np.full(9, k, np.float32) for k in range(12)])
    finally:
        del TABLE["test.first"]


def test_what_a_communication_was_given_is_not_written_again() -> None:
    given: list[Any] = []

    def lowering(x: Any) -> Any:
        given.append((x, x.copy()))
        return x

    send = Primitive("test.send", lowering, lambda x: x, "effect", effect=True, **NO_RULES)
    try:
        x = Var(f4(100))
        e1, a = eqn(exp_p, x)
        e2, _ = eqn(send, a)
        e3, c = eqn(exp_p, a)
        e4, d = eqn(sum_p, c, axes=(0,))
        e5, _ = eqn(send, c)
        check(IR((x,), (), (e1, e2, e3, e4, e5), (d,)), np.ones(100, np.float32))
        assert all(bits(now) == bits(then) for now, then in given)
        arrays = [v for v, _ in given]
        assert not any(np.shares_memory(a, b) for a in arrays for b in arrays if a is not b)
    finally:
        del TABLE["test.send"]


UPDATES: dict[str, Callable[[Array, Array], Array]] = {
    "update_slice": lambda x, v: x.at[1:5].set(v),
    "scatter_set": lambda x, v: x.at[np.array([5, 0, 5, -1])].set(v),
    "scatter_add": lambda x, v: x.at[np.array([5, 0, 5, -1])].add(v),
    "scatter_max": lambda x, v: x.at[np.array([5, 0, 5, -1])].max(v),
    "scatter_min": lambda x, v: x.at[np.array([5, 0, 5, -1])].min(v),
    "scatter_multiply": lambda x, v: x.at[np.array([5, 0, 5, -1])].multiply(v),
    "add_along": lambda x, v: add_along_p.bind(
        x, operand(np.array([[5], [0], [5], [-1]], np.int32)), v, axis=-2, shape=x.shape,
        mode="raise",
    ),
}  # fmt: skip


def test_the_updates_of_every_primitive_that_has_some_are_tested() -> None:
    assert {p.name for p in TABLE.values() if p.updates is not None} == set(UPDATES)


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "complex64"])
def test_an_update_changes_a_dead_operand_in_place(name: str, dtype: str) -> None:
    if name in ("scatter_max", "scatter_min") and dtype == "complex64":
        dtype = "float64"
    update = UPDATES[name]
    x, v = aval((6, 3), np.dtype(dtype)), aval((4, 3), np.dtype(dtype))
    generator = np.random.Generator(np.random.PCG64(3))
    arguments = [values(x, generator), values(v, generator)]

    def chain(x: Array, v: Array) -> Array:
        for _ in range(3):
            x = update(x, v)
        return x

    ir = program(chain, x, v)
    check(ir, *arguments)
    written = [t for g, t in zip(lower(ir).groups, targets(ir), strict=True)
               if g.eqns[0].primitive.name == name]  # fmt: skip
    assert len(written) == 3
    assert [isinstance(t, Var) for t in written] == [False, True, True]  # copied once
    with config.override(passes=set(config.passes) - {"in_place"}):
        check(program(chain, x, v), *arguments)
        assert not any(isinstance(t, Var) for t in targets(ir))


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_leaves_alone_what_others_hold(name: str) -> None:
    update = UPDATES[name]
    constant = np.ones((6, 3), np.float32)
    functions: list[Callable[[Array, Array], list[Array]]] = [
        lambda x, v: (lambda y: [update(y, v), update(y, v), y])(exp(x)),
        lambda x, v: (lambda y: [update(y, v), transpose(y)])(exp(x)),
        lambda x, v: (lambda y: [update(update(reshape(y, (6, 3)), v), v), sum(y)])(exp(x)),
        lambda x, v: [update(operand(constant), v), update(x, v)],
        lambda x, v: [(lambda y: update(y, slice_p.bind(y, **_FIRST)))(exp(x)), v],
        lambda x, v: (lambda y: [add(update(y, v), y)])(exp(x)),
    ]
    x, v = np.linspace(-1, 1, 18, dtype=np.float32), np.arange(12, dtype=np.float32)
    for function in functions:
        check(program(function, f4(6, 3), f4(4, 3)), x.reshape(6, 3), v.reshape(4, 3))


_FIRST = {"start": (0, 0), "stop": (4, 3), "step": (1, 1)}


def test_an_operand_that_is_its_own_update_is_copied() -> None:
    index = np.arange(6)[::-1].copy()
    for update in (
        lambda x: x.at[index].add(x),
        lambda x: x.at[index].set(x),
        lambda x: x.at[::-1].set(x),
        lambda x: x.at[np.array([0, 0, 1, 1, 2, 2])].add(x),
    ):
        ir = program(lambda x, update=update: update(exp(x)), f4(6, 3))
        check(ir, np.linspace(-1, 1, 18, dtype=np.float32).reshape(6, 3))
        assert not isinstance(targets(ir)[-1], Var)


def test_the_memory_of_what_is_put_is_not_taken() -> None:
    index = np.arange(6)[::-1].copy()
    ir = program(lambda x: x.at[index].add(exp(x)), f4(6, 3))  # exp(x) is dead, and as large
    check(ir, np.linspace(-1, 1, 18, dtype=np.float32).reshape(6, 3))
    assert not isinstance(targets(ir)[-1], Var)


def test_rows_that_are_written_one_by_one_are_copied_once() -> None:
    def function(x: Array, v: Array) -> Array:
        for i in range(50):
            x = x.at[i].set(multiply(v, i))
        return x

    ir = program(function, f4(100, 2500), f4(2500))
    plan = check(ir, np.zeros((100, 2500), np.float32), np.ones(2500, np.float32))
    assert plan.memory == (1_010_000, 10_000, 1_000_000)


def test_complex_products_are_not_computed_in_place() -> None:
    a = aval((64,), dtypes.complex64)
    ir = program(lambda x: multiply(exp(x), x), a)
    assert not any(isinstance(t, Var) for t in targets(ir))


def test_a_buffer_is_free_only_after_its_last_reader() -> None:
    # products that may not run in place, so each needs memory apart from its operand's
    a = aval((64,), dtypes.complex64)
    ir = program(lambda x: sum(multiply(multiply(multiply(exp(x), x), x), x)), a)
    plan = check(ir, values(a, np.random.Generator(np.random.PCG64(0))))
    placement = place(plan.ir, plan.groups, (True,))
    slots = [placement.buffers[s.target].slot for s in placement.steps[:-1]]  # type: ignore[index]
    assert slots == [0, 1, 0, 1]


def test_a_value_of_several_storages_is_deleted_once() -> None:
    first = Primitive("test.either", lambda a, b: a, lambda a, b: a, "other", **NO_RULES)
    try:
        x = Var(f4(40, 40))
        e1, a = eqn(sum_p, x, axes=())
        e2, b = eqn(sum_p, x, axes=())
        e3, v = eqn(first, a, b)
        e4, total = eqn(sum_p, v, axes=(0, 1))
        e5, ta = eqn(sum_p, a, axes=(0, 1))
        e6, tb = eqn(sum_p, b, axes=(0,))
        ir = IR((x,), (), (e1, e2, e3, e4, e5, e6), (total, ta, tb))
        placement = place(ir, schedule(ir), (True,))
        dead = [v for step in placement.steps for v in step.dead]
        assert len(dead) == len(set(dead))
        assert {a, b, v} <= set(dead)
        check(ir, np.ones((40, 40), np.float32))
    finally:
        del TABLE["test.either"]


def test_several_outputs() -> None:
    pair = Primitive(
        "test.pair", lambda x: (x, x + 1), lambda x: (x, x), "other", multiple=True, **NO_RULES
    )
    nothing = Primitive("test.nothing", lambda x: (), lambda x: (), "effect",
                        multiple=True, effect=True, **NO_RULES)  # fmt: skip
    try:
        x = Var(f4(30))
        e1, (a, b) = eqn(pair, x)
        e2, c = eqn(multiply_p, a, b)
        e3, _ = eqn(nothing, c)
        e4, (d, e) = eqn(pair, c)
        plan = check(IR((x,), (), (e1, e2, e3, e4), (a, b, d, e)), np.ones(30, np.float32))
        assert "test_nothing_(" in plan.source
    finally:
        del TABLE["test.pair"], TABLE["test.nothing"]


# Memory


def test_peak_is_what_a_run_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Block, "size", 0)  # whatever programs there were before
    monkeypatch.setattr(config, "threads", 1)  # a second one may come too late to work at all

    def function(x: Array) -> list[Array]:
        y = exp(x)
        z = where(TABLE["greater"].bind(y, x), y, x)
        return [sum(multiply(z, add(y, z)), axis=1), transpose(z)]

    ir = program(function, f4(500, 400))
    plan = lower(ir)
    x = np.random.rand(500, 400).astype(np.float32)
    plan.run(x)
    ir.derived.clear()
    plan = lower(ir)  # with no arena yet
    Scratch.clear()
    tracemalloc.start()
    try:
        kept = plan.run(x)
        measured = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert kept
    assert plan.memory.outputs == 500 * 4 + x.nbytes
    assert plan.memory.peak == pytest.approx(measured, rel=0.1)


def test_a_long_chain_takes_little_time_and_memory() -> None:
    x = Var(f4(3))
    eqns, last = [], x
    for _ in range(5000):
        e, last = eqn(multiply_p, last, x)
        eqns.append(e)
    plan = lower(IR((x,), (), tuple(eqns), (last,)))
    assert plan.memory.peak == 12
    assert plan.run(np.ones(3, np.float32))[0].tolist() == [1, 1, 1]


def test_groups_are_programs() -> None:
    x = Var(f4(4, 4))
    e1, a = eqn(transpose_p, x, permutation=(1, 0))
    e2, b = eqn(multiply_p, a, a)
    groups = schedule(IR((x,), (), (e1, e2), (b,)))
    assert [g.eqns for g in groups] == [(e1,), (e2,)]
    assert groups[1].ir.inputs == (a,)
    assert groups[1].ir.outputs == (b,)


def test_cost() -> None:
    x, y = Var(f4(3, 4)), Var(f4(4, 5))
    e1, a = eqn(TABLE["dot_general"], x, y, contract=((1,), (0,)), batch=((), ()))
    e2, b = eqn(exp_p, a)
    e3, c = eqn(transpose_p, b, permutation=(1, 0))
    cost = lower(IR((x, y), (), (e1, e2, e3), (c,))).cost()
    assert cost == (2 * 3 * 4 * 5 + 15, 4 * (12 + 20 + 15) + 4 * 30)
