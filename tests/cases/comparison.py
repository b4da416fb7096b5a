"""Rows for comparisons, logic, bits and tests for special values."""

from __future__ import annotations

import numpy as np

from nuvec.core.ops import comparison as co
from tests.cases.case import Case, integers, sample

_OPERANDS = {
    "integers": (integers(2, 3, low=0, high=3), integers(2, 3, low=0, high=3, seed=1)),
    "broadcast": (integers(2, 1, low=0, high=3), integers(4, 1, 3, low=0, high=3, seed=1)),
    "scalars": (integers(low=0, high=3)[()], integers(low=0, high=3, seed=1)[()]),
    "empty": (integers(0, 3), integers(1, low=0)),
    "strided": (integers(4, 3, low=0, high=3).T, integers(6, 8, low=0, seed=1)[::2, ::2]),
}
_FLOATS = (np.float32([1, np.nan, -0.0, np.inf]), np.float32([1, np.nan, 0.0, 2]))
_BOOLS = (np.array([False, False, True, True]), np.array([False, True, False, True]))


def _binary(name, *more):
    operation, reference = getattr(co, name), getattr(np, name)

    def function(x, y):
        return operation(x, y)

    rows = [*_OPERANDS.items(), *more]
    return [Case(name, function, args, reference, label, differentiable=False)
            for label, args in rows]  # fmt: skip


def _unary(name, *more):
    operation, reference = getattr(co, name), getattr(np, name)

    def function(x):
        return operation(x)

    rows = [(label, args[1]) for label, args in _OPERANDS.items()] + list(more)
    return [Case(name, function, (x,), reference, label, differentiable=False)
            for label, x in rows]  # fmt: skip


CASES = [
    row
    for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
    for row in _binary(name, ("floats", _FLOATS), ("bools", _BOOLS))
]
CASES += [
    row for name in ("equal", "not_equal")
    for row in _binary(name, ("complex", (np.complex64([1, 1j]), np.complex64([1, 1]))))[-1:]
]  # fmt: skip
CASES += [
    row for name in ("logical_and", "logical_or", "logical_xor")
    for row in _binary(name, ("floats", _FLOATS), ("bools", _BOOLS))
]  # fmt: skip
CASES += _unary("logical_not", ("floats", _FLOATS[0]), ("bools", _BOOLS[0]))
CASES += [
    row for name in ("bitwise_and", "bitwise_or", "bitwise_xor")
    for row in _binary(name, ("bools", _BOOLS))
]  # fmt: skip
CASES += _unary("invert", ("bools", _BOOLS[0]))
CASES += _binary("left_shift") + _binary("right_shift")
for _name in ("isnan", "isinf", "isfinite"):
    CASES += _unary(_name, ("floats", np.float32([1, np.nan, np.inf, -np.inf])),
                    ("complex", np.complex64([1, complex(0, np.nan), complex(np.inf, 1)])),
                    ("random", sample(3)))  # fmt: skip
