"""Array: a lazy handle on an immutable value.

An `Array` points to a node of the recorded graph and can be pointed to another one (`x[i] = v`).
Asking for its value evaluates what is pending behind it.  Operators and the methods that are
operations are attached by `nuvec.core.functions.methods`, which sees them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from nuvec.core import dtypes, tree
from nuvec.core.errors import ConcretizationError, DtypeError, ShapeError
from nuvec.core.interpreter import evaluate
from nuvec.core.ir import Aval, aval
from nuvec.core.node import LITERAL, Node, Trace, constant, context
from nuvec.core.traceback import filtered, format_user_frame

Scalar = bool | int | float | complex


class Array:
    """A lazy n-dimensional array.  Make one with `nuvec.array` or any nuvec function.

    >>> import nuvec as nv
    >>> x = nv.array([1.0, 2.0])
    >>> x * 2
    array([2., 4.], dtype=float32)
    """

    __slots__ = ("__weakref__", "_node")
    __array_priority__ = 1000
    _node: Node

    def __init__(self, node: Node) -> None:
        self._node = node

    # What is known without evaluating

    @property
    def aval(self) -> Aval:
        """Shape, dtype and weakness."""
        return self._node.aval

    @property
    def shape(self) -> tuple[int, ...]:
        return self._node.aval.shape

    @property
    def dtype(self) -> np.dtype:
        return self._node.aval.dtype

    @property
    def ndim(self) -> int:
        return len(self._node.aval.shape)

    @property
    def size(self) -> int:
        return self._node.aval.size

    @property
    def nbytes(self) -> int:
        return self._node.aval.nbytes

    @property
    def itemsize(self) -> int:
        return self._node.aval.dtype.itemsize

    @property
    def device(self) -> str:
        return "cpu"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d array; use x.size for its number of elements")
        return self.shape[0]

    __hash__ = object.__hash__

    # What evaluates

    def _value(self) -> Any:
        """The NumPy value, evaluated if need be; for use inside the library."""
        node = self._node
        if context.scope is not None:
            _refuse_capture(node)
        if node.value is None:
            evaluate((node,))
        return node.value

    def _exported(self, into: str) -> np.ndarray:
        """The value for somebody who computes with it outside of nuvec, as a read-only view.

        Raises ConcretizationError where that would drop a derivative in silence."""
        node = self._node
        if node.marks is not None:
            for trace in node.marks:
                if trace.open and trace.differentiates and _carries_derivative(node, trace):
                    raise ConcretizationError(
                        f"an array of {node.aval} that depends on the input of {trace.name} is "
                        f"turned into {into} at {format_user_frame()}, which would lose its "
                        "derivative. Use the nuvec function of the same name (nv.X for np.X), or "
                        "nv.stop_gradient(x) if its derivative is not wanted"
                    )
        return _read_only(np.asarray(self._value()))

    @filtered
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        value = self._exported("a NumPy array")
        if dtype is not None and np.dtype(dtype) != value.dtype:
            if copy is False:
                raise ValueError(f"converting {value.dtype} to {dtype} needs a copy; copy=False")
            return value.astype(dtype)
        return value.copy() if copy else value

    @filtered
    def item(self, *index: int) -> Any:
        """The value as a Python scalar (of one element; or of the element at `index`)."""
        if not index and self.size != 1:
            raise ShapeError(
                f"item() needs an array of one element, and this one has shape {self.shape}; "
                "pass an index, or use tolist()"
            )
        return np.asarray(self._value()).item(*index)

    @filtered
    def tolist(self) -> Any:
        """The values as nested Python lists."""
        return self._exported("a list").tolist()

    def _scalar(self, kind: str) -> Any:
        if self.size != 1:
            raise _NotOneElement(
                f"{kind}() needs an array of one element, and this one has shape {self.shape}"
                + ("; use nv.any or nv.all" if kind == "bool" else "; index it first")
            )
        if kind in ("int", "float") and dtypes.is_complex(self.dtype):
            raise DtypeError(
                f"{kind}() of {self.aval} would drop the imaginary part; take x.real, x.imag or "
                "abs(x) first, or complex(x)"
            )
        return np.asarray(self._value()).reshape(())[()]

    @filtered
    def __bool__(self) -> bool:
        return bool(self._scalar("bool"))

    @filtered
    def __int__(self) -> int:
        return int(self._scalar("int"))

    @filtered
    def __float__(self) -> float:
        return float(self._scalar("float"))

    @filtered
    def __complex__(self) -> complex:
        return complex(self._scalar("complex"))

    @filtered
    def __index__(self) -> int:
        if not dtypes.is_integer(self.dtype) or self.shape:
            raise TypeError(f"only a 0-d integer array can be an index, not {self.aval}")
        return int(self._value())

    @filtered
    def __repr__(self) -> str:
        symbolic = _symbolic_trace(self._node)
        if symbolic is not None:
            return f"<traced {self.aval} in {symbolic.name}>"
        late = _capturing_trace(self._node)
        if late is not None:
            return f"<captured {self.aval} in {late.name}>"
        text = np.array2string(np.asarray(self._value()), separator=", ", prefix="array(")
        shape = f", shape={self.shape}" if not self.size and self.shape != (0,) else ""
        return f"array({text}{shape}, dtype={dtypes.name(self.dtype)})"

    @filtered
    def __str__(self) -> str:
        if _symbolic_trace(self._node) or _capturing_trace(self._node):
            return repr(self)
        return str(np.asarray(self._value()))

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.size == 1 and spec else format(str(self), spec)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._exported("a pickle"), self.aval.weak)

    def __copy__(self) -> Array:
        return Array(self._node)

    def __deepcopy__(self, memo: Any) -> Array:
        return Array(self._node)  # values are immutable

    @filtered
    def __dlpack__(
        self, *, stream: Any = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None, copy: bool | None = None,
    ) -> Any:  # fmt: skip
        value = self._exported("a DLPack capsule")
        if value.dtype == dtypes.bfloat16:
            raise BufferError(
                "NumPy's DLPack knows no bfloat16: convert with .astype(nv.float32), or pass on "
                "the bits, np.asarray(x).view(np.uint16)"
            )
        if copy is False:
            if max_version is None or max_version < (1, 0):
                raise BufferError(
                    "an Array's buffer is read-only, which DLPack can express from version 1.0 "
                    "on; leave out copy=False, or ask with max_version=(1, 0)"
                )
        else:
            value = value.copy()  # consumers overlook the flag that says read-only
            copy = None
        return value.__dlpack__(
            stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    if TYPE_CHECKING:  # attached by nuvec.core.functions.methods

        def _operator(self, other: Any, /) -> Array: ...

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _operator
        __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _operator
        __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _operator
        __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _operator
        __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _operator
        __lt__ = __le__ = __gt__ = __ge__ = _operator

        def __eq__(self, other: Any, /) -> Array: ...  # type: ignore[override]
        def __ne__(self, other: Any, /) -> Array: ...  # type: ignore[override]
        def __neg__(self) -> Array: ...
        def __pos__(self) -> Array: ...
        def __abs__(self) -> Array: ...
        def __invert__(self) -> Array: ...
        def __iter__(self) -> Iterator[Array]: ...
        def __getitem__(self, index: Any) -> Array: ...
        def __setitem__(self, index: Any, value: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...  # methods: sum, reshape, astype, T, at, ...


def _carries_derivative(node: Node, trace: Trace) -> bool:
    """Whether a node depends on the trace's input otherwise than through stop_gradient or
    through integers and booleans, which have no derivative."""
    seen: set[Node] = set()
    stack = [node]
    while stack:
        n = stack.pop()
        if n in seen or getattr(n.primitive, "name", "") == "stop_gradient":
            continue
        if isinstance(n.aval, Aval) and not dtypes.is_inexact(n.aval.dtype):
            continue
        seen.add(n)
        inputs = [i for i in n.inputs if i.marks is not None and trace in i.marks]
        if not inputs:
            return True  # the input itself
        stack.extend(inputs)
    return False


class _NotOneElement(ShapeError, TypeError):
    """bool(), int() or float() of several elements: NumPy raises ValueError or TypeError."""


def _read_only(value: np.ndarray) -> np.ndarray:
    """A view that nobody can make writable again: it is taken of a read-only buffer."""
    own = value.dtype == dtypes.bfloat16  # it has no code in the buffer protocol
    buffer: Any = value.view(np.uint16) if own else value
    view = np.asarray(memoryview(buffer).toreadonly())
    return view.view(value.dtype) if own else view


def _restore(value: np.ndarray, weak: bool) -> Array:
    return Array(constant(value, aval(value.shape, value.dtype, weak)))


def _symbolic_trace(node: Node) -> Any:
    if node.marks is not None:
        for trace in node.marks:
            if trace.symbolic and trace.open:
                return trace
    return None


def _refuse_capture(node: Node) -> None:
    """Inside compile an array from outside has no value to bake in: it is read at every call."""
    trace = _capturing_trace(node)
    if trace is not None:
        raise ConcretizationError(
            f"the value of a captured {node.aval} is needed at {format_user_frame()}, inside "
            f"{trace.name}, where it has none: a compiled function reads captured arrays at "
            "every call. Use nv.where or nv.cond, or take the value outside the function"
        )


def _capturing_trace(node: Node) -> Any:
    """The open compile trace for which a node is a capture.  What depends on a placeholder of
    another open trace, as of the body of a loop inside, is none."""
    if context.scope is not None and _symbolic_trace(node) is None:
        for trace in context.traces:
            if trace.late and not trace_owns(trace, node):
                return trace
    return None


def trace_owns(trace: Any, node: Node) -> bool:
    """Whether a node belongs to a scope: recorded in it, or a constant made since it opened."""
    if node.marks is not None and trace in node.marks:
        return True
    return node.primitive is None and (node.seq > trace.start or node.params is LITERAL)


# Making arrays from values

_literals: dict[Any, Node] = {}


def literal(value: Scalar, dtype: np.dtype, weak: bool = False) -> Array:
    """A scalar that is written into equations.  Raises DtypeError when `dtype` cannot hold it."""
    key = (type(value), value, dtype, weak)
    node = _literals.get(key)
    if node is None:
        scalar = dtypes.python_scalar(value, dtype)
        node = Node(None, (), LITERAL, aval((), dtype, weak), None, scalar)
        exact = value or type(value) is int  # not so 0.0, which equals -0.0
        if exact and value == value and len(_literals) < 4096:  # nan != nan
            _literals[key] = node
    return Array(node)


def refuse_mask(value: Any) -> None:
    """Raise DtypeError for a masked array that hides elements."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise DtypeError(
            f"a masked array of shape {value.shape} has masked elements, and an Array has no "
            "mask: fill them (x.filled(0)), and keep the mask as an array of its own for nv.where"
        )


def from_numpy(value: np.ndarray | np.generic, copy: bool = True) -> Array:
    """An Array of a NumPy value; it copies unless told that nobody will write to the source."""
    if type(value) is not np.ndarray:
        refuse_mask(value)
    dtype = dtypes.as_dtype(value.dtype)
    if copy or value.dtype != dtype or not isinstance(value, np.ndarray | np.generic):
        value = np.array(value, dtype=dtype, order="C")
    elif type(value) is not np.ndarray and isinstance(value, np.ndarray):
        value = np.asarray(value)
    return Array(constant(value, aval(value.shape, dtype)))


def operand(x: Any, name: str = "an operand") -> Array:
    """What the caller of an operation passed, as an Array: Arrays, NumPy arrays and scalars, and
    Python scalars (weak).  Lists and other objects raise: `nv.array` turns them into Arrays."""
    kind = type(x)
    if kind is Array:
        return x
    if kind in _SCALARS:
        return _weak(x, name)
    if isinstance(x, Array):
        return x
    if isinstance(x, np.ndarray | np.generic):
        return from_numpy(x)
    if isinstance(x, bool | int | float | complex):
        return _weak(x, name)
    if hasattr(x, "__nuvec_array__"):
        return x.__nuvec_array__()
    hint = (
        "nv.array(x) makes an array of it"
        if isinstance(x, list | tuple)
        else ("pass an Array, a NumPy array or a Python scalar")
    )
    raise DtypeError(f"{name} is a {kind.__name__}, not an array; {hint}")


def _weak(x: Any, name: str) -> Array:
    """A Python scalar in its own dtype, to give way to others'."""
    dtype = dtypes.scalar_dtype(x)
    try:
        return literal(x, dtype, True)
    except DtypeError:  # only an int has no place in its own dtype
        wide = [d for d in ("int64", "uint64") if np.iinfo(d).min <= x <= np.iinfo(d).max]
        raise DtypeError(
            f"{name}: the int {x} is out of range for {dtypes.name(dtype)}, the dtype of "
            f"a Python int by itself; {f'pass np.{wide[0]}({x})' if wide else 'no dtype holds it'}"
        ) from None


_SCALARS = frozenset((bool, int, float, complex))


@filtered
def eval(*trees: Any) -> None:
    """Evaluate every Array in the given trees, together, in program order.

    Raises whatever an operation raises (IndexError for an index out of bounds, PeerError for a
    communication that failed); arrays that do not depend on it stay good.

    >>> import nuvec as nv
    >>> x = nv.ones(3) + 1
    >>> nv.eval(x)
    """
    nodes = []
    for leaf in tree.leaves(trees):
        if isinstance(leaf, Array):
            if context.scope is not None:
                _refuse_capture(leaf._node)
            if leaf._node.value is None:
                nodes.append(leaf._node)
    if nodes:
        evaluate(nodes)


__all__ = ["Array", "ShapeError", "eval", "from_numpy", "literal", "operand"]
