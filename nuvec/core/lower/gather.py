"""A program's equations gathered into groups, in an order that can run.

Each equation joins a group it shares values with, unless one of its operands needs that group's
results in another way: what must come before what is kept, transitively, as a set of bits for
every group and every equation that stays alone.  Then they run in program order, as far as what
they need is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nuvec.core.ir import IR, Atom, Eqn, Var
from nuvec.core.lower import fuse
from nuvec.core.lower.fuse import Fusion
from nuvec.core.lower.layout import Layout, layouts_of
from nuvec.core.lower.overlap import LEAST, message_bytes
from nuvec.core.tiling import Rows

SEEN = 8  # groups looked at for an equation to join

Item = Fusion | Eqn
Between = tuple[int, int]  # the communications before and after an equation


def gather(ir: IR, contiguous: Sequence[bool], partial: bool) -> list[Item]:
    """The program as groups and single equations, in an order that can run.  `partial` lets sums
    over a group's rows join it, which adds up in another order."""
    gathered = _Gathered(layouts_of(ir, contiguous), partial)
    for eqn, between in zip(ir.eqns, _communications_around(ir), strict=True):
        gathered.add(eqn, between)
    found: list[Item] = []
    for item in gathered.ordered():
        if isinstance(item, Fusion) and not item.worth():
            found.extend(item.eqns)
        else:
            found.append(item)
    return found


class _Gathered:
    """before -- for each item, the bits of those that must run before it
    groups -- the numbers of those that are groups"""

    def __init__(self, layout: Callable[[Atom], Layout], partial: bool) -> None:
        self.layout, self.partial = layout, partial
        self.items: list[Item] = []
        self.before: list[int] = []
        self.groups: list[int] = []
        self.place: dict[Var, int] = {}
        self.effect: int | None = None  # the last communication, after which the next one runs
        self.between: dict[int, Between] = {}  # of the groups

    def add(self, eqn: Eqn, between: Between) -> None:
        makers = {self.place[a] for a in eqn.inputs if type(a) is Var and a in self.place}
        if eqn.effect and self.effect is not None:
            makers.add(self.effect)
        where = self.join(eqn, makers, between) if _may_join(eqn) else None
        if where is None:
            where = len(self.items)
            group = self.start(eqn) if _may_join(eqn) else None
            if group is not None:
                self.groups.append(where)
                self.between[where] = between
            self.items.append(group or eqn)
            self.before.append(self.needed(makers))
        if eqn.effect:
            self.effect = where
        self.place.update(dict.fromkeys(eqn.outputs, where))

    def needed(self, makers: set[int]) -> int:
        bits = 0
        for k in makers:
            bits |= self.before[k] | 1 << k
        return bits

    def join(self, eqn: Eqn, makers: set[int], between: Between) -> int | None:
        """The number of the group that took the equation: of the last ones, that which has most
        of its operands in the cache; the latest of equals.  What a communication waits for, or
        what waits for it, is not made together with what can be computed while it is under way."""
        large = _largest(eqn).aval.nbytes >= fuse.LEAST
        candidates: list[tuple[int, int, int, Fusion]] = []
        for k in reversed(self.groups[-SEEN:]):
            group = self.items[k]
            assert isinstance(group, Fusion)
            shared = group.shared(eqn)
            # What is small, and has nothing to do with a group, only makes its tiles slower.
            if self.between[k] != between or not (shared or large):
                continue
            if not any(self.before[m] >> k & 1 for m in makers):
                candidates.append((-shared, len(candidates), k, group))
        for _, _, k, group in sorted(candidates):
            if group.add(eqn, self.layout):
                bits = self.needed(makers - {k}) & ~self.before[k]
                if bits:
                    self.before[k] |= bits
                    for j, before in enumerate(self.before):
                        if before >> k & 1:
                            self.before[j] |= bits
                return k
        return None

    def start(self, eqn: Eqn) -> Fusion | None:
        """A group that begins with this equation; None where it cannot be one's first."""
        largest = _largest(eqn).aval
        if eqn.primitive.kind == "view" or largest.nbytes < fuse.LEAST:
            return None
        group = Fusion(largest.shape, Rows(largest.shape), self.partial)
        return group if group.add(eqn, self.layout) else None

    def ordered(self) -> list[Item]:
        """The items in program order, each as soon as all that it needs is before it."""
        done, order = 0, []
        waiting: list[int] = []
        for new in range(len(self.items)):
            waiting.append(new)
            ready = True
            while ready:
                ready = False
                for k in waiting:
                    if not self.before[k] & ~done:
                        waiting.remove(k)
                        order.append(self.items[k])
                        done |= 1 << k
                        ready = True
                        break
        assert not waiting
        return order


def _communications_around(ir: IR) -> list[Between]:
    """For each equation, the last large communication it needs results of, and the first that
    needs its results: their numbers, -1 and the number of equations where there is none."""
    count = len(ir.eqns)
    before: dict[Atom, int] = {}
    last = []
    for number, eqn in enumerate(ir.eqns):
        last.append(max([before.get(a, -1) for a in eqn.inputs], default=-1))
        large = eqn.effect and message_bytes(eqn) >= LEAST
        before.update(dict.fromkeys(eqn.outputs, number if large else last[-1]))
    after: dict[Atom, int] = {}
    first = []
    for number in range(count - 1, -1, -1):
        eqn = ir.eqns[number]
        large = eqn.effect and message_bytes(eqn) >= LEAST
        first.append(min([after.get(v, count) for v in eqn.outputs], default=count))
        for a in eqn.inputs:
            after[a] = min(after.get(a, count), number if large else first[-1])
    return list(zip(last, first[::-1], strict=True))


def _may_join(eqn: Eqn) -> bool:
    return (
        len(eqn.outputs) == 1
        and not eqn.effect
        and (eqn.primitive.kind == "elementwise" or eqn.primitive.tile is not None)
    )


def _largest(eqn: Eqn) -> Atom:
    return max((*eqn.inputs, *eqn.outputs), key=lambda a: a.aval.nbytes)
