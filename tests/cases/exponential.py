"""Rows for exponentials, logarithms, circular and hyperbolic functions, and erf."""

from __future__ import annotations

import math

import numpy as np

from nuvec.core.ops import erf as er
from nuvec.core.ops import exponential as ex
from tests.cases.case import Case, integers, sample


def _as_float32(function):
    return lambda x: function(x.astype(np.float32) if x.dtype.kind == "i" else x)


def _rows(name, reference, low=-2.0, high=2.0, operation=None, imaginary=True):
    operation = getattr(ex, name) if operation is None else operation

    def function(x):
        return operation(x)

    plane = (sample(2, 3, low=low, high=high) + 0.5j * sample(2, 3, seed=1)).astype(np.complex64)
    rows = [
        Case(name, function, (sample(2, 3, low=low, high=high),), reference, "matrix"),
        Case(name, function, (sample(low=low, high=high + 0.5),), reference, "scalar"),
        Case(name, function, (sample(0, 2),), reference, "empty"),
        Case(name, function, (sample(4, 6, low=low, high=high).T[::2],), reference, "strided"),
        Case(name, function, (integers(5, low=1, high=4),), _as_float32(reference), "integers",
             differentiable=False),
    ]  # fmt: skip
    if imaginary:
        rows.append(Case(name, function, (plane,), reference, "complex", rtol=1e-4))
    return rows


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _erf(x):
    return np.vectorize(math.erf, otypes=[x.dtype])(x)


CASES = [
    *_rows("exp", np.exp),
    *_rows("expm1", np.expm1),
    *_rows("exp2", np.exp2),
    *_rows("log", np.log, low=0.2),
    *_rows("log1p", np.log1p, low=-0.7),
    *_rows("log2", np.log2, low=0.2),
    *_rows("log10", np.log10, low=0.2),
    *_rows("sin", np.sin),
    *_rows("cos", np.cos),
    *_rows("tan", np.tan, low=-1.2, high=1.2),
    *_rows("sinh", np.sinh),
    *_rows("cosh", np.cosh),
    *_rows("tanh", np.tanh),
    *_rows("sigmoid", _sigmoid),
    *_rows("erf", _erf, operation=er.erf, imaginary=False),
    Case("sigmoid", lambda x: ex.sigmoid(x), (np.float32([-1000, -80, 0, 80, 1000]),),
         lambda x: np.float32([0, np.exp(-80.0), 0.5, 1, 1]), "saturated", differentiable=False),
    Case("erf", lambda x: er.erf(x), (sample(200, low=-7, high=7),), _erf, "whole-range",
         differentiable=False),
]  # fmt: skip
