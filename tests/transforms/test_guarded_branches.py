"""Under vmap, what goes wrong in a branch or a step is an error of the elements that take it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core import dtypes, tree
from nuvec.core.array import from_numpy
from nuvec.core.errors import NuvecError, OutOfBoundsError
from nuvec.core.ir import IR
from nuvec.core.lower import lower
from nuvec.core.ops.power import NegativePowerError
from nuvec.core.primitive import MINUS_ONE, TABLE, Primitive
from nuvec.testing.compare import primitives_in
from nuvec.transforms.guard import can_raise, guarded
from nuvec.transforms.ir_tools import make_ir
from tests.cases.case import Case
from tests.cases.rows import all_rows

X = np.arange(1.0, 4.0, dtype=np.float32)
INDICES = np.array([1, 7, -9, 2, 0], np.int32)
WRAPPERS: list[Callable[[Any], Any]] = [lambda f: f, nv.compile]
every_wrapper = pytest.mark.parametrize("wrap", WRAPPERS, ids=["plain", "compiled"])


def loop(f: Callable[..., Any], batch: Any, *rest: Any) -> Any:
    """`f` of every element alone, stacked."""
    outs = [f(from_numpy(b), *rest) for b in batch]
    return tree.map(lambda *leaves: np.stack([np.asarray(x) for x in leaves]), *outs)


def assert_as_a_loop(f: Callable[..., Any], batch: Any, *rest: Any, rtol: float = 0) -> None:
    """vmap of `f` over its first argument, plain and compiled, is a Python loop to the last bit (or
    to `rtol`)."""
    rest = tuple([from_numpy(np.asarray(r)) for r in rest])
    expected = tree.leaves(loop(f, batch, *rest))
    axes = (0, *[None] * len(rest))
    for wrap in WRAPPERS:
        found = tree.leaves(wrap(nv.vmap(f, axes))(from_numpy(batch), *rest))
        for a, b in zip(found, expected, strict=True):
            if rtol:
                np.testing.assert_allclose(a, b, rtol=rtol)
            else:
                np.testing.assert_array_equal(a, b)


def guard(i: Any, x: Any, taken: Callable[..., Any]) -> Any:
    """`taken` where the index is within bounds, else twice x's sum."""
    within = nv.logical_and(i >= -x.shape[0], i < x.shape[0])
    return nv.cond(within, taken, lambda i, x: 2 * x.sum(), i, x)


READS: dict[str, Callable[..., Any]] = {
    "read": lambda i, x: x[i] * x[0],
    "read behind": lambda i, x: nv.stack([x, x * x])[:, i].sum(),
    "two axes": lambda i, x: nv.outer(x, x)[i, i],
    "take": lambda i, x: nv.take(x, nv.stack([i, nv.array(0)])).sum(),
    "take along": lambda i, x: nv.take_along_axis(x, nv.stack([i, nv.array(0)]), 0).sum() * x[0],
    "assign": lambda i, x: _assigned(i, x),
    "set": lambda i, x: (x.at[i].set(x[0] * 5) * x).sum(),
    "add": lambda i, x: (x.at[i].add(x[1] * 5) * x).sum(),
    "multiply": lambda i, x: (x.at[i].multiply(x[1]) * x).sum(),
    "max": lambda i, x: (x.at[i].max(x[1] * 5) * x).sum(),
    "min": lambda i, x: (x.at[i].min(x[0] / 5) * x).sum(),
    "known": lambda i, x: x[nv.array([2, 0])].sum() * x[i],
    "checkpoint": lambda i, x: nv.checkpoint(lambda x: nv.sin(x[i]))(x),
    "compiled": lambda i, x: nv.compile(lambda i, x: x[i] * x[i])(i, x),
    "scan": lambda i, x: nv.scan(lambda c, y: (c * x[i] + y, c), x[i], x)[0],
    "vmap": lambda i, x: nv.vmap(lambda y: y * x[i])(x).sum(),
    "switch": lambda i, x: nv.switch(i, [lambda: x[i], lambda: x[i] ** 2, lambda: x.at[i].get()]),
    "loop": lambda i, x: nv.while_loop(
        lambda c: c < x[i] * 3, lambda c: c + x[i], x[i], max_steps=3
    ),
    "gradient": lambda i, x: nv.grad(lambda x: nv.sin(x[i]) * x[0])(x).sum(),
    "tangent": lambda i, x: nv.jvp(lambda x: x.at[i].set(x[0] ** 2).sum(), (x,), (x,))[1],
    "float64": lambda i, x: x.astype(np.float64)[i.astype(np.int64)].astype(x.dtype),
}


def _assigned(i: Any, x: Any) -> Any:
    y = x * x
    y[i] = x[0]
    return (y * x).sum()


@pytest.mark.parametrize("name", READS)
def test_a_branch_not_taken_raises_nothing_in_any_mode(name: str) -> None:
    def f(i: Any, x: Any) -> Any:
        return guard(i, x, READS[name])

    gradient = nv.grad(f, argnums=1)

    def pushed(i: Any, x: Any) -> Any:
        return nv.jvp(lambda x: f(i, x), (x,), (x * x,))

    assert_as_a_loop(f, INDICES, X)
    assert_as_a_loop(gradient, INDICES, X, rtol=1e-6)
    assert_as_a_loop(pushed, INDICES, X, rtol=1e-6)
    assert_as_a_loop(lambda i, x: nv.jvp(lambda x: gradient(i, x), (x,), (x,))[1], INDICES, X,
                     rtol=1e-5)  # fmt: skip
    i, x = from_numpy(INDICES), from_numpy(X)
    expected = loop(gradient, INDICES, x).sum(0)
    for wrap in WRAPPERS:
        outside = wrap(nv.grad(lambda x: nv.vmap(f, (0, None))(i, x).sum()))
        np.testing.assert_allclose(outside(x), expected, rtol=1e-6)
        twice = wrap(nv.grad(lambda x: nv.vmap(gradient, (0, None))(i, x).sum()))
        one = nv.grad(lambda x, j: gradient(j, x).sum())
        total = sum(np.asarray(one(x, from_numpy(j))) for j in INDICES)
        np.testing.assert_allclose(twice(x), total, rtol=1e-5)


@pytest.mark.parametrize("name", READS)
@every_wrapper
def test_a_branch_taken_raises_its_own_error(name: str, wrap: Callable[[Any], Any]) -> None:
    def f(i: Any, x: Any) -> Any:
        return nv.cond(i != 7, READS[name], lambda i, x: x.sum(), i, x)

    for g in (f, nv.grad(f, argnums=1)):
        mapped = wrap(nv.vmap(g, (0, None)))
        np.asarray(mapped(from_numpy(np.array([0, 7, 1], np.int32)), from_numpy(X)))
        with pytest.raises(
            OutOfBoundsError, match=r"index 8 is out of bounds for axis . with size 3"
        ):
            np.asarray(mapped(from_numpy(np.array([0, 7, 8], np.int32)), from_numpy(X)))


def test_nested_branches_raise_what_all_of_them_take() -> None:
    def f(i: Any, x: Any) -> Any:
        low = lambda i, x: nv.cond(i >= 0, lambda i, x: x[i], lambda i, x: -x[0], i, x)  # noqa: E731
        return nv.cond(i < 3, low, lambda i, x: x.at[i - 7].get(), i, x)

    assert_as_a_loop(f, np.array([-50, 7, 2, 9], np.int32), X)
    assert_as_a_loop(nv.grad(f, argnums=1), np.array([-50, 7, 2, 9], np.int32), X)
    with pytest.raises(OutOfBoundsError, match="index 3 is"):
        np.asarray(nv.vmap(f, (0, None))(nv.array([-50, 10]), from_numpy(X)))


def test_an_index_that_is_not_mapped_stays_so_and_raises_if_anyone_takes_it() -> None:
    def f(p: Any, x: Any, j: Any) -> Any:
        return nv.cond(p, lambda x, j: x[j] * 2, lambda x, j: x[0], x, j)

    mapped = nv.vmap(f, (0, None, None))
    x = from_numpy(X)
    assert mapped(nv.array([False, False]), x, nv.array(9)).tolist() == [1, 1]
    assert mapped(nv.array([False, True]), x, nv.array(2)).tolist() == [1, 6]
    with pytest.raises(OutOfBoundsError, match="index 9"):
        np.asarray(mapped(nv.array([False, True]), x, nv.array(9)))
    ir = make_ir(mapped)(nv.array([False, True]), x, nv.array(2))
    assert [e.outputs[0].aval.shape for e in ir.eqns if e.primitive.name == "gather"] == [()]


def test_an_axis_of_size_zero_is_read_by_nobody() -> None:
    def f(p: Any, x: Any) -> Any:
        return nv.cond(p, lambda x: x[nv.array(0)] + x.at[nv.array([0])].add(1).sum(),
                       lambda x: x.sum(), x)  # fmt: skip

    none = nv.zeros((0,))
    assert nv.vmap(f, (0, None))(nv.array([False, False]), none).tolist() == [0, 0]
    gradient = nv.vmap(nv.grad(f, argnums=1), (0, None))
    assert gradient(nv.array([False, False]), none).shape == (2, 0)
    for g in (nv.vmap(f, (0, None)), gradient):
        with pytest.raises(OutOfBoundsError, match="size 0"):
            np.asarray(g(nv.array([False, True]), none))


def test_unsigned_indices_beyond_any_axis() -> None:
    def f(i: Any, x: Any) -> Any:
        return nv.cond(i < 3, lambda i, x: x[i] + x.at[i].add(x[0])[0], lambda i, x: -x[0], i, x)

    assert_as_a_loop(f, np.array([0, 2**64 - 1, 2], np.uint64), X)
    assert_as_a_loop(nv.grad(f, argnums=1), np.array([0, 2**64 - 1, 2], np.uint64), X)
    with pytest.raises(OutOfBoundsError, match="18446744073709551615"):
        np.asarray(
            nv.vmap(
                lambda i, x: nv.cond(i > 3, lambda i, x: x[i], lambda i, x: x[0], i, x), (0, None)
            )(nv.array([0, 2**64 - 1], dtype="uint64"), from_numpy(X))
        )


def test_labels() -> None:
    scores = np.linspace(-1, 1, 4, dtype=np.float32)

    def f(label: Any, scores: Any) -> Any:
        cost = lambda label, s: nv.nn.losses.cross_entropy(s[None], label[None])[0]  # noqa: E731
        return nv.cond(label >= 0, cost, lambda label, s: s.sum() * 0, label, scores)

    labels = np.array([3, -1, 0, -100], np.int32)
    assert_as_a_loop(f, labels, scores, rtol=1e-6)
    assert_as_a_loop(nv.grad(f, argnums=1), labels, scores, rtol=1e-5)
    with pytest.raises(OutOfBoundsError, match="the label 4 is none of the 4 classes"):
        np.asarray(nv.vmap(f, (0, None))(nv.array([-1, 4]), from_numpy(scores)))


def test_integer_powers() -> None:
    def f(n: Any, x: Any) -> Any:
        return nv.cond(n >= -1, lambda n, x: x**n, lambda n, x: x * n, n, x)

    assert_as_a_loop(f, np.array([2, -4, 0], np.int32), np.array([3, -2], np.int32))
    with pytest.raises(NegativePowerError):
        np.asarray(nv.vmap(f, (0, None))(nv.array([-4, -1]), nv.array([3, -2])))


# Loops


def test_an_element_that_is_done_takes_no_further_step() -> None:
    def f(i: Any, x: Any) -> Any:
        return nv.while_loop(
            lambda c: c[0] < x.shape[0], lambda c: (c[0] + 1, c[1] + x[c[0]] ** 2), (i, 0.0)
        )

    starts = np.array([1, 5, 0], np.int32)
    assert_as_a_loop(f, starts, X)
    assert_as_a_loop(lambda i, x: nv.jvp(lambda x: f(i, x)[1], (x,), (x,)), starts, X)
    with pytest.raises(OutOfBoundsError, match="index -9"):
        np.asarray(nv.vmap(f, (0, None))(nv.array([1, -9]), from_numpy(X))[1])


def test_conditions_are_evaluated_at_carries_that_are_reached() -> None:
    def f(i: Any, x: Any) -> Any:  # ends at the first number above 2.5
        return nv.while_loop(lambda i: x[i] < 2.5, lambda i: i + 1, i)

    assert_as_a_loop(f, np.array([0, 2, 1], np.int32), X)
    assert_as_a_loop(lambda i, x: guard(i, x, lambda i, x: x[f(i, x)]), INDICES, X)
    with pytest.raises(OutOfBoundsError, match="index 2 is"):
        np.asarray(nv.vmap(f, (0, None))(nv.array([0, 1]), from_numpy(X[:2])))


@pytest.mark.parametrize("max_steps", [None, 6])
def test_a_loop_in_a_branch_not_taken_neither_raises_nor_goes_on(max_steps: int | None) -> None:
    def countdown(n: Any, x: Any) -> Any:  # has no end below 0
        return nv.while_loop(
            lambda c: c[0] != 0, lambda c: (c[0] - 1, c[1] * x[c[0]]), (n, x[0]),
            max_steps=max_steps,
        )[1]  # fmt: skip

    def f(n: Any, x: Any) -> Any:
        return nv.cond(n >= 0, countdown, lambda n, x: x.sum(), n, x)

    numbers = np.array([2, -3, 0, -1], np.int32)
    assert_as_a_loop(f, numbers, X)
    assert_as_a_loop(lambda n, x: nv.jvp(lambda x: f(n, x), (x,), (x,))[1], numbers, X)
    if max_steps is None:
        return
    assert_as_a_loop(nv.grad(f, argnums=1), numbers, X)
    long = from_numpy(np.arange(1.0, 12.0))
    with pytest.raises(NuvecError, match="still holds after max_steps=6"):
        np.asarray(nv.vmap(f, (0, None))(nv.array([2, 9, -1]), long))


def test_a_loop_inside_a_loop() -> None:
    def f(i: Any, x: Any) -> Any:
        def row(c: Any) -> Any:
            inner = nv.while_loop(lambda d: d[0] < c[0], lambda d: (d[0] + 1, d[1] + x[d[0]]),
                                  (nv.array(0), x[c[0] - 1]))  # fmt: skip
            return c[0] - 1, c[1] * inner[1]

        return nv.while_loop(lambda c: c[0] > 0, row, (i, 1.0))

    assert_as_a_loop(f, np.array([3, -5, 1], np.int32), X)


def test_scan_over_steps_of_which_some_are_not_taken() -> None:
    def f(n: Any, x: Any) -> Any:
        def step(c: Any, t: Any) -> Any:
            return nv.cond(t < n, lambda c: (c * x[t], x[t - n]), lambda c: (c, x[-n]), c)

        return nv.scan(step, nv.array(1.0), nv.arange(5))

    def total(n: Any, x: Any) -> Any:
        return f(n, x)[0] + f(n, x)[1].sum()

    numbers = np.array([3, 2, 1], np.int32)
    assert_as_a_loop(f, numbers, X)
    assert_as_a_loop(nv.grad(total, argnums=1), numbers, X, rtol=1e-6)


# Custom rules


def test_custom_rules_in_branches_keep_their_derivatives() -> None:
    @nv.custom_vjp
    def pick(i: Any, x: Any) -> Any:
        return x[i]

    pick.defvjp(
        lambda i, x: (x[i], (i, x)), lambda kept, c: (None, kept[1].at[kept[0]].set(c * 10))
    )

    @nv.custom_jvp
    def pushed(x: Any, i: Any) -> Any:
        return x[i]

    pushed.defjvp(lambda primals, tangents: (primals[0][primals[1]],
                                             tangents[0][primals[1]] * 100))  # fmt: skip

    for function, factor in ((pick, 10), (lambda i, x: pushed(x, i), 100)):
        gradient = nv.grad(lambda i, x, f=function: guard(i, x, f), argnums=1)
        assert_as_a_loop(gradient, INDICES, X)
        found = nv.vmap(gradient, (0, None))(from_numpy(INDICES), from_numpy(X))
        assert found[0][1].item() == factor
        with pytest.raises(OutOfBoundsError, match="index 7"):
            np.asarray(nv.vmap(lambda i, x, f=function: nv.cond(i > 1, f, lambda i, x: x[0], i, x),
                               (0, None))(nv.array([7, 0]), from_numpy(X)))  # fmt: skip


def test_a_custom_rule_that_calls_itself_is_guarded_in_every_order() -> None:
    @nv.custom_vjp
    def cube(x: Any, i: Any) -> Any:
        return x[i] ** 3

    def forward(x: Any, i: Any) -> Any:
        return cube(x, i), (x, i)

    def backward(kept: Any, c: Any) -> Any:
        x, i = kept
        return nv.zeros_like(x).at[i].add(3 * x[i] ** 2 * c), None

    cube.defvjp(forward, backward)

    def f(i: Any, x: Any) -> Any:
        return guard(i, x, lambda i, x: cube(x, i))

    first = nv.grad(f, argnums=1)
    assert_as_a_loop(first, INDICES, X, rtol=1e-6)
    assert_as_a_loop(nv.grad(lambda i, x: first(i, x).sum(), argnums=1), INDICES, X, rtol=1e-6)


# Communications


def test_communications_in_branches_are_as_before() -> None:
    def f(p: Any, x: Any) -> Any:
        group = nv.distributed.axis_group("ranks")
        return nv.cond(
            p, lambda x: nv.distributed.all_sum(x[nv.array(1)], group), lambda x: x[0], x
        )

    x = from_numpy(np.stack([X, X * 2]))
    one = nv.vmap(f, (None, 0), axis_name="ranks")
    assert one(nv.array(True), x).tolist() == [6, 6]
    with pytest.raises(NuvecError, match="communicates"):
        nv.vmap(f, axis_name="ranks")(nv.array([True, False]), x)


def test_branches_of_the_elements_of_a_named_axis() -> None:
    def f(i: Any, x: Any) -> Any:
        group = nv.distributed.axis_group("ranks")
        found = guard(i, x, lambda i, x: x[i] * (group.rank() + 1))
        return nv.distributed.all_sum(found, group)

    x = from_numpy(X)
    indices = from_numpy(INDICES[:3])
    for wrap in WRAPPERS:
        mapped = wrap(nv.vmap(f, (0, None), axis_name="ranks"))
        assert mapped(indices, x).tolist() == [26, 26, 26]
        gradient = wrap(nv.vmap(nv.grad(f, argnums=1), (0, None), axis_name="ranks"))
        np.testing.assert_array_equal(
            gradient(indices, x), 3 * np.array([[0, 1, 0], [2, 2, 2], [2, 2, 2]])
        )


# Programs and primitives


def test_a_program_that_cannot_raise_is_left_alone() -> None:
    plain = make_ir(lambda x: nv.sin(x) * nv.scan(lambda c, y: (c + y, c), x[0], x)[0])(
        from_numpy(X)
    )
    assert not can_raise(plain)
    f = lambda p, x: nv.cond(p, nv.sin, nv.cos, x)  # noqa: E731
    ir = make_ir(nv.vmap(f, (0, None)))(nv.array([True, False]), from_numpy(X))
    names = [e.primitive.name for e in ir.eqns]
    assert sorted(set(names) & {"sin", "cos", "where", "logical_not"}) == ["cos", "sin", "where"]


def _extremes(row: Case) -> list[list[np.ndarray]]:
    """The row's operands with numbers in the place of its integers and booleans that may be none
    of those it takes."""

    def extreme(x: Any, largest: bool, whole: bool) -> np.ndarray:
        x = np.asarray(x)
        if dtypes.is_bool(x.dtype):
            return np.full(x.shape, True)
        if dtypes.is_integer(x.dtype):
            limits = np.iinfo(x.dtype)
            return np.full(x.shape, limits.max if largest else limits.min, x.dtype)
        if whole and x.dtype == np.float32:
            return np.full(x.shape, -1, np.int32)
        return x

    kinds = [(True, False), (False, False), (False, True)]
    return [[extreme(a, *kind) for a in row.args] for kind in kinds]


def _run(ir: IR, values: Any) -> Any:
    with np.errstate(all="ignore"):
        return lower(ir).run(*[np.asarray(v) for v in values])


def test_every_primitive_that_raises_because_of_values_has_a_guard() -> None:
    """Found by trying: every row of the table, on numbers that it may not take."""
    raising: set[str] = set()
    for row in all_rows():
        for values in _extremes(row):
            try:
                ir = make_ir(row.function)(*[from_numpy(v) for v in values])
            except (NuvecError, ValueError, TypeError):
                continue  # refused when it is recorded
            try:
                _run(ir, values)
            except Exception:
                raising |= primitives_in(ir)
                assert can_raise(ir), f"{row}: none of {sorted(primitives_in(ir))} has a guard"
                _run(guarded(ir), [np.False_, *values])
                with pytest.raises((NuvecError, ValueError)):
                    _run(guarded(ir), [np.True_, *values])
    declared = {
        name for name, p in TABLE.items()
        if p.guard is not None and not p.higher_order and not p.foreign
    }  # fmt: skip
    assert declared <= raising


def test_guarded_programs_compute_the_same_where_they_are_wanted() -> None:
    for row in all_rows():
        ir = make_ir(row.function)(*map(from_numpy, map(np.asarray, row.args)))
        if can_raise(ir):
            expected = _run(ir, row.args)
            for a, b in zip(_run(guarded(ir), [np.True_, *row.args]), expected, strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("guard", "message"),
    [
        (lambda wanted, x: ((nv.ones((7,)),), {}), r"operands are float32\[\].*float32\[7\]"),
        (lambda wanted, x: None, "returned None"),
        (lambda wanted, x: ((nv.abs(x),), {"foo": 1}), r"parameters are \[\].*foo"),
        (lambda wanted, x: ((x, x), {}), "operands are"),
        (lambda wanted, x: ((x.astype(nv.float64),), {}), "float64"),
    ],
)
def test_guards_that_return_something_else(guard: Any, message: str) -> None:
    name = "tests.guarded_wrongly"
    TABLE.pop(name, None)
    wrong = Primitive(
        name, np.negative, lambda x: x, "elementwise", derivatives=(MINUS_ONE,), guard=guard
    )
    try:
        f = lambda x: nv.cond(x > 0, wrong.bind, lambda x: x, x)  # noqa: E731
        with pytest.raises(NuvecError, match=f"the guard of {name} must return.*{message}"):
            nv.vmap(f)(nv.array([1.0, -1.0]))
    finally:
        del TABLE[name]
