"""Values handed to others: read-only, and never in place of a derivative."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.errors import ConcretizationError, DtypeError, ShapeError

ARRAYS = {
    "plain": lambda: nv.array([1.0, 2.0, 3.0]),
    "transposed": lambda: nv.arange(6).reshape(2, 3).T,
    "reversed": lambda: nv.arange(4.0)[::-1],
    "empty": lambda: nv.zeros((0, 3)),
    "scalar": lambda: nv.array(2.0),
    "computed-scalar": lambda: nv.ones(3).sum(),
    "bool": lambda: nv.array([True, False]),
    "complex": lambda: nv.array([1j, 2.0]),
    "float16": lambda: nv.ones(2, nv.float16),
    "bfloat16": lambda: nv.ones((2, 3), nv.bfloat16).T,
    "bfloat16-scalar": lambda: nv.ones((), nv.bfloat16),
    "repeated": lambda: nv.zeros(10000),
}


@pytest.mark.parametrize("make", ARRAYS.values(), ids=ARRAYS)
def test_views_stay_read_only(make):
    x = make()
    for view in (np.asarray(x), x.numpy(), np.asarray(x).view()):
        assert (view.shape, view.dtype) == (x.shape, x.dtype)
        with pytest.raises(ValueError, match="WRITEABLE"):
            view.flags.writeable = True
    restored = pickle.loads(pickle.dumps(x))
    assert (restored.shape, restored.dtype) == (x.shape, x.dtype)
    np.testing.assert_array_equal(np.asarray(restored), np.asarray(x))
    writable = np.array(x)
    writable[...] = 0


def test_dlpack_copies_or_says_read_only():
    x = nv.array([1.0, 2.0, 3.0])
    later = x * 1
    for taken in (np.from_dlpack(x), np.from_dlpack(x, copy=True)):
        taken[0] = 99
    assert x.tolist() == later.tolist() == [1, 2, 3]
    view = np.from_dlpack(x, copy=False)
    assert not view.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.flags.writeable = True
    with pytest.raises(BufferError, match="read-only"):
        x.__dlpack__(copy=False)
    with pytest.raises(BufferError, match="bfloat16"):
        np.from_dlpack(nv.ones(2, nv.bfloat16))
    large = nv.zeros(10000)  # of one element and strides of 0
    np.from_dlpack(large)[0] = 1
    assert float(large[1]) == 0


EXPORTS = [
    np.asarray, np.array, np.from_dlpack, pickle.dumps, lambda x: x.tolist(),
    lambda x: x.tobytes(), lambda x: x.numpy(), lambda x: np.asarray(copy.deepcopy(x)),
]  # fmt: skip


@pytest.mark.parametrize("export", EXPORTS)
def test_exports_inside_grad_raise(export):
    def f(x):
        export(x * 2)
        return x.sum()

    for transform in (nv.grad(f), lambda x: nv.jvp(f, (x,), (x,))):
        with pytest.raises(ConcretizationError, match="derivative"):
            transform(nv.ones(2))
    export(nv.ones(2))


def test_what_grad_allows():
    seen = []

    def f(x):
        seen.extend([float(x[0]), int(x[0]), bool(x[0]), x[0].item(), str(x), f"{x[0]:.1f}"])
        export = nv.stop_gradient(x).tolist()
        return (copy.deepcopy(x) * nv.array(export)).sum()

    assert nv.grad(f)(nv.array([1.0, 2.0])).tolist() == [1, 2]
    assert seen == [1.0, 1, True, 1.0, "[1. 2.]", "1.0"]


def test_scalars_of_complex_and_of_many():
    x = nv.array(1 + 2j)
    assert complex(x) == 1 + 2j
    for kind in (float, int):
        with pytest.raises(DtypeError, match="imaginary"):
            kind(x)
    for kind in (bool, int, float):
        with pytest.raises(ShapeError, match=r"shape \(2,\)"):
            kind(nv.ones(2))
        with pytest.raises(TypeError):
            kind(nv.ones(2))
    with pytest.raises(ShapeError, match="item"):
        nv.ones(2).item()


def test_repr_of_empty_arrays_has_their_shape():
    assert repr(nv.zeros((0, 3))) == "array([], shape=(0, 3), dtype=float32)"
    assert repr(nv.zeros(0)) == "array([], dtype=float32)"


def test_values_without_derivative_may_leave_grad():
    def f(x):
        order = np.asarray(nv.argmax(x))
        mask = np.asarray(x > 1)
        shift = np.asarray(nv.stop_gradient(x) * 2 + 1)
        return (x * mask * shift)[int(order)]

    assert nv.grad(f)(nv.array([1.0, 2.0])).tolist() == [0, 5]
