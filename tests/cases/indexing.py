"""Rows for gather, the scatters and update_slice."""

from __future__ import annotations

from typing import Any

import numpy as np

from nuvec.core.functions.along import put_along_axis
from nuvec.core.functions.at import At
from nuvec.core.functions.indexing import getitem, setitem_value, take
from nuvec.core.ops.bounds import checked_index_p
from tests.cases.case import Case, integers, sample

_cube = sample(3, 4, 5)
_ix = np.array([2, 0, -1, 0])
_grid = np.array([[0, -2], [1, 1], [-1, 0]])


def _get(label: str, x: np.ndarray, index: Any, **options: Any) -> Case:
    """Read at an index of NumPy values."""
    return Case("gather", lambda x: getitem(x, index), (x,), lambda x: x[index], label, **options)


def _get_traced(label: str, x: np.ndarray, *arrays: np.ndarray, at: Any = None) -> Case:
    """Read where the index arrays are operands; `at` puts them into an index."""
    make = at or (lambda *i: i)
    return Case("gather", lambda x, *i: getitem(x, make(*i)), (x, *arrays),
                lambda x, *i: x[make(*i)], label)  # fmt: skip


def _set(label: str, x: np.ndarray, index: Any, v: np.ndarray, primitive: str = "scatter_set",
         **options: Any) -> Case:  # fmt: skip
    def reference(x: np.ndarray, v: np.ndarray) -> np.ndarray:
        x = x.copy()
        x[index] = v
        return x

    return Case(primitive, lambda x, v: setitem_value(x, index, v), (x, v), reference, label,
                **options)  # fmt: skip


_COMBINE = {
    "add": ("scatter_add", np.add), "multiply": ("scatter_multiply", np.multiply),
    "max": ("scatter_max", np.maximum), "min": ("scatter_min", np.minimum),
}  # fmt: skip


def _at(method: str, label: str, x: np.ndarray, v: np.ndarray, *arrays: np.ndarray,
        at: Any = None, **options: Any) -> Case:  # fmt: skip
    """Combine where the index arrays are operands."""
    primitive, ufunc = _COMBINE[method]
    make = at or (lambda *i: i)

    def reference(x: np.ndarray, v: np.ndarray, *i: np.ndarray) -> np.ndarray:
        x = x.copy()
        ufunc.at(x, make(*i), v)
        return x

    return Case(primitive, lambda x, v, *i: getattr(At(x)[make(*i)], method)(v), (x, v, *arrays),
                reference, label, **options)  # fmt: skip


def _dropping(x: np.ndarray, v: np.ndarray, i: np.ndarray, add: bool) -> np.ndarray:
    x = x.copy()
    for n, k in enumerate(i):
        if -len(x) <= k < len(x):
            x[k] = x[k] + v[n] if add else v[n]
    return x


_outside = np.array([1, 7, -1, -9, 1], np.int32)


def _filled(x: np.ndarray, i: np.ndarray) -> np.ndarray:
    rows = np.arange(len(i))[(i >= -len(x)) & (i < len(x))]
    out = np.full((len(i), *x.shape[1:]), 9, x.dtype)
    out[rows] = x[i[rows]]
    return out


CASES = [
    _get("one-array", _cube, _ix),
    _get("second-axis", _cube, (slice(None), _ix)),
    _get("last-axis", _cube, (Ellipsis, _ix)),
    _get("grid", _cube, _grid),
    _get("grid-in-the-middle", _cube, (slice(None), _grid)),
    _get("two-arrays", _cube, (_ix, _ix)),
    _get("two-arrays-behind", _cube, (slice(None), _ix, _ix)),
    _get("two-arrays-apart", _cube, (_ix, slice(None), _ix)),
    _get("three-arrays", _cube, (_ix, _ix, _ix)),
    _get("broadcast", _cube, (np.array([[0], [2]]), np.array([1, 3, -1]))),
    _get("broadcast-apart", _cube, (np.array([[0], [2]]), slice(1, 4, 2), np.array([1, 3, -1]))),
    _get("with-slices", _cube, (slice(None, None, -2), _ix, slice(4, 1, -1))),
    _get("with-integer", _cube, (1, _ix)),
    _get("with-integer-apart", _cube, (1, slice(None), _ix)),
    _get("with-integer-behind", _cube, (_ix, slice(None), 1)),
    _get("with-new-axis", _cube, (_ix, None, _ix)),
    _get("with-new-axis-behind", _cube, (slice(None), _ix, None)),
    _get("mask", _cube, _cube > 0),
    _get("mask-of-an-axis", _cube, (slice(None), np.array([True, False, False, True]))),
    _get("mask-with-integer", _cube, (0, np.array([True, False, False, True]))),
    _get("empty-index", _cube, np.array([], np.intp)),
    _get("empty-array", sample(2, 0), np.array([1, 0, 1])),
    _get("empty-both", sample(0, 2), np.zeros((0, 3), np.intp)),
    _get("list", _cube, [0, 2]),
    _get("strided", sample(6, 5).T[::2], np.array([2, 0])),
    _get("integers", integers(4), _ix, differentiable=False),
    _get("booleans", integers(4) > 0, _ix, differentiable=False),
    _get_traced("traced", _cube, _ix.astype("i4")),
    _get_traced("traced-scalar", _cube, np.array(-2, "i4")),
    _get_traced("traced-int8", _cube, _ix.astype("i1")),
    _get_traced("traced-uint8", _cube, np.array([2, 0], "u1")),
    _get_traced("traced-behind", _cube, _ix, at=lambda i: (slice(None), i)),
    _get_traced("traced-grid", _cube, _grid, at=lambda i: (slice(None), i, slice(1, 3))),
    _get_traced("traced-two", _cube, _ix, _ix[::-1].copy()),
    _get_traced("traced-two-behind", _cube, _ix, _ix[::-1].copy(),
                at=lambda i, j: (slice(None), i, j)),
    _get_traced("traced-two-apart", _cube, np.array([[0], [2]]), np.array([1, 3, -1]),
                at=lambda i, j: (i, slice(None), j)),
    _get_traced("traced-and-known", _cube, _ix, at=lambda i: (i, np.array([0, 1, 2, 3]))),
    _get_traced("traced-with-integer", _cube, _ix, at=lambda i: (1, slice(None), i)),
    Case("gather", lambda x, i: take(x, i, axis=1), (_cube, _grid),
         lambda x, i: np.take(x, i, axis=1), "take"),
    Case("gather", lambda x, i: take(x, i), (sample(2, 3), _grid), np.take, "take-flat"),
    Case("gather", lambda x, i: take(x, i, 0, mode="wrap"), (_cube, _outside),
         lambda x, i: np.take(x, i, 0, mode="wrap"), "take-wrap"),
    Case("gather", lambda x, i: take(x, i, 0, mode="clip"), (_cube, _outside),
         lambda x, i: np.take(x, i, 0, mode="clip"), "take-clip"),
    Case("gather", lambda x, i: At(x)[i].get(mode="fill", fill_value=9.0), (_cube, _outside),
         _filled, "fill"),
    Case("gather", lambda x, i: At(x)[i].get(mode="clip"), (sample(3), _outside),
         lambda x, i: x[np.clip(np.where(i < 0, i + 3, i), 0, 2)], "clip"),
    _at("add", "rows", sample(3, 4), sample(4, 4), _ix.astype("i4")),
    _at("add", "columns", sample(3, 4), sample(3, 4, seed=1), _ix, at=lambda i: (slice(None), i)),
    _at("add", "scalars", sample(5), sample(6), np.array([0, 4, 0, -1, 2, 0])),
    _at("add", "one-scalar", sample(5), sample(), np.array(3)),
    _at("add", "broadcast-value", sample(3, 4), sample(1, 4), _grid),
    _at("add", "long-rows", sample(2, 70), sample(4, 70, seed=1), np.array([1, 1, 0, 1])),
    _at("add", "no-duplicates", sample(4, 2), sample(2, 2, seed=1), np.array([3, -4])),
    _at("add", "two-arrays", _cube, sample(4, 5), _ix, _ix[::-1].copy()),
    _at("add", "two-arrays-apart", _cube, sample(4, 4), _ix, _ix,
        at=lambda i, j: (i, slice(None), j)),
    _at("add", "with-slice", _cube, sample(4, 2, 5), _ix, at=lambda i: (i, slice(3, 0, -2))),
    _at("add", "empty-index", sample(3, 2), sample(0, 2), np.zeros(0, np.intp)),
    _at("add", "empty-array", sample(2, 0), sample(3, 0), np.array([1, 0, 1])),
    _at("add", "integers", integers(5), integers(3), np.array([4, 4, 0]), differentiable=False),
    Case("scatter_add", lambda x, v, i: At(x)[i].add(v, mode="drop"),
         (sample(3, 2), sample(5, 2, seed=1), _outside),
         lambda x, v, i: _dropping(x, v, i, True), "drop"),
    _at("multiply", "duplicates", sample(3, 2), sample(4, 2, seed=1), _ix),
    _at("multiply", "no-duplicates", sample(4), sample(2, seed=1), np.array([3, 0])),
    _at("multiply", "columns", sample(3, 4), sample(3, 4, seed=1), _ix,
        at=lambda i: (slice(None), i)),
    _at("max", "duplicates", sample(3, 2), sample(4, 2, seed=1, low=-1.9), _ix),
    _at("max", "columns", sample(3, 4), sample(3, 4, seed=1, low=-1.9), _ix,
        at=lambda i: (slice(None), i)),
    _at("min", "duplicates", sample(3, 2), sample(4, 2, seed=1, low=-1.9), _ix),
    _at("min", "integers", integers(3), integers(4), _ix, differentiable=False),
    _set("rows", sample(4, 2), np.array([3, 0]), sample(2, 2, seed=1)),
    _set("duplicates", sample(4, 2), np.array([1, 0, 1, -3]), sample(4, 2, seed=1)),
    _set("columns-duplicates", sample(3, 4), (slice(None), _ix), sample(3, 4, seed=1)),
    _set("broadcast-value", sample(3, 4), _grid, sample(4, seed=1)),
    _set("scalar-value", sample(3, 4), _ix, sample()),
    _set("two-arrays", _cube, (_ix, _ix), sample(4, 5)),
    _set("two-arrays-apart", _cube, (_ix, slice(1, None), _ix), sample(4, 3)),
    _set("with-integer-apart", _cube, (1, slice(None), _ix), sample(4, 4)),
    _set("leading-ones", sample(3, 4), _ix, sample(1, 1, 4, 4)),
    _set("mask", _cube, (slice(None), np.array([True, False, False, True])), sample(3, 2, 5)),
    _set("empty-index", sample(3, 2), np.zeros(0, np.intp), sample(0, 2)),
    _set("integers", integers(5), np.array([4, 4, 0]), integers(3), differentiable=False),
    Case("scatter_set", lambda x, v, i: setitem_value(x, i, v),
         (sample(3, 2), sample(4, 2, seed=1), _ix),
         lambda x, v, i: _dropping(x, v, i, False), "traced-duplicates"),
    Case("scatter_set", lambda x, v, i: setitem_value(x, (slice(None), i), v),
         (sample(2, 3), sample(2, 4, seed=1), _ix),
         lambda x, v, i: _dropping(x.T, v.T, i, False).T, "traced-columns"),
    Case("scatter_set", lambda x, v, i: At(x)[i].set(v, mode="drop"),
         (sample(3, 2), sample(5, 2, seed=1), _outside),
         lambda x, v, i: _dropping(x, v, i, False), "drop"),
    _set("slice", sample(6), slice(1, 4), sample(3), "update_slice"),
    _set("slices", _cube, (slice(None, None, -2), slice(1, 3), slice(4, 0, -3)),
         sample(2, 2, 2), "update_slice"),
    _set("integer", sample(3, 2), -1, sample(2), "update_slice"),
    _set("integer-and-new-axis", _cube, (1, None, slice(0, 2)), sample(1, 2, 5), "update_slice"),
    _set("slice-scalar-value", sample(6), slice(4, 1, -1), sample(), "update_slice"),
    _set("slice-empty", sample(3), slice(2, 1), sample(0), "update_slice"),
    _set("slice-strided", sample(4, 6).T[::2], slice(1, None), sample(2, 4), "update_slice"),
    _set("slice-integers", integers(4), slice(1, 3), integers(2), "update_slice",
         differentiable=False),
]  # fmt: skip

_CHECKED = {
    "vector": (integers(4, low=-3, high=3), np.array(True)),
    "unwanted": (np.array([1, 7, -9], np.int32), np.array([True, False, False])),
    "rows": (np.array([[0, 9], [2, -3]], np.int8), np.array([False, True])),
    "scalar": (np.array(2, np.uint64), np.array(True)),
    "empty": (integers(0, 2), np.array(True)),
}
CASES += [
    Case("checked_index", lambda i, w: checked_index_p.bind(i, w, axis=0, shape=(3, 2)), arrays,
         lambda i, w: i, label, differentiable=False, tags=frozenset({"same-batch"}))
    for label, arrays in _CHECKED.items()
]  # fmt: skip


# put_along_axis: an index of its own for every line along an axis


def _put_along(x: np.ndarray, i: np.ndarray, v: np.ndarray, axis: int) -> np.ndarray:
    out = x.copy()
    np.put_along_axis(out, i, v, axis)
    return out


def _along(label: str, x: np.ndarray, i: np.ndarray, axis: int) -> Case:
    values = sample(*np.take_along_axis(x, i, axis).shape, seed=5)
    return Case("scatter_set", lambda x, i, v: put_along_axis(x, i, v, axis), (x, i, values),
                lambda x, i, v: _put_along(x, i, v, axis), f"put-along-{label}")  # fmt: skip


CASES += [
    _along("last-axis", sample(4, 5), np.array([[1], [0], [-1], [4]]), -1),
    _along("several", sample(3, 4), integers(3, 2, low=0, high=4, seed=3), 1),
    _along("first-axis", sample(3, 4), np.array([[2, 0, 1, 1], [0, 0, -1, 2]]), 0),
    _along("middle-axis", _cube, integers(3, 2, 5, low=-4, high=4), 1),
    _along("repeated", sample(2, 4), np.array([[1, 1, 3], [0, 0, 0]]), 1),
    _along("broadcast", _cube, np.array([[[0], [2]]]), 1),
    _along("nothing", sample(2, 3), np.zeros((2, 0), np.int32), 1),
]
