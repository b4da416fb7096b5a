"""Pipeline parallelism by send and recv: gradients by plain grad, in every order of evaluation."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec import distributed as nd
from nuvec.core.array import from_numpy
from nuvec.distributed.group import Group, run_local
from nuvec.testing.communications import recorded

pytestmark = pytest.mark.timeout(200)

STAGES, WIDTH, BATCH = 3, 4, 6
generator = np.random.Generator(np.random.PCG64(0))
PARAMS = [
    {"w": generator.normal(size=(WIDTH, WIDTH)) / 2, "b": generator.normal(size=WIDTH)}
    for _ in range(STAGES)
]
X = generator.normal(size=(BATCH, WIDTH))
Y = generator.normal(size=(BATCH, WIDTH))


def stage(p: Any, h: Any) -> Any:
    return nv.tanh(h @ p["w"] + p["b"])


def dense(params: Any, x: Any, y: Any) -> Any:
    """The whole model in one process."""
    for p in params:
        x = stage(p, x)
    return nv.mean((x - y) ** 2)


def reference() -> Any:
    params = nv.tree.map(from_numpy, PARAMS)
    value, gradient = nv.value_and_grad(dense)(params, from_numpy(X), from_numpy(Y))
    return np.asarray(value), nv.tree.map(np.asarray, gradient)


def part(g: Group, p: Any, x: Any, y: Any) -> Any:
    """This rank's part of the model: its loss, which is 0 except on the last rank."""
    rank, last = g.rank(), g.size() - 1
    h = x if rank == 0 else nd.recv_like(x, rank - 1, g)
    h = stage(p, h)
    if rank < last:
        nd.send(h, rank + 1, g)
        return nv.array(0.0, dtype=nv.float64)
    return nv.mean((h - y) ** 2)


def assert_gradients(gradients: Any, rtol: float = 1e-12) -> None:
    for found, expected in zip(gradients, reference()[1], strict=True):
        for k, g in expected.items():
            np.testing.assert_allclose(found[k], g, rtol=rtol, atol=1e-14)


def mine(g: Group) -> Any:
    return nv.tree.map(from_numpy, PARAMS[g.rank()])


def micro(x: np.ndarray, count: int) -> list[Any]:
    return [from_numpy(a) for a in np.split(x, count)]


def test_three_stages_equal_the_whole_model() -> None:
    def program(g: Group) -> Any:
        return nv.value_and_grad(lambda p: part(g, p, from_numpy(X), from_numpy(Y)))(mine(g))

    results = run_local(program, STAGES)
    np.testing.assert_allclose(results[-1][0], reference()[0], rtol=1e-12)
    assert_gradients([gradient for _, gradient in results])


def whole(count: int) -> Callable[[Group], Any]:
    """Every micro-batch forward, then every one backward: one grad over a loop."""

    def program(g: Group) -> Any:
        def loss(p: Any) -> Any:
            parts = [
                part(g, p, x, y) for x, y in zip(micro(X, count), micro(Y, count), strict=True)
            ]
            return nv.sum(nv.stack(parts)) / count

        return loss

    return program


@pytest.mark.parametrize("count", [2, 3, 6])
def test_micro_batches_in_one_gradient(count: int) -> None:
    def program(g: Group) -> Any:
        g, calls = recorded(g)
        loss = whole(count)(g)
        plain = nv.grad(loss)(mine(g))
        nv.eval(plain)
        log = list(calls)
        compiled = nv.compile(nv.grad(loss))
        again = [compiled(mine(g)) for _ in range(2)]
        inside = nv.grad(nv.compile(loss))(mine(g))
        nv.eval(again, inside)
        return plain, [*again, inside], log, calls[len(log) : 2 * len(log)]

    results = run_local(program, STAGES)
    assert_gradients([r[0] for r in results])
    for rank, (plain, others, log, compiled_log) in enumerate(results):
        assert len(log) == count * (4 if rank == 1 else 2)
        assert log == compiled_log
        for other in others:
            for a, b in zip(nv.tree.leaves(plain), nv.tree.leaves(other), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-13)


def one_forward_one_backward(g: Group, p: Any, count: int) -> tuple[Any, list[str]]:
    """The 1F1B schedule by vjp: a rank runs ahead by as many micro-batches as there are stages
    after it, then alternates, then drains."""
    xs, ys = micro(X, count), micro(Y, count)
    pulls: list[Any] = []
    order: list[str] = []
    total: Any = None

    def forward() -> None:
        i = sum(o.startswith("F") for o in order)
        order.append(f"F{i}")
        out, pull = nv.vjp(lambda q: part(g, q, xs[i], ys[i]), p)
        pulls.append((out, pull))

    def backward() -> None:
        nonlocal total
        i = sum(o.startswith("B") for o in order)
        order.append(f"B{i}")
        out, pull = pulls[i]
        (c,) = pull(nv.ones_like(out) / count)
        pulls[i] = None
        total = c if total is None else nv.tree.map(nv.add, total, c)

    ahead = min(g.size() - 1 - g.rank(), count)
    for _ in range(ahead):
        forward()
    for _ in range(count - ahead):
        forward()
        backward()
    for _ in range(ahead):
        backward()
    return total, order


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_one_forward_one_backward(count: int) -> None:
    results = run_local(lambda g: one_forward_one_backward(g, mine(g), count), STAGES)
    assert_gradients([r[0] for r in results])
    if count == 3:
        assert [" ".join(r[1]) for r in results] == [
            "F0 F1 F2 B0 B1 B2", "F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2",
        ]  # fmt: skip


def test_one_forward_one_backward_compiled() -> None:
    def program(g: Group) -> Any:
        step = nv.compile(lambda p: one_forward_one_backward(g, p, 3)[0])
        step(mine(g))
        return step(mine(g))

    assert_gradients(run_local(program, STAGES))


def test_no_order_of_evaluation_hangs() -> None:
    """Each rank forces its loss and gradients in its own order: all orders on all ranks."""

    def program(g: Group, orders: tuple[tuple[int, ...], ...]) -> Any:
        def loss(p: Any) -> Any:
            parts = [part(g, p, x, y) for x, y in zip(micro(X, 2), micro(Y, 2), strict=True)]
            return nv.sum(nv.stack(parts)) / 2, parts

        (value, parts), gradient = nv.value_and_grad(loss, has_aux=True)(mine(g))
        forced = [value, parts[1], gradient["w"], gradient["b"]]
        for i in orders[g.rank()]:
            nv.eval(forced[i])
        return gradient

    orders = list(itertools.permutations(range(3)))
    with nv.config.override(timeout=20):
        for chosen in itertools.product(orders, repeat=STAGES):
            assert_gradients(run_local(lambda g, c=chosen: program(g, c), STAGES))


def test_nothing_or_one_value_forced_on_some_ranks() -> None:
    """What a rank never asks for is sent all the same, by synchronize or at the end."""

    def program(g: Group, forced: tuple[int, ...]) -> Any:
        value, gradient = nv.value_and_grad(lambda p: part(g, p, from_numpy(X), from_numpy(Y)))(
            mine(g)
        )
        if forced[g.rank()] == 1:
            nv.eval(value)
        elif forced[g.rank()] == 2:
            nv.eval(gradient["b"])
        nv.synchronize(g)
        return gradient

    with nv.config.override(timeout=20):
        for forced in itertools.product(range(3), repeat=STAGES):
            assert_gradients(run_local(lambda g, f=forced: program(g, f), STAGES))


def test_the_gradient_in_the_middle_of_the_next_step() -> None:
    """Two training steps recorded before anything is evaluated."""

    def program(g: Group) -> Any:
        p = mine(g)
        for _ in range(2):
            gradient = nv.grad(lambda q: part(g, q, from_numpy(X), from_numpy(Y)))(p)
            p = nv.tree.map(lambda a, b: a - 0.1 * b, p, gradient)
        return p

    params = nv.tree.map(from_numpy, PARAMS)
    for _ in range(2):
        gradient = nv.grad(dense)(params, from_numpy(X), from_numpy(Y))
        params = nv.tree.map(lambda a, b: a - 0.1 * b, params, gradient)
    for found, expected in zip(run_local(program, STAGES), params, strict=True):
        for k, v in expected.items():
            np.testing.assert_allclose(found[k], v, rtol=1e-12)


def test_second_derivatives_and_forward_mode() -> None:
    """Hessian-vector products of the pipeline are those of the whole model."""
    tangents = nv.tree.map(lambda a: np.cos(a), PARAMS)

    def program(g: Group) -> Any:
        f = lambda p: part(g, p, from_numpy(X), from_numpy(Y))  # noqa: E731
        v = nv.tree.map(from_numpy, tangents[g.rank()])
        return nv.jvp(nv.grad(f), (mine(g),), (v,))[1]

    expected = nv.jvp(
        lambda p: nv.grad(dense)(p, from_numpy(X), from_numpy(Y)),
        (nv.tree.map(from_numpy, PARAMS),), (nv.tree.map(from_numpy, tangents),),
    )[1]  # fmt: skip
    for found, want in zip(run_local(program, STAGES), expected, strict=True):
        for k, v in want.items():
            np.testing.assert_allclose(found[k], v, rtol=1e-10, atol=1e-13)


def test_the_benchmark_on_three_processes(tmp_path: Path) -> None:
    """It compares every rank's gradients with one process's before it times anything."""
    root = Path(__file__).resolve().parents[2]
    report = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, root / "benchmarks" / "pipeline.py", "--steps", "2", "--batch", "12",
         "--width", "8", "--layers", "1", "--micro", "1", "3", "--json", report],
        capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    cases = json.loads(report.read_text())["cases"]
    assert set(cases) == {f"{m} {s}" for m in (1, 3) for s in ("forward first", "1F1B")}
    assert all(0 < case["bubble"] < 1 and case["pipeline"] > 0 for case in cases.values())


def test_a_pipeline_over_a_mapped_axis_by_permute() -> None:
    """The same pipeline as one SPMD program: activations move one rank on at every tick."""

    def program(g: Any, p: Any, xs: Any, ys: Any) -> Any:
        n, count = g.size(), len(xs)
        forward = [(r, r + 1) for r in range(n - 1)]

        def loss(q: Any) -> Any:
            h, total = nv.zeros_like(xs[0]), 0.0
            for tick in range(count + n - 1):
                fed = nv.where(g.rank() == 0, xs[min(tick, count - 1)], h)
                out = stage(q, fed)
                if tick >= n - 1:
                    error = nv.mean((out - ys[tick - n + 1]) ** 2)
                    total = total + nv.where(g.rank() == n - 1, error, 0.0) / count
                h = nd.permute(out, forward, g)
            return total

        return nv.grad(loss)(p)

    xs, ys = micro(X, 3), micro(Y, 3)
    assert_gradients(run_local(lambda g: program(g, mine(g), xs, ys), STAGES))
    stacked = {k: np.stack([p[k] for p in PARAMS]) for k in ("w", "b")}
    mapped = nv.vmap(lambda p: program(nd.axis_group("stages"), p, xs, ys), axis_name="stages")(
        stacked
    )
    assert_gradients([{k: np.asarray(v)[r] for k, v in mapped.items()} for r in range(STAGES)])
