"""compile: trace a function once per signature, lower it to a NumPy program, keep it."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from nuvec.core import tree
from nuvec.core.array import Array, eval
from nuvec.core.config import config
from nuvec.core.functions.stream import RANDOM_KEY, read_sources
from nuvec.core.interpreter import flush, queue_of
from nuvec.core.ir import IR, Aval
from nuvec.core.lower import Plan, lower
from nuvec.core.node import Node, constant, context, live
from nuvec.core.primitive import local_handle
from nuvec.core.profiler import recorded
from nuvec.core.recording import trace_ir
from nuvec.core.traceback import filtered, note_source
from nuvec.transforms.arguments import (
    arrays_of,
    check_names,
    check_positions,
    integers,
    label_of,
    labels_of,
    names_in,
    require_function,
    signature_of,
)
from nuvec.transforms.call import call_p
from nuvec.transforms.donate import run_donating, to_donate
from nuvec.transforms.entry import Entry, captured_nodes
from nuvec.transforms.grad import name_of
from nuvec.transforms.ir_tools import label_leaves
from nuvec.transforms.seen import SeenCalls
from nuvec.transforms.sizes import Sizes
from nuvec.transforms.static import Static

# What a trace may read besides its arguments, and so belongs to its signature: the default group
# (which `nuvec.distributed`, built on this file, enters here).
GUARDS: list[Callable[[], Any]] = []

WARM = 4  # of them, those used last, that keep their buffers when a new one comes
CACHE_SIZE = 128  # programs a compiled function keeps; the least recently used goes first


class Lowered(NamedTuple):
    """What a compiled function runs for one signature.

    ir     -- the recorded program; captured arrays are its first inputs
    plan   -- the lowered program
    """

    ir: IR
    plan: Plan

    @property
    def source(self) -> str:
        """The NumPy program that runs."""
        return self.plan.source

    @property
    def memory(self) -> Any:
        """Predicted memory."""
        return self.plan.memory

    def cost(self) -> Any:
        """Estimated floating-point operations and bytes moved."""
        return self.plan.cost()


class Compiled:
    """A compiled function; what `compile` returns."""

    def __init__(
        self,
        f: Callable[..., Any],
        static_argnums: tuple[int, ...],
        static_argnames: frozenset[str],
        shapeless: bool = False,
        donate_argnums: tuple[int, ...] = (),
    ) -> None:
        functools.update_wrapper(self, f)
        self._f = f
        self._static_argnums = static_argnums
        self._static_argnames = static_argnames
        self._cache: OrderedDict[Any, Entry] = OrderedDict()
        self._signature = signature_of(f)
        name = f"compile of {name_of(f)}"
        check_positions(f"{name}: static_argnums", self._signature, static_argnums)
        check_positions(f"{name}: donate_argnums", self._signature, donate_argnums)
        check_names(f"{name}: static_argnames", self._signature, static_argnames)
        self._sizes = Sizes(name_of(f)) if shapeless else None
        self._donate_argnums = donate_argnums
        # Static arguments and donated ones are looked at in every call.
        special = static_argnums or static_argnames or donate_argnums or shapeless
        self._seen = None if special else SeenCalls(GUARDS)

    def __repr__(self) -> str:
        return f"<compiled {name_of(self._f)}, {len(self._cache)} signature(s)>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    @filtered
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        apart = context.traces or context.profiles  # each equation of the call counts
        if self._seen is not None and not kwargs and not apart:
            found = self._seen(args)
            if found is not None:
                return found[0]
        if config.disable_compile:
            own = tree.map(lambda x: local_handle(x) if isinstance(x, Array) else x, (args, kwargs))
            return self._f(*own[0], **own[1])
        entry, arrays = self._entry(args, kwargs)
        name = name_of(self._f)
        if entry.traces:
            entry.refuse_leaked(name)
        operands = [*read_sources(entry.captures), *arrays]
        if context.traces or any(a._node.marks and live(a._node.marks) for a in operands):
            outs = call_p.bind(*operands, ir=entry.ir, name=name)
        else:
            places = self._donated_places(args, len(operands) - len(arrays))
            del arrays  # handles that would keep what is donated from being alone
            outs = self._run(entry, operands, places)
            if self._seen is not None and not kwargs:
                self._seen.add(next(reversed(self._cache)), args, entry)
        return tree.unflatten(entry.structure, outs[: len(entry.ir.outputs)])

    def _donated_places(self, args: Any, captures: int) -> list[int]:
        """The operands that come from donated arguments."""
        if not self._donate_argnums:
            return []
        donated = {n % len(args) for n in self._donate_argnums if -len(args) <= n < len(args)}
        _, rest, _ = self._split_static(args, {})
        places: list[int] = []
        start = captures
        for i, a in enumerate(rest):
            count = tree.structure(a).num_leaves
            if i in donated:
                places += range(start, start + count)
            start += count
        return places

    def _run(self, entry: Entry, operands: list[Array], places: list[int]) -> list[Array]:
        """Run at once, after the communications queued before."""
        if entry.ir.effect:
            queue = queue_of(Node(call_p, (), {"ir": entry.ir}, None))
            if queue is not None:
                flush(queue)
        eval(operands)
        if entry.plan is None or entry.plan.passes is not config.passes:
            entry.plan = lower(entry.ir)
        donated = to_donate(operands, places) if places and not config.debug_nans else ()
        try:
            if donated:
                results = run_donating(entry.ir, name_of(self._f), operands, donated)
            else:
                values = [np.asarray(a._node.value) for a in operands]
                results = entry.plan.runner(name_of(self._f))(*values)
        except Exception as error:
            note_source(error)
            raise
        return [Array(constant(v, a)) for v, a in zip(results, entry.ir.out_avals, strict=True)]

    def _entry(self, args: Any, kwargs: Any) -> tuple[Entry, list[Array]]:
        """The traced program for these arguments, and their arrays."""
        static, args, kwargs = self._split_static(args, kwargs)
        leaves, structure = tree.flatten((args, kwargs))
        arrays = self._arrays(leaves, structure, args)
        avals = tuple([a._node.aval for a in arrays])
        key = _key(structure, avals, static)
        entry = self._cache.get(key)
        if entry is None or not entry.fits():

            def record(avals: tuple[Aval, ...]) -> Entry:
                return self._trace(args, kwargs, static, structure, avals)

            if self._sizes is None:
                entry = record(avals)
            else:
                entry = self._sizes.entry(_key(structure, (), static), avals, record)
            # Computed anew: the trace may have been the first to ask for the default group.
            self._forget_ended()
            if self._seen is not None:
                for used in self._seen.used():
                    if used in self._cache:
                        self._cache.move_to_end(used)
            for other in list(self._cache.values())[:-WARM]:
                if other.plan is not None:
                    other.plan.release()
            self._cache[_key(structure, avals, static)] = entry
            if len(self._cache) > CACHE_SIZE:
                self._cache.popitem(last=False)
                self._forget_seen()
        else:
            self._cache.move_to_end(key)
        return entry, arrays

    def _forget_ended(self) -> None:
        """Drop what was traced for ranks that have ended (of `run_local`): it keeps their world."""
        for key, entry in list(self._cache.items()):
            of_call = [*[s.value for s in key[2]], *key[3:]]
            queues = [getattr(x, "queue", None) for x in of_call]
            queues.append(queue_of(Node(call_p, (), {"ir": entry.ir}, None)))
            if any(q is not None and q.ended for q in queues):
                del self._cache[key]
                self._forget_seen()

    def _forget_seen(self) -> None:
        if self._seen is not None:
            self._seen.clear()

    def _arrays(self, leaves: Any, structure: Any, args: Any) -> list[Array]:
        name = name_of(self._f)
        return arrays_of(
            leaves, structure,
            lambda p: f"compile of {name}: {label_of(p, labels_of(self._f, args))}",
        )  # fmt: skip

    def _split_static(self, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        """(static values by name, args with them replaced by None, kwargs without them)."""
        if not self._static_argnums and not self._static_argnames:
            return (), args, kwargs
        names = list(self._signature.parameters) if self._signature else []
        numbers = {n % len(args) if -len(args) <= n < len(args) else n
                   for n in self._static_argnums}  # fmt: skip
        numbers |= {names.index(k) for k in self._static_argnames if k in names}
        by_name = {names[n] for n in numbers if n < len(names)} | self._static_argnames
        places: list[Any] = [(n, args[n]) for n in sorted(numbers) if n < len(args)]
        places += [(k, v) for k, v in sorted(kwargs.items()) if k in by_name]
        name = f"compile of {name_of(self._f)}"
        static = tuple([Static(name, place, value) for place, value in places])
        rest = tuple(None if i in numbers else a for i, a in enumerate(args))
        return static, rest, {k: v for k, v in kwargs.items() if k not in by_name}

    def _trace(
        self, args: Any, kwargs: Any, static: Any, structure: Any, avals: tuple[Aval, ...]
    ) -> Entry:
        name = name_of(self._f)
        paths, _ = tree.flatten_with_path((args, kwargs))
        labels = labels_of(self._f, args)
        out_structure: list[Any] = []

        def function(*inputs: Array) -> list[Array]:
            a, k = tree.unflatten(structure, inputs)
            a = list(a)
            for s in static:
                if isinstance(s.place, int):
                    a[s.place] = s.value
                else:
                    k[s.place] = s.value
            leaves, result = tree.flatten(self._f(*a, **k))
            out_structure.append(result)
            return arrays_of(leaves, result, lambda p: f"compile of {name}: output{tree.keystr(p)}")

        with recorded(f"trace {name}", "trace"):
            ir, captures = trace_ir(
                function,
                avals,
                f"compile of {name}",
                label_leaves(paths, labels, name),
                by_handle=True,
                late=True,
            )
        marks = [live(n.marks) for n in captured_nodes(captures) if n.marks]
        traces = frozenset().union(*[m for m in marks if m])
        return Entry(ir, captures, out_structure[0], traces=traces)

    @filtered
    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The program for these arguments: `.ir`, `.source`, `.memory`, `.cost()`."""
        entry, _ = self._entry(args, kwargs)
        return Lowered(entry.ir, lower(entry.ir))

    @filtered
    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Say which arrays are captured, and whether a call with these arguments would trace."""
        static, rest, named = self._split_static(args, kwargs)
        leaves, structure = tree.flatten((rest, named))
        arrays = self._arrays(leaves, structure, rest)
        avals = tuple([a._node.aval for a in arrays])
        lines = []
        now = _key(structure, avals, static)
        for key, entry in self._cache.items():
            if key == now:
                if entry.fits():
                    lines.append("runs from the cache")
                    captured = [c for c in entry.captures if isinstance(c, Array)]
                    lines.append(
                        f"captures {len(captured)} array(s): "
                        + ", ".join(str(c._node.aval) for c in captured)
                        if captured else "captures no arrays"
                    )  # fmt: skip
                    if RANDOM_KEY in entry.captures:
                        lines.append("draws from the default random stream")
                    return "\n".join(lines)
                lines.append("traces: a captured array has another shape or dtype")
                return "\n".join(lines)
        if not self._cache:
            return "traces: nothing is cached yet"
        s, a, st, *_ = next(reversed(self._cache))
        if s != structure:
            lines.append(f"traces: the arguments have structure {structure}, last time {s}")
        elif st != static:
            lines.append(f"traces: static arguments are {list(static)}, last time {list(st)}")
        elif a == avals:
            lines.append("traces: the default group is another one")
        else:
            differ = [
                f"leaf {i} is {now}, last time {was}"
                for i, (now, was) in enumerate(zip(avals, a, strict=True))
                if now is not was
            ]
            lines.append("traces: " + "; ".join(differ))
        return "\n".join(lines)

    def clear_cache(self) -> None:
        """Forget every traced signature."""
        self._cache.clear()
        self._forget_seen()
        if self._sizes is not None:
            self._sizes.bases.clear()


def _key(structure: Any, avals: tuple[Aval, ...], static: Any) -> tuple[Any, ...]:
    return (structure, avals, static, *[guard() for guard in GUARDS])


@filtered
def compile(
    f: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    shapeless: bool = False,
    donate_argnums: int | Sequence[int] = (),
) -> Any:
    """`f`, traced once per signature and run as a NumPy program.

    The signature is the arguments' tree structure, shapes, dtypes and static values; Python
    scalars are weak inputs, so a new value does not trace again.  Arrays `f` captures are read
    through their handle at every call.  Inside `f`, `if` on a traced value raises
    ConcretizationError: use nv.where, nv.cond, or make the argument static.

    What `f` assigns to an argument (`x[i] = v`, `x += v`) stays local to the call, as in every
    transform: the caller's array keeps its value, and an array that is passed twice, or captured
    too, is another handle in each place.  In the plain function it is the caller's, everywhere.

    static_argnums, static_argnames -- arguments that are part of the signature: hashable, without
                 Arrays.  Python's and NumPy's numbers are the same when type and bits are, in
                 tuples, frozensets and dataclasses too; other objects when their type is and `==`
                 says so
    shapeless -- one program for every size of the leading axis (the batch): `f` is traced at the
                 first two sizes and at large ones to confirm and to note what is asked of the size;
                 further sizes follow.  Where its own code reads `x.shape` or `len(x)`, it is traced
                 at every new size, and compared.  ShapeError where it does other things at other
                 sizes: a comparison with another outcome, a count that is not linear in the size
    donate_argnums -- arguments whose arrays the call may write its results over (the parameters
                 and optimizer state of a training step).  An array whose memory was taken raises
                 when it is used again; one that something else can see is left alone

    `lower(*args)` shows the program, `explain(*args)` says why a call would trace again.

    Raises ArgumentError for static arguments that are no such values, and LeakedTracerError where
    `f` was traced inside a transform of which it captured a value, and that has returned: the
    value is one of an old call, and would not be differentiated.

    >>> import nuvec as nv
    >>> step = nv.compile(lambda x: nv.sin(x) * 2)
    >>> step(nv.zeros(2))
    array([0., 0.], dtype=float32)
    """
    numbers = integers("compile: static_argnums", static_argnums)
    names = names_in("compile: static_argnames", static_argnames)
    donated = integers("compile: donate_argnums", donate_argnums)
    if f is None:
        return functools.partial(
            compile,
            static_argnums=numbers,
            static_argnames=names,
            shapeless=shapeless,
            donate_argnums=donated,
        )
    require_function("compile", f)
    return Compiled(f, numbers, frozenset(names), shapeless, donated)
