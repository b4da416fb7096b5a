"""What the primitives of every family share: operand promotion, shape rules, batching helpers.

Elementwise primitives broadcast as NumPy does and take operands of one dtype; the public
operation converts first.  `unary` and `binary` make the public operation of a primitive.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, literal, operand
from nuvec.core.errors import AxisError, ConcretizationError, DtypeError, ShapeError
from nuvec.core.interpreter import bound_pending
from nuvec.core.ir import Aval, aval
from nuvec.core.node import LITERAL, NO_PARAMS, Node, context, live, unite
from nuvec.core.primitive import Primitive
from nuvec.core.traceback import strip_error

Convert = Callable[[np.dtype], np.dtype]  # an operation's working dtype from the promoted one
Unary = Callable[[Any], Array]
Binary = Callable[[Any, Any], Array]


# Dtypes


def promote_operands(
    name: str, operands: Sequence[Any], convert: Convert | None = None
) -> list[Array]:
    """The operands as Arrays of one dtype: JAX's promotion, then the operation's own `convert`
    (sin of integers works in float32).  Python scalars take the others' dtype."""
    # A Python scalar goes straight to the common dtype: by way of its own, 0.1 would reach a
    # float64 operand with half of its digits, and 2**40 no int64 operand at all.
    arrays: list[Any] = []
    items = []
    for i, x in enumerate(operands):
        if type(x) in _SCALARS:
            arrays.append(x)
            items.append((dtypes.scalar_dtype(x), True))
        else:
            x = operand(x, f"operand {i} of {name}")
            arrays.append(x)
            items.append((x._node.aval.dtype, x._node.aval.weak))
    dtype, weak = dtypes.promote(*items)
    if convert is not None:
        try:
            dtype = convert(dtype)
        except DtypeError as error:
            given = ", ".join([
                str(x.aval if isinstance(x, Array) else aval((), dtypes.scalar_dtype(x), True))
                for x in arrays
            ])  # fmt: skip
            raise DtypeError(f"{name}({given}): {error}") from None
    # A weak result of strong operands (int32[] * 1.5) comes of weak conversions of all of them.
    to_bool = dtypes.is_bool(dtype)
    weak = weak and not to_bool
    return [
        literal(bool(x) if to_bool else x, dtype, weak)
        if type(x) in _SCALARS
        else as_operand(x, dtype, weak)
        for x in arrays
    ]


def as_operand(x: Array, dtype: np.dtype, weak: bool = False) -> Array:
    """`x` in `dtype`: a literal is written anew, an array gets a conversion equation."""
    node = x._node
    is_literal = node.params is LITERAL
    # A weak array may stand in for a strong one, for the other operand decides; a literal is
    # written into the equation as what it counts as.
    weak_enough = node.aval.weak == weak or (node.aval.weak and not is_literal)
    if node.aval.dtype == dtype and weak_enough:
        return x
    if is_literal:
        value = node.value.item()
        return literal(bool(value) if dtypes.is_bool(dtype) else value, dtype, weak)
    return converted(x, dtype, weak)


def converted(x: Array, dtype: np.dtype, weak: bool = False) -> Array:
    """`x` converted to `dtype`, strong unless told otherwise."""
    if weak:
        return convert_dtype.bind(x, dtype=dtype, weak=True)
    return convert_dtype.bind(x, dtype=dtype)


def checked_cast(name: str, x: Array, dtype: np.dtype) -> Array:
    """`x` in `dtype`, itself if it has it; DtypeError where an imaginary part would be dropped."""
    if dtypes.is_complex(x.dtype) and not (dtypes.is_complex(dtype) or dtypes.is_bool(dtype)):
        raise DtypeError(
            f"{name}: {x.aval} to {dtypes.name(dtype)} would drop the imaginary part; use "
            "nv.real(x), nv.imag(x) or nv.abs(x)"
        )
    if x.dtype == dtype and not x.aval.weak:
        return x
    return convert_dtype.bind(x, dtype=dtype)


def same(dtype: np.dtype) -> np.dtype:
    """Convert: any dtype is its own working dtype."""
    return dtype


def numeric(dtype: np.dtype) -> np.dtype:
    """Convert: numbers as they are; booleans are refused."""
    if dtypes.is_bool(dtype):
        raise DtypeError("booleans have no arithmetic here; convert with .astype(nv.int32)")
    return dtype


def to_inexact(dtype: np.dtype) -> np.dtype:
    """Convert: integers and booleans work in the default float."""
    return dtypes.inexact(dtype)


def real_inexact(dtype: np.dtype) -> np.dtype:
    """Convert: as `to_inexact`, complex refused."""
    return dtypes.inexact(ordered(dtype))


def ordered(dtype: np.dtype) -> np.dtype:
    """Convert: any dtype with an order; complex refused."""
    if dtypes.is_complex(dtype):
        raise DtypeError("complex numbers have no order; compare nv.abs(x), x.real or x.imag")
    return dtype


# Shapes


def broadcast_shapes(name: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """NumPy's broadcasting; ShapeError with every shape when they do not fit."""
    first = shapes[0]
    if all(s == first for s in shapes):
        return first
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        pass
    listed = " and ".join(map(str, shapes))
    raise ShapeError(
        f"{name}: shapes {listed} do not broadcast: aligned from the right, two sizes differ and "
        "neither is 1. Insert an axis with x[:, None] or nv.expand_dims, or reshape"
    )


def elementwise_rule(
    name: str, result: Callable[[np.dtype], np.dtype] = same
) -> Callable[..., Aval]:
    """The shape rule of an elementwise primitive: one dtype in, broadcast shapes out."""

    def shape_rule(*avals: Aval, **params: Any) -> Aval:
        dtype = avals[0].dtype
        if any(a.dtype != dtype for a in avals):
            raise DtypeError(f"{name}: the primitive takes one dtype, got {avals}")
        shape = broadcast_shapes(name, *[a.shape for a in avals])
        dtype = result(dtype)
        return aval(shape, dtype, all(a.weak for a in avals) and not dtypes.is_bool(dtype))

    return shape_rule


def normalize_axis(axis: Any, ndim: int, name: str) -> int:
    """A non-negative axis; AxisError when it is out of bounds."""
    try:
        axis = operator.index(axis)
    except TypeError:
        raise TypeError(f"{name}: axis must be an integer, got {axis!r}") from None
    if not -ndim <= axis < ndim:
        raise AxisError(
            f"{name}: axis {axis} is out of bounds for an array of {ndim} dimensions; "
            f"use {-ndim} to {ndim - 1}"
            if ndim
            else f"{name}: a 0-d array has no axis {axis}"
        )
    return axis % ndim


def normalize_axes(axis: Any, ndim: int, name: str) -> tuple[int, ...]:
    """Sorted non-negative axes from None (all), an integer or a tuple; duplicates raise."""
    if axis is None:
        return tuple(range(ndim))
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    normal = tuple(sorted(normalize_axis(a, ndim, name) for a in axes))
    if len(set(normal)) != len(normal):
        raise AxisError(f"{name}: axis {axis} names an axis twice for {ndim} dimensions")
    return normal


def integer(value: Any, name: str) -> int:
    """An argument that counts something; TypeError, which names it, for what is no integer."""
    try:
        return operator.index(value)
    except TypeError as error:
        if isinstance(error, ConcretizationError):
            raise
        raise TypeError(f"{name} is an integer, got {value!r}; convert it with int()") from None


def sizes_of(shape: Any, name: str) -> tuple[int, ...]:
    """A shape argument, an integer or a sequence of integers, as a tuple."""
    if hasattr(type(shape), "__index__") and not isinstance(shape, tuple | list):
        shape = (shape,)
    try:
        return tuple([operator.index(n) for n in shape])
    except TypeError as error:
        if isinstance(error, ConcretizationError):
            raise
        raise TypeError(
            f"{name}: a shape is an integer or a tuple of integers, got {shape!r}"
        ) from None


# Public operations


def unary(primitive: Primitive, convert: Convert | None = None, doc: str | None = None) -> Unary:
    """The public operation of a primitive with one operand; `doc` is its docstring."""
    avals = primitive._avals
    accepts = convert if convert is not None else same

    def operation(x: Any, /) -> Array:
        try:
            if type(x) is Array:
                node = x._node
                out = avals.get((node.aval,))
                if out is not None:
                    if context.symbolic:
                        return primitive.bind(x)
                    marks = node.marks
                    if marks is not None:
                        marks = live(marks)
                    made = Node(primitive, (node,), NO_PARAMS, out, marks)
                    if not made.seq % 4099:
                        bound_pending(made)
                    return Array(made)
            (x,) = promote_operands(primitive.name, (x,), accepts)
            return primitive.bind(x)
        except Exception as error:
            strip_error(error)
            raise

    return _named(operation, primitive, convert, doc)


def binary(
    primitive: Primitive, convert: Convert | None = None, doc: str | None = None, *,
    operator: bool = False, special: Callable[[Any, Any], Array | None] | None = None,
) -> Binary:  # fmt: skip
    """The public operation of a primitive with two operands; `doc` is its docstring.

    With `operator` it serves as a method (`Array.__add__`): what is no array gets NotImplemented,
    so that Python asks the other operand.  `special(x, y)` is asked before operands are promoted;
    what it returns is the result, unless it is None."""
    avals = primitive._avals
    accepts = convert if convert is not None else same
    scalars: dict[Any, Node] = {}  # the literal that a Python scalar becomes beside an aval

    def operation(x: Any, y: Any, /) -> Array:
        try:
            kind, other = type(x), type(y)
            a = b = None
            if kind is Array:
                a = x._node
                if other is Array:
                    b = y._node
                elif other in _SCALARS:
                    b = scalars.get((a.aval, other, y))
                elif operator and not is_operand(y):
                    return NotImplemented
            elif other is Array and kind in _SCALARS:
                b = y._node
                a = scalars.get((kind, x, b.aval))
            if a is not None and b is not None:
                out = avals.get((a.aval, b.aval))
                if out is not None:
                    if not context.symbolic:
                        marks = a.marks
                        if marks is not None or b.marks is not None:
                            marks = unite(marks, b.marks)
                        made = Node(primitive, (a, b), NO_PARAMS, out, marks)
                        if not made.seq % 4099:
                            bound_pending(made)
                        return Array(made)
                    # The caller's own handles: a scope may capture them.
                    return primitive.bind(
                        x if kind is Array else Array(a), y if other is Array else Array(b)
                    )
            if special is not None:
                known = special(x, y)
                if known is not None:
                    return known
            left, right = promote_operands(primitive.name, (x, y), accepts)
            if left is x and other in _SCALARS and (y or other is int):  # 0.0 == -0.0
                _remember(scalars, (x._node.aval, other, y), right)
            elif right is y and kind in _SCALARS and (x or kind is int):
                _remember(scalars, (kind, x, y._node.aval), left)
            return primitive.bind(left, right)
        except Exception as error:
            strip_error(error)
            raise

    operation.special = special  # type: ignore[attr-defined]
    return _named(operation, primitive, convert, doc)


_SCALARS = frozenset((bool, int, float, complex))


def _remember(scalars: dict[Any, Node], key: Any, literal: Array) -> None:
    if len(scalars) > 1024:  # a program that computes its scalars has a new one each time
        scalars.clear()
    scalars[key] = literal._node


def is_operand(x: Any) -> bool:
    """Whether an operator takes `x` (a list it does take, to say what to do with it)."""
    return isinstance(
        x, Array | np.ndarray | np.generic | bool | int | float | complex | list | tuple
    ) or hasattr(x, "__nuvec_array__")


def _named(operation: Any, primitive: Primitive, convert: Convert | None, doc: str | None) -> Any:
    operation.__name__ = operation.__qualname__ = primitive.name
    operation.__doc__ = doc
    operation.primitive = primitive
    operation.convert = convert
    return operation


# Conversion is here because promotion, and so every family, needs it.


def _convert_lower(x: Any, dtype: np.dtype, weak: bool = False, out: Any = None) -> Any:
    if dtypes.is_complex(x.dtype) and not dtypes.is_complex(dtype):
        x = x.real if not dtypes.is_bool(dtype) else x != 0
    if out is None:
        return np.asarray(x).astype(dtype)
    np.copyto(out, x, casting="unsafe")
    return out


convert_dtype: Primitive = Primitive(
    "convert_dtype",
    _convert_lower,
    lambda x, dtype, weak=False: aval(x.shape, dtype, weak),
    "elementwise",
    # d convert(x): the tangent converted; the cotangent converted back
    jvp=lambda tangents, out, x, dtype, weak=False: converted(tangents[0], dtype, weak),
    vjp=lambda i, c, out, x, dtype, weak=False: converted(c, x.dtype, x.aval.weak),
    out=True,
)
