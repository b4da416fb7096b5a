"""Sums over a scan's steps that are cheaper as one operation after its loop.

The cotangent of a constant is such a sum: of products of what the step kept and what reaches it,
say.  One product of the stacked operands is both faster than many small ones and needs no sum.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from nuvec.core.array import Array
from nuvec.core.ir import IR, Atom, Eqn, Literal, Var
from nuvec.core.ops.arithmetic import add, add_p
from nuvec.core.ops.contraction import NO_BATCH, dot_general_p
from nuvec.core.ops.shape import reshape_p, sum_p, transpose_p

STEP, TOTAL = 1 << 20, 1 << 28  # bytes: of a value at one step, and at all of them


class Tail(NamedTuple):
    """A sum over steps as an operation after the loop: `finish(stacked operands)`."""

    operands: tuple[Var, ...]
    finish: Callable[[Sequence[Array]], Array]


def tail(ir: IR, out: Atom, varying: Collection[Any], length: int) -> Tail | None:
    """How the sum over steps of an output is computed from stacked values; None when it is not
    cheaper so.  `varying`: the variables that differ between steps."""
    definitions = {v: e for e in ir.eqns for v in e.outputs}

    def find(atom: Atom) -> Tail | None:
        eqn = definitions.get(atom) if type(atom) is Var else None
        if eqn is None:
            return None
        primitive, params = eqn.primitive, eqn.params
        if primitive is dot_general_p and params["batch"] == NO_BATCH:
            a, b = eqn.inputs
            if not all(type(v) is Var and v in varying and _fits(v, length) for v in (a, b)):
                return None
            (xc, yc) = params["contract"]
            contract = ((0, *[i + 1 for i in xc]), (0, *[i + 1 for i in yc]))

            def product(values: Sequence[Array]) -> Array:
                return dot_general_p.bind(*values, contract=contract, batch=NO_BATCH)

            return Tail((a, b), product)  # type: ignore[arg-type]
        if primitive is sum_p:
            (a,) = eqn.inputs
            if not (type(a) is Var and a in varying and _fits(a, length)):
                return None
            axes = (0, *[i + 1 for i in params["axes"]])
            return Tail((a,), lambda values: sum_p.bind(*values, axes=axes))
        if primitive in (transpose_p, reshape_p):
            inner = find(eqn.inputs[0])
            return inner and Tail(
                inner.operands, lambda values: primitive.bind(inner.finish(values), **params)
            )
        if primitive is add_p and eqn.inputs[0].aval.shape == eqn.inputs[1].aval.shape:
            x, y = find(eqn.inputs[0]), find(eqn.inputs[1])
            if x is None or y is None:
                return None
            n = len(x.operands)
            return Tail(
                x.operands + y.operands,
                lambda values: add(x.finish(values[:n]), y.finish(values[n:])),
            )
        return None

    return find(out)


def _fits(v: Atom, length: int) -> bool:
    return v.aval.nbytes <= STEP and v.aval.nbytes * length <= TOTAL


# Products inside of branches


def products_outside(ir: IR, outs: Collection[Any], length: int) -> IR:
    """The IR with products and sums that branches of a cond end in, moved behind it, where `outs`
    (outputs of the IR) are their results.

    A branch that has zeros in their place gives zeros as operands: so a step of a loop that is
    done does not make, and add, zeros of a weight's size."""
    read = {a for e in ir.eqns for a in e.inputs}
    movable = {v for v in outs if v not in read}
    replaced: dict[Any, Var] = {}
    eqns: list[Eqn] = []
    for eqn in ir.eqns:
        eqns += _opened(eqn, movable, replaced, length) if eqn.primitive.name == "cond" else [eqn]
    if not replaced:
        return ir
    outputs = tuple([replaced.get(a, a) for a in ir.outputs])
    return IR(ir.inputs, ir.constants, tuple(eqns), outputs)


def _opened(
    eqn: Eqn, movable: Collection[Any], replaced: dict[Any, Var], length: int
) -> list[Eqn]:  # fmt: skip
    branches: tuple[IR, ...] = eqn.params["branches"]
    products: dict[int, list[Eqn | None]] = {}
    for k, v in enumerate(eqn.outputs):
        found = _products(branches, k, length) if v in movable else None
        if found is not None:
            products[k] = found
    if not products:
        return [eqn]
    kept = [k for k in range(len(eqn.outputs)) if k not in products]
    constants = [list(b.constants) for b in branches]
    outputs = [[b.outputs[k] for k in kept] for b in branches]
    outer = [eqn.outputs[k] for k in kept]
    after = []
    for k, found in products.items():
        model = next(e for e in found if e is not None)
        operands = tuple([Var(a.aval) for a in model.inputs])
        result = replaced[eqn.outputs[k]] = Var(eqn.outputs[k].aval)
        after.append(Eqn(model.primitive, operands, (result,), model.params, eqn.source))
        outer += operands
        for own, outs, e in zip(constants, outputs, found, strict=True):
            if e is not None:
                outs += e.inputs
                continue
            for a in operands:
                zeros = Var(a.aval)
                own.append((zeros, np.broadcast_to(np.zeros((), a.aval.dtype), a.aval.shape)))
                outs.append(zeros)
    opened = tuple([
        IR(b.inputs, tuple(own), b.eqns, tuple(outs))
        for b, own, outs in zip(branches, constants, outputs, strict=True)
    ])  # fmt: skip
    params = {**eqn.params, "branches": opened}
    return [Eqn(eqn.primitive, eqn.inputs, tuple(outer), params, eqn.source), *after]


def _products(branches: Sequence[IR], k: int, length: int) -> list[Eqn | None] | None:
    """For every branch the product that is its output k, None where that is zeros; None when
    they are anything else."""
    found: list[Eqn | None] = []
    for b in branches:
        out = b.outputs[k]
        if _is_zero(b, out):
            found.append(None)
            continue
        eqn = next((e for e in b.eqns if out in e.outputs), None)
        if eqn is None or eqn.primitive not in (dot_general_p, sum_p):
            return None
        if not all(type(a) is Var and _fits(a, length) for a in eqn.inputs):
            return None
        found.append(eqn)
    models = [e for e in found if e is not None]
    if not models or sum(a.aval.nbytes for a in models[0].inputs) > 2 * max(
        models[0].outputs[0].aval.nbytes, 1024
    ):
        return None
    first = models[0]
    same = all(
        e.primitive is first.primitive and e.params == first.params
        and [a.aval for a in e.inputs] == [a.aval for a in first.inputs]
        for e in models
    )  # fmt: skip
    return found if same else None


def _is_zero(ir: IR, atom: Atom) -> bool:
    if type(atom) is Literal:
        return not atom.value
    value = next((c for v, c in ir.constants if v is atom), None)
    return value is not None and not any(value.strides) and not np.any(value[(0,) * value.ndim])


__all__ = ["Tail", "products_outside", "tail"]
