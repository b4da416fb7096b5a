"""Large matrix products on several threads."""

from __future__ import annotations

import numpy as np
import pytest

import nuvec as nv
from nuvec.core import blas


def _matrices(m, k, n, dtype=np.float32):
    random = np.random.Generator(np.random.PCG64(0))
    return random.standard_normal((m, k)).astype(dtype), random.standard_normal((k, n)).astype(
        dtype
    )


@pytest.mark.parametrize("shape", [(1024, 512, 512), (1000, 700, 300), (130, 2048, 1024)])
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


def test_stacks() -> None:
    random = np.random.Generator(np.random.PCG64(0))
    x = random.standard_normal((7, 3, 128, 128)).astype(np.float32)
    y = random.standard_normal((7, 3, 128, 128)).astype(np.float32)
    with nv.config.override(threads=3):
        found = blas.matmul(x, y, np.empty_like(x))
    np.testing.assert_array_equal(found, np.matmul(x, y))


def test_a_product_is_made_in_parts_where_it_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(blas, "run_all", lambda work, count, threads: made.append((count, threads)))
    with nv.config.override(threads=2):
        blas.dot(*_matrices(64, 64, 64))
        assert made == []
        blas.dot(*_matrices(1024, 512, 512))
        blas.dot(*_matrices(100, 5120, 512))  # rows enough for one part
    assert made == [(2, 2)]


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
