"""The plain-NumPy definition of what every program means.

`evaluate` runs the pending equations behind some nodes; `interpret` runs a closed IR on NumPy
values.  Both run one equation at a time through its primitive's `lower`, in program order.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core.config import config
from nuvec.core.errors import ConcretizationError, LeakedTracerError, NuvecError
from nuvec.core.ir import IR, Aval, Eqn, Literal
from nuvec.core.nans import refuse_nans
from nuvec.core.node import NO_PARAMS, Node, context, release
from nuvec.core.profiler import recording
from nuvec.core.queue import CommunicationQueue
from nuvec.core.traceback import format_user_frame, note_source

_in_program_order = operator.attrgetter("seq")


# (pending, nodes asked for) -> those of the pending nodes that have been run; set by `lower`.
large_graphs: Callable[[list[Node], Sequence[Node]], set[Node]] | None = None


def evaluate(nodes: list[Node] | tuple[Node, ...]) -> None:
    """Give every node in `nodes` its value.

    Walks back through pending nodes without recursion, then runs them in program order.  A
    communication brings all those queued before it.  Intermediates are let go as it runs."""
    pending: list[Node] = []
    seen: set[Node] = set()
    stack = [n for n in nodes if n.value is None]
    queued: dict[CommunicationQueue, int] = {}  # how far each queue has been brought in
    large = False
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        pending.append(node)
        primitive = node.primitive
        aval = node.aval
        if type(aval) is Aval and aval.large:
            large = True
        marks = node.marks
        if marks is not None:
            for trace in marks:
                if trace.symbolic and trace.open:
                    raise ConcretizationError(concretization_message(node, trace))
        if not primitive.plain:
            if primitive.name == "placeholder":
                _refuse_placeholder(node)
            queue = queue_of(node)
            if queue is not None and queued.get(queue, 0) < node.seq:
                queued[queue] = node.seq
                stack.extend([n for n in queue.through(node) if n.value is None])
        for i in node.inputs:
            if i.value is None:
                stack.append(i)
    del seen
    pending.sort(key=_in_program_order, reverse=True)
    run = _running()
    if large and large_graphs is not None and not config.debug_nans:
        node = i = None  # type: ignore[assignment]  # references are counted
        done = large_graphs(pending, nodes)
        pending = [n for n in pending if n not in done]
    with np.errstate(all="ignore"):
        while pending:
            node = pending.pop()
            try:
                if not node.primitive.plain:
                    queue = queue_of(node)
                    if queue is not None:
                        queue.run(node, functools.partial(_run_queued, run))
                        if node.value is None:
                            _raise_failure(node)
                        continue
                run(node)
            except BaseException as error:
                note_source(error)
                _fail_dependent_communications(node, pending, error)
                raise


def compute(node: Node) -> None:
    """Run one node whose inputs have values."""
    inputs = node.inputs
    if node.value is not None:
        return  # another thread was faster
    params = node.params
    primitive = node.primitive
    if primitive.foreign:
        values = [i.value for i in inputs]
        avals = node.aval if primitive.multiple else (node.aval,)
        node.value = lower_checked(primitive, avals, values, params)
    elif params is NO_PARAMS:
        if len(inputs) == 2:  # most of them
            a, b = inputs
            node.value = primitive.lower(a.value, b.value)
        else:
            node.value = primitive.lower(*[i.value for i in inputs])
    else:
        node.value = primitive.lower(*[i.value for i in inputs], **params)
    if node.marks is None:
        node.inputs = ()
    else:
        release(node)


def compute_checked(node: Node) -> None:
    """`compute`, which refuses a NaN that the node makes; the node is then as it was before."""
    if node.value is not None:
        return
    primitive, values = node.primitive, [i.value for i in node.inputs]
    avals = node.aval if primitive.multiple else (node.aval,)
    lower = lower_checked if primitive.foreign else _lower
    result = lower(primitive, avals, values, node.params)
    refuse_nans(primitive, values, result, node.source)
    node.value = result
    release(node)


def _running() -> Callable[[Node], None]:
    """What runs a node now."""
    run = compute_checked if config.debug_nans else compute
    return recording(run) if context.profiles else run


def _lower(primitive: Any, avals: Any, values: Sequence[Any], params: dict[str, Any]) -> Any:
    return primitive.lower(*values, **params)


def lower_checked(
    primitive: Any, avals: Sequence[Aval], values: Sequence[Any], params: dict[str, Any]
) -> Any:
    """What a lowering returns, once it is known to be what `avals` say.

    nuvec's own are tested to keep to their shape rules; those declared elsewhere are looked at
    each time, for what they return may depend on the values."""
    result = primitive.lower(*values, **params)
    found = result if primitive.multiple else (result,)
    if not isinstance(found, tuple | list) or len(found) != len(avals):
        what = f"{len(found)} results" if isinstance(found, tuple | list) else _described(found)
        raise _broken(primitive, values, what, f"{len(avals)} results")
    for value, a in zip(found, avals, strict=True):
        array = isinstance(value, np.ndarray | np.generic)
        if not array or value.shape != a.shape or value.dtype != a.dtype:
            raise _broken(primitive, values, _described(value), repr(a))
    return result


def lower_eqn(eqn: Eqn, values: Sequence[Any]) -> Any:
    """What the lowering of an equation returns for these operands."""
    if eqn.primitive.foreign:
        return lower_checked(eqn.primitive, [v.aval for v in eqn.outputs], values, eqn.params)
    return eqn.primitive.lower(*values, **eqn.params)


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    return f"a {type(value).__name__}"


def _broken(primitive: Any, values: Sequence[Any], returned: str, expected: str) -> NuvecError:
    lower = primitive.lower
    name = getattr(lower, "__qualname__", None) or getattr(lower, "__name__", None) or repr(lower)
    given = ", ".join(map(_described, values))
    return NuvecError(
        f"the lowering of {primitive.name}, {name}, returned {returned} for ({given}), and its "
        f"shape rule says {expected}: a lowering returns NumPy arrays of exactly that shape and "
        "dtype. Mend whichever of the two is wrong; nuvec.testing.check_lowering checks both"
    )


class _Failed:
    """Stands in for the primitive of a communication that failed: raises its error each time."""

    name = "failed"
    plain = False
    effect = False
    higher_order = False
    multiple = False
    foreign = False

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def lower(self, *_: Any) -> Any:
        raise self.error


def _raise_failure(node: Node) -> None:
    """Say why a communication that left its queue has no value."""
    if isinstance(node.primitive, _Failed):
        node.primitive.lower()
    raise LeakedTracerError(
        f"the result of {node.primitive.name} ({node.aval}) was kept from inside a traced function "
        f"and used after it returned{_at_user_frame(', ')}. Running it now would communicate "
        "twice: return it from the function instead of storing it"
    )


def fail(node: Node, error: BaseException) -> None:
    """Give a node an error instead of a value: it is raised each time somebody asks."""
    node.primitive = _Failed(error)
    node.params = NO_PARAMS
    node.inputs = ()


def _run_queued(run: Callable[[Node], None], node: Node) -> None:
    """Run a communication; what goes wrong is kept, for it can never run again."""
    try:
        run(node)
    except BaseException as error:
        fail(node, error)
        if not isinstance(error, Exception):
            raise


def _fail_dependent_communications(failed: Node, pending: list[Node], error: BaseException) -> None:
    """A communication whose operand failed can never run, and its peers wait for it: tell them."""
    affected = {failed}
    for node in reversed(pending):
        if not affected.isdisjoint(node.inputs):
            affected.add(node)
            queue = queue_of(node)
            if queue is not None and node in queue.pending():
                queue.discard(node)
                group = node.params.get("group")
                if group is not None and group.size() > 1:
                    group.communicator.abort(
                        f"the operand of its {node.primitive.name} could not be computed: "
                        f"{type(error).__name__}: {error}"
                    )
                fail(node, error)


def queue_of(node: Node) -> CommunicationQueue | None:
    """The queue that orders a communication (or an equation whose IRs communicate)."""
    return _params_queue(node.params)


def _params_queue(params: dict[str, Any]) -> CommunicationQueue | None:
    for value in params.values():
        queue = getattr(value, "queue", None)
        if isinstance(queue, CommunicationQueue):
            return queue
        for ir in value if isinstance(value, tuple) else (value,):
            if isinstance(ir, IR) and ir.effect:
                if "queue" not in ir.derived:
                    found = [_params_queue(e.params) for e in ir.eqns if e.effect]
                    ir.derived["queue"] = next((q for q in found if q is not None), None)
                return ir.derived["queue"]
    return None


PENDING_LIMIT = 16384  # equations a loop may record before what it built is evaluated


def bound_pending(node: Node) -> None:
    """Evaluate the local graph behind `node` when it has grown past the limit.

    A loop that never evaluates would otherwise grow without bound.  Communications stay queued,
    and what depends on one stays pending with it."""
    if node.marks is not None:
        return
    pending: list[Node] = []
    seen: set[Node] = set()
    stack = [node]
    while stack:
        n = stack.pop()
        if n in seen or n.value is not None:
            continue
        seen.add(n)
        pending.append(n)
        stack.extend(n.inputs)
    if len(pending) < PENDING_LIMIT:
        return
    pending.sort(key=_in_program_order, reverse=True)
    blocked: set[Node] = set()
    seen.clear()
    run = _running()
    with np.errstate(all="ignore"):
        while pending:
            n = pending.pop()
            waits = not n.primitive.plain or n.marks is not None
            if waits or not blocked.isdisjoint(n.inputs):
                blocked.add(n)
                continue
            try:
                run(n)
            except Exception:
                return  # it is raised when somebody asks for a value that depends on it


def flush(queue: CommunicationQueue) -> None:
    """Run everything pending in a queue."""
    evaluate(queue.pending())


def interpret(ir: IR, *values: Any, nans: bool = True) -> list[Any]:
    """Run a closed IR on NumPy values, equation by equation; with `nans` False, NanError is raised
    at the first that makes a NaN."""
    environment: dict[Any, Any] = dict(zip(ir.inputs, values, strict=True))
    environment.update(ir.constants)

    def read(atom: Any) -> Any:
        return atom.value if type(atom) is Literal else environment[atom]

    for eqn in ir.eqns:
        operands = [read(a) for a in eqn.inputs]
        result = lower_eqn(eqn, operands)
        if not nans:
            refuse_nans(eqn.primitive, operands, result, eqn.source)
        if eqn.primitive.multiple:
            environment.update(zip(eqn.outputs, result, strict=True))
        else:
            environment[eqn.outputs[0]] = result
    return [read(a) for a in ir.outputs]


def _refuse_placeholder(node: Node) -> None:
    raise LeakedTracerError(
        f"an array of {node.aval} was kept from inside a traced function "
        f"({node.params['name']}) and used after it returned{_at_user_frame(', ')}. It "
        "never had a value: return it from the function instead of storing it"
    )


_INSTEAD = {
    "vmap": "use nv.where or nv.cond instead of `if`, or take the value out of the mapped function",
    "linear": "let what the function does depend on shapes, or on values other than its arguments: "
    "what depends on their values is not linear",
    "scope": "use nv.where or nv.cond instead of `if`, nv.scan instead of a loop over its length, "
    "or a Python value that the function closes over",
    "late": "use nv.where or nv.cond instead of `if`, nv.scan instead of a loop over its length, "
    "or make it a Python value: a static argument (static_argnums of nv.compile), or one that the "
    "function closes over",
}


def concretization_message(node: Node, trace: Any) -> str:
    names = sorted(_placeholders(node, trace))
    depends = " and ".join(names) if names else "what is recorded here"
    advice = _INSTEAD["late" if trace.late else trace.mode]
    return (
        f"the value of {node.aval} is needed{_at_user_frame(' ')}, but inside {trace.name} it "
        f"has none: it depends on {depends}. To mend this, {advice}"
    )


def _at_user_frame(before: str) -> str:
    """Where the user's program is; nothing in a thread that nuvec started."""
    frame = format_user_frame()
    return "" if frame is None else f"{before}at {frame}"


def _placeholders(node: Node, trace: Any) -> set[str]:
    """The names of the placeholders a node depends on, and of communications without operands."""
    names, seen, stack = set(), set(), [node]
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if n.primitive is not None and (n.marks is None or trace in n.marks):
            if n.primitive.name == "placeholder":
                names.add(n.params["name"])
            elif n.primitive.effect and not n.inputs:
                axis = getattr(n.params.get("group"), "axis", None)  # then it is its index
                names.add(
                    f"the result of {n.primitive.name}" if axis is None
                    else f"rank() of the mapped axis {axis.name!r}"
                )  # fmt: skip
        stack.extend(n.inputs)
    return names


__all__ = [
    "compute", "compute_checked", "evaluate", "fail", "flush", "interpret", "lower_checked",
    "lower_eqn", "queue_of",
]  # fmt: skip
