"""Placement -> Python source over NumPy, compiled once.

The text is what runs: one line an equation, `out=` where the plan reuses memory, `del` where it
lets go of some.  Tracebacks show its lines.
"""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.blas import ALONE, dot
from nuvec.core.config import config
from nuvec.core.interpreter import lower_checked
from nuvec.core.ir import IR, Atom, Eqn, Var
from nuvec.core.lower.arena import SPARE, SPARES, Arenas, Scratch, Spares
from nuvec.core.lower.errstate import ERRORS, IGNORED, state_for
from nuvec.core.lower.layout import Layout
from nuvec.core.lower.overlap import Started, under_way
from nuvec.core.lower.placement import Handover, Into, Placement, Step
from nuvec.core.lower.text import (
    Names,
    assigned,
    comment,
    describe,
    dtype_text,
    folded,
    is_plain_value,
    number_text,
    plain,
)
from nuvec.core.lower.tiles import Compile, TileLoop
from nuvec.core.ops.build import convert_dtype
from nuvec.core.ops.contraction import dot_general_p
from nuvec.core.ops.power import integer_power_p
from nuvec.core.ops.shape import reshape_p, sum_p, transpose_p
from nuvec.core.ops.summation import is_plain
from nuvec.core.primitive import IDENTITY
from nuvec.core.profiler import Note, Steps, note_of_eqn, note_of_tiles
from nuvec.core.traceback import PROGRAM

_FAST = frozenset((dtypes.float32, dtypes.float64))
DELETED = 1024  # bytes from which a dead value's name is deleted; less is not worth a line
_numbers = itertools.count(1)


class Emitted:
    """A compiled program: `function(*arrays)`, its text, the name of the file it claims, the memory
    that its runs reuse, the loops over tiles in it."""

    __slots__ = ("filename", "function", "loops", "memory", "source")

    def __init__(
        self,
        function: Callable[..., list[Any]],
        source: str,
        filename: str,
        memory: Sequence[Arenas | Scratch | Spares],
        loops: Sequence[TileLoop],
    ) -> None:
        self.memory = memory
        self.loops = loops
        self.function = function
        self.source = source
        self.filename = filename

    def release(self) -> None:
        """Let go of what is kept for later runs."""
        for memory in self.memory:
            memory.clear()


def emit(
    ir: IR, placement: Placement, checked: Sequence[bool], general: Callable[..., Any] | None,
    names: Sequence[str] = (), compile_tile: Compile | None = None, record: bool = False,
    spare: int = SPARES,
) -> Emitted:  # fmt: skip
    """The program of a placement.  Inputs that are `checked` must be C-contiguous; when one is
    not, the call goes to `general`.  `compile_tile` makes the programs of tiles.

    record -- whether the program tells the open profiles how long each of its steps took
    spare -- bytes of outputs whose memory is kept for later runs"""
    emitter = _Emitter(ir, placement, names, compile_tile)
    emitter.spare = spare
    if record:
        emitter.steps = Steps()
    return emitter.run(checked, general)


def emit_tile(ir: IR, placement: Placement) -> Emitted:
    """The program of a tile, which works in the scratch that all tiles share."""
    emitter = _Emitter(ir, placement, (), None)
    emitter.arenas = Scratch
    emitter.state = state_for(ir)
    return emitter.run((False,) * len(ir.inputs), None)


def own(value: Any, others: Sequence[Any]) -> Any:
    """An output that may be, or be a view of, what is not the caller's: copied when it is."""
    for other in others:
        if value is other or np.may_share_memory(value, other):
            return value.copy("K")
    return value


class _Emitter:
    def __init__(
        self, ir: IR, placement: Placement, names: Sequence[str], compile_tile: Compile | None
    ) -> None:
        self.compile_tile = compile_tile
        self.arenas: type[Arenas | Scratch] = Arenas
        self.state = IGNORED
        self.loops: list[TileLoop] = []
        self.spares: list[Spares] = []
        self.spare = 0  # bytes of outputs whose memory may still be kept for later runs
        self.started = ""  # the run's communications under way
        self.pending: dict[Eqn, str] = {}
        self.steps: Steps | None = None  # of a program that records itself
        self.tick = ""
        self.ir = ir
        self.placement = placement
        self.names = Names()
        self.namespace: dict[str, Any] = {"np": np}
        self.header: list[str] = []  # what the namespace holds, as far as it can be written
        self.lines: list[str] = []
        self.bound: dict[Any, str] = {}
        self.variables: dict[Var, str] = {}
        self.foreign: dict[Any, Callable[..., Any]] = {}
        self.count = 0
        self.assigned = assigned(ir)
        for k, v in enumerate(ir.inputs):
            wish = v.hint or (names[k] if k < len(names) else "")
            self.variables[v] = self.names.new(wish) if wish else self.fresh()
        for v, value in ir.constants:
            name = self.names.new(v.hint) if v.hint else self.names.numbered("c", len(self.bound))
            self.bind_name(name, value, f"# {name}: a constant {v.aval}")
            self.variables[v] = name
        self.into = {k: self.names.numbered("into", k) for k, *_ in placement.into}
        self.buffers = [self.names.numbered("t", k) for k in range(len(placement.buffers))]

    def name_of(self, v: Var) -> str:
        """A new name for a result: the user's, where known."""
        wish = v.hint or self.assigned.get(v, "")
        return self.names.new(wish) if wish else self.fresh()

    def fresh(self) -> str:
        name = self.names.numbered("v", self.count)
        self.count += 1
        return name

    # The program

    def run(self, checked: Sequence[bool], general: Callable[..., Any] | None) -> Emitted:
        arguments = [self.variables[v] for v in self.ir.inputs]
        for v, name in zip(self.ir.inputs, arguments, strict=True):
            self.lines.append(f"# {name}: {v.aval}")
        arguments += self.into.values()
        if general is not None and any(checked):
            conditions = [
                f"{a}.flags.c_contiguous" for a, c in zip(arguments, checked, strict=True) if c
            ]
            test = (
                f"not {conditions[0]}"
                if len(conditions) == 1
                else (f"not ({' and '.join(conditions)})")
            )
            other = self.bind("general", general, "")
            self.lines.append(f"if {test}:")
            self.lines.append(f"    return {other}({', '.join(arguments)})")
        if self.placement.steps:
            self.body()
        else:
            self.copy_out()
            self.lines.append(f"return {self.outputs()}")
        lines = [f"def program({', '.join(arguments)}):", *[f"    {line}" for line in self.lines]]
        body = "\n".join([part for line in lines for part in folded(line)])
        head = "\n".join(self.header)
        head = f"{head}\n\n" if head else ""
        source = f"{head}{body}\n"
        filename = f"{PROGRAM}{next(_numbers)}>"
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        # The header is for reading: what it says is in the namespace already.
        code = compile("\n" * head.count("\n") + source[len(head) :], filename, "exec")
        exec(code, self.namespace)
        function, arenas = self.namespace["program"], self.namespace.get("arenas")
        memory = [*self.spares, *([arenas] if arenas is not None else [])]
        return Emitted(function, source, filename, memory, self.loops)

    def body(self) -> None:
        errors = self.bind("errors", ERRORS, "")
        ignored = self.bind("ignored", self.state, "")
        before = self.names.new("before")
        arena = ""
        if self.placement.buffers:
            arena = self.names.new("arena")
            arenas = self.bind("arenas", self.arenas(self.placement), "")
            self.lines.append(f"{arena} = {arenas}.take()")
            unpacked = ", ".join(self.buffers) + ("," if len(self.buffers) == 1 else "")
            self.lines.append(f"{unpacked} = {arena}")
        steps = self.placement.steps
        beside: dict[int, int] = {}
        if "overlap" in config.passes:
            beside = under_way([step.group for step in steps])
        if beside:
            self.started = self.names.new("started")
            self.lines.append(f"{self.started} = {self.bind('Started', Started, '')}()")
        if self.steps is not None:
            self.tick = self.names.new("tick")
            self.lines.append(f"{self.tick} = {self.bind('begin', self.steps.begin, '')}()")
        self.lines.append(f"{before} = {errors}.set({ignored})")
        self.lines.append("try:")
        outer, self.lines = self.lines, []
        for place, step in enumerate(steps):
            self.wait([k for k, needed in beside.items() if needed == place], steps)
            if place in beside:
                self.start(step)
            else:
                if beside and step.group.eqns[0].effect:
                    self.lines.append(f"{self.started}.catch_up()")
                    self.note(lambda: Note("wait for those under way", "wait"))
                self.step(step)
        self.wait([k for k, needed in beside.items() if needed == len(steps)], steps)
        self.copy_out()
        result = self.outputs()
        outer.extend(f"    {line}" for line in self.lines)
        self.lines = outer
        if arena:
            self.lines.append(f"    {arenas}.give({arena})")
        self.lines.append(f"    return {result}")
        self.lines.append("finally:")
        if beside:
            self.lines.append(f"    {self.started}.end()")
        self.lines.append(f"    {errors}.reset({before})")

    def start(self, step: Step) -> None:
        """A communication that runs beside what follows."""
        (eqn,) = step.group.eqns
        function, _, arguments = self.call(eqn, step).partition("(")
        name = self.names.new(f"{eqn.primitive.name}_started")
        self.pending[eqn] = name
        if self.steps is not None:
            function = f"{self.tick}.beside, {self.steps.add(note_of_eqn(eqn))}, {function}"
        self.lines.append(f"{name} = {self.started}.start({function}, {arguments}{comment(eqn)}")
        self.let_go(step)
        self.note(lambda: Note(f"start {eqn.primitive.name}", "wait", source=eqn.source))

    def wait(self, places: Sequence[int], steps: Sequence[Step]) -> None:
        for place in places:
            (eqn,) = steps[place].group.eqns
            left = self.results(eqn)
            self.lines.append(f"{left} = {self.pending[eqn]}.result(){comment(eqn)}")
            self.note(partial(Note, f"wait for {eqn.primitive.name}", "wait", source=eqn.source))

    def results(self, eqn: Eqn) -> str:
        """The names of an equation's results, new ones, as they stand on the left of a call."""
        for v in eqn.outputs:
            self.variables[v] = self.name_of(v)
        names = ", ".join(self.variables[v] for v in eqn.outputs)
        return f"{names}," if eqn.primitive.multiple and len(eqn.outputs) == 1 else names

    def step(self, step: Step) -> None:
        if step.group.rows is not None:
            self.tiles(step)
        else:
            (eqn,) = step.group.eqns
            call = self.call(eqn, step)
            left = self.results(eqn)
            text = f"{left} = {call}" if left else call
            self.lines.append(f"{text}{comment(eqn)}")
        self.let_go(step)
        whole = step.group.rows is None
        self.note(lambda: note_of_eqn(eqn) if whole else _note_of_loop(self.loops[-1]))

    def note(self, note: Callable[[], Note]) -> None:
        """In a program that records itself: what happened since the note before."""
        if self.steps is not None:
            self.lines.append(f"{self.tick}({self.steps.add(note())})")

    def let_go(self, step: Step) -> None:
        named = [v for v in step.dead if v.aval.nbytes >= DELETED and v in self.variables]
        if named:
            self.lines.append(f"del {', '.join(self.variables[v] for v in named)}")

    def tiles(self, step: Step) -> None:
        """A group that runs in tiles: one call of its loop, whose text stands in the header."""
        group, targets = step.group, step.target
        assert isinstance(targets, list)
        assert self.compile_tile is not None
        number = {v: k for k, v in enumerate(group.inputs)}
        over = {k: number[t] for k, t in enumerate(targets) if isinstance(t, Var)}
        for v in group.outputs:
            self.variables[v] = self.name_of(v)
        loop = TileLoop(group, self.variables, over, self.compile_tile)
        self.loops.append(loop)
        name = self.names.new(f"tiles_{len(self.loops)}")
        self.namespace[name] = loop if self.steps is None else loop.recorded
        self.header.append(f"# {name}: {loop.describe()}")
        outs = [
            self.out(t, v) for t, v in zip(targets, group.outputs, strict=True) if t is not None
        ]
        arguments = [self.variables[v] for v in group.inputs]
        if outs:
            arguments.append(f"out=({', '.join(outs)}{',' if len(outs) == 1 else ''})")
        left = ", ".join(self.variables[v] for v in group.outputs)
        avals = ", ".join(str(v.aval) for v in group.outputs)
        comma = "," if len(group.outputs) == 1 else ""
        self.lines.append(f"{left}{comma} = {name}({', '.join(arguments)})  # {avals}")

    def copy_out(self) -> None:
        """What is not in the caller's arrays already is copied there."""
        values = {}
        for k, direct, exposed in self.placement.into:
            if not direct:
                values[k] = self.atom(self.placement.outputs[k].atom)
            if exposed:
                name = self.fresh()
                self.lines.append(f"{name} = {values[k]}.copy()")
                values[k] = name
        for k, value in values.items():
            self.lines.append(f"{self.into[k]}[...] = {value}")

    def outputs(self) -> str:
        kept = [h for k, h in enumerate(self.placement.outputs) if k not in self.into]
        return f"[{', '.join(self.handover(h) for h in kept)}]"

    def handover(self, h: Handover) -> str:
        name = self.atom(h.atom)
        if h.copy:
            return f'{name}.copy("{h.order}")'
        if h.shares:
            others = "".join(f"{self.variables[v]}, " for v in h.shares)
            return f"{self.bind('own', own, '')}({name}, ({others.strip()}))"
        return name

    # Operands

    def bind(self, wish: str, value: Any, text: str | None = None) -> str:
        """A name of the namespace for an object; `text` is its line in the header."""
        key = (wish, id(value))
        name = self.bound.get(key)
        if name is None:
            name = self.bound[key] = self.names.new(wish)
            self.bind_name(name, value, text)
        return name

    def bind_name(self, name: str, value: Any, text: str | None) -> None:
        self.namespace[name] = value
        line = f"# {name}: {describe(value)}" if text is None else text.replace("@", name)
        if line:
            self.header.append(line)

    def atom(self, atom: Atom, array: bool = False) -> str:
        """An operand's name.  Literals are bound outside of the function; for ufuncs as 0-d
        arrays, which they take faster than scalars and promote in the same way."""
        if isinstance(atom, Var):
            return self.variables[atom]
        key = (atom.aval.dtype, atom.value.tobytes(), array)
        name = self.bound.get(key)
        if name is None:
            kind = "array" if array else "scalar"
            number = number_text(atom.value)
            wish = f"{kind}_{number}".replace("-", "minus_").replace("+", "")
            name = self.bound[key] = self.names.new(plain(wish))
            dtype = dtype_text(atom.aval.dtype)
            text = f"np.array({number}, {dtype})" if array else f"{dtype}({number})"
            value = np.array(atom.value, atom.aval.dtype) if array else atom.value
            self.bind_name(name, value, f"{name} = {text}")
        return name

    def param(self, name: str, value: Any) -> str:
        """A parameter's value: written out where its text is exact."""
        if isinstance(value, np.dtype) and value in dtypes.ALL:
            text = f"@ = np.dtype({dtype_text(value)})"
            return self.bind(f"{dtypes.name(value)}_dtype", value, text)
        return repr(value) if is_plain_value(value) else self.bind(name, value)

    # Calls

    def call(self, eqn: Eqn, step: Step) -> str:
        primitive = eqn.primitive
        lower = primitive.lower
        if step.target is None:
            direct = self.direct(eqn)
            if direct is not None:
                return direct
        product = self.product(eqn)
        if product is not None:
            function, arguments = product
        else:
            params = eqn.params
            if primitive is integer_power_p and params["exponent"] == 2:
                lower, params = np.square, {}  # as its lowering does
            if primitive.foreign:
                lower = self.checked(eqn)
                function = self.bind(f"{plain(primitive.name)}_", lower, "")
            elif isinstance(lower, np.ufunc) and getattr(np, lower.__name__, None) is lower:
                function = f"np.{lower.__name__}"
            else:
                function = self.bind(f"{plain(primitive.name)}_", lower, "")
            array = isinstance(lower, np.ufunc) and len(eqn.inputs) > 1
            arguments = [self.atom(a, array) for a in eqn.inputs]
            arguments += [f"{k}={self.param(k, v)}" for k, v in params.items()]
        if step.target is not None:
            arguments.append(f"out={self.out(step.target, eqn.outputs[0])}")
        return f"{function}({', '.join(arguments)})"

    def out(self, target: Any, var: Var) -> str:
        """The array that a result is written to."""
        if isinstance(target, int):
            return self.buffers[target]
        if isinstance(target, Into):
            return self.into[target.output]
        if isinstance(target, Var):
            return self.variables[target]
        text = f"np.empty({var.aval.shape}, {self.param('dtype', var.aval.dtype)})"
        if not SPARE <= var.aval.nbytes <= self.spare:
            return text
        self.spare -= var.aval.nbytes
        self.spares.append(Spares(var.aval.shape, var.aval.dtype))
        kept = f"# @: {text}, or the memory of an earlier one that is gone"
        return f"{self.bind('empty', self.spares[-1], kept)}()"

    def checked(self, eqn: Eqn) -> Callable[..., Any]:
        """The lowering of a primitive declared outside of nuvec, held against its shape rule."""
        primitive, avals = eqn.primitive, tuple([v.aval for v in eqn.outputs])

        def run(*values: Any, **params: Any) -> Any:
            return lower_checked(primitive, avals, values, params)

        return self.foreign.setdefault((primitive, avals), run)

    def product(self, eqn: Eqn) -> tuple[str, list[str]] | None:
        """The function and operands of a product of matrices or vectors, as its lowering calls
        them."""
        if eqn.primitive is not dot_general_p or eqn.params["batch"] != ((), ()):
            return None
        x, y = eqn.inputs
        (xc, yc) = eqn.params["contract"]
        if x.aval.ndim not in (1, 2) or y.aval.ndim not in (1, 2) or x.aval.dtype not in _FAST:
            return None
        if len(xc) != 1 or x.aval.shape[xc[0]] < 2:
            return None
        left = "" if xc[0] == x.aval.ndim - 1 else ".T"
        right = "" if yc == (0,) else ".T"
        function = "np.dot"
        if max(x.aval.size, y.aval.size) > ALONE:
            function = self.bind("dot", dot, "# dot: np.dot, on several threads where it is large")
        return function, [self.atom(x) + left, self.atom(y) + right]

    def direct(self, eqn: Eqn) -> str | None:
        """The same call without the Python around it, for the commonest lowerings."""
        primitive, params = eqn.primitive, eqn.params
        x = self.atom(eqn.inputs[0]) if eqn.inputs else ""
        if primitive is IDENTITY:
            return x
        if primitive is reshape_p:
            return f"{x}.reshape({params['shape']})"
        if primitive is transpose_p:
            return f"{x}.transpose({params['permutation']})"
        if primitive is sum_p:
            dtype = eqn.inputs[0].aval.dtype
            if dtypes.accumulation(dtype) is dtype and self.is_plain(eqn):
                return f"np.add.reduce({x}, {params['axes']}, {self.param('dtype', dtype)})"
        if primitive is convert_dtype and not dtypes.is_complex(eqn.inputs[0].aval.dtype):
            return f"{x}.astype({self.param('dtype', params['dtype'])})"
        return None

    def is_plain(self, eqn: Eqn) -> bool:
        """Whether a sum is one call of NumPy's: because it is short, or because all of it is along
        the innermost axes, which NumPy adds pairwise."""
        (x,) = eqn.inputs
        axes, shape = eqn.params["axes"], x.aval.shape
        if is_plain(shape, x.aval.dtype, axes):
            return True
        last = axes == tuple(range(len(shape) - len(axes), len(shape)))
        return last and self.placement.layouts.get(x) is Layout.CONTIGUOUS  # type: ignore[arg-type]


def _note_of_loop(loop: TileLoop) -> Note:
    group = loop.group
    given, got = [v.aval for v in group.inputs], [v.aval for v in group.outputs]
    return note_of_tiles(group.eqns, loop.total, given, got)
