"""Defects that random programs found, each as the smallest program that had it."""

from __future__ import annotations

from typing import Any

import numpy as np

import nuvec as nv


def test_a_compiled_function_whose_gradient_is_empty() -> None:
    """Its linear part has no results, and so nothing for other values to depend on."""
    f = nv.compile(lambda x: nv.sign(x))
    x, c = np.array([1.5, -2.5]), np.ones(2)

    def pulled(x: Any, c: Any) -> Any:
        return nv.vjp(f, x)[1](c)[0]

    value, tangent = nv.jvp(pulled, (x, c), (x, c))
    np.testing.assert_array_equal(value, [0, 0])
    np.testing.assert_array_equal(tangent, [0, 0])


def test_a_checkpointed_gradient_that_is_a_literal_zero() -> None:
    """A barrier on a literal shares memory with nobody."""
    x, y, c = np.array([1.0, 2.0]), np.array(2.0), np.ones(2)

    def f(x: Any, y: Any) -> Any:
        nv.checkpoint(lambda a: nv.rsqrt(y), "dots")(y)
        return x * 2

    def pulled(x: Any, y: Any, c: Any) -> Any:
        return nv.vjp(f, x, y)[1](c)

    outs, pull = nv.vjp(nv.checkpoint(pulled), x, y, c)
    np.testing.assert_array_equal(outs[0], [2, 2])
    np.testing.assert_array_equal(pull(outs)[2], [4, 4])


def test_a_communicating_branch_whose_result_nobody_uses() -> None:
    """Its backward has no results; recorded under another transform it still stands for one."""
    x = nv.ones(2, np.float64)

    def program(group: Any) -> Any:
        def f(x: Any) -> Any:
            k = nv.ones(2, np.float64)
            taken = nv.array(np.asarray(False))
            nv.cond(taken, lambda k: k, lambda k: nv.distributed.all_sum(k, group), k)
            return x * 1.0

        def pulled(x: Any, c: Any) -> Any:
            return nv.vjp(f, x)[1](c)

        results = []
        for g in (pulled, nv.checkpoint(pulled), nv.compile(pulled)):
            out, pull = nv.vjp(g, x, x)
            results += [*pull(out), *nv.jvp(g, (x, x), (x, x))[1]]
        return results

    for results in nv.distributed.run_local(program, 2):
        for zero, one, tangent in zip(results[::3], results[1::3], results[2::3], strict=True):
            np.testing.assert_array_equal(zero, [0, 0])
            np.testing.assert_array_equal(one, [1, 1])
            np.testing.assert_array_equal(tangent, [1, 1])


def test_branches_do_not_share_index_residuals() -> None:
    """Under vmap both linear parts run; the indices of one branch are no indices of the other."""

    def f(x: Any, y: Any) -> Any:
        return nv.cond(
            y.sum() > 0,
            lambda x, y: y * x.at[nv.array([2, 0])].set(y).sum(),
            lambda x, y: y * nv.tanh(y[nv.array([1, 1])].sum()),
            x,
            y,
        )

    x, y = nv.array([0.9, 0.8, 0.4]), nv.array([0.5, 0.3])
    batch = nv.stack([y, -y])
    expected = nv.stack([nv.jvp(lambda y: f(x, y), (v,), (v,))[1] for v in batch])
    found = nv.vmap(lambda v: nv.jvp(lambda y: f(x, y), (v,), (v,))[1])(batch)
    assert nv.allclose(found, expected)
    gradient = nv.vmap(nv.grad(lambda x, y: f(x, y).sum(), argnums=1), in_axes=(None, 0))
    each = nv.stack([nv.grad(lambda y: f(x, y).sum())(v) for v in batch])
    assert nv.allclose(gradient(x, batch), each)
