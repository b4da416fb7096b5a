"""The workloads of benchmarks/compare.py: nuvec's results against plain NumPy in float64.

Values are computed directly.  Gradients are compared along random directions with central
differences of those values.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.test_benchmarks import BENCHMARKS, run

sys.path.insert(0, str(BENCHMARKS))
import workloads

sys.path.remove(str(BENCHMARKS))

adam = workloads.module("adam")
Arrays = Sequence[np.ndarray]


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=1e-4, atol=1e-5)


def wide(tree: Any) -> Any:
    """In double precision; integers as they are."""
    if isinstance(tree, tuple):
        return tuple(wide(part) for part in tree)
    return tree.astype(np.float64) if tree.dtype == np.float32 else tree


def check_gradients(loss: Callable[[Arrays], float], at: Arrays, gradients: Arrays) -> None:
    """`gradients` against central differences of `loss` at `at`, array by array."""
    random = np.random.default_rng(1)
    assert len(gradients) == len(at)
    for i, gradient in enumerate(gradients):
        assert gradient.shape == at[i].shape
        for _ in range(3):
            step = 1e-6 * random.standard_normal(at[i].shape)
            high, low = ([*at[:i], at[i] + s, *at[i + 1 :]] for s in (step, -step))
            difference = (loss(high) - loss(low)) / 2e-6
            close((np.asarray(gradient, np.float64) * step).sum() / 1e-6, difference)


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> float:
    scores = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -np.mean([row[label] for row, label in zip(scores, labels, strict=True)])


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_exact(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x * math.sqrt(0.5)))


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(
        x.var(-1, keepdims=True) + 1e-5
    ) * weight + bias


def perceptron(parameters: Arrays, x: np.ndarray, labels: np.ndarray) -> float:
    w1, b1, w2, b2, w3, b3 = parameters
    hidden = np.maximum(np.maximum(x @ w1 + b1, 0) @ w2 + b2, 0)
    return cross_entropy(hidden @ w3 + b3, labels)


def recurrent(parameters: Arrays, h: np.ndarray, xs: np.ndarray) -> float:
    w, u, b = parameters
    squares = []
    for x in xs:
        h = np.tanh(x @ w + h @ u + b)
        squares.append(h**2)
    return float(np.mean(squares))


def logistic(parameters: Arrays, x: np.ndarray, y: np.ndarray) -> float:
    weight, bias = parameters
    return np.log(1 + np.exp(-y * (x @ weight + bias))).mean()


def transformer(parameters: Arrays, x: np.ndarray) -> float:
    n1, c1, w_in, b_in, w_out, b_out, n2, c2, w1, b1, w2, b2 = parameters
    width = x.shape[-1]
    _, heads, depth = b_in.shape
    parts = layer_norm(x, n1, c1) @ w_in + b_in.reshape(-1)
    mixed = np.zeros_like(x)
    for h in range(heads):
        q, k, v = (
            parts[..., i * width + h * depth : i * width + (h + 1) * depth] for i in range(3)
        )
        weights = np.exp(np.einsum("btd,bsd->bts", q, k) / math.sqrt(depth))
        weights /= weights.sum(-1, keepdims=True)
        mixed[..., h * depth : (h + 1) * depth] = np.einsum("bts,bsd->btd", weights, v)
    x = x + mixed @ w_out + b_out
    x = x + gelu_exact(layer_norm(x, n2, c2) @ w1 + b1) @ w2 + b2
    return float(np.mean(x**2))


def convnet(parameters: Arrays, x: np.ndarray, labels: np.ndarray) -> float:
    w1, b1, w2, b2, w3, b3 = parameters
    for weight, bias in ((w1, b1), (w2, b2)):
        n, height, width, _ = x.shape
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        y = sum(
            padded[:, i : i + height, j : j + width] @ weight[:, i, j].T
            for i in range(3)
            for j in range(3)
        )
        y = np.maximum(y + bias, 0)
        x = y.reshape(n, height // 2, 2, width // 2, 2, -1).max((2, 4))
    return cross_entropy(x.reshape(len(x), -1) @ w3 + b3, labels)


def adam_step(p: Any, g: Any, m: Any, v: Any, count: int) -> tuple[Any, Any, Any]:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
    return p - 1e-3 * (m / (1 - 0.9**count)) / (np.sqrt(v / (1 - 0.999**count)) + 1e-8), m, v


LOSSES: dict[str, Callable[..., Any]] = {
    "softmax": lambda parameters, labels: cross_entropy(*parameters, labels),
    "transformer": transformer,
    "rnn": recurrent,
    "logistic": logistic,
    "convnet": convnet,
}
PULLED: dict[str, Callable[..., np.ndarray]] = {
    "gelu": gelu_tanh, "gelu_exact": gelu_exact, "layer_norm": layer_norm,
}  # fmt: skip
OTHERS = {"adam", "mlp", "per_example", "pairwise", "hessian"}  # each has a test of its own


def small(name: str) -> tuple[Any, Any]:
    """(nuvec's task at a small size, its inputs in double precision)"""
    sizes = workloads.module(name).SMALL
    task = workloads.build(name, "nuvec", sizes)
    assert task is not None
    return task, wide(workloads.module(name).inputs(**sizes))


def test_every_workload_is_tested() -> None:
    assert {*LOSSES, *PULLED, *OTHERS} == set(workloads.NAMES)
    assert not {*LOSSES} & {*PULLED, *OTHERS}


@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradient(name: str) -> None:
    task, (parameters, *data) = small(name)
    value, gradients = task()
    close(value, LOSSES[name](parameters, *data))
    check_gradients(lambda p: LOSSES[name](p, *data), parameters, gradients)


@pytest.mark.parametrize("name", PULLED)
def test_forward_and_backward(name: str) -> None:
    task, (at, cotangent) = small(name)
    y, pulled = task()
    if not isinstance(at, tuple):
        at, pulled = (at,), (pulled,)
    close(y, PULLED[name](*at))
    check_gradients(lambda p: (cotangent * PULLED[name](*p)).sum(), at, pulled)


def test_adam_goes_on_where_it_was() -> None:
    task, (parameters, gradients, m, v) = small("adam")
    for count in (adam.DONE + 1, adam.DONE + 2):
        rows = zip(parameters, gradients, m, v, strict=True)
        parameters, m, v = zip(*[adam_step(*row, count) for row in rows], strict=True)
        for results, expected in zip(task(), (parameters, m, v), strict=True):
            for a, b in zip(results, expected, strict=True):
                close(a, b)


def test_mlp_trains() -> None:
    task, (parameters, m, v, *data) = small("mlp")
    for count in (adam.DONE + 1, adam.DONE + 2):
        loss, new, new_m, new_v = _copied(task())
        close(loss, perceptron(parameters, *data))
        # The gradient as m tells it.
        gradients = [(b - 0.9 * a) / 0.1 for a, b in zip(m, new_m, strict=True)]
        check_gradients(lambda p: perceptron(p, *data), parameters, gradients)
        for i, gradient in enumerate(gradients):
            expected = adam_step(parameters[i], gradient, m[i], v[i], count)
            for a, b in zip((new[i], new_m[i], new_v[i]), expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)
        parameters, m, v = new, new_m, new_v


def _copied(tree: Any) -> Any:
    """In NumPy's memory: what a donating task returned is gone after its next call."""
    if isinstance(tree, tuple):
        return tuple(_copied(part) for part in tree)
    return np.array(tree, np.float64)


def test_per_example_norms() -> None:
    task, (parameters, x, labels) = small("per_example")
    norms = np.asarray(task())
    assert norms.shape == labels.shape
    for norm, sample, label in zip(norms, x, labels, strict=True):
        square = 0.0
        for i, parameter in enumerate(parameters):
            for place in np.ndindex(parameter.shape):
                values = []
                for step in (1e-6, -1e-6):
                    moved = parameter.copy()
                    moved[place] += step
                    at = [*parameters[:i], moved, *parameters[i + 1 :]]
                    values.append(perceptron(at, sample[None], label[None]))
                square += ((values[0] - values[1]) / 2e-6) ** 2
        close(norm, math.sqrt(square))


def test_pairwise() -> None:
    task, (x, y) = small("pairwise")
    close(task(), [[math.exp(-(math.dist(a, b) ** 2) / 2) for b in y] for a in x])


def test_hessian() -> None:
    task, (x, a) = small("hessian")
    t = np.tanh(a @ x)
    close(task(), a.T @ np.diag(2 * (1 - t**2) * (1 - 3 * t**2)) @ a)


def test_a_framework_that_cannot_do_a_workload() -> None:
    assert workloads.build("adam", "autograd", {"width": 2}) is None
    tasks = workloads.Tasks("autograd")
    assert "adam" not in tasks and "mlp" in tasks and len(tasks) == len(list(tasks))
    with pytest.raises(KeyError):
        tasks["adam"]


def test_compare_runs_with_nuvec_alone(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    done = run(
        BENCHMARKS / "compare.py", "--rounds", "1", "--seconds", "0.001", "--threads", "1",
        "--case", "logistic", "hessian", "memory", "--json", file, NUVEC_PEERS=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "missing: jax" in done.stdout
    report = json.loads(file.read_text())
    assert set(report["cases"]) == {"logistic", "hessian", "memory"}
    assert report["threads"] == 1
    assert 20 < report["cases"]["memory"]["nuvec"]["megabytes"]["median"] < 2000
    table = done.stdout.split("nuvec's time / its time, quartiles")[1]
    assert "logistic" in table and "us" in table
