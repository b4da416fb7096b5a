"""The lowering of where has np.where's bits, whatever its values are: arrays, scalars, zeros."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

import nuvec as nv
from nuvec.core.ops.choosing import BLOCK, LEAST, choose

DTYPES = [
    np.bool_, np.int8, np.uint16, np.int32, np.int64, np.float16, ml_dtypes.bfloat16, np.float32,
    np.float64, np.complex64,
]  # fmt: skip


def _values(dtype, size, seed):
    raw = np.random.Generator(np.random.PCG64(seed)).integers(0, 256, size * 16, np.uint8)
    if dtype is np.bool_:
        return raw[:size] > 100
    return raw.view(dtype)[:size].copy()  # all bit patterns, NaNs too


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.__name__)
@pytest.mark.parametrize("size", [0, 1, LEAST - 1, LEAST, BLOCK + 7])
def test_every_kind_of_value(dtype, size) -> None:
    condition = _values(np.bool_, size, 0)
    zero, minus = np.zeros((), dtype), -np.ones((), np.float32)
    kinds = {
        "array": lambda k: _values(dtype, size, k),
        "scalar": lambda k: _values(dtype, 1, k)[0],
        "0-d": lambda k: _values(dtype, 1, k).reshape(()),
        "zero": lambda k: zero[()],
        "minus zero": lambda k: (minus * 0).astype(dtype)[()],
    }
    for (_, first), (_, second) in itertools.product(kinds.items(), repeat=2):
        x, y = first(1), second(2)
        expected = np.where(condition, x, y)
        assert choose(condition, x, y).tobytes() == expected.tobytes()
        out = np.empty(size, dtype)
        assert choose(condition, x, y, out=out) is out
        assert out.tobytes() == expected.tobytes()
        for other in (x, y):
            if isinstance(other, np.ndarray) and other.shape:
                out = other.copy()
                a, b = (out if v is other else v for v in (x, y))
                choose(condition, a, b, out=out)
                assert out.tobytes() == expected.tobytes()


def test_two_numbers_compiled_and_not() -> None:
    def function(x):
        return x * nv.where(x > 0, 0.1, 1.0)

    for size in (LEAST - 1, LEAST, 20_000, 1 << 20):
        x = np.linspace(-1, 1, size, dtype=np.float32)
        expected = x * np.where(x > 0, np.float32(0.1), np.float32(1.0))
        np.testing.assert_array_equal(nv.compile(function)(nv.array(x)), expected)
        np.testing.assert_array_equal(function(nv.array(x)), expected)
