"""IR -> groups in the order they run.

The order is program order, but that communications start as soon as their operands are ready: in
the order they were recorded, which is the order their peers expect (`overlap.py`).

A group is a small program of its own, independent of what runs it: one equation, or equations
that share their leading axes and run tile by tile (`fuse.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nuvec.core.ir import IR, Eqn, Var
from nuvec.core.lower.fuse import Fusion, tile_rows
from nuvec.core.lower.gather import gather
from nuvec.core.lower.overlap import start_early
from nuvec.core.tiling import Role, Rows


@dataclass(frozen=True)
class Group:
    """Equations that run as one; `inputs` come from outside, `outputs` are used outside.

    rows -- the leading axes that the equations share, along which the group is cut into tiles;
            None for a single equation that runs whole
    cut  -- the inputs that have these axes, in the order of `inputs`
    partial -- the outputs that are sums over tiles
    """

    eqns: tuple[Eqn, ...]
    inputs: tuple[Var, ...]
    outputs: tuple[Var, ...]
    rows: Rows | None = None
    cut: tuple[Var, ...] = ()
    partial: tuple[Var, ...] = ()

    @property
    def ir(self) -> IR:
        """The group as a closed program."""
        return IR(self.inputs, (), self.eqns, self.outputs)


def schedule(
    ir: IR, contiguous: Sequence[bool] | None = None, partial: bool = True
) -> tuple[Group, ...]:
    """The groups of an IR in the order they run.  Equations are fused where it is known which
    inputs are C-contiguous; sums over a group's rows join it only if they may be `partial`."""
    if contiguous is None:
        return start_early([_single(e) for e in ir.eqns])
    uses: dict[Var, int] = {}
    for a in (*(a for e in ir.eqns for a in e.inputs), *ir.outputs):
        if type(a) is Var:
            uses[a] = uses.get(a, 0) + 1
    groups: list[Group] = []
    for item in gather(ir, contiguous, partial):
        groups.extend(_tiled(item, uses) if isinstance(item, Fusion) else (_single(item),))
    return start_early(groups)


def _single(eqn: Eqn) -> Group:
    inputs = tuple(dict.fromkeys(a for a in eqn.inputs if type(a) is Var))
    return Group((eqn,), inputs, eqn.outputs)


def _tiled(fusion: Fusion, uses: dict[Var, int]) -> list[Group]:
    """The group, between the views that are used outside of it: tiles would copy those."""
    inside: dict[Var, int] = {}
    for a in (a for e in fusion.eqns for a in e.inputs):
        if type(a) is Var:
            inside[a] = inside.get(a, 0) + 1
    outside = {v for e in fusion.eqns for v in e.outputs if uses.get(v, 0) > inside.get(v, 0)}
    shown: list[Eqn] = []
    for e in reversed(fusion.eqns):
        if e.primitive.kind == "view" and not outside.isdisjoint(e.outputs):
            shown.append(e)
            outside.update(a for a in e.inputs if type(a) is Var)
            outside.difference_update(e.outputs)
    shown.reverse()
    made = {v for e in fusion.eqns for v in e.outputs}
    before = []
    for e in shown:
        if made.isdisjoint(e.inputs):
            before.append(e)
            made.difference_update(e.outputs)  # of this view, too, there can be one before
    after = [e for e in shown if e not in before]
    made.update(v for e in before for v in e.outputs)
    eqns = fusion.live(outside)
    values = {a for e in eqns for a in (*e.inputs, *e.outputs) if type(a) is Var}
    if tile_rows(fusion.rows, [v for v in values if fusion.roles.get(v) is Role.CUT]) is None:
        return list(map(_single, fusion.eqns))
    inputs = tuple(dict.fromkeys(
        a for e in eqns for a in e.inputs if type(a) is Var and a not in made
    ))  # fmt: skip
    outputs = tuple([v for e in eqns for v in e.outputs if v in outside])
    cut = tuple([v for v in inputs if fusion.roles[v] is Role.CUT])
    partial = tuple([v for v in outputs if v in fusion.partial])
    group = Group(eqns, inputs, outputs, fusion.rows, cut, partial)
    return [*map(_single, before), group, *map(_single, after)]
