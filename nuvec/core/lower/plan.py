"""Where every value lives: liveness, reuse in place, the arena, and the peak of memory.

A storage is memory that one or more variables share: what an equation computed, the views of it,
and what was later computed in place into it.  A storage is, in the end,

    arena     -- a slot of the plan's arena, which runs reuse: temporaries that NumPy can write
                 into (`out=`) and that surely nobody else sees
    allocated -- memory the run allocates: outputs, and results of lowerings without `out=`
    foreign   -- an input or a constant: never written

A lowering may return its operand or a view of it, unless it is a ufunc or was given `out=`; then
the result shares its operands' storages, and none of them is written while it lives.  A lowering
does not keep its operands after it returns, communications excepted: what they were given is
theirs, and is never written again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nuvec.core.config import config
from nuvec.core.ir import IR, Atom, Aval, Eqn, Var
from nuvec.core.lower.arena import SPARE
from nuvec.core.lower.inplace import keeps_bits_in_place
from nuvec.core.lower.layout import ALIASES, Layout, layout_of, result_layout
from nuvec.core.lower.placement import (
    Buffer,
    Given,
    Handover,
    Into,
    Memory,
    Placement,
    Step,
    Target,
)
from nuvec.core.lower.schedule import Group
from nuvec.core.primitive import Primitive

# The results of these are new memory; a test holds the table of cases against it.
FRESH_KINDS = frozenset(("reduction", "contraction", "random"))
FRESH = frozenset((
    "add_along", "complex", "convert_dtype", "erf", "imag", "masked_product", "pad", "power",
    "real", "scatter_add", "scatter_max", "scatter_min", "scatter_multiply", "scatter_set",
    "sigmoid", "take_along", "update_slice", "where", "window_deal", "window_pick",
    "window_spread",
))  # fmt: skip
FOREVER = 1 << 60
CLUMP = 8  # storages a value may share before they are no longer told apart


@dataclass(eq=False)
class _Storage:
    foreign: bool = False
    owned: bool = False  # surely new memory that only the variables listed here see
    kept: bool = False  # a communication has it
    output: bool = False
    aval: Aval | None = None
    out: bool = False  # its first write takes out=
    first: int = -1
    death: int = -1  # the last step that uses it; FOREVER for outputs
    variables: list[Var] = field(default_factory=list)
    buffer: int | None = None
    written: list[Var] = field(default_factory=list)  # those that are all of it, in order
    into: int | None = None  # the output whose array, the caller's, it is


def place(
    ir: IR,
    groups: Sequence[Group],
    contiguous: Sequence[bool],
    into: Sequence[int] = (),
    donated: Sequence[int] = (),
    over: Mapping[int, int] | None = None,
) -> Placement:
    """Decide where every value of the scheduled IR lives.  The outputs `into` go to C-contiguous
    arrays that the caller gives, which share memory with nothing else but what `over` says:
    output -> the input that is the same array.  The inputs `donated` may be overwritten once they
    are dead, and become outputs."""
    return _Placer(ir, groups, contiguous, into, donated, over or {}).run()


class _Placer:
    def __init__(
        self,
        ir: IR,
        groups: Sequence[Group],
        contiguous: Sequence[bool],
        into: Sequence[int],
        donated: Sequence[int],
        over: Mapping[int, int],
    ) -> None:
        self.into = into
        self.over = over
        self.ir = ir
        self.groups = groups
        self.layouts: dict[Var, Layout] = {}
        self.roots: dict[Var, frozenset[_Storage]] = {}
        self.targets: list[Var | _Storage | list[Var | _Storage | None] | None] = []
        self.storages: list[_Storage] = []
        for v, known in zip(ir.inputs, contiguous, strict=True):
            self.foreign(v, Layout.CONTIGUOUS if known else Layout.UNKNOWN)
        for v, value in ir.constants:
            self.foreign(v, layout_of(value))
        self.made: dict[Var, int] = {}  # the step of what equations by themselves make
        self.last: dict[Var, int] = {}
        for i, group in enumerate(groups):
            for v in group.inputs:
                self.last[v] = i
            for v in group.outputs:
                self.last.setdefault(v, i)
        for a in ir.outputs:
            if type(a) is Var:
                self.last[a] = FOREVER
        for n in (*donated, *over.values()):
            v = ir.inputs[n]
            death = self.last.setdefault(v, -1)
            given = _Storage(owned=True, aval=v.aval, death=death, variables=[v], written=[v])
            self.roots[v] = frozenset((given,))

    def foreign(self, var: Var, layout: Layout) -> None:
        self.roots[var] = frozenset((_Storage(foreign=True),))
        self.layouts[var] = layout

    def layout(self, atom: Atom) -> Layout:
        return self.layouts[atom] if type(atom) is Var else Layout.CONTIGUOUS

    def run(self) -> Placement:
        for i, group in enumerate(self.groups):
            if group.rows is None:
                self.visit(i, group.eqns[0])
            else:
                self.visit_tiles(i, group)
        for a in self.ir.outputs:
            if type(a) is Var:
                for s in self.roots[a]:
                    s.output = True
        into = tuple([self.given(k) for k in self.into])
        buffers, slots = self.fill_arena()
        steps = self.steps()
        outputs = self.handovers()
        memory = self.memory(slots, outputs)
        return Placement(steps, buffers, slots, outputs, memory, into, self.layouts)

    def given(self, k: int) -> Given:
        a = self.ir.outputs[k]
        direct = self.goes_into(k)
        overwritten: set[_Storage] = set()
        for j in self.over.values():
            overwritten |= self.roots[self.ir.inputs[j]]
        exposed = not direct and type(a) is Var and not overwritten.isdisjoint(self.roots[a])
        return Given(k, direct, exposed)

    def goes_into(self, k: int) -> bool:
        """Let the caller's array for output k be the storage of its value, where that is one."""
        a = self.ir.outputs[k]
        if type(a) is not Var or len(self.roots[a]) != 1:
            return False
        (s,) = self.roots[a]
        whole = bool(s.written) and s.written[-1] is a
        if k in self.over:
            (given,) = self.roots[self.ir.inputs[self.over[k]]]
            if s is given:
                return whole  # it was computed there
            if given.death >= s.first:  # the input is read, or its memory used, for a while
                s = self.cut_off(s, given.death)
                if given.death >= s.first:
                    return False
        if not whole or not s.out or s.kept or s.into is not None or s.aval is None:
            return False
        if s.aval.shape != a.aval.shape or s.aval.dtype != a.aval.dtype:
            return False
        s.into = k
        return True

    def cut_off(self, s: _Storage, step: int) -> _Storage:
        """What is written to a storage after a step, in a storage of its own; the storage itself,
        where nothing is."""
        later = [v for v in s.written if self.made.get(v, -1) > step]
        if not later or later == s.written or not s.out:
            return s
        first = later[0]
        at, start = self.made[first], s.variables.index(first)
        rest = _Storage(first=at, death=s.death, owned=True, out=True, aval=s.aval, written=later)
        rest.variables = s.variables[start:]
        for v in rest.variables:
            self.roots[v] = self.roots[v] - {s} | {rest}
        self.targets[at] = rest
        del s.variables[start:]
        s.written, s.death = s.written[: -len(later)], at
        s.output, rest.output = False, True
        self.storages.append(rest)
        self.storages.sort(key=lambda s: s.first)
        return rest

    # Storages

    def visit(self, i: int, eqn: Eqn) -> None:
        self.made.update(dict.fromkeys(eqn.outputs, i))
        for k, v in enumerate(eqn.outputs):
            self.layouts[v] = result_layout(eqn, self.layout, k)
        operands = [a for a in eqn.inputs if type(a) is Var]
        shared: frozenset[_Storage] = frozenset().union(*[self.roots[v] for v in operands])
        if eqn.effect:
            for s in shared:
                s.kept = True
        primitive = eqn.primitive
        if len(shared) > CLUMP and not (surely_fresh(primitive) or primitive.out):
            for s in shared:
                s.kept = True
            shared = frozenset((_Storage(foreign=True),))
        if (primitive.kind == "view" and not primitive.out) or primitive in ALIASES:
            if primitive in ALIASES:
                first = eqn.inputs[0]
                shared = self.roots[first] if type(first) is Var else frozenset()
            self.targets.append(None)
            for v in eqn.outputs:
                self.add(v, shared or frozenset((_Storage(foreign=True),)))  # a literal's view
            return
        target = self.in_place(i, eqn)
        if target is not None:
            self.targets.append(target)
            self.add(eqn.outputs[0], self.roots[target])
            (storage,) = self.roots[target]
            storage.written.append(eqn.outputs[0])
            return
        storage = _Storage(first=i, death=i)
        self.storages.append(storage)
        self.targets.append(storage)
        if primitive.multiple or eqn.effect:
            for v in eqn.outputs:
                self.add(v, shared | {storage})
            return
        out = eqn.outputs[0]
        storage.aval = out.aval
        known = self.layouts[out] is Layout.CONTIGUOUS
        storage.out = known and takes_out(primitive, out.aval)
        storage.owned = storage.out or surely_fresh(primitive)
        storage.written.append(out)
        self.add(out, frozenset((storage,)) if storage.owned else shared | {storage})

    def visit_tiles(self, i: int, group: Group) -> None:
        """The outputs of a group that runs in tiles are new, or over its dead operands."""
        self.layouts.update(dict.fromkeys(group.outputs, Layout.CONTIGUOUS))
        targets: dict[Var, Var | _Storage | None] = {}
        taken: set[Var] = set()
        made = {v: k for k, e in enumerate(group.eqns) for v in e.outputs}
        read = {a: k for k, e in enumerate(group.eqns) for a in e.inputs if type(a) is Var}
        # Best where it is the memory of what it is computed from.
        for v in sorted(group.outputs, key=made.__getitem__, reverse=True):
            if v in group.partial:  # the sum of the tiles' sums is made at the end
                self.new(i, v, out=False)
                targets[v] = None
                continue
            free = [a for a in group.cut if a not in taken and read[a] <= made[v]]
            free.sort(key=read.__getitem__, reverse=True)
            old = next((a for a in free if self.replaceable(i, a, v, group)), None)
            if old is None:
                targets[v] = self.new(i, v, out=True)
            else:
                taken.add(old)
                targets[v] = old
                self.add(v, self.roots[old])
                (storage,) = self.roots[old]
                storage.written.append(v)
        self.targets.append([targets[v] for v in group.outputs])

    def new(self, i: int, v: Var, out: bool) -> _Storage:
        storage = _Storage(first=i, death=i, owned=True, out=out, aval=v.aval, written=[v])
        self.storages.append(storage)
        self.add(v, frozenset((storage,)))
        return storage

    def replaceable(self, i: int, a: Var, out: Var, group: Group) -> bool:
        if "in_place" not in config.passes or not self.dies(i, a, out):
            return False
        (storage,) = self.roots[a]
        return all(storage not in self.roots[b] for b in group.inputs if b is not a)

    def dies(self, i: int, a: Var, out: Var) -> bool:
        """Whether operand `a` of step i is dead after it, and its memory fit to be `out`'s."""
        if a.aval.shape != out.aval.shape or a.aval.dtype != out.aval.dtype:
            return False
        if self.layouts[a] is not Layout.CONTIGUOUS:
            return False
        (storage, *more) = self.roots[a]
        if more or not storage.owned or storage.kept or storage.aval is None:
            return False
        if storage.aval.shape != out.aval.shape or storage.aval.dtype != out.aval.dtype:
            return False
        return storage.death <= i

    def add(self, var: Var, roots: frozenset[_Storage]) -> None:
        self.roots[var] = roots
        for s in roots:
            s.variables.append(var)
            s.death = max(s.death, self.last[var])

    def in_place(self, i: int, eqn: Eqn) -> Var | None:
        """The dead operand whose memory the result can be written to, bits and layout kept."""
        out = eqn.outputs[0] if len(eqn.outputs) == 1 else None
        primitive = eqn.primitive
        if "in_place" not in config.passes:
            return None
        if out is None or not takes_out(primitive, out.aval):
            return None
        if self.layouts[out] is not Layout.CONTIGUOUS:
            return None
        changes = primitive.updates
        if changes is None and primitive.kind != "elementwise":
            return None
        for k, a in enumerate(eqn.inputs):
            if changes not in (None, k):
                continue  # only the operand that it is a changed copy of
            if type(a) is not Var or not self.dies(i, a, out):
                continue
            (storage,) = self.roots[a]
            if changes is None:  # it may read what it writes, element by element
                others = [b for b in eqn.inputs if b is not a and type(b) is Var]
            else:
                others = [b for j, b in enumerate(eqn.inputs) if j != k and type(b) is Var]
            if any(storage in self.roots[b] for b in others):
                continue
            if changes is not None or keeps_bits_in_place(eqn, k):
                return a
        return None

    # The arena

    def fill_arena(self) -> tuple[tuple[Buffer, ...], tuple[int, ...]]:
        """Give every storage that no one outside sees a slot, reusing those of the dead."""
        slots: list[int] = []
        free: dict[int, list[int]] = {}
        buffers: dict[Buffer, int] = {}
        ends: dict[int, list[int]] = {}
        for s in self.storages:  # in order of their first step
            for step in sorted(k for k in ends if k < s.first):
                for slot in ends.pop(step):
                    free.setdefault(slots[slot], []).append(slot)
            if not s.out or s.output or s.kept or "arena" not in config.passes:
                continue
            assert s.aval is not None
            same = free.get(s.aval.nbytes)
            if same:
                slot = same.pop()
            else:
                slot = len(slots)
                slots.append(s.aval.nbytes)
            ends.setdefault(s.death, []).append(slot)
            buffer = Buffer(slot, s.aval.shape, s.aval.dtype)
            s.buffer = buffers.setdefault(buffer, len(buffers))
        return tuple(buffers), tuple(slots)

    # What the emitter writes

    def steps(self) -> tuple[Step, ...]:
        dying: dict[int, list[Var]] = {}
        for s in self.storages:
            if s.buffer is None and s.death < FOREVER:
                dying.setdefault(s.death, []).extend(s.variables)
        steps = []
        gone: set[Var] = set()
        for i, (group, target) in enumerate(zip(self.groups, self.targets, strict=True)):
            # A variable that shares several storages goes with the first.
            dead = tuple(v for v in dict.fromkeys(dying.get(i, ())) if v not in gone)
            gone.update(dead)
            if isinstance(target, list):
                steps.append(Step(group, [_tile_target(t) for t in target], dead))
            else:
                steps.append(Step(group, _target(group.eqns[0], target), dead))
        return tuple(steps)

    def handovers(self) -> tuple[Handover, ...]:
        found: list[Handover] = []
        earlier: dict[_Storage, list[Var]] = {}
        for k, a in enumerate(self.ir.outputs):
            if type(a) is not Var or k in self.into:
                found.append(Handover(a, False, (), "C"))
                continue
            roots = self.roots[a]
            order = "C" if self.layouts[a] >= Layout.ORDERED else "K"
            sure = len(roots) == 1  # it is, or is a view of, this one
            outside = [s for s in roots if s.foreign or s.kept or s in earlier]
            others = tuple(dict.fromkeys(
                v for s in outside for v in (earlier.get(s) or self.holders(s))
            ))  # fmt: skip
            copy = bool(outside) and sure
            if not copy and sure:
                (s,) = roots
                # a small view would keep a large array alive
                copy = s.aval is not None and s.aval.nbytes > 2 * a.aval.nbytes + 1024
            found.append(Handover(a, copy, () if copy else others, order))
            if not copy:
                for s in roots:
                    earlier.setdefault(s, []).append(a)
        return tuple(found)

    def holders(self, storage: _Storage) -> list[Var]:
        """The variables that show what memory a foreign or kept storage is."""
        if storage.foreign:
            return [v for v, roots in self.roots.items() if roots == {storage}][:1]
        return storage.variables[:1]

    def held(self, s: _Storage) -> int:
        """The bytes of a storage that is no part of the arena."""
        if s.aval is not None:
            return s.aval.nbytes
        group = self.groups[s.first]
        rule = group.eqns[0].primitive.memory
        if rule is not None:
            return rule(group.eqns[0])[0]
        return sum(v.aval.nbytes for v in group.outputs)

    def memory(self, slots: Sequence[int], outputs: Sequence[Handover]) -> Memory:
        arena = sum(slots)
        change: dict[int, int] = {}
        for i, group in enumerate(self.groups):
            rule = group.eqns[0].primitive.memory
            if rule is not None and group.rows is None:
                _, passing = rule(group.eqns[0])
                change[i] = change.get(i, 0) + passing
                change[i + 1] = change.get(i + 1, 0) - passing
        for s in self.storages:
            if s.buffer is None and s.into is None:
                size = self.held(s)
                change[s.first] = change.get(s.first, 0) + size
                change[s.death + 1] = change.get(s.death + 1, 0) - size
        held = peak = 0
        for step in sorted(change):
            held += change[step]
            peak = max(peak, held)
            if step >= FOREVER:
                break
        copies = sum(h.atom.aval.nbytes for h in outputs if h.copy)
        kept = sum(
            s.aval.nbytes for s in self.storages
            if s.aval is not None and s.buffer is None and s.into is None and s.death == FOREVER
        )  # fmt: skip
        total = sum(h.atom.aval.nbytes for h in outputs)
        return Memory(arena + max(peak, kept + copies), arena, total)


def takes_out(primitive: Primitive, out: Aval) -> bool:
    """Whether an equation can write into a given array (NumPy gives scalars for 0-d results)."""
    return primitive.out and not primitive.multiple and bool(out.shape)


def surely_fresh(primitive: Primitive) -> bool:
    return (
        isinstance(primitive.lower, np.ufunc)
        or primitive.kind in FRESH_KINDS
        or primitive.name in FRESH
    )


def _tile_target(target: Var | _Storage | None) -> Target:
    if target is None or isinstance(target, Var):
        return target
    if target.into is not None:
        return Into(target.into)
    return "empty" if target.buffer is None else target.buffer


def _target(eqn: Eqn, target: Var | _Storage | None) -> Target:
    if target is None or isinstance(target, Var):
        return target
    if target.into is not None or target.buffer is not None:
        return _tile_target(target)
    lower = eqn.primitive.lower
    # Without out= this lowering might hand back its operand; and large memory is better aligned.
    large = target.aval is not None and target.aval.nbytes >= SPARE
    return "empty" if target.out and (large or not isinstance(lower, np.ufunc)) else None
