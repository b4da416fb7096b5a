"""vmap over every kind of function: control flow, custom rules, keys, `.at`, closures, nesting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec import distributed as nd
from nuvec.core.array import from_numpy
from nuvec.distributed.group import run_local
from nuvec.testing import check_vmap
from nuvec.testing.communications import recorded
from nuvec.transforms.vmap import vmap

G = np.random.Generator(np.random.PCG64(0))
X = G.normal(size=(4, 3))
KEYS = np.asarray(nv.random.split(nv.random.key(1), 4))


def scaled(x: Any) -> Any:
    @nv.custom_vjp
    def f(v: Any) -> Any:
        return nv.sin(v) * nv.sum(x)  # closes over a batched value

    f.defvjp(lambda v: (f(v), v), lambda v, c: (c * nv.cos(v) * 2,))
    return nv.grad(lambda v: nv.sum(f(v)))(x) + f(x)


def updated(x: Any) -> Any:
    y = x.at[1].set(x[0] * 2).at[0].add(1.0).at[nv.argmax(x)].multiply(3.0)
    y[2] = nv.sum(x)
    y[nv.argmin(x)] += 1.0
    return y


def sorted_by_index(x: Any) -> Any:
    return x[nv.array([2, 0])] * nv.take(x, nv.argmax(x))


def branch(x: Any) -> Any:
    return nv.cond(nv.sum(x) > 0, lambda v: nv.sin(v), lambda v: v * v, x)


def looped(x: Any) -> Any:
    def body(c: Any, k: Any) -> Any:
        c = nv.cond(c[0] > k, lambda v: v * 0.5, lambda v: v + x, c)
        return c, nv.sum(c)

    return nv.scan(body, nv.zeros_like(x), x)


def closure(x: Any) -> Any:
    total = nv.sum(x)
    inner = vmap(lambda e: e * total + x)  # x and total are batched by the vmap around
    return vmap(lambda row: row @ inner(x) * total, out_axes=1)(inner(x))


def differentiated(x: Any) -> Any:
    f = lambda v: nv.sum(nv.sin(v) * x)  # noqa: E731
    return nv.jvp(nv.grad(f), (x,), (x * 2,))


def compiled(x: Any) -> Any:
    return nv.compile(lambda v: nv.sin(v) * x + nv.sum(v))(x * 2)


FUNCTIONS = [
    scaled, updated, sorted_by_index, branch, looped, closure, differentiated, compiled,
]  # fmt: skip


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_equals_a_loop(f: Callable[[Any], Any]) -> None:
    def stacked(results: list[Any]) -> list[np.ndarray]:
        leaves = [nv.tree.leaves(r) for r in results]
        return [np.stack([np.asarray(r[i]) for r in leaves]) for i in range(len(leaves[0]))]

    loop = stacked([f(from_numpy(row)) for row in X])
    for g in (vmap(f), nv.compile(vmap(f)), vmap(nv.compile(f))):
        for a, b in zip(nv.tree.leaves(g(X)), loop, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)
    twice = vmap(vmap(f), in_axes=1)(np.stack([X, X + 1], 1))
    for a, b in zip(nv.tree.leaves(twice), loop, strict=True):
        np.testing.assert_allclose(np.asarray(a)[0], b, rtol=1e-12, atol=1e-13)
    turned = vmap(f, in_axes=-1, out_axes=-1)(np.ascontiguousarray(X.T))
    for a, b in zip(nv.tree.leaves(turned), loop, strict=True):
        np.testing.assert_allclose(np.moveaxis(np.asarray(a), -1, 0), b, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "f", [f for f in FUNCTIONS if f is not differentiated], ids=lambda f: f.__name__
)
def test_its_gradient_equals_a_loop(f: Callable[[Any], Any]) -> None:
    def loss(x: Any) -> Any:
        return sum([nv.sum(nv.sin(leaf)) for leaf in nv.tree.leaves(f(x))])

    loop = np.stack([np.asarray(nv.grad(loss)(from_numpy(row))) for row in X])
    np.testing.assert_allclose(vmap(nv.grad(loss))(X), loop, rtol=1e-11, atol=1e-12)
    outside = nv.grad(lambda v: nv.sum(vmap(loss)(v)))(X)
    np.testing.assert_allclose(outside, loop, rtol=1e-11, atol=1e-12)


def test_keys() -> None:
    def f(key: Any, x: Any) -> Any:
        a, b = nv.random.split(key)
        return nv.random.normal(a, (2,)) * x[0] + nv.random.uniform(nv.random.fold_in(b, 3))

    pairs = zip(KEYS, X, strict=True)
    loop = np.stack([np.asarray(f(from_numpy(k), from_numpy(x))) for k, x in pairs])
    np.testing.assert_array_equal(vmap(f)(KEYS, X), loop)
    shared = vmap(f, in_axes=(None, 0))(KEYS[0], X)
    each = np.stack([np.asarray(f(from_numpy(KEYS[0]), from_numpy(x))) for x in X])
    np.testing.assert_array_equal(shared, each)


def test_collectives_send_a_batch_in_one_message() -> None:
    def program(g: Any) -> Any:
        g, calls = recorded(g)
        x = from_numpy(X + g.rank())

        def f(v: Any, w: Any) -> Any:
            y = nd.permute(nd.all_sum(v * w, g), [(0, 1)], g)
            return y + nd.all_gather(w, g)[0], nv.grad(lambda u: nv.sum(nd.all_max(u * v, g)))(v)

        found = vmap(f, in_axes=(0, None))(x, from_numpy(X[0]))
        nv.eval(found)
        count = len(calls)
        loop = [f(row, from_numpy(X[0])) for row in x]
        nv.eval(loop)
        return found, [nv.stack([r[i] for r in loop]) for i in (0, 1)], count

    for found, loop, count in run_local(program, 2):
        assert count == 5
        for a, b in zip(found, loop, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-13)


def test_per_element_hessians_and_the_checker() -> None:
    f = lambda x: nv.sum(nv.sin(x) * x**3)  # noqa: E731
    eye = nv.eye(3, dtype=nv.float64)
    hessians = vmap(lambda x: vmap(lambda t: nv.jvp(nv.grad(f), (x,), (t,))[1])(eye))(X)
    for x, h in zip(X, np.asarray(hessians), strict=True):
        expected = np.diag(-np.sin(x) * x**3 + 6 * x**2 * np.cos(x) + 6 * x * np.sin(x))
        np.testing.assert_allclose(h, expected, rtol=1e-12, atol=1e-12)
    for g in (branch, looped, closure):
        check_vmap(g, (X[0],))
