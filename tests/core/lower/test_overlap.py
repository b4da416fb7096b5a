"""Communications that run while the program computes: earlier, in order, and to the same bits."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import nuvec as nv
import nuvec.nn as nn
from nuvec.core.lower import lower
from tests.core.lower.programs import f4, program

BIG = f4(256, 256)


def _names(function, group, *avals):
    plan = lower(program(lambda *xs: function(group, *xs), *avals))
    return [e.primitive.name for g in plan.groups for e in g.eqns], plan


def _on_two_ranks(check):
    return nv.distributed.run_local(check, 2)


def _late(group, x, w):
    y = nv.exp(x)
    z = nv.matmul(w, w)
    z = nv.matmul(z, z)
    return [nv.distributed.all_sum(y, group) * 2, z]


def test_a_communication_starts_when_its_operands_are_ready() -> None:
    def check(group):
        names, plan = _names(_late, group, BIG, BIG)
        assert names[:2] == ["exp", "all_sum"]
        assert "all_sum_started = started.start(all_sum_, " in plan.source
        assert plan.source.index("np.dot") < plan.source.index("all_sum_started.result()")

    _on_two_ranks(check)


def test_in_the_order_they_were_recorded() -> None:
    def function(group, x, w):
        a = nv.distributed.all_sum(nv.matmul(w, w), group)  # ready late
        b = nv.distributed.all_max(x, group)  # ready at once
        return [a + 1, b + 1, nv.exp(x)]

    def check(group):
        names, _ = _names(function, group, BIG, BIG)
        assert [n for n in names if n.startswith("all_")] == ["all_sum", "all_max"]

    _on_two_ranks(check)


def test_small_messages_and_those_needed_at_once_run_where_they_stand() -> None:
    def small(group, x, w):
        y = nv.distributed.all_sum(nv.exp(x), group)
        return [nv.matmul(w, w), y * 2]

    def at_once(group, x, w):
        return [nv.distributed.all_sum(nv.exp(x), group) * w]

    def check(group):
        assert "started" not in _names(small, group, f4(4), BIG)[1].source
        assert "started" not in _names(at_once, group, BIG, BIG)[1].source
        with nv.config.override(passes=nv.config.passes - {"overlap"}):
            assert "started" not in _names(_late, group, BIG, BIG)[1].source

    _on_two_ranks(check)


def test_data_parallel_step_has_the_bits_of_the_uncompiled_one() -> None:
    def step(group, parameters, x):
        def loss(parameters):
            h = x
            for w in parameters:
                h = nv.tanh(nv.matmul(h, w))
            return (h * h).mean()

        gradients = nv.grad(loss)(parameters)
        gradients = nn.average_gradients(gradients, group, all_reduce_size=1 << 18)
        return [p - 0.1 * g for p, g in zip(parameters, gradients, strict=True)]

    def on_rank(group):
        random = np.random.Generator(np.random.PCG64(group.rank()))
        same = np.random.Generator(np.random.PCG64(7))
        x = nv.array(random.standard_normal((64, 256)).astype(np.float32))
        parameters = [
            nv.array(same.standard_normal((256, 256)).astype(np.float32) / 16) for _ in range(4)
        ]
        compiled = nv.compile(lambda p, x: step(group, p, x))
        with nv.config.override(threads=1):
            a = compiled(parameters, x)
            b = step(group, parameters, x)
            assert "started.start(all_sum_" in compiled.lower(parameters, x).source
        return [
            (np.asarray(p).tobytes(), np.asarray(q).tobytes()) for p, q in zip(a, b, strict=True)
        ]

    for rank in _on_two_ranks(on_rank):
        assert all(a == b for a, b in rank)


def test_a_result_that_nobody_uses_is_waited_for() -> None:
    def on_rank(group):
        f = nv.compile(lambda x, w: (nv.distributed.all_sum(x, group), nv.matmul(w, w))[1] + 1)
        x = nv.ones((256, 256))
        for _ in range(3):
            f(x, x)
        return threading.active_count()

    before = threading.active_count()
    _on_two_ranks(on_rank)
    time.sleep(0.05)
    assert threading.active_count() <= before + 1  # the threads that run tiles


def test_an_error_is_raised_where_the_result_is_used_and_names_the_line() -> None:
    def on_rank(group):
        other = 1 - group.rank()
        shape = (256, 256) if group.rank() else (256, 255)

        def function(x, w):
            y = nv.distributed.recv_like(x, other, group=group)
            return [nv.matmul(w, w), y]

        nv.eval(nv.distributed.send(nv.ones(shape), other, group=group))
        return nv.compile(function)(nv.ones((256, 256)), nv.ones((256, 256)))

    with pytest.raises(nv.NuvecError, match=r"test_overlap\.py"):
        _on_two_ranks(on_rank)


def test_fusion_leaves_something_to_compute_meanwhile() -> None:
    def function(group, x):
        total = nv.distributed.all_sum(x * 2, group)
        y = nv.tanh(nv.sin(x) + x)  # needs no communication, and shares its operand
        return [total + y, total * 2]

    def check(group):
        plan = _names(function, group, f4(512, 600))[1]
        groups = [[e.primitive.name for e in g.eqns] for g in plan.groups]
        assert groups == [["multiply"], ["all_sum"], ["sin", "add", "tanh"], ["add", "multiply"]]
        assert "all_sum_started" in plan.source

    _on_two_ranks(check)


def test_the_next_communication_does_not_wait_for_who_uses_the_first() -> None:
    def function(group, x, w):
        first = nv.distributed.all_sum(x, group)
        used = nv.tanh(first) * 2
        second = nv.distributed.all_sum(nv.exp(w), group)
        return [used, second + 1, nv.matmul(w, w)]

    def check(group):
        names, plan = _names(function, group, BIG, BIG)
        assert names[:4] == ["all_sum", "exp", "all_sum", "dot_general"]
        source = plan.source
        assert source.index("all_sum_started_1 = ") < source.index("all_sum_started.result()")

    _on_two_ranks(check)


def test_random_orders_keep_the_values() -> None:
    """Communications and what is around them, in many orders: compiled as uncompiled."""

    def on_rank(group):
        for seed in range(12):
            random = np.random.Generator(np.random.PCG64(seed))
            choices = random.integers(0, 5, 14)
            pairs = random.integers(0, 1 << 30, (14, 2))

            def function(x, w, choices=choices, pairs=pairs):
                values = [x, w]
                for c, (i, j) in zip(choices, pairs, strict=True):
                    a, b = values[i % len(values)], values[j % len(values)]
                    if c == 0:
                        values.append(nv.distributed.all_sum(a * 0.5, group))
                    elif c == 1:
                        values.append(nv.distributed.all_max(b, group))
                    else:
                        values.append([nv.tanh(a), a * b, a - b][c - 2])
                return values[2:]

            same = np.random.Generator(np.random.PCG64(seed + 100 * group.rank()))
            x, w = (nv.array(same.standard_normal((256, 300)).astype(np.float32)) for _ in "xw")
            for found, expected in zip(nv.compile(function)(x, w), function(x, w), strict=True):
                np.testing.assert_array_equal(found, expected)
        return True

    assert _on_two_ranks(on_rank) == [True, True]
