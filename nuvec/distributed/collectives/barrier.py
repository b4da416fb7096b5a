"""barrier: every rank waits for all others."""

from __future__ import annotations

from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import literal
from nuvec.core.ir import Aval, aval
from nuvec.core.node import context
from nuvec.core.primitive import Primitive


def _lower(*, group: Any) -> tuple[Any, ...]:
    group.communicator.barrier()
    return (np.False_,)


def _shape_rule(*, group: Any) -> tuple[Aval, ...]:
    return (aval((), dtypes.bool_),)


barrier_p: Primitive = Primitive(
    "barrier", _lower, _shape_rule, "effect",
    jvp=lambda tangents, outs, **params: [None],
    vjp=lambda cs, outs, **params: [],
    vmap=lambda size, axes, **params: (barrier_p.bind(**params), [None]),  # once, not per element
    axis=lambda size, axes, **params: ([literal(False, dtypes.bool_)], [None]),
    multiple=True, effect=True,
)  # fmt: skip


def in_symbolic_trace() -> bool:
    """Whether a barrier is being recorded (vmap, compile) rather than run."""
    return any(t.symbolic for t in context.traces)
