"""Rows for reductions; `sum` has its own beside the shape operations' too."""

from __future__ import annotations

import numpy as np

from nuvec.core.ops import reduction as re
from nuvec.core.ops import shape as sh
from tests.cases.case import Case, integers, sample

_cube = sample(2, 3, 4)


def _row(name, x, label, differentiable=True, **params):
    operation = sh.sum if name == "sum" else getattr(re, name)
    reference = getattr(np, name)
    if name in ("sum", "prod"):  # NumPy would widen int32
        return Case(name, lambda x: operation(x, **params), (x,),
                    lambda x: reference(x, dtype=x.dtype, **params), label,
                    differentiable=differentiable)  # fmt: skip
    return Case(name, lambda x: operation(x, **params), (x,), lambda x: reference(x, **params),
                label, differentiable=differentiable)  # fmt: skip


def _rows(name, differentiable=True):
    rows = [
        _row(name, _cube, "all"),
        _row(name, _cube, "axis", axis=1),
        _row(name, _cube, "negative-axis", axis=-1),
        _row(name, _cube, "axes", axis=(0, 2)),
        _row(name, _cube, "axes-keepdims", axis=(-1, 0), keepdims=True),
        _row(name, _cube, "all-keepdims", keepdims=True),
        _row(name, _cube, "no-axes", axis=()),
        _row(name, sample(), "scalar"),
        _row(name, sample(3, 1), "one-element", axis=1),
        _row(name, sample(0, 3), "empty-result", axis=1),
        _row(name, sample(4, 3, 6).transpose(2, 0, 1)[::2], "strided", axis=(0, 2)),
        _row(name, integers(2, 3), "integers", differentiable=False, axis=0),
        _row(name, np.float32([1, np.nan, 3, np.nan]), "nan", differentiable=False),
    ]
    if differentiable:
        return rows
    return [_without_derivative(row) for row in rows]


def _without_derivative(row):
    return Case(row.primitive, row.function, row.args, row.reference, row.label,
                differentiable=False)  # fmt: skip


def _arg_rows(name):
    rows = [
        _row(name, _cube, "all"),
        _row(name, _cube, "axis", axis=1),
        _row(name, _cube, "negative-axis", axis=-1),
        _row(name, _cube, "keepdims", axis=0, keepdims=True),
        _row(name, _cube, "all-keepdims", keepdims=True),
        _row(name, sample(), "scalar"),
        _row(name, sample(0, 3), "empty-result", axis=1),
        _row(name, sample(4, 6).T[::2], "strided", axis=0),
        _row(name, np.int32([1, 3, 3, 1]), "ties"),
        _row(name, np.float32([1, np.nan, 3, np.nan]), "nan"),
    ]
    return [_without_derivative(row) for row in rows]


CASES = [
    *_rows("sum"),
    _row("sum", sample(3, 0), "empty", axis=1),
    *_rows("prod"),
    _row("prod", sample(3, 0), "empty", axis=1),
    _row("prod", sample(7), "odd"),
    _row("prod", np.float32([[2, 0, 3], [0, 4, 0]]), "zeros", axis=1),
    *_rows("max"),
    *_rows("min"),
    *_rows("any", differentiable=False),
    *_rows("all", differentiable=False),
    _without_derivative(_row("any", np.array([[False, True], [False, False]]), "bools", axis=1)),
    _without_derivative(_row("all", np.array([[False, True], [True, True]]), "bools", axis=1)),
    *_arg_rows("argmax"),
    *_arg_rows("argmin"),
]
