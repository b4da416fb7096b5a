"""take_along and add_along: order of additions, bounds, what is recorded, tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core import dtypes
from nuvec.core.errors import DtypeError, OutOfBoundsError, ShapeError
from nuvec.core.ir import aval
from nuvec.core.lower import lower
from nuvec.core.ops.along import add_along_p, take_along_p
from nuvec.core.ops.indexing import scatter_add_p
from nuvec.testing.compare import primitives_in
from tests.core.lower.programs import LAYOUTS, bits, check, f4, laid_out, program

RNG = np.random.default_rng(0)


def _in_order(x: np.ndarray, i: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Additions along the last axis, one after the other."""
    out = np.array(x)
    for place in np.ndindex(i.shape):
        out[(*place[:-1], i[place])] += v[place]
    return out


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("count", [1, 3, 200])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int32"])
def test_additions_are_made_in_the_order_of_the_index(layout: str, count: int, dtype: str) -> None:
    x = (RNG.standard_normal((5, 7)) * 1e3).astype(dtype)
    i = RNG.integers(-7, 7, (5, count))
    v = RNG.standard_normal((5, count)).astype(dtype)
    operands = [laid_out(a, layout) for a in (x, i, v)]
    found = add_along_p.lower(*operands, axis=-1, shape=x.shape, mode="raise")
    assert bits(found) == bits(_in_order(x, i, v))
    assert found.flags.c_contiguous


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bit_floats_are_added_in_float32(dtype: str) -> None:
    x, ones = nv.zeros((2, 3), dtype=dtype), nv.ones((2, 4096), dtype=dtype)
    index = nv.zeros((2, 4096), dtype="int32")
    out = add_along_p.bind(x, index, ones, axis=-1, shape=(2, 3), mode="raise")
    assert out.astype("float32").tolist() == [[4096, 0, 0]] * 2
    one = RNG.standard_normal((9, 1)).astype(np.float32)
    x = nv.array(RNG.standard_normal((9, 5)).astype(np.float32)).astype(dtype)
    labels, values = nv.array(RNG.integers(0, 5, (9, 1))), nv.array(one).astype(dtype)
    rows = nv.arange(9).reshape((9, 1))
    expected = scatter_add_p.bind(x, values, rows, labels, axes=(0, 1), mode="raise")
    found = add_along_p.bind(x, labels, values, axis=-1, shape=x.shape, mode="raise")
    assert bits(found) == bits(expected)


# Bounds


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint64"])
@pytest.mark.parametrize("columns", [1, 2])
def test_an_index_out_of_bounds_is_an_error_when_it_is_evaluated(dtype: str, columns: int) -> None:
    x, index = nv.ones((3, 4)), np.zeros((3, columns), dtype)
    index[1, -1] = 9
    message = "index 9 is out of bounds for axis 1 with size 4, of an array of shape (3, 4)"
    index = nv.array(index)
    values = nv.ones(index.shape)
    for out in (
        nv.take_along_axis(x, index, 1),
        add_along_p.bind(x, index, values, axis=-1, shape=(3, 4), mode="raise"),
    ):
        with pytest.raises(OutOfBoundsError) as caught:
            nv.eval(out)
        assert message in str(caught.value)


def test_a_known_index_out_of_bounds_is_an_error_at_once() -> None:
    with pytest.raises(OutOfBoundsError, match="index -5 is out of bounds for axis 1 with size 4"):
        nv.take_along_axis(nv.ones((3, 4)), np.array([[-5]]), 1)


def test_unsigned_indices_beyond_every_axis() -> None:
    index = nv.array(np.array([[2**64 - 1, 1]], np.uint64))
    x = nv.array([[1.0, 2.0]])
    assert take_along_p.bind(x, index, axis=-1, mode="drop").tolist() == [[0, 2]]
    with pytest.raises(OutOfBoundsError, match="out of bounds"):
        nv.eval(nv.take_along_axis(x, index, 1))


def test_nothing_to_read() -> None:
    empty, index = nv.zeros((2, 0)), nv.zeros((2, 1), dtype="int32")
    with pytest.raises(OutOfBoundsError, match="axis 1 with size 0"):
        nv.eval(nv.take_along_axis(empty, index, 1))
    assert take_along_p.bind(empty, index, axis=-1, mode="drop").tolist() == [[0], [0]]
    kept = add_along_p.bind(empty, index, index * 1.0, axis=-1, shape=(2, 0), mode="drop")
    assert kept.tolist() == [[], []]


def _tiled_at(f: Any, *avals: Any) -> list[str]:
    groups = [g for g in lower(program(f, *avals)).groups if g.rows is not None]
    return [e.primitive.name for g in groups for e in g.eqns]


def test_errors_from_a_tile_name_the_whole_array() -> None:
    def read(x: Any, i: Any) -> Any:
        return nv.take_along_axis(nv.exp(x), i, 2) * 2

    def write(x: Any, i: Any) -> Any:
        return add_along_p.bind(nv.exp(x), i, nv.ones((4, 128, 1)), axis=-1, shape=x.shape,
                                mode="raise") * 2  # fmt: skip

    x, index = np.zeros((4, 128, 1000), np.float32), np.zeros((4, 128, 1), np.int32)
    index[3, 100] = 1000
    for f, name in ((read, "take_along"), (write, "add_along")):
        assert name in _tiled_at(f, f4(*x.shape), aval(index.shape, dtypes.int32))
        for run in (f, nv.compile(f)):
            with pytest.raises(OutOfBoundsError) as caught:
                nv.eval(run(nv.array(x), nv.array(index)))
            assert "axis 2 with size 1000, of an array of shape (4, 128, 1000)" in str(caught.value)


# What is refused


def test_what_does_not_fit_is_refused() -> None:
    x = nv.ones((3, 4))
    place = {"axis": -1, "mode": "raise"}
    for index in (nv.zeros((2, 1), dtype="int32"), nv.zeros((1, 3, 1), dtype="int32"),
                  nv.zeros((), dtype="int32")):  # fmt: skip
        with pytest.raises(ShapeError, match="take_along: indices"):
            take_along_p.bind(x, index, **place)
    with pytest.raises(ShapeError, match="take_along: indices"):
        take_along_p.bind(x, nv.zeros(4, dtype="int32"), axis=-2, mode="raise")
    with pytest.raises(DtypeError, match="indices must be integers"):
        take_along_p.bind(x, nv.zeros((3, 1)), **place)
    labels = nv.zeros((3, 1), dtype="int32")
    for values in (nv.ones((3, 2)), nv.ones((3, 1), dtype="float64")):
        with pytest.raises(ShapeError, match="one dtype, and broadcast"):
            add_along_p.bind(x, labels, values, shape=(3, 4), **place)
    with pytest.raises(ShapeError, match="one dtype, and broadcast"):
        add_along_p.bind(nv.ones(3), labels, nv.ones(()), shape=(3, 4), **place)


# What is recorded


def test_one_array_for_a_batch_of_indices_is_not_repeated() -> None:
    def read(x: Any, i: Any) -> Any:
        return nv.take_along_axis(x, i, 1).sum()

    index = nv.array(RNG.integers(0, 4, (6, 3, 2)))
    batched = nv.make_ir(nv.grad(lambda x: nv.vmap(read, (None, 0))(x, index).sum()))(
        nv.ones((3, 4))
    )
    assert "broadcast_to" not in {
        e.primitive.name for e in batched.eqns if e.outputs[0].aval.shape == (6, 3, 4)
    }
    assert {"take_along", "add_along"} & primitives_in(batched)


def test_labels_are_read_and_their_gradient_added_in_tiles() -> None:
    def loss(x: Any, i: Any) -> Any:
        return (nv.take_along_axis(nv.log(x), i, 1) ** 2).sum()

    f = nv.value_and_grad(loss)
    labels = aval((512, 1), dtypes.int32)
    names = _tiled_at(lambda x, i: list(f(x, i)), f4(512, 1024), labels)
    assert {"log", "take_along", "add_along"} <= set(names)
    assert _tiled_at(lambda x, i: nv.take_along_axis(nv.exp(x), i, 0), f4(512, 1024),
                     aval((1, 1024), dtypes.int32)) == ["exp"]  # fmt: skip


def test_one_index_for_all_rows_is_shared_by_tiles() -> None:
    def f(x: Any, i: Any) -> list[Any]:
        y = nv.take_along_axis(nv.exp(x), i, 1)
        return [add_along_p.bind(x, i, y, axis=-1, shape=x.shape, mode="raise")]

    index = aval((1, 512), dtypes.int32)
    assert _tiled_at(f, f4(512, 1024), index) == ["exp", "take_along", "add_along"]
    x = RNG.standard_normal((512, 1024)).astype(np.float32)
    check(program(f, f4(512, 1024), index), x, RNG.integers(0, 1024, (1, 512)).astype(np.int32))


def test_an_index_for_each_outer_row() -> None:
    """A sum over the inner rows keeps tiles from straddling the outer ones."""

    def f(x: Any, i: Any, v: Any) -> list[Any]:
        y = nv.take_along_axis(nv.exp(x), i, 2)
        z = add_along_p.bind(x, i, v, axis=-1, shape=x.shape, mode="raise")
        return [y.sum(1), z.sum(1)]

    avals = f4(4, 256, 512), aval((4, 1, 300), dtypes.int32), f4(4, 1, 300)
    names = _tiled_at(f, *avals)
    assert sorted(names) == ["add_along", "exp", "sum", "sum", "take_along"]
    x, v = (RNG.standard_normal(a.shape).astype(np.float32) for a in (avals[0], avals[2]))
    i = RNG.integers(0, 512, avals[1].shape).astype(np.int32)
    for found, expected in zip(lower(program(f, *avals)).run(x, i, v), _plain(f, x, i, v),
                               strict=True):  # fmt: skip
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def _plain(f: Any, *arrays: np.ndarray) -> list[np.ndarray]:
    return [np.asarray(y) for y in f(*map(nv.array, arrays))]
