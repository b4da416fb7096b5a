"""What NumPy is told before a program runs: to ignore floating-point errors, and how much it may
buffer.

NumPy keeps both in one context variable.  Setting it is seven times faster than np.errstate, and
it is found without relying on where NumPy keeps it.

Where an operand is repeated, NumPy copies it, and what it goes with, into buffers of 8192 elements
as soon as two rows fit in one: a column taken from rows of 1000 elements is three times slower
than it need be.  With a small buffer it takes row after row from where they are; rows of less than
that are faster with the large one.
"""

from __future__ import annotations

import contextvars
import math
from typing import Any

import numpy as np

from nuvec.core.ir import IR, Eqn
from nuvec.core.ops.power import power_p

ROW = 256  # elements from which a row is taken by itself


def _states() -> tuple[Any, Any, Any]:
    """The context variable; its value with errors ignored; and that with a small buffer too."""
    before = dict(contextvars.copy_context())
    with np.errstate(all="ignore"):
        inside = contextvars.copy_context()
        changed = [v for v, value in inside.items() if before.get(v) is not value]
        if len(changed) == 1:
            np.setbufsize(ROW)
            return changed[0], inside[changed[0]], changed[0].get()
    return _ErrstateVariable(), None, None


class _ErrstateVariable:
    """Stands in for the context variable where there is none."""

    def set(self, value: Any) -> Any:
        state = np.errstate(all="ignore")
        state.__enter__()
        return state

    def reset(self, state: Any) -> None:
        state.__exit__(None, None, None)


ERRORS, IGNORED, IGNORED_ROWS = _states()


def state_for(ir: IR) -> Any:
    """The state for the program of a tile: small buffers where most of what is repeated goes with
    long rows.

    Not with powers: np.power multiplies where it sees one exponent for all it is given, and so
    would give other bits where it sees a row with one."""
    work = [0, 0]
    for eqn in ir.eqns:
        if eqn.primitive is power_p:
            return IGNORED
        if eqn.primitive.kind == "elementwise" and len(eqn.inputs) > 1:
            row = _row(eqn)
            if row is not None:
                work[row >= ROW] += eqn.outputs[0].aval.size
    return IGNORED_ROWS if work[1] > work[0] else IGNORED


def _row(eqn: Eqn) -> int | None:
    """The elements that NumPy can take at once: those along the last axes, of which each operand
    has all, or repeats all.  None where they are all the elements."""
    shape = eqn.outputs[0].aval.shape
    rows = []
    for a in eqn.inputs:
        lacking = (1,) * (len(shape) - a.aval.ndim)
        repeats = [n != m for n, m in zip((*lacking, *a.aval.shape), shape, strict=True)]
        if a.aval.size > 1 and any(repeats):
            last = len(shape) - 1
            while repeats[last] == repeats[-1]:
                last -= 1
            rows.append(math.prod(shape[last + 1 :]))
    return min(rows, default=None)
