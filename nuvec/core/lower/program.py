"""A plan: the NumPy program of an IR, and what is known of it before it runs."""

from __future__ import annotations

import linecache
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from nuvec.core.check import check_ir
from nuvec.core.config import config
from nuvec.core.interpreter import interpret
from nuvec.core.ir import IR, Eqn, Var
from nuvec.core.lower.emit import Emitted, emit, emit_tile, own
from nuvec.core.lower.inline import inline
from nuvec.core.lower.placement import Memory, Placement
from nuvec.core.lower.plan import place
from nuvec.core.lower.schedule import Group, schedule
from nuvec.core.lower.simplify import simplify
from nuvec.core.lower.tiles import Body, TileLoop
from nuvec.core.lower.unroll import unroll
from nuvec.core.node import context
from nuvec.core.profiler import recorded, while_profiled


class Cost(NamedTuple):
    """An estimate of a run.

    flops -- one for each element an elementwise equation makes or a reduction reads, two for
             each product a contraction sums; transcendental functions count as one
    bytes -- what equations read and write, each by itself (views none): what would go through
             memory if nothing stayed in a cache
    """

    flops: int
    bytes: int


class Plan:
    """The NumPy program of an IR.

    run    -- `run(*arrays) -> list`: NumPy arrays or scalars, as many as the IR has inputs and
              of their shapes and dtypes (not checked); the outputs are new arrays (NumPy scalars
              where 0-d).  Bit for bit what `interpret` gives.  Any number of threads may call it.
              Floating-point warnings are off while it runs.  An error of an operation is raised
              as it is
    source -- the program's text
    ir     -- the simplified IR it computes, for C-contiguous inputs; others run a program that
              relies on less
    groups -- the IR's equations in the order they run
    memory -- predicted bytes: peak, arena, outputs
    runner -- `run`, or what does the same and records its steps, or looks for NaNs
    release -- let go of the buffers kept for the next run
    """

    __slots__ = (
        "__weakref__", "_again", "_emitted", "_given", "_recorded", "groups", "ir", "memory",
        "passes", "run", "source",
    )  # fmt: skip

    def __init__(
        self, given: IR, ir: IR, groups: tuple[Group, ...], placement: Placement,
        emit: Callable[..., Emitted],
    ) -> None:  # fmt: skip
        emitted = _kept(emit())
        self.passes = config.passes  # by which it was made
        self._given = given  # before it was simplified
        self.ir = ir
        self.groups = groups
        self.memory: Memory = _with_tiles(placement.memory, emitted.loops)
        self.source = emitted.source
        self.run: Callable[..., list[Any]] = emitted.function
        self._emitted = [emitted]
        self._again = emit
        self._recorded: Callable[..., list[Any]] | None = None

    def runner(self, name: str = "") -> Callable[..., list[Any]]:
        """What to run now: `run`, unless a profile is open in this thread; then a program that
        does the same and records its steps, made when it is first asked for.  With the `name` of
        a compiled function, each call is an event of its own.  While `config.debug_nans` is on,
        its equations one by one."""
        if config.debug_nans:
            return partial(run_without_nans, self._given)
        if not context.profiles:
            return self.run
        if self._recorded is None:
            with recorded("lower for profile", "lower"):
                emitted = _kept(self._again(record=True))
            self._emitted.append(emitted)
            self._recorded = emitted.function
        if not name:
            return self._recorded
        return while_profiled(self._recorded, f"compiled {name}", "program")

    def release(self) -> None:
        """Let go of the buffers kept for the next run: for programs that run seldom."""
        for emitted in self._emitted:
            emitted.release()

    def cost(self) -> Cost:
        """What a run costs, estimated from shapes."""
        flops = moved = 0
        for eqn in self.ir.eqns:
            flops += _flops(eqn)
            if eqn.primitive.kind != "view":
                moved += sum(a.aval.nbytes for a in (*eqn.inputs, *eqn.outputs))
        return Cost(flops, moved)

    def __repr__(self) -> str:
        return f"<Plan of {len(self.ir.eqns)} equations, {self.memory.peak} bytes>"


def run_without_nans(ir: IR, *values: Any) -> list[Any]:
    """What a plan's `run` gives, or NanError at the first equation that makes a NaN."""
    with np.errstate(all="ignore"):
        outs = interpret(ir, *values, nans=False)
    seen = [*values, *[value for _, value in ir.constants]]
    for k, value in enumerate(outs):
        outs[k] = own(value, seen)
        seen.append(outs[k])
    return outs


def _with_tiles(memory: Memory, loops: Sequence[TileLoop]) -> Memory:
    """What the tiles of the greediest loop work in, on every thread, counts as long as it runs."""
    return memory._replace(peak=memory.peak + max([loop.scratch for loop in loops], default=0))


def _flops(eqn: Eqn) -> int:
    kind = eqn.primitive.kind
    size = sum(v.aval.size for v in eqn.outputs)
    if kind in ("elementwise", "random"):
        return size
    if kind == "reduction":
        return sum(a.aval.size for a in eqn.inputs)
    if kind == "contraction" and len(eqn.inputs) == 2 and size:
        # m k * k n operands make m n results of k products each: k^2 = (m k)(k n) / (m n).  A
        # batch of b makes it b k^2, so the estimate is high by sqrt(b) where b is not named.
        x, y = (a.aval.size for a in eqn.inputs)
        batch = 1
        axes = eqn.params.get("batch")
        if isinstance(axes, tuple) and axes and isinstance(axes[0], tuple):
            for a in axes[0]:
                batch *= eqn.inputs[0].aval.shape[a]
        return round(2 * size * (x * y / (size * max(batch, 1))) ** 0.5)
    return 0


def lower(ir: IR, names: Sequence[str] = ()) -> Plan:
    """The plan of a closed IR, made once and kept with it.

    `names` are the inputs' names in the program's text, where the IR knows none.

    >>> import numpy as np
    >>> from nuvec.core.ir import Eqn, Literal, Var, aval
    >>> from nuvec.core.ops.arithmetic import add_p, multiply_p
    >>> a = aval((3,), np.dtype(np.float32))
    >>> x, y, z = Var(a), Var(a), Var(a)
    >>> half = Literal(np.float32(0.5))
    >>> ir = IR((x,), (), (Eqn(multiply_p, (x, half), (y,), {}),
    ...                    Eqn(add_p, (y, x), (z,), {})), (z,))
    >>> lower(ir, ["x"]).run(np.array([1, 2, 3], np.float32))
    [array([1.5, 3. , 4.5], dtype=float32)]
    """
    plan = ir.derived.get("plan")
    if plan is None or plan.passes is not config.passes:
        plan = ir.derived["plan"] = _make(ir, names)
    return plan


def _make(ir: IR, names: Sequence[str]) -> Plan:
    # Scalars have one layout.  The rest is taken to be C-contiguous, and looked at in each call.
    checked = tuple(bool(v.aval.shape) and bool(ir.eqns) for v in ir.inputs)
    general = _General(ir, names) if any(checked) else None
    with recorded("lower", "lower", equations=len(ir.eqns)):
        return _compile(ir, (True,) * len(ir.inputs), checked, general, names)


def _compile(
    ir: IR, contiguous: Sequence[bool], checked: Sequence[bool],
    general: Callable[..., Any] | None, names: Sequence[str],
) -> Plan:  # fmt: skip
    simple = _simplified(ir, contiguous)
    groups = _groups(simple, contiguous)
    placement = place(simple, groups, contiguous)
    again = partial(emit, simple, placement, checked, general, names, _compile_tile)
    return Plan(ir, simple, groups, placement, again)


def _kept(emitted: Emitted) -> Emitted:
    """A program whose text can be looked up for as long as it is."""
    weakref.finalize(emitted.function, linecache.cache.pop, emitted.filename, None)
    return emitted


def _simplified(ir: IR, contiguous: Sequence[bool]) -> IR:
    simple = inline(ir)
    if "simplify" in config.passes:
        simple = simplify(simple, contiguous)
    if "unroll" in config.passes:
        simple = unroll(simple, contiguous)
    if config.check_ir:
        check_ir(simple)
    return simple


def _groups(ir: IR, contiguous: Sequence[bool]) -> tuple[Group, ...]:
    if "fuse" not in config.passes:
        return schedule(ir)
    return schedule(ir, contiguous, "partial_sums" in config.passes)


def lower_into(ir: IR, into: Sequence[int], record: bool = False) -> Callable[..., list[Any]]:
    """The program of an IR that is one step of a loop: `run(*arrays, *destinations) -> list`.

    Every input is C-contiguous (or a scalar).  The outputs whose numbers are `into`, in order, go
    to the destinations, C-contiguous arrays that share memory with nothing else; the list has the
    others.  `record` as `emit` has it."""
    return _contiguous_program(ir, into=into, record=record)


def lower_donating(
    ir: IR, donated: Sequence[int], record: bool = False
) -> Callable[..., list[Any]]:
    """The program of an IR that may write over the inputs `donated` once it has used them.

    Every input is C-contiguous (or a scalar), and those donated share memory with nothing else."""
    return _contiguous_program(ir, donated=donated, record=record)


def _contiguous_program(
    ir: IR, into: Sequence[int] = (), donated: Sequence[int] = (), record: bool = False
) -> Callable[..., list[Any]]:
    contiguous = (True,) * len(ir.inputs)
    with recorded("lower", "lower", equations=len(ir.eqns)):
        simple = _simplified(ir, contiguous)
        placement = place(simple, _groups(simple, contiguous), contiguous, into, donated)
        unchecked = (False,) * len(contiguous)
        return _kept(emit(simple, placement, unchecked, None, (), _compile_tile, record)).function


def lower_exactly(ir: IR, contiguous: Sequence[bool], record: bool = False) -> Emitted:
    """The program of a lazy graph, in which nothing is added up in another order.  `contiguous`
    says which inputs are C-contiguous (or scalars)."""
    simple = _simplified(ir, contiguous)
    placement = place(simple, schedule(simple, contiguous, False), contiguous)
    unchecked = (False,) * len(contiguous)
    return _kept(emit(simple, placement, unchecked, None, (), _compile_tile, record, spare=0))


def _compile_tile(ir: IR, into: Sequence[int], over: Mapping[int, int]) -> Body:
    """The program of one tile of a group, whose own equations run whole."""
    contiguous = (True,) * len(ir.inputs)
    simple = _simplified(ir, contiguous)
    placement = place(simple, schedule(simple), contiguous, into, (), over)
    emitted = _kept(emit_tile(simple, placement))
    return Body(emitted, placement.memory.peak)


class _General:
    """The programs for inputs that are not all C-contiguous, made when such a call comes.

    They know nothing of these inputs' layouts, so they leave to NumPy what depends on them.  An
    array that repeats its elements (nv.ones, a broadcast) is copied first, for what computes
    elementwise: the results are the same, and the copy can be cut into tiles."""

    def __init__(self, ir: IR, names: Sequence[str]) -> None:
        self.ir = ir
        self.names = names
        self.plans: dict[tuple[tuple[bool, bool], ...], Plan] = {}

    def __call__(self, *values: Any) -> list[Any]:
        kinds = tuple(map(_kind, values))
        plan = self.plans.get(kinds)
        if plan is None or plan.passes is not config.passes:
            if len(self.plans) >= KINDS:  # layouts of all sorts: no more is known of any
                kinds = ((False, False),) * len(kinds)
            plan = self.plans[kinds] = self.make(kinds)
        copies = [
            np.ascontiguousarray(x)
            for x, (_, repeats) in zip(values, kinds, strict=True) if repeats
        ]  # fmt: skip
        return plan.runner()(*values, *copies)

    def make(self, kinds: Sequence[tuple[bool, bool]]) -> Plan:
        ir = inline(self.ir)
        known = [c or not v.aval.shape for v, (c, _) in zip(ir.inputs, kinds, strict=True)]
        copies = {
            v: Var(v.aval, v.hint) for v, (_, repeats) in zip(ir.inputs, kinds, strict=True)
            if repeats
        }  # fmt: skip
        eqns = tuple([_with_copies(e, copies) for e in ir.eqns])
        ir = IR((*ir.inputs, *copies.values()), ir.constants, eqns, ir.outputs)
        flags = (*known, *(True,) * len(copies))
        return _compile(ir, flags, (False,) * len(flags), None, self.names)


KINDS = 8  # combinations of layouts that one program is made for


def _kind(value: Any) -> tuple[bool, bool]:
    """Whether an input is C-contiguous, and whether it repeats its elements."""
    if not isinstance(value, np.ndarray) or value.flags.c_contiguous:
        return True, False
    return False, 0 in value.strides and value.size > 0


def _with_copies(eqn: Eqn, copies: Mapping[Var, Var]) -> Eqn:
    primitive = eqn.primitive
    if primitive.kind != "elementwise" or not isinstance(primitive.lower, np.ufunc):
        return eqn
    inputs = tuple([copies.get(a, a) if type(a) is Var else a for a in eqn.inputs])
    return Eqn(primitive, inputs, eqn.outputs, eqn.params, eqn.source)
