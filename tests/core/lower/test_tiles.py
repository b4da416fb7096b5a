"""Groups of equations that run tile by tile: the bits of the whole, whatever is cut."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import nuvec as nv
import nuvec.nn as nn
from nuvec.core import dtypes
from nuvec.core.ir import Var, aval
from nuvec.core.lower import errstate, fuse, lower
from nuvec.core.lower.fuse import tile_rows
from nuvec.core.ops.summation import reduced_sum
from nuvec.core.primitive import NOT_BATCHABLE, TABLE
from nuvec.core.threads import run_all
from nuvec.core.tiling import Rows
from nuvec.nn.labels import class_index
from nuvec.testing import check_compile
from tests.cases.case import Case
from tests.cases.rows import all_rows
from tests.core.lower.programs import check, f4, program, random_program
from tests.core.lower.programs import values as random_values

ROWS = all_rows()


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tiles of 64 bytes, and of everything."""
    monkeypatch.setattr(fuse, "LEAST", 1)
    monkeypatch.setattr(fuse, "ALONE", 0)
    monkeypatch.setattr(fuse, "TILE", 64)
    with nv.config.override(passes=nv.config.passes - {"partial_sums"}):
        yield


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed: int, slow: bool, tiny: None) -> None:
    for k in range(200 if slow else 5):
        ir = random_program(1000 * seed + k, 4 + 3 * (seed % 7))
        generator = np.random.Generator(np.random.PCG64(seed))
        check(ir, *[random_values(v.aval, generator) for v in ir.inputs])


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_every_row_of_the_table(row: Case, tiny: None) -> None:
    check_compile(row.function, row.args)


def _joins(row: Case) -> bool:
    primitive = TABLE.get(row.primitive or "")
    cut = primitive is not None and (primitive.kind == "elementwise" or primitive.tile is not None)
    return cut and bool(row.args) and primitive.vmap is not NOT_BATCHABLE


@pytest.mark.parametrize("row", [r for r in ROWS if _joins(r)], ids=str)
def test_vector_loops_and_their_rests(row: Case, tiny: None, monkeypatch) -> None:
    """The row's operands many times over, cut where a vector loop would not end."""
    monkeypatch.setattr(fuse, "TILE", 1 << 11)
    check_compile(nv.vmap(row.function), [np.stack([x] * 203) for x in row.args])


# What joins


def _groups(function, *avals):
    plan = lower(program(function, *avals))
    return [[e.primitive.name for e in g.eqns] for g in plan.groups if g.rows is not None]


BIG = f4(512, 1024)


def test_small_arrays_stay_alone() -> None:
    assert _groups(lambda x: nv.exp(x) * 2, f4(64, 64)) == []
    assert _groups(lambda x: nv.exp(x) * 2, BIG) == [["exp", "multiply"]]


def test_one_equation_is_cut_where_it_is_large() -> None:
    assert _groups(nv.exp, BIG) == [["exp"]]
    assert _groups(nv.exp, f4(256, 256)) == []


def test_softmax_is_one_group() -> None:
    (names,) = _groups(lambda x: nv.softmax(x, axis=-1), BIG)
    assert {"max", "subtract", "exp", "sum", "divide"} <= set(names)


def test_sums_over_rows_join_as_partial_sums() -> None:
    def function(x):
        return nv.sum(nv.exp(x) * x, axis=0)

    assert _groups(function, BIG) == [["exp", "multiply", "sum"]]
    with nv.config.override(passes=nv.config.passes - {"partial_sums"}):
        assert _groups(function, BIG) == [["exp", "multiply"]]


def test_other_axes_do_not() -> None:
    assert _groups(lambda x: nv.exp(x).sum(1), f4(512, 64, 16)) == [["exp"]]
    assert _groups(lambda x: nv.exp(nv.transpose(x)) + 1, BIG) == []


@pytest.mark.parametrize(
    ("function", "joined"),
    [
        (lambda x: nv.concatenate([nv.exp(x), x], axis=1) + 1, ["exp", "concatenate", "add"]),
        (lambda x: nv.exp(x)[:, 3:700:2] * 2, ["exp", "slice", "multiply"]),
        (lambda x: (lambda y: y[:, :512] - y[:, 512:])(nv.exp(x)),
         ["exp", "slice", "slice", "subtract"]),
        (lambda x: nv.pad(nv.exp(x), ((0, 0), (1, 2))) + 1, ["exp", "pad", "add"]),
        (lambda x: nv.argmax(nv.exp(x), axis=1) + nv.argmin(x, axis=1),
         ["exp", "argmax", "argmin", "add"]),
    ],
    ids=["concatenate", "slice", "halves", "pad", "argmax"],
)  # fmt: skip
def test_what_works_behind_the_rows_joins(function, joined) -> None:
    generator = np.random.Generator(np.random.PCG64(0))
    (names,) = _groups(function, BIG)
    assert sorted(names) == sorted(joined)
    check(program(function, BIG), random_values(BIG, generator))
    cube = f4(32, 16, 1024)  # rows of two axes, or of one

    def deeper(x):
        return nv.reshape(function(nv.reshape(x, (512, 1024))), (32, 16, -1)) * 2

    check(program(deeper, cube), random_values(cube, generator))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: nv.concatenate([nv.exp(x), x], axis=0) + 1,
        lambda x: nv.exp(x)[1:] * 2,
        lambda x: nv.exp(x)[::-1] * 2,
        lambda x: nv.pad(nv.exp(x), ((1, 0), (1, 2))) + 1,
        lambda x: nv.argmax(nv.exp(x), axis=0),
    ],
    ids=["concatenate", "slice", "flip", "pad", "argmax"],
)
def test_what_works_along_the_rows_does_not(function) -> None:
    for names in _groups(function, BIG):
        assert {"concatenate", "slice", "pad", "argmax"}.isdisjoint(names)
    check(program(function, BIG), random_values(BIG, np.random.Generator(np.random.PCG64(0))))


def test_cross_entropy_and_its_gradient_are_one_group() -> None:
    def function(logits, labels):
        loss = nv.value_and_grad(lambda x: nn.losses.cross_entropy(x, labels, reduction="mean"))
        return list(loss(logits))

    avals = f4(512, 1000), aval((512,), dtypes.int32)
    names = [e.primitive.name for e in program(function, *avals).eqns]
    assert {"take_along", "add_along"} <= set(names)
    assert {"gather", "scatter_add"}.isdisjoint(names)
    (group,) = _groups(function, *avals)
    assert {"max", "exp", "log", "take_along", "add_along", "sum"} <= set(group)
    alone = [g for g in lower(program(function, *avals)).groups if g.rows is None]
    assert {g.eqns[0].primitive.name for g in alone} <= {"class_index", "reshape", "divide"}


def test_sums_over_some_of_the_rows() -> None:
    def function(x, y):
        z = nv.reshape(x, (8, 784, 1)) * nv.reshape(y, (8, 1, 512))
        return nv.sum(z * z, axis=(1, 2))

    ir = program(function, f4(8, 784), f4(8, 512))
    (group,) = [g for g in lower(ir).groups if g.rows is not None]
    assert [e.primitive.name for e in group.eqns] == ["multiply", "multiply", "sum"]
    assert (group.rows, group.rows.outer) == ((8, 784), 1)
    generator = np.random.Generator(np.random.PCG64(0))
    x, y = (random_values(v.aval, generator, special=False) for v in ir.inputs)
    (found,) = lower(ir).run(x, y)
    wide = np.einsum("bi,bj->bij", x.astype(np.float64), y.astype(np.float64)) ** 2
    np.testing.assert_allclose(found, wide.sum((1, 2)), rtol=1e-6)


def test_an_outer_product_is_elementwise() -> None:
    (names,) = _groups(lambda x, y: nv.exp(nv.outer(x, y)), f4(512), f4(1024))
    assert names == ["multiply", "exp"]


def test_a_view_that_is_used_outside_stays_one() -> None:
    def function(x):
        y = nv.exp(x) * 2
        return [y, nv.transpose(nv.reshape(y, (512, 32, 32)), (0, 2, 1)), nv.reshape(x, (-1,))]

    ir = program(function, BIG)
    check(ir, random_values(BIG, np.random.Generator(np.random.PCG64(0))))
    (group,) = [g for g in lower(ir).groups if g.rows is not None]
    assert [e.primitive.name for e in group.eqns] == ["exp", "multiply"]


def test_what_comes_after_a_partial_sum_comes_after_the_group() -> None:
    def function(x):
        y = nv.exp(x)
        return y / nv.sum(y, axis=0)

    plan = lower(program(function, BIG))
    assert [[e.primitive.name for e in g.eqns] for g in plan.groups] == [["exp", "sum"], ["divide"]]


def test_effects_and_what_depends_on_them_keep_their_order() -> None:
    def on_rank(group):
        def function(x):
            y = nv.exp(x)
            z = nv.distributed.all_sum(y, group) + 1
            return [y * 2, z * 2]

        ir = program(function, BIG)
        x = np.full((512, 1024), 0.5, np.float32)
        assert np.asarray(lower(ir).run(x)[1])[0, 0] == np.exp(np.float32(0.5)) * 4 + 2
        return [[e.primitive.name for e in g.eqns] for g in lower(ir).groups]

    for names in nv.distributed.run_local(on_rank, 2):
        # what the communication needs is not held up by what can be computed beside it
        assert names == [["exp"], ["all_sum"], ["multiply"], ["add", "multiply"]]


# Tile borders


@pytest.mark.parametrize("count", [2, 3, 31, 1000, 4096, 65537, 4194304])
@pytest.mark.parametrize("width", [1, 7, 16, 1000, 5001, 25000])
def test_borders(count: int, width: int) -> None:
    found = tile_rows(Rows((count,)), [Var(f4(count, width)), Var(f4(count))])
    if found is None:
        assert count * width * 4 < 3 * fuse.TILE or width * 16 * 4 > 4 * fuse.TILE
        return
    size, many = found
    last = count - (many - 1) * size
    assert 0 < last <= size + size // 2
    assert size * width % 16 == 0
    assert size % 16 == 0 or width * 16 * 4 > 4 * fuse.TILE or size * 16 > count
    assert size * width * 4 <= 4 * fuse.TILE


def test_borders_within_outer_axes() -> None:
    size, tiles = tile_rows(Rows((8, 784), 1), [Var(f4(8, 784, 512))])
    assert tiles > 1 and 0 < 784 - (tiles - 1) * size <= size + size // 2
    assert tile_rows(Rows((8, 785), 1), [Var(f4(8, 785, 513))]) is None
    assert tile_rows(Rows((8, 16), 1), [Var(f4(8, 16, 16))]) is None


# Sums


@pytest.mark.parametrize("shape", [(1 << 20,), (4096, 300), (70001, 7), (8, 512, 300)])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.complex64])
def test_partial_sums_are_as_exact_as_sums(shape: tuple[int, ...], dtype: np.dtype) -> None:
    a = aval(shape, dtype)
    axes = [None, 0, tuple(range(len(shape)))]
    ir = program(lambda x: [nv.sum(x * x, axis=k) for k in axes] + [x * 2], a)
    x = np.random.Generator(np.random.PCG64(0)).standard_normal(shape).astype(dtype)
    assert any(not g.outputs[0].aval.shape or g.rows for g in lower(ir).groups)
    found = lower(ir).run(x)
    wide = x.astype(np.clongdouble if dtype == dtypes.complex64 else np.longdouble)
    for k, value in zip(axes, found, strict=False):
        exact, size = (wide * wide).sum(axis=k), np.abs(wide * wide).sum(axis=k)
        eps = np.finfo(dtype).eps
        assert np.all(np.abs(value - exact) <= 5 * eps * size)  # 4, and 1 of the product


def test_integers_wrap() -> None:
    ir = program(lambda x: [nv.sum(x * 3), x * 3], aval((1 << 19,), dtypes.int32))
    x = np.random.Generator(np.random.PCG64(0)).integers(-(2**31), 2**31, 1 << 19).astype(np.int32)
    check(ir, x)


# Threads


def _mixed():
    def function(x, w):
        y = nv.tanh(x * w + 1)
        m = y - nv.mean(y, axis=-1, keepdims=True)
        return [m * nv.exp(y), nv.sum(m * y, axis=0), nv.sum(y)]

    a, w = f4(3001, 700), f4(700)
    generator = np.random.Generator(np.random.PCG64(0))
    return program(function, a, w), [random_values(v, generator, special=False) for v in (a, w)]


def test_the_same_bits_for_any_number_of_threads() -> None:
    ir, arguments = _mixed()
    results = []
    for threads in (1, 2, 3, 5):
        with nv.config.override(threads=threads):
            results.append([np.asarray(v).tobytes() for v in lower(ir).run(*arguments)])
    assert all(r == results[0] for r in results)


def test_runs_at_the_same_time() -> None:
    ir, arguments = _mixed()
    run = lower(ir).run
    expected = [np.asarray(v).tobytes() for v in run(*arguments)]
    found = []

    def call() -> None:
        for _ in range(3):
            found.append([np.asarray(v).tobytes() for v in run(*arguments)])

    threads = [threading.Thread(target=call) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 12
    assert all(f == expected for f in found)


def test_the_number_of_threads_may_change_meanwhile() -> None:
    ir, arguments = _mixed()
    run = lower(ir).run
    expected = [np.asarray(v).tobytes() for v in run(*arguments)]
    wrong: list[object] = []

    def call() -> None:
        for _ in range(20):
            try:
                if [np.asarray(v).tobytes() for v in run(*arguments)] != expected:
                    wrong.append("other bits")
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        for k in (1, 2, 3, 4):
            with nv.config.override(threads=k):
                lower(ir).run(*arguments)
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_run_all(threads: int) -> None:
    done: list[int] = []
    run_all(done.append, 100, threads)
    assert sorted(done) == list(range(100))


def test_the_first_error_is_the_one_raised() -> None:
    def work(k: int) -> None:
        if k >= 5:
            raise ValueError(k)

    for threads in (1, 3):
        with pytest.raises(ValueError, match=r"^5$"):
            run_all(work, 100, threads)


def test_an_error_by_value_leaves_the_program_usable() -> None:
    labels = np.zeros((1 << 19,), np.int32)
    f = nv.compile(lambda x: class_index(x, 10) + 1)
    assert np.asarray(f(nv.array(labels))).sum() == 1 << 19
    labels[[400_000, 500_000]] = 11, 12
    with pytest.raises(IndexError, match="the label 11 "):
        f(nv.array(labels))
    assert np.asarray(f(nv.array(np.zeros_like(labels)))).sum() == 1 << 19


def test_a_forked_child_has_threads_of_its_own() -> None:
    if not hasattr(os, "fork"):
        return
    with nv.config.override(threads=3):
        ir, arguments = _mixed()
        expected = [np.asarray(v).tobytes() for v in lower(ir).run(*arguments)]
        child = os.fork()
        if not child:
            found = [np.asarray(v).tobytes() for v in lower(ir).run(*arguments)]
            os._exit(0 if found == expected else 1)
        assert os.waitpid(child, 0)[1] == 0


# Memory


def test_a_dead_operand_is_written_over() -> None:
    def function(x, w):
        return nv.tanh(nv.matmul(x, w)) * 2 + 1

    ir = program(function, f4(1024, 512), f4(512, 1024))
    plan = lower(ir)
    (step,) = [g for g in plan.groups if g.rows is not None]
    assert plan.memory.arena == 0  # the product itself becomes the result
    generator = np.random.Generator(np.random.PCG64(0))
    check(ir, *[random_values(v.aval, generator, special=False) for v in ir.inputs])
    assert step.outputs


def test_an_operand_that_others_see_is_not() -> None:
    def function(x, w):
        y = nv.matmul(x, w)
        return [nv.tanh(y) * 2, nv.reshape(y, (-1,))]

    ir = program(function, f4(1024, 512), f4(512, 1024))
    generator = np.random.Generator(np.random.PCG64(0))
    check(ir, *[random_values(v.aval, generator, special=False) for v in ir.inputs])


def test_a_square_operand_that_every_tile_reads_is_not() -> None:
    def function(x):
        y = nv.exp(x)
        z = nv.matmul(y, y)
        return nv.tanh(z) + nv.reshape(z, (1, 512, 512))[0, 0]

    ir = program(function, f4(512, 512))
    check(ir, random_values(ir.inputs[0].aval, np.random.Generator(np.random.PCG64(0)), False) / 9)


def test_outputs_over_dead_operands_are_written_without_copies() -> None:
    def step(mean, square, weight, x, y):  # Adam's: the gradient, y^T x, is dead early
        gradient = nv.matmul(nv.transpose(y), x)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.99 * square + 0.01 * (gradient * gradient)
        return [mean, square, weight - mean / (nv.sqrt(square) + 1e-8)]

    big = f4(512, 1024)
    ir = program(step, big, big, big, f4(32, 1024), f4(32, 512))
    source = lower(ir).source
    assert "tiles" in source
    assert "[...] =" not in source
    generator = np.random.Generator(np.random.PCG64(0))
    check(ir, *[abs(random_values(v.aval, generator, special=False)) for v in ir.inputs])


def test_what_begins_before_an_operand_is_dead_ends_in_its_memory() -> None:
    def function(x, w, z):
        product = nv.matmul(x, w)
        y = nv.exp(z) * 2  # computed in one place, while the product is there
        return nv.tanh(y * product) * 3

    ir = program(function, f4(512, 512), f4(512, 1024), f4(512, 1024))
    source = lower(ir).source
    assert "[...] =" not in source
    assert "np.tanh(v1, out=into0)" in source
    assert "np.empty((131072,)" not in source
    generator = np.random.Generator(np.random.PCG64(0))
    check(ir, *[random_values(v.aval, generator, special=False) for v in ir.inputs])


def test_the_text_shows_the_tiles() -> None:
    source = lower(program(lambda x, y: nv.exp(x) * y, BIG, BIG, names=["x", "y"])).source
    assert "512x1024 rows in 4 tiles of 131072" in source
    assert "np.exp(x, out=" in source


# How NumPy runs the operations of a tile


@pytest.mark.parametrize(("shapes", "rows"), [
    (((64, 1), (2000,)), True), (((64, 1000), (64, 1)), True), (((64, 1000), (1000,)), True),
    (((4, 8, 128), (4, 1, 1)), True), (((4, 8, 128), (4, 8, 1)), False), (((64, 32), (32,)), False),
    (((64, 1000), (64, 1000)), False), (((64, 1000), ()), False), (((4, 1, 300), (5, 1)), True),
    (((2, 300, 2), (300, 1)), False), (((300, 1), (1, 300)), True),
])  # fmt: skip
def test_long_rows_are_taken_one_by_one(shapes, rows) -> None:
    ir = program(lambda x, y: x - y, *[f4(*s) for s in shapes])
    assert (errstate.state_for(ir) is errstate.IGNORED_ROWS) == rows
    assert errstate.IGNORED_ROWS is not errstate.IGNORED


def test_the_buffer_of_numpy_is_small_while_a_tile_runs_and_then_as_before() -> None:
    sizes = []

    def run(plan):
        (loop,) = plan._emitted[0].loops
        function = loop.main.emitted.function
        variable, state = errstate.ERRORS, function.__globals__["ignored"]
        before = variable.set(state)
        sizes.append(np.getbufsize())
        variable.reset(before)

    run(lower(program(lambda x, y: nv.exp(x) - y, BIG, f4(1024))))
    run(lower(program(lambda x, y: nv.exp(x) - y, BIG, BIG)))
    assert sizes == [errstate.ROW, 8192]
    assert np.getbufsize() == 8192


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.float32])
def test_sums_do_not_depend_on_the_buffer(dtype) -> None:
    generator = np.random.Generator(np.random.PCG64(0))
    x = generator.standard_normal((7, 100, 300)).astype(dtype)
    before = np.getbufsize()
    for axes in ((0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)):
        found = []
        for size in (16, errstate.ROW, 8192, 1 << 20):
            np.setbufsize(size)
            found.append(np.asarray(reduced_sum(x, axes)).tobytes())
        np.setbufsize(before)
        assert len(set(found)) == 1, axes


@pytest.mark.parametrize("shape", [(33, 62, 256), (512, 1024), (64, 32, 256), (8192, 64)])
@pytest.mark.parametrize("exponent", [2.0, 0.5, -1.0, 3.0])
def test_powers_of_a_repeated_exponent(shape, exponent) -> None:
    """np.power multiplies where it sees one exponent alone, which has other bits."""
    ir = program(lambda x, y: x**y, f4(*shape), f4(*shape[:-1], 1))
    x = np.random.Generator(np.random.PCG64(0)).random(shape).astype(np.float32)
    check(ir, x, np.full((*shape[:-1], 1), exponent, np.float32))
