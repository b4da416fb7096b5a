"""custom_jvp: a function with a forward-mode rule of its own, which serves both modes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nuvec.core import tree
from nuvec.core.array import Array
from nuvec.core.errors import NuvecError
from nuvec.core.node import Trace, context, traces_set
from nuvec.core.ops.arithmetic import add
from nuvec.core.primitive import detach, local_handle, mark
from nuvec.transforms.arguments import require_function
from nuvec.transforms.bodies import marked
from nuvec.transforms.custom import Call, CustomFunction
from nuvec.transforms.custom_rule import split_rule
from nuvec.transforms.grad import name_of


class custom_jvp(CustomFunction):
    """A function whose derivative is given by a forward-mode rule.

    `defjvp(rule)`: `rule(*nondiff, primals, tangents) -> (out, tangent_out)`, where `primals` and
    `tangents` are tuples of the differentiable arguments and `tangent_out`, linear in the
    tangents, is a tree like `out`.  Reverse mode transposes the rule.  `defjvps(*rules)` gives one
    rule an argument instead: `rule(tangent, out, *args) -> tangent_out`, or None where the
    derivative is zero.  Arguments at `nondiff_argnums` need not be arrays.

    >>> import nuvec as nv
    >>> @nv.custom_jvp
    ... def log1pexp(x):
    ...     return nv.log(1 + nv.exp(x))
    >>> log1pexp.defjvps(lambda t, out, x: t * nv.sigmoid(x))
    >>> nv.grad(log1pexp)(100.0)
    array(1., dtype=float32)
    """

    kind = "custom_jvp"

    def defjvp(self, jvp: Callable[..., Any]) -> Callable[..., Any]:
        """Give the rule; returns it, so that it serves as a decorator."""
        require_function(f"custom_jvp {name_of(self.fun)}: defjvp", jvp)
        self.jvp = jvp
        return jvp

    def defjvps(self, *rules: Callable[..., Any] | None) -> None:
        """Give one rule for each differentiable argument."""
        for rule in rules:
            if rule is not None:
                require_function(f"custom_jvp {name_of(self.fun)}: defjvps", rule)
        if self.nondiff:
            raise TypeError(
                f"custom_jvp {name_of(self.fun)}: defjvps takes functions without nondiff_argnums; "
                "use defjvp"
            )

        def jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
            if len(rules) != len(primals):
                raise TypeError(
                    f"custom_jvp {name_of(self.fun)}: {len(rules)} rules for {len(primals)} "
                    "arguments"
                )
            out = self(*primals)
            terms = [r(t, out, *primals) for r, t in zip(rules, tangents, strict=True) if r]
            if not terms:
                return out, tree.map(lambda _: None, out)
            total = terms[0]
            for term in terms[1:]:
                total = tree.map(add, total, term)
            return out, total

        self.jvp = jvp

    def _check_defined(self) -> None:
        if self.jvp is None:
            raise NuvecError(
                f"custom_jvp {name_of(self.fun)} has no rule yet: call "
                f"{name_of(self.fun)}.defjvp(rule) before using it"
            )

    def _native(self, call: Call, trace: Trace) -> Any:
        """Under a differentiating trace: the rule is run once, on tangents that are inputs; what
        it computed from them is the derivative, walked forward or back."""
        outer = tuple(t for t in context.traces if t is not trace)
        if not any(marked(a, trace) for a in call.arrays):
            with traces_set(outer):  # nothing moves for this trace; an outer one may own the rule
                return self(*call.arguments(call.arrays))
        detached = [local_handle(detach(a, trace)) for a in call.arrays]

        def rule(tangents: Sequence[Array]) -> list[Array]:
            return call.jvp(*detached, *tangents)

        with traces_set(outer):
            self._check_linear(call, detached)
            found, linear = split_rule(trace.mode, call.name, rule, call.avals)
        outs = mark(found, call.arrays, trace, linear)
        return tree.unflatten(call.out_structure, outs)
