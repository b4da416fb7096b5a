"""Rules of communications and of primitives that hold programs, each made wrong by 0.1 %.

`test_mutations.py` does the same with the rules of all others, and drops, doubles and swaps
communications.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec import distributed as nd
from nuvec.core.array import from_numpy
from nuvec.core.primitive import NOT_DIFFERENTIABLE, TABLE
from nuvec.distributed.group import run_local
from nuvec.testing import check_collective, check_jvp, check_vjp, check_vmap
from nuvec.testing.compare import close, numpy_leaves
from tests.testing.test_mutations import VECTORS, wrong

Rule = Callable[..., Any]
X = np.array([0.3, 0.7, 1.1])
WEIGHTS = np.array([0.5, 2.0, 1.5])


def _values(rule: Rule) -> Rule:
    return lambda *args, **params: wrong(rule(*args, **params))


def _batched(rule: Rule) -> Rule:
    def mutated(*args: Any, **params: Any) -> Any:
        outs, axes = rule(*args, **params)
        return wrong(outs), axes

    return mutated


def _split(rule: Rule) -> Rule:
    """The linear part is wrong; without one, the outputs, which carry their derivative."""

    def mutated(*args: Any) -> Any:
        outs, linear = rule(*args)
        if linear is None:
            return wrong(outs), None
        return outs, lambda moving: wrong(linear(moving))

    return mutated


MUTATE: dict[str, Callable[[Rule], Rule]] = {
    "lower": _values, "jvp": _values, "vjp": _values, "vmap": _batched, "axis": _batched,
    "split": _split, "inline": _values,
}  # fmt: skip


# --- Communications

# What no such change can show, and why.
EQUIVALENT = {
    ("barrier", rule): "it has no operands and no results with a value"
    for rule in ("lower", "jvp", "vjp", "vmap", "axis")
} | {
    ("axis_index", rule): "an integer, which has no derivative" for rule in ("jvp", "vjp")
} | {
    ("axis_index", "lower"): "never run: vmap replaces it while it traces the mapped function",
    ("axis_index", "vmap"): "never met: it has no operand that another vmap could batch",
    ("recv", "vjp"): "it has no operands; what it sends back is what send's vjp receives",
} | {
    (name, "axis"): "it refuses a mapped axis, which has no ranks that wait for each other"
    for name in ("send", "recv")
}  # fmt: skip


def _scaled(group: Any, x: Any) -> Any:
    return nd.sum_gradients(x, group) * nv.array(1.0 + group.rank())


def _summed(group: Any, x: Any) -> Any:
    return nd.sum_partials(x * nv.array(1.0 + group.rank()), group)


Ranks = list[np.ndarray]
# function, and what it gives a rank in NumPy
MEANING: dict[str, tuple[Rule, Rule]] = {
    name: (case.function, case.reference) for name, case in VECTORS.items()
} | {
    "sum_gradients": (_scaled, lambda v, r: v[r] * (1.0 + r)),
    "sum_partials": (_summed, lambda v, r: sum(x * (1.0 + k) for k, x in enumerate(v))),
    "axis_index": (lambda g, x: x * g.rank(), lambda v, r: v[r] * r),
}  # fmt: skip
ALONG_AXIS = {"sum_gradients.axis": "sum_gradients", "sum_partials.axis": "sum_partials"}
# Their derivatives take values for replicated, which a check with others on each rank does not
# give them: the rules of ranks are compared with those of an axis, which share nothing with them.
AGAINST_AXIS = ("sum_gradients", "sum_partials", "axis_index")


def _operands(name: str) -> Ranks:
    shape = VECTORS[name].shapes(2)[0] if name in VECTORS else (2, 3)
    first = np.linspace(0.5, 2, int(np.prod(shape))).reshape(shape)
    return [first, first[::-1] * 1.25]


def _check_values(name: str) -> None:
    """Every rank gets what NumPy says."""
    function, reference = MEANING[name]
    values = _operands(name)
    found = run_local(lambda g: numpy_leaves(function(g, from_numpy(values[g.rank()])))[0], 2)
    for r, x in enumerate(found):
        assert close(x, reference(values, r), 1e-9, 1e-9)


Transform = Callable[[Rule], Rule]


def _along(name: str, inside: Transform, outside: Transform) -> np.ndarray:
    def on_element(x: Any) -> Any:
        group = nd.axis_group("ranks")
        return inside(lambda x: MEANING[name][0](group, x))(x)

    batch = from_numpy(np.stack(_operands(name)))
    mapped = nv.vmap(on_element, axis_name="ranks")
    return numpy_leaves(outside(mapped)(batch))[0]


def _among(name: str, transform: Transform) -> np.ndarray:
    values = _operands(name)

    def on_rank(group: Any) -> np.ndarray:
        f = transform(lambda x: MEANING[name][0](group, x))
        return numpy_leaves(f(from_numpy(values[group.rank()])))[0]

    return np.stack(run_local(on_rank, 2))


TRANSFORMS: dict[str, Transform] = {
    "none": lambda f: f,
    "grad": lambda f: nv.grad(lambda x: nv.sum(nv.sin(f(x)))),
    "jvp": lambda f: lambda x: nv.jvp(f, (x,), (x * 2,))[1],
    "vmap": lambda f: nv.vmap(lambda x: f(x) * 1, in_axes=-1, out_axes=-1),
}


def _check_axis(name: str) -> None:
    """Elements of a mapped axis are what ranks are, with a transform inside the mapped function
    and around the map."""
    nothing = TRANSFORMS["none"]
    for what, transform in TRANSFORMS.items():
        expected = _among(name, transform)
        for found in (_along(name, transform, nothing), _along(name, nothing, transform)):
            assert found.shape == expected.shape, what
            assert close(found, expected, 1e-9, 1e-9), what


def _check_rules(name: str) -> None:
    check_collective(MEANING[name][0], (_operands(name)[0],), (2,), timeout=1)


COMMUNICATIONS = [
    (name, rule)
    for name, p in TABLE.items()
    if p.kind == "effect"
    for rule in ("lower", "jvp", "vjp", "vmap", "axis")
    if getattr(p, rule) not in (None, NOT_DIFFERENTIABLE) and (name, rule) not in EQUIVALENT
]
CHECKS = {"lower": _check_values, "axis": _check_axis}


@lru_cache
def _passes(check: Callable[[str], None], subject: str) -> None:
    check(subject)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("name", "rule"),
    [pytest.param(*c, id="-".join(c)) for c in COMMUNICATIONS],
)
def test_a_communication_wrong_by_a_thousandth(
    name: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    primitive = TABLE[name]
    subject = ALONG_AXIS.get(name, name)
    check = CHECKS.get(rule, _check_axis if subject in AGAINST_AXIS else _check_rules)
    check = _check_axis if name in ALONG_AXIS else check
    _passes(check, subject)
    monkeypatch.setattr(primitive, rule, MUTATE[rule](getattr(primitive, rule)))
    with pytest.raises(AssertionError):
        check(subject)


# --- Primitives that hold programs


def _custom(x: Any) -> Any:
    @nv.custom_vjp
    def f(x: Any) -> Any:
        return nv.sin(x) * x

    def derivative(x: Any) -> Any:
        return nv.cos(x) * x + nv.sin(x)

    f.defvjp(lambda x: (f(x), x), lambda x, c: (c * derivative(x),))
    f.defjvp(lambda xs, ts: (f(*xs), ts[0] * derivative(*xs)))
    return f(x)


def _closing(x: Any) -> Any:
    """A rule that closes over a differentiated value, and whose forward calls the function."""

    @nv.custom_vjp
    def f(y: Any) -> Any:
        return nv.sin(y) * x

    f.defvjp(lambda y: (f(y), y), lambda y, c: (c * nv.cos(y) * x,))
    return f(x * 2)


HOLDING: dict[str, Rule] = {
    "call": lambda x: nv.compile(lambda x: nv.tanh(x) * x)(x),
    "cond": lambda x: nv.cond(x[0] < 9, lambda x: nv.sin(x) * x, lambda x: x, x),
    "scan": lambda x: nv.scan(lambda c, y: (c * y + 1, nv.sin(c)), x, nv.stack([x, x + 1])),
    "while_loop": lambda x: nv.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, nv.sin(c[1]) + 1), (0, x)
    )[1],
    "checkpoint": lambda x: nv.checkpoint(lambda x: nv.sin(nv.sin(x)) * x)(x),
    # Its own rules are met where a symbolic trace is differentiated.
    "custom_rule": lambda x: nv.compile(lambda x: _custom(x) + _closing(x))(x),
}  # fmt: skip
PROGRAMS = [
    (name, rule)
    for name, p in TABLE.items()
    if p.higher_order and not name.startswith(("test.", "toy."))
    for rule in ("lower", "vmap", "split", "inline")
    if getattr(p, rule) is not None
]


def _notices(name: str, expected: list[np.ndarray]) -> None:
    f = HOLDING[name]
    for g in (f, nv.compile(f)):
        for a, b in zip(numpy_leaves(g(from_numpy(X))), expected, strict=True):
            assert close(a, b, 1e-9, 1e-9)
    for x in (X, X[:1]):
        check_vmap(f, (x,), limit=4)
    check_jvp(f, (X,))
    if name != "while_loop":  # which has no reverse mode
        check_vjp(f, (X,))


@pytest.mark.parametrize(("name", "rule"), [pytest.param(*c, id="-".join(c)) for c in PROGRAMS])
def test_a_program_wrong_by_a_thousandth(
    name: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    primitive = TABLE[name]
    expected = numpy_leaves(HOLDING[name](from_numpy(X)))
    _notices(name, expected)
    monkeypatch.setattr(primitive, rule, MUTATE[rule](getattr(primitive, rule)))
    with pytest.raises(AssertionError):
        _notices(name, expected)


def test_every_primitive_with_programs_has_a_function() -> None:
    assert set(HOLDING) == {name for name, _ in PROGRAMS}


def test_every_communication_has_a_function() -> None:
    names = {name for name, _ in COMMUNICATIONS}
    assert names == set(MEANING) | set(ALONG_AXIS)
    assert {name for name, _ in EQUIVALENT} <= {n for n, p in TABLE.items() if p.kind == "effect"}
