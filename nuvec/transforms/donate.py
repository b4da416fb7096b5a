"""Donation: a compiled call that may write its results over arguments nobody needs any more.

An array's memory is taken only when nothing else can see it: no other handle, no view that was
handed out, no pending equation.  Where something can, the call runs as if it had not been donated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core.array import Array
from nuvec.core.errors import NuvecError
from nuvec.core.interpreter import fail
from nuvec.core.ir import IR
from nuvec.core.lower import lower_donating, owns_memory
from nuvec.core.node import context
from nuvec.core.profiler import while_profiled

# What refers to a node that one handle alone holds, seen from `_is_alone`: the handle, the local
# variable and getrefcount's argument; likewise for the value of a node.
_ALONE = 3


def _is_alone(array: Array) -> bool:
    """Whether an evaluated array is the only way to see its memory."""
    node = array._node
    if sys.getrefcount(node) > _ALONE or not isinstance(node.value, np.ndarray):
        return False
    value = node.value
    if sys.getrefcount(value) > _ALONE or value.ndim == 0:
        return False
    flags = value.flags  # which refers to the value, so it comes after counting
    return flags.writeable and flags.c_contiguous and owns_memory(value)


def to_donate(operands: Sequence[Array], places: Sequence[int]) -> tuple[int, ...]:
    """Which of the evaluated operands at `places` can give their memory."""
    if not all(_contiguous(a._node.value) for a in operands):
        return ()
    seen = [id(a._node.value) for a in operands]
    return tuple([
        i for i in places if seen.count(id(operands[i]._node.value)) == 1 and _is_alone(operands[i])
    ])  # fmt: skip


def _contiguous(value: Any) -> bool:
    return not isinstance(value, np.ndarray) or value.ndim == 0 or value.flags.c_contiguous


def run_donating(
    ir: IR, name: str, operands: Sequence[Array], donated: tuple[int, ...]
) -> list[Any]:
    """Run a compiled function on evaluated operands, writing over those `donated`; they raise when
    they are used again."""
    profiled = bool(context.profiles)
    key = ("donating", donated, profiled)
    run: Callable[..., list[Any]] | None = ir.derived.get(key)
    if run is None:
        run = ir.remember(key, lower_donating(ir, donated, profiled))
    values = [np.asarray(a._node.value) for a in operands]
    for i in donated:
        node = operands[i]._node
        aval = node.aval
        node.value = None
        fail(
            node,
            NuvecError(
                f"this array, {aval}, was donated to {name}, which has written over it; use what "
                f"{name} returned, or do not donate it (donate_argnums)"
            ),
        )
    return while_profiled(run, f"compiled {name}", "program")(*values) if profiled else run(*values)
