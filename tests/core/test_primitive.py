"""A record of a primitive is complete, or refused when it is made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.interpreter import interpret
from nuvec.core.ir import aval
from nuvec.core.ops.build import elementwise_rule
from nuvec.core.parser import parse
from nuvec.core.primitive import NOT_BATCHABLE, NOT_DIFFERENTIABLE, ONE, TABLE, ZERO, Primitive
from tests.core.toy_ir import NO_RULES

pytestmark = pytest.mark.usefixtures("own_primitives")


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
    ("other", "updates= .* give it out=True", {**RULES, "updates": 0}),
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


# --- Names


@pytest.mark.parametrize(
    "name",
    [5, None, b"x", ["x"], "", "a b", "a[b", "a]", "a=b", "a-b", "1a", "a.", ".a", "a..b", "a\n",
     "a:b", "(a)"],
)  # fmt: skip
def test_a_name_that_text_cannot_carry(name: Any) -> None:
    with pytest.raises(ValueError, match=r"its name must be a str of identifiers"):
        Primitive(name, same, same, "other", **NO_RULES)


@pytest.mark.parametrize("name", ["a", "test.a_1", "inf", "nan.x", "in", "lambda", "a.bü"])
def test_a_name_comes_back(name: str) -> None:
    p = make(name=name, **NO_RULES)
    ir = nv.make_ir(p.bind)(nv.ones(3))
    assert parse(str(ir)).eqns[0].primitive is p


# --- What a shape rule returns


@pytest.mark.parametrize(
    ("dtype", "meant"),
    [(np.int32, nv.int32), ("float32", nv.float32), (np.dtype("f8"), nv.float64),
     (nv.bfloat16, nv.bfloat16), (nv.bfloat16.type, nv.bfloat16), ("bfloat16", nv.bfloat16),
     (float, nv.float32), (">f4", nv.float32), (np.dtype(">i8"), nv.int64)],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(3,), [3], (np.int64(3),), np.array([3])])
def test_a_shape_rule_says_shape_and_dtype_in_any_way(dtype: Any, meant: Any, shape: Any) -> None:
    p = Primitive(
        "test.p", lambda x: np.zeros(3, meant), lambda x: aval(shape, dtype), "other", **NO_RULES
    )
    for f in (p.bind, nv.compile(p.bind)):
        y = f(nv.ones(3))
        assert y.dtype is meant and y.shape == (3,) and type(y.shape[0]) is int
        assert y.aval is aval((3,), meant) and np.asarray(y).dtype == meant
    assert str(nv.make_ir(p.bind)(nv.ones(3))).count(f"{meant.name}[3] = test.p") == 1


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((-3,), np.float32), ((7.5,), np.float32), ((None,), np.float32), (3, np.float32),
     ("33", np.float32), ((2, "3"), np.float32), ((3,), "float99"), ((3,), None),
     ((3,), np.object_), ((3,), "<U3")],
)  # fmt: skip
def test_a_shape_rule_that_says_no_aval_is_named(shape: Any, dtype: Any) -> None:
    for effect in (False, True):  # whose shape rules are not cached
        p = make(name=f"test.p{effect}", effect=effect, **NO_RULES)
        p.shape_rule = lambda x: aval(shape, dtype)
        with pytest.raises(nv.NuvecError, match=rf"the shape rule of test.p{effect}.* of an aval"):
            p.bind(nv.ones(3))
    with pytest.raises(ValueError, match="of an aval"):
        aval(shape, dtype)


# --- A lowering that breaks its shape rule

BROKEN: list[tuple[Any, str]] = [
    (lambda x: x[:1], r"float32\[1,3\]"),
    (lambda x: x.astype(np.float64), r"float64\[2,3\]"),
    (lambda x: x[0, 0], r"float32\[\]"),
    (lambda x: 2.0, "a float"),
    (lambda x: None, "a NoneType"),
    (lambda x: x.tolist(), "a list"),
    (lambda x: (x,), "a tuple"),
    (np.isnan, r"bool\[2,3\]"),  # a ufunc, which compiled programs call directly
]
RUNS: list[Any] = [
    lambda f, x: np.asarray(f(x)),
    lambda f, x: np.asarray(f(x).sum()),  # the value itself is never handed out
    lambda f, x: nv.compile(f)(x),
    lambda f, x: nv.compile(lambda x: f(x) + 1)(x),
    lambda f, x: nv.compile(lambda: f(nv.ones((2, 3))) * 2)(),  # computed when it is compiled
    lambda f, x: np.asarray(nv.scan(lambda c, y: (f(c), y), x, nv.ones(2))[0]),
    lambda f, x: interpret(nv.make_ir(f)(x), np.asarray(x)),
]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(("lower", "returned"), BROKEN)
def test_a_lowering_that_breaks_its_shape_rule(run: Any, lower: Any, returned: str) -> None:
    p = Primitive("test.p", lower, elementwise_rule("p"), "other", **NO_RULES)
    message = rf"the lowering of test.p, .*(lambda|isnan).*returned {returned}.*says float32\[2,3\]"
    for _ in range(2):
        with pytest.raises(nv.NuvecError, match=message):
            run(p.bind, nv.ones((2, 3)))


def test_a_lowering_with_too_few_results() -> None:
    p = Primitive("test.p", lambda x: (x,), lambda x: (x, x), "other", multiple=True, **NO_RULES)
    for f in (p.bind, nv.compile(p.bind)):
        with pytest.raises(nv.NuvecError, match=r"test.p.*returned 1 results.*says 2 results"):
            nv.eval(f(nv.ones(3)))


def test_a_lowering_that_depends_on_values_is_looked_at_each_time() -> None:
    p = Primitive("test.p", lambda x: x[x > 0], elementwise_rule("p"), "other", **NO_RULES)
    for f in (p.bind, nv.compile(p.bind)):
        np.testing.assert_array_equal(f(nv.ones(3)), np.ones(3))
        with pytest.raises(nv.NuvecError, match=r"returned float32\[2\]"):
            nv.eval(f(nv.array([1.0, -1.0, 1.0])))


def test_only_what_is_declared_elsewhere_is_looked_at() -> None:
    own = {p.name for p in TABLE.values() if p.foreign}
    assert make(**NO_RULES).foreign and not own & {"sin", "scan", "depends", "all_sum", "all_max"}


# --- Wrong calls of bind


@pytest.mark.parametrize("operand", [np.ones(3), [1.0], 2.0, None, np.float32(1), "x"])
def test_operands_that_are_no_arrays(operand: Any) -> None:
    p = make(**NO_RULES)
    message = rf"test.p.bind takes Arrays, and operand 1 is a {type(operand).__name__}.*nv.array"
    x = nv.ones(3)
    for f in (lambda f: f, nv.compile, nv.grad, nv.vmap):
        with pytest.raises(TypeError, match=message):
            f(lambda x: p.bind(x, operand, by=1).sum())(x)


def test_a_custom_function_bound_to_no_array() -> None:
    with pytest.raises(TypeError, match=r"checkpoint.bind takes Arrays, and operand 0 is a float"):
        nv.grad(lambda x: TABLE["checkpoint"].bind(2.0, ir=None, name="f", policy=None))(1.0)


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, np.ones(2), (1, [2]), {1}])
def test_parameters_that_cannot_be_hashed(value: Any) -> None:
    p = make(**NO_RULES)
    for f in (lambda f: f, nv.compile):
        with pytest.raises(TypeError, match=r"test.p: the parameter axes must be hashable"):
            f(lambda x: p.bind(x, by=1, axes=value))(nv.ones(3))


def test_parameters_that_are_arrays() -> None:
    p = make(**NO_RULES)
    for value in (nv.ones(2), (1, nv.ones(2))):
        for _ in range(2):
            with pytest.raises(TypeError, match=r"the parameter w holds an Array, float32\[2\]"):
                p.bind(nv.ones(3), w=value)
