"""custom_rule: an equation that carries a custom rule as closed IRs.

Function, forward and backward (and the forward-mode rule, where there is one) are traced when the
equation is recorded, with what they close over as further operands; no Python function is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array
from nuvec.core.errors import NuvecError
from nuvec.core.functions.stream import RANDOM_SOURCE, next_key
from nuvec.core.interpreter import queue_of
from nuvec.core.ir import IR, Aval, Var, aval, or_token, results_of, sub_irs
from nuvec.core.lower import lower
from nuvec.core.node import Node, Trace, context, traces_set
from nuvec.core.ops.batching import batch_first
from nuvec.core.ops.differentiation import zeros_of
from nuvec.core.ops.shape import move_axis, sum_p
from nuvec.core.primitive import Primitive, detach, identity_input
from nuvec.core.recording import replay, trace_ir
from nuvec.transforms.axis import Axis, axis_of, walked_axis
from nuvec.transforms.backward import Recording
from nuvec.transforms.bodies import marked
from nuvec.transforms.jvp import forward_walk
from nuvec.transforms.vmap import batched_ir, run_batched


@dataclass(eq=False)
class Rule:
    """A custom rule as IRs.  `captures` operands follow the inputs of each:

    fun      -- arguments -> outputs
    forward  -- arguments -> outputs, residuals
    backward -- residuals, cotangents of the outputs -> cotangents of the arguments in `wanted`
    jvp      -- arguments, tangents -> outputs, tangents; None where there is no such rule

    A custom_jvp has no forward and backward: its jvp serves both modes.  A forward (or jvp) that
    calls the function itself refers to the rule it is part of.
    """

    name: str
    count: int  # of arguments
    captures: int
    outs: tuple[Aval, ...] = ()
    wanted: tuple[bool, ...] = ()
    effect: bool = False  # whether any of the IRs communicates
    queue: Any = None
    fun: IR = field(default=None, repr=False)  # type: ignore[assignment]
    forward: IR | None = field(default=None, repr=False)
    backward: IR | None = field(default=None, repr=False)
    jvp: IR | None = field(default=None, repr=False)
    derived: dict[Any, Any] = field(default_factory=dict, repr=False)

    def irs(self) -> list[IR]:
        return [ir for ir in (self.fun, self.forward, self.backward, self.jvp) if ir is not None]

    def note_effects(self) -> None:
        irs = self.irs()
        self.effect = any(ir.effect for ir in irs)
        for ir in irs:
            if ir.effect and self.queue is None:
                self.queue = queue_of(Node(custom_rule_p, (), {"fun": ir}, None))


KEY_AVAL = aval((2,), dtypes.uint64)


@dataclass(eq=False)
class Building:
    """A call of a custom function whose IRs are being traced."""

    signature: Any
    rule: Rule | None  # None while the captures are being found
    sources: list[Array]
    out_structure: Any = None
    recursive: bool = False


def record_rule(call: Any, building: list[Building]) -> list[Array]:
    """Trace a custom function's IRs and record the equation that carries them.

    When the forward calls the function itself, tracing it would not end: the first time round the
    inner call is the plain function, which finds the captures; the second time round it is an
    equation with the very rule being built."""
    signature = (call.structure, tuple(call.avals), tuple(call.fixed.items()))
    for other in building:
        if other.signature == signature:
            other.recursive = True
            if other.rule is None:
                return call.fun(*call.arrays)
            call.out_structure = other.out_structure
            fun = other.rule.fun
            return custom_rule_p.bind(*call.arrays, *other.sources, fun=fun, rule=other.rule)
    mine = Building(signature, None, [])
    building.append(mine)
    try:
        rule, sources = _trace_rule(call, mine)
        mine.out_structure = call.out_structure
        if mine.recursive:
            mine.rule, mine.sources = rule, _read(sources)
            _trace_rule(call, mine)
            operands = mine.sources
        else:
            operands = _read(sources)
    finally:
        building.pop()
    return custom_rule_p.bind(*call.arrays, *operands, fun=rule.fun, rule=rule)


def _read(sources: Sequence[Any]) -> list[Array]:
    return [next_key() if s is RANDOM_SOURCE else s for s in sources]


def _trace_rule(call: Any, building: Building) -> tuple[Rule, list[Any]]:
    """The rule's IRs and what they capture; fills in `building.rule` when there is one."""
    sources: dict[int, Any] = {}
    if building.rule is not None:
        sources = {_key(s): s for s in building.sources}
    traced: list[tuple[IR, list[Any]]] = []

    def trace(function: Callable[..., Sequence[Array]], avals: Sequence[Aval], what: str) -> IR:
        ir, captured = trace_ir(function, avals, f"{what} of {call.name}", by_handle=True)
        for s in captured:
            sources.setdefault(_key(s), s)
        traced.append((ir, captured))
        return ir

    split: list[int] = []
    wanted: list[bool] = []

    def forward(*arrays: Array) -> list[Array]:
        outs, residuals = call.fwd(*arrays)
        split.append(len(outs))
        return [*outs, *residuals]

    def backward(*arrays: Array) -> list[Array]:
        count = len(arrays) - split[0]
        results = call.bwd(arrays[:count], arrays[count:])
        wanted.extend(c is not None for c in results)
        return [c for c in results if c is not None]

    fun = trace(call.fun, call.avals, call.rule.kind)
    if call.rule.fwd is not None:
        fwd = trace(forward, call.avals, "the forward")
        outs, residuals = fwd.out_avals[: split[0]], fwd.out_avals[split[0] :]
        _check_outputs(call, "fwd", fun.out_avals, outs)
        trace(backward, (*residuals, *outs), "the backward")
    if call.rule.jvp is not None:
        ir = trace(call.jvp, (*call.avals, *call.avals), "the jvp rule")
        _check_outputs(call, "the jvp rule", fun.out_avals, ir.out_avals[: len(fun.outputs)])
    order = list(sources)
    if building.rule is None:
        rule = Rule(call.name, len(call.avals), len(order))
    else:
        rule = building.rule
        if len(order) != rule.captures:
            raise NuvecError(f"custom_vjp {call.name}: fwd closes over other arrays each time")
    irs = [_conform(ir, captured, sources) for ir, captured in traced]
    rule.fun = irs[0]
    if call.rule.fwd is not None:
        rule.forward, rule.backward = irs[1:3]
    if call.rule.jvp is not None:
        rule.jvp = irs[-1]
    rule.outs, rule.wanted = fun.out_avals, tuple(wanted)
    rule.note_effects()
    return rule, list(sources.values())


def _check_outputs(call: Any, what: str, expected: Sequence[Aval], found: Sequence[Aval]) -> None:
    for i, (a, b) in enumerate(zip(expected, found, strict=True)):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            raise NuvecError(
                f"{call.rule.kind} {call.name}: output {i} of the function is {a}, and of {what} "
                f"{b}; they must be the same"
            )


def split_rule(
    mode: str, name: str, rule: Callable[[Sequence[Array]], list[Array]], avals: Sequence[Aval]
) -> tuple[list[Array], Callable[[Sequence[Array | None]], list[Array | None]]]:
    """Run a forward-mode rule once, on tangents that are inputs of a trace of its own: (outputs,
    the linear part), which the trace's walk gives in either mode."""
    inputs: list[Array] = []

    def arguments(trace: Trace) -> tuple[tuple[Any, ...], dict[str, Any]]:
        inputs.extend([identity_input(trace, zeros_of(a)) for a in avals])
        return tuple(inputs), {}

    recording = Recording(lambda *tangents: rule(tangents), f"the rule of {name}", False, mode)
    recording.run(arguments, inputs)
    count = len(recording.nodes) // 2
    moved = recording.nodes[count:]

    def pull(cs: Sequence[Array | None]) -> list[Array | None]:
        return list(recording.pull([*[None] * count, *cs]))

    def push(tangents: Sequence[Array | None]) -> list[Array | None]:
        moving = {n: t for n, t in zip(recording.inputs, tangents, strict=True) if t is not None}
        forward_walk(recording.trace, recording.steps, moving)
        return [moving.get(n) for n in moved]

    return [Array(n) for n in recording.nodes[:count]], push if mode == "jvp" else pull


def _key(source: Any) -> int:
    return id(source)  # captures are the caller's handles


def _conform(ir: IR, captured: Sequence[Any], sources: dict[int, Any]) -> IR:
    """The same IR with its captures last, in the common order; those it does not use are there."""
    own = {_key(s): v for s, v in zip(captured, ir.inputs, strict=False)}
    last = [own[k] if k in own else Var(_aval(s)) for k, s in sources.items()]
    return IR((*ir.inputs[len(captured) :], *last), ir.constants, ir.eqns, ir.outputs)


def _aval(source: Any) -> Aval:
    return KEY_AVAL if source is RANDOM_SOURCE else source._node.aval


def _lower(*values: Any, fun: IR, rule: Rule) -> tuple[Any, ...]:
    return or_token(lower(fun).run(*[np.asarray(v) for v in values]))


def _vmap(
    size: int, axes: Sequence[int | None], *operands: Array, fun: IR, rule: Rule
) -> tuple[list[Array], list[int | None]]:
    batched, which = _batched(rule, size, tuple(axes))
    outs = custom_rule_p.bind(*operands, fun=batched.fun, rule=batched)
    return outs, [0 if b else None for b in which] or [None]


def _batched(rule: Rule, size: int, axes: tuple[int | None, ...]) -> tuple[Rule, tuple[bool, ...]]:
    """The rule of the mapped function: every IR batched; a cotangent of an argument that is not
    mapped is summed over the batch."""
    mapped = walked_axis() if rule.effect else None
    key = (size, axes, mapped)
    found = rule.derived.get(key)
    if found is not None:
        return found
    arguments, captures = axes[: rule.count], axes[rule.count :]
    # Where the elements are ranks, the backward is to get each one's cotangent, not their sum.
    everywhere = None if mapped is None else (True,) * len(rule.fun.outputs)
    fun, which = batched_ir(rule.fun, size, axes, everywhere)
    n = len(which)
    # Over the mapped axis itself they are communications no more.
    effect = rule.effect and (mapped is None or _communicates_beyond(rule.irs(), mapped, set()))
    batched = Rule(
        rule.name, rule.count, rule.captures, fun.out_avals, rule.wanted, effect, rule.queue, fun,
    )  # fmt: skip
    rule.derived[key] = (batched, which)  # before the forward, which may refer to it
    if rule.forward is not None:
        forced = (*which, *(True,) * (len(rule.forward.outputs) - n))
        batched.forward, res = batched_ir(rule.forward, size, axes, forced)
        if res != forced:
            raise NuvecError(
                f"custom_vjp {rule.name}: under vmap, fwd's outputs differ between mapped elements "
                "where the function's do not"
            )
        in_axes = (*(0,) * (len(res) - n), *(0 if b else None for b in which), *captures)
        batched.backward = _batched_backward(rule, size, in_axes, arguments)
    if rule.jvp is not None:
        twice = (*arguments, *arguments, *captures)
        batched.jvp, _ = batched_ir(rule.jvp, size, twice, (*which, *which))
    return batched, which


def _communicates_beyond(irs: Sequence[IR], axis: Axis, seen: set[Rule]) -> bool:
    """Whether IRs communicate over anything but a mapped axis."""
    for eqn in [e for ir in irs for e in ir.eqns if e.effect]:
        if eqn.primitive.effect:
            if axis_of(eqn.params) != axis:
                return True
            continue
        inside = list(sub_irs(eqn.params))
        rule = eqn.params.get("rule")
        if isinstance(rule, Rule) and rule not in seen:
            seen.add(rule)
            inside += rule.irs()
        if _communicates_beyond(inside, axis, seen):
            return True
    return False


def _batched_backward(
    rule: Rule, size: int, in_axes: tuple[int | None, ...], arguments: tuple[int | None, ...]
) -> IR:
    backward = rule.backward
    assert backward is not None
    targets = [axis for axis, w in zip(arguments, rule.wanted, strict=True) if w]
    avals = [
        v.aval
        if axis is None
        else aval((*v.aval.shape[:axis], size, *v.aval.shape[axis:]), v.aval.dtype)
        for v, axis in zip(backward.inputs, in_axes, strict=True)
    ]

    def function(*arrays: Array) -> list[Array]:
        moved = [
            a if axis is None else batch_first(a, axis, size)
            for a, axis in zip(arrays, in_axes, strict=True)
        ]
        axes = [None if axis is None else 0 for axis in in_axes]
        pairs = run_batched(
            lambda *xs: replay(backward, xs), moved, axes, size, "vmap", mapped=walked_axis()
        )
        results = []
        for (c, axis), target in zip(pairs, targets, strict=True):
            if target is None:
                results.append(c if axis is None else sum_p.bind(c, axes=(axis,)))
            else:
                results.append(move_axis(batch_first(c, axis, size), 0, target))
        return results

    with traces_set(()):
        ir, captured = trace_ir(function, avals, "vmap of a backward")
    assert not captured
    return ir


def _split(trace: Trace, operands: Sequence[Array], params: dict[str, Any]) -> Any:
    rule: Rule = params["rule"]
    arguments, captures = operands[: rule.count], operands[rule.count :]
    detached = [detach(a, trace) for a in arguments]
    nothing = [None] * rule.captures
    if rule.forward is None or rule.backward is None:
        return _split_jvp(trace, operands, params)
    forward, backward = rule.forward, rule.backward
    if trace.mode == "vjp":
        # Captures keep the mark: what is closed over has its own derivative through the forward.
        found = replay(forward, [*detached, *captures])
        outs, residuals = found[: len(rule.outs)], found[len(rule.outs) :]

        def pull(cs: Sequence[Array | None]) -> list[Array | None]:
            filled = [zeros_of(a) if c is None else c for c, a in zip(cs, rule.outs, strict=True)]
            results = iter(replay(backward, [*residuals, *filled, *captures]))
            return [*(next(results) if w else None for w in rule.wanted), *nothing]

        return outs, pull
    if rule.jvp is None:
        refuse_reverse_over(rule.name, arguments, context.traces)
        with traces_set((*context.traces, trace)):
            return replay(rule.fun, operands), None
    outs = custom_rule_p.bind(*detached, *captures, **params)
    jvp = rule.jvp

    def push(tangents: Sequence[Array | None]) -> list[Array | None]:
        avals = [a.aval for a in arguments]
        filled = [
            zeros_of(a) if t is None else t
            for t, a in zip(tangents[: rule.count], avals, strict=True)
        ]
        return list(replay(jvp, [*detached, *filled, *captures])[len(rule.outs) :])

    return outs, push


def _split_jvp(trace: Trace, operands: Sequence[Array], params: dict[str, Any]) -> Any:
    """A custom_jvp: its rule, run once, in either mode."""
    rule: Rule = params["rule"]
    arguments, captures = operands[: rule.count], operands[rule.count :]
    jvp = rule.jvp
    assert jvp is not None
    if not any(marked(a, trace) for a in arguments):
        return custom_rule_p.bind(*operands, **params), None  # an outer trace may own the rule
    detached = [detach(a, trace) for a in arguments]
    outs, linear = split_rule(
        trace.mode,
        rule.name,
        lambda tangents: replay(jvp, [*detached, *tangents, *captures]),
        [a.aval for a in arguments],
    )

    def of_operands(moving: Sequence[Array | None]) -> list[Array | None]:
        if trace.mode == "jvp":
            return linear(moving[: rule.count])
        return [*linear(moving), *[None] * rule.captures]

    return outs, of_operands


def refuse_reverse_over(name: str, arguments: Sequence[Array], outer: tuple[Trace, ...]) -> None:
    """Raise when forward mode of a custom function without a forward rule is itself reversed."""
    reverse = [t for t in outer if t.mode == "vjp"]
    if any(a._node.marks and not a._node.marks.isdisjoint(reverse) for a in arguments):
        raise NuvecError(
            f"reverse mode over forward mode of custom_vjp {name}: forward mode would "
            "differentiate the function itself and reverse mode its rule. Give it a forward rule "
            f"with {name}.defjvp(rule)"
        )


custom_rule_p = Primitive(
    "custom_rule", _lower, lambda *avals, fun, rule: results_of(fun), "call", vmap=_vmap,
    multiple=True, higher_order=True, split=_split,
    inline=lambda *operands, fun, rule: replay(fun, operands),
)  # fmt: skip
