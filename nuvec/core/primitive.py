"""A primitive is one record: everything nuvec knows of an operation stands in one place.

`bind` records an equation.  It looks up the output's shape (cached), makes a node and returns an
Array; nothing is computed.  The rules of a primitive are written in public operations on Arrays,
so whatever a rule emits is recorded again and transforms compose to any depth.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from nuvec.core.array import Array
from nuvec.core.complete import MINUS_ONE as MINUS_ONE
from nuvec.core.complete import (
    NOT_BATCHABLE,
    NOT_DIFFERENTIABLE,
    ONE,
    Kind,
    check_complete,
    check_name,
    check_operands,
    check_params,
)  # fmt: skip
from nuvec.core.complete import ZERO as ZERO
from nuvec.core.errors import ArgumentError, NuvecError
from nuvec.core.interpreter import bound_pending, queue_of
from nuvec.core.ir import TOKEN, Aval, Eqn, NoAvalError, has_effect
from nuvec.core.node import (
    LITERAL,
    NO_PARAMS,
    Marks,
    Node,
    Trace,
    context,
    is_literal,
    observed_effects,
    traces_set,
    unite,
)  # fmt: skip
from nuvec.core.traceback import format_user_frame

TABLE: dict[str, Primitive] = {}
_PACKAGE = __name__.partition(".")[0]


@dataclass(eq=False, slots=True)
class Primitive:
    """All the rules of one operation.  Creating one enters it in `TABLE`.

    A record is complete or refused: ArgumentError (a ValueError) says which rule is missing, and
    what to write where there is none to give.

    name       -- unique; what text shows: identifiers with dots between them
    lower      -- `lower(*ndarrays, **params) -> ndarray`: the NumPy meaning.  With `out=True` it
                  also takes `out=` (a fresh buffer of the right shape and dtype, never an operand
                  unless the primitive is elementwise or `updates` it) and returns it
    shape_rule -- `shape_rule(*avals, **params) -> Aval` (a tuple of them with `multiple`); raises
                  ShapeError, DtypeError or AxisError that says what was wrong and how to mend it
    kind       -- decides fusion, aliasing and ordering when lowering

    Derivatives, one of:
    derivatives -- elementwise: one entry an operand, `derivative(out, *operands) -> Array` (the
                  partial derivative at each element) or ONE, MINUS_ONE, ZERO, NOT_DIFFERENTIABLE.
                  Forward and reverse mode both derive from it
    transpose  -- linear: `transpose(i, c, out, *operands, **params) -> Array`, the cotangent of
                  operand i for cotangent c.  `linear="joint"` says the operation is linear in its
                  floating operands taken together (concatenate), "each" in each of them alone
                  (matmul); `linear_operands` names which, all by default.  An elementwise
                  primitive may say so too, besides its derivatives (multiply)
    jvp, vjp   -- anything else: `jvp(tangents, out, *operands, **params) -> Array`, where a None
                  tangent is zero, and `vjp(i, c, out, *operands, **params)` as transpose.  With
                  `multiple`, `jvp` returns a list, `vjp(cs, outs, *operands, **params)` returns a
                  list with one cotangent (or None) an operand; a None in `cs` is zero
    NOT_DIFFERENTIABLE for both, said explicitly, when the result has no derivative

    vmap       -- `vmap(size, axes, *operands, **params) -> (Array, axis)`; an operand's axis is
                  None when it is not batched; with `multiple`, a list and a list of axes.
                  An elementwise primitive may leave it out: it batches by aligning ranks.
                  NOT_BATCHABLE where there can be no such rule
    axis       -- of a communication: what it is when its group is the mapped axis itself
                  (`axis_group`), `axis(size, axes, *operands, **params) -> (list of Arrays, list
                  of axes)`, as `vmap`: rank r's operand is element r of the batch, and the result
                  communicates no more

    guard      -- of a primitive whose evaluation can raise because of values (an index out of
                  bounds): `guard(wanted, *operands, **params) -> (operands, params)`, with which
                  it computes the same where `wanted`, a boolean scalar, is true, and raises
                  nothing where it is false.  So vmap evaluates what an element does not take

    out        -- lower accepts `out=`
    updates    -- the operand that the result is a changed copy of (x of `x.at[i].set(v)`): lower
                  accepts that operand itself as `out=`, which it then changes and does not copy.
                  Its bits are those it gives in another buffer
    selects    -- passes exact zeros to operands not selected (where, maximum): see
                  `masked_product`
    multiple   -- several results
    effect     -- communicates; has a param `group`, whose `queue` orders it
    higher_order -- params hold IRs
    split      -- higher-order: `split(trace, operands, params) -> (outs, linear)`: how a
                  differentiating trace records it.  `outs` is the forward on detached operands;
                  `linear` maps the operands' tangents to the outputs' (mode "jvp") or the outputs'
                  cotangents to the operands' (mode "vjp"), None standing for zero; it is None
                  when `outs` carry their derivative themselves
    inline     -- higher-order with a rule of its own: records it as the equations it stands for
    tile       -- `tile(eqn, rows, count) -> Tile | None`: how a tile of `count` rows is computed of
                  an equation whose leading axes are `rows`, bit for bit (nuvec.core.tiling); None
                  where it cannot be.  Elementwise equations need no rule
    memory     -- where results are not all there is: `memory(eqn) -> (held, passing)`, the bytes
                  that its results hold (less than theirs where they share), and those it needs
                  beside them while it runs
    words      -- for parameters that are neither plain values nor IRs, the names by which text
                  writes them: `{"policy": {"dots": dots}}`.  A class among them writes its
                  instances field by field: those that its `text_fields` lists; it is made anew
                  from them, and then its `restored()` is called
    """

    name: str
    lower: Callable[..., Any]
    shape_rule: Callable[..., Any]
    kind: Kind
    derivatives: tuple[Any, ...] | None = None
    transpose: Callable[..., Any] | None = None
    linear: Literal["joint", "each"] | None = None
    linear_operands: tuple[int, ...] | None = None
    jvp: Any = None
    vjp: Any = None
    vmap: Any = None
    axis: Callable[..., Any] | None = None
    guard: Callable[..., Any] | None = None
    out: bool = False
    updates: int | None = None
    selects: bool = False
    multiple: bool = False
    effect: bool = False
    higher_order: bool = False
    split: Callable[..., Any] | None = None
    inline: Callable[..., Any] | None = None
    tile: Callable[..., Any] | None = None
    memory: Callable[[Eqn], tuple[int, int]] | None = None
    words: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    plain: bool = field(default=True, init=False, repr=False)  # neither communicates nor holds IRs
    # Declared outside of nuvec: what its lowering returns is held against its shape rule.
    foreign: bool = field(default=False, init=False, repr=False)
    _avals: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.name in TABLE:
            raise ArgumentError(
                f"a primitive named {self.name!r} exists already; names are unique: "
                "prefix yours, as in 'mylib.softplus'"
            )
        if self.transpose is not None:
            self.vjp = self.transpose
            self.linear = self.linear or "joint"
        check_complete(self)
        self.plain = not (self.effect or self.higher_order or self.name == "placeholder")
        declaring = sys._getframe(2).f_globals  # above this method and the dataclass's __init__
        self.foreign = declaring.get("__name__", "").partition(".")[0] != _PACKAGE
        TABLE[self.name] = self

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"Primitive({self.name!r})"

    def infer(self, avals: tuple[Aval, ...], params: dict[str, Any]) -> Any:
        """The output aval(s), cached; a bounded cache, since shapes can vary without end."""
        if self.higher_order or self.effect:
            return self._infer(avals, params)  # IRs and groups as keys would be kept alive
        key = (avals, tuple(params.items())) if params else avals
        try:
            found = self._avals.get(key)
        except TypeError:
            check_params(self, params)
            raise
        if found is None:
            if self.derivatives is not None and len(self.derivatives) != len(avals):
                raise NuvecError(
                    f"{self.name} has {len(self.derivatives)} derivatives and is given "
                    f"{len(avals)} operands: its Primitive needs an entry for each operand "
                    "(NOT_DIFFERENTIABLE for one that can have none)"
                )
            check_params(self, params)
            found = self._infer(avals, params)
            if len(self._avals) > 4096:
                self._avals.clear()
            self._avals[key] = found
        return found

    def _infer(self, avals: tuple[Aval, ...], params: dict[str, Any]) -> Any:
        """What the shape rule returns, once it is known to be avals."""
        try:
            found = self.shape_rule(*avals, **params)
        except NoAvalError as error:
            raise NuvecError(f"the shape rule of {self.name}, given {avals}: {error}") from error
        results = found if self.multiple else (found,)
        if not isinstance(results, tuple | list) or any(type(a) is not Aval for a in results):
            wanted = "a tuple of Avals" if self.multiple else "an Aval"
            raise NuvecError(
                f"the shape rule of {self.name} returned {found!r}, and must return {wanted}: "
                "make them with nuvec.core.ir.aval(shape, dtype)"
            )
        return found

    def bind(self, *arrays: Array, **params: Any) -> Any:
        """Record `self(*arrays, **params)`: an Array, or a list of them with `multiple`.

        Raises ArgumentError (a TypeError) for an operand that is not an Array, and for a parameter
        that is one, or cannot be hashed."""
        traces = context.traces
        if traces:
            return _bind_traced(self, arrays, params, traces)
        try:
            nodes = tuple([a._node for a in arrays])
        except AttributeError:
            check_operands(self, arrays)
            raise
        out = self.infer(tuple([n.aval for n in nodes]), params)
        marks: Marks = None
        for n in nodes:
            if n.marks is not None:
                marks = unite(marks, n.marks)
        if self.multiple or not self.plain:
            return _finish(self, nodes, params, out, marks, traces)
        node = Node(self, nodes, params or NO_PARAMS, out, marks)
        if not node.seq % 4099:
            bound_pending(node)
        return Array(node)


def _bind_traced(
    primitive: Primitive, arrays: tuple[Array, ...], params: dict[str, Any],
    traces: tuple[Trace, ...],
) -> Any:  # fmt: skip
    if context.inherited:
        context.forget_closed()
        traces = context.traces
        if not traces:
            return primitive.bind(*arrays, **params)
    innermost = traces[-1]
    if primitive.split is not None and innermost.differentiates:
        check_operands(primitive, arrays)
        return _bind_split(primitive, arrays, params, innermost)
    scope = context.scope
    try:
        if scope is None:
            nodes = tuple([a._node for a in arrays])
        else:
            nodes = tuple([adopt(scope, a) for a in arrays])
    except AttributeError:
        check_operands(primitive, arrays)
        raise
    out = primitive.infer(tuple([n.aval for n in nodes]), params)
    marks: Marks = None
    for n in nodes:
        if n.marks is not None:
            marks = unite(marks, n.marks)
    if scope is not None and (marks is None or scope not in marks):
        marks = frozenset((scope,)) if marks is None else marks | {scope}
    return _finish(primitive, nodes, params, out, marks, traces)


def _finish(
    primitive: Primitive, nodes: tuple[Node, ...], params: dict[str, Any], out: Any,
    marks: Marks, traces: tuple[Trace, ...],
) -> Any:  # fmt: skip
    """Make the node(s) of an equation; log a communication where it belongs."""
    effect = not primitive.plain and has_effect(primitive, params)
    if effect and traces:
        # Activity is the same on every rank: a communication depends on every open trace.
        marks = unite(marks, frozenset(traces))
    if primitive.multiple:
        node = Node(primitive, nodes, params or NO_PARAMS, tuple(out), marks)
    else:
        node = Node(primitive, nodes, params or NO_PARAMS, out, marks)
    if context.symbolic:
        node.source = format_user_frame()
    if effect:
        log_effect(node, traces)
    if primitive.multiple:
        return [Array(Node(PROJECTION, (node,), {"index": i}, o, marks)) for i, o in enumerate(out)]
    return Array(node)


def log_effect(node: Node, traces: tuple[Trace, ...]) -> None:
    """Enter a communication in the logs of the open traces, up to the innermost symbolic one;
    it joins the rank's queue when no open trace is symbolic, for then its operands are real."""
    if context.observed is not None:
        context.observed.append(node)
    for trace in reversed(traces):
        trace.effects.append(node)
        if trace.symbolic:
            return
    queue = queue_of(node)
    if queue is not None and not (node.marks and any(t.symbolic and t.open for t in node.marks)):
        queue.append(node)


def adopt(scope: Trace, array: Array) -> Node:
    """The node to use for `array` inside `scope`: itself when it belongs there, else the
    placeholder of a capture.  Literals, and constants made inside the scope, stay as they are."""
    node = array._node
    if node.marks is not None and scope in node.marks:
        return node
    if node.primitive is None and (node.seq > scope.start or is_literal(node)):
        return node
    key = id(array) if scope.by_handle else id(node)
    found = scope.captures.get(key)
    if found is None or found[1].aval is not node.aval:
        # The array itself is kept (it makes its id unique); a plan reads it at every call.
        source = array if scope.by_handle else Array(node)
        found = scope.captures[key] = (source, placeholder(scope, node.aval, "a captured array"))
    return found[1]


def placeholder(trace: Trace, aval: Aval, name: str) -> Node:
    """An input of a symbolic trace: it has no value."""
    outer: Marks = None
    if context.scope is not None and context.scope is not trace:
        outer = frozenset((context.scope,))
    return Node(PLACEHOLDER, (), {"name": name}, aval, unite(outer, frozenset((trace,))))


def identity_input(trace: Trace, array: Array) -> Array:
    """An input of a differentiating trace: an identity equation on the caller's array.  It has
    that array's value, and outer transforms still see it."""
    return _identity(array, frozenset((trace,)))


def local_handle(array: Array) -> Array:
    """The same value under a handle and a node of their own: what is assigned to it (`x[i] = v`)
    stays local to the function it is passed to."""
    return _identity(array, None)


def _identity(array: Array, marks: Marks) -> Array:
    scope = context.scope
    node = array._node
    if scope is not None:
        # A literal carries no mark of the scope that uses it, and its identity belongs there.
        node, marks = adopt(scope, array), unite(marks, frozenset((scope,)))
    marks = unite(node.marks, marks)
    return Array(Node(IDENTITY, (node,), NO_PARAMS, node.aval, marks, node.value))


def detach(array: Array, trace: Trace) -> Array:
    """The same value without `trace`'s mark; other traces still see it."""
    node = array._node
    if node.marks is None or trace not in node.marks:
        return array
    marks = frozenset(t for t in node.marks if t is not trace) or None
    return Array(Node(IDENTITY, (node,), NO_PARAMS, node.aval, marks, node.value))


def _bind_split(
    primitive: Primitive, arrays: tuple[Array, ...], params: dict[str, Any], trace: Trace
) -> Any:
    """Record an equation that holds IRs under a differentiating trace.

    It must not be a black box to that trace's walk: running the forward again to get at its
    residuals would communicate and draw twice.  So the forward is recorded with its residuals,
    detached from the trace, and a mark equation (the identity for everyone else) calls the
    linear part in the trace's own walk.  Outer traces peel in turn."""
    assert primitive.split is not None
    others = tuple(t for t in context.traces if t is not trace)
    with traces_set(others), observed_effects() as effects:
        outs, linear = primitive.split(trace, arrays, params)
    if not outs:
        outs, linear = _with_token(effects, trace, linear)
    return outs if linear is None else mark(outs, arrays, trace, linear, primitive.name)


def _with_token(effects: list[Node], trace: Trace, linear: Any) -> tuple[list[Array], Any]:
    """What stands for an equation without results, so that others can depend on it: a result of
    its last communication, else a constant.  It has no derivative."""
    last = next((e for e in reversed(effects) if e.aval), None)
    if linear is None:
        return [_token(last)], None
    if trace.mode == "vjp":
        return [_token(last)], lambda cotangents: linear([])
    return [_token(last)], lambda tangents: [*linear(tangents), None]


def _token(effect: Node | None) -> Array:
    if effect is None:
        return Array(Node(None, (), LITERAL, TOKEN, None, np.False_))
    return Array(Node(PROJECTION, (effect,), {"index": 0}, effect.aval[0], effect.marks))


def mark(
    outs: list[Array], operands: tuple[Array, ...] | list[Array], trace: Trace, linear: Any,
    name: str = "a custom function",
) -> list[Array]:  # fmt: skip
    """Tie `outs` to `operands` for `trace`'s walk, which will call `linear`; `name` says whose it
    is, for errors.

    The mark is logged as an effect of that trace alone: it is walked even when nothing asks for
    it, because a forward without communication may have a backward with one."""
    scope = context.scope
    arrays = (*outs, *operands)
    nodes = tuple([a._node if scope is None else adopt(scope, a) for a in arrays])
    marks: Marks = frozenset((trace,))
    for n in nodes:
        marks = unite(marks, n.marks)
    params = {"trace": trace, "linear": linear, "count": len(outs), "name": name}
    node = Node(MARK, nodes, params, tuple([n.aval for n in nodes[: len(outs)]]), marks)
    trace.effects.append(node)
    return [
        Array(Node(PROJECTION, (node,), {"index": i}, o._node.aval, marks))
        for i, o in enumerate(outs)
    ]


def _no_shape_rule(*avals: Aval, **params: Any) -> Aval:
    raise AssertionError("recorded directly, never bound")


def _lower_placeholder(**params: Any) -> Any:
    raise AssertionError("the evaluation walk reports placeholders before it gets here")


# The four primitives of recording itself, which the walks treat as structure.
_STRUCTURE: Any = {"jvp": NOT_DIFFERENTIABLE, "vjp": NOT_DIFFERENTIABLE, "vmap": NOT_BATCHABLE}
PLACEHOLDER = Primitive(
    "placeholder", _lower_placeholder, _no_shape_rule, "other", **_STRUCTURE
)  # fmt: skip
PROJECTION = Primitive(
    "projection", lambda values, index: values[index], _no_shape_rule, "view", **_STRUCTURE
)
IDENTITY = Primitive("identity", lambda x: x, lambda x: x, "view", derivatives=(ONE,))
MARK = Primitive(
    "mark", lambda *values, count, **_: values[:count], _no_shape_rule, "view", multiple=True,
    **_STRUCTURE,
)  # fmt: skip

RECORDING = frozenset((PLACEHOLDER, PROJECTION, IDENTITY, MARK))
