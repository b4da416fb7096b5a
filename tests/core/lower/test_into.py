"""lower_into: a step of a loop, whose results go to arrays of the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.array import Array
from nuvec.core.ir import aval
from nuvec.core.lower import lower_into
from nuvec.core.lower.emit import emit_tile
from nuvec.core.lower.plan import place
from nuvec.core.lower.schedule import schedule
from nuvec.core.lower.simplify import simplify
from nuvec.core.recording import trace_ir

SQUARE = aval((3, 3), np.dtype(np.float32))


def step(function: Callable[..., Sequence[Array]], into: Sequence[int]) -> Callable[..., Any]:
    ir, _ = trace_ir(function, [SQUARE, SQUARE], "a step")
    return lower_into(ir, into)


X, Y = np.arange(9, dtype=np.float32).reshape(3, 3), np.full((3, 3), 0.5, np.float32)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, y: [nv.tanh(x @ y + x)], lambda x, y: [np.tanh(x @ y + x)]),
        (lambda x, y: [nv.sin(x).T], lambda x, y: [np.sin(x).T]),  # a view of what it computes
        (lambda x, y: [x, y], lambda x, y: [x, y]),  # its operands
        (lambda x, y: [nv.sin(x)] * 2, lambda x, y: [np.sin(x)] * 2),  # one result twice
        (lambda x, y: [(z := nv.sin(x)), z * 2], lambda x, y: [np.sin(x), np.sin(x) * 2]),
        (lambda x, y: [nv.ones((3, 3))], lambda x, y: [np.ones((3, 3))]),
        (lambda x, y: [nv.flip(x @ y, 0)[:2]], lambda x, y: [np.flip(x @ y, 0)[:2]]),
    ],
)
def test_results_are_in_the_callers_arrays(function: Any, expected: Any) -> None:
    wanted = expected(X, Y)
    run = step(function, range(len(wanted)))
    for _ in range(2):
        arrays = [np.full(w.shape, np.nan, np.float32) for w in wanted]
        before = X.copy(), Y.copy()
        assert run(X, Y, *arrays) == []
        for a, w in zip(arrays, wanted, strict=True):
            np.testing.assert_allclose(a, w, rtol=1e-6)
        np.testing.assert_array_equal(X, before[0])
        np.testing.assert_array_equal(Y, before[1])


def test_a_chain_is_computed_in_the_array_itself() -> None:
    ir, _ = trace_ir(lambda x, y: [nv.tanh(x @ y + x)], [SQUARE, SQUARE], "a step")
    run = lower_into(ir, [0])
    into = np.empty((3, 3), np.float32)
    text = "".join(__import__("linecache").getlines(run.__code__.co_filename))
    assert "out=into0" in text and "into0[...]" not in text
    run(X, Y, into)
    np.testing.assert_allclose(into, np.tanh(X @ Y + X), rtol=1e-6)


def test_other_outputs_are_returned() -> None:
    run = step(lambda x, y: [nv.sum(x), nv.sin(x), nv.cos(y)], [1])
    into = np.empty((3, 3), np.float32)
    total, other = run(X, Y, into)
    assert total == 36
    np.testing.assert_allclose(other, np.cos(Y), rtol=1e-6)
    np.testing.assert_allclose(into, np.sin(X), rtol=1e-6)


def test_an_output_over_an_input_that_another_output_was_computed_in() -> None:
    row = aval((300,), np.dtype(np.float32))
    # the product may be written over y
    ir, _ = trace_ir(lambda x, y: [nv.exp(x), y * 2], [row, row], "a step")
    simple = simplify(ir, (True, True))
    placement = place(simple, schedule(simple), (True, True), (0, 1), (), {0: 1})
    run = emit_tile(simple, placement).function
    x, y = np.linspace(0, 1, 300, dtype=np.float32), np.arange(300, dtype=np.float32)
    wanted = np.exp(x), y * 2
    other = np.empty_like(x)
    run(x, y, y, other)
    np.testing.assert_array_equal(y, wanted[0])
    np.testing.assert_array_equal(other, wanted[1])
