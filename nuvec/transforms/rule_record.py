"""How a custom rule becomes closed IRs: recording the equation that carries it.

Function, forward and backward (and the forward-mode rule, where there is one) are traced when the
equation is recorded, with what they close over as further operands; no Python function is kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nuvec.core.array import Array
from nuvec.core.errors import NuvecError
from nuvec.core.functions.stream import read_sources, source_aval, source_id
from nuvec.core.ir import IR, Aval, Var
from nuvec.core.recording import trace_ir
from nuvec.transforms.bodies import own_stream, union
from nuvec.transforms.custom_rule import Rule, custom_rule_p
from nuvec.transforms.linearity import CONSTANT, LINEAR, dependence_of_constant, dependences


@dataclass(eq=False)
class Building:
    """A call of a custom function whose IRs are being traced."""

    signature: Any
    rule: Rule | None  # None while the captures are being found
    sources: list[Any]  # what they capture
    out_structure: Any = None
    recursive: bool = False
    provisional: bool = False  # holds a plain call in the place of a rule that is being built


class _Recorded(threading.local):
    """The rules recorded since this thread began the outermost one.  A function and its forward
    both call what is inside of them, and that its own: recorded anew at each call, rules nested n
    deep would take 2^n recordings."""

    def __init__(self) -> None:
        self.building: list[Building] = []
        self.known: dict[Any, tuple[Rule, list[Any], Any]] = {}


_recorded = _Recorded()


def record_rule(call: Any, building: list[Building]) -> list[Array]:
    """Trace a custom function's IRs and record the equation that carries them.

    When the forward calls the function itself, tracing it would not end: the first time round the
    inner call is the plain function, which finds the captures; the second time round it is an
    equation with the very rule being built."""
    signature = call.signature()
    for other in building:
        if other.signature == signature:
            other.recursive = True
            if other.rule is None:
                inside = _recorded.building
                for b in inside[inside.index(other) + 1 :] if other in inside else ():
                    b.provisional = True
                return call.fun(*call.arrays)
            call.out_structure = other.out_structure
            fun = other.rule.fun
            operands = read_sources(other.sources)
            return custom_rule_p.bind(*call.arrays, *operands, fun=fun, rule=other.rule)
    found = _known(call.rule, signature)
    if found is None:
        found = _build(call, Building(signature, None, []), building)
    rule, sources, call.out_structure = found
    return custom_rule_p.bind(*call.arrays, *read_sources(sources), fun=rule.fun, rule=rule)


def _build(
    call: Any, mine: Building, building: list[Building]
) -> tuple[Rule, list[Any], Any]:  # fmt: skip
    stack, known = _recorded.building, _recorded.known
    building.append(mine)
    stack.append(mine)
    try:
        rule, sources = _trace_rule(call, mine)
        mine.out_structure = call.out_structure
        if mine.recursive:
            mine.rule, mine.sources = rule, sources
            _, sources = _trace_rule(call, mine)
    finally:
        building.pop()
        stack.pop()
        if not stack:
            known.clear()
    found = (rule, sources, call.out_structure)
    if stack and not mine.provisional:
        with suppress(TypeError):  # an argument that does not hash
            known[call.rule, mine.signature] = found
    return found


def _known(rule: Any, signature: Any) -> tuple[Rule, list[Any], Any] | None:
    """The rule recorded before for the same call, where what it captures is still there."""
    try:
        found = _recorded.known.get((rule, signature))
    except TypeError:
        return None
    if found is None:
        return None
    arrays = [s for s in found[1] if isinstance(s, Array)]
    gone = any(not t.open for s in arrays for t in s._node.marks or ())
    return None if gone else found


def _trace_rule(call: Any, building: Building) -> tuple[Rule, list[Any]]:
    """The rule's IRs and what they capture; fills in `building.rule` when there is one."""
    traced: list[tuple[IR, list[Any]]] = []

    def trace(function: Callable[..., Sequence[Array]], avals: Sequence[Aval], what: str) -> IR:
        ir, captured = trace_ir(function, avals, f"{what} of {call.name}", by_handle=True)
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
    call.out_avals = fun.out_avals
    if call.rule.fwd is not None:
        fwd = trace(forward, call.avals, "the forward")
        outs, residuals = fwd.out_avals[: split[0]], fwd.out_avals[split[0] :]
        call.check_outputs("fwd", outs)
        trace(backward, (*residuals, *outs), "the backward")
        traced[-1] = own_stream(*traced[-1])  # what it draws is not what the forward has drawn
    if call.rule.jvp is not None:
        ir = trace(call.jvp, (*call.avals, *call.avals), "the jvp rule")
        check_linear_rule(call, ir, traced[-1][1], len(call.avals))
    sources = union([building.sources, *[captured for _, captured in traced]])
    if building.rule is None:
        rule = Rule(call.name, len(call.avals), len(sources))
    else:
        rule = building.rule
        if len(sources) != rule.captures:
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


def check_linear_rule(call: Any, ir: IR, captures: Sequence[Any], tangents: int) -> None:
    """Raise unless a forward-mode rule, recorded, is linear in its last inputs, the tangents."""
    constants = [CONSTANT] * (len(ir.inputs) - tangents)
    for i, source in enumerate(captures):
        if isinstance(source, Array):
            constants[i] = dependence_of_constant(source)
    count = len(ir.outputs) // 2
    found, sent = dependences(ir, [*constants, *[LINEAR] * tangents])
    for i, (out, tangent) in enumerate(zip(found[:count], found[count:], strict=True)):
        if not out.constant:
            why = f"output {i} depends on them"
        elif not tangent.linear:
            why = str(tangent.fault or "a tangent of the output is a constant that is not zero")
        else:
            continue
        raise NuvecError(
            f"{call.rule.kind} {call.name}: the jvp rule is not linear in its tangents: {why}. "
            "What it returns as tangent must be the derivative applied to the tangents it is given"
        )
    if sent is not None:
        raise NuvecError(
            f"{call.rule.kind} {call.name}: the jvp rule is not linear in its tangents: {sent}"
        )


def _conform(ir: IR, captured: Sequence[Any], sources: dict[Any, Any]) -> IR:
    """The same IR with its captures last, in the common order; those it does not use are there."""
    own = {source_id(s): v for s, v in zip(captured, ir.inputs, strict=False)}
    last = [own[k] if k in own else Var(source_aval(s)) for k, s in sources.items()]
    return IR((*ir.inputs[len(captured) :], *last), ir.constants, ir.eqns, ir.outputs)
