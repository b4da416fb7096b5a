"""Which values of a program depend linearly on its inputs: the judgement behind linear_transpose.

Every value of an IR gets a `Dependence`, equation by equation.  What an equation makes of its
operands follows from its primitive's record (`linear`, `derivatives`); an equation that holds IRs
is judged by going into them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array
from nuvec.core.ir import IR, Atom, Eqn, Literal
from nuvec.core.node import Node
from nuvec.core.ops.differentiation import depends_p, optimization_barrier_p
from nuvec.core.primitive import MINUS_ONE, ONE, Primitive


@dataclass(frozen=True)
class Fault:
    """The first thing that is not linear, as the end of a message; its first part may be the
    equation, with the user's line."""

    why: str

    def __str__(self) -> str:
        return self.why


@dataclass(frozen=True)
class Dependence:
    """How a value depends on the inputs that are to be linear.

    linear   -- it is a linear function of them
    constant -- it does not depend on them.  Zero is both, and so is what `recv` brings: what it is
                depends on its sender
    fault    -- why it is neither
    conjugated -- it is linear over the real numbers alone: the equation that takes a conjugate, or
                  a real or imaginary part
    """

    linear: bool
    constant: bool
    conjugated: Fault | None = field(default=None, compare=False)
    fault: Fault | None = field(default=None, compare=False)


LINEAR = Dependence(True, False)
CONSTANT = Dependence(False, True)
ZERO = Dependence(True, True)


def dependence_of_constant(array: Array) -> Dependence:
    """ZERO for an array that is known to be zero everywhere, else CONSTANT.  Nothing is evaluated:
    it may be pending, or have no value yet."""
    return ZERO if _is_zero(array._node, 8) else CONSTANT


def _is_zero(node: Node, depth: int) -> bool:
    """Whether a node is zero, as its value says or a few equations behind it."""
    if isinstance(node.value, np.ndarray | np.generic):
        return not np.any(node.value)
    if not depth or not node.inputs or not node.primitive.plain or node.primitive.multiple:
        return False
    kind = _kind(node.primitive, node.aval.dtype)
    which = node.primitive.linear_operands or range(len(node.inputs))
    zeros = (_is_zero(node.inputs[i], depth - 1) for i in which)
    return kind is not None and (any(zeros) if kind == "each" else all(zeros))


def first_fault(
    ir: IR, given: Sequence[Dependence], outputs: Sequence[int] | None = None,
    complex: bool = False,
) -> Fault | None:  # fmt: skip
    """What keeps a program from being linear; None when it is.

    given   -- for each of the IR's inputs: LINEAR for those it is to be linear in, CONSTANT for
               others (ZERO where they are known to be zero)
    outputs -- which outputs are judged; all of them by default.  A constant other than zero is not
               linear.  Communications are judged whether or not an output depends on them, for
               what they send is another rank's
    complex -- whether conjugates, and real and imaginary parts, are no linear functions
    """
    found, sent = dependences(ir, given)
    if sent is not None:
        return sent
    for i in range(len(found)) if outputs is None else outputs:
        if complex and found[i].conjugated:
            return found[i].conjugated
        if not found[i].linear:
            constant = f"output {i}, {ir.outputs[i].aval}, is a constant that is not zero"
            return found[i].fault or Fault(constant)
    return None


Dependences = list[Dependence]
Judged = tuple[Dependences, Fault | None]  # of the outputs; of what is communicated


def dependences(ir: IR, given: Sequence[Dependence]) -> Judged:
    """How the IR's outputs depend on the inputs that are `given` as LINEAR, and the first fault of
    what is communicated."""
    known: dict[Any, Dependence] = dict(zip(ir.inputs, given, strict=True))
    for variable, value in ir.constants:
        known[variable] = CONSTANT if np.any(value) else ZERO

    def read(atom: Atom) -> Dependence:
        if isinstance(atom, Literal):
            return CONSTANT if np.any(atom.value) else ZERO
        return known[atom]

    sent: Fault | None = None
    for eqn in ir.eqns:
        operands = [read(a) for a in eqn.inputs]
        found, inside = _equation(eqn, operands)
        known.update(zip(eqn.outputs, found, strict=False))  # no outputs: there is still a token
        if eqn.primitive.effect and eqn.params.get("active") is not False:
            inside = next((d.fault for d in (*operands, *found) if d.fault), None)
        sent = sent or inside
    return [read(a) for a in ir.outputs], sent


def _equation(eqn: Eqn, operands: Sequence[Dependence]) -> Judged:
    if eqn.primitive.higher_order:
        return _higher_order(eqn, operands)
    if eqn.primitive in (depends_p, optimization_barrier_p):  # the others only come before it
        return [operands[0]], None
    if eqn.primitive.effect and operands:  # each operand has its own result
        return [_result(eqn, [i], [d]) for i, d in enumerate(operands)], None
    one = _result(eqn, range(len(operands)), operands)
    return [one] * len(eqn.outputs), None


def _result(eqn: Eqn, places: Sequence[int], operands: Sequence[Dependence]) -> Dependence:
    """What an equation makes of the operands at `places`."""
    constant = all(d.constant for d in operands)
    linear = _is_linear(eqn, places, operands)
    if linear or constant:
        conjugated = next((d.conjugated for d in operands if d.conjugated), None)
        if not constant and eqn.primitive.name in ("conj", "real", "imag"):
            conjugated = Fault(f"{_described(eqn)} is linear over the real numbers alone")
        return Dependence(linear, constant, conjugated)
    earlier = next((d.fault for d in operands if d.fault), None)
    return Dependence(False, False, None, earlier or _fault(eqn, operands))


def _kind(primitive: Primitive, dtype: np.dtype) -> str | None:
    """How a primitive with results of this dtype is linear: "joint", "each", or not."""
    if primitive.name == "convert_dtype":
        return "joint" if dtypes.is_inexact(dtype) else None
    derivatives = primitive.derivatives
    if derivatives is not None and all(d in (ONE, MINUS_ONE) for d in derivatives):
        return "joint"
    return primitive.linear


def _kind_of(eqn: Eqn) -> str | None:
    return _kind(eqn.primitive, eqn.outputs[0].aval.dtype) if eqn.outputs else None


def _is_linear(eqn: Eqn, places: Sequence[int], operands: Sequence[Dependence]) -> bool:
    kind, which = _kind_of(eqn), eqn.primitive.linear_operands
    if kind is None:
        return False
    moving = [k for k, i in enumerate(places) if which is None or i in which]
    if kind == "each":
        return any(
            operands[k].linear and all(d.constant for j, d in enumerate(operands) if j != k)
            for k in moving
        )
    # Jointly in its floating operands: the others are indices and masks.
    floating = [k for k in moving if dtypes.is_inexact(eqn.inputs[places[k]].aval.dtype)]
    moving = floating or moving
    return all(d.linear if k in moving else d.constant for k, d in enumerate(operands))


def _fault(eqn: Eqn, operands: Sequence[Dependence]) -> Fault:
    linear = sum(d.linear and not d.constant for d in operands)
    kind = _kind_of(eqn)
    if kind == "joint" and linear:
        why = "joins what depends on the inputs with a constant that is not zero"
    elif kind == "each" and linear > 1:
        why = "multiplies two values that depend on the inputs"
    else:
        why = "is not linear in it" if len(operands) == 1 else "is not linear in them"
    return Fault(f"{_described(eqn)} {why}")


def _described(eqn: Eqn) -> str:
    """The equation in words, with its line."""
    operands = ", ".join(str(a.aval) for a in eqn.inputs)
    place = "" if eqn.source is None else f" at {eqn.source}"
    return f"{eqn.primitive.name} of {operands}{place}"


# Equations that hold IRs


def _higher_order(eqn: Eqn, operands: Sequence[Dependence]) -> Judged:
    rule = _INSIDE.get(eqn.primitive.name)
    if rule is not None:
        return rule(eqn, operands)
    if all(d.constant for d in operands):
        return [CONSTANT] * len(eqn.outputs), None
    fault = Fault(f"{_described(eqn)} holds a program that is not known to be linear")
    return [Dependence(False, False, None, fault)] * len(eqn.outputs), None


def _meet(a: Dependence, b: Dependence, eqn: Eqn, why: str) -> Dependence:
    """What is known of a value that is one or the other."""
    linear, constant = a.linear and b.linear, a.constant and b.constant
    if linear or constant:
        return Dependence(linear, constant, a.conjugated or b.conjugated)
    fault = a.fault or b.fault or Fault(f"{_described(eqn)}: {why}")
    return Dependence(False, False, None, fault)


def _call(name: str) -> Callable[[Eqn, Sequence[Dependence]], Judged]:
    return lambda eqn, operands: dependences(eqn.params[name], operands)


def _cond(eqn: Eqn, operands: Sequence[Dependence]) -> Judged:
    index, *rest = operands
    judged = [dependences(branch, rest) for branch in eqn.params["branches"]]
    found = judged[0][0]
    for outs, _ in judged[1:]:
        why = "a result is linear in one branch and a constant that is not zero in another"
        found = [_meet(a, b, eqn, why) for a, b in zip(found, outs, strict=True)]
    sent = next((s for _, s in judged if s is not None), None)
    if not index.constant:
        fault = index.fault or Fault(f"{_described(eqn)} chooses a branch by the inputs")
        found = [Dependence(False, False, None, fault)] * len(found)
        if any(branch.effect for branch in eqn.params["branches"]):
            sent = sent or fault
    return found, sent


_CARRY = "a carry is linear at one step and a constant that is not zero at another"


def _scan(eqn: Eqn, operands: Sequence[Dependence]) -> Judged:
    start, count = eqn.params["consts"], eqn.params["carry"]
    end = start + count
    carry = list(operands[start:end])
    while True:  # less is known of a carry at each round, until nothing changes
        found, sent = dependences(eqn.params["body"], [*operands[:start], *carry, *operands[end:]])
        following = [_meet(a, b, eqn, _CARRY) for a, b in zip(carry, found, strict=False)]
        if following == carry:
            return [*following, *found[count:]], sent
        carry = following


def _while(eqn: Eqn, operands: Sequence[Dependence]) -> Judged:
    count = eqn.params["consts"]
    fixed, carry = operands[:count], list(operands[count:])
    while True:
        found, sent = dependences(eqn.params["body"], [*fixed, *carry])
        following = [_meet(a, b, eqn, _CARRY) for a, b in zip(carry, found, strict=True)]
        done, carry = following == carry, following
        if done:
            break
    (test,), tested = dependences(eqn.params["cond"], [*fixed, *carry])
    if not test.constant:
        fault = test.fault or Fault(f"{_described(eqn)} takes as many steps as the inputs say")
        carry = [Dependence(False, False, None, fault)] * len(carry)
        sent = sent or fault if eqn.effect else sent
    return carry, sent or tested


_INSIDE: dict[str, Callable[[Eqn, Sequence[Dependence]], Judged]] = {
    "call": _call("ir"),
    "checkpoint": _call("ir"),
    "custom_rule": _call("fun"),  # a custom rule is taken to be that of its function
    "cond": _cond,
    "scan": _scan,
    "while_loop": _while,
}
