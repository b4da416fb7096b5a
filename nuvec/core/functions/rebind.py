"""Assignment: `x[i] = v` and `x += v` point the handle `x` to a new value.

The value itself is functional: arrays derived from `x` before keep theirs.  Every name for the
same handle sees the change, as with any Python object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nuvec.core.array import Array
from nuvec.core.errors import LeakedTracerError, ShapeError
from nuvec.core.functions.indexing import cast_value, setitem_value
from nuvec.core.node import Node
from nuvec.core.ops.build import is_operand
from nuvec.core.traceback import filtered, format_user_frame


def rebind(x: Array, new: Array, statement: str) -> None:
    """Point `x` to the value of `new`.

    Raises LeakedTracerError when the value belongs to a trace that began after `x` was made: `x`
    will outlive the trace, and what it would then hold has no value."""
    node = new._node
    if node.marks is not None:
        _refuse_leak(x._node, node, statement)
    x._node = node


def _refuse_leak(old: Node, new: Node, statement: str) -> None:
    for trace in new.marks or ():
        outside = trace.open and trace.start > old.seq
        if outside and (old.marks is None or trace not in old.marks):
            raise LeakedTracerError(
                f"`{statement}` at {format_user_frame()} assigns a value traced by {trace.name} "
                f"({new.aval}) into an array ({old.aval}) that was made outside of it and would "
                "keep the value when the trace is over. Return the value from the function, or "
                "make a copy inside it (y = x.copy()) and assign to that"
            )


@filtered
def setitem(x: Array, index: Any, value: Any) -> None:
    """`x[index] = value`."""
    rebind(x, setitem_value(x, index, value), "x[i] = v")


def in_place(operation: Callable[[Any, Any], Array], symbol: str) -> Callable[[Array, Any], Any]:
    """The method behind `x += v`: `x` keeps its shape and dtype, as in NumPy."""
    statement = f"x {symbol}= v"

    @filtered
    def method(x: Array, value: Any, /) -> Any:
        if not is_operand(value):
            return NotImplemented
        new = operation(x, value)
        if new.shape != x.shape:
            raise ShapeError(
                f"`{statement}`: x has shape {x.shape} and the result {new.shape}; an in-place "
                f"operator keeps the shape: write x = x {symbol} v"
            )
        if new.dtype != x.dtype:
            new = cast_value(new, x, statement)
        rebind(x, new, statement)
        return x

    return method


__all__ = ["in_place", "rebind", "setitem"]
