"""What recording is made of: nodes, traces, and the context that lists the open traces.

A `Node` is one recorded value: a constant, a placeholder, or the result of an equation.  Nodes are
immutable in meaning (an `Array` is a rebindable pointer to one); evaluating stores the value and
then drops the inputs, so a graph lives no longer than it is needed.

A node carries `marks`: the set of traces it depends on, or None for most nodes.  There is no stack
of levels that operations dispatch on; a transform asks "does this node carry my mark?".
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nuvec.core.ir import Aval, sequence

Marks = frozenset["Trace"] | None
NO_PARAMS: dict[str, Any] = {}


class Node:
    """A recorded value.

    primitive -- its Primitive; None for a constant
    inputs    -- the nodes it is computed from; () once it has a value nobody needs to trace
    params    -- the equation's static parameters
    aval      -- shape and dtype; a tuple of avals for an operation with several results
    value     -- a NumPy array or scalar (a tuple for a tuple node); None while pending
    seq       -- program order
    marks     -- the traces it depends on
    source    -- the user's line, noted while a symbolic trace is open
    """

    __slots__ = ("aval", "inputs", "marks", "params", "primitive", "seq", "source", "value")

    def __init__(
        self,
        primitive: Any,
        inputs: tuple[Node, ...],
        params: dict[str, Any],
        aval: Any,
        marks: Marks = None,
        value: Any = None,
    ) -> None:
        self.primitive = primitive
        self.inputs = inputs
        self.params = params
        self.aval = aval
        self.marks = marks
        self.value = value
        self.seq = sequence()
        self.source: str | None = None

    def __repr__(self) -> str:
        name = "constant" if self.primitive is None else self.primitive.name
        state = "pending" if self.value is None else "evaluated"
        return f"<Node #{self.seq} {name} {self.aval} {state}>"


class Trace:
    """One recording by one transform.

    mode     -- "vjp" or "jvp" (values are real, identity equations on the caller's arrays),
                "vmap" and "linear" (symbolic; what does not depend on it is a constant), or "scope"
                (symbolic; everything recorded inside belongs to it: compile, make_ir, bodies of
                control flow)
    name     -- what to call it in messages
    by_handle -- captures are told apart by the caller's handles, which a compiled function around
                this one reads at every call; otherwise by their nodes
    late     -- what it records runs later, so a captured array has no value in it (compile)
    effects  -- the communications recorded while it was open, in order
    captures -- outer arrays the scope uses: key -> (source, placeholder node)
    axis     -- the mapped axis of a vmap that has a name for it, which can be a group
    """

    __slots__ = (
        "axis", "by_handle", "captures", "differentiates", "effects", "forced", "late", "mode",
        "name", "open", "random", "start", "symbolic",
    )  # fmt: skip

    def __init__(self, mode: str, name: str, by_handle: bool = False, late: bool = False) -> None:
        self.mode = mode
        self.symbolic = mode in ("vmap", "linear", "scope")
        self.differentiates = not self.symbolic
        self.name = name
        self.by_handle = by_handle
        self.late = late
        self.open = True
        self.effects: list[Node] = []
        self.forced: list[Node] = []
        self.captures: dict[Any, tuple[Any, Node]] = {}
        self.random: Any = None  # the scope's part of the default random stream
        self.axis: Any = None
        self.start = sequence()

    def __repr__(self) -> str:
        return f"<Trace {self.mode} of {self.name}>"


class _Context(threading.local):
    """The open traces of this thread, outermost first, and the innermost scope among them.

    A thread started inside a traced function begins with the traces that were open there."""

    def __init__(self) -> None:
        traces = getattr(threading.current_thread(), "_nuvec_traces", ())
        self.inherited = bool(traces)
        if traces:
            self.enter(traces)

    def enter(self, traces: tuple[Trace, ...]) -> None:
        """Make `traces` the open traces."""
        self.traces = traces
        self.scope = next((t for t in reversed(traces) if t.mode == "scope"), None)
        self.symbolic = any(t.symbolic for t in traces)

    def forget_closed(self) -> None:
        """A thread may outlive the traces it began with."""
        if not all(t.open for t in self.traces):
            self.enter(tuple(t for t in self.traces if t.open))

    traces: tuple[Trace, ...] = ()
    scope: Trace | None = None
    symbolic: bool = False  # whether any open trace is
    observed: list[Node] | None = None  # where a walk listens for the communications it records
    profiles: tuple[Any, ...] = ()  # those open (core/profiler.py); not passed on to threads


context = _Context()


@contextmanager
def traces_set(traces: tuple[Trace, ...]) -> Iterator[None]:
    """Make `traces` the open traces; restored on exit, exceptions included."""
    before = (context.traces, context.scope, context.symbolic)
    context.enter(traces)
    try:
        yield
    finally:
        context.traces, context.scope, context.symbolic = before


class _Inheritance:
    """While any trace is open, a started thread is given the traces of the thread that starts it.

    Python does not tell a thread who started it, so `threading.Thread.start` notes it, from when
    the first trace opens to when the last one closes."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.open = 0
        self.start: Any = None

    def begin(self) -> None:
        with self.lock:
            self.open += 1
            if self.open == 1:
                original = self.start = threading.Thread.start

                def start(thread: threading.Thread) -> None:
                    if context.traces:
                        thread._nuvec_traces = context.traces  # type: ignore[attr-defined]
                    original(thread)

                threading.Thread.start = start  # type: ignore[assignment, method-assign]

    def end(self) -> None:
        with self.lock:
            self.open -= 1
            if self.open == 0:
                threading.Thread.start = self.start  # type: ignore[method-assign]


_inheritance = _Inheritance()


@contextmanager
def threads_inheriting() -> Iterator[None]:
    _inheritance.begin()
    try:
        yield
    finally:
        _inheritance.end()


@contextmanager
def open_trace(
    mode: str, name: str, by_handle: bool = False, late: bool = False
) -> Iterator[Trace]:
    """Open a trace, innermost; on exit close it and let go of what only it kept alive: nodes carry
    their trace as a mark, so a trace that kept nodes would be a cycle."""
    trace = Trace(mode, name, by_handle, late)
    try:
        with traces_set((*context.traces, trace)), threads_inheriting():
            yield trace
    finally:
        trace.open = False
        for node in trace.forced:
            release(node)
        trace.forced = []
        trace.effects = []
        trace.captures = {}


@contextmanager
def observed_effects() -> Iterator[list[Node]]:
    """Collect the communications recorded meanwhile, in order."""
    before = context.observed
    found: list[Node] = []
    context.observed = found
    try:
        yield found
    finally:
        context.observed = before
        if before is not None:
            before.extend(found)


def release(node: Node) -> None:
    """Drop an evaluated node's inputs, or leave that to the open trace that still needs them."""
    if node.marks is not None:
        for trace in node.marks:
            if trace.open:
                trace.forced.append(node)
                return
    node.inputs = ()


def unite(a: Marks, b: Marks) -> Marks:
    """Union of two mark sets, without closed traces."""
    if a is None or a is b:
        return None if b is None else live(b)
    return live(a if b is None else a | b)


def live(marks: frozenset[Trace]) -> Marks:
    """The open traces of `marks`; None when there is none."""
    if len(marks) == 1:
        (trace,) = marks
        return marks if trace.open else None
    for trace in marks:
        if not trace.open:
            break
    else:
        return marks
    return frozenset(t for t in marks if t.open) or None


LITERAL: dict[str, Any] = {"literal": True}  # the params of scalars written into equations


def constant(value: Any, aval: Aval) -> Node:
    """A node that has its value already."""
    return Node(None, (), NO_PARAMS, aval, None, value)


def is_literal(node: Node) -> bool:
    """A scalar constant that is written into equations instead of being passed to them."""
    return node.params is LITERAL
