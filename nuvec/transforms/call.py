"""call: an equation that is a compiled function.

It carries its IR; captured arrays are ordinary operands.  What passes make of it (batched,
forward, backward, tangent) are IRs again, derived once and kept on the IR, so a compiled function
stays compiled under every transform."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nuvec.core.array import Array
from nuvec.core.errors import NuvecError
from nuvec.core.ir import IR, Aval, or_token, results_of
from nuvec.core.lower import lower
from nuvec.core.node import Trace
from nuvec.core.primitive import Primitive, detach
from nuvec.transforms.derive import lean_split, split_ir
from nuvec.transforms.vmap import batched_ir


def _lower(*values: Any, ir: IR, name: str) -> tuple[Any, ...]:
    return or_token(lower(ir).runner()(*[np.asarray(v) for v in values]))


def _shape_rule(*avals: Aval, ir: IR, name: str) -> tuple[Aval, ...]:
    for i, (given, expected) in enumerate(zip(avals, ir.in_avals, strict=True)):
        if (given.shape, given.dtype) != (expected.shape, expected.dtype):
            raise NuvecError(f"call of {name}: input {i} is {given}, expected {expected}")
    return results_of(ir)


def _vmap(
    size: int, axes: Sequence[int | None], *operands: Array, ir: IR, name: str
) -> tuple[list[Array], list[int | None]]:
    batched, which = batched_ir(ir, size, tuple(axes))
    outs = call_p.bind(*operands, ir=batched, name=name)
    return outs, [0 if b else None for b in which] or [None]


def _split(trace: Trace, operands: Sequence[Array], params: dict[str, Any]) -> Any:
    ir, name = params["ir"], params["name"]
    active = tuple([_marked(a, trace) for a in operands])
    if not any(active) and not ir.effect:
        return call_p.bind(*operands, ir=ir, name=name), None
    split = split_ir(ir, trace.mode, active)
    detached = [detach(a, trace) for a in operands]
    count = len(ir.outputs)
    lean = lean_split(ir, split, ("lean", trace.mode, active))
    found = call_p.bind(*detached, ir=lean.forward, name=name)
    outs, residuals = found[:count], lean.residuals(found[count:], detached)
    avals = ir.in_avals if trace.mode == "jvp" else ir.out_avals

    def linear(moving: Sequence[Array | None]) -> list[Array | None]:
        taken = split.arrange(moving, avals)
        results = call_p.bind(*residuals, *taken, ir=split.linear, name=f"{name}'s {trace.mode}")
        return split.spread(results)

    return outs, linear


def _marked(array: Array, trace: Trace) -> bool:
    marks = array._node.marks
    return marks is not None and trace in marks


call_p = Primitive(
    "call", _lower, _shape_rule, "call", vmap=_vmap, multiple=True, higher_order=True, split=_split,
)  # fmt: skip
