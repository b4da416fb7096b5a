"""Rows for take_along and add_along."""

from __future__ import annotations

from typing import Any

import numpy as np

from nuvec.core.functions.along import take_along_axis
from nuvec.core.ops.along import add_along_p, take_along_p
from tests.cases.case import Case, integers, sample


def _take(label: str, x: np.ndarray, i: np.ndarray, axis: int | None, **options: Any) -> Case:
    return Case("take_along", lambda x, i: take_along_axis(x, i, axis), (x, i),
                lambda x, i: np.take_along_axis(x, i, axis), label, **options)  # fmt: skip


def _add(
    label: str, x: np.ndarray, i: np.ndarray, v: np.ndarray, axis: int,
    shape: tuple[int, ...] | None = None, mode: str = "raise", **options: Any,
) -> Case:  # fmt: skip
    shape = x.shape if shape is None else shape

    def reference(x: np.ndarray, i: np.ndarray, v: np.ndarray) -> np.ndarray:
        out = np.array(np.broadcast_to(x, shape))
        i = np.broadcast_to(i, (*shape[:axis], i.shape[axis], *shape[axis:][1:]))
        v = np.broadcast_to(v, i.shape)
        for place in np.ndindex(i.shape):
            at = list(place)
            at[axis] = k = i[place]
            if -shape[axis] <= k < shape[axis]:
                out[tuple(at)] += v[place]
        return out

    return Case("add_along",
                lambda x, i, v: add_along_p.bind(x, i, v, axis=axis, shape=shape, mode=mode),
                (x, i, v), reference, label, **options)  # fmt: skip


def _read_or_zero(x: np.ndarray, i: np.ndarray) -> np.ndarray:
    inside = (i >= -x.shape[-1]) & (i < x.shape[-1])
    return np.where(inside, np.take_along_axis(x, np.where(inside, i, 0), -1), 0).astype(x.dtype)


_cube = sample(3, 4, 5)
_labels = integers(6, 1, low=0, high=4)
_several = integers(3, 4, 7, low=-5, high=5)
_outside = np.array([[1, 7, -1], [-9, 1, 0]], np.int32)

CASES = [
    _take("labels", sample(6, 4), _labels, 1),
    _take("last-axis", _cube, _several, -1),
    _take("second-axis", _cube, integers(3, 2, 5, low=-4, high=4).astype("i8"), 1),
    _take("first-axis", _cube, integers(6, 4, 5, low=0, high=3).astype("u1"), 0),
    _take("vector", sample(5), integers(3, low=-5, high=5), 0),
    _take("flat", sample(2, 3), integers(4, low=0, high=6), None),
    _take("index-repeated", _cube, integers(1, 4, 2, low=0, high=5), -1),
    _take("index-repeated-everywhere", _cube, integers(1, 6, 1, low=0, high=4), 1),
    _take("array-repeated", sample(1, 4), integers(3, 2, low=0, high=4), 1),
    _take("strided", sample(6, 5).T[::2], integers(4, 3, low=0, high=6).T, 1),
    _take("empty-index", _cube, np.zeros((3, 4, 0), np.int32), 2),
    _take("empty-lines", sample(0, 3), np.zeros((0, 2), np.int32), 1),
    _take("integers", integers(3, 4), integers(3, 2, low=0, high=4), 1, differentiable=False),
    _take("booleans", integers(3, 4) > 0, integers(3, 2, low=0, high=4), 1, differentiable=False),
    Case("take_along", lambda x, i: take_along_p.bind(x, i, axis=-1, mode="drop"),
         (sample(2, 4), _outside), _read_or_zero, "drop"),
    Case("take_along", lambda x, i: take_along_p.bind(x, i, axis=-2, mode="raise"),
         (sample(2, 4, 3), integers(5, 3, low=0, high=4)),
         lambda x, i: np.take_along_axis(x, i[None], 1), "index-with-fewer-axes"),
    _add("labels", sample(6, 4), _labels, sample(6, 1, seed=1), -1),
    _add("labels-in-zeros", np.zeros((), np.float32), _labels, sample(6, 1), -1, (6, 4)),
    _add("labels-one-value", sample(6, 4), _labels, sample(), -1),
    _add("first-axis", sample(4, 6), _labels.T.copy(), sample(1, 6, seed=1), -2),
    _add("duplicates", _cube, _several, sample(3, 4, 7, seed=1), -1),
    _add("second-axis", _cube, integers(3, 2, 5, low=-4, high=4), sample(3, 2, 5, seed=1), -2),
    _add("vector", sample(5), np.array([1, -4, 1, 0], np.int8), sample(4, seed=1), -1),
    _add("no-duplicates", sample(2, 4), np.array([[3, 0], [1, -1]]), sample(2, 2, seed=1), -1),
    _add("array-repeated", sample(4), integers(3, 2, low=0, high=4), sample(3, 2), -1, (3, 4)),
    _add("index-repeated", _cube, integers(4, 2, low=0, high=5), sample(3, 4, 2, seed=1), -1),
    _add("strided", sample(4, 6).T, _labels[::-1], sample(1, 6, seed=1).T, -1),
    _add("empty-index", _cube, np.zeros((3, 4, 0), np.int32), sample(3, 4, 0), -1),
    _add("empty-lines", sample(0, 3), np.zeros((0, 1), np.int32), sample(0, 1), -1),
    _add("integers", integers(6, 4), _labels, integers(6, 1), -1, differentiable=False),
    _add("drop", sample(2, 4), _outside, sample(2, 3, seed=1), -1, mode="drop"),
    _add("drop-labels", sample(2, 4), _outside[:, 1:2], sample(2, 1, seed=1), -1, mode="drop"),
]  # fmt: skip
