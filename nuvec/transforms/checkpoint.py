"""checkpoint: keep less of the forward, and compute it again when the backward needs it.

Under differentiation a function keeps what its derivative needs.  A checkpointed one keeps its
inputs and what its policy names, and its linear part computes the rest again.  Arithmetic only:
results of communications and random draws are always kept, so nothing is sent or drawn twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np

from nuvec.core import tree
from nuvec.core.array import Array
from nuvec.core.errors import ArgumentError, ConfigurationError
from nuvec.core.functions.stream import read_sources
from nuvec.core.ir import IR, Aval, Eqn, Var, or_token, results_of, sub_irs
from nuvec.core.lower import lower
from nuvec.core.node import Trace, traces_set
from nuvec.core.ops.differentiation import optimization_barrier_p
from nuvec.core.primitive import Primitive, detach
from nuvec.core.pytree import Path
from nuvec.core.recording import replay, trace_ir
from nuvec.core.traceback import filtered
from nuvec.transforms.arguments import arrays_of, bind_arguments, call, label_of, require_function
from nuvec.transforms.bodies import Body, marked
from nuvec.transforms.derive import Split, lean_split, split_ir
from nuvec.transforms.grad import name_of
from nuvec.transforms.vmap import batched_ir

# A policy says which equations' results are kept: policy(primitive name, input avals, params).
Policy = Callable[..., bool]


def everything(name: str, avals: Sequence[Aval], params: dict[str, Any]) -> bool:
    """Keep all that the derivative needs: as without checkpoint."""
    return True


def nothing(name: str, avals: Sequence[Aval], params: dict[str, Any]) -> bool:
    """Keep the inputs alone: the least memory, and the forward twice."""
    return False


def dots(name: str, avals: Sequence[Aval], params: dict[str, Any]) -> bool:
    """Keep the results of contractions, and compute the cheap rest again."""
    return name == "dot_general"


POLICIES: dict[str, Policy] = {"everything": everything, "nothing": nothing, "dots": dots}


def _lower(*values: Any, ir: IR, name: str, policy: Policy) -> tuple[Any, ...]:
    plan = lower(ir)
    found = plan.runner()(*[np.asarray(v) for v in values])
    plan.release()  # it runs to hold less memory, not to keep buffers for the next time
    return or_token(found)


def _vmap(
    size: int, axes: Sequence[int | None], *operands: Array, ir: IR, name: str, policy: Policy
) -> tuple[list[Array], list[int | None]]:
    batched, which = batched_ir(ir, size, tuple(axes))
    outs = checkpoint_p.bind(*operands, ir=batched, name=name, policy=policy)
    return outs, [0 if b else None for b in which] or [None]


def _split(trace: Trace, operands: Sequence[Array], params: dict[str, Any]) -> Any:
    ir, name, policy = params["ir"], params["name"], params["policy"]
    active = tuple([marked(a, trace) for a in operands])
    if not any(active) and not ir.effect:
        return checkpoint_p.bind(*operands, **params), None
    split = _checkpointed(ir, trace.mode, active, policy)
    detached = [detach(a, trace) for a in operands]
    count = len(ir.outputs)
    lean = lean_split(ir, split, ("lean checkpoint", trace.mode, active, policy))
    found = checkpoint_p.bind(*detached, ir=lean.forward, name=name, policy=policy)
    outs, kept = found[:count], lean.residuals(found[count:], detached)
    avals = ir.in_avals if trace.mode == "jvp" else ir.out_avals

    def linear(moving: Sequence[Array | None]) -> list[Array | None]:
        taken = split.arrange(moving, avals)
        results = checkpoint_p.bind(
            *kept, *taken, ir=split.linear, name=f"{name}'s {trace.mode}", policy=everything
        )
        return split.spread(results)

    return outs, linear


def _checkpointed(ir: IR, mode: str, active: tuple[bool, ...], policy: Policy) -> Split:
    key = ("checkpoint", mode, active, policy)
    found = ir.derived.get(key)
    if found is None:
        with traces_set(()):
            found = ir.remember(
                key, _recompute(split_ir(ir, mode, active), len(ir.outputs), policy)
            )
    return found


@dataclass
class _Needs:
    """What computing some variables takes: those to keep, and the equations to run again."""

    kept: list[Var]
    eqns: list[Eqn]


def _needs(forward: IR, wanted: Sequence[Any], policy: Policy) -> _Needs:
    made = {v: e for e in forward.eqns for v in e.outputs}
    constants = {v for v, _ in forward.constants}
    kept: dict[Var, None] = {}
    again: set[Eqn] = set()
    stack = [a for a in wanted if isinstance(a, Var)]
    seen: set[Var] = set()
    while stack:
        v = stack.pop()
        if v in seen or v in constants:
            continue
        seen.add(v)
        eqn = made.get(v)
        if eqn is None or _is_kept(eqn, policy):
            kept[v] = None
        else:
            again.add(eqn)
            stack.extend(a for a in eqn.inputs if isinstance(a, Var))
    order = {v: i for i, v in enumerate((*forward.inputs, *made))}
    return _Needs(sorted(kept, key=order.__getitem__), [e for e in forward.eqns if e in again])


def _is_kept(eqn: Eqn, policy: Policy) -> bool:
    if eqn.effect or _draws(eqn):
        return True
    given = (eqn.primitive.name, [a.aval for a in eqn.inputs], eqn.params)
    says = "checkpoint calls its policy with (primitive_name, input_avals, params)"
    kept = call(policy, given, says)
    if not isinstance(kept, bool | np.bool_):
        raise ArgumentError(f"{says}, and it returned {kept!r:.60}; it must return True or False")
    return bool(kept)


def _draws(eqn: Eqn) -> bool:
    return eqn.primitive.kind == "random" or any(
        _draws(e) for ir in sub_irs(eqn.params) for e in ir.eqns
    )


def _recompute(split: Split, count: int, policy: Policy) -> Split:
    """The split with fewer residuals: those kept, from which `linear` computes the others."""
    forward = split.forward
    needs = _needs(forward, forward.outputs[count:], policy)
    smaller = IR(
        forward.inputs, forward.constants, forward.eqns,
        (*forward.outputs[:count], *needs.kept),
    )  # fmt: skip
    again = IR(tuple(needs.kept), forward.constants, tuple(needs.eqns), forward.outputs[count:])
    n = len(needs.kept)

    def function(*arrays: Array) -> list[Array]:
        kept, moving = list(arrays[:n]), arrays[n:]
        if moving:
            # Not before the cotangents are there, and not merged with the forward's equations.
            kept = [optimization_barrier_p.bind(k, *moving) for k in kept]
        return replay(split.linear, [*replay(again, kept), *moving])

    avals = [*[v.aval for v in needs.kept], *split.linear.in_avals[split.residuals :]]
    linear, captures = trace_ir(function, avals, "a checkpointed linear part")
    assert not captures
    return Split(smaller, linear, split.results, split.moving)


checkpoint_p = Primitive(
    "checkpoint", _lower, lambda *avals, ir, name, policy: results_of(ir), "call", vmap=_vmap,
    multiple=True, higher_order=True, split=_split, words={"policy": POLICIES},
)  # fmt: skip


@filtered
def checkpoint(f: Callable[..., Any], policy: str | Policy = "nothing") -> Callable[..., Any]:
    """`f`, whose derivative computes again what it needs of `f` instead of keeping it.

    policy -- what to keep besides the inputs: "nothing", "dots" (results of contractions),
              "everything", or `policy(primitive_name, input_avals, params) -> bool` for each
              equation of `f` (a loop is one).  Results of communications and random draws are
              always kept, so that with dropout memory falls less.

    `f` is recorded: as in compile, its arrays have no values inside (`if` on one raises), and
    arguments are arrays or trees of them.

    Values and gradients are bit for bit those of `f` (where a while_loop or a custom backward draws
    from the default random stream, they are of other draws).  Cutting n layers into sqrt(n)
    checkpointed pieces makes the memory of a backward pass grow with sqrt(n) (Chen et al.,
    "Training Deep Nets with Sublinear Memory Cost", 2016, arXiv:1604.06174).

    >>> import nuvec as nv
    >>> nv.grad(nv.checkpoint(lambda x: nv.sin(nv.sin(x))))(0.0)
    array(1., dtype=float32)
    """
    require_function("checkpoint", f)
    if isinstance(policy, str):
        if policy not in POLICIES:
            raise ConfigurationError(
                f"checkpoint: no policy {policy!r}; use one of {', '.join(map(repr, POLICIES))}, "
                "or a function policy(primitive_name, input_avals, params) -> bool"
            )
        policy = POLICIES[policy]
    elif not callable(policy):
        raise ArgumentError(
            "checkpoint: policy must be a name or a function policy(primitive_name, input_avals, "
            f"params) -> bool, got {policy!r}"
        )
    name = name_of(f)

    @wraps(f)
    @filtered
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        what = f"checkpoint of {name}"
        args, kwargs, labels = bind_arguments(f, args, kwargs, what)
        leaves, structure = tree.flatten((args, kwargs))

        def argument(path: Path) -> str:
            return label_of(path, labels)

        arrays = arrays_of(leaves, structure, lambda path: f"{what}: {argument(path)}")
        body = Body(
            lambda a, k: f(*a, **k), structure, [x.aval for x in arrays], what, argument,
            lambda path: f"{what}: output{tree.keystr(path)}",
        )  # fmt: skip
        outs = checkpoint_p.bind(
            *read_sources(body.captures), *arrays, ir=body.ir, name=name, policy=policy
        )
        return tree.unflatten(body.structure, outs[: len(body.out_avals)])

    return checkpointed
