"""cond_p, the primitive of cond and switch: one of several branches runs.

Operands: the index (a boolean, or an int32 that is clamped to the branches there are), then the
inputs of the branches.  A boolean picks `branches[0]` when it is false.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, literal
from nuvec.core.errors import NuvecError
from nuvec.core.ir import IR, Aval, Var, or_token, results_of
from nuvec.core.lower import lower
from nuvec.core.node import Trace, traces_set
from nuvec.core.ops.batching import batch_first
from nuvec.core.ops.comparison import equal, greater_equal, less_equal, logical_not
from nuvec.core.ops.differentiation import zeros_of
from nuvec.core.ops.selection import where
from nuvec.core.ops.shape import broadcast_to, reshape
from nuvec.core.primitive import Primitive, detach
from nuvec.core.recording import replay, trace_ir
from nuvec.transforms.axis import communicates
from nuvec.transforms.bodies import marked
from nuvec.transforms.derive import Split, split_ir
from nuvec.transforms.guard import can_raise, guarded
from nuvec.transforms.vmap import batched_ir

Branches = tuple[IR, ...]


def _lower(index: Any, *values: Any, branches: Branches) -> tuple[Any, ...]:
    branch = branches[min(max(int(index), 0), len(branches) - 1)]
    return or_token(lower(branch).runner()(*[np.asarray(v) for v in values]))


def _shape_rule(index: Aval, *avals: Aval, branches: Branches) -> tuple[Aval, ...]:
    return results_of(branches[0])


# Batching


def _vmap(
    size: int, axes: Sequence[int | None], index: Array, *operands: Array, branches: Branches
) -> tuple[list[Array], list[int | None]]:
    in_axes = tuple(axes[1:])
    if axes[0] is None:
        which = [batched_ir(b, size, in_axes)[1] for b in branches]
        forced = tuple(any(each) for each in zip(*which, strict=True))
        batched = tuple(batched_ir(b, size, in_axes, forced)[0] for b in branches)
        outs = cond_p.bind(index, *operands, branches=batched)
        return outs, [0 if f else None for f in forced] or [None]
    if any(communicates(b) for b in branches):
        raise NuvecError(
            "vmap of cond, switch or while_loop (with max_steps), whose predicate or condition is "
            "mapped, evaluates every branch, or the body, and selects; and that communicates. Take "
            "the communication out of it"
        )
    # Each element takes its own branch: all are evaluated, and selected from.  What goes wrong in
    # a branch is an error of the elements that take it alone.
    everywhere = (True,) * len(branches[0].outputs)
    index = batch_first(index, axes[0], size)
    found = []
    for k, branch in enumerate(branches):
        if can_raise(branch):
            mine = batched_ir(guarded(branch), size, (0, *in_axes), everywhere)[0]
            found.append(replay(mine, [_takes(index, k, len(branches)), *operands]))
        else:
            found.append(replay(batched_ir(branch, size, in_axes, everywhere)[0], operands))
    outs = [_select(index, values) for values in zip(*found, strict=True)]
    return outs, [0] * len(outs)


def _takes(index: Array, k: int, count: int) -> Array:
    """Which elements of the batch take branch k."""
    if dtypes.is_bool(index.dtype):
        return index if k else logical_not(index)
    if count == 1:
        return broadcast_to(literal(True, dtypes.bool_), index.shape)
    compare = less_equal if k == 0 else greater_equal if k == count - 1 else equal
    return compare(index, literal(k, index.dtype))


def _select(index: Array, values: Sequence[Array]) -> Array:
    """values[index[i]][i] for every element i of the batch."""
    shape = (*index.shape, *(1,) * (values[0].ndim - 1))
    if dtypes.is_bool(index.dtype):
        return where(reshape(index, shape), values[1], values[0])
    result = values[-1]
    for k in reversed(range(len(values) - 1)):  # <= clamps as well
        here = less_equal(index, literal(k, index.dtype))
        result = where(reshape(here, shape), values[k], result)
    return result


# Differentiation


def _split(trace: Trace, operands: Sequence[Array], params: dict[str, Any]) -> Any:
    branches: Branches = params["branches"]
    active = tuple([marked(a, trace) for a in operands[1:]])
    effect = any(b.effect for b in branches)
    if not any(active) and not effect:
        return cond_p.bind(*operands, branches=branches), None
    parts = _split_branches(branches, trace.mode, active)
    index, *inputs = [detach(a, trace) for a in operands]
    count = len(branches[0].outputs)
    found = cond_p.bind(index, *inputs, branches=parts.forwards)
    outs, slots = found[:count], found[count : len(parts.forwards[0].outputs)]
    avals = branches[0].in_avals if trace.mode == "jvp" else branches[0].out_avals
    passed = [inputs[i] for i in parts.passed]

    def linear(moving: Sequence[Array | None]) -> list[Array | None]:
        if trace.mode == "jvp":
            moving = moving[1:]
        given = [
            zeros_of(a) if m is None else m
            for m, a, t in zip(moving, avals, parts.moving, strict=True)
            if t
        ]
        results = iter(cond_p.bind(index, *passed, *slots, *given, branches=parts.linears))
        spread = [next(results) if w else None for w in parts.results]
        return spread if trace.mode == "jvp" else [None, *spread]

    return outs, linear


@dataclass(frozen=True)
class _Parts:
    """Branches split and made to agree.

    forwards -- outputs: the branches' own, then the residuals, in slots that the branches share;
                a slot a branch has no use for holds zeros
    linears  -- inputs: operands that are residuals (`passed`: their positions), the slots, then
                what is moving; outputs: what any branch has a result for, zeros where one has none
    moving, results -- as in Split
    """

    forwards: Branches
    linears: Branches
    passed: tuple[int, ...]
    moving: tuple[bool, ...]
    results: tuple[bool, ...]


def _split_branches(branches: Branches, mode: str, active: tuple[bool, ...]) -> _Parts:
    """Cached on the first branch."""
    key = ("split cond", mode, active, branches[1:])
    found = branches[0].derived.get(key)
    if found is None:
        with traces_set(()):
            found = branches[0].remember(key, _agree(branches, mode, active))
    return found


def _agree(branches: Branches, mode: str, active: tuple[bool, ...]) -> _Parts:
    splits = [split_ir(b, mode, active) for b in branches]
    # An output may have a derivative in one branch only.
    moving = tuple(any(m) for m in zip(*[s.moving for s in splits], strict=True))
    splits = [s if s.moving == moving else _widen(s, moving) for s in splits]
    results = tuple(any(r) for r in zip(*[s.results for s in splits], strict=True))
    count = len(branches[0].outputs)
    # Where each residual is: an operand of the cond, or a slot.
    slots: list[Aval] = []
    passed: list[int] = []
    places: list[list[tuple[str, int]]] = []
    for s in splits:
        inputs = {v: i for i, v in enumerate(s.forward.inputs)}
        mine: list[tuple[str, int]] = []
        taken: set[int] = set()
        for r in s.forward.outputs[count:]:
            if type(r) is Var and r in inputs:
                i = inputs[r]
                if i not in passed:
                    passed.append(i)
                mine.append(("operand", i))
                continue
            # Under vmap every branch's linear part runs, on what is in the slots: another branch's
            # numbers do no harm there, for it is guarded.
            free = (k for k, a in enumerate(slots) if a is r.aval and k not in taken)
            k = next(free, len(slots))
            if k == len(slots):
                slots.append(r.aval)
            taken.add(k)
            mine.append(("slot", k))
        places.append(mine)
    given = _only(branches[0].in_avals if mode == "jvp" else branches[0].out_avals, moving)
    wanted = _only(branches[0].out_avals if mode == "jvp" else branches[0].in_avals, results)

    def forward(split: Split, mine: list[tuple[str, int]]) -> IR:
        def function(*inputs: Array) -> list[Array]:
            found = replay(split.forward, inputs)
            filled = [zeros_of(a) for a in slots]
            for (kind, k), r in zip(mine, found[count:], strict=True):
                if kind == "slot":
                    filled[k] = r
            return [*found[:count], *filled]

        return trace_ir(function, split.forward.in_avals, "a forward branch of cond")[0]

    def linear(split: Split, mine: list[tuple[str, int]]) -> IR:
        def function(*inputs: Array) -> list[Array]:
            operands = dict(zip(passed, inputs, strict=False))
            rest = inputs[len(passed) :]
            residuals = [operands[k] if kind == "operand" else rest[k] for kind, k in mine]
            outs = split.spread(replay(split.linear, [*residuals, *rest[len(slots) :]]))
            chosen = [r for r, w in zip(outs, results, strict=True) if w]
            return [zeros_of(a) if r is None else r for r, a in zip(chosen, wanted, strict=True)]

        avals = [*[branches[0].in_avals[i] for i in passed], *slots, *given]
        return trace_ir(function, avals, "a linear branch of cond")[0]

    pairs = list(zip(splits, places, strict=True))
    return _Parts(
        tuple([forward(*p) for p in pairs]), tuple([linear(*p) for p in pairs]),
        tuple(passed), moving, results,
    )  # fmt: skip


def _only(avals: Sequence[Aval], chosen: Sequence[bool]) -> list[Aval]:
    return [a for a, c in zip(avals, chosen, strict=True) if c]


def _widen(split: Split, moving: tuple[bool, ...]) -> Split:
    """A split whose linear part also takes, and ignores, the cotangents of further outputs."""
    residuals = split.residuals
    given = iter(split.linear.inputs[residuals:])
    outs = split.forward.out_avals[: len(moving)]
    inputs = [
        next(given) if has else Var(a)
        for has, wants, a in zip(split.moving, moving, outs, strict=True)
        if wants
    ]
    linear = split.linear
    wider = IR((*linear.inputs[:residuals], *inputs), linear.constants, linear.eqns, linear.outputs)
    return Split(split.forward, wider, split.results, moving)


cond_p = Primitive(
    "cond", _lower, _shape_rule, "call", vmap=_vmap, multiple=True, higher_order=True,
    split=_split,
)  # fmt: skip
