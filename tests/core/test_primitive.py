"""A record of a primitive is complete, or refused when it is made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.ir import aval
from nuvec.core.ops.build import elementwise_rule
from nuvec.core.primitive import NOT_BATCHABLE, NOT_DIFFERENTIABLE, ONE, TABLE, ZERO, Primitive
from tests.core.toy_ir import NO_RULES


@pytest.fixture(autouse=True)
def table() -> Iterator[None]:
    before = set(TABLE)
    yield
    for name in set(TABLE) - before:
        del TABLE[name]


def same(x: Any, **params: Any) -> Any:
    return x


def rule(*args: Any, **params: Any) -> Any:
    raise AssertionError("never run")


def make(kind: Any = "other", name: str = "test.p", **rules: Any) -> Primitive:
    return Primitive(name, same, same, kind, **rules)


RULES: dict[str, Any] = {"jvp": rule, "vjp": rule, "vmap": rule}

INCOMPLETE: list[tuple[str, str, dict[str, Any]]] = [
    ("elementwise", r"no rule for forward and reverse mode.*derivatives=.*NOT_DIFFERENTIABLE", {}),
    ("elementwise", "no rule for reverse mode", {"jvp": rule}),
    ("elementwise", "no rule for forward mode", {"vjp": rule}),
    ("other", r"no rule for forward and reverse mode.*transpose=.*jvp=NOT_DIFF", {"vmap": rule}),
    ("view", "no rule for forward and reverse", {"vmap": rule}),
    ("reduction", "no rule for reverse mode", {"jvp": rule, "vmap": rule}),
    ("contraction", "no rule for forward mode", {"vjp": rule, "vmap": rule}),
    ("contraction", "no rule for reverse mode", {"linear": "each", "vmap": rule}),
    ("effect", "no rule for forward and reverse", {"effect": True, "vmap": rule}),
    ("call", "no rule for forward and reverse", {"higher_order": True, "vmap": rule}),
    ("other", "no vmap rule.*NOT_BATCHABLE", {"jvp": rule, "vjp": rule}),
    ("view", "no vmap rule", {"transpose": rule}),
    ("gather", "no vmap rule", {"jvp": NOT_DIFFERENTIABLE, "vjp": NOT_DIFFERENTIABLE}),
    ("call", "no vmap rule", {"split": rule, "higher_order": True}),
    ("other", "both be NOT_DIFFERENTIABLE", {**RULES, "jvp": NOT_DIFFERENTIABLE}),
    ("other", "both be NOT_DIFFERENTIABLE", {**RULES, "vjp": NOT_DIFFERENTIABLE}),
    ("elementwise", r"derivatives must be a tuple.*\(d,\)", {"derivatives": rule}),
    ("elementwise", "derivatives must be a tuple", {"derivatives": NOT_DIFFERENTIABLE}),
    ("elementwise", "derivative 1 is None", {"derivatives": (ONE, None)}),
    ("elementwise", "derivative 0 is 2.0", {"derivatives": (2.0,)}),
    ("elementwise", "derivative 0 is NOT_BATCHABLE", {"derivatives": (NOT_BATCHABLE,)}),
    ("other", "vmap must be a function, got 0", {**RULES, "vmap": 0}),
    ("other", "jvp must be a function, got ZERO", {**RULES, "jvp": ZERO}),
    ("elementary", "kind='elementary' is none of 'elementwise', 'reduction'", RULES),
]


@pytest.mark.parametrize(("kind", "message", "rules"), INCOMPLETE)
def test_an_incomplete_record_is_refused(kind: str, message: str, rules: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"Primitive\('test.p'\): .*{message}"):
        make(kind, **rules)
    assert "test.p" not in TABLE


def test_what_is_no_function() -> None:
    with pytest.raises(ValueError, match="lower must be a function, got None"):
        Primitive("test.p", None, same, "other", **RULES)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="shape_rule must be a function"):
        Primitive("test.p", same, aval((), nv.float32), "other", **RULES)  # type: ignore[arg-type]


COMPLETE: list[tuple[str, dict[str, Any]]] = [
    ("elementwise", {"derivatives": (NOT_DIFFERENTIABLE,)}),
    ("elementwise", {"derivatives": (ZERO,)}),
    ("elementwise", {"jvp": rule, "vjp": rule}),
    ("view", {"derivatives": (ONE,)}),  # which batches as an elementwise one
    ("view", {"transpose": rule, "vmap": rule}),
    ("contraction", {"linear": "each", "vjp": rule, "vmap": rule}),
    ("other", RULES),
    ("effect", NO_RULES),
    ("call", {"split": rule, "vmap": rule}),
]


@pytest.mark.parametrize(("kind", "rules"), COMPLETE)
def test_a_complete_record_is_accepted(kind: str, rules: dict[str, Any]) -> None:
    made = make(kind, **rules)
    assert TABLE["test.p"] is made


def test_every_operand_has_a_derivative() -> None:
    p = Primitive("test.p", np.add, elementwise_rule("p"), "elementwise", derivatives=(ONE,))
    with pytest.raises(nv.NuvecError, match=r"test.p has 1 derivatives and is given 2 operands"):
        p.bind(nv.ones(2), nv.ones(2))


def test_what_is_not_batchable_says_so_under_vmap() -> None:
    p = make(**NO_RULES)
    np.testing.assert_array_equal(p.bind(nv.ones(3)), np.ones(3))
    with pytest.raises(nv.NuvecError, match=r"test.p cannot be mapped by vmap.*nv.map"):
        nv.vmap(p.bind)(nv.ones(3))
    np.testing.assert_array_equal(nv.map(p.bind, nv.ones(3)), np.ones(3))
    plus = nv.vmap(lambda x, y: x + p.bind(y), (0, None))  # what is not mapped is no matter
    np.testing.assert_array_equal(plus(nv.ones(3), nv.array(1.0)), [2, 2, 2])
