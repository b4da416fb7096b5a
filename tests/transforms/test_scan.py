"""scan: a loop as one equation, equal to the Python loop in every pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.array import from_numpy
from nuvec.core.errors import ConcretizationError, DtypeError, ShapeError, TreeError
from nuvec.testing import check_compile, check_grads, check_vmap
from nuvec.testing.compare import primitives_in
from nuvec.transforms.compile import compile
from nuvec.transforms.grad import grad
from nuvec.transforms.ir_tools import make_ir
from nuvec.transforms.scan import scan
from nuvec.transforms.vmap import vmap

W = np.array([[0.5, -0.3], [0.2, 0.4]])
H = np.array([0.1, -0.2])
XS = np.array([[0.3, 0.8], [-0.5, 0.2], [0.9, -0.7]])


def rnn(w: Any, h: Any, xs: Any, reverse: bool = False) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = nv.tanh(w @ h + x)
        return h, {"h": h * 2, "n": nv.sum(x)}

    return scan(step, h, xs, reverse=reverse)


def loop(w: Any, h: Any, xs: Any, reverse: bool = False) -> Any:
    ys = []
    for i in reversed(range(xs.shape[0])) if reverse else range(xs.shape[0]):
        h = nv.tanh(w @ h + xs[i])
        ys.append({"h": h * 2, "n": nv.sum(xs[i])})
    ys = ys[::-1] if reverse else ys
    return h, {k: nv.stack([y[k] for y in ys]) for k in ys[0]}


@pytest.mark.parametrize("reverse", [False, True])
def test_equals_a_python_loop(reverse: bool) -> None:
    args = [from_numpy(a) for a in (W, H, XS)]
    found, expected = rnn(*args, reverse), loop(*args, reverse)
    for a, b in zip(nv.tree.leaves(found), nv.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)

    def total(f: Any) -> Any:
        def g(*args: Any) -> Any:
            h, ys = f(*args, reverse)
            return nv.sum(h) + nv.sum(nv.sin(ys["h"])) + nv.sum(ys["n"] ** 2)

        return grad(g, argnums=(0, 1, 2))

    for a, b in zip(total(rnn)(*args), total(loop)(*args), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11)


@pytest.mark.parametrize("reverse", [False, True])
def test_rules(reverse: bool) -> None:
    def f(*args: Any) -> Any:
        return rnn(*args, reverse=reverse)

    check_grads(f, (W, H, XS), order=2)
    check_vmap(f, (W, H, XS))
    check_compile(f, (W, H, XS))


def test_third_order() -> None:
    def f(x: Any) -> Any:
        return scan(lambda c, y: (nv.sin(c) * y, None), x, x[None] * np.ones(3))[0]

    check_grads(f, (np.float64(0.7),), order=3)


def test_the_body_is_recorded_once() -> None:
    runs = []

    def step(c: Any, _: Any) -> Any:
        runs.append(1)
        return c * 2, None

    out, ys = scan(step, nv.ones(2), length=50)
    assert len(runs) <= 2 and ys is None
    assert out.tolist() == [2.0**50] * 2
    ir = make_ir(lambda x: scan(step, x, length=50)[0])(nv.ones(2))
    assert len(ir.eqns) == 1 and primitives_in(ir) == {"scan", "multiply"}


def test_zero_steps_and_no_inputs() -> None:
    out, ys = scan(lambda c, x: (c + x, c), nv.ones(2), nv.ones((0, 2)))
    assert out.tolist() == [1, 1] and ys.shape == (0, 2)
    g = grad(lambda c: nv.sum(scan(lambda c, _: (c * c, None), c, length=0)[0]))(nv.ones(2))
    assert g.tolist() == [1, 1]


def test_integer_carries_beside_floating_ones() -> None:
    def f(x: Any) -> Any:
        def step(carry: Any, v: Any) -> Any:
            i, total = carry
            return (i + 1, total + v * i * nv.sin(total)), i

        (_, total), _ = scan(step, (0, x), x * nv.ones(4, dtype=np.float64))
        return total

    check_grads(f, (np.float64(0.6),), order=2)
    check_vmap(f, (np.float64(0.6),))


def test_a_carry_that_becomes_batched_in_the_loop() -> None:
    def f(x: Any) -> Any:
        return scan(lambda c, v: (c + v, c), nv.zeros(()), x)

    total, sums = vmap(f)(nv.ones((2, 3)))
    assert total.tolist() == [3, 3] and sums.tolist() == [[0, 1, 2]] * 2


def test_weak_carries_take_the_bodys_dtype() -> None:
    out, _ = scan(lambda c, x: (c + x, None), 0.0, nv.ones(3, dtype=np.float64))
    assert out.dtype == np.float64 and out.item() == 3
    out, _ = scan(lambda c, x: (c + x, None), 0, nv.ones(3, dtype=np.int64))
    assert out.dtype == np.int64


def test_draws_differ_at_every_step_run_and_element() -> None:
    def f(x: Any) -> Any:
        return scan(lambda c, _: (c, nv.random.uniform() + c), x, length=5)[1]

    compiled = compile(f)
    seen = [*f(0.0).tolist(), *compiled(0.0).tolist(), *compiled(0.0).tolist()]
    seen += np.asarray(vmap(f)(nv.zeros(3))).ravel().tolist()
    assert len(set(seen)) == 30
    nv.random.seed(3)
    first = f(0.0).tolist()
    nv.random.seed(3)
    assert f(0.0).tolist() == first


def test_errors() -> None:
    with pytest.raises(TreeError, match=r"return carry, None"):
        scan(lambda c, x: c, 1.0, nv.ones(3))
    with pytest.raises(ShapeError, match=r"xs\['a'\]: 2.*xs\['b'\]: 3|leading sizes differ"):
        scan(lambda c, x: (c, None), 1.0, {"a": nv.ones(2), "b": nv.ones(3)})
    with pytest.raises(ShapeError, match="length"):
        scan(lambda c, x: (c, None), 1.0)
    with pytest.raises(ShapeError, match="scalar"):
        scan(lambda c, x: (c, None), 1.0, nv.array(1.0))
    with pytest.raises(ShapeError, match=r"\(\).*\(2,\)|\(2,\).*\(\)"):
        scan(lambda c, x: (c + nv.ones(2), None), nv.array(1.0), nv.ones(3))
    with pytest.raises(DtypeError, match="astype"):
        scan(lambda c, x: (c.astype(np.int32), None), nv.array(1.0), nv.ones(3))
    with pytest.raises(TreeError, match="structure"):
        scan(lambda c, x: ((c, c), None), nv.array(1.0), nv.ones(3))

    def branch(c: Any, x: Any) -> Any:
        return (c if x > 0 else -c), None

    with pytest.raises(ConcretizationError, match=r"test_scan\.py"):
        scan(branch, 1.0, nv.ones(3))
