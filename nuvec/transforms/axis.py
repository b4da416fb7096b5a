"""Named axes: the axis a vmap maps over, under a name, so that it can serve as a group of ranks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nuvec.core.ir import IR, sub_irs
from nuvec.core.node import context
from nuvec.core.primitive import Primitive


@dataclass(frozen=True)
class Axis:
    """A mapped axis.  Equality is by value, so that what a compiled function recorded inside one
    vmap fits the next one alike.

    name  -- as given to vmap
    size  -- how many elements
    level -- how many open vmaps around it use the same name
    """

    name: Any
    size: int
    level: int = 0


def open_axes() -> tuple[Axis, ...]:
    """The named axes of the open traces, outermost first."""
    return tuple([t.axis for t in context.traces if t.axis is not None])


def new_axis(name: Any, size: int) -> Axis:
    """The axis of a vmap that begins now."""
    return Axis(name, size, sum(a.name == name for a in open_axes()))


def axis_of(params: dict[str, Any]) -> Axis | None:
    """The mapped axis that is a communication's group; None for a group of real ranks."""
    return getattr(params.get("group"), "axis", None)


class _Walked(threading.local):
    axis: Axis | None = None


_walked = _Walked()


def walked_axis() -> Axis | None:
    """The named axis of the batching walk under way: the IRs that equations hold are batched over
    it too."""
    return _walked.axis


@contextmanager
def walking(axis: Axis | None) -> Iterator[None]:
    """Let `axis` be the named axis of a batching walk."""
    before = _walked.axis
    _walked.axis = axis
    try:
        yield
    finally:
        _walked.axis = before


# Recorded as communications are, because they belong to an axis, although they send nothing.
SILENT: set[Primitive] = set()


def communicates(ir: IR) -> bool:
    """Whether a program really communicates: asking for an element's index does not."""
    for eqn in ir.eqns:
        if eqn.primitive.effect:
            if eqn.primitive not in SILENT:
                return True
        elif eqn.effect:
            inside = sub_irs(eqn.params)
            if any(communicates(i) for i in inside) or not any(i.effect for i in inside):
                return True  # the latter: a custom rule whose backward does
    return False
