"""The emitted text reads well, runs, and errors point into it."""

from __future__ import annotations

import gc
import linecache
import re
import traceback

import numpy as np
import pytest

from nuvec.core import dtypes
from nuvec.core.array import operand
from nuvec.core.ir import IR, Eqn, Var, aval
from nuvec.core.lower import lower
from nuvec.core.ops.arithmetic import add, divide, multiply, multiply_p
from nuvec.core.ops.build import convert_dtype
from nuvec.core.ops.exponential import exp, exp_p, log
from nuvec.core.ops.indexing import gather_p
from nuvec.core.ops.reduction import max_p
from nuvec.core.ops.shape import reshape, sum, transpose
from nuvec.core.primitive import TABLE, Primitive
from nuvec.core.traceback import note_source
from tests.core.lower.programs import bits, check, eqn, f4, program
from tests.core.toy_ir import NO_RULES


def test_the_text_of_a_program() -> None:
    def f(x, w):  # type: ignore[no-untyped-def]
        h = exp(multiply(add(x, w), 0.5))
        return [sum(multiply(h, h), axis=0), reshape(transpose(h), (12,))]

    plan = lower(program(f, f4(4, 3), f4(3), names=["x", "w"]))
    text = re.sub(r"  test_emit.py:\d+ \(in f\)", "", plan.source)
    assert (
        text
        == """\
array_0_5 = np.array(0.5, np.float32)
float32_dtype = np.dtype(np.float32)

def program(x, w):
    # x: float32[4,3]
    # w: float32[3]
    if not (x.flags.c_contiguous and w.flags.c_contiguous):
        return general(x, w)
    arena = arenas.take()
    t0, = arena
    before = errors.set(ignored)
    try:
        v0 = np.add(x, w)  # float32[4,3]
        v1 = np.multiply(v0, array_0_5, out=v0)  # float32[4,3]
        h = np.exp(v1, out=v1)  # float32[4,3]
        v2 = np.multiply(h, h, out=t0)  # float32[4,3]
        v3 = np.add.reduce(v2, (0,), float32_dtype)  # float32[3]
        v4 = h.transpose((1, 0))  # float32[3,4]
        v5 = v4.reshape((12,))  # float32[12]
        arenas.give(arena)
        return [v3, v5]
    finally:
        errors.reset(before)
"""
    )


def test_long_lines_are_folded() -> None:
    avals = [f4(3)] * 12
    names = [f"a_rather_long_name_{k}" for k in range(12)]
    ir = program(lambda *xs: [x + 1 for x in xs], *avals, names=names)
    plan = check(ir, *[np.ones(3, np.float32)] * 12)
    lines = plan.source.splitlines()
    assert "def program(" in lines
    assert all(len(line.partition("  # ")[0]) <= 105 for line in lines if "return [" not in line)


def test_an_error_in_a_folded_line_names_the_users_line() -> None:
    def f(x, *indices):  # type: ignore[no-untyped-def]
        return [gather_p.bind(x, *indices, axes=tuple(range(6)), mode="raise")]

    names = ["x", *[f"the_indices_along_axis_{k}" for k in range(6)]]
    index = aval((4,), np.dtype(np.int64))
    run = lower(program(f, f4(2, 2, 2, 2, 2, 2), *[index] * 6, names=names)).run
    arguments = [np.zeros(4, np.int64)] * 5 + [np.full(4, 7)]
    with pytest.raises(IndexError) as caught:
        run(np.zeros((2,) * 6, np.float32), *arguments)
    note_source(caught.value)
    assert "test_emit.py" in caught.value.__notes__[0]


def test_names_are_the_users_where_they_can_be() -> None:
    x, y = Var(f4(3), "loss rate"), Var(f4(3), "def")
    a, b, c = Var(f4(3), "np"), Var(f4(3), "total"), Var(f4(3), "total")
    ir = IR((x, y), (), (
        Eqn(multiply_p, (x, y), (a,), {}),
        Eqn(exp_p, (a,), (b,), {}),
        Eqn(multiply_p, (b, x), (c,), {}),
    ), (c,))  # fmt: skip
    plan = check(ir, np.ones(3, np.float32), np.ones(3, np.float32))
    assert "def program(loss_rate, def_1)" in plan.source
    assert "np_1 = np.multiply(loss_rate, def_1)" in plan.source
    assert "total_1 = np.multiply(total, loss_rate, out=total)" in plan.source
    unnamed = program(lambda x: exp(x), f4(3))
    assert "def program(weights)" in lower(unnamed, ["weights"]).source


def test_parameters_are_written_out_or_bound() -> None:
    ir = program(
        lambda x: [max_p.bind(x, axes=(0,)), convert_dtype.bind(x, dtype=dtypes.bfloat16)], f4(2, 3)
    )
    plan = check(ir, np.ones((2, 3), np.float32))
    assert "max_(x, axes=(0,))" in plan.source.replace("v0", "x")
    assert "bfloat16_dtype = np.dtype(ml_dtypes.bfloat16)" in plan.source
    odd = Primitive("test.odd", lambda x, by: x * by[0], lambda x, by: x, "other", **NO_RULES)
    try:
        x = Var(f4(3))
        e1, a = eqn(odd, x, by=(float("inf"),))
        e2, b = eqn(odd, x, by=(2.0,))
        plan = check(IR((x,), (), (e1, e2), (a, b)), np.ones(3, np.float32))
        assert "test_odd_(v0, by=by)" in plan.source
        assert "test_odd_(v0, by=(2.0,))" in plan.source
    finally:
        del TABLE["test.odd"]


@pytest.mark.parametrize(("dtype", "text"), [
    (dtypes.float64, "np.float64"), (dtypes.bfloat16, "ml_dtypes.bfloat16"),
    (dtypes.complex128, "np.complex128"), (dtypes.int8, "np.int8"),
])  # fmt: skip
def test_literals_keep_their_bits(dtype: np.dtype, text: str) -> None:
    ir = program(lambda x: add(multiply(x, 3), multiply(3, x)), aval((4,), dtype))
    plan = check(ir, np.arange(4).astype(dtype))
    assert text in plan.source
    if dtypes.is_inexact(dtype):
        numbers = (-0.0, float("nan"), float("-inf"), 1e-30)
        ir = program(lambda x: [divide(x, number) for number in numbers], aval((4,), dtype))
        check(ir, np.arange(4).astype(dtype))


def test_errors_come_as_they_are_with_the_line() -> None:
    ir = program(
        lambda x, i: exp(gather_p.bind(add(x, 1), i, axes=(0,), mode="raise")),
        f4(3), aval((1,), dtypes.int32),
    )  # fmt: skip
    plan = lower(ir)
    arguments = np.ones(3, np.float32), np.array([5], np.int32)
    with pytest.raises(IndexError) as caught:
        plan.run(*arguments)
    assert "v3 = gather_(" in "".join(traceback.format_exception(caught.value))
    assert plan.run(arguments[0], np.array([2], np.int32))[0].shape == (1,)
    assert np.geterr() != dict.fromkeys(np.geterr(), "ignore"), "the error state is back"


def test_the_number_of_arguments_is_checked_by_python() -> None:
    with pytest.raises(TypeError, match="program"):
        lower(program(exp, f4(3))).run()


def test_warnings_are_off_while_it_runs() -> None:
    plan = lower(program(lambda x: log(divide(x, 0.0)), f4(3)))
    with np.errstate(all="raise"):
        assert bits(plan.run(np.ones(3, np.float32))[0]) == bits(np.full(3, np.inf, np.float32))
        with pytest.raises(FloatingPointError):
            np.log(np.zeros(1))


def test_programs_without_equations_inputs_or_outputs() -> None:
    x = Var(f4(3))
    check(IR((x,), (), (), (x, x)), np.ones(3, np.float32))
    check(IR((x,), (), (), ()), np.ones(3, np.float32))
    constant = np.arange(3, dtype=np.float32)
    ir = program(lambda: [operand(constant), exp(operand(constant)), operand(2.0)])
    check(ir)


def test_large_dead_values_are_deleted() -> None:
    plan = lower(program(lambda x: sum(transpose(exp(transpose(x)))), f4(64, 64)))
    assert "del " in plan.source


def test_the_text_goes_with_its_plan() -> None:
    ir = program(lambda x: exp(multiply(x, 3)), f4(5))
    plan = lower(ir)
    assert lower(ir) is plan
    name = plan.run.__code__.co_filename
    assert name in linecache.cache
    del plan
    del ir
    gc.collect()
    assert name not in linecache.cache
