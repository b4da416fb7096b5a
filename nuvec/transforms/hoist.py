"""What can leave a scan's body before its loop.

Equations that read only constants are computed once, before the loop.  Those that read constants
and a step's inputs need no carry: where one large operation is cheaper than many small ones
(a product with a constant matrix) they are computed for all steps before the loop.

What moves depends on shapes alone, and moves before any transform or evaluation sees the scan: so
it is the same program wherever it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from nuvec.core.array import Array
from nuvec.core.ir import IR, Atom, Eqn, Var, aval
from nuvec.core.node import traces_set
from nuvec.core.ops.contraction import NO_BATCH, dot_general_p
from nuvec.core.ops.shape import transpose_p
from nuvec.core.recording import replay
from nuvec.transforms.vmap import batched_ir

SAFE = frozenset(("elementwise", "view", "reduction", "contraction"))  # these raise nothing
# Bytes: what a step may keep of one value, what all steps may keep together, and what all steps
# of an elementwise result may take (more is cheaper step by step, in the cache).
STEP, TOTAL, CACHED = 1 << 20, 1 << 28, 1 << 18
GROWTH = 4  # how many times the inputs' bytes their hoisted results may take


class Hoisted(NamedTuple):
    """once -- (constants) -> what is computed once; each -- (constants, what is computed once, a
    step's inputs) -> what is computed for all steps; body -- the rest, whose constants end with
    what is computed once, and inputs with what is computed for all steps.

    used -- which of the original step inputs the rest still reads."""

    once: IR
    each: IR
    body: IR
    used: tuple[bool, ...]


def hoisted(body: IR, consts: int, carry: int, length: int) -> Hoisted | None:
    """The body without what can leave it; None when nothing can.  Cached."""
    length = rounded(length)
    key = ("hoisted", consts, carry, length)
    found = body.derived.get(key, False)
    if found is False:
        found = body.remember(key, _hoist(body, consts, carry, length))
    return found


def rounded(length: int) -> int:
    """The length that decides what moves: loops of many lengths share what is made of a body."""
    return 1 << (length - 1).bit_length() if length else 0


def _hoist(body: IR, consts: int, carry: int, length: int) -> Hoisted | None:
    start = consts + carry
    constants = body.inputs[:consts]
    inputs = body.inputs[start:]
    level: dict[Any, int] = dict.fromkeys(constants, 0)  # 0: constant, 1: needs a step's inputs
    level.update(dict.fromkeys(inputs, 1))
    level.update(dict.fromkeys([v for v, _ in body.constants], 0))
    closed = {v for v, _ in body.constants}
    parts: tuple[list[Eqn], list[Eqn], list[Eqn]] = ([], [], [])
    eqns = list(_transposed_once(body.eqns, level))
    for eqn in eqns:
        read = [a for a in eqn.inputs if type(a) is Var]
        where = max([level.get(a, 2) for a in read], default=2)
        if where < 2 and not _moves(eqn, where, level, length):
            where = 2
        if where == 0 and all(a in closed for a in read):
            where = 2  # the plan folds it
        parts[where].append(eqn)
        if where < 2:
            level.update(dict.fromkeys(eqn.outputs, where))
    once, each, rest = parts
    needed = {a for e in rest for a in e.inputs} | set(body.outputs)
    each, each_outs = _wanted(each, needed)
    grown = sum(v.aval.nbytes for v in each_outs)
    given = sum(v.aval.nbytes for v in inputs)
    if grown > GROWTH * given + 1024 or grown * length > TOTAL:
        each, each_outs, rest = [], [], [e for e in eqns if e not in once]
        needed = {a for e in rest for a in e.inputs} | set(body.outputs)
    needed = needed | {a for e in each for a in e.inputs}
    once, once_outs = _wanted(once, needed)
    if not once and not each:
        return None
    remaining = {a for e in rest for a in e.inputs} | set(body.outputs)
    used = tuple([v in remaining for v in inputs])
    kept = [v for v, u in zip(inputs, used, strict=True) if u]
    return Hoisted(
        IR(constants, body.constants, tuple(once), tuple(once_outs)),
        IR((*constants, *once_outs, *inputs), body.constants, tuple(each), tuple(each_outs)),
        IR(
            (*constants, *once_outs, *body.inputs[consts:start], *kept, *each_outs),
            body.constants, tuple(rest), body.outputs,
        ),
        used,
    )  # fmt: skip


def _transposed_once(eqns: Sequence[Eqn], constant: dict[Any, int]) -> Iterator[Eqn]:
    """A product with the transpose of a constant matrix, at every step, is one with a transposed
    matrix that is made once: BLAS is faster so for small operands."""
    made: dict[Var, Var] = {}
    for eqn in eqns:
        matrices = len(eqn.inputs) == 2 and all(a.aval.ndim == 2 for a in eqn.inputs)
        if eqn.primitive is dot_general_p and matrices and eqn.params["contract"] == ((1,), (1,)):
            x, y = eqn.inputs
            if type(y) is Var and constant.get(y) == 0:
                if y not in made:
                    m, n = y.aval.shape
                    made[y] = Var(aval((n, m), y.aval.dtype))
                    yield Eqn(transpose_p, (y,), (made[y],), {"permutation": (1, 0)}, eqn.source)
                params = {"contract": ((1,), (0,)), "batch": NO_BATCH}
                eqn = Eqn(dot_general_p, (x, made[y]), eqn.outputs, params, eqn.source)
        yield eqn


def _moves(eqn: Eqn, where: int, level: dict[Any, int], length: int) -> bool:
    primitive = eqn.primitive
    if primitive.kind not in SAFE or eqn.effect or primitive.multiple or length == 0:
        return False
    size = eqn.outputs[0].aval.nbytes
    if size > STEP:
        return False
    if where == 0:
        # A view costs nothing at a step; stored, it would.  The loop copies a transposed matrix.
        return primitive.kind != "view" or primitive is transpose_p
    if primitive is dot_general_p:  # with a constant: one product of many rows
        stepped = [level.get(a, 0) == 1 for a in eqn.inputs]
        return not all(stepped) and eqn.params["batch"] == NO_BATCH
    return size * length <= CACHED


def _wanted(eqns: list[Eqn], needed: set[Atom]) -> tuple[list[Eqn], list[Var]]:
    """The equations something needed depends on, and the results that are read outside."""
    live = set(needed)
    kept = []
    for e in reversed(eqns):
        if not live.isdisjoint(e.outputs):
            kept.append(e)
            live.update(e.inputs)
    kept.reverse()
    return kept, [v for e in kept for v in e.outputs if v in needed]


def apply_hoisted(
    parts: Hoisted, fixed: Sequence[Array], xs: Sequence[Array], length: int
) -> tuple[list[Array], list[Array]]:
    """Record what leaves the body; the constants and inputs of the rest."""
    constants = [*fixed, *replay(parts.once, fixed)]
    kept = [x for x, u in zip(xs, parts.used, strict=True) if u]
    if parts.each.eqns:
        axes = (*(None,) * len(constants), *(0,) * len(xs))
        with traces_set(()):
            each, _ = batched_ir(parts.each, length, axes, (True,) * len(parts.each.outputs))
        kept += replay(each, [*constants, *xs])
    return constants, kept


__all__ = ["Hoisted", "apply_hoisted", "hoisted", "rounded"]
