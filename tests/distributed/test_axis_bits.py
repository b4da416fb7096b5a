"""Local sums and products around communications: a mapped axis gives each element the bits that
its rank has among threads, although NumPy and BLAS sum a batch in another order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec import distributed as nd
from nuvec.core.array import from_numpy
from nuvec.distributed.group import run_local
from nuvec.testing import random_case
from nuvec.testing.compare import same_bits
from nuvec.transforms.separate import MOST

pytestmark = pytest.mark.timeout(600)

RANDOM = np.random.Generator(np.random.PCG64(0))


def drawn(*shape: int) -> np.ndarray:
    return (RANDOM.standard_normal(shape) / 7).astype(np.float32)


X, W, LONG = drawn(4, 32, 48), drawn(4, 48, 57), drawn(4, 1000, 28)
SHARED, ROWS = drawn(48, 57), drawn(33, 48)
PROGRAMS: dict[str, tuple[Callable[[Any, Any, Any], Any], np.ndarray, np.ndarray]] = {
    "sum of exchanged blocks": (lambda g, x, w: nd.all_to_all(x, g).sum(1), LONG, W),
    "mean of all": (lambda g, x, w: nd.all_sum(x, g).mean() + x.mean(), LONG, W),
    "leading sum": (lambda g, x, w: nd.all_sum(x.sum(0), g) + x.sum(0), LONG, W),
    "sum of a transpose": (lambda g, x, w: nd.all_max(x.T.sum(0), g) + x.T.sum(0), LONG, W),
    "product": (lambda g, x, w: nd.all_sum(nv.prod(x + 1, axis=0), g), X, W),
    "shared factor": (lambda g, x, w: nd.all_sum(nv.tanh(x @ SHARED), g).sum(), X, W),
    "own factors": (lambda g, x, w: nd.all_sum(nv.tanh(x @ w), g).sum(0), X, W),
    "same rows": (
        lambda g, x, w: nv.grad(lambda w: (nd.all_sum(nv.tanh(ROWS @ w), g) ** 2).sum())(w), X, W,
    ),
    "vector": (lambda g, x, w: nd.all_sum(x[0], g) @ w[:, 0], X, W),
    "mlp": (
        lambda g, x, w: nv.value_and_grad(
            lambda w: nd.all_sum(((nv.tanh(nd.all_gather(x, g) @ w) @ w.T) ** 2).mean(), g)
        )(w),
        X, W,
    ),
    "softmax": (lambda g, x, w: nd.sum_scatter(nv.softmax(x, axis=0), g) @ w, X, W),
    "in a loop": (
        lambda g, x, w: nv.scan(
            lambda c, row: (nv.tanh(nd.all_sum(c @ w, g) @ w.T + row), c.sum()), x[0], x
        ),
        X, W,
    ),
}  # fmt: skip


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_bits_of_local_sums_and_products(name: str, compiled: bool) -> None:
    program, x, w = PROGRAMS[name]

    def on_rank(g: Any) -> list[np.ndarray]:
        f = nv.compile(lambda a, b: program(g, a, b)) if compiled else lambda a, b: program(g, a, b)
        found = f(from_numpy(x[g.rank()]), from_numpy(w[g.rank()]))
        return [np.asarray(leaf) for leaf in nv.tree.leaves(found)]

    mapped = nv.vmap(lambda a, b: program(nd.axis_group("i"), a, b), axis_name="i")
    found = nv.tree.leaves((nv.compile(mapped) if compiled else mapped)(x, w))
    for rank, expected in enumerate(run_local(on_rank, 4)):
        for a, b in zip(found, expected, strict=True):
            assert same_bits(np.asarray(a)[rank], b), f"rank {rank}"


def test_many_elements_are_computed_together() -> None:
    """Beyond `MOST` there is one product for the whole batch."""
    for size, products in ((MOST, MOST), (MOST + 1, 1)):
        mapped = nv.vmap(lambda x: nd.all_sum(x @ SHARED, nd.axis_group("i")), axis_name="i")
        ir = nv.make_ir(mapped)(nv.ones((size, 2, 48)))
        assert sum(e.primitive.name == "dot_general" for e in ir.eqns) == products


def on_line(g: Any, case: Any, arrays: Any, gradient: bool) -> list[Any]:
    """The random program's results, or the gradient of their sum."""
    moving = [i for i, a in enumerate(arrays) if a.dtype.kind == "f"]
    if not gradient:
        return nv.tree.leaves(case.program(g, *arrays))

    def total(values: list[Any]) -> Any:
        inputs = list(arrays)
        for i, v in zip(moving, values, strict=True):
            inputs[i] = v
        outs = case.program(g, *inputs)
        return sum((nv.sum(nv.real(o)) for o in outs if o.dtype.kind in "fc"), nv.array(0.0))

    return nv.grad(total)([arrays[i] for i in moving])


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("block", range(3))
def test_bits_of_random_programs(block: int, gradient: bool, slow: bool) -> None:
    count = 100 if slow else 12
    for seed in range(block * count, (block + 1) * count):
        case = random_case(seed, ranks=2 + seed % 3)
        point = case.points[0]

        def on_rank(g: Any, case: Any = case, point: Any = point) -> list[np.ndarray]:
            found = on_line(g, case, [from_numpy(x) for x in point[g.rank()]], gradient)
            return [np.asarray(o) for o in found]

        def mapped(*arrays: Any, case: Any = case) -> list[Any]:
            return on_line(nd.axis_group("i"), case, arrays, gradient)

        stacked = [np.stack(values) for values in zip(*point, strict=True)]
        found = nv.vmap(mapped, axis_name="i")(*stacked)
        for rank, expected in enumerate(run_local(on_rank, case.ranks)):
            for a, b in zip(found, expected, strict=True):
                # Where nothing contributes to a gradient, a zero may have the other sign: ranks
                # send zeros in the place of cotangents that are missing, elements have none.
                found_here = np.asarray(a)[rank] + 0.0 if gradient else np.asarray(a)[rank]
                expected_here = b + 0.0 if gradient else b
                assert same_bits(found_here, expected_here), f"seed {seed} rank {rank}\n{case}"


def test_results_are_laid_out_as_those_of_ranks() -> None:
    """What has its batch elsewhere in memory is summed in the order of a rank's."""
    whole = RANDOM.standard_normal((4, 300, 28))

    def steps(g: Any, x: Any) -> Any:
        _, ys = nv.scan(lambda c, row: (c + row, nv.tanh(c)), x[0], x)
        exchanged = [nd.all_to_all(x[:4, k], g) @ x[:4, k + 1] for k in range(20)]
        return nd.all_sum(ys.sum(), g), ys.sum(), exchanged

    def on_rank(g: Any) -> list[np.ndarray]:
        return [np.asarray(leaf) for leaf in nv.tree.leaves(steps(g, from_numpy(whole[g.rank()])))]

    mapped = nv.vmap(lambda x: steps(nd.axis_group("i"), x), axis_name="i", in_axes=1)
    found = nv.tree.leaves(mapped(np.ascontiguousarray(whole.swapaxes(0, 1))))
    for rank, expected in enumerate(run_local(on_rank, 4)):
        for a, b in zip(found, expected, strict=True):
            assert same_bits(np.asarray(a)[rank], b)


EXCHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "broadcast": lambda g, x: nd.broadcast(x * x, 2, g) * (g.rank() + 1),
    "broadcast from the first": lambda g, x: nd.broadcast(nv.sin(x), 0, g) * x,
    "all_sum": lambda g, x: nd.all_sum(x * x, g) * (g.rank() + 1),
    "all_max": lambda g, x: nd.all_max(x * x, g) * x,
    "permute": lambda g, x: nd.permute(x * x, [(0, 1), (1, 2)], g) * (g.rank() + 1),
    "all_gather": lambda g, x: nd.all_gather(x * x, g).sum(1),
}


@pytest.mark.parametrize("transform", ["grad", "jvp of grad", "grad of grad", "grad of jvp"])
@pytest.mark.parametrize("name", EXCHANGES)
def test_bits_of_derivatives(name: str, transform: str) -> None:
    """The sign of a zero as well, where a rank's value goes nowhere."""

    def results(g: Any, x: Any) -> Any:
        def loss(x: Any) -> Any:
            y = EXCHANGES[name](g, x)
            return (nv.sin(y) * y).sum()

        gradient = nv.grad(loss)
        if transform == "grad":
            return gradient(x)
        if transform == "jvp of grad":
            return nv.jvp(gradient, (x,), (x,))
        if transform == "grad of grad":
            return nv.grad(lambda x: (gradient(x) * x).sum())(x)
        return nv.grad(lambda x: nv.jvp(loss, (x,), (x,))[1])(x)

    whole = drawn(3, 4, 3)

    def on_rank(g: Any) -> list[np.ndarray]:
        found = results(g, from_numpy(whole[g.rank()]))
        return [np.asarray(leaf) for leaf in nv.tree.leaves(found)]

    found = nv.vmap(lambda x: results(nd.axis_group("i"), x), axis_name="i")(whole)
    for rank, expected in enumerate(run_local(on_rank, 3)):
        for a, b in zip(nv.tree.leaves(found), expected, strict=True):
            assert same_bits(np.asarray(a)[rank], b), f"rank {rank}: {np.asarray(a)[rank]}, {b}"


@pytest.mark.parametrize(
    "form",
    [nv.compile, nv.checkpoint, lambda f: lambda x: nv.cond(nv.array(True), f, f, x),
     lambda f: lambda x: nv.map(f, x[None])[0]],
)  # fmt: skip
def test_bits_of_bodies_with_operands_that_are_not_mapped(form: Any) -> None:
    shared = nv.array(drawn(48))
    for f in (lambda x: x @ shared, lambda x: nv.array(ROWS) @ x.T, lambda x: (x * shared).sum()):
        found = np.asarray(nv.vmap(form(f), axis_name="i")(X))
        for rank in range(4):
            assert same_bits(found[rank], np.asarray(f(nv.array(X[rank]))))
