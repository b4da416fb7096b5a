"""Compiled programs give the bits of interpreted ones, whatever the arguments' layouts are."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from nuvec.core import dtypes
from nuvec.core.ir import aval
from nuvec.core.lower import lower
from nuvec.core.ops.arithmetic import add, multiply
from nuvec.core.ops.exponential import exp
from nuvec.core.ops.shape import reshape, sum, transpose
from tests.core.lower.programs import LAYOUTS, bits, check, f4, laid_out, program, random_program
from tests.core.lower.programs import values as random_values

SEEDS = range(60)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_programs(seed: int, slow: bool) -> None:
    for k in range(200 if slow else 5):
        ir = random_program(1000 * seed + k, 4 + 3 * (seed % 7))
        generator = np.random.Generator(np.random.PCG64(seed))
        arguments = [random_values(v.aval, generator) for v in ir.inputs]
        check(ir, *arguments)
        layouts = generator.choice(LAYOUTS, len(arguments))
        check(ir, *map(laid_out, arguments, layouts))


def test_layout_decides_the_order_of_sums() -> None:
    # the transposed argument must not be summed like a C-contiguous one
    ir = program(lambda x: sum(multiply(add(x, 1.5), 1.0)), f4(37, 41))
    x = np.random.Generator(np.random.PCG64(0)).standard_normal((37, 41)).astype(np.float32)
    for layout in LAYOUTS:
        check(ir, laid_out(x, layout))
    inner = program(lambda x: sum(multiply(exp(transpose(x)), 0.5)), f4(37, 41))
    check(inner, x)
    check(inner, np.asfortranarray(x))


def test_reshape_of_a_transpose_keeps_its_copy() -> None:
    ir = program(lambda x: sum(reshape(reshape(transpose(x), (24,)), (6, 4)), axis=1), f4(4, 6))
    check(ir, np.random.Generator(np.random.PCG64(0)).standard_normal((4, 6)).astype(np.float32))


@pytest.mark.parametrize("dtype", dtypes.ALL[1:], ids=dtypes.name)
def test_every_dtype_with_arithmetic(dtype: np.dtype) -> None:
    generator = np.random.Generator(np.random.PCG64(1))
    for shape in [(), (0,), (5,), (0, 3), (67, 3)]:
        a = aval(shape, dtype)
        ir = program(lambda x, y: [multiply(add(x, y), x), add(multiply(x, 1), y), x], a, a)
        check(ir, random_values(a, generator), random_values(a, generator))


def test_scalars_may_be_numpy_scalars_or_arrays() -> None:
    ir = program(lambda x: [multiply(add(x, 1), x), x], f4())
    for x in (np.float32(2), np.array(2, np.float32)):
        check(ir, x)


def test_threads_share_a_plan() -> None:
    scaled = lambda x: multiply(sum(exp(x)), 1e-5)  # noqa: E731
    ir = program(lambda x: exp(multiply(add(exp(x), x), scaled(x))), f4(64, 64))
    plan = lower(ir)
    wrong = []

    def work(k: int) -> None:
        x = np.full((64, 64), k / 8, np.float32)
        expected = bits(plan.run(x)[0])
        for _ in range(200):
            if bits(plan.run(x)[0]) != expected:
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert len({bits(plan.run(np.full((64, 64), k / 8, np.float32))[0]) for k in range(4)}) == 4


@pytest.mark.parametrize("seed", range(30))
def test_arrays_that_repeat_their_elements(seed: int) -> None:
    for k in range(5):
        ir = random_program(1000 * seed + k, 4 + 3 * (seed % 7))
        generator = np.random.Generator(np.random.PCG64(seed))
        arguments = [random_values(v.aval, generator) for v in ir.inputs]
        for n, x in enumerate(arguments):
            if x.ndim and generator.random() < 0.6:
                shape = [m if generator.random() < 0.5 else 1 for m in x.shape]
                part = x[tuple(slice(0, m) for m in shape)]
                arguments[n] = np.broadcast_to(part, x.shape)
        check(ir, *arguments)


def test_arrays_that_repeat_their_elements_are_fused() -> None:
    ir = program(
        lambda x, y: [exp(multiply(add(x, y), 0.5)), sum(x, axis=0)], f4(512, 600), f4(512, 600)
    )
    run = lower(ir).run
    x = np.broadcast_to(np.float32(0.1), (512, 600))
    y = np.random.Generator(np.random.PCG64(0)).standard_normal((512, 600)).astype(np.float32)
    check(ir, x, y)
    check(ir, x, np.asfortranarray(y))
    general = run.__globals__["general"]
    (plan, _) = general.plans.values()
    assert [g.rows is not None for g in plan.groups].count(True) == 1
