"""Indexing against NumPy on random index expressions; modes, errors, masks, tracing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.errors import ConcretizationError, DtypeError, OutOfBoundsError, ShapeError
from nuvec.core.functions.along import put_along_axis, take_along_axis
from nuvec.core.functions.at import At
from nuvec.core.functions.indexing import getitem, setitem_value, take
from nuvec.transforms.compile import compile
from nuvec.transforms.grad import grad
from nuvec.transforms.vmap import vmap


def _random_entry(rng: Any, n: int, index_shape: tuple[int, ...]) -> Any:
    """What stands for one axis of size n."""
    kind = rng.integers(0, 7)
    if kind == 0 and n:
        return int(rng.integers(-n, n))
    if kind in (1, 2):
        bound = [None if rng.random() < 0.3 else int(rng.integers(-n - 2, n + 3)) for _ in "ab"]
        return slice(*bound, int(rng.choice([-3, -2, -1, 1, 2, 3])))
    if kind in (3, 4) and n:
        shape = tuple(1 if rng.random() < 0.3 else m for m in index_shape)
        array = rng.integers(-n, n, size=shape)
        return array.tolist() if rng.random() < 0.3 else array
    if kind == 5:
        return rng.random(n) < 0.5
    return slice(None)


def random_index(rng: Any, shape: tuple[int, ...]) -> Any:
    index: list[Any] = []
    index_shape = tuple(rng.integers(1, 4, size=rng.integers(0, 3)))
    axis, ellipsis = 0, False
    while axis < len(shape):
        what = rng.random()
        if what < 0.1:
            index.append(None)
        elif what < 0.13:
            index.append(bool(rng.integers(0, 2)))
        elif what < 0.2 and not ellipsis:
            ellipsis = True
            index.append(Ellipsis)
            axis += int(rng.integers(0, 3))
        elif what < 0.3:
            break
        else:
            index.append(_random_entry(rng, shape[axis], index_shape))
            axis += 1
    return index[0] if len(index) == 1 and rng.random() < 0.5 else tuple(index)


def _traced(entry: Any) -> Any:
    return nv.array(np.asarray(entry)) if isinstance(entry, np.ndarray | list) else entry


@pytest.mark.parametrize("seed", range(8))
def test_random_expressions_read_and_write_as_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    done = 0
    while done < 60:
        low = 0 if rng.random() < 0.1 else 1
        shape = tuple(int(n) for n in rng.integers(low, 5, size=int(rng.integers(1, 5))))
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        index = random_index(rng, shape)
        try:
            expected = np.asarray(x[index])
        except IndexError:
            with pytest.raises(IndexError):
                getitem(x, index)
            continue
        done += 1
        value = rng.random(expected.shape).astype(np.float32)
        if value.ndim and rng.random() < 0.3:
            value = value[:1]
        written = x.copy()
        written[index] = value
        arrays = tuple(map(_traced, index)) if type(index) is tuple else _traced(index)
        for given in (index, arrays):
            got = np.asarray(getitem(x, given))
            assert got.shape == expected.shape, (shape, index)
            np.testing.assert_array_equal(got, expected, err_msg=f"{shape} {index}")
            put = setitem_value(nv.array(x), given, value)
            np.testing.assert_array_equal(np.asarray(put), written, err_msg=f"{shape} {index}")


def test_the_gradient_of_a_write_goes_to_the_last_of_several_values() -> None:
    index = nv.array([1, 0, 1])
    weight = nv.array([10.0, 20.0, 30.0])

    def f(x: Any, v: Any) -> Any:
        return (setitem_value(x, index, v) * weight).sum()

    dx, dv = grad(f, argnums=(0, 1))(nv.zeros(3), nv.ones(3))
    np.testing.assert_array_equal(np.asarray(dx), [0, 0, 30])
    np.testing.assert_array_equal(np.asarray(dv), [0, 10, 20])


def test_a_write_cuts_off_an_infinite_derivative_behind_it() -> None:
    x = nv.array([0.0, 4.0])
    for index in (0, np.array([0]), np.array([True, False])):
        got = grad(lambda x, i=index: setitem_value(nv.sqrt(x), i, 1.0).sum())(x)
        np.testing.assert_array_equal(np.asarray(got), [0, 0.25])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "bool", "complex64"])
def test_scatters_of_every_dtype(dtype: str) -> None:
    x = nv.zeros(3, dtype=dtype)
    i = np.array([0, 2, 0])
    one = nv.ones(3, dtype=dtype)
    at = At(x)[i]
    names = ["set", "add", "multiply"] + (["min", "max"] if dtype != "complex64" else [])
    for name in names:
        out = getattr(at, name)(one)
        assert out.dtype == dtype
        value = np.asarray(out).astype(complex)
        expected = {"set": 1, "max": 1, "add": 1 if dtype == "bool" else 2}.get(name, 0)
        assert value[0] == expected
        assert value[1] == 0


# Bounds


@pytest.mark.parametrize("index", [3, -4, (0, 5), [0, 3], np.array([-4]), (slice(None), [4])])
def test_known_index_out_of_bounds_raises_at_the_call(index: Any) -> None:
    with pytest.raises(OutOfBoundsError, match="out of bounds for axis"):
        getitem(nv.zeros((3, 4)), index)
    with pytest.raises(OutOfBoundsError):
        setitem_value(nv.zeros((3, 4)), index, 1.0)


def test_array_index_out_of_bounds_raises_at_evaluation() -> None:
    x, i = nv.zeros((3, 4)), nv.array([0, 3])
    for out in (getitem(x, i), setitem_value(x, i, 1.0), getitem(x, (i, i)), At(x)[i].add(1.0)):
        for _ in range(2):  # each time
            with pytest.raises(OutOfBoundsError, match="index 3 is out of bounds for axis 0"):
                np.asarray(out)


def test_uint64_indices_do_not_wrap_around() -> None:
    huge = np.array([2**64 - 1], np.uint64)
    with pytest.raises(OutOfBoundsError):
        getitem(nv.zeros(3), huge)
    with pytest.raises(OutOfBoundsError):
        np.asarray(getitem(nv.zeros(3), nv.array(huge)))
    x = nv.array([1.0, 2.0, 3.0])
    for i in (nv.array([2**64 - 1, 1], dtype="uint64"), nv.array([2**63 + 5, 1], dtype="uint64")):
        np.testing.assert_array_equal(At(x)[i].get(mode="fill"), [np.nan, 2])
        np.testing.assert_array_equal(At(x)[i].get(mode="clip"), [3, 2])
        np.testing.assert_array_equal(At(x)[i].set(5.0, mode="drop"), [1, 5, 3])
        np.testing.assert_array_equal(At(x)[i].add(5.0, mode="drop"), [1, 7, 3])


def test_modes() -> None:
    x = nv.array([1.0, 2.0, 3.0])
    for i in (np.array([0, 5, -1, -7]), nv.array([0, 5, -1, -7]), [0, 5, -1, -7]):
        at = At(x)[i]
        np.testing.assert_array_equal(np.asarray(at.get(mode="clip")), [1, 3, 3, 1])
        np.testing.assert_array_equal(np.asarray(at.get(mode="fill")), [1, np.nan, 3, np.nan])
        np.testing.assert_array_equal(np.asarray(at.get(mode="fill", fill_value=0)), [1, 0, 3, 0])
        np.testing.assert_array_equal(np.asarray(at.set(9, mode="drop")), [9, 2, 9])
        np.testing.assert_array_equal(np.asarray(at.add(1, mode="drop")), [2, 2, 4])
        np.testing.assert_array_equal(np.asarray(at.add(1, mode="clip")), [3, 2, 5])
        np.testing.assert_array_equal(np.asarray(at.max(2.5, mode="drop")), [2.5, 2, 3])
        np.testing.assert_array_equal(np.asarray(at.mul(3, mode="drop")), [3, 2, 9])
        with pytest.raises(IndexError):
            np.asarray(at.get())
    ints = At(nv.array([1, 2], dtype="uint8"))[np.array([7])].get(mode="fill")
    assert np.asarray(ints) == [255]
    assert np.asarray(At(x)[7].get(mode="clip")) == 3
    assert np.isnan(np.asarray(At(x)[7].get(mode="fill")))
    np.testing.assert_array_equal(np.asarray(At(x)[7].set(1.0, mode="drop")), [1, 2, 3])
    with pytest.raises(ValueError, match="mode must be one of raise, clip, fill, drop"):
        At(x)[0].get(mode="wrap")
    with pytest.raises(ValueError, match="fill_value goes with mode='fill'"):
        At(x)[0].get(fill_value=1.0)


@pytest.mark.parametrize("index", [
    (slice(None), np.array([0, 9])), (np.array([[0], [5]]), np.array([1, -9])),
    (1, slice(None), np.array([[0, 9]])), (np.array([0, 7]), slice(0, 2), 1),
    (slice(1, None), 1, np.array([0, 9])),
])  # fmt: skip
def test_fill_in_any_place(index: Any) -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    if len(index) == 2 and not isinstance(index[0], slice):
        x = x[0]
    # NumPy reads the fill value where an index that was out of bounds points into a padding.
    padded = np.pad(x, [(0, 9)] * x.ndim, constant_values=-1.0)
    moved = []
    for i, n in zip(index, x.shape, strict=False):
        if isinstance(i, np.ndarray):
            i = np.where((i < -n) | (i >= n), n, np.where(i < 0, i + n, i))
        moved.append(slice(*i.indices(n)) if isinstance(i, slice) else i)
    rest = tuple(slice(0, n) for n in x.shape[len(index) :])
    expected = padded[(*moved, *rest)]
    got = At(nv.array(x))[index].get(mode="fill", fill_value=-1.0)
    np.testing.assert_array_equal(np.asarray(got), expected)


def test_take_modes() -> None:
    x = np.arange(12).reshape(3, 4)
    i = np.array([[5, -1], [0, -9]])
    for mode in ("wrap", "clip"):
        for given in (i, nv.array(i), nv.array(i.astype("i1"))):
            got = np.asarray(take(x, given, axis=1, mode=mode))
            np.testing.assert_array_equal(got, np.take(x, i, axis=1, mode=mode))
    with pytest.raises(ValueError, match="'raise', 'wrap' or 'clip'"):
        take(x, i, mode="fill")
    with pytest.raises(OutOfBoundsError):
        take(x, i, axis=1)


# Masks


def test_mask_under_trace_says_why_and_what_instead() -> None:
    why = r"the shape of the result needs its values.*nv\.where"
    with pytest.raises(ConcretizationError, match=why):
        vmap(lambda x: getitem(x, x > 0))(nv.ones((2, 3)))
    with pytest.raises(ConcretizationError, match="boolean mask"):
        compile(lambda x: getitem(x, x > 0))(nv.ones(3))


def test_mask_write_of_a_scalar_works_under_trace() -> None:
    x = nv.array([[-1.0, 2.0], [3.0, -4.0]])
    out = vmap(lambda r: setitem_value(r, r < 0, 0.0))(x)
    np.testing.assert_array_equal(np.asarray(out), [[0, 2], [3, 0]])
    out = compile(lambda r: At(r)[r < 0].add(10.0))(x)
    np.testing.assert_array_equal(np.asarray(out), [[9, 2], [3, 6]])
    row = compile(lambda r: setitem_value(r, r[:, 0] < 0, nv.array([7.0, 8.0])))(x)
    np.testing.assert_array_equal(np.asarray(row), [[7, 8], [3, -4]])


def test_mask_of_a_differentiated_array_is_concrete() -> None:
    x = nv.array([-1.0, 2.0, 3.0])
    got = grad(lambda x: (getitem(x, x > 0) ** 2).sum())(x)
    np.testing.assert_array_equal(np.asarray(got), [0, 4, 6])


def test_mask_of_another_size_raises() -> None:
    with pytest.raises(IndexError, match=r"mask of shape \(2,\) does not fit"):
        getitem(nv.zeros((3, 2)), np.array([True, False]))


# Dtypes and shapes of what is written


@pytest.mark.parametrize(("dtype", "value"), [
    ("int32", 1.5), ("int32", np.float32([1.0])), ("float32", 1j), ("bool", 1),
    ("uint8", np.int32([1])),
])  # fmt: skip
def test_a_kind_that_holds_less_is_refused(dtype: str, value: Any) -> None:
    with pytest.raises(DtypeError, match=r"Convert the array first|out of range"):
        setitem_value(nv.zeros(3, dtype=dtype), 0, value)


@pytest.mark.parametrize(("dtype", "value"), [
    ("float32", 1), ("float32", np.float64([2.0])), ("int32", np.int64([3])), ("uint8", 7),
    ("complex64", 1.0), ("float16", True), ("bfloat16", 0.5),
])  # fmt: skip
def test_a_kind_that_holds_as_much_is_converted(dtype: str, value: Any) -> None:
    out = setitem_value(nv.zeros(3, dtype=dtype), slice(0, 1), value)
    assert out.dtype == dtype
    assert np.asarray(out)[0] == np.asarray(value)


def test_a_value_that_does_not_fit_raises_with_shapes() -> None:
    with pytest.raises(ShapeError, match=r"shape \(3,\) does not broadcast to \(2, 4\).*\(3, 4\)"):
        setitem_value(nv.zeros((3, 4)), slice(0, 2), nv.ones(3))


def test_a_python_int_out_of_range_raises() -> None:
    with pytest.raises(DtypeError, match="300"):
        setitem_value(nv.zeros(3, dtype="uint8"), 0, 300)


# Wrong indices


@pytest.mark.parametrize(("index", "message"), [
    ((0, 0, 0), "too many indices"), ((Ellipsis, Ellipsis), "only one ellipsis"),
    (1.0, "integer arrays and boolean masks, got float"), ("a", "got str"),
    (np.array([1.0]), "got float64"), (([0, 1], [0, 1, 2]), "do not broadcast together"),
])  # fmt: skip
def test_wrong_indices_say_what_is_wrong(index: Any, message: str) -> None:
    with pytest.raises((IndexError, DtypeError), match=message):
        getitem(nv.zeros((3, 4)), index)


def test_a_float_array_index_raises() -> None:
    with pytest.raises(DtypeError, match="float32"):
        getitem(nv.zeros(3), nv.array([1.0]))


def test_writing_to_the_index_afterwards_does_not_show() -> None:
    index = np.array([0, 1])
    out = getitem(nv.array([1.0, 2.0, 3.0]), index)
    index[:] = 2
    np.testing.assert_array_equal(np.asarray(out), [1, 2])


def test_indexing_inside_compile_reads_a_captured_index_at_every_call() -> None:
    index = nv.array([0, 1])
    f = compile(lambda x: getitem(x, index))
    x = nv.array([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(np.asarray(f(x)), [1, 2])
    index[...] = nv.array([2, 2])
    np.testing.assert_array_equal(np.asarray(f(x)), [3, 3])


def test_batched_scatter_is_bit_for_bit_a_loop() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((4, 9, 130)).astype(np.float32)
    v = rng.random((4, 50, 130)).astype(np.float32)
    i = rng.integers(0, 9, (4, 50))
    for cut in (1, 130):
        out = vmap(lambda x, i, v: At(x)[i].add(v))(x[..., :cut], i, v[..., :cut])
        loop = [np.asarray(At(nv.array(a[..., :cut]))[b].add(c[..., :cut]))
                for a, b, c in zip(x, i, v, strict=True)]  # fmt: skip
        np.testing.assert_array_equal(np.asarray(out), np.stack(loop))


def test_float16_scatter_add_accumulates_in_float32() -> None:
    out = At(nv.zeros(1, dtype="float16"))[np.zeros(4096, int)].add(
        nv.ones(4096, dtype="float16")
    )  # by itself float16 stops counting at 2048
    assert np.asarray(out)[0] == 4096


# Along an axis


def test_along_axis_as_numpy() -> None:
    rng = np.random.default_rng(1)
    x = rng.random((2, 3, 4)).astype(np.float32)
    for axis in (0, 1, -1):
        shape = list(x.shape)
        shape[axis] = 5
        i = rng.integers(-x.shape[axis], x.shape[axis], shape)
        got = np.asarray(take_along_axis(x, nv.array(i), axis))
        np.testing.assert_array_equal(got, np.take_along_axis(x, i, axis))
    order = np.argsort(x, 1)
    put = x.copy()
    np.put_along_axis(put, order[:, :1], 7.0, 1)
    got = np.asarray(put_along_axis(x, order[:, :1], 7.0, 1))
    np.testing.assert_array_equal(got, put)
    flat = np.asarray(take_along_axis(x, np.array([5, 1]), None))
    np.testing.assert_array_equal(flat, np.take_along_axis(x, np.array([5, 1]), None))
    with pytest.raises(ShapeError, match="need the same number of axes"):
        take_along_axis(x, np.array([0]), 1)
