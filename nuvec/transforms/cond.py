"""cond: run one of two branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes, tree
from nuvec.core.array import Array, operand
from nuvec.core.errors import DtypeError, NuvecError, ShapeError
from nuvec.core.ir import IR, Aval, Var, or_token, results_of
from nuvec.core.lower import lower
from nuvec.core.node import Trace, traces_set
from nuvec.core.ops.batching import batch_first
from nuvec.core.ops.differentiation import zeros_of
from nuvec.core.ops.selection import where
from nuvec.core.ops.shape import reshape
from nuvec.core.primitive import Primitive, detach
from nuvec.core.recording import replay, trace_ir
from nuvec.core.traceback import filtered
from nuvec.transforms.bodies import (
    Body,
    common_avals,
    marked,
    read_captures,
    same_structure,
    share_captures,
    strengthen,
)  # fmt: skip
from nuvec.transforms.derive import Split, split_ir
from nuvec.transforms.vmap import batched_ir

# cond's operands: the predicate, then the inputs of the branches; branches[0] runs when it is false


def _lower(predicate: Any, *values: Any, branches: tuple[IR, IR]) -> tuple[Any, ...]:
    branch = branches[1 if predicate else 0]
    return or_token(lower(branch).run(*[np.asarray(v) for v in values]))


def _shape_rule(predicate: Aval, *avals: Aval, branches: tuple[IR, IR]) -> tuple[Aval, ...]:
    return results_of(branches[0])


def _vmap(
    size: int, axes: Sequence[int | None], predicate: Array, *operands: Array,
    branches: tuple[IR, IR],
) -> tuple[list[Array], list[int | None]]:  # fmt: skip
    in_axes = tuple(axes[1:])
    which = [batched_ir(b, size, in_axes)[1] for b in branches]
    forced = tuple(a or b for a, b in zip(*which, strict=True))
    if axes[0] is None:
        batched = tuple(batched_ir(b, size, in_axes, forced)[0] for b in branches)
        outs = cond_p.bind(predicate, *operands, branches=batched)
        return outs, [0 if f else None for f in forced] or [None]
    if any(b.effect for b in branches):
        raise NuvecError(
            "vmap of cond with a predicate that is mapped evaluates both branches and selects, "
            "and a branch communicates: take the communication out of the cond"
        )
    # Each element takes its own branch: both are evaluated, and selected from.
    everywhere = (True,) * len(forced)
    predicate = batch_first(predicate, axes[0], size)
    no, yes = [replay(batched_ir(b, size, in_axes, everywhere)[0], operands) for b in branches]
    outs = [
        where(reshape(predicate, (size, *(1,) * (y.ndim - 1))), y, n)
        for y, n in zip(yes, no, strict=True)
    ]
    return outs, [0] * len(outs)


def _split(trace: Trace, operands: Sequence[Array], params: dict[str, Any]) -> Any:
    branches = params["branches"]
    active = tuple([marked(a, trace) for a in operands[1:]])
    effect = any(b.effect for b in branches)
    if not any(active) and not effect:
        return cond_p.bind(*operands, branches=branches), None
    splits, forwards, linears, wanted = _split_branches(branches, trace.mode, active)
    predicate, *inputs = [detach(a, trace) for a in operands]
    count = len(branches[0].outputs)
    found = cond_p.bind(predicate, *inputs, branches=forwards)
    outs, residuals = found[:count], found[count : len(forwards[0].outputs)]
    avals = branches[0].in_avals if trace.mode == "jvp" else branches[0].out_avals
    taken = splits[0].moving

    def linear(moving: Sequence[Array | None]) -> list[Array | None]:
        if trace.mode == "jvp":
            moving = moving[1:]
        given = [
            zeros_of(a) if m is None else m
            for m, a, t in zip(moving, avals, taken, strict=True)
            if t
        ]
        results = iter(cond_p.bind(predicate, *residuals, *given, branches=linears))
        spread = [next(results) if w else None for w in wanted]
        return spread if trace.mode == "jvp" else [None, *spread]

    return outs, linear


def _split_branches(
    branches: tuple[IR, IR], mode: str, active: tuple[bool, ...]
) -> tuple[tuple[Split, Split], tuple[IR, IR], tuple[IR, IR], tuple[bool, ...]]:
    """Both branches split, made to agree: residuals of both (zeros for the branch not run), and
    every result either has (zeros where it has none).  Cached on the first branch."""
    key = ("split cond", mode, active, id(branches[1]))
    found = branches[0].derived.get(key)
    if found is None:
        with traces_set(()):
            found = branches[0].remember(key, _agree(branches, mode, active))
    return found


def _agree(branches: tuple[IR, IR], mode: str, active: tuple[bool, ...]) -> Any:
    first, second = [split_ir(b, mode, active) for b in branches]
    if first.moving != second.moving:  # an output with a derivative in one branch only
        moving = tuple(a or b for a, b in zip(first.moving, second.moving, strict=True))
        first, second = _widen(first, moving), _widen(second, moving)
    splits = (first, second)
    count = len(branches[0].outputs)
    residual_avals = [s.forward.out_avals[count:] for s in splits]
    wanted = tuple(a or b for a, b in zip(first.results, second.results, strict=True))
    result_avals = [
        a for a, w in zip(
            branches[0].in_avals if mode == "vjp" else branches[0].out_avals, wanted, strict=True
        ) if w
    ]  # fmt: skip
    n0 = len(residual_avals[0])
    n = n0 + len(residual_avals[1])

    def forward(k: int) -> IR:
        def function(*inputs: Array) -> list[Array]:
            found = replay(splits[k].forward, inputs)
            other = [zeros_of(a) for a in residual_avals[1 - k]]
            mine = found[count:]
            return [*found[:count], *(mine + other if k == 0 else other + mine)]

        return trace_ir(function, branches[k].in_avals, "a forward branch of cond")[0]

    def linear(k: int) -> IR:
        def function(*inputs: Array) -> list[Array]:
            residuals, moving = inputs[:n], inputs[n:]
            mine = residuals[:n0] if k == 0 else residuals[n0:]
            results = splits[k].spread(replay(splits[k].linear, [*mine, *moving]))
            chosen = [r for r, w in zip(results, wanted, strict=True) if w]
            return [
                zeros_of(a) if r is None else r for r, a in zip(chosen, result_avals, strict=True)
            ]

        moving_avals = [
            a for a, m in zip(
                branches[0].out_avals if mode == "vjp" else branches[0].in_avals,
                first.moving, strict=True,
            ) if m
        ]  # fmt: skip
        avals = [*residual_avals[0], *residual_avals[1], *moving_avals]
        return trace_ir(function, avals, "a linear branch of cond")[0]

    return splits, (forward(0), forward(1)), (linear(0), linear(1)), wanted


def _widen(split: Split, moving: tuple[bool, ...]) -> Split:
    """A split whose linear part also takes, and ignores, the cotangents of further outputs."""
    residuals = split.residuals
    given = iter(split.linear.inputs[residuals:])
    count = len(moving)
    outs = split.forward.out_avals[:count]
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


@filtered
def cond(
    predicate: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any
) -> Any:
    """`true_fun(*operands)` where `predicate` holds, else `false_fun(*operands)`.

    Only the branch taken runs (under vmap with a mapped predicate, both do, and each element
    selects).  Both must return trees of one structure, with equal shapes and dtypes.

    predicate -- a boolean scalar: an Array of shape () and dtype bool, or a Python bool

    >>> import nuvec as nv
    >>> nv.cond(nv.array(3.0) > 2, lambda x: x + 1, lambda x: -x, 1.0)
    array(2., dtype=float32)
    """
    test = operand(predicate, "cond's predicate")
    if test.shape != () or not dtypes.is_bool(test.dtype):
        kind = ShapeError if test.shape else DtypeError
        raise kind(
            f"cond: the predicate must be a boolean scalar, got {test.aval}; compare it, as in "
            "x > 0, or use nv.where for arrays"
        )
    leaves, structure = tree.flatten(operands)
    arrays = [operand(x, "an operand of cond") for x in leaves]
    avals = [a.aval for a in arrays]
    no = Body(false_fun, structure, avals, "the false branch of cond")
    yes = Body(true_fun, structure, avals, "the true branch of cond")
    labels = ("the false branch", "the true branch")
    same_structure("cond", no.structure, yes.structure, labels)
    expected = common_avals("cond", no.out_avals, yes.out_avals, no.structure, labels)
    (a, b), sources = share_captures([no, yes])
    branches = (strengthen(a, expected), strengthen(b, expected))
    outs = cond_p.bind(test, *read_captures(sources), *arrays, branches=branches)
    return tree.unflatten(no.structure, outs[: len(expected)])
