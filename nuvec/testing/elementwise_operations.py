"""The elementwise operations random programs are drawn from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nuvec.core.ops import arithmetic as ar
from nuvec.core.ops import comparison as co
from nuvec.core.ops import exponential as ex
from nuvec.core.ops.conversion import conj, imag, make_complex, real
from nuvec.core.ops.erf import erf
from nuvec.core.ops.logaddexp import logaddexp
from nuvec.core.ops.power import power
from nuvec.core.ops.rounding import ceil, floor, round, trunc
from nuvec.core.ops.selection import clip, maximum, minimum, where
from nuvec.core.ops.signs import abs as absolute
from nuvec.core.ops.signs import sign
from nuvec.testing.operation import MARGIN, Named, Operation, adder, away, below

__all__ = ["ELEMENTWISE"]

ELEMENTWISE: list[Operation] = []
_add = adder(ELEMENTWISE)


def _apart(x: Any, y: Any) -> Any:
    return np.abs(x - y) > MARGIN


def _above(low: float) -> Callable[[Any], Any]:
    return lambda x: x > low


def _off_grid(x: Any) -> Any:
    """Away from the integers and the halves between them, where rounding jumps."""
    return np.abs(2 * x - np.round(2 * x)) > 2 * MARGIN


_add("add", "f|c f|c", ar.add)
_add("subtract", "f|c f|c", ar.subtract)
_add("multiply", "f|c f|c", ar.multiply)
_add("divide", "f|c f|c", ar.divide, fits=lambda x, y: np.abs(y) > 0.4)
_add("negative", "f|c", ar.negative)
_add("reciprocal", "f|c", ar.reciprocal, fits=away(0.4))
_add(
    "floor_divide",
    "f f",
    ar.floor_divide,
    fits=lambda x, y: (np.abs(y) > 0.4) & _off_grid(np.divide(x, np.where(y == 0, 1, y))),
)
_add(
    "remainder",
    "f f",
    ar.remainder,
    fits=lambda x, y: (np.abs(y) > 0.4) & _off_grid(np.divide(x, np.where(y == 0, 1, y))),
)
_add("sqrt", "f", ar.sqrt, fits=_above(0.3))
_add("rsqrt", "f", ar.rsqrt, fits=_above(0.4))
_add("cbrt", "f", ar.cbrt, fits=away(0.4))
_add("masked_product", "f|c f|c", ar.masked_product, fits=lambda x, y: (x != 0) & (y != 0))
_add("sin", "f|c", ex.sin, fits=below(3))
_add("cos", "f|c", ex.cos, fits=below(3))
_add("tan", "f", ex.tan, fits=lambda x: np.abs(np.cos(x)) > 0.4)
_add("sinh", "f", ex.sinh, fits=below(2))
_add("cosh", "f", ex.cosh, fits=below(2))
_add("tanh", "f", ex.tanh)
_add("exp", "f|c", ex.exp, fits=lambda x: np.real(x) < 2)
_add("expm1", "f", ex.expm1, fits=below(2))
_add("exp2", "f", ex.exp2, fits=below(2.5))
_add("log", "f", ex.log, fits=_above(0.3))
_add("log1p", "f", ex.log1p, fits=_above(-0.6))
_add("log2", "f", ex.log2, fits=_above(0.3))
_add("log10", "f", ex.log10, fits=_above(0.3))
_add("sigmoid", "f", ex.sigmoid)
_add("erf", "f", erf)
_add("logaddexp", "f f", logaddexp)
_add("power", "f f", power, fits=lambda x, y: (x > 0.4) & (np.abs(y) < 2.5))
_add(
    "integer_power",
    "f|c",
    lambda x, n: power(x, n),
    lambda choose, x: (choose.pick([-1, 2, 3]),),
    away(0.4),
)
_add("abs", "f", absolute, fits=away(MARGIN))
_add("complex_abs", "c", absolute, fits=away(0.3))
_add("sign", "f", sign, fits=away(MARGIN))
for _name, _function in Named([("floor", floor), ("ceil", ceil), ("trunc", trunc),
                               ("round", round)]):  # fmt: skip
    _add(_name, "f", _function, fits=_off_grid)
_add("maximum", "f f", maximum, fits=_apart)
_add("minimum", "f f", minimum, fits=_apart)
_add(
    "minimum maximum",
    "f",
    lambda x: clip(x, -0.5, 0.7),
    name="clip",
    fits=lambda x: (np.abs(x + 0.5) > MARGIN) & (np.abs(x - 0.7) > MARGIN),
)
_add("where", "b f f", where)
_add("where", "b c c", where, name="where of complex")
_add("real", "c", real)
_add("imag", "c", imag)
_add("conj", "c", conj)
_add("complex", "f f", make_complex)
_add("convert_dtype", "b|i", lambda x: x.astype(np.float64))
_add("convert_dtype", "f", lambda x: x.astype(np.complex128), name="to complex")

# --- Booleans and integers, which steer where, take and at

for _name, _function in Named([("less", co.less), ("less_equal", co.less_equal),
                               ("greater", co.greater),
               ("greater_equal", co.greater_equal), ("equal", co.equal),
               ("not_equal", co.not_equal)]):  # fmt: skip
    _add(_name, "f f", _function, fits=_apart)
for _name, _function in Named([("logical_and", co.logical_and), ("logical_or", co.logical_or),
               ("logical_xor", co.logical_xor)]):  # fmt: skip
    _add(_name, "b b", _function)
_add("logical_not", "b", co.logical_not)
for _name, _function in Named([("bitwise_and", co.bitwise_and), ("bitwise_or", co.bitwise_or),
               ("bitwise_xor", co.bitwise_xor)]):  # fmt: skip
    _add(_name, "i i", _function)
_add("invert", "i", co.invert)
_add("left_shift", "i", lambda x: co.left_shift(x, 1), fits=below(3))
_add("right_shift", "i", lambda x: co.right_shift(x, 1))
for _name, _function in Named(
    [("isnan", co.isnan), ("isinf", co.isinf), ("isfinite", co.isfinite)]
):
    _add(_name, "f", _function)
