"""parse(text of an IR) is the same IR: it runs, differentiates and batches to the same bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import nuvec as nv
from nuvec.core.array import from_numpy
from nuvec.core.check import check_ir
from nuvec.core.errors import IRError
from nuvec.core.interpreter import interpret
from nuvec.core.ir import IR, Aval, Eqn, Literal, Var, held_irs
from nuvec.core.parser import parse
from nuvec.core.primitive import TABLE
from nuvec.core.recording import replay
from nuvec.distributed.group import run_local
from nuvec.testing import random_case
from nuvec.testing import strategies as ns
from nuvec.testing.compare import primitives_in, same_bits
from nuvec.testing.programs import Case
from tests.core.toy_ir import NO_RULES

X = np.array([0.3, 0.7, 1.1], np.float32)
Function = Callable[..., Any]


class Same:
    """Asserts that two IRs are one program: equations, avals, parameters and constants; only the
    variables are others, each in the place of one."""

    def __init__(self, source: bool = False) -> None:
        self.source = source  # whether the user's lines are to be the same, too
        self.variables: dict[Any, Any] = {}
        self.records: dict[Any, Any] = {}

    def irs(self, a: IR, b: IR) -> None:
        self.binders(a.inputs, b.inputs)
        self.binders([v for v, _ in a.constants], [v for v, _ in b.constants])
        for (_, x), (_, y) in zip(a.constants, b.constants, strict=True):
            assert x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
        for e, f in zip(a.eqns, b.eqns, strict=True):
            self.eqns(e, f)
        self.atoms(a.outputs, b.outputs)
        assert a.effect == b.effect

    def binders(self, xs: Sequence[Var], ys: Sequence[Var]) -> None:
        for x, y in zip(xs, ys, strict=True):
            assert x.aval is y.aval
            self.variables[x] = y

    def atoms(self, xs: Sequence[Any], ys: Sequence[Any]) -> None:
        for x, y in zip(xs, ys, strict=True):
            assert x.aval is y.aval
            if isinstance(x, Literal):
                assert np.asarray(x.value).tobytes() == np.asarray(y.value).tobytes()
            else:
                assert self.variables[x] is y

    def eqns(self, a: Eqn, b: Eqn) -> None:
        assert a.primitive is b.primitive
        assert a.source == b.source or not self.source
        self.atoms(a.inputs, b.inputs)
        self.binders(a.outputs, b.outputs)
        assert list(a.params) == list(b.params)
        for name in a.params:
            self.values(a.params[name], b.params[name])

    def values(self, a: Any, b: Any) -> None:
        assert type(a) is type(b)
        if isinstance(a, IR):
            Same.irs(self, a, b)
        elif isinstance(a, tuple | list):
            for x, y in zip(a, b, strict=True):
                self.values(x, y)
        elif dataclasses.is_dataclass(a) and hasattr(a, "text_fields"):
            known = a in self.records
            assert self.records.setdefault(a, b) is b
            if not known:
                for name in (*a.text_fields, "effect", "queue"):
                    self.values(getattr(a, name), getattr(b, name))
        elif isinstance(a, Aval | np.dtype) or callable(a):
            assert a is b or a == b
        else:
            assert a == b and str(a) == str(b)


def round_trip(ir: IR, groups: Any = None) -> IR:
    """The IR read back from its text, after all that can be said of it without running it."""
    for constants, source in (("short", False), ("short", True), ("full", True), ("full", False)):
        text = ir.to_text(source, constants)
        if constants == "short" and " values>" in text:
            continue  # it says so: see test_large_constants
        again = parse(text, groups)
        check_ir(again)
        assert again.to_text(source, constants) == text
        Same(source).irs(ir, again)
    return again


def bits_of(ir: IR, values: Sequence[Any]) -> list[np.ndarray]:
    return [np.asarray(v) for v in interpret(ir, *values)]


def assert_same_results(a: Sequence[Any], b: Sequence[Any]) -> None:
    for x, y in zip(a, b, strict=True):
        assert same_bits(np.asarray(x), np.asarray(y)), (x, y)


# --- Every primitive that holds programs


def _softsign() -> Function:
    @nv.custom_vjp
    def f(x: Any) -> Any:
        return x / (1 + nv.abs(x))

    f.defvjp(lambda x: (f(x), x), lambda x, c: (c * 3 / (1 + nv.abs(x)) ** 2,))  # 3: not its own
    return f


def _with_both_rules() -> Function:
    f = _softsign()
    f.defjvp(lambda xs, ts: (f(*xs), ts[0] * 5))  # type: ignore[attr-defined]
    return f


def _custom_forward() -> Function:
    @nv.custom_jvp
    def f(x: Any) -> Any:
        return nv.sin(x)

    f.defjvp(lambda xs, ts: (f(*xs), ts[0] * nv.cos(xs[0]) * 7))
    return f


def _capturing() -> Function:
    weights = nv.array([1.0, 10.0, 100.0])

    @nv.custom_vjp
    def f(x: Any) -> Any:
        return nv.sum(x * weights)

    f.defvjp(lambda x: (nv.sum(x * weights), (x, 2)), lambda r, c: (c * weights * r[1],))
    return f


def _recursive(x: Any) -> Any:
    """A rule whose forward calls the function, inside another one whose forward calls both."""
    inner = _softsign()

    @nv.custom_vjp
    def outer(x: Any) -> Any:
        return inner(x) * 2

    outer.defvjp(lambda x: (outer(x), inner(x)), lambda r, c: (c * outer(r),))
    return outer(x) + inner(x)


FUNCTIONS: dict[str, Function] = {
    "call": lambda x: nv.compile(lambda x: nv.tanh(x) * x)(x),
    "cond": lambda x: nv.cond(x[0] > 0, lambda x: x * 2, lambda x: nv.sin(x), x),
    "switch": lambda x: nv.switch(nv.array(1), [nv.sin, nv.cos, nv.tanh], x),
    "scan": lambda x: nv.scan(lambda c, y: (c * y + 1, nv.sin(c)), x, nv.stack([x, x + 1])),
    "reverse scan": lambda x: nv.scan(lambda c, y: (c * y, c), x, x, reverse=True),
    "while": lambda x: nv.while_loop(lambda c: nv.sum(c) < 9, lambda c: c * 2, x, max_steps=5),
    "while without a bound": lambda x: nv.while_loop(lambda c: nv.sum(c) < 9, lambda c: c * 2, x),
    "fori": lambda x: nv.fori_loop(0, 3, lambda i, c: nv.sin(c) + i, x),
    "map": lambda x: nv.map(lambda y: nv.exp(y) * 2, x),
    "associative": lambda x: nv.associative_scan(lambda a, b: a * b, x),
    "nothing": lambda x: nv.checkpoint(lambda x: nv.sin(nv.sin(x)))(x),
    "dots": lambda x: nv.checkpoint(lambda x: nv.tanh(nv.dot(x, x) * x), policy="dots")(x),
    "everything": lambda x: nv.checkpoint(nv.sin, policy="everything")(x),
    "custom_vjp": lambda x: _softsign()(x) * x,
    "custom_vjp and jvp": lambda x: _with_both_rules()(x) * x,
    "custom_jvp": lambda x: _custom_forward()(x) * x,
    "captures": lambda x: _capturing()(x) * x,
    "recursive": _recursive,
    "in a loop": lambda x: nv.scan(lambda c, y: (_softsign()(c) + y, _recursive(c)), x, x),
    "in checkpoint": lambda x: nv.checkpoint(lambda x: _custom_forward()(_softsign()(x)))(x),
    "random": lambda x: x * nv.random.uniform(nv.random.key(3), shape=(3,)),
    "indices": lambda x: x.at[nv.array([0, 2])].add(x[nv.array([1, 1])], mode="clip")[::-1],
}  # fmt: skip


def _total(f: Function) -> Function:
    return lambda x: sum(nv.sum(o) for o in nv.tree.leaves(f(x)) if o.dtype == np.float32)


TRANSFORMS: dict[str, Callable[[Function], Function]] = {
    "plain": lambda f: f,
    "grad": lambda f: nv.grad(_total(f)),
    "jvp": lambda f: lambda x: nv.jvp(f, (x,), (x * 2,)),
    "vmap": lambda f: lambda x: nv.vmap(f)(nv.stack([x, x * 2])),
    "compile": nv.compile,
    "grad of vmap": lambda f: nv.grad(_total(lambda x: nv.vmap(f)(nv.stack([x, x * 2])))),
    "vmap of grad": lambda f: lambda x: nv.vmap(nv.grad(_total(f)))(nv.stack([x, x * 2])),
}

PAIRS = [
    (name, transform)
    for name in FUNCTIONS
    for transform in TRANSFORMS
    if not (name == "while without a bound" and "grad" in transform)  # there is no reverse mode
]


@pytest.mark.parametrize(("name", "transform"), PAIRS)
def test_what_a_transform_records_comes_back(name: str, transform: str) -> None:
    f = TRANSFORMS[transform](FUNCTIONS[name])
    ir = nv.make_ir(f)(X)
    again = round_trip(ir)
    captured = [np.array([1, 10, 100], np.float32)] * (len(ir.inputs) - 1)
    assert_same_results(bits_of(again, [*captured, X]), bits_of(ir, [*captured, X]))


@pytest.mark.parametrize(("name", "transform"), PAIRS)
def test_what_came_back_is_transformed_to_the_same_bits(name: str, transform: str) -> None:
    """Not only what was recorded: its rules are all there, to be used later."""
    ir = nv.make_ir(FUNCTIONS[name])(X)
    again = round_trip(ir)
    captured = [nv.array([1.0, 10.0, 100.0])] * (len(ir.inputs) - 1)

    def run(program: IR) -> list[Any]:
        def function(x: Any) -> Any:
            return replay(program, [*captured, x])

        return nv.tree.leaves(TRANSFORMS[transform](function)(nv.array(X)))

    assert_same_results(run(again), run(ir))


def test_every_primitive_that_holds_programs_is_met() -> None:
    found: set[str] = set()
    for f in FUNCTIONS.values():
        found |= primitives_in(nv.make_ir(f)(X))
    wanted = {n for n, p in TABLE.items() if p.higher_order and not n.startswith(("toy.", "test."))}
    assert wanted <= found


# --- Custom rules


def test_a_rule_reads_as_programs() -> None:
    text = str(nv.make_ir(lambda x: _with_both_rules()(x))(X))
    assert "rule=&1 Rule[" in text
    for field in ("name='f'", "fun=fun", "forward={ lambda", "backward={ lambda", "jvp={ lambda"):
        assert field in text, text
    assert text.count("rule=*1") == 2  # in its forward and in its jvp, which call the function
    assert nv.make_ir(lambda x: _softsign()(x))(X).eqns[0].params["rule"].jvp is None


def test_one_rule_is_one_rule_again() -> None:
    f = _softsign()
    again = parse(str(nv.make_ir(lambda x: f(x))(X)))
    rule = again.eqns[0].params["rule"]
    assert rule.forward.eqns[0].params["rule"] is rule
    assert again.eqns[0].params["fun"] is rule.fun


def test_the_programs_of_a_rule_are_checked() -> None:
    ir = parse(str(nv.make_ir(lambda x: _softsign()(x))(X)))
    rule = ir.eqns[0].params["rule"]
    places = [place for place, _ in held_irs(ir.eqns[0], set())]
    assert places == ["fun", "rule.fun", "rule.forward", "rule.backward"]
    b = rule.backward
    rule.backward = IR(b.inputs, b.constants, b.eqns[1:], b.outputs)
    with pytest.raises(IRError, match=r"not defined before in the parameter rule.backward of cust"):
        check_ir(ir)


def test_a_communicating_rule() -> None:
    def program(group: Any) -> None:
        @nv.custom_vjp
        def f(x: Any) -> Any:
            return x * 2

        f.defvjp(
            lambda x: (x * 2, None), lambda _, c: (nv.distributed.all_sum(c, group),)
        )  # the backward alone communicates
        ir = nv.make_ir(lambda x: f(x))(X)
        again = round_trip(ir, {"world": group})
        rule = again.eqns[0].params["rule"]
        assert again.effect and rule.effect and rule.queue is group.queue
        g = nv.grad(lambda x: nv.sum(replay(again, [x])[0]))(nv.array(X))
        np.testing.assert_array_equal(g, [2, 2, 2])

    run_local(program, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("rule=*1", "rule=*2"), r"rule of custom_rule is \*2, and no &2 stands before it"),
        (("&1 Rule", "&1 Rules"), "the parameter rule of custom_rule cannot be a Rules"),
        (("name='f'", "label='f'"), "the parameter rule of custom_rule: .*'label'"),
        (("count=1", ""), "the parameter rule of custom_rule: .*'count'"),
        (("fun=fun", "fun=fan"), "fan is not a dtype"),
    ],
)
def test_a_malformed_rule(change: tuple[str, str], message: str) -> None:
    text = str(nv.make_ir(lambda x: _softsign()(x))(X))
    assert change[0] in text
    with pytest.raises(IRError, match=message):
        parse(text.replace(*change))


def test_a_primitive_of_ones_own_has_words() -> None:
    @dataclasses.dataclass(eq=False)
    class Window:
        size: int
        step: int = 1
        text_fields = ("size", "step")
        ready = False

        def restored(self) -> None:
            self.ready = True

    def fast(x: Any) -> Any:
        return x

    own = nv.Primitive(
        "test.words", lambda x, **params: x, lambda x, **params: x, "other",
        words={"how": {"fast": fast}, "window": {"Window": Window}}, **NO_RULES,
    )  # fmt: skip
    try:
        window = Window(3)
        ir = nv.make_ir(lambda x: own.bind(own.bind(x, how=(fast, 1)), window=window, how=fast))(X)
        text = " ".join(str(ir).split())
        assert "test.words[how=(fast, 1)] x" in text
        assert "test.words[window=&1 Window[size=3 step=1] how=fast] a" in text
        first, second = parse(text).eqns
        assert first.params["how"] == (fast, 1) and second.params["how"] is fast
        found = second.params["window"]
        assert (found.size, found.step, found.ready) == (3, 1, True)
    finally:
        del TABLE["test.words"]


# --- Policies


@pytest.mark.parametrize("policy", ["nothing", "dots", "everything"])
def test_policies_have_names(policy: Any) -> None:
    ir = nv.make_ir(nv.checkpoint(nv.sin, policy=policy))(X)
    assert f"policy={policy}\n" in str(ir)
    again = parse(str(ir))
    assert again.eqns[0].params["policy"] is ir.eqns[0].params["policy"]


def test_a_policy_of_ones_own_is_named_where_it_is_missed() -> None:
    def mine(name: str, avals: Any, params: Any) -> bool:
        return name == "sin"

    ir = nv.make_ir(nv.checkpoint(nv.sin, policy=mine))(X)
    with pytest.raises(IRError, match=r"the parameter policy of checkpoint cannot.*mine"):
        parse(str(ir))
    text = str(ir).replace("<function test_", "dots  # <")
    assert parse(text).eqns[0].params["policy"].__name__ == "dots"  # what to write instead
    with pytest.raises(IRError, match="every is not a dtype"):
        parse(str(nv.make_ir(nv.checkpoint(nv.sin))(X)).replace("nothing", "every"))


# --- Constants


def test_large_constants() -> None:
    large = np.linspace(-1, 1, 1000, dtype=np.float32).reshape(10, 100)
    ir = nv.make_ir(lambda x: nv.sum(x + nv.array(large)))(1.0)
    assert "<1000 values>" in str(ir) and "bytes(" not in str(ir)
    with pytest.raises(IRError, match=r"1000 values.*ir.to_text\(constants='full'\)"):
        parse(str(ir))
    again = round_trip(ir)
    np.testing.assert_array_equal(again.constants[0][1], large)
    inside = nv.make_ir(lambda x: nv.scan(lambda c, _: (c + nv.array(large), c), x, length=2))
    round_trip(inside(large))


# --- Random programs


def _comes_back(case: Case) -> None:
    def program(group: Any) -> None:
        arrays = [from_numpy(v) for v in case.points[0][group.rank()]]

        def f(*xs: Any) -> Any:
            return case.program(group, *xs)

        for g in (f, lambda *xs: nv.vjp(f, *xs)[1](f(*xs))):
            ir = nv.make_ir(g)(*arrays)
            again = round_trip(ir, {"world": group})
            assert len(ir.inputs) == len(arrays)
            found, expected = replay(again, arrays), replay(ir, arrays)
            nv.eval(found, expected)
            assert_same_results(found, expected)

    run_local(program, case.ranks)


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_random_programs_come_back(first: int) -> None:
    for seed in range(first, first + 10):
        _comes_back(random_case(seed))


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(ns.programs(ranks=1, sizes=(3, 12)))
def test_drawn_programs_come_back(case: Case) -> None:
    _comes_back(case)
