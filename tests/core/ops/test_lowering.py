"""What every elementwise lowering promises: NumPy scalars go in, `out=` is filled and returned,
also where it is an operand, and operands are left alone otherwise."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from nuvec.core.array import Array, from_numpy
from nuvec.core.ir import Aval
from tests.cases.case import Case

FAMILIES = (
    "arithmetic", "comparison", "conversion", "exponential", "reduction", "rounding", "selection",
)  # fmt: skip
ROWS = [
    row
    for family in FAMILIES
    for row in importlib.import_module(f"tests.cases.{family}").CASES
    if row.primitive is not None
]


def _equation(row: Case):
    """The primitive's own operands, params, aval and value in a row."""
    result = row.function(*[from_numpy(np.asarray(a)) for a in row.args])
    node = result._node
    while node.primitive.name != row.primitive:  # past the reshape of keepdims
        node = node.inputs[0]
    inputs, aval = node.inputs, node.aval
    operands = [np.asarray(Array(i)._value()) for i in inputs]
    return node.primitive, operands, node.params, aval, np.asarray(Array(node)._value())


def _check(value, aval: Aval, expected):
    assert isinstance(value, np.ndarray | np.generic)
    assert (value.dtype, value.shape) == (aval.dtype, aval.shape)
    np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_lowering(row):
    primitive, operands, params, aval, expected = _equation(row)
    before = [x.copy() for x in operands]
    with np.errstate(all="ignore"):
        if all(x.ndim == 0 for x in operands):
            _check(primitive.lower(*[x[()] for x in operands], **params), aval, expected)
        _check(primitive.lower(*operands, **params), aval, expected)
        if not primitive.out:
            return
        out = np.empty(aval.shape, aval.dtype)
        assert primitive.lower(*operands, out=out, **params) is out
        _check(out, aval, expected)
        for x, y in zip(operands, before, strict=True):
            np.testing.assert_array_equal(x, y)
        if primitive.kind == "elementwise":
            for i, x in enumerate(operands):
                if (x.shape, x.dtype) == (aval.shape, aval.dtype):
                    mine = [y.copy() for y in operands]
                    assert primitive.lower(*mine, out=mine[i], **params) is mine[i]
                    _check(mine[i], aval, expected)
