"""Sums over a short last axis of what broadcasting makes: added up element by element.

    sum((x[:, None, :] - y[None, :, :]) ** 2, axis=-1)

makes an array as many times larger than its result as the axis is long, and takes NumPy one short
sum for each element of the result.  Here each index of the axis is computed by itself, from the
operands' columns, and added to what is there; tiles then keep all of it in the cache.  The order
of the additions is NumPy's for a sum of so many neighbours (pairwise, in eight sums side by side
from eight elements on), so the bits are its too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nuvec.core import dtypes
from nuvec.core.ir import IR, Atom, Eqn, Literal, Var
from nuvec.core.lower.layout import Layout, layouts_of
from nuvec.core.ops.arithmetic import add_p
from nuvec.core.ops.indexing import gather_p
from nuvec.core.ops.shape import reshape_p, sum_p
from nuvec.core.primitive import Primitive

LONGEST = 32  # elements of the axis
LEAST = 1 << 20  # bytes of the array that is not made
DEPTH = 8  # equations between the operands and the sum
_DTYPES = frozenset((dtypes.float32, dtypes.float64))


def unroll(ir: IR, contiguous: Sequence[bool]) -> IR:
    """The IR with such sums unrolled; itself where it has none."""
    sums = [e for e in ir.eqns if e.primitive is sum_p and _is_short(e)]
    if not sums:
        return ir
    layout = layouts_of(ir, contiguous)
    uses: dict[Atom, int] = {}
    for a in (*(a for e in ir.eqns for a in e.inputs), *ir.outputs):
        uses[a] = uses.get(a, 0) + 1
    made = {v: e for e in ir.eqns for v in e.outputs}
    replaced: dict[Eqn, list[Eqn]] = {}
    gone: set[Eqn] = set()
    for eqn in sums:
        chain = _chain(eqn, made, uses)
        if chain and all(layout(v) is Layout.CONTIGUOUS for e in chain for v in e.outputs):
            replaced[eqn] = _Unrolled(eqn, chain).eqns
            gone.update(chain)
    if not replaced:
        return ir
    eqns = [new for e in ir.eqns if e not in gone for new in replaced.get(e, [e])]
    return IR(ir.inputs, ir.constants, tuple(eqns), ir.outputs)


def _is_short(eqn: Eqn) -> bool:
    a = eqn.inputs[0].aval
    return (
        a.dtype in _DTYPES
        and eqn.params["axes"] == (a.ndim - 1,)
        and 2 <= a.shape[-1] <= LONGEST
        and a.nbytes >= LEAST
    )


def _chain(eqn: Eqn, made: dict[Var, Eqn], uses: dict[Atom, int]) -> list[Eqn]:
    """The elementwise equations that make the summed array, for this sum alone, out of operands
    at most half as large; none where it is not made so."""
    whole = eqn.inputs[0].aval
    chain: list[Eqn] = []
    pending = [eqn.inputs[0]]
    while pending:
        a = pending.pop()
        source = made.get(a) if isinstance(a, Var) else None
        inside = (
            source is not None
            and source.primitive.kind == "elementwise"
            and uses[a] == 1
            and a.aval.shape == whole.shape
        )
        if inside:
            assert source is not None
            if len(chain) == DEPTH:
                return []
            chain.append(source)
            pending.extend(source.inputs)
        elif 2 * a.aval.nbytes > whole.nbytes:
            return []
    return chain[::-1]


class _Unrolled:
    """The equations in the place of a sum and of those that make what it sums."""

    def __init__(self, total: Eqn, chain: Sequence[Eqn]) -> None:
        self.eqns: list[Eqn] = []
        self.source = total.source
        self.chain = chain
        self.columns: dict[tuple[Atom, int], Atom] = {}
        count = total.inputs[0].aval.shape[-1]
        dtype = total.outputs[0].aval.dtype
        zero = Literal(dtype.type(0))
        if count < 8:
            result: Atom = self.make(add_p, zero, self.column(total, 0))
            for k in range(1, count):
                result = self.make(add_p, result, self.column(total, k))
        else:
            result = self.pairs(total, list(range(8)), count - count % 8)
            for k in range(count - count % 8, count):
                result = self.make(add_p, result, self.column(total, k))
            result = self.make(add_p, result, zero)
        last = self.eqns.pop()
        self.eqns.append(Eqn(last.primitive, last.inputs, total.outputs, last.params, self.source))

    def pairs(self, total: Eqn, starts: list[int], stop: int) -> Atom:
        """The sums of every eighth element from each start, added in pairs: one after the other,
        so that few of them are there at a time."""
        if len(starts) > 1:
            half = len(starts) // 2
            left = self.pairs(total, starts[:half], stop)
            return self.make(add_p, left, self.pairs(total, starts[half:], stop))
        result = self.column(total, starts[0])
        for k in range(starts[0] + 8, stop, 8):
            result = self.make(add_p, result, self.column(total, k))
        return result

    def column(self, total: Eqn, k: int) -> Atom:
        """What is summed, at index k of the last axis."""
        new: dict[Atom, Atom] = {}
        for e in self.chain:
            inputs = [new[a] if a in new else self.operand(a, k) for a in e.inputs]
            new[e.outputs[0]] = self.make(e.primitive, *inputs, **e.params)
        return new[total.inputs[0]]

    def operand(self, a: Atom, k: int) -> Atom:
        if not a.aval.shape:
            return a
        wide = a.aval.shape[-1] != 1
        key = (a, k if wide else 0)
        if key not in self.columns:
            if wide:
                index = Literal(np.int64(k))
                last = a.aval.ndim - 1
                self.columns[key] = self.make(gather_p, a, index, axes=(last,), mode="raise")
            else:
                self.columns[key] = self.make(reshape_p, a, shape=a.aval.shape[:-1])
        return self.columns[key]

    def make(self, primitive: Primitive, *inputs: Atom, **params: object) -> Var:
        out = Var(primitive.infer(tuple([a.aval for a in inputs]), dict(params)))
        self.eqns.append(Eqn(primitive, inputs, (out,), dict(params), self.source))
        return out
