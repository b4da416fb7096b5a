"""Which communications each transform must run, and in what order.

Values alone do not tell: a communication that runs twice, or two that change places on every
rank, may give the right numbers.  What is known of nuvec's own communications is stated here; a
program with others (or with custom rules and control flow) is compared only with itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from nuvec.core import dtypes
from nuvec.core.ir import IR

__all__ = ["backward_calls", "expected_order", "forward_calls", "operation"]

_KNOWN = frozenset({
    "all_sum", "all_max", "all_min", "broadcast", "all_gather", "sum_scatter", "all_to_all",
    "permute", "send", "recv", "barrier",
})  # fmt: skip

_ARRAY = re.compile(r"[a-z]+\d*\[[\d,]*\]")  # float32[2,3]


def operation(call: str) -> str:
    """A noted call without shapes: "all_reduce sum float32[3]" is an "all_reduce sum"."""
    if call.startswith("permute"):
        return "permute"  # between which ranks is checked by its values
    return " ".join(word for word in call.split() if not _ARRAY.fullmatch(word))


def _has_derivative(call: str) -> bool:
    names = [word.split("[")[0] for word in call.split() if _ARRAY.fullmatch(word)]
    return any(dtypes.is_inexact(np.dtype(n) if n != "bfloat16" else dtypes.bfloat16)
               for n in names)  # fmt: skip


def forward_calls(calls: Sequence[str]) -> list[str]:
    """What the tangents of these calls communicate, in the same order."""
    return [_forward(operation(c)) for c in calls if _has_derivative(c)]


def _forward(name: str) -> str:
    # An extreme's tangent sums over the ranks that attain it.
    return "all_reduce sum" if name.startswith("all_reduce") else name


def backward_calls(calls: Sequence[str]) -> list[str]:
    """What their cotangents communicate: each one's transpose, in the reverse order."""
    return [_transpose(operation(c)) for c in reversed(calls) if _has_derivative(c)]


def _transpose(name: str) -> str:
    if name.startswith(("all_reduce", "broadcast")):
        return "all_reduce sum"
    first, _, rest = name.partition(" ")
    swapped = {"all_gather": "sum_scatter", "sum_scatter": "all_gather", "all_to_all": "all_to_all",
               "permute": "permute",
               "send": f"recv from {rest[3:]}", "recv": f"send to {rest[5:]}"}  # fmt: skip
    return swapped[first]


def expected_order(ir: IR) -> bool:
    """Whether what a program's derivatives communicate follows from what the program does: its
    communications are nuvec's own, none is inside another program, and all are active."""
    return all(
        not eqn.primitive.higher_order
        and (
            not eqn.primitive.effect
            or (eqn.primitive.name in _KNOWN and eqn.params.get("active", True))
        )
        for eqn in ir.eqns
    )
