"""Large matrix products on several threads."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import nuvec as nv
from nuvec.core import blas
from nuvec.core.ops.contraction import dot_general_p


def _matrices(m, k, n, dtype=np.float32):
    random = np.random.Generator(np.random.PCG64(0))
    return random.standard_normal((m, k)).astype(dtype), random.standard_normal((k, n)).astype(
        dtype
    )


SHAPES = [
    (1024, 512, 512), (1000, 700, 300), (130, 2048, 1024), (64, 2048, 1024), (3, 4096, 4099),
    (129, 1025, 301), (1025, 129, 301), (1, 1024, 8192), (8192, 1024, 1),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize("form", ["NN", "TN", "NT"])
def test_products(shape, threads, form) -> None:
    x, y = _matrices(*shape)
    a = np.ascontiguousarray(x.T).T if form == "TN" else x
    b = np.ascontiguousarray(y.T).T if form == "NT" else y
    wide = x.astype(np.float64) @ y
    with nv.config.override(threads=threads):
        found = blas.dot(a, b)
        into = np.empty_like(found)
        assert blas.dot(a, b, into) is into
    assert found.tobytes() == into.tobytes()
    with nv.config.override(threads=1):
        assert blas.dot(a, b).tobytes() == found.tobytes()
    np.testing.assert_allclose(found, wide, atol=1e-3 * np.sqrt(shape[1]))


@pytest.mark.parametrize("shape", [(1024, 3000), (3001, 1025), (2, 1 << 21), (1 << 21, 2)])
@pytest.mark.parametrize("transposed", [False, True])
def test_vectors(shape, transposed) -> None:
    x, _ = _matrices(*shape, 1)
    a = np.ascontiguousarray(x.T).T if transposed else x
    left, right = _matrices(1, shape[0], shape[1])
    left, right = left[0], right[0].copy()
    found = {}
    for threads in (1, 2, 3):
        with nv.config.override(threads=threads):
            found[threads] = blas.dot(a, right), blas.dot(left, a)
            for one, first in zip(found[threads], found[1], strict=True):
                assert one.tobytes() == first.tobytes()
    for one, wide in zip(
        found[1], (x.astype(np.float64) @ right, left.astype(np.float64) @ x), strict=True
    ):
        np.testing.assert_allclose(one, wide, atol=1e-7 * max(shape) + 1e-3)


@pytest.mark.parametrize("stack", [(7, 3), (1, 9), (2,), (1,), (3, 1)])
@pytest.mark.parametrize("size", [128, 420])
@pytest.mark.parametrize("transposed", [False, True])
def test_stacks(stack, size, transposed) -> None:
    random = np.random.Generator(np.random.PCG64(0))
    x = random.standard_normal((*stack, size, size)).astype(np.float32)
    y = random.standard_normal((*stack, size, size)).astype(np.float32)
    if transposed:  # in memory, as the heads of attention are
        x, y = (np.moveaxis(np.moveaxis(a, -2, 0).copy(), 0, -2) for a in (x, y))
    found = {}
    for threads in (1, 3):
        with nv.config.override(threads=threads):
            found[threads] = blas.matmul(x, y, np.empty(x.shape, np.float32))
    assert found[1].tobytes() == found[3].tobytes()
    np.testing.assert_allclose(found[1], x.astype(np.float64) @ y, atol=1e-4 * np.sqrt(size))


def test_a_product_is_made_in_parts_where_it_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(blas, "run_all", lambda work, count, threads: made.append(count))
    blas.dot(*_matrices(64, 64, 64))
    assert made == []
    blas.dot(*_matrices(128, 784, 512))  # by columns
    blas.dot(*_matrices(1024, 512, 512))
    blas.dot(*_matrices(4, 512, 1 << 16))
    blas.dot(*_matrices(100, 1 << 18, 4))  # neither rows nor columns enough
    x, y = _matrices(1, 4096, 4096)
    blas.dot(x[0], y)
    assert made == [2, 8, 8, 16]


def test_a_stack_of_few_large_matrices_shares_out_each(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(blas, "run_all", lambda work, count, threads: made.append(count))
    x = np.zeros((2, 3, 512, 512), np.float32)
    blas.matmul(x, x, np.empty_like(x))
    assert made == [4] * 6
    made.clear()
    x = np.zeros((1, 9, 512, 512), np.float32)
    with nv.config.override(threads=2):
        blas.matmul(x, x, np.empty_like(x))
    assert made == [2]


def test_without_control_of_blas_it_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "_limits", [None])
    x, y = _matrices(1024, 512, 512)
    with nv.config.override(threads=4):
        np.testing.assert_array_equal(blas.dot(x, y), np.dot(x, y))


def test_compiled_and_not() -> None:
    x, y = _matrices(1024, 512, 512)

    def function(x, y):
        return nv.matmul(x, y), nv.matmul(nv.transpose(x), x), nv.matmul(y, nv.transpose(y))

    arguments = nv.array(x), nv.array(y)
    for a, b in zip(nv.compile(function)(*arguments), function(*arguments), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert "dot(x, y, out=" in nv.compile(function).lower(*arguments).source


FIRST = """
import numpy as np
import nuvec as nv

draw = np.random.Generator(np.random.PCG64(0))
m, v = draw.standard_normal((700, 700)), draw.standard_normal(700)
long, big = draw.standard_normal(100_000), draw.standard_normal((1000, 1000))
arrays = [nv.array(a) for a in (m, v, long, big)]


def products(m, v, long, big):
    return m @ v, v @ m, m @ m, long @ long, big @ big


for function in (nv.compile(products), products):
    found = [np.asarray(p).tobytes() for p in function(*arrays)]
    assert found == [np.asarray(p).tobytes() for p in function(*arrays)]
"""


def test_the_first_product_has_the_bits_of_the_second() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_result_that_is_written_between_others() -> None:
    x, y = _matrices(1024, 512, 512)
    wide = np.zeros((1024, 2, 512), np.float32)
    dot_general_p.lower(x, y, contract=((1,), (0,)), batch=((), ()), out=wide[:, 1])
    assert np.ascontiguousarray(wide[:, 1]).tobytes() == blas.dot(x, y).tobytes()
    assert not wide[:, 0].any()
