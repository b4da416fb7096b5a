"""custom_vjp: a function with a reverse-mode rule of its own; what it shares with custom_jvp.

Who owns the rule is decided by the innermost open trace when the function is called.  A
differentiating trace gets the forward recorded at once and a mark that calls the backward in its
walk; a symbolic one (vmap, compile, control flow) gets an equation that carries function, forward
and backward as closed IRs, which does the same when it is differentiated later.
"""

from __future__ import annotations

import functools
import inspect
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes, tree
from nuvec.core.array import Array, operand
from nuvec.core.errors import DtypeError, NuvecError, ShapeError, TreeError
from nuvec.core.functions.stream import draws_undone
from nuvec.core.ir import Aval
from nuvec.core.node import Trace, context, open_trace, traces_set
from nuvec.core.ops.differentiation import zeros_of
from nuvec.core.primitive import detach, local_handle, mark, placeholder
from nuvec.core.recording import close
from nuvec.core.traceback import filtered
from nuvec.transforms.custom_rule import refuse_reverse_over
from nuvec.transforms.grad import name_of
from nuvec.transforms.jvp import matching_leaves
from nuvec.transforms.rule_record import Building, check_linear_rule, record_rule


class _Traced(threading.local):
    """The calls whose IRs this thread is tracing, innermost last: how recursion is noticed."""

    def __init__(self) -> None:
        self.building: list[Building] = []


_SIGNATURES = 256  # of which a custom function remembers that its rule was linear


class CustomFunction(ABC):
    """What custom_vjp and custom_jvp share: a function, whose calls the innermost open trace
    records in its own way."""

    kind = "custom function"

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: int | Sequence[int] = ()) -> None:
        if not callable(fun):
            raise TypeError(f"{self.kind} takes a function, got {type(fun).__name__}")
        functools.update_wrapper(self, fun)
        self.fun = fun
        self.nondiff = (
            (nondiff_argnums,) if isinstance(nondiff_argnums, int) else tuple(nondiff_argnums)
        )
        self.fwd: Callable[..., Any] | None = None
        self.bwd: Callable[..., Any] | None = None
        self.jvp: Callable[..., Any] | None = None
        self._traced = _Traced()
        self._linear: set[Any] = set()  # signatures at which the jvp rule was found to be linear

    def __repr__(self) -> str:
        return f"<{self.kind} {name_of(self.fun)}>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    @filtered
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._check_defined()
        args, kwargs = _with_defaults(self.fun, args, kwargs)
        if kwargs:
            raise TypeError(
                f"{self.kind} {name_of(self.fun)}: keyword-only arguments {sorted(kwargs)} cannot "
                "be passed to its rules; make them positional"
            )
        call = Call(self, args)
        if not context.traces:
            return self.fun(*call.arguments([local_handle(a) for a in call.arrays]))
        innermost = context.traces[-1]
        if innermost.symbolic:
            outs = record_rule(call, self._traced.building)
            return tree.unflatten(call.out_structure, outs)
        return self._native(call, innermost)

    @abstractmethod
    def _check_defined(self) -> None:
        """Raise when there is no rule yet."""

    @abstractmethod
    def _native(self, call: Call, trace: Trace) -> Any:
        """Record a call under a differentiating trace."""

    def _check_linear(self, call: Call, primals: Sequence[Array]) -> None:
        """Raise unless the forward-mode rule is linear in its tangents: what is computed from the
        rule, in either mode, is wrong otherwise.  Looked at once for each signature."""
        signature = (call.structure, tuple(call.avals))
        if signature in self._linear:
            return
        # Inside, the function itself is plain: its operands have values, and may be asked for.
        self._traced.building.append(Building((*signature, tuple(call.fixed.items())), None, []))
        name = f"the jvp rule of {call.name}"
        try:
            with draws_undone(), open_trace("linear", name) as trace:
                tangents = [
                    placeholder(trace, a, f"tangent {i} of {name}")
                    for i, a in enumerate(call.avals)
                ]
                outs = call.jvp(*primals, *map(Array, tangents))
                ir, captures = close(trace, tangents, outs)
        finally:
            self._traced.building.pop()
        check_linear_rule(call, ir, captures, len(call.avals))
        if len(self._linear) >= _SIGNATURES:
            self._linear.clear()
        self._linear.add(signature)


class custom_vjp(CustomFunction):
    """A function whose reverse-mode derivative is given by `defvjp(fwd, bwd)`.

    `fwd(*args) -> (out, residuals)`; `bwd(*nondiff, residuals, cotangent) -> tuple` with one
    cotangent (or None) for each differentiable argument.  Arguments may be any trees; those at
    `nondiff_argnums` are passed to `bwd` first and need not be arrays.  `defjvp(rule)` adds a
    forward-mode rule, `rule(*nondiff, primals, tangents) -> (out, tangent_out)`, linear in the
    tangents; without it, forward mode differentiates the function itself.

    The outputs of `fwd` and of the forward-mode rule must be those of the function.  They are
    compared where both are recorded (vmap, compile, control flow); plain `grad` runs `fwd` alone.

    >>> import nuvec as nv
    >>> @nv.custom_vjp
    ... def clipped(x):
    ...     return x
    >>> clipped.defvjp(lambda x: (x, None), lambda _, c: (nv.clip(c, -1, 1),))
    >>> nv.grad(lambda x: 5 * clipped(x))(2.0)
    array(1., dtype=float32)
    """

    kind = "custom_vjp"

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Give the forward (which returns residuals too) and the backward."""
        self.fwd, self.bwd = fwd, bwd

    def defjvp(self, jvp: Callable[..., Any]) -> Callable[..., Any]:
        """Give a forward-mode rule."""
        self.jvp = jvp
        return jvp

    def _check_defined(self) -> None:
        if self.fwd is None or self.bwd is None:
            raise NuvecError(
                f"custom_vjp {name_of(self.fun)} has no rule yet: call "
                f"{name_of(self.fun)}.defvjp(fwd, bwd) before using it"
            )

    def _native(self, call: Call, trace: Trace) -> Any:
        return _record_native(call, trace)


def _with_defaults(
    fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as the rules take them: positional where they can be, defaults filled in."""
    try:
        bound = inspect.signature(fun).bind(*args, **kwargs)
    except ValueError:  # a builtin without a signature
        return args, kwargs
    bound.apply_defaults()
    return bound.args, dict(bound.kwargs)


class Call:
    """One call's arguments, taken apart: the differentiable ones are a tree of arrays."""

    def __init__(self, rule: CustomFunction, args: tuple[Any, ...]) -> None:
        self.rule = rule
        self.name = name_of(rule.fun)
        count = len(args)
        for n in rule.nondiff:
            if not -count <= n < count:
                raise TypeError(
                    f"{self.rule.kind} {self.name}: nondiff_argnums={n} of {count} arguments"
                )
        fixed = {n % count for n in rule.nondiff}
        self.fixed = {i: args[i] for i in sorted(fixed)}
        self.positions = [i for i in range(count) if i not in fixed]
        moving = tuple(args[i] for i in self.positions)
        paths, self.structure = tree.flatten_with_path(moving)
        self.arrays = [
            operand(leaf, f"{self.rule.kind} {self.name}: argument{tree.keystr(p)}")
            for p, leaf in paths
        ]
        self.avals = [a.aval for a in self.arrays]
        self.out_structure: Any = None
        self.out_avals: Sequence[Aval] | None = None  # of the function, where it was run
        self.residual_structure: Any = None
        self.residual_static: dict[int, Any] = {}

    def arguments(self, arrays: Sequence[Array]) -> list[Any]:
        moving = iter(tree.unflatten(self.structure, list(arrays)))
        count = len(self.positions) + len(self.fixed)
        return [self.fixed[i] if i in self.fixed else next(moving) for i in range(count)]

    def fun(self, *arrays: Array) -> list[Array]:
        return self._flat(self.rule.fun(*self.arguments(arrays)), "the function")

    def _flat(self, result: Any, what: str) -> list[Array]:
        leaves, structure = tree.flatten(result)
        if self.out_structure is not None and structure != self.out_structure:
            raise TreeError(
                f"{self.rule.kind} {self.name}: {what} returns the output {structure}, and the "
                f"function {self.out_structure}; they must be the same. {_RETURNS[what]}"
            )
        self.out_structure = structure
        return [operand(leaf, f"an output of {self.name}") for leaf in leaves]

    def check_outputs(self, what: str, found: Sequence[Aval]) -> None:
        """Raise unless a rule's outputs are the function's, where these are known."""
        if self.out_avals is None:
            return
        paths, _ = tree.flatten_with_path(
            tree.unflatten(self.out_structure, list(range(len(found))))
        )
        for (path, _), a, b in zip(paths, self.out_avals, found, strict=True):
            if (a.shape, a.dtype) != (b.shape, b.dtype):
                raise ShapeError(
                    f"{self.rule.kind} {self.name}: output{tree.keystr(path)} of the function is "
                    f"{a}, and of {what} {b}; they must be the same"
                )

    def fwd(self, *arrays: Array) -> tuple[list[Array], list[Array]]:
        """Outputs and residuals, flat."""
        assert self.rule.fwd is not None
        result = self.rule.fwd(*self.arguments(arrays))
        if not isinstance(result, tuple) or len(result) != 2:
            raise TreeError(
                f"{self.rule.kind} {self.name}: fwd must return a pair (output, residuals), and it "
                f"returned {type(result).__name__}"
            )
        outs = self._flat(result[0], "fwd")
        leaves, self.residual_structure = tree.flatten(result[1])
        # What is no array (a shape, an axis, a flag) is handed to bwd as it is.
        self.residual_static = {
            i: x for i, x in enumerate(leaves) if not isinstance(x, Array | np.ndarray | np.generic)
        }
        return outs, [
            operand(x, f"a residual of {self.name}")
            for i, x in enumerate(leaves)
            if i not in self.residual_static
        ]

    def bwd(self, residuals: Sequence[Array], cs: Sequence[Array]) -> list[Array | None]:
        """The arguments' cotangents, flat, checked against the arguments."""
        assert self.rule.bwd is not None
        kept, static = iter(residuals), self.residual_static
        count = self.residual_structure.num_leaves
        leaves = [static[i] if i in static else next(kept) for i in range(count)]
        result = self.rule.bwd(
            *self.fixed.values(),
            tree.unflatten(self.residual_structure, leaves),
            tree.unflatten(self.out_structure, list(cs)),
        )
        if not isinstance(result, tuple | list) or len(result) != len(self.positions):
            raise TreeError(
                f"{self.rule.kind} {self.name}: bwd must return a tuple with a cotangent for each "
                f"of the {len(self.positions)} differentiable arguments; it returned "
                + (f"{len(result)}" if isinstance(result, tuple | list) else type(result).__name__)
            )
        flat: list[Array | None] = []
        for i, (part, c) in enumerate(zip(self.structure.children, result, strict=True)):
            flat += self._cotangent(i, part, c, self.avals[len(flat) : len(flat) + part.num_leaves])
        return flat

    def jvp(self, *arrays: Array) -> list[Array]:
        """Outputs and tangents by the forward-mode rule, flat, from primals and tangents."""
        assert self.rule.jvp is not None
        count = len(self.avals)
        primals = tree.unflatten(self.structure, list(arrays[:count]))
        tangents = tree.unflatten(self.structure, list(arrays[count:]))
        result = self.rule.jvp(*self.fixed.values(), primals, tangents)
        if not isinstance(result, tuple) or len(result) != 2:
            raise TreeError(
                f"{self.rule.kind} {self.name}: the jvp rule must return (out, tangent_out)"
            )
        outs = self._flat(result[0], "the jvp rule")
        self.check_outputs("the jvp rule", [o.aval for o in outs])
        moved = tree.leaves(result[1], is_leaf=lambda t: t is None)
        if len(moved) != len(outs):
            raise TreeError(
                f"{self.rule.kind} {self.name}: the jvp rule's tangent is "
                f"{tree.structure(result[1])}, and the output {self.out_structure}"
            )
        found = []
        for t, out in zip(moved, outs, strict=True):
            array = zeros_of(out.aval) if t is None else operand(t, f"a tangent of {self.name}")
            if array.dtype != out.dtype and array.aval.weak:
                array = array.astype(out.dtype)
            if (array.shape, array.dtype) != (out.shape, out.dtype):
                raise ShapeError(
                    f"{self.rule.kind} {self.name}: the jvp rule's tangent is {array.aval}, and "
                    f"the output {out.aval}"
                )
            found.append(array)
        return [*outs, *found]

    def _cotangent(
        self, i: int, structure: Any, c: Any, avals: Sequence[Aval]
    ) -> list[Array | None]:
        if c is None:
            return [None] * structure.num_leaves
        what = f"{self.rule.kind} {self.name}: bwd's cotangents for argument {self.positions[i]}"
        leaves = matching_leaves(what, structure, c)
        paths, _ = tree.flatten_with_path(tree.unflatten(structure, list(range(len(avals)))))
        found: list[Array | None] = []
        for leaf, a, (path, _) in zip(leaves, avals, paths, strict=True):
            where = what.replace("cotangents", "cotangent") + tree.keystr(path)
            if leaf is None or not dtypes.is_inexact(a.dtype):
                found.append(None)
                continue
            array = operand(leaf, where)
            if array.shape != a.shape:
                raise ShapeError(
                    f"{where} has shape {array.shape}, and the argument {a.shape}; they must be "
                    "equal (sum over what the function broadcast)"
                )
            if array.dtype != a.dtype:
                if not array.aval.weak:
                    raise DtypeError(
                        f"{where} is {array.aval}, and the argument {a}; convert it with "
                        f".astype({dtypes.name(a.dtype)!r})"
                    )
                array = array.astype(a.dtype)
            found.append(array)
        return found


_RETURNS = {
    "the function": "",
    "fwd": "fwd returns the pair (output, residuals)",
    "the jvp rule": "The rule returns the pair (output, tangent of the output)",
}


def _zeros_for(cs: Sequence[Array | None], avals: Sequence[Aval]) -> list[Array]:
    return [zeros_of(a) if c is None else c for c, a in zip(cs, avals, strict=True)]


def _record_native(call: Call, trace: Trace) -> Any:
    """Under a differentiating trace: the forward, detached, and a mark that knows the rule.

    Values that the forward closes over keep the trace's mark, and so their own derivative."""
    rule = call.rule
    outer = tuple(t for t in context.traces if t is not trace)
    # Handles of their own: what the function assigns to its arguments stays local to it.
    detached = [local_handle(detach(a, trace)) for a in call.arrays]
    if trace.mode == "vjp":
        with traces_set(outer):
            outs, residuals = call.fwd(*detached)
        avals = [o.aval for o in outs]

        def linear(cs: Sequence[Array | None]) -> list[Array | None]:
            return call.bwd(residuals, _zeros_for(cs, avals))

    elif rule.jvp is None:
        refuse_reverse_over(call.name, call.arrays, outer)
        return rule.fun(*call.arguments([local_handle(a) for a in call.arrays]))
    else:
        with traces_set(outer):
            rule._check_linear(call, detached)
            leaves, call.out_structure = tree.flatten(rule(*call.arguments(detached)))
            outs = [operand(x, f"an output of {call.name}") for x in leaves]
        call.out_avals = [o.aval for o in outs]

        def linear(cs: Sequence[Array | None]) -> list[Array | None]:
            return list(call.jvp(*detached, *_zeros_for(cs, call.avals))[len(outs) :])

    marked = mark(outs, call.arrays, trace, linear)
    return tree.unflatten(call.out_structure, marked)
