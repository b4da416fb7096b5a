"""Groups that are a mapped axis: the same programs as on threads and processes, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec import distributed as nd
from nuvec.core import dtypes
from nuvec.core.array import from_numpy
from nuvec.core.errors import (
    ConcretizationError,
    DistributedError,
    DtypeError,
    LeakedTracerError,
    NuvecError,
    ShapeError,
)
from nuvec.core.primitive import TABLE
from nuvec.distributed.group import run_local
from nuvec.testing import check_jvp, check_vmap
from nuvec.testing.compare import primitives_in, same_bits
from tests.cases.collectives import CASES, CollectiveCase
from tests.distributed.spmd import (
    on_axis,
    on_processes,
    on_threads,
    operand_of,
    random_program,
)

pytestmark = pytest.mark.timeout(300)

BOTH_WAYS = [case for case in CASES if case.primitive not in ("send", "recv")]
DTYPES = (
    np.bool_, np.int8, np.int32, np.int64, np.float16, dtypes.bfloat16, np.float32, np.float64,
    np.complex64,
)  # fmt: skip


def assert_same(found: Any, expected: Any, what: str = "") -> None:
    for rank, (a, b) in enumerate(zip(found, expected, strict=True)):
        for x, y in zip(a, b, strict=True):
            assert same_bits(x, y), f"{what} rank {rank}\n{x}\n{y}"


def both(program: Callable[[Any, Any], Any], *xs: Any, axis: str = "i") -> Any:
    """The program's results over a mapped axis and on threads, stacked by rank."""
    size = len(xs[0])
    mapped = nv.vmap(lambda *a: program(nd.axis_group(axis), *a), axis_name=axis)(*xs)
    local = run_local(lambda g: program(g, *[from_numpy(x[g.rank()]) for x in xs]), size)
    leaves = [nv.tree.leaves(r) for r in local]
    return (
        [np.asarray(x) for x in nv.tree.leaves(mapped)],
        [np.stack([np.asarray(r[k]) for r in leaves]) for k in range(len(leaves[0]))],
    )


def agree(program: Callable[[Any, Any], Any], *xs: Any) -> list[np.ndarray]:
    found, expected = both(program, *xs)
    for a, b in zip(found, expected, strict=True):
        assert same_bits(a, b), f"\n{a}\n{b}"
    return found


X = np.random.Generator(np.random.PCG64(7)).normal(size=(3, 6, 2))


# The table is complete


def test_every_communication_says_what_it_is_over_an_axis() -> None:
    missing = [
        p.name for p in TABLE.values()
        if p.effect and not p.name.startswith("test") and p.axis is None
    ]  # fmt: skip
    assert not missing, f"no axis rule: {missing}"


def test_a_communication_without_an_axis_rule_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TABLE["all_sum"], "axis", None)
    with pytest.raises(NuvecError, match="all_sum has no rule for a group that is a mapped axis"):
        nv.vmap(lambda x: nd.all_sum(x, nd.axis_group("i")), axis_name="i")(nv.ones(3))


# Every collective, dtype and size


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("case", BOTH_WAYS, ids=str)
def test_rows(case: CollectiveCase, size: int) -> None:
    generator = np.random.Generator(np.random.PCG64(size))
    for dtype in DTYPES:
        kind = "f" if dtype is dtypes.bfloat16 else np.dtype(dtype).kind
        if kind not in case.kinds:
            continue
        xs = [
            (generator.normal(size=(size, *shape)) * 10.0 ** generator.integers(-2, 3)).astype(
                dtype
            )
            for shape in case.shapes(size)
        ]
        agree(case.function, *xs)


@pytest.mark.parametrize("name", sorted({case.primitive for case in BOTH_WAYS}))
def test_a_rule_wrong_by_a_thousandth_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = TABLE[name].axis
    assert right is not None

    def wrong(*args: Any, **params: Any) -> Any:
        outs, axes = right(*args, **params)
        return [o * 1.001 for o in outs], axes

    monkeypatch.setattr(TABLE[name], "axis", wrong)
    case = next(c for c in BOTH_WAYS if c.primitive == name)
    xs = [np.random.Generator(np.random.PCG64(0)).normal(size=(3, *s)) for s in case.shapes(3)]
    with pytest.raises(AssertionError):
        agree(case.function, *xs)


def test_the_sum_is_the_left_fold() -> None:
    for n in (2, 7, 9, 40, 1000):
        x = np.random.Generator(np.random.PCG64(n)).normal(size=(n, 5)) * 1e3
        for dtype in (np.float16, np.float32, np.float64):
            y = x.astype(dtype)
            wide = np.float32 if dtype is np.float16 else dtype
            total = y[0].astype(wide)
            for row in y[1:]:
                total = total + row.astype(wide)
            found = nv.vmap(lambda v: nd.all_sum(v, nd.axis_group("i")), axis_name="i")(y)
            assert all(same_bits(np.asarray(r), total.astype(dtype)) for r in found)


def test_what_is_the_same_for_every_element_is_not_repeated() -> None:
    f = nv.vmap(
        lambda x: (nd.all_sum(x, nd.axis_group("i")), nd.all_gather(x, nd.axis_group("i"))),
        axis_name="i", out_axes=None,
    )  # fmt: skip
    total, gathered = f(X)
    assert total.shape == X.shape[1:] and gathered.shape == (18, 2)


# Random programs, three ways


@pytest.mark.parametrize("size", [2, 3])
def test_random_programs_three_ways(size: int, slow: bool) -> None:
    count = 400 if slow else 40
    processes = on_processes(size, count)
    for seed in range(count):
        program = random_program(seed, size)
        operands = [operand_of(seed, size, r) for r in range(size)]
        threads = on_threads(program, operands)
        assert_same([p[seed] for p in processes], threads, f"processes, program {seed}")
        assert_same(on_axis(program, operands), threads, f"axis, program {seed}")


@pytest.mark.parametrize("size", [1, 4])
def test_random_programs_on_other_sizes(size: int, slow: bool) -> None:
    for seed in range(1000, 1300 if slow else 1030):
        program = random_program(seed, size)
        operands = [operand_of(seed, size, r) for r in range(size)]
        assert_same(on_axis(program, operands), on_threads(program, operands), f"program {seed}")


# It communicates no more


def test_the_recording_communicates_no_more() -> None:
    def f(x: Any) -> Any:
        g = nd.axis_group("i")
        y = nv.scan(lambda c, _: (nd.all_sum(c, g), nd.all_max(c, g)), x, None, length=2)[1]
        return nv.grad(lambda z: nv.sum(nd.permute(z, [(0, 1)], g) * nd.all_to_all(z, g)))(y[0])

    ir = nv.make_ir(nv.vmap(f, axis_name="i"))(X)
    assert not ir.effect
    assert not {p.name for p in TABLE.values() if p.effect} & primitives_in(ir)


def test_nested_axes() -> None:
    x = np.random.Generator(np.random.PCG64(1)).normal(size=(2, 3, 4))

    def f(v: Any) -> Any:
        a, b = nd.axis_group("a"), nd.axis_group("b")
        return (
            nd.all_sum(v, a), nd.all_sum(v, b), nd.all_gather(nd.all_max(v, a), b),
            v * (10 * a.rank() + b.rank()), nd.all_sum(nd.all_sum(v, a), b),
        )  # fmt: skip

    out = nv.vmap(nv.vmap(f, axis_name="b"), axis_name="a")(x)
    flipped = nv.vmap(nv.vmap(f, axis_name="a"), axis_name="b", in_axes=1, out_axes=1)(x)
    for p, q in zip(out, flipped, strict=True):
        assert same_bits(np.asarray(p), np.asarray(q))
    over_a, over_b, gathered, places, _ = map(np.asarray, out)
    np.testing.assert_array_equal(over_a, np.broadcast_to(x[0] + x[1], x.shape))
    np.testing.assert_array_equal(over_b[:, 0], x[:, 0] + x[:, 1] + x[:, 2])
    assert gathered.shape == (2, 3, 12)
    index = 10 * np.arange(2)[:, None, None] + np.arange(3)[:, None]
    np.testing.assert_array_equal(places, x * index)


def test_one_name_twice_is_the_innermost_and_a_group_keeps_its_axis() -> None:
    def outer(v: Any) -> Any:
        around = nd.axis_group("i")

        def inner(u: Any) -> Any:
            mine = nd.axis_group("i")
            assert mine != around and (mine.size(), around.size()) == (3, 2)
            return nd.all_sum(u, mine), nd.all_sum(u, around)

        return nv.vmap(inner, axis_name="i")(v)

    x = np.arange(6.0).reshape(2, 3)
    mine, around = nv.vmap(outer, axis_name="i")(x)
    np.testing.assert_array_equal(mine, np.repeat(x.sum(1)[:, None], 3, 1))
    np.testing.assert_array_equal(around, np.repeat(x.sum(0)[None], 2, 0))


def test_an_unnamed_vmap_inside_and_outside() -> None:
    x = np.random.Generator(np.random.PCG64(2)).normal(size=(2, 3, 4))

    def f(v: Any) -> Any:
        g = nd.axis_group("i")
        return nd.sum_scatter(nd.all_gather(v, g) * g.rank(), g)

    named = nv.vmap(f, axis_name="i")
    loop = np.stack([np.asarray(named(x[k])) for k in range(2)])
    assert same_bits(np.asarray(nv.vmap(named)(x)), loop)

    def inside(v: Any) -> Any:
        return nv.vmap(f)(v)

    turned = nv.vmap(inside, axis_name="i")(x.transpose(1, 0, 2))
    assert same_bits(np.asarray(turned).transpose(1, 0, 2), loop)


def test_real_ranks_and_a_mapped_axis_together() -> None:
    x = np.random.Generator(np.random.PCG64(3)).normal(size=(2, 3, 4))

    def program(group: Any, rows: Any) -> Any:
        def f(v: Any) -> Any:
            g = nd.axis_group("i")
            return nd.all_sum(nv.sin(nd.all_sum(v, g)) * v, group)

        return nv.grad(lambda r: nv.sum(nv.vmap(f, axis_name="i")(r) ** 2))(rows)

    local = run_local(lambda g: program(g, from_numpy(x[g.rank()])), 2)
    expected = np.stack([np.asarray(r) for r in local])
    both_mapped = nv.vmap(lambda r: program(nd.axis_group("ranks"), r), axis_name="ranks")(x)
    assert same_bits(np.asarray(both_mapped), expected)


# Transforms


def test_gradients_of_all_orders() -> None:
    def f(g: Any, x: Any) -> Any:
        y = nd.all_sum(x * x, g) * nd.broadcast(x, 1, g)
        return nv.sum(nv.sin(nd.all_max(y, g)) * nd.permute(y, [(0, 2), (2, 1)], g) * y)

    agree(lambda g, x: nv.grad(lambda v: f(g, v))(x), X)
    agree(lambda g, x: nv.jvp(nv.grad(lambda v: f(g, v)), (x,), (x,)), X)
    second = lambda g, v: nv.sum(nv.cos(nv.grad(lambda u: f(g, u))(v)))  # noqa: E731
    agree(lambda g, x: nv.grad(lambda v: second(g, v))(x), X)
    third = lambda g, v: nv.sum(nv.grad(lambda u: second(g, u))(v))  # noqa: E731
    agree(lambda g, x: nv.grad(lambda v: third(g, v))(x), X)


def test_grad_of_vmap_is_the_derivative_of_the_sum() -> None:
    def f(x: Any) -> Any:
        g = nd.axis_group("i")
        return nv.sum(nv.sin(nd.all_sum(x, g)) * x * nd.all_max(x, g)) * (g.rank() + 1)

    inside = nv.vmap(nv.grad(f), axis_name="i")(X)
    outside = nv.grad(lambda v: nv.sum(nv.vmap(f, axis_name="i")(v)))(X)
    np.testing.assert_allclose(inside, outside, rtol=1e-12)
    check_jvp(lambda v: nv.vmap(f, axis_name="i")(v), (X,))


def test_replicated_losses() -> None:
    """sum_gradients and sum_partials keep their meaning, whichever side grad is on."""

    def loss(g: Any, w: Any) -> Any:
        shared = nd.sum_gradients(w, g)
        part = nv.sin(shared * (g.rank() + 1))
        return nv.sum(nd.sum_partials(part, g) ** 2)

    w = np.broadcast_to(np.array([0.3, -0.4]), (3, 2)).copy()
    (inside,) = agree(lambda g, v: nv.grad(lambda u: loss(g, u))(v), w)
    agree(lambda g, v: nv.jvp(nv.grad(lambda u: loss(g, u)), (v,), (v,)), w)
    outside = nv.grad(
        lambda v: nv.sum(nv.vmap(lambda u: loss(nd.axis_group("i"), u), axis_name="i")(v))
    )(w)
    np.testing.assert_allclose(inside, outside, rtol=1e-14)
    dense = nv.grad(lambda u: nv.sum(nv.sum(nv.sin(u * nv.arange(1.0, 4.0)[:, None]), axis=0) ** 2))
    np.testing.assert_allclose(inside[0], dense(from_numpy(w[0])), rtol=1e-6)


def test_compiled_functions_inside_are_kept_and_told_apart() -> None:
    traced = []

    @nv.compile
    def f(x: Any) -> Any:
        traced.append(1)
        g = nd.axis_group("i")
        return nd.all_sum(x, g) * g.size() + g.rank()

    mapped = nv.vmap(f, axis_name="i")
    for _ in range(2):
        np.testing.assert_allclose(mapped(X), X.sum(0) * 3 + np.arange(3)[:, None, None])
    assert len(traced) == 1
    np.testing.assert_allclose(mapped(X[:2]), X[:2].sum(0) * 2 + np.arange(2)[:, None, None])
    assert len(traced) == 2
    with pytest.raises(DistributedError, match="no vmap around"):
        f(X[0])
    again = nv.compile(nv.vmap(nv.grad(lambda x: nv.sum(nv.sin(f(x)))), axis_name="i"))
    plain = nv.vmap(nv.grad(lambda x: nv.sum(nv.sin(f(x)))), axis_name="i")
    assert same_bits(np.asarray(again(X)), np.asarray(plain(X)))


def test_bodies_of_control_flow() -> None:
    def looped(g: Any, x: Any) -> Any:
        def body(c: Any, k: Any) -> Any:
            y = nd.all_sum(c, g) * k
            return nv.sin(y) + c, nd.all_gather(y[0], g)

        return nv.scan(body, x, nv.arange(3.0, dtype=nv.float64))

    agree(looped, X)
    agree(lambda g, x: nv.grad(lambda v: nv.sum(looped(g, v)[1]))(x), X)

    def either(g: Any, x: Any) -> Any:
        yes = lambda v: nd.all_sum(v, g)  # noqa: E731
        return nv.cond(nd.all_sum(nv.array(1), g) > 2, yes, lambda v: v, x)

    agree(either, X)
    agree(lambda g, x: nv.grad(lambda v: nv.sum(nv.sin(either(g, v))))(x), X)
    with pytest.raises(NuvecError, match="communicat"):
        nv.vmap(
            lambda v: nv.cond(v > 0, lambda u: nd.all_sum(u, nd.axis_group("i")), lambda u: u, v),
            axis_name="i",
        )(nv.ones(2))


def test_more_control_flow() -> None:
    """Every loop and branch there is, with a communication in it, and its gradient."""
    counted = lambda g, x, **k: nv.while_loop(  # noqa: E731
        lambda c: c[0] < 3, lambda c: (c[0] + 1, nv.sin(nd.all_sum(c[1], g))), (0, x), **k
    )[1]
    agree(counted, X)
    agree(
        lambda g, x: nv.while_loop(
            lambda c: nd.all_max(c[0, 0], g) > 0.1, lambda c: c * 0.5 - 0.01 * nd.all_sum(c, g),
            x * x,
        ), X,
    )  # fmt: skip
    programs = [
        lambda g, x: counted(g, x, max_steps=4),
        lambda g, x: nv.fori_loop(0, 3, lambda i, c: nv.sin(nd.permute(c, [(0, 1)], g) + c * i), x),
        lambda g, x: nv.switch(1, [lambda v: v, lambda v: nd.all_sum(v, g)], x),
        lambda g, x: nv.map(lambda v: nd.all_sum(v, g) * v, x),
        lambda g, x: nv.checkpoint(lambda v: nv.sin(nd.all_sum(v * v, g)) * v)(x),
        lambda g, x: nv.linearize(lambda v: nd.all_sum(nv.sin(v), g) * v, x)[1](x),
    ]
    for f in programs:
        agree(f, X)
        agree(lambda g, x, f=f: nv.grad(lambda v: nv.sum(nv.sin(f(g, v))))(x), X)
    agree(lambda g, x: nv.jacrev(lambda v: nd.all_sum(nv.sin(v), g) * v)(x), X[:, 0])
    agree(lambda g, x: nv.hessian(lambda v: nv.sum(nv.sin(nd.all_sum(v * v, g) * v)))(x), X[:, 0])


def test_branches_of_each_element_may_ask_for_its_index() -> None:
    def f(g: Any, x: Any) -> Any:
        y = nv.cond(x[0, 0] > 0, lambda v: v * (2 + g.rank()), lambda v: v, x)
        bounded = lambda c: c[0] < g.rank()  # noqa: E731
        return nv.while_loop(bounded, lambda c: (c[0] + 1, c[1] * 2), (0, y))[1]

    agree(f, X)
    agree(lambda g, x: nv.grad(lambda v: nv.sum(nv.sin(f_cond(g, v))))(x), X)


def f_cond(g: Any, x: Any) -> Any:
    return nv.cond(x[0, 0] > 0, lambda v: v * (2 + g.rank()), lambda v: nv.sin(v), x)


def test_custom_jvp_rules() -> None:
    def program(g: Any, x: Any) -> Any:
        @nv.custom_jvp
        def f(v: Any) -> Any:
            return nd.all_sum(nv.sin(v), g)

        f.defjvp(lambda p, t: (f(*p), nd.all_sum(nv.cos(p[0]) * t[0], g) * 2))
        return nv.grad(lambda v: nv.sum(f(v) * v))(x), nv.jvp(f, (x,), (x,))

    agree(program, X)


def test_custom_rules() -> None:
    @nv.custom_vjp
    def scaled(x: Any) -> Any:
        return x * 2

    def program(g: Any, x: Any) -> Any:
        @nv.custom_vjp
        def shared(v: Any) -> Any:
            return nv.sin(nd.all_sum(v, g))

        shared.defvjp(
            lambda v: (shared(v), v), lambda v, c: (nd.all_sum(c, g) * nv.cos(nd.all_sum(v, g)),)
        )
        run = lambda v: nv.sum(scaled(shared(v)) * v)  # noqa: E731
        return run(x), nv.grad(run)(x), nv.compile(nv.grad(run))(x)

    scaled.defvjp(lambda x: (x * 2, None), lambda _, c: (c * 3,))
    agree(program, X)
    mapped = nv.compile(nv.vmap(lambda x: program(nd.axis_group("i"), x), axis_name="i"))
    found = [np.asarray(v) for v in mapped(X)]
    for a, b in zip(found, agree(program, X), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    outside = nv.grad(
        lambda v: nv.sum(nv.vmap(lambda x: program(nd.axis_group("i"), x)[0], axis_name="i")(v))
    )(X)
    np.testing.assert_allclose(outside, found[1], rtol=1e-12)


def test_keys_folded_with_the_rank() -> None:
    def program(g: Any, x: Any) -> Any:
        key = nv.random.fold_in(nv.random.key(3), g.rank())
        return x + nd.all_sum(nv.random.uniform(key, (2,), dtype=nv.float64), g)

    agree(program, X[:, 0])
    drawn = nv.vmap(lambda x: nd.all_gather(nv.random.uniform() + 0 * x, nd.axis_group("i")),
                    axis_name="i")(nv.zeros(4))  # fmt: skip
    assert len(set(np.asarray(drawn)[0].tolist())) == 4


def test_the_batching_checker_on_a_program_over_an_axis() -> None:
    def f(x: Any) -> Any:
        return nv.vmap(lambda v: nd.all_sum(nv.sin(v), nd.axis_group("i")) * v, axis_name="i")(x)

    check_vmap(f, (X,))


# What an axis cannot do


def test_the_group_as_an_object() -> None:
    def f(x: Any) -> Any:
        g = nd.axis_group("i")
        assert g == nd.axis_group("i") and len({g, nd.axis_group("i")}) == 1
        assert g.size() == 3 and repr(g) == "AxisGroup('i', size=3)"
        g.barrier()
        nd.barrier(g)
        nd.synchronize(g)
        assert g.rank().dtype == nv.int32 and g.rank().shape == ()
        return x + g.rank()

    assert nv.vmap(f, axis_name="i")(nv.zeros(3)).tolist() == [0, 1, 2]
    assert nv.vmap(lambda: nd.axis_group("i").rank(), axis_name="i", axis_size=4)().tolist() == [
        0, 1, 2, 3,
    ]  # fmt: skip


def test_errors() -> None:
    def mapped(f: Callable[[Any, Any], Any]) -> Any:
        return nv.vmap(lambda x: f(nd.axis_group("i"), x), axis_name="i")(nv.ones((3, 2)))

    with pytest.raises(DistributedError, match=r"axis_group\('j'\).*\(those that are open: 'i'\)"):
        nv.vmap(lambda x: nd.all_sum(x, nd.axis_group("j")), axis_name="i")(nv.ones(2))
    with pytest.raises(DistributedError, match="no vmap around"):
        nd.axis_group("i")
    for call in (lambda g, x: nd.send(x, 1, g), lambda g, x: nd.recv((2,), x.dtype, 0, g),
                 lambda g, x: nd.recv_like(x, 0, g)):  # fmt: skip
        with pytest.raises(DistributedError, match=r"nv\.distributed\.permute"):
            mapped(call)
    with pytest.raises(DistributedError, match="nest"):
        mapped(lambda g, x: g.split(0))
    with pytest.raises(ShapeError, match="do not divide"):
        mapped(lambda g, x: nd.sum_scatter(x, g))
    with pytest.raises(DtypeError, match="complex"):
        mapped(lambda g, x: nd.all_max(x.astype(nv.complex64), g))
    with pytest.raises(ShapeError, match="rank 3 is not in this group of 3"):
        mapped(lambda g, x: nd.broadcast(x, 3, g))
    with pytest.raises(ConcretizationError, match=r"depends on rank\(\) of the mapped axis 'i'\."):
        mapped(lambda g, x: x if g.rank() == 0 else -x)
    with pytest.raises(ConcretizationError, match=r"argument 'x' of .* and rank"):
        mapped(lambda g, x: x if x[0] > g.rank() else -x)
    with pytest.raises(DistributedError, match=r"set_default_group: AxisGroup.*only inside it"):
        mapped(lambda g, x: (nd.set_default_group(g), x)[1])
    for f in (nd.all_max, nd.all_min):
        with pytest.raises(ShapeError, match=f"^{f.__name__} over a mapped axis of size 0"):
            nv.vmap(lambda x, f=f: f(x, nd.axis_group("i")), axis_name="i")(nv.ones((0, 2)))


def test_a_rank_that_is_traced_is_refused() -> None:
    def mapped(f: Callable[[Any, Any], Any]) -> Any:
        return nv.vmap(lambda x: f(nd.axis_group("i"), x), axis_name="i")(nv.ones((3, 2)))

    says = r"ranks must be Python ints.*traced ~?int32\[\].*has no value.*permute.*nv\.where"
    for name, call in {
        "broadcast": lambda g, x: nd.broadcast(x, g.rank(), g),
        "permute": lambda g, x: nd.permute(x, [(0, 1), (1, g.rank())], g),
    }.items():
        with pytest.raises(ConcretizationError, match=rf"^{name}: {says}.*test_axis_group\.py"):
            mapped(call)
    with pytest.raises(ConcretizationError, match=r"^permute: .*traced int32\[2\]"):
        nv.compile(lambda p: nd.permute(nv.ones(2), p))(nv.array([[0, 0]]))

    def program(group: Any) -> None:
        for name, call in {
            "send": lambda r: nd.send(nv.ones(2), r, group),
            "recv": lambda r: nd.recv((2,), nv.float32, r, group),
            "recv_like": lambda r: nd.recv_like(nv.ones(2), r, group),
            "broadcast": lambda r: nd.broadcast(nv.ones(2), r, group),
        }.items():
            with pytest.raises(ConcretizationError, match=rf"^{name}: {says}"):
                nv.compile(call)(1 - group.rank())

    run_local(program, 2)


@pytest.mark.parametrize("max_steps", [None, 5])
def test_a_mapped_while_loop_that_communicates_is_named(max_steps: int | None) -> None:
    def loop(x: Any) -> Any:
        return nv.while_loop(
            lambda c: nd.all_sum(c, nd.axis_group("i")) * c < 5, lambda c: c + 1, x,
            max_steps=max_steps,
        )  # fmt: skip

    with pytest.raises(NuvecError, match=r"while_loop.* communicates"):
        nv.vmap(loop, axis_name="i")(nv.ones(2))


def test_outside_of_its_vmap_an_axis_is_refused() -> None:
    kept: list[Any] = []

    def f(x: Any) -> Any:
        g = nd.axis_group("i")
        kept.extend([g, nd.all_sum(nv.ones(2), g)])
        return x

    nv.vmap(f, axis_name="i")(nv.ones(3))
    with pytest.raises(DistributedError, match="exists only inside the vmap"):
        nd.all_sum(nv.ones(2), kept[0])
    with pytest.raises(DistributedError, match="exists only inside the vmap"):
        kept[0].rank()
    with pytest.raises(LeakedTracerError, match="kept from inside the vmap"):
        nv.eval(kept[1])
