"""IR -> groups in the order they run.

The order is program order, so communications start in the order they were recorded, which is the
order their peers expect.  This is the place to start a communication as soon as its operands are
ready and to await it at its first use; until that is done it runs where it stands.

A group is a small program of its own, independent of what runs it.  So far each holds one
equation; fusing joins equations that share their iteration space, and another emitter than the
NumPy one can take a group's IR instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from nuvec.core.ir import IR, Eqn, Var


@dataclass(frozen=True)
class Group:
    """Equations that run as one; `inputs` come from outside, `outputs` are used outside."""

    eqns: tuple[Eqn, ...]
    inputs: tuple[Var, ...]
    outputs: tuple[Var, ...]

    @property
    def ir(self) -> IR:
        """The group as a closed program."""
        return IR(self.inputs, (), self.eqns, self.outputs)


def schedule(ir: IR) -> tuple[Group, ...]:
    """The groups of an IR in the order they run."""
    return tuple(
        Group((e,), tuple(dict.fromkeys(a for a in e.inputs if type(a) is Var)), e.outputs)
        for e in ir.eqns
    )
