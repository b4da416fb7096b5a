"""compile(shapeless=True): one recording for any leading size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv

w = nv.array(np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32))


def batch(n: int) -> Any:
    return nv.array(np.random.default_rng(n).normal(size=(n, 4)).astype(np.float32))


def loss(w: Any, x: Any) -> Any:
    y = nv.tanh(x @ w)
    return ((y - y.mean(axis=0)) ** 2).mean() + nv.zeros((x.shape[0], 2)).sum()


PROGRAMS = {
    "forward": lambda x: nv.softmax(x @ w, axis=-1),
    "mean": lambda x: loss(w, x),
    "gradient": lambda x: nv.grad(loss)(w, x),
    "per example": lambda x: nv.vmap(lambda row: nv.grad(loss)(w, row[None]))(x),
    "scan": lambda x: nv.scan(lambda c, row: (c + row.sum(), row * c), 0.0, x),
    "reshape": lambda x: nv.concatenate([x.reshape(-1), x[:, 0]]),
    "nested": lambda x: nv.compile(lambda x: x.sum(0) * x.shape[0])(x),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_recording_for_any_size(name: str) -> None:
    f, calls = PROGRAMS[name], []

    def counted(x: Any) -> Any:
        calls.append(x.shape)
        return f(x)

    compiled = nv.compile(counted, shapeless=True)
    for n in (5, 8, 3, 1, 17, 8, 64):
        found, expected = compiled(batch(n)), nv.compile(f)(batch(n))
        for a, b in zip(nv.tree.leaves(found), nv.tree.leaves(expected), strict=True):
            assert a.shape == b.shape
            assert np.array_equal(np.asarray(a), np.asarray(b))
    assert calls == [(5, 4), (8, 4), (4099, 4)]


def test_several_arguments_and_other_shapes() -> None:
    compiled = nv.compile(lambda x, y: (x * y[:, None]).sum(), shapeless=True)
    for n in (2, 4, 6, 9):
        assert compiled(nv.ones((n, 4)), nv.ones(n)).item() == 4 * n
    for n in (2, 4, 6):  # another width is another program
        assert compiled(nv.ones((n, 5)), nv.ones(n)).item() == 5 * n


@pytest.mark.parametrize(
    ("f", "why"),
    [
        (lambda x: x.sum() if x.shape[0] < 4 else x.sum() * 2, "numbers of equations"),
        (lambda x: x * nv.array([[i * i] for i in range(x.shape[0])]), "constant array"),
        (lambda x: x * nv.array([[i % 7] for i in range(x.shape[0])]), "something else"),
        (lambda x: x.sum() / float(x.shape[0]) ** 0.5, "constant"),
        (lambda x: x[: x.shape[0] // 2], "do not follow"),
        (lambda x: x[:100], "something else|do not follow"),
    ],
)
def test_what_has_no_one_program(f: Any, why: str) -> None:
    compiled = nv.compile(f, shapeless=True)
    compiled(nv.ones((2, 4)))
    with pytest.raises(nv.ShapeError, match=f"shapeless=True.*{why}"):
        compiled(nv.ones((5, 4)))


def test_a_first_batch_of_one() -> None:
    compiled = nv.compile(nv.grad(lambda x: (x + nv.ones((x.shape[0], 4))).sum()), shapeless=True)
    for n in (1, 4, 6, 1, 9):
        assert compiled(nv.ones((n, 4))).tolist() == [[1.0] * 4] * n


def test_captures_and_gradients_of_it() -> None:
    scale = nv.array(2.0)
    compiled = nv.compile(lambda x: (x * scale).sum(0), shapeless=True)
    for n in (2, 3, 5):
        assert compiled(nv.ones((n, 1))).item() == 2 * n
    scale += 1
    assert compiled(nv.ones((5, 1))).item() == 15
    assert nv.grad(lambda x: compiled(x).sum())(nv.ones((7, 1))).tolist() == [[3.0]] * 7


def test_positions_along_the_leading_axis() -> None:
    def f(x: Any) -> Any:
        n = x.shape[0]
        return x * nv.arange(n)[:, None] + nv.arange(n - 1, -1, -1)[:, None]

    compiled = nv.compile(f, shapeless=True)
    for n in (2, 3, 7, 40):
        np.testing.assert_array_equal(compiled(nv.ones((n, 2))), f(nv.ones((n, 2))))
    assert len(compiled._bases) == 1


def test_draws_in_a_loop_as_long_as_the_leading_axis() -> None:
    def f(xs: Any) -> Any:
        noisy = nv.scan(lambda c, x: (c + x * nv.random.uniform(), c), nv.zeros(2), xs)
        return noisy, nv.random.uniform()

    compiled = nv.compile(f, shapeless=True)
    for n in (2, 3, 7, 40):
        found = []
        for g in (f, compiled):
            nv.random.seed(n)
            found.append([*nv.tree.leaves(g(nv.ones((n, 2)))), nv.random.uniform()])
        for a, b in zip(*found, strict=True):
            np.testing.assert_array_equal(a, b)
