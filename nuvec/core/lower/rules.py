"""The rewrites, as rows: where a row applies, what it makes of an equation, and why the bits stay.

Every row keeps the bits of every result, signed zeros, infinities and quiet NaNs included
(arithmetic quiets a signalling NaN, so `x * 1` for x in place of it is the one bit of difference
there can be, in a value that no arithmetic produces).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from nuvec.core import dtypes
from nuvec.core.ir import Atom, Eqn, Literal
from nuvec.core.lower.layout import ALIASES, Layout
from nuvec.core.ops.arithmetic import multiply_p
from nuvec.core.ops.build import convert_dtype
from nuvec.core.ops.comparison import equal_p, isinf_p, logical_and_p
from nuvec.core.ops.contraction import dot_general_p, free_axes
from nuvec.core.ops.differentiation import optimization_barrier_p
from nuvec.core.ops.power import MULTIPLIED, integer_power_p
from nuvec.core.ops.selection import where_p
from nuvec.core.ops.shape import broadcast_to_p, reshape_p, transpose_p
from nuvec.core.primitive import MARK, Primitive


class Known(Protocol):
    """What a row may ask about an operand."""

    def definition(self, atom: Atom) -> Eqn | None:
        """The equation an operand comes from."""

    def layout(self, atom: Atom) -> Layout:
        """Its memory layout, as far as known."""

    def scalar(self, atom: Atom) -> Literal | None:
        """The literal an operand repeats in all its elements without a stride, if it does."""

    def uniform(self, atom: Atom) -> Literal | None:
        """The literal an operand repeats in all its elements, if that is known."""

    def make(self, primitive: Primitive, inputs: tuple[Atom, ...], **params: Any) -> Atom:
        """Put an equation in front, and give its result."""


class Equation(NamedTuple):
    """A replacement that is an equation: the output stays the same variable."""

    primitive: Primitive
    inputs: tuple[Atom, ...]
    params: dict[str, Any]


# A row returns one atom an output (they replace the outputs), an Equation, or None.
Replacement = tuple[Atom, ...] | Equation | None


@dataclass(frozen=True)
class Row:
    """`pattern -> replacement`; `why` says in words why the bits stay."""

    pattern: str
    replacement: str
    why: str
    primitives: frozenset[str] | None  # None: any
    apply: Callable[[Eqn, Known], Replacement]


def _is_value(atom: Atom, eqn: Eqn, known: Known) -> bool:
    """Whether an operand can stand for the result: same aval, and laid out as the result is."""
    return atom.aval is eqn.outputs[0].aval and (
        not atom.aval.shape or known.layout(atom) is Layout.CONTIGUOUS
    )


# Neutral operands


class Neutral(NamedTuple):
    """`primitive(x, value) = x` (the other way round as well, where it is commutative)."""

    primitive: str
    value: float | int
    negative_zero: bool
    commutes: bool
    kinds: str  # of the dtypes it holds for: f floating, i integer, b bool
    why: str


NEUTRAL: tuple[Neutral, ...] = (
    Neutral("multiply", 1, False, True, "fib", "x * 1 is exact, zeros keep their sign"),
    Neutral("divide", 1, False, False, "f", "x / 1 is exact, zeros keep their sign"),
    Neutral("subtract", 0, False, False, "fi", "x - 0 is x; -0.0 - 0.0 is -0.0"),
    Neutral("add", 0, True, True, "f", "x + -0.0 is x; 0.0 + -0.0 is 0.0 (x + 0.0 is not: -0.0)"),
    Neutral("add", 0, False, True, "ib", "integers have one zero"),
    Neutral("bitwise_or", 0, False, True, "ib", "no bit is set"),
    Neutral("bitwise_xor", 0, False, True, "ib", "no bit is turned"),
    Neutral("logical_or", 0, False, True, "b", "x or False is x"),
    Neutral("logical_xor", 0, False, True, "b", "x xor False is x"),
    Neutral("bitwise_and", 1, False, True, "b", "x and True is x"),
    Neutral("logical_and", 1, False, True, "b", "x and True is x"),
    Neutral("left_shift", 0, False, False, "i", "no bit moves"),
    Neutral("right_shift", 0, False, False, "i", "no bit moves"),
)
# 16-bit floats are computed in float32 and back, complex products mix inf and 0: left alone.
_KIND = {dtypes.bool_: "b", dtypes.float32: "f", dtypes.float64: "f"}


def _is_neutral(literal: Literal | None, row: Neutral) -> bool:
    if literal is None or literal.value != row.value:
        return False
    kind = _kind(literal.aval.dtype)
    if kind not in row.kinds:
        return False
    return kind != "f" or bool(np.signbit(literal.value)) == row.negative_zero


def _kind(dtype: np.dtype) -> str:
    return "i" if dtypes.is_integer(dtype) else _KIND.get(dtype, "none")


def _neutral(row: Neutral) -> Row:
    def apply(eqn: Eqn, known: Known) -> Replacement:
        x, y = eqn.inputs
        if _is_value(x, eqn, known) and _is_neutral(known.uniform(y), row):
            return (x,)
        if row.commutes and _is_value(y, eqn, known) and _is_neutral(known.uniform(x), row):
            return (y,)
        return None

    value = f"-{row.value}.0" if row.negative_zero else str(row.value)
    return Row(f"{row.primitive}(x, {value})", "x", row.why, frozenset((row.primitive,)), apply)


# Involutions


def _involution(name: str, why: str) -> Row:
    def apply(eqn: Eqn, known: Known) -> Replacement:
        inner = known.definition(eqn.inputs[0])
        if inner is None or inner.primitive is not eqn.primitive:
            return None
        exact = _kind(eqn.outputs[0].aval.dtype) != "none"
        x = inner.inputs[0]
        return (x,) if exact and _is_value(x, eqn, known) else None

    return Row(f"{name}({name}(x))", "x", why, frozenset((name,)), apply)


# Aliases


def _alias(eqn: Eqn, known: Known) -> Replacement:
    x = eqn.inputs[0]
    return (x,) if eqn.primitive in ALIASES and x.aval is eqn.outputs[0].aval else None


def _mark(eqn: Eqn, known: Known) -> Replacement:
    return eqn.inputs[: eqn.params["count"]] if eqn.primitive is MARK else None


# Views


def _reshape_same(eqn: Eqn, known: Known) -> Replacement:
    return (eqn.inputs[0],) if _is_value(eqn.inputs[0], eqn, known) else None


def _reshape_reshape(eqn: Eqn, known: Known) -> Replacement:
    inner = known.definition(eqn.inputs[0])
    if inner is None or inner.primitive is not reshape_p:
        return None
    x = inner.inputs[0]
    if known.layout(x) is not Layout.CONTIGUOUS:
        return None  # the inner one copies, and which copy is made decides the layout
    return Equation(reshape_p, (x,), eqn.params)


def _transpose_same(eqn: Eqn, known: Known) -> Replacement:
    permutation = eqn.params["permutation"]
    return (eqn.inputs[0],) if permutation == tuple(range(len(permutation))) else None


def _transpose_transpose(eqn: Eqn, known: Known) -> Replacement:
    inner = known.definition(eqn.inputs[0])
    if inner is None or inner.primitive is not transpose_p:
        return None
    before = inner.params["permutation"]
    permutation = tuple(before[p] for p in eqn.params["permutation"])
    return Equation(transpose_p, inner.inputs, {"permutation": permutation})


def _broadcast_same(eqn: Eqn, known: Known) -> Replacement:
    x = eqn.inputs[0]
    return (x,) if x.aval is eqn.outputs[0].aval else None


def _broadcast_broadcast(eqn: Eqn, known: Known) -> Replacement:
    inner = known.definition(eqn.inputs[0])
    if inner is None or inner.primitive is not broadcast_to_p:
        return None
    return Equation(broadcast_to_p, inner.inputs, eqn.params)


# Correctly rounded, so that it does not matter by which loop they are computed.
_EXACT = frozenset(("add", "subtract", "multiply", "divide", "maximum", "minimum"))


def _broadcast_sinking(eqn: Eqn, known: Known) -> Replacement:
    """Elementwise operations broadcast themselves."""
    if eqn.primitive.kind != "elementwise" or len(eqn.inputs) < 2:
        return None
    if not isinstance(eqn.primitive.lower, np.ufunc):
        return None  # a copy of a broadcast array may be laid out otherwise
    inputs = list(eqn.inputs)
    shape = eqn.outputs[0].aval.shape
    exact = eqn.primitive.name in _EXACT and _kind(eqn.outputs[0].aval.dtype) in "fi"
    for k, atom in enumerate(eqn.inputs):
        literal = known.uniform(atom) if exact else known.scalar(atom)
        inner = known.definition(atom)
        if literal is not None and literal is not atom and literal.aval.weak == atom.aval.weak:
            inputs[k] = literal
        elif inner is not None and inner.primitive is broadcast_to_p:
            inputs[k] = inner.inputs[0]
        else:
            continue
        if np.broadcast_shapes(*[a.aval.shape for a in inputs]) != shape:
            inputs[k] = atom
    if all(a is b for a, b in zip(inputs, eqn.inputs, strict=True)):
        return None
    return Equation(eqn.primitive, tuple(inputs), eqn.params)


# Products with nothing to sum


def _outer_product(eqn: Eqn, known: Known) -> Replacement:
    """Elementwise, as its lowering computes it: it can run in tiles with what uses it."""
    (xc, yc), (xb, yb) = eqn.params["contract"], eqn.params["batch"]
    x, y = eqn.inputs
    shape, dtype = eqn.outputs[0].aval.shape, x.aval.dtype
    if any(x.aval.shape[a] != 1 for a in xc) or dtypes.accumulation(dtype) is not dtype:
        return None
    rows, columns = free_axes(x.aval.ndim, xc, xb), free_axes(y.aval.ndim, yc, yb)
    batch, m = len(xb), len(rows)
    wide = (*shape[: batch + m], *(1,) * len(columns))
    tall = (*shape[:batch], *(1,) * m, *shape[batch + m :])
    operands = (_ordered(x, (*xb, *rows, *xc), wide, known),
                _ordered(y, (*yb, *columns, *yc), tall, known))  # fmt: skip
    return Equation(multiply_p, operands, {})


def _ordered(x: Atom, order: tuple[int, ...], shape: tuple[int, ...], known: Known) -> Atom:
    """The transpose of an operand, reshaped."""
    moved = [a for a in order if x.aval.shape[a] != 1]
    if moved != sorted(moved):
        x = known.make(transpose_p, (x,), permutation=order)
    return x if x.aval.shape == shape else known.make(reshape_p, (x,), shape=shape)


# Powers


def _power(eqn: Eqn, known: Known) -> Replacement:
    """The products that the lowering makes of a small power, one equation each."""
    exponent, dtype = eqn.params["exponent"], eqn.outputs[0].aval.dtype
    if not 2 < exponent <= MULTIPLIED or dtypes.accumulation(dtype) is not dtype:
        return None
    (x,) = eqn.inputs
    result: Atom | None = None
    square, size = x, exponent
    while size > 1:
        if size & 1:
            result = square if result is None else known.make(multiply_p, (result, square))
        size >>= 1
        square = known.make(integer_power_p, (square,), exponent=2)
    if result is None:  # the last square is the power itself
        return (square,)
    return Equation(multiply_p, (result, square), {})


# Conversions


def _keeps_values(source: np.dtype, target: np.dtype) -> bool:
    """Whether every value of `source` is one of `target`, bit for bit on the way back."""
    if dtypes.is_complex(source) or dtypes.is_complex(target) or dtypes.bfloat16 in (
        source, target,
    ):  # fmt: skip
        return False  # bfloat16's conversion makes all NaNs one
    if dtypes.is_integer(source) and source.itemsize == 8 and dtypes.is_inexact(target):
        return False  # "safe" for NumPy, but float64 rounds them
    return bool(np.can_cast(source, target, "safe"))


def _convert_convert(eqn: Eqn, known: Known) -> Replacement:
    inner = known.definition(eqn.inputs[0])
    if inner is None or inner.primitive is not convert_dtype:
        return None
    x = inner.inputs[0]
    first, second, third = x.aval.dtype, eqn.inputs[0].aval.dtype, eqn.outputs[0].aval.dtype
    if not _keeps_values(first, second) or dtypes.is_complex(third):
        return None
    if first == third:
        return (x,) if _is_value(x, eqn, known) else None
    if dtypes.bfloat16 == third:
        return None
    if dtypes.is_inexact(second) and not dtypes.is_inexact(third):
        return None  # what a float out of range becomes depends on the path
    if known.layout(x) is not Layout.CONTIGUOUS:
        return None
    return Equation(convert_dtype, (x,), eqn.params)


def _convert_same(eqn: Eqn, known: Known) -> Replacement:
    return (eqn.inputs[0],) if _is_value(eqn.inputs[0], eqn, known) else None


# Choices that are made already


def _infinite_and_finite(eqn: Eqn, known: Known) -> Replacement:
    """What the derivative of logaddexp asks, where an operand is a number."""
    both = known.definition(eqn.inputs[0])
    if both is None or both.primitive is not logical_and_p:
        return None
    asked = [known.definition(a) for a in both.inputs]
    for same, infinite in (asked, asked[::-1]):
        if same is None or infinite is None:
            continue
        if same.primitive is not equal_p or infinite.primitive is not isinf_p:
            continue
        (x,) = infinite.inputs
        for a, b in (same.inputs, same.inputs[::-1]):
            literal = known.uniform(b)
            if a is x and literal is not None and np.isfinite(literal.value):
                return (eqn.inputs[2],) if _is_value(eqn.inputs[2], eqn, known) else None
    return None


def _only(*primitives: Primitive) -> frozenset[str]:
    return frozenset(p.name for p in primitives)


ROWS: tuple[Row, ...] = (
    Row("identity(x), stop_gradient(x), depends(x, ...)", "x",
        "they are x; program order already has what x depends on",
        _only(*ALIASES - {optimization_barrier_p}), _alias),
    Row("mark(*outs, *operands)", "outs", "a mark is the identity of its outputs",
        _only(MARK), _mark),
    *map(_neutral, NEUTRAL),
    _involution("negative", "turns the sign bit twice, or negates twice modulo 2^n"),
    _involution("logical_not", "not not x is x"),
    _involution("invert", "turns every bit twice"),
    Row("reshape(x, x.shape)", "x", "no element moves", _only(reshape_p), _reshape_same),
    Row("reshape(reshape(x, s), t)", "reshape(x, t)", "elements stay in row-major order",
        _only(reshape_p), _reshape_reshape),
    Row("transpose(x, 0 .. n-1)", "x", "no axis moves", _only(transpose_p), _transpose_same),
    Row("transpose(transpose(x, p), q)", "transpose(x, p[q])", "axes are permuted twice",
        _only(transpose_p), _transpose_transpose),
    Row("broadcast_to(x, x.shape)", "x", "nothing is repeated", _only(broadcast_to_p),
        _broadcast_same),
    Row("broadcast_to(broadcast_to(x, s), t)", "broadcast_to(x, t)",
        "what is repeated twice is repeated", _only(broadcast_to_p), _broadcast_broadcast),
    Row("f(broadcast_to(x, s), y)", "f(x, y)",
        "a ufunc repeats its operands itself, with the same strides", None, _broadcast_sinking),
    Row("dot_general(x, y) over axes of size 1", "multiply(x, y)",
        "a sum of one product is the product, which is how it is computed",
        _only(dot_general_p), _outer_product),
    Row("where(equal(x, c) and isinf(x), y, z), c finite", "z",
        "no number is infinite and equal to a finite one", _only(where_p), _infinite_and_finite),
    Row("integer_power(x, n), n from 3 to 8", "multiply(x, square(x)), ...",
        "it is the products that the lowering makes, in its order", _only(integer_power_p), _power),
    Row("convert(convert(x, d), e)", "convert(x, e)", "d holds every value of x's dtype",
        _only(convert_dtype), _convert_convert),
    Row("convert(x, x.dtype)", "x", "nothing changes", _only(convert_dtype), _convert_same),
)  # fmt: skip


BY_PRIMITIVE: dict[str, tuple[Row, ...]] = {}


def rows_for(primitive: Primitive) -> tuple[Row, ...]:
    """The rows that may apply to equations of a primitive."""
    found = BY_PRIMITIVE.get(primitive.name)
    if found is None:
        found = BY_PRIMITIVE[primitive.name] = tuple(
            row for row in ROWS if row.primitives is None or primitive.name in row.primitives
        )
    return found


__all__ = ["NEUTRAL", "ROWS", "Equation", "Known", "Row", "rows_for"]
