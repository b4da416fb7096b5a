"""The short way of a call that was seen before: no more Python than looking its program up.

It is for the common call: arguments that are evaluated arrays, nothing captured, nothing that
communicates, no transform open around it.  Any other goes the long way (`compile.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nuvec.core import tree
from nuvec.core.array import Array
from nuvec.core.config import config
from nuvec.core.node import constant
from nuvec.core.traceback import note_source
from nuvec.transforms.entry import Entry


class Seen:
    """What is kept of a signature; `used` since the caller's list of signatures was last put in
    order."""

    __slots__ = ("avals", "guards", "passes", "run", "structure", "used")

    def __init__(self, entry: Entry, guards: list[Any]) -> None:
        assert entry.plan is not None
        self.run = entry.plan.run
        self.passes = entry.plan.passes
        self.avals = entry.ir.out_avals
        self.structure = entry.structure
        self.guards = guards
        self.used = False


class SeenCalls:
    """The signatures of one compiled function that may go the short way, by what tells them
    apart: the arguments' structure, and their avals."""

    __slots__ = ("_guards", "_seen")

    def __init__(self, guards: Sequence[Callable[[], Any]]) -> None:
        self._guards = guards
        self._seen: dict[Any, tuple[Any, Seen]] = {}

    def add(self, key: Any, args: Any, entry: Entry) -> None:
        """Let calls like this one go the short way, if they may; `key` is the signature's."""
        if not (entry.captures or entry.ir.effect or entry.traces):
            short, nodes = _take_apart(args)
            if nodes is not None:
                found = Seen(entry, [guard() for guard in self._guards])
                self._seen[(short, *[n.aval for n in nodes])] = (key, found)

    def used(self) -> list[Any]:
        """The signatures of the calls that went the short way since this was last asked."""
        keys = [key for key, seen in self._seen.values() if seen.used]
        for _, seen in self._seen.values():
            seen.used = False
        return keys

    def clear(self) -> None:
        self._seen.clear()

    def __call__(self, args: Any) -> Any:
        """The call's result; None, which stands in no tree's place, when it must go the long
        way."""
        short, nodes = _take_apart(args)
        if nodes is None:
            return None
        found = self._seen.get((short, *[n.aval for n in nodes]))
        if found is None:
            return None
        seen = found[1]
        if seen.passes is not config.passes or config.disable_compile or config.debug_nans:
            return None
        values = []
        for n in nodes:
            if n.value is None or n.marks is not None:
                return None
            values.append(n.value)
        if seen.guards != [guard() for guard in self._guards]:
            return None
        seen.used = True
        try:
            results = seen.run(*values)
        except Exception as error:
            note_source(error)
            raise
        arrays = [Array(constant(v, a)) for v, a in zip(results, seen.avals, strict=True)]
        return (seen.structure.unflatten(arrays),)


def _take_apart(args: Any) -> tuple[Any, Any]:
    """The structure of the arguments (a number stands for so many arrays), and their nodes; None
    for these where a leaf is no Array."""
    for a in args:
        if type(a) is not Array:
            leaves, short = tree.flatten(args)
            for leaf in leaves:
                if type(leaf) is not Array:
                    return None, None
            return short, [leaf._node for leaf in leaves]
    return len(args), [a._node for a in args]
