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

from nuvec.core import tree
from nuvec.core.array import Array, operand
from nuvec.core.errors import ArgumentError, NuvecError
from nuvec.core.functions.stream import draws_undone
from nuvec.core.ir import Aval
from nuvec.core.node import Trace, context, open_trace, traces_set
from nuvec.core.ops.differentiation import zeros_of
from nuvec.core.primitive import detach, local_handle, mark, placeholder
from nuvec.core.recording import close
from nuvec.core.traceback import filtered
from nuvec.transforms.arguments import check_positions, integers, require_function, signature_of
from nuvec.transforms.custom_call import Call
from nuvec.transforms.custom_rule import refuse_reverse_over
from nuvec.transforms.grad import name_of
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
        require_function(self.kind, fun)
        functools.update_wrapper(self, fun)
        self.fun = fun
        option = f"{self.kind} {name_of(fun)}: nondiff_argnums"
        self.nondiff = integers(option, nondiff_argnums)
        check_positions(option, signature_of(fun), self.nondiff)
        if len(set(self.nondiff)) != len(self.nondiff):
            raise ArgumentError(f"{option}={self.nondiff} names an argument twice")
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
        self._traced.building.append(Building(call.signature(), None, []))
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
    compared where the function is recorded inside the derivative, as in `grad(compile(f))`,
    `grad(vmap(f))` or the body of a scan; where `grad` itself calls it, in `grad(f)`,
    `compile(grad(f))` or `vmap(grad(f))`, `fwd` runs alone.

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
        name = f"custom_vjp {name_of(self.fun)}: defvjp"
        require_function(name, fwd, "fwd")
        require_function(name, bwd, "bwd")
        self.fwd, self.bwd = fwd, bwd

    def defjvp(self, jvp: Callable[..., Any]) -> Callable[..., Any]:
        """Give a forward-mode rule."""
        require_function(f"custom_vjp {name_of(self.fun)}: defjvp", jvp)
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
