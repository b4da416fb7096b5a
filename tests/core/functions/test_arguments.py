"""Arguments of the wrong kind: which error, and what it says; and arguments taken for NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.errors import AxisError, DtypeError, OutOfBoundsError, ShapeError

X = nv.ones((2, 3))
KEY = nv.random.key(0)

WRONG = [
    (lambda: X[1.0], IndexError, "float 1.0"),
    (lambda: X["a"], IndexError, "str 'a'"),
    (lambda: X[nv.ones(2)], IndexError, "float32"),
    (lambda: X[1.0:], IndexError, r"slice.*1\.0"),
    (lambda: X[1.0:], TypeError, r"slice.*1\.0"),
    (lambda: X[::0], ValueError, "step is 0"),
    (lambda: nv.array(math.nan, nv.int32), DtypeError, "nan has no place in int32"),
    (lambda: nv.array([1, math.inf], nv.int32), DtypeError, "inf has no place in int32"),
    (lambda: nv.array([1, [2**40]][1]), DtypeError, "1099511627776 does not fit int32"),
    (lambda: nv.array(300, nv.uint8), DtypeError, "300 does not fit uint8"),
    (lambda: nv.zeros(2.0), TypeError, r"zeros: a shape.*2\.0"),
    (lambda: nv.zeros("3"), TypeError, "zeros: a shape.*'3'"),
    (lambda: nv.linspace(0, 1, 2.5), TypeError, r"linspace: num.*2\.5"),
    (lambda: nv.reshape(X, (2.0, 3)), TypeError, r"reshape: a shape.*2\.0"),
    (lambda: nv.broadcast_to(X, (2.0, 3)), TypeError, "broadcast_to: a shape"),
    (lambda: nv.tile(X, 2.5), TypeError, r"tile's reps.*2\.5"),
    (lambda: nv.roll(X, 1.5), TypeError, r"roll's shift.*1\.5"),
    (lambda: nv.round(X, 1.5), TypeError, "round's decimals"),
    (lambda: nv.one_hot(nv.array([1]), 2.5), TypeError, "one_hot's num_classes"),
    (lambda: nv.from_dlpack([1]), TypeError, "list does not speak DLPack"),
    (lambda: nv.random.permutation(KEY, 3.5), ShapeError, "permutation: x is"),
    (lambda: nv.random.normal((3,)), DtypeError, r"nv\.random\.normal\(shape=\(3,\)\)"),
    (lambda: nv.random.bernoulli(KEY, 1.5), ValueError, r"bernoulli.*1\.5"),
    (lambda: nv.random.bernoulli(KEY, np.float32([0.5, -1])), ValueError, "bernoulli.*-1"),
    (lambda: nv.random.bernoulli(KEY, math.nan), ValueError, "bernoulli.*nan"),
    (lambda: nv.count_nonzero(X, axis=5), AxisError, "count_nonzero: axis 5"),
    (lambda: nv.softmax(X, axis=5), AxisError, "softmax: axis 5"),
    (lambda: nv.allclose(X, nv.ones(5)), ShapeError, "allclose: shapes"),
    (lambda: nv.full((2,), "a"), DtypeError, "full: a str"),
    (lambda: nv.full_like(X, "a"), DtypeError, "full_like: a str"),
    (lambda: nv.mean(nv.array([1, 2]), dtype=int), DtypeError, "mean: dtype=int32"),
    (lambda: nv.var(nv.array([1, 2]), dtype="int64"), DtypeError, "var: dtype=int64"),
    (lambda: nv.std(nv.array([1, 2]), dtype=bool), DtypeError, "std: dtype=bool"),
    (lambda: nv.mean(nv.array([1j]), dtype=nv.float32), DtypeError, "imaginary"),
    (lambda: nv.ravel(X, order="F"), ValueError, "row by row"),
    (lambda: X.ravel("F"), ValueError, "row by row"),
    (lambda: X.reshape(3, 2, order="F"), ValueError, "row by row"),
    (lambda: nv.array(np.ma.masked_array([1.0, 2.0], [True, False])), DtypeError, "masked"),
    (lambda: X[0] + np.ma.masked_array([1.0, 2.0, 3.0], [True, False, False]), DtypeError, "mask"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), WRONG, ids=map(str, range(len(WRONG))))
def test_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


LISTS = [
    lambda: nv.allclose([1.0], [1.0]),
    lambda: nv.array_equal([1], [1]),
    lambda: nv.random.choice(KEY, [1, 2]),
    lambda: nv.random.choice(KEY, 2, p=[0.5, 0.5]),
    lambda: nv.random.permutation(KEY, [1, 2]),
    lambda: nv.random.categorical(KEY, [1.0, 2.0]),
    lambda: nv.meshgrid([1, 2], [1]),
    lambda: nv.linspace([1, 2], [1, 3], 2),
    lambda: nv.broadcast_arrays([1], [2]),
    lambda: nv.sum([1]),
]


@pytest.mark.parametrize("call", LISTS, ids=map(str, range(len(LISTS))))
def test_lists_are_refused_with_a_hint(call):
    with pytest.raises(DtypeError, match=r"is a list, not an array; nv\.array\(x\)"):
        call()


CREATORS = {
    "zeros": (2,), "ones": (2,), "empty": (2,), "full": (2, 1), "zeros_like": (X,),
    "ones_like": (X,), "empty_like": (X,), "full_like": (X, 1), "arange": (3,),
    "linspace": (0, 1, 3), "eye": (2,), "identity": (2,), "tri": (2,), "array": ([1],),
    "asarray": ([1],), "astype": (X, nv.float64),
}  # fmt: skip


@pytest.mark.parametrize("name", CREATORS)
def test_device(name):
    function, args = getattr(nv, name), CREATORS[name]
    assert function(*args, device="cpu").shape == function(*args, device=None).shape
    with pytest.raises(ValueError, match="no device 'gpu'"):
        function(*args, device="gpu")


def test_indices_out_of_bounds_beside_an_empty_selection():
    x, nine = nv.zeros((3, 4)), nv.array([9])
    for index in ((slice(0, 0), nine), (nine, slice(0, 0))):
        with pytest.raises(OutOfBoundsError, match="index 9"):
            np.asarray(x[index])
        with pytest.raises(IndexError):
            np.zeros((3, 4))[tuple(np.asarray(i) if i is nine else i for i in index)]
    nothing = nv.zeros(0, nv.int32)
    assert x[nine[:, None], nothing].shape == (1, 0)  # together they select nothing, as in NumPy
    index = (False, slice(None), slice(-1, 3, 2), [0])
    assert nv.zeros((1, 2, 0))[index].shape == np.zeros((1, 2, 0))[index].shape


def test_dot_general_in_jax_form():
    x, y = nv.ones((8, 2, 3)), nv.ones((8, 3, 4))
    numbers = (((2,), (1,)), ((0,), (0,)))
    for out in (
        nv.dot_general(x, y, numbers),
        nv.dot_general(x, y, dimension_numbers=numbers),
        nv.dot_general(x, y, ((2,), (1,)), ((0,), (0,))),
    ):
        assert out.shape == (8, 2, 4)
    assert nv.dot_general(x[0], y[0], (([1], [0]), ([], []))).shape == (2, 4)
    narrow = nv.full((200,), 100, nv.int8)
    wide = nv.dot_general(narrow, narrow, (((0,), (0,)), ((), ())), preferred_element_type="int32")
    assert wide.item() == 200 * 100 * 100
    for call in (
        lambda: nv.dot_general(x, y),
        lambda: nv.dot_general(x, y, numbers, ((0,), (0,))),
        lambda: nv.dot_general(x, y, numbers, dimension_numbers=numbers),
    ):
        with pytest.raises(TypeError, match="dot_general"):
            call()


def test_pad_of_booleans():
    x = nv.array([True, False])
    assert nv.pad(x, 1).tolist() == [False, True, False, False]
    assert nv.pad(x, 1, constant_values=[0, 1]).tolist() == [False, True, False, True]
    with pytest.raises(DtypeError):
        nv.pad(x, 1, constant_values=2)


def test_signs_of_infinite_complex_numbers():
    z = np.array([complex(math.inf, 1), complex(0, -math.inf), complex(-math.inf, 0),
                  complex(3, 4), 0, complex(math.inf, math.inf)], np.complex64)  # fmt: skip
    np.testing.assert_array_equal(np.asarray(nv.sign(nv.array(z))), np.sign(z))
    large = nv.sign(nv.array([3e38 + 3e38j]))
    np.testing.assert_allclose(np.asarray(large), [(1 + 1j) / 2**0.5], rtol=1e-6)


def test_rounding_where_the_scale_overflows():
    x = nv.array([1e38, 1.5, -123.456, math.inf, math.nan])
    assert nv.round(x, 5)[:3].tolist() == np.float32([1e38, 1.5, -123.456]).tolist()
    assert nv.round(x, 400)[:3].tolist() == x[:3].tolist()
    assert nv.round(x, -50)[:3].tolist() == [0, 0, 0]
    assert np.isposinf(nv.round(x, 400)[3].item())
    assert np.isnan(nv.round(x, -50)[4].item())
    assert nv.round(nv.array([1e38 + 1.26j]), 1).tolist() == [
        complex(np.float32(1e38), np.float32(1.3))
    ]


def test_small_things():
    assert nv.square(nv.array([True, False])).dtype == nv.bool_
    assert math.trunc(nv.array(-1.5)) == -1
    assert isinstance(nv.unstack(nv.ones((2, 3))), tuple)
    assert X.clip(min=2).tolist() == nv.clip(X, max=None, min=2).tolist()
