"""Every collective in every pass: generated from tests/cases/collectives.py."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec import distributed as nd
from nuvec.core import dtypes
from nuvec.core.array import from_numpy
from nuvec.core.errors import DistributedError, DtypeError, ShapeError
from nuvec.core.primitive import TABLE
from nuvec.core.queue import process_queue
from nuvec.distributed.group import Group, run_local
from nuvec.distributed.transports.job import Address, Job
from nuvec.distributed.transports.mesh import mesh_communicator
from nuvec.testing import check_collective
from nuvec.testing.compare import close, primitives_in, same_bits
from nuvec.transforms.compile import compile
from nuvec.transforms.cond import cond
from nuvec.transforms.grad import grad, value_and_grad, vjp
from nuvec.transforms.ir_tools import make_ir
from nuvec.transforms.jvp import jvp
from nuvec.transforms.scan import scan
from nuvec.transforms.vmap import vmap
from tests.cases.collectives import CASES, CollectiveCase

SIZES = (1, 2, 3, 4, 5)
DTYPES = (
    np.bool_, np.int8, np.int32, np.uint8, np.int64, np.float16, dtypes.bfloat16, np.float32,
    np.float64, np.complex64, np.complex128,
)  # fmt: skip
# Tested below: in a replicated computation the pair is right, and only there.
REPLICATED = {"sum_gradients", "sum_partials", "barrier"}
ON_AXES = {"axis_index"}  # in test_axis_group.py

every_case = pytest.mark.parametrize("case", CASES, ids=str)


def values_of(case: CollectiveCase, size: int, dtype: Any, rank: int) -> list[np.ndarray]:
    generator = np.random.Generator(np.random.PCG64([rank, size]))
    found = []
    for shape in case.shapes(size):
        x: Any = generator.normal(size=shape) * 10
        if dtypes.is_complex(dtype):
            x = x + 1j * generator.normal(size=shape)
        elif np.dtype(dtype).kind in "iub":
            x = generator.integers(0, 2 if np.dtype(dtype).kind == "b" else 9, shape)
        found.append(np.asarray(x).astype(dtype))
    return found


def kind_of(dtype: Any) -> str:
    return "f" if dtype is dtypes.bfloat16 else np.dtype(dtype).kind


def test_every_communication_has_rows() -> None:
    names = {p.name for p in TABLE.values() if p.kind == "effect" and "." not in p.name}
    assert names <= {case.primitive for case in CASES} | REPLICATED | ON_AXES


@every_case
def test_a_row_exercises_its_primitive(case: CollectiveCase) -> None:
    def program(group: Group) -> Any:
        args = values_of(case, 2, np.float32, group.rank())
        return primitives_in(make_ir(lambda *a: case.function(group, *a))(*args))

    assert all(case.primitive in found for found in run_local(program, 2))


@pytest.mark.parametrize("size", SIZES)
@every_case
def test_forward_is_numpys_fold(case: CollectiveCase, size: int) -> None:
    """Bit for bit, in every dtype, on contiguous and on strided operands."""
    if size == 1 and not case.alone:
        size = 6
    for dtype in DTYPES:
        if kind_of(dtype) not in case.kinds:
            continue
        values = [values_of(case, size, dtype, r) for r in range(size)]

        def program(group: Group, values: Any = values) -> Any:
            args = [from_numpy(v) for v in values[group.rank()]]
            plain = case.function(group, *args)
            turned = [nv.transpose(from_numpy(v.T)) for v in values[group.rank()]]
            return nv.tree.leaves(plain), nv.tree.leaves(case.function(group, *turned))

        for rank, results in enumerate(run_local(program, size)):
            for found in results:
                for k, x in enumerate(found):
                    expected = case.reference([v[k] for v in values], rank)
                    assert same_bits(np.asarray(x), np.asarray(expected)), (dtype, x, expected)


@every_case
def test_refused_dtypes(case: CollectiveCase) -> None:
    for dtype in DTYPES:
        if kind_of(dtype) not in case.kinds:
            for size in (1, 2):

                def program(group: Group, dtype: Any = dtype) -> None:
                    case.function(group, *values_of(case, group.size(), dtype, group.rank()))

                with pytest.raises(DtypeError):
                    run_local(program, size)


@pytest.mark.parametrize("size", SIZES)
@every_case
def test_rules(case: CollectiveCase, size: int) -> None:
    """The adjoint identity to 1e-12, second derivatives, vmap, compile: see check_collective."""
    if size == 1 and not case.alone:
        return  # a group of one has nobody to talk to
    check_collective(case.function, lambda rank, n: _templates(case, n), (size,), order=2)


def _templates(case: CollectiveCase, size: int) -> list[np.ndarray]:
    return [np.zeros(shape) for shape in case.shapes(size)]


@pytest.mark.parametrize("name", ["all_sum", "all_gather", "broadcast", "recv"])
def test_rules_in_complex(name: str) -> None:
    case = next(c for c in CASES if c.primitive == name)

    def operands(rank: int, size: int) -> list[np.ndarray]:
        return [np.zeros(shape, np.complex128) for shape in case.shapes(size)]

    check_collective(case.function, operands, (2, 3))


@pytest.mark.parametrize("name", ["all_sum", "all_max", "all_gather", "broadcast", "send"])
def test_integers_in_a_tree_have_no_derivative(name: str) -> None:
    """They travel in the message and are skipped in the derivative's."""
    case = next(c for c in CASES if c.primitive == name and c.label == "tree")

    def operands(rank: int, size: int) -> list[np.ndarray]:
        floats = _templates(case, size)
        return [floats[0], np.arange(3) + rank, *floats[1:]]

    check_collective(case.function, operands, (2,))


# Ties, replicated computations, errors


@pytest.mark.parametrize("name", ["all_max", "all_min"])
def test_ties_share_the_cotangent_across_ranks(name: str) -> None:
    operation = getattr(nd, name)
    sign = 1 if name == "all_max" else -1
    table = sign * np.array([[1, 5, 7], [3, 5, 7], [2, 4, 7]], np.float64)

    def program(group: Group) -> Any:
        x = nv.array(table[group.rank()])
        out, pull = vjp(lambda x: operation(x, group), x)
        moved = jvp(lambda x: operation(x, group), (x,), (nv.array(table[group.rank()]),))[1]
        return out, pull(nv.array([1.0, 10.0, 100.0]).astype(nv.float64))[0], moved

    results = run_local(program, 3)
    # Each of the 3 ranks has cotangent (1, 10, 100): the winners share three times that.
    expected = [[0, 15, 100], [3, 15, 100], [0, 0, 100]]
    for (out, gradient, moved), row in zip(results, expected, strict=True):
        np.testing.assert_array_equal(out, sign * np.array([3, 5, 7], np.float64))
        np.testing.assert_array_equal(gradient, row)
        np.testing.assert_array_equal(moved, sign * np.array([3, 5, 7], np.float64))


def test_nan_wins_an_extreme() -> None:
    def program(group: Group) -> Any:
        x = nv.array([float(group.rank()), np.nan if group.rank() == 1 else 9.0])
        return nd.all_max(x, group), nd.all_min(x, group)

    for largest, smallest in run_local(program, 3):
        np.testing.assert_array_equal(largest, [2, np.nan])
        np.testing.assert_array_equal(smallest, [0, np.nan])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_sharded_model_has_the_dense_models_derivatives(size: int) -> None:
    """sum_gradients before and sum_partials after a sharded layer, with a replicated loss."""
    generator = np.random.Generator(np.random.PCG64(0))
    w1, w2 = generator.normal(size=(4, 6)), generator.normal(size=(6, 3))
    x, v = generator.normal(size=(5, 4)), generator.normal(size=(5, 4))

    def dense(x: Any, w1: Any, w2: Any) -> Any:
        return nv.sum(nv.sin(nv.tanh(x @ w1) @ w2) ** 2)

    def sharded(group: Group) -> Any:
        def loss(x: Any, w1: Any, w2: Any) -> Any:
            h = nv.tanh(nd.sum_gradients(x, group) @ w1)
            return nv.sum(nv.sin(nd.sum_partials(h @ w2, group)) ** 2)

        n = 6 // size
        own = slice(group.rank() * n, (group.rank() + 1) * n)
        args = nv.array(x), nv.array(w1[:, own]), nv.array(w2[own])
        forward_over_reverse = jvp(lambda x: grad(loss)(x, *args[1:]), (args[0],), (nv.array(v),))
        reverse_over_reverse = grad(lambda x: nv.sum(grad(loss)(x, *args[1:]) * v))(args[0])
        reverse_over_forward = grad(
            lambda x: jvp(lambda x: loss(x, *args[1:]), (x,), (nv.array(v),))[1]
        )(args[0])
        compiled = compile(value_and_grad(loss, (0, 1, 2)))(*args)
        return (value_and_grad(loss, (0, 1, 2))(*args), forward_over_reverse[1],
                reverse_over_reverse, reverse_over_forward, compiled)  # fmt: skip

    args = nv.array(x), nv.array(w1), nv.array(w2)
    value, gradients = value_and_grad(dense, (0, 1, 2))(*args)
    hv = jvp(lambda x: grad(dense)(x, *args[1:]), (args[0],), (nv.array(v),))[1]
    for rank, (result, *products, compiled) in enumerate(run_local(sharded, size)):
        n = 6 // size
        own = slice(rank * n, (rank + 1) * n)
        parts = [gradients[0], np.asarray(gradients[1])[:, own], np.asarray(gradients[2])[own]]
        for found in (result, compiled):
            assert close(np.asarray(found[0]), np.asarray(value), 1e-12, 0)
            for a, b in zip(found[1], parts, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)
        for product in products:
            np.testing.assert_allclose(product, hv, rtol=1e-10, atol=1e-11)


def test_vmap_of_a_batch_on_some_ranks_only() -> None:
    """A rank whose operand is not mapped sends it once for every element."""

    def program(group: Group) -> Any:
        def f(x: Any) -> Any:
            return nd.all_sum(x if group.rank() else nv.array(100.0), group)

        return vmap(f)(nv.array([1.0, 2.0, 3.0]))

    for out in run_local(program, 2):
        np.testing.assert_array_equal(out, [101, 102, 103])


def test_indivisible_axes_and_groups_of_one() -> None:
    def program(group: Group) -> None:
        for operation in (nd.sum_scatter, nd.all_to_all):
            with pytest.raises(ShapeError, match="axis 0"):
                operation(nv.ones(3), group)
            with pytest.raises(ShapeError, match="axis 0"):
                operation(nv.array(1.0), group)

    run_local(program, 2)

    def alone(group: Group) -> None:
        assert nd.all_gather(nv.array(2.0), group).shape == (1,)
        with pytest.raises(DistributedError, match="no other"):
            nd.send(nv.ones(2), 0, group)
        with pytest.raises(DistributedError, match="no other"):
            nd.recv((2,), nv.float32, 0, group)

    run_local(alone, 1)


def test_in_scan_and_cond() -> None:
    """A communication in a loop's body, and in a branch that every rank takes."""

    def program(group: Group) -> Any:
        def loss(x: Any) -> Any:
            def step(c: Any, _: Any) -> Any:
                return nv.sin(nd.all_sum(c, group)), None

            c, _ = scan(step, x, length=3)
            c = cond(nv.array(True), lambda c: nd.all_sum(c * c, group), lambda c: c, c)
            return nv.sum(c)

        def unrolled(x: Any) -> Any:
            for _ in range(3):
                x = nv.sin(nd.all_sum(x, group))
            return nv.sum(nd.all_sum(x * x, group))

        x = nv.array([0.1, 0.2]).astype(nv.float64) + group.rank()
        results = [g(f)(x) for f in (loss, unrolled) for g in (grad, lambda f: compile(grad(f)))]
        nv.eval(results)
        hv = [jvp(grad(f), (x,), (x,))[1] for f in (loss, unrolled)]
        nv.eval(hv)
        return results, hv

    for results, hv in run_local(program, 3):
        for r in results[1:]:
            np.testing.assert_allclose(r, results[0], rtol=1e-12)
        np.testing.assert_allclose(hv[0], hv[1], rtol=1e-10)


# The same bits over real processes


def _suite(group: Group) -> list[list[np.ndarray]]:
    """Values and derivatives of every row, on this rank."""
    found = []
    for case in CASES:
        args = [from_numpy(x) for x in values_of(case, group.size(), np.float32, group.rank())]

        def f(*args: Any, case: CollectiveCase = case) -> Any:
            return nv.tree.leaves(case.function(group, *args))

        outs, pull = vjp(lambda *a, f=f: [nv.sin(o) for o in f(*a)], *args)
        results = [*outs, *pull([nv.cos(o) for o in outs])]
        results += jvp(f, tuple(args), tuple(args))[1]
        results += vmap(f)(*[nv.stack([a, a + 1]) for a in args])
        results += compile(f)(*args)
        nv.eval(results)
        found.append([np.asarray(r) for r in results])
    return found


def rank_process(rank: int, directory: str, size: int) -> None:
    """What one process of the test below runs."""
    addresses = tuple(
        Address("localhost", unix=f"{directory}/sockets/{r}.sock") for r in range(size)
    )
    communicator = mesh_communicator(Job(rank, addresses, b"test secret", timeout=60))
    try:
        found = _suite(Group(communicator, process_queue()))
    finally:
        communicator.close()
    Path(directory, f"{rank}.pickle").write_bytes(pickle.dumps(found))


@pytest.mark.parametrize("size", SIZES[1:])
def test_processes_give_the_same_bits_as_threads(size: int) -> None:
    root = str(Path(__file__).parents[2])
    with tempfile.TemporaryDirectory(prefix="nuvec-test-") as directory:
        os.mkdir(os.path.join(directory, "sockets"))  # it goes with the last of the group
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", "from tests.distributed.test_collectives import "
                 f"rank_process; rank_process({rank}, {directory!r}, {size})"], cwd=root,
            )
            for rank in range(size)
        ]  # fmt: skip
        try:
            codes = [p.wait(timeout=90) for p in processes]
        finally:
            for p in processes:
                p.kill()
                p.wait()
        assert codes == [0] * size
        found = [pickle.loads(Path(directory, f"{r}.pickle").read_bytes()) for r in range(size)]
    expected = run_local(_suite, size)
    for rank in range(size):
        for case, a, b in zip(CASES, found[rank], expected[rank], strict=True):
            for x, y in zip(a, b, strict=True):
                assert same_bits(x, y), (str(case), rank, x, y)
