"""Guarded programs: they raise nothing, and end, where nobody wants their results.

Under vmap the elements of a batch may take different branches of a cond, or steps of a loop, and
what some take is evaluated for all.  An index out of bounds is an error of those that take it, and
none of the others.  `guarded` says which are which: every primitive that can raise because of
values has a rule for it (`guard`, in its record), and equations that hold IRs guard those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from nuvec.core import dtypes
from nuvec.core.array import Array
from nuvec.core.errors import NuvecError
from nuvec.core.ir import IR, Eqn, aval, held_irs
from nuvec.core.node import traces_set
from nuvec.core.recording import replay, trace_ir
from nuvec.transforms.custom_rule import Rule

Guarded = tuple[Sequence[Array], dict[str, Any]]  # operands and parameters


def can_raise(ir: IR) -> bool:
    """Whether evaluating a program can raise because of values, or go on without end.  Cached."""
    found = ir.derived.get("can raise")
    if found is None:
        found = ir.derived["can raise"] = _can_raise(ir, set())
    return found


def _can_raise(ir: IR, seen: set[int]) -> bool:
    """`seen`: the custom rules that have been looked into, for one may refer to itself."""
    return any(
        eqn.primitive.guard is not None
        or (eqn.primitive.higher_order and any(_can_raise(i, seen) for _, i in held_irs(eqn, seen)))
        for eqn in ir.eqns
    )


def guarded(ir: IR) -> IR:
    """The program with one more input, the first: a boolean scalar that says whether its results
    are wanted.  Where they are it computes the same; where not, anything, but without an error.
    Cached."""
    key = ("guarded",)
    found = ir.derived.get(key)
    if found is None:

        def function(wanted: Array, *inputs: Array) -> list[Array]:
            return replay(ir, inputs, lambda eqn, operands: _record(wanted, eqn, operands))

        with traces_set(()):  # an IR is closed: what happens to be open does not concern it
            made, captures = trace_ir(function, [_BOOLEAN, *ir.in_avals], "a guarded program")
        assert not captures
        found = ir.remember(key, made)
    return found


_BOOLEAN = aval((), dtypes.bool_)


def _record(wanted: Array, eqn: Eqn, operands: Sequence[Array]) -> Any:
    primitive, params = eqn.primitive, eqn.params
    guard = primitive.guard or _INSIDE.get(primitive.name)
    if guard is not None:
        given = guard(wanted, *operands, **params)
        if primitive.guard is not None and not primitive.higher_order:
            _check(primitive.name, given, operands, params)
        operands, params = given
    return primitive.bind(*operands, **params)


def _check(name: str, given: Any, operands: Sequence[Array], params: dict[str, Any]) -> None:
    """Raise unless a guard returned operands and parameters like those it was given."""
    wanted = "a pair (operands, params) like those it is given"
    if not isinstance(given, tuple | list) or len(given) != 2 or not isinstance(given[1], dict):
        raise NuvecError(f"the guard of {name} must return {wanted}, and it returned {given!r:.80}")
    found = [x.aval if isinstance(x, Array) else type(x).__name__ for x in given[0]]
    if found != [x.aval for x in operands]:
        raise NuvecError(
            f"the guard of {name} must return {wanted}: the operands are "
            f"{', '.join(str(x.aval) for x in operands)}, and it returned "
            f"{', '.join(map(str, found))}"
        )
    if set(given[1]) != set(params):
        raise NuvecError(
            f"the guard of {name} must return {wanted}: the parameters are {sorted(params)}, and "
            f"it returned {sorted(given[1])}"
        )


# Equations that hold IRs: these take `wanted` as a further operand


def _call(wanted: Array, *operands: Array, ir: IR, **params: Any) -> Guarded:
    if not can_raise(ir):
        return operands, {"ir": ir, **params}
    return (wanted, *operands), {"ir": guarded(ir), **params}


def _cond(wanted: Array, index: Array, *operands: Array, branches: tuple[IR, ...]) -> Guarded:
    if not any(can_raise(b) for b in branches):
        return (index, *operands), {"branches": branches}
    return (index, wanted, *operands), {"branches": tuple([guarded(b) for b in branches])}


def _scan(wanted: Array, *operands: Array, body: IR, consts: int, **params: Any) -> Guarded:
    if not can_raise(body):
        return operands, {"body": body, "consts": consts, **params}
    return (wanted, *operands), {"body": guarded(body), "consts": consts + 1, **params}


def _custom_rule(wanted: Array, *operands: Array, fun: IR, rule: Rule) -> Guarded:
    if not any(can_raise(ir) for ir in rule.irs()):
        return operands, {"fun": fun, "rule": rule}
    found = _guarded_rule(rule)
    return (*operands, wanted), {"fun": found.fun, "rule": found}


def _guarded_rule(rule: Rule) -> Rule:
    """The rule with one more capture: whether its results are wanted."""
    key = ("guarded",)
    found = rule.derived.get(key)
    if found is None:
        found = replace(rule, captures=rule.captures + 1, fun=_guarded_last(rule.fun), derived={})
        rule.derived[key] = found  # before the others, which may refer to it
        for name in ("forward", "backward", "jvp"):
            ir = getattr(rule, name)
            setattr(found, name, None if ir is None else _guarded_last(ir))
    return found


def _guarded_last(ir: IR) -> IR:
    """`guarded`, with the new input in the last place."""
    made = guarded(ir)
    wanted, *inputs = made.inputs
    return IR((*inputs, wanted), made.constants, made.eqns, made.outputs)


_INSIDE: dict[str, Callable[..., Guarded]] = {
    "call": _call,
    "checkpoint": _call,
    "custom_rule": _custom_rule,
    "cond": _cond,
    "scan": _scan,
}


__all__ = ["can_raise", "guarded"]
