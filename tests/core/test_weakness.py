"""Weak results: what strong integers and a Python float make yields to other floats, as in JAX."""

from __future__ import annotations

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.errors import DtypeError

INTS = [1, 2, 3]

# What JAX 0.10 gives: operation, dtype, weakness
TABLE = {
    "int * 1.5": (lambda i, w: i * 1.5, "float32", True),
    "int / 2": (lambda i, w: i / 2, "float32", False),
    "int / 2.0": (lambda i, w: i / 2.0, "float32", True),
    "int % 2.5": (lambda i, w: i % 2.5, "float32", True),
    "int // 2.5": (lambda i, w: i // 2.5, "float32", True),
    "int ** 2": (lambda i, w: i**2, "int32", False),
    "int ** 2.0": (lambda i, w: i**2.0, "float32", True),
    "int ** 0.5": (lambda i, w: i**0.5, "float32", True),
    "int * 1j": (lambda i, w: i * 1j, "complex64", True),
    "real(int * 1j)": (lambda i, w: nv.real(i * 1j), "float32", True),
    "exp(int)": (lambda i, w: nv.exp(i), "float32", False),
    "exp(weak int)": (lambda i, w: nv.exp(w), "float32", True),
    "bool + 1": (lambda i, w: w, "int32", True),
    "uint64 + int64": (lambda i, w: i.astype("uint64") + i.astype("int64"), "float32", True),
    "where": (lambda i, w: nv.where(i > 1, i, 1.5), "float32", True),
    "clip": (lambda i, w: nv.clip(i, 0.5, 2.5), "float32", True),
    "concatenate": (lambda i, w: nv.concatenate([i * 1.5, i * 1.5]), "float32", True),
    "matmul": (lambda i, w: (i * 1.5) @ (i * 1.5), "float32", True),
    "reshape": (lambda i, w: (i * 1.5)[None], "float32", True),
    "comparison": (lambda i, w: i * 1.5 < 2, "bool", False),
    "astype": (lambda i, w: (i * 1.5).astype("float32"), "float32", False),
    "sum": (lambda i, w: nv.sum(i * 1.5), "float32", False),
    "max": (lambda i, w: nv.max(i * 1.5), "float32", False),
    "mean": (lambda i, w: nv.mean(w), "float32", False),
    "std": (lambda i, w: nv.std(i * 1.5), "float32", False),
    "softmax": (lambda i, w: nv.softmax(i * 1.5), "float32", False),
    "logsumexp": (lambda i, w: nv.logsumexp(i * 1.5), "float32", False),
    "norm": (lambda i, w: nv.linalg.norm(i * 1.5), "float32", False),
}


@pytest.mark.parametrize(("f", "dtype", "weak"), TABLE.values(), ids=TABLE)
def test_weakness(f, dtype, weak):
    i = nv.array(INTS)
    out = f(i, nv.array([True, False]) + 1)
    assert (str(out.dtype), out.aval.weak) == (dtype, weak)
    compiled = nv.compile(f)(i, nv.array([True, False]) + 1)
    assert compiled.dtype == out.dtype
    np.testing.assert_array_equal(np.asarray(compiled), np.asarray(out))


@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_weak_floats_yield(narrow):
    i, h = nv.array(INTS), nv.ones(3, narrow)

    def f(i, h):
        return nv.sin(i * 0.5) + h

    assert f(i, h).dtype == h.dtype
    assert nv.compile(f)(i, h).dtype == h.dtype
    assert nv.vmap(f)(i, h).dtype == h.dtype
    primal, tangent = nv.jvp(lambda h: f(i, h), (h,), (h,))
    assert primal.dtype == tangent.dtype == h.dtype
    assert nv.grad(lambda h: f(i, h).sum())(h).dtype == h.dtype
    by_scalar = nv.grad(lambda s: (i * s * h).sum())(0.5)
    assert float(by_scalar) == 6


def test_weak_carries_and_branches():
    i, h = nv.array(INTS), nv.ones(3, nv.float16)
    total, _ = nv.scan(lambda c, x: (c + 1.5, c), 0, h)
    assert (total.dtype, float(total)) == (nv.float32, 4.5)
    total, _ = nv.scan(lambda c, x: (c + x, c), 0, h)
    assert (total.dtype, float(total)) == (nv.float16, 3)
    total, _ = nv.scan(lambda c, x: (nv.array(2) * 1.5, c), nv.array(1.0, nv.float16), h)
    assert total.dtype == nv.float16
    assert nv.cond(True, lambda i: i * 1.5, lambda i: i * h, i).dtype == nv.float16
    with pytest.raises(DtypeError, match="astype"):  # a strong int carry stays what it is
        nv.scan(lambda c, x: (c * 1.5, c), nv.array(2), h)
    with pytest.raises(DtypeError, match="astype"):
        nv.cond(True, lambda i: i * 1.5, lambda i: i, i)
