"""scan: a loop as one equation, equal to the Python loop in every pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.array import from_numpy
from nuvec.core.errors import ConcretizationError, DtypeError, ShapeError, TreeError
from nuvec.testing import check_collective, check_compile, check_grads, check_vmap
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


# What the loop does with carries and outputs


def _bodies() -> dict[str, Any]:
    w = np.array([[0.5, -0.3], [0.2, 0.4]])
    return {
        "carry is an output": lambda c, x: ((nv.tanh(c[0] @ w + x), c[1]), 0),
        "swap": lambda c, x: ((c[1], c[0] * x), c[0]),
        "fibonacci": lambda c, x: ((c[1], c[0] * 0.5 + c[1] * x), None),
        "rotate": lambda c, x: ((c[1] + x, c[0]), (c[0], c[1])),
        "kept": lambda c, x: ((c[0], c[1] + c[0]), c[0]),
        "old and new": lambda c, x: ((c[0] * x, c[1]), (c[0], c[0] * x, c[1] + 1)),
        "constant outputs": lambda c, x: ((c[0] + 1, nv.zeros_like(c[1])), (3.0, nv.array(w))),
        "input outputs": lambda c, x: ((x, c[0]), (x, x)),
        "the same twice": lambda c, x: (lambda y: ((y, y), (y, y, c[0], c[1])))(nv.sin(c[0]) * x),
        "views": lambda c, x: ((c[0][::-1] + x, nv.reshape(c[0], (2,))), c[0][::-1]),
        "scalars": lambda c, x: ((c[0] + nv.sum(x), c[1]), nv.sum(c[0])),
    }


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", _bodies())
def test_where_results_go(name: str, reverse: bool) -> None:
    body = _bodies()[name]

    def scanned(a: Any, b: Any, xs: Any) -> Any:
        return scan(body, (a, b), xs, reverse=reverse)

    def looped(a: Any, b: Any, xs: Any) -> Any:
        carry, ys = (a, b), []
        for i in reversed(range(3)) if reverse else range(3):
            carry, y = body(carry, xs[i])
            ys.append(y)
        ys = ys[::-1] if reverse else ys
        return carry, nv.tree.map(lambda *y: nv.stack([nv.array(v) for v in y]), *ys)

    args = [from_numpy(a) for a in (H, -H + 0.5, XS)]
    for wrap in (lambda f: f, compile):
        found, expected = wrap(scanned)(*args), looped(*args)
        for a, b in zip(nv.tree.leaves(found), nv.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
    check_grads(scanned, (H, -H + 0.5, XS), order=2)
    check_vmap(scanned, (H, -H + 0.5, XS))


@pytest.mark.parametrize("length", [0, 1, 2, 5])
def test_scalar_carries_and_every_length(length: int) -> None:
    def f(c: Any, w: Any) -> Any:
        return scan(lambda c, x: ((c[1], c[0] * w + x), c[0]), (c, c * 2),
                    nv.arange(length, dtype=np.float64))  # fmt: skip

    check_grads(f, (np.float64(0.3), np.float64(0.7)), order=2)
    check_vmap(f, (np.float64(0.3), np.float64(0.7)))


def test_inputs_of_any_layout() -> None:
    def step(c: Any, x: Any) -> Any:
        return nv.tanh(c @ W.T + x), nv.sum(x)

    h = nv.asarray(H)
    expected = scan(step, h, nv.asarray(XS))
    wide = np.zeros((3, 2, 2))
    wide[..., 0] = XS
    for xs in (np.asfortranarray(XS), wide[..., 0], np.ascontiguousarray(XS[::-1])[::-1]):
        for wrap in (lambda f: f, compile):
            found = wrap(lambda xs: scan(step, h, xs))(from_numpy(xs))
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_array_equal(a, b)
    repeated = from_numpy(np.broadcast_to(XS[0], (3, 2)))
    np.testing.assert_array_equal(
        scan(step, h, repeated)[0], scan(step, h, nv.array(np.asarray(repeated)))[0]
    )


def test_results_do_not_change_later() -> None:
    """Buffers are reused between steps and runs; what a caller holds is not among them."""
    f = compile(lambda c, xs: scan(lambda c, x: (c * x, c), c, xs))
    first = [np.asarray(a) for a in nv.tree.leaves(f(nv.asarray(H), nv.asarray(XS)))]
    kept = [a.copy() for a in first]
    f(nv.asarray(H) * 9, nv.asarray(XS))
    for a, b in zip(first, kept, strict=True):
        np.testing.assert_array_equal(a, b)


# What leaves the body


def _scan_body(ir: Any, k: int = 0) -> list[str]:
    scans = [e for e in ir.eqns if e.primitive.name == "scan"]
    return [e.primitive.name for e in scans[k].params["body"].eqns]


def test_products_with_inputs_and_sums_of_products_leave_the_body() -> None:
    def loss(w: Any, u: Any, b: Any, xs: Any) -> Any:
        step = lambda h, x: (lambda h: (h, h))(nv.tanh(x @ w + h @ u + b))  # noqa: E731
        return nv.sum(scan(step, nv.zeros((3, 4), np.float64), xs)[1] ** 2)

    args = (np.ones((2, 4)), np.ones((4, 4)), np.ones(4), np.ones((5, 3, 2)))
    ir = make_ir(nv.grad(loss, argnums=(0, 1, 2)))(*[from_numpy(a) for a in args])
    assert _scan_body(ir).count("dot_general") == 1
    assert _scan_body(ir, 1).count("dot_general") == 1 and "sum" not in _scan_body(ir, 1)
    rng = np.random.Generator(np.random.PCG64(1))
    check_grads(loss, tuple(0.5 * rng.standard_normal(a.shape) for a in args), order=2)


def test_what_could_raise_stays_inside() -> None:
    table, index = nv.ones(3), nv.array(7)
    f = lambda n: scan(lambda c, _: (c + table[index], None), 0.0, length=n)[0]  # noqa: E731
    assert f(0).item() == 0
    with pytest.raises(IndexError):
        f(1).item()


def test_equal_bodies_share_what_was_made_of_them() -> None:
    def run(k: float) -> Any:
        ir = make_ir(lambda x: scan(lambda c, v: (nv.sin(c) * k + v, None), x, nv.ones(3))[0])(1.0)
        return next(e for e in ir.eqns if e.primitive.name == "scan").params["body"]

    assert run(2.0) is run(2.0)
    assert run(2.0) is not run(3.0)
    captured = [nv.array(2.0), nv.array(3.0)]
    found = [scan(lambda c, v, w=w: (c * w, None), 1.0, nv.ones(3))[0].item() for w in captured]
    assert found == [8, 27]


def test_the_body_is_a_python_function_and_may_read_anything() -> None:
    state = {"factor": 2.0}

    def step(c: Any, _: Any) -> Any:
        return c * state["factor"], None

    assert scan(step, 1.0, length=3)[0].item() == 8
    state["factor"] = 3.0
    assert scan(step, 1.0, length=3)[0].item() == 27


@pytest.mark.parametrize("unroll", [1, 2, 4, True, False])
def test_unroll_changes_nothing(unroll: Any) -> None:
    step = lambda c, x: (nv.tanh(c @ W + x), c)  # noqa: E731
    found, expected = (scan(step, H, XS, **o) for o in ({"unroll": unroll}, {}))
    for a, b in zip(nv.tree.leaves(found), nv.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("reverse", [False, True])
def test_communication_in_the_body(reverse: bool) -> None:
    def program(group: Any, w: Any, xs: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            total = nv.distributed.all_sum(c * w, group=group)
            return nv.tanh(total * 0.1) * nv.sin(x), (
                c,
                nv.distributed.broadcast(c, 0, group=group),
            )

        return scan(step, w, xs, reverse=reverse)

    check_collective(program, (np.ones(2), np.ones((3, 2))))


def test_none_and_trees() -> None:
    carry, ys = scan(
        lambda c, x: ({"a": c["a"] + x[0]["b"], "n": None}, (None, {"y": c["a"]})),
        {"a": nv.zeros(2), "n": None}, ({"b": nv.ones((3, 2))}, None),
    )  # fmt: skip
    assert carry["n"] is None and ys[0] is None
    assert carry["a"].tolist() == [3, 3] and ys[1]["y"].tolist() == [[0, 0], [1, 1], [2, 2]]


@pytest.mark.parametrize("unroll", [0, -1, 1.5, None])
def test_unroll_is_a_positive_integer_or_a_boolean(unroll: Any) -> None:
    with pytest.raises(nv.ArgumentError, match="unroll must be an integer >= 1 or a boolean"):
        nv.scan(lambda c, x: (c, x), 0.0, nv.ones(3), unroll=unroll)
    nv.scan(lambda c, x: (c, x), 0.0, nv.ones(3), unroll=False)
