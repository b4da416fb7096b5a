"""Arrays from values and rules."""

from __future__ import annotations

import array as python_array

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.errors import ConcretizationError, DtypeError, ShapeError


def check(x, expected, dtype):
    assert isinstance(x, nv.Array) and x.dtype == dtype
    np.testing.assert_array_equal(np.asarray(x), np.asarray(expected))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (True, nv.bool_),
        (3, nv.int32),
        (3.5, nv.float32),
        (1j, nv.complex64),
        ([1, 2], nv.int32),
        ([1, 2.5], nv.float32),
        ([True, 2], nv.int32),
        ([1, 2j], nv.complex64),
        ([], nv.float32),
        ([[], []], nv.float32),
        (((1, 2), (3, 4)), nv.int32),
        (range(3), nv.int32),
        (np.float64(3), nv.float64),
        (np.arange(3), nv.int64),
        ([np.float64(1), 2], nv.float64),
        ([np.float16(1), 2.5], nv.float16),
        ([np.int8(1), np.int16(300)], nv.int16),
        ([np.arange(2), [3, 4]], nv.int64),
        (np.arange(3, dtype=">i4"), nv.int32),
        (python_array.array("d", [1, 2]), nv.float64),
        (memoryview(b"ab"), nv.uint8),
        (np.array([[1, 2], [3, 4]])[:, ::-1], nv.int64),
    ],
)
def test_array_of_values(value, dtype):
    for make in (nv.array, nv.asarray):
        check(make(value), np.array(value), dtype)


def test_array_with_a_dtype():
    check(nv.array([1, 2], dtype=float), [1, 2], nv.float32)
    check(nv.array([1.7, -1.7], dtype=nv.int32), [1, -1], nv.int32)
    check(nv.array(2**40, dtype=nv.int64), 2**40, nv.int64)
    check(nv.array([0, 2], dtype=bool), [False, True], nv.bool_)
    check(nv.array(np.arange(3), dtype="bfloat16"), [0, 1, 2], nv.bfloat16)
    check(nv.array([1.5, 2], dtype=nv.bfloat16), [1.5, 2], nv.bfloat16)
    check(nv.array(nv.array([1, 2]), dtype=nv.float64), [1, 2], nv.float64)
    check(nv.array([nv.array(1), 2.5], dtype=nv.float64), [1, 2.5], nv.float64)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: nv.array(2**31), DtypeError, r"dtype=nv\.int64"),
        (lambda: nv.array([[1], [-(2**40)]]), DtypeError, r"dtype=nv\.int64"),
        (lambda: nv.array([300], dtype=nv.int8), DtypeError, "-128 to 127"),
        (lambda: nv.array([[1, 2], [3]]), ShapeError, r"ragged.*\(2,\), \(1,\)"),
        (lambda: nv.array([[nv.ones(2), nv.ones(3)]]), ShapeError, r"ragged.*\(2,\), \(3,\)"),
        (lambda: nv.array([1, [2]]), ShapeError, "ragged"),
        (lambda: nv.array([np.ones(2), np.ones(3)]), ShapeError, r"\(2,\), \(3,\)"),
        (lambda: nv.array("foo"), DtypeError, "str"),
        (lambda: nv.array(None), DtypeError, "NoneType"),
        (lambda: nv.array([1, None]), DtypeError, "NoneType"),
        (lambda: nv.array({"a": 1}), DtypeError, "dict"),
        (lambda: nv.array(np.array(["a"])), DtypeError, "not a dtype"),
        (lambda: nv.array(np.array([1j]), dtype=nv.float32), DtypeError, "imaginary"),
        (lambda: nv.array([1j], dtype=nv.float32), DtypeError, "imaginary"),
        (lambda: nv.asarray([1], copy=False), ValueError, "copy"),
        (lambda: nv.asarray(np.ones(2), dtype=nv.float32, copy=False), ValueError, "copy"),
        (lambda: nv.asarray(nv.ones(2), dtype=nv.int32, copy=False), ValueError, "copy"),
        (lambda: nv.zeros(-1), ShapeError, "negative"),
        (lambda: nv.zeros((2, 1.5)), TypeError, "integers"),
        (lambda: nv.full((2,), nv.ones(3)), ShapeError, "broadcast"),
        (lambda: nv.arange(0, 2**40, 2**38), DtypeError, r"dtype=nv\.int64"),
        (lambda: nv.arange(0, 5, 0), ValueError, "step"),
        (lambda: nv.arange(0, 5, 0.0), ValueError, "step"),
        (lambda: nv.arange(0, float("inf")), ValueError, "finite"),
        (lambda: nv.arange(1j), DtypeError, "real"),
        (lambda: nv.arange(nv.ones(2)), ShapeError, "single"),
        (lambda: nv.linspace(0, 1, -1), ValueError, "num"),
        (lambda: nv.tril(nv.ones(3)), ShapeError, r"\(3,\)"),
        (lambda: nv.meshgrid(nv.ones((2, 2))), ShapeError, "1-d"),
        (lambda: nv.meshgrid(nv.ones(2), indexing="yx"), ValueError, "ij"),
        (lambda: nv.from_dlpack(np.ones(2), device="gpu"), ValueError, "cpu"),
    ],
)
def test_errors(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_lists_of_arrays_are_stacked_and_differentiable():
    def f(x):
        return (nv.array([[x, 2.0], [x * x, x]]) * nv.array([[1.0, 2.0], [3.0, 4.0]])).sum()

    assert float(nv.grad(f)(nv.array(3.0))) == 1 + 3 * 6 + 4
    check(nv.array([nv.ones(2), np.zeros(2, np.float32), [3, 4]]), [[1, 1], [0, 0], [3, 4]],
          nv.float32)  # fmt: skip


def test_asarray_copies_what_somebody_can_write_to():
    source = np.arange(4.0)
    frozen = np.arange(4.0)
    frozen.flags.writeable = False
    reader = source.view()
    reader.flags.writeable = False
    assert not np.shares_memory(nv.asarray(source), source)
    assert not np.shares_memory(nv.asarray(reader), source)  # its base can be written to
    assert np.shares_memory(nv.asarray(frozen), frozen)
    assert np.shares_memory(nv.asarray(source, copy=False), source)
    assert not np.shares_memory(nv.asarray(frozen, copy=True), frozen)
    assert not np.shares_memory(nv.array(frozen), frozen)
    x = nv.ones(2)
    assert (
        nv.asarray(x) is x and nv.asarray(x, nv.float32) is x and nv.asarray(x, copy=True) is not x
    )


def test_constants():
    check(nv.zeros((2, 3)), np.zeros((2, 3)), nv.float32)
    check(nv.ones(2, int), [1, 1], nv.int32)
    check(nv.empty((0, 2), nv.bfloat16), np.zeros((0, 2)), nv.bfloat16)
    check(nv.full((), 3), 3, nv.int32)
    check(nv.full(2, 3, nv.float64), [3, 3], nv.float64)
    check(nv.full((2, 2), nv.array([1.0, 2.0])), [[1, 2], [1, 2]], nv.float32)
    check(nv.zeros(nv.array(3)), [0, 0, 0], nv.float32)
    x = nv.ones((2, 3), nv.int8)
    check(nv.zeros_like(x), np.zeros((2, 3)), nv.int8)
    check(nv.ones_like(x, float), np.ones((2, 3)), nv.float32)
    check(nv.full_like(x, 7), np.full((2, 3), 7), nv.int8)
    check(nv.empty_like(x, shape=(1,)), [0], nv.int8)


def test_large_constants_cost_no_memory():
    x = nv.zeros((10**6, 10**6))
    assert x.nbytes == 4 * 10**12
    check(x[5, :2] + 1, [1, 1], nv.float32)
    y = nv.full((100, 100), 2.0)
    y[0, 0] = 1
    assert float(y.sum()) == 2 * 10**4 - 1


def test_constants_inside_a_trace_are_constants():
    ir = str(nv.make_ir(lambda x: x + nv.arange(3) + nv.linspace(0, 1, 3))(nv.ones(3)))
    assert "arange" not in ir and ir.count("add") == 2
    with pytest.raises(ConcretizationError):
        nv.vmap(nv.arange)(nv.array([1, 2]))


@pytest.mark.parametrize(
    "bounds",
    [(5,), (2, 7), (7, 2), (0, 10, 3), (10, 0, -4), (0, 1, 0.1), (1.0, 0.0, -0.25), (0.5, 3),
     (np.float64(2.5),), (np.int64(0), np.int64(9), np.int64(2)), (-3.0,), (True,), (2**31 - 1,
     2**31)],
)  # fmt: skip
def test_arange(bounds):
    expected = np.arange(*bounds)
    dtype = nv.int32 if expected.dtype.kind == "i" else nv.float32
    if isinstance(bounds[0], np.generic):
        dtype = expected.dtype
    x = nv.arange(*bounds)
    assert x.dtype == dtype and x.shape == expected.shape
    np.testing.assert_allclose(np.asarray(x), expected, rtol=1e-6)


def test_arange_with_a_dtype():
    check(nv.arange(3, dtype=nv.float16), [0, 1, 2], nv.float16)
    check(nv.arange(250, 256, dtype=nv.uint8), range(250, 256), nv.uint8)
    check(nv.arange(2**63, 2**63 + 2, dtype=nv.uint64), [2**63, 2**63 + 1], nv.uint64)
    check(nv.arange(5, 0, -2, dtype=nv.uint8), [5, 3, 1], nv.uint8)
    check(nv.arange(nv.array(3)), [0, 1, 2], nv.int32)


def test_linspace():
    check(nv.linspace(0, 1, 5), np.linspace(0, 1, 5), nv.float32)
    check(nv.linspace(2, 3, 1), [2], nv.float32)
    check(nv.linspace(0, 1, 0), [], nv.float32)
    check(nv.linspace(0, 10, 4, dtype=int), [0, 3, 6, 10], nv.int32)
    assert nv.linspace(np.float64(0), 1, 3).dtype == nv.float64
    values, step = nv.linspace(0, 1, 4, endpoint=False, retstep=True)
    check(values, [0, 0.25, 0.5, 0.75], nv.float32)
    assert float(step) == 0.25
    x = nv.linspace(nv.array([0.1, 0.2]), nv.array(0.7), 7, axis=1)
    assert x.shape == (2, 7)
    check(x[:, 0], np.float32([0.1, 0.2]), nv.float32)
    check(x[:, -1], np.float32([0.7, 0.7]), nv.float32)


def test_identity_and_triangles():
    check(nv.eye(2, 3, 1), np.eye(2, 3, 1), nv.float32)
    check(nv.identity(2, bool), np.eye(2), nv.bool_)
    check(nv.tri(3, 2, -1, int), np.tri(3, 2, -1), nv.int32)
    x = np.arange(24).reshape(2, 3, 4)
    for k in (-2, 0, 1, 5):
        check(nv.tril(x, k), np.tril(x, k), nv.int64)
        check(nv.triu(x, k), np.triu(x, k), nv.int64)


@pytest.mark.parametrize("indexing", ["xy", "ij"])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_meshgrid(indexing, sparse, count):
    axes = [np.arange(n) for n in (2, 3, 4)[:count]]
    expected = np.meshgrid(*axes, indexing=indexing, sparse=sparse)
    for ours, numpys in zip(
        nv.meshgrid(*axes, indexing=indexing, sparse=sparse), expected, strict=True
    ):
        check(ours, numpys, nv.int64)
