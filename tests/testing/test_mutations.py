"""Every rule is made slightly wrong, one at a time, and the checks must notice.

A rule counts as checked when the rows of its primitive catch it wrong by 0.1 %; a communication
when it is noticed that it was dropped, runs twice, or changed places with another.  The rules of
communications, and of primitives that hold programs, are in `test_mutations_nested.py`.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import nuvec as nv
import nuvec.core.primitive as primitive_module
import nuvec.transforms.compile as compile_module
from nuvec import distributed as nd
from nuvec.core import dtypes
from nuvec.core.array import Array, from_numpy
from nuvec.core.ir import IR, Eqn
from nuvec.core.primitive import (
    MINUS_ONE,
    NOT_DIFFERENTIABLE,
    ONE,
    RECORDING,
    TABLE,
    ZERO,
    Primitive,
)  # fmt: skip
from nuvec.testing import check_collective, check_jvp, check_vjp, check_vmap
from nuvec.testing.compare import close, numpy_leaves
from tests.cases.case import Case
from tests.cases.collectives import CASES, CollectiveCase
from tests.cases.rows import all_rows

FACTOR = 1.001
ROWS: dict[str, list[Case]] = {}
for _row in all_rows():
    if _row.primitive is not None:
        ROWS.setdefault(_row.primitive, []).append(_row)


def wrong(x: Any) -> Any:
    """A rule's result, 0.1 % off; integers and booleans, which have no 0.1 %, in reverse order."""
    if isinstance(x, list | tuple):
        return type(x)(wrong(part) for part in x)
    if not isinstance(x, Array | np.ndarray | np.generic):
        return x
    if dtypes.is_inexact(x.dtype):
        return (x * FACTOR).astype(x.dtype)
    if isinstance(x, Array):
        return nv.logical_not(x) if dtypes.is_bool(x.dtype) else x + nv.ones_like(x)
    return ~np.asarray(x) if dtypes.is_bool(x.dtype) else np.asarray(x + np.ones_like(x))


def _after(rule: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(*args: Any, **params: Any) -> Any:
        return wrong(rule(*args, **params))

    return mutated


def _constant(value: float) -> Callable[..., Any]:
    def derivative(out: Any, *xs: Any, **params: Any) -> Any:
        return nv.ones_like(out) * value

    return derivative


def _vmap_after(rule: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(*args: Any, **params: Any) -> Any:
        out, axis = rule(*args, **params)
        return wrong(out), axis

    return mutated


def _lower_after(rule: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(*args: Any, out: Any = None, **params: Any) -> Any:
        return wrong(rule(*args, **params))

    return mutated


@dataclasses.dataclass(frozen=True)
class Mutation:
    primitive: Primitive
    rule: str
    operand: int | None = None

    def __str__(self) -> str:
        place = "" if self.operand is None else f"-{self.operand}"
        return f"{self.primitive.name}-{self.rule}{place}"

    def value(self) -> Any:
        rule = getattr(self.primitive, self.rule)
        if self.rule == "derivatives":
            i = self.operand
            assert i is not None
            d = rule[i]
            if callable(d):
                changed = _after(d)
            else:
                changed = _constant({ONE: FACTOR, MINUS_ONE: -FACTOR, ZERO: FACTOR - 1}[d])
            return (*rule[:i], changed, *rule[i + 1 :])
        wrap = {"vmap": _vmap_after, "lower": _lower_after}.get(self.rule, _after)
        return wrap(rule)

    def caught_by(self, row: Case) -> bool:
        args = tuple(map(np.asarray, row.args))
        try:
            if self.rule == "lower":
                return _reference_fails(row, args)
            if self.rule == "vmap":
                check_vmap(row.function, args, vary="same-batch" not in row.tags, limit=8)
            elif self.rule == "vjp":
                check_vjp(row.function, args)
            else:
                check_jvp(row.function, args)
        except AssertionError:
            return True
        return False


def _reference_fails(row: Case, args: tuple[np.ndarray, ...]) -> bool:
    assert row.reference is not None
    found = numpy_leaves(row.function(*map(from_numpy, args)))
    with np.errstate(all="ignore"):
        expected = row.reference(*row.args)
    expected = list(expected) if isinstance(expected, list | tuple) else [expected]
    return not all(
        close(a, np.asarray(b).astype(a.dtype), row.rtol, row.rtol / 10)
        for a, b in zip(found, expected, strict=True)
    )


def _mutations() -> Iterator[Mutation]:
    for p in list(TABLE.values()):
        if p in RECORDING or p.kind in ("call", "effect") or p.name not in ROWS:
            continue
        if p.derivatives is not None:
            for i, d in enumerate(p.derivatives):
                # NOT_DIFFERENTIABLE is no rule; what gives integers has no derivative to be wrong.
                zero = d is ZERO and any(row.differentiable for row in ROWS[p.name])
                if callable(d) or d is ONE or d is MINUS_ONE or zero:
                    yield Mutation(p, "derivatives", i)
        else:
            for rule in ("jvp", "vjp"):
                if callable(getattr(p, rule)):
                    yield Mutation(p, rule)
        if p.vmap is not None:
            yield Mutation(p, "vmap")
        if any(row.reference is not None for row in ROWS[p.name]):
            yield Mutation(p, "lower")


MUTATIONS = list(_mutations())


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_rule_wrong_by_a_thousandth_is_caught(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ROWS[mutation.primitive.name]
    if mutation.rule == "lower":
        rows = [row for row in rows if row.reference is not None]
    elif mutation.rule != "vmap":
        rows = [row for row in rows if row.differentiable]
    monkeypatch.setattr(mutation.primitive, mutation.rule, mutation.value())
    assert any(mutation.caught_by(row) for row in rows), f"{len(rows)} rows did not notice"


# --- Communications, inside the rules


class _Sabotage(threading.local):
    """What happens to communications that are bound meanwhile, in this thread."""

    how: str | None = None
    held: Any = None


_sabotage = _Sabotage()


@pytest.fixture
def sabotaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes bind and the log of communications obey `_sabotage`."""
    bind, log_effect = Primitive.bind, primitive_module.log_effect

    def mutated_bind(self: Primitive, *arrays: Any, **params: Any) -> Any:
        how = _sabotage.how
        if not self.effect or how in (None, "swapped"):
            return bind(self, *arrays, **params)
        if how == "duplicated":
            bind(self, *arrays, **params)
            return bind(self, *arrays, **params)
        avals = self.shape_rule(*[a.aval for a in arrays], **params)
        same = [a.aval for a in arrays] == list(avals)
        return list(arrays) if same else [nv.zeros(a.shape, a.dtype) for a in avals]

    def mutated_log(node: Any, traces: Any) -> None:
        if _sabotage.how == "swapped" and _sabotage.held is None:
            _sabotage.held = (node, traces)
            return
        log_effect(node, traces)
        if _sabotage.held is not None:
            held, _sabotage.held = _sabotage.held, None
            log_effect(*held)

    monkeypatch.setattr(Primitive, "bind", mutated_bind)
    monkeypatch.setattr(primitive_module, "log_effect", mutated_log)


@contextmanager
def _done_to(how: str) -> Iterator[None]:
    before, _sabotage.how = _sabotage.how, how
    try:
        yield
    finally:
        _sabotage.how = before


def _sabotaging(rule: Callable[..., Any], how: str) -> Callable[..., Any]:
    def mutated(*args: Any, **params: Any) -> Any:
        with _done_to(how):
            return rule(*args, **params)

    return mutated


VECTORS: dict[str, CollectiveCase] = {}
for _case in CASES:
    if _case.label in ("matrix", "vector") and "f" in _case.kinds:
        VECTORS.setdefault(_case.primitive, _case)

COMMUNICATIONS = [
    (name, rule, how)
    for name in VECTORS
    for rule in ("jvp", "vjp", "vmap")
    for how in ("dropped", "duplicated", "swapped")
]


def _first_of_two(case: CollectiveCase) -> Callable[..., Any]:
    """The case's function, between two communications it does not depend on."""

    def function(group: Any, *args: Any) -> Any:
        before = nd.all_sum(nv.stack([args[0], args[0]]), group)
        out = case.function(group, *args)
        return before, out, nd.all_gather(args[0] * 3, group)

    return function


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("name", "rule", "how"),
    [pytest.param(*c, id="-".join(c)) for c in COMMUNICATIONS],
)
def test_a_communication_inside_a_rule(
    name: str, rule: str, how: str, monkeypatch: pytest.MonkeyPatch, sabotaged: None
) -> None:
    case, primitive = VECTORS[name], TABLE[name]
    function = _first_of_two(case)
    operands = tuple(np.ones(s) for s in case.shapes(2))
    monkeypatch.setattr(primitive, rule, _sabotaging(getattr(primitive, rule), how))
    with pytest.raises(AssertionError):
        check_collective(function, operands, (2,), timeout=1)


# --- Communications, in a compiled program


def _edit(ir: IR, how: str) -> IR:
    """The program with its second communication dropped, doubled, or before its first."""
    effects = [k for k, e in enumerate(ir.eqns) if e.effect]
    if len(effects) < 2:
        return ir
    first, second = effects[:2]
    eqns = list(ir.eqns)
    eqn = eqns[second]
    if how == "duplicated":
        again = Eqn(eqn.primitive, eqn.inputs, tuple(type(v)(v.aval) for v in eqn.outputs),
                    eqn.params, eqn.source)  # fmt: skip
        eqns.insert(second, again)
    elif how == "swapped":
        eqns.pop(second)
        needed = {v for v in eqn.inputs if not hasattr(v, "value")}
        for k in reversed(range(first, second)):  # with what it needs, before the first
            if needed & set(eqns[k].outputs) and k > first:
                moved = eqns.pop(k)
                needed |= {v for v in moved.inputs if not hasattr(v, "value")}
                eqns.insert(first, moved)
        place = next(k for k, e in enumerate(eqns) if e.effect)
        eqns.insert(place, eqn)
    else:
        outs = {v: _zeros(v.aval) for v in eqn.outputs}
        constants = (*ir.constants, *outs.items())
        eqns.pop(second)
        return IR(ir.inputs, constants, tuple(eqns), ir.outputs)
    return IR(ir.inputs, ir.constants, tuple(eqns), ir.outputs)


def _zeros(a: Any) -> np.ndarray:
    return np.zeros(a.shape, a.dtype)


COMPILED = [(name, how) for name in VECTORS for how in ("dropped", "duplicated", "swapped")]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("name", "how"),
    [pytest.param(*c, id="-".join(c)) for c in COMPILED],
)
def test_a_communication_in_a_compiled_program(
    name: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = VECTORS[name]
    trace_ir = compile_module.trace_ir

    def mutated(*args: Any, **kwargs: Any) -> Any:
        ir, captures = trace_ir(*args, **kwargs)
        return _edit(ir, how), captures

    monkeypatch.setattr(compile_module, "trace_ir", mutated)
    operands = tuple(np.ones(s) for s in case.shapes(2))
    with pytest.raises(AssertionError):
        check_collective(_first_of_two(case), operands, (2,), timeout=1)


def test_the_checks_pass_without_mutations(sabotaged: None) -> None:
    for name in ("all_sum", "send"):
        case = VECTORS[name]
        operands = tuple(np.ones(s) for s in case.shapes(2))
        check_collective(_first_of_two(case), operands, (2,))


def test_what_is_not_differentiable_has_no_rule_to_mutate() -> None:
    for p in TABLE.values():
        if p.jvp is NOT_DIFFERENTIABLE:
            assert p.vjp is NOT_DIFFERENTIABLE
