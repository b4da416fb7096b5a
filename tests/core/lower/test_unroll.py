"""Sums over a short axis of broadcast operands: no large array is made, and the bits are those of
NumPy's sums of neighbours."""

from __future__ import annotations

import numpy as np
import pytest

import nuvec as nv
from nuvec.core import dtypes
from nuvec.core.ir import aval
from nuvec.core.lower import lower, unroll
from tests.core.lower.programs import check, f4, program, values


def _distances(x, y):
    return nv.sum((x[:, None, :] - y[None, :, :]) ** 2, axis=-1)


def _arguments(*avals, seed=0):
    generator = np.random.Generator(np.random.PCG64(seed))
    return [values(a, generator) for a in avals]


@pytest.mark.parametrize("count", [2, 3, 7, 8, 9, 15, 16, 17, 24, 31, 32])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64])
def test_the_bits_are_those_of_the_sum(
    count: int, dtype: np.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unroll, "LEAST", 1)
    x, y = aval((23, count), dtype), aval((31, count), dtype)
    ir = program(_distances, x, y)
    plan = check(ir, *_arguments(x, y))
    assert not any(e.primitive.name == "sum" for e in plan.ir.eqns)


def test_zeros_keep_their_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unroll, "LEAST", 1)
    for count in (3, 8, 12):
        ir = program(lambda x, y: nv.sum(x[:, None] * y[None], axis=-1), f4(5, count), f4(6, count))
        check(ir, np.full((5, count), -0.0, np.float32), np.ones((6, count), np.float32))


def test_operands_of_fewer_axes_and_scalars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unroll, "LEAST", 1)

    def function(x, w, s):
        return nv.sum(nv.exp(x[:, :, None] * w) * s + 1, axis=2)

    ir = program(function, f4(9, 11), f4(5), f4())
    plan = check(ir, *_arguments(f4(9, 11), f4(5)), np.float32(0.5))
    assert not any(e.primitive.name == "sum" for e in plan.ir.eqns)


def test_no_large_array_is_made() -> None:
    x = f4(1000, 16)
    plan = lower(program(_distances, x, x))
    assert plan.memory.peak < 20 * 2**20  # the array of the differences alone has 61 MiB
    (found,) = plan.run(*(a := _arguments(x, x)))
    wide = [v.astype(np.float64) for v in a]
    with np.errstate(all="ignore"):
        expected = ((wide[0][:, None] - wide[1][None]) ** 2).sum(-1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: nv.sum(nv.exp(x), axis=-1),  # nothing is broadcast
        lambda x: [nv.sum((y := x[:, None] - x[None]), axis=-1), y],  # it is needed itself
        lambda x: nv.sum(x[:, None] - x[None], axis=0),  # another axis
        lambda x: nv.max(x[:, None] - x[None], axis=-1),
    ],
)
def test_what_is_left_alone(function, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unroll, "LEAST", 1)
    ir = program(function, f4(20, 12))
    plan = check(ir, *_arguments(f4(20, 12)))
    assert not any(e.primitive.name == "gather" for e in plan.ir.eqns)


def test_without_the_pass() -> None:
    with nv.config.override(passes=nv.config.passes - {"unroll"}):
        plan = lower(program(_distances, f4(500, 16), f4(500, 16)))
    assert any(e.primitive.name == "sum" for e in plan.ir.eqns)
