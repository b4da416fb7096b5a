"""What a compiled function keeps of one signature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nuvec.core.array import Array
from nuvec.core.errors import LeakedTracerError
from nuvec.core.functions.stream import source_aval
from nuvec.core.ir import IR
from nuvec.core.lower import Plan
from nuvec.core.node import Node, Trace
from nuvec.core.traceback import format_user_frame


@dataclass
class Entry:
    """One traced signature: its IR, where its captures are read from, its output's structure."""

    ir: IR
    captures: list[Any]
    structure: Any
    plan: Plan | None = None
    traces: frozenset[Trace] = frozenset()  # those open around it on which its captures depend

    def fits(self) -> bool:
        """Captured arrays may have been rebound to another shape or dtype."""
        return all(
            source_aval(c) is v.aval for c, v in zip(self.captures, self.ir.inputs, strict=False)
        )

    def refuse_leaked(self, name: str) -> None:
        """Raise where a capture still is the value of a transform that has returned since."""
        closed = {t for t in self.traces if not t.open}
        if not closed:
            return
        for node in captured_nodes(self.captures):
            for trace in closed & (node.marks or set()):
                raise LeakedTracerError(
                    f"{name} is used at {format_user_frame()}, and was compiled inside "
                    f"{trace.name}, of which it captured a value, {node.aval}; that has returned, "
                    "and the value is one of an old call. Pass it as an argument, or compile anew "
                    "in each call"
                )


def captured_nodes(captures: Sequence[Any]) -> list[Node]:
    return [c._node for c in captures if isinstance(c, Array)]
