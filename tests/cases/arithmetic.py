"""Rows for arithmetic, roots, powers, signs."""

from __future__ import annotations

import numpy as np

from nuvec.core.ops import arithmetic as ar
from nuvec.core.ops import power as po
from nuvec.core.ops import signs as si
from tests.cases.case import Case, integers, sample

_pair = (sample(2, 3), sample(2, 3, seed=1))
_positive = (sample(2, 3, low=0.3), sample(2, 3, low=0.37, seed=1))
_column = (sample(2, 1, low=0.3), sample(4, 1, 3, low=0.3, seed=1))
_scalars = (sample(low=0.3), sample(low=0.7))
_empty = (sample(0, 3), sample(1, low=0.3))
_strided = (sample(4, 3).T, sample(6, 8, seed=1)[::2, ::2])
_strided_positive = (np.abs(_strided[0]) + 0.25, (np.abs(sample(6, 8, seed=1)) + 0.25)[::2, ::2])
_whole = (integers(2, 3), integers(3, low=1, seed=1))
_complex = ((_pair[0] + 1j * _pair[1]).astype(np.complex64),
            (_pair[1] + 2 - 1j * _pair[0]).astype(np.complex64))  # fmt: skip


def _binary(primitive, function, reference, operands=_pair, **options):
    """The rows every binary operation has; `operands` are the plain ones."""
    inside = _positive if operands is _positive else None
    return [
        Case(primitive, function, operands, reference, "same", **options),
        Case(primitive, function, _column, reference, "broadcast", **options),
        Case(primitive, function, _scalars, reference, "scalars", **options),
        Case(primitive, function, (operands[0], _scalars[1]), reference, "scalar", **options),
        Case(primitive, function, _empty, reference, "empty", **options),
        Case(primitive, function, _strided_positive if inside else _strided, reference,
             "strided", **options),
        Case(primitive, function, _whole, reference, "integers", differentiable=False),
    ]  # fmt: skip


def _as_float32(function):
    """A NumPy function that computes integers in float32, as nuvec does."""
    return lambda *xs: function(*[x.astype(np.float32) if x.dtype.kind == "i" else x for x in xs])


CASES = [
    *_binary("add", lambda x, y: ar.add(x, y), np.add),
    *_binary("subtract", lambda x, y: ar.subtract(x, y), np.subtract),
    *_binary("multiply", lambda x, y: ar.multiply(x, y), np.multiply),
    *_binary("divide", lambda x, y: ar.divide(x, y), _as_float32(np.divide), _positive),
    # Samples of remainder and floor_divide keep clear of the multiples of y.
    *_binary("remainder", lambda x, y: ar.remainder(x, y), np.remainder, _positive),
    *_binary("floor_divide", lambda x, y: ar.floor_divide(x, y), np.floor_divide, _positive),
    *_binary("power", lambda x, y: po.power(x, y), np.power, _positive)[:-1],
    Case("power", lambda x, y: po.power(x, y), (integers(2, 3), integers(3, low=0)),
         np.power, "integers", differentiable=False),
    Case("power", lambda x, y: po.power(x, y), (_positive[0], np.float32([0.0, 1.0, 2.0])),
         np.power, "whole-exponents"),
    Case("power", lambda x: po.power(2.5, x), (sample(3),), lambda x: np.float32(2.5) ** x,
         "scalar-base"),
    Case("power", lambda x: po.power(x, 1.5), (sample(3, low=0.2),), lambda x: x ** np.float32(1.5),
         "scalar-exponent"),
    Case("add", lambda x: ar.add(x, 3), (sample(3),), lambda x: x + 3, "python-scalar"),
    Case("subtract", lambda x: ar.subtract(2.5, x), (sample(3),), lambda x: np.float32(2.5) - x,
         "python-scalar"),
    Case("multiply", lambda x: ar.multiply(x, -2.5), (sample(3),), lambda x: x * np.float32(-2.5),
         "python-scalar"),
    Case("add", lambda x, y: ar.add(x, y), _complex, np.add, "complex"),
    Case("subtract", lambda x, y: ar.subtract(x, y), _complex, np.subtract, "complex"),
    Case("multiply", lambda x, y: ar.multiply(x, y), _complex, np.multiply, "complex"),
    Case("divide", lambda x, y: ar.divide(x, y), _complex, np.divide, "complex"),
    Case("masked_product", lambda x, y: ar.masked_product(x, y), _pair, np.multiply, "same"),
    Case("masked_product", lambda x, y: ar.masked_product(x, y), _column, np.multiply,
         "broadcast"),
    Case("masked_product", lambda x, y: ar.masked_product(x, y), _scalars, np.multiply,
         "scalars"),
    Case("masked_product", lambda x, y: ar.masked_product(x, y), _empty, np.multiply, "empty"),
    Case("masked_product", lambda x, y: ar.masked_product(x, y),
         (np.float32([0.0, 2.0, 0.0]), np.float32([np.inf, 3.0, np.nan])),
         lambda x, y: np.float32([0.0, 6.0, 0.0]), "zeros", differentiable=False),
]  # fmt: skip


def _unary(primitive, function, reference, low=-2.0):
    rows = [
        Case(primitive, function, (sample(2, 3, low=low),), reference, "matrix"),
        Case(primitive, function, (sample(low=low, high=1.5),), reference, "scalar"),
        Case(primitive, function, (sample(0, 2),), reference, "empty"),
        Case(primitive, function, (sample(4, 6, low=low).T[::2],), reference, "strided"),
    ]
    widened = reference if primitive in ("negative", "sign", "abs") else _as_float32(reference)
    rows.append(Case(primitive, function, (integers(5, low=1),), widened, "integers",
                     differentiable=False))  # fmt: skip
    return rows


CASES += [
    *_unary("negative", lambda x: ar.negative(x), np.negative),
    *_unary("reciprocal", lambda x: ar.reciprocal(x), lambda x: np.float32(1) / x, low=0.2),
    *_unary("sqrt", lambda x: ar.sqrt(x), np.sqrt, low=0.1),
    *_unary("rsqrt", lambda x: ar.rsqrt(x), lambda x: np.float32(1) / np.sqrt(x), low=0.2),
    *_unary("cbrt", lambda x: ar.cbrt(x), np.cbrt, low=0.2),
    Case("cbrt", lambda x: ar.cbrt(x), (sample(3, low=-2, high=-0.5),), np.cbrt, "negative"),
    *_unary("sign", lambda x: si.sign(x), np.sign),
    *_unary("abs", lambda x: si.abs(x), np.abs),
    Case("complex_abs", lambda x: si.abs(x), (_complex[0],), np.abs, "matrix"),
    Case("complex_abs", lambda x: si.abs(x), (_complex[0][0, 0],), np.abs, "scalar"),
    Case("complex_abs", lambda x: si.abs(x), (_complex[0][:0],), np.abs, "empty"),
    Case("complex_abs", lambda x: si.abs(x), (_complex[0].T,), np.abs, "strided"),
    Case(None, lambda x: si.sign(x), (_complex[0],), np.sign, "complex-sign"),
    Case(None, lambda x: po.square(x), (sample(3),), np.square, "square"),
    Case(None, lambda x: si.positive(x), (sample(3),), np.positive, "positive"),
]


def _integer_power(exponent, x, label):
    return Case("integer_power", lambda x: po.power(x, exponent), (x,),
                lambda x: np.power(x, x.dtype.type(exponent)), label)  # fmt: skip


CASES += [
    *(_integer_power(n, sample(2, 3, low=0.4), f"exponent{n}")
      for n in (-9, -3, -2, -1, 2, 3, 4, 5, 8, 11)),
    _integer_power(3, sample(2, 3), "negative-base"),
    _integer_power(2, sample(), "scalar"),
    _integer_power(2, sample(0, 3), "empty"),
    _integer_power(2, sample(4, 6).T[::2], "strided"),
    _integer_power(3, _complex[0], "complex"),
    Case("integer_power", lambda x: po.power(x, 3), (integers(5),), lambda x: x**3, "integers",
         differentiable=False),
    Case("integer_power", lambda x: po.power(x, 2.0), (sample(3),), np.square, "float-exponent"),
    Case("sqrt", lambda x: po.power(x, 0.5), (sample(3, low=0.1),), np.sqrt, "half-power"),
]  # fmt: skip
