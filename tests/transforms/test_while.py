"""while_loop: forward mode always, reverse mode with max_steps, elements each on their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.array import from_numpy
from nuvec.core.errors import DtypeError, NuvecError, ShapeError, TreeError
from nuvec.testing import check_collective, check_compile, check_grads, check_jvp, check_vmap

ARGS = (np.array([0.3, 0.8]), np.float64(0.7))


def halve(x: Any, w: Any, **options: Any) -> Any:
    """Multiplies by w until it is small: a number of steps that depends on x."""
    return nv.while_loop(
        lambda c: nv.sum(nv.abs(c["x"])) > 0.4,
        lambda c: {"x": nv.sin(c["x"]) * w, "n": c["n"] + 1},
        {"x": x, "n": 0}, **options,
    )  # fmt: skip


def python(x: Any, w: Any) -> Any:
    n = 0
    while np.sum(np.abs(x)) > 0.4:
        x, n = np.sin(x) * w, n + 1
    return {"x": x, "n": n}


@pytest.mark.parametrize("options", [{}, {"max_steps": 6}])
def test_equals_a_python_loop(options: dict[str, int]) -> None:
    expected = python(*ARGS)
    assert expected["n"] == 3
    for wrap in (lambda f: f, nv.compile):
        found = wrap(lambda x, w: halve(x, w, **options))(
            *[from_numpy(np.asarray(a)) for a in ARGS]
        )
        np.testing.assert_allclose(found["x"], expected["x"], rtol=1e-14)
        assert found["n"].item() == 3


def test_forward_mode_of_every_order() -> None:
    check_jvp(halve, ARGS)

    def second(x: Any, w: Any) -> Any:
        return nv.jvp(lambda w: halve(x, w)["x"], (w,), (w,))[1]

    check_jvp(second, ARGS)
    check_compile(halve, ARGS)
    check_compile(second, ARGS)
    check_vmap(halve, ARGS)
    check_vmap(second, ARGS)


def test_max_steps_rules() -> None:
    def f(x: Any, w: Any) -> Any:
        return halve(x, w, max_steps=5)

    check_grads(f, ARGS, order=3)
    check_vmap(f, ARGS)
    check_compile(f, ARGS)
    check_compile(lambda x, w: nv.grad(lambda w: nv.sum(f(x, w)["x"]))(w), ARGS)


def test_derivatives_with_and_without_max_steps_agree() -> None:
    x, w = (from_numpy(np.asarray(a)) for a in ARGS)
    forward = nv.jvp(lambda w: nv.sum(halve(x, w)["x"]), (w,), (nv.ones_like(w),))[1]
    reverse = nv.grad(lambda w: nv.sum(halve(x, w, max_steps=9)["x"]))(w)
    assert forward.item() == pytest.approx(reverse.item(), rel=1e-12)
    mixed = nv.jvp(
        nv.grad(lambda w: nv.sum(halve(x, w, max_steps=9)["x"])), (w,), (nv.ones_like(w),)
    )[1]
    outer = nv.grad(
        lambda w: nv.jvp(lambda w: nv.sum(halve(x, w, max_steps=9)["x"]), (w,), (nv.ones_like(w),))[
            1
        ]
    )(w)
    assert mixed.item() == pytest.approx(outer.item(), rel=1e-12)


def test_reverse_mode_without_max_steps_says_what_to_do() -> None:
    f = nv.grad(lambda x: nv.sum(halve(x, 0.5)["x"]))
    for g in (f, nv.compile(f), nv.vmap(f)):
        with pytest.raises(NuvecError, match=r"(?s)test_while\.py.*max_steps.*nv\.scan.*fori_loop"):
            g(nv.ones((2, 2)) if g is not f else nv.ones(2))
    # A loop whose result is not differentiated, or only over constants, is no error.
    value, steps = nv.value_and_grad(lambda x: (nv.sum(x * x), halve(x, 0.5)["n"]), has_aux=True)(
        nv.ones(2)
    )[0]
    assert value.item() == 2 and steps.item() == 3
    g = nv.grad(lambda x: nv.sum(halve(nv.stop_gradient(x), 0.5)["x"] * x))(nv.ones(2))
    assert np.all(np.isfinite(np.asarray(g)))


def test_too_few_steps_raise_whatever_is_evaluated() -> None:
    def f(w: Any) -> Any:
        return nv.sum(halve(nv.array([0.3, 0.8]), w, max_steps=2)["x"])

    out = f(nv.array(0.7))
    for _ in range(2):
        with pytest.raises(NuvecError, match="max_steps=2"):
            out.item()
    for g in (
        nv.grad(f), nv.compile(f), nv.compile(nv.grad(f)),
        lambda w: nv.vmap(f)(nv.stack([w, w])), lambda w: nv.jvp(f, (w,), (w,))[1],
    ):  # fmt: skip
        with pytest.raises(NuvecError, match="max_steps=2"):
            np.asarray(g(nv.array(0.7)))
    with pytest.raises(TypeError, match="max_steps"):
        halve(nv.ones(2), 0.5, max_steps=2.0)
    exact = halve(nv.array([0.3, 0.8]), 0.7, max_steps=3)
    assert exact["n"].item() == 3
    none = nv.while_loop(lambda x: x > 5, lambda x: x + 1, nv.array(1.0), max_steps=0)
    assert none.item() == 1


@pytest.mark.parametrize("options", [{}, {"max_steps": 7}])
def test_elements_that_are_done_keep_their_carry(options: dict[str, int]) -> None:
    def f(n: Any, x: Any) -> Any:
        return nv.while_loop(
            lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * x), (0, nv.ones(())), **options
        )[1]

    n, x = nv.arange(5), nv.array(2.0)
    for wrap in (lambda f: f, nv.compile):
        assert wrap(nv.vmap(f, (0, None)))(n, x).tolist() == [1, 2, 4, 8, 16]
        nested = wrap(nv.vmap(nv.vmap(f, (0, None)), (None, 0)))(n, nv.array([1.0, 3.0]))
        assert nested.tolist() == [[1] * 5, [1, 3, 9, 27, 81]]
    tangent = nv.vmap(lambda n: nv.jvp(lambda x: f(n, x), (x,), (nv.ones(()),))[1])(n)
    assert tangent.tolist() == [0, 1, 4, 12, 32]
    pushed = nv.jvp(lambda x: nv.vmap(f, (0, None))(n, x), (x,), (nv.ones(()),))[1]
    assert pushed.tolist() == [0, 1, 4, 12, 32]
    if options:
        g = nv.vmap(nv.grad(f, argnums=1), (0, None))(n, x)
        assert g.tolist() == [0, 1, 4, 12, 32]


def test_draws_differ_at_every_step_run_and_element() -> None:
    def f(start: Any) -> Any:
        def body(c: Any) -> Any:
            i, seen = c
            return i + 1, seen.at[i].set(nv.random.uniform() + start)

        return nv.while_loop(lambda c: (c[0] < 5) & (nv.random.uniform() >= 0), body,
                             (0, nv.zeros(5)))[1]  # fmt: skip

    compiled = nv.compile(f)
    seen = [*f(0.0).tolist(), *compiled(0.0).tolist(), *compiled(0.0).tolist()]
    seen += np.asarray(nv.vmap(f)(nv.zeros(3))).ravel().tolist()
    assert len(set(seen)) == 30
    nv.random.seed(3)
    first = f(0.0).tolist()
    nv.random.seed(3)
    assert f(0.0).tolist() == first
    # Forward mode runs the loop again, with the same draws.
    nv.random.seed(3)
    out, _ = nv.jvp(f, (0.0,), (1.0,))
    assert out.tolist() == first


def test_communication_in_the_body() -> None:
    def program(group: Any, x: Any, **options: Any) -> Any:
        def body(c: Any) -> Any:
            i, x = c
            return i + 1, nv.distributed.all_sum(nv.sin(x), group=group) * 0.5

        return nv.while_loop(lambda c: c[0] < 2, body, (0, x), **options)[1]

    check_collective(
        lambda group, x: program(group, x, max_steps=3), (np.ones(2),), sizes=(1, 2, 3, 4), order=1
    )

    def run(group: Any) -> Any:
        x = nv.array([0.3, 0.8])
        plain = program(group, x)
        np.testing.assert_allclose(plain, program(group, x, max_steps=3), rtol=1e-6)
        np.testing.assert_array_equal(nv.compile(lambda x: program(group, x))(x), plain)
        batch = nv.vmap(lambda x: program(group, x))(nv.stack([x, x]))
        np.testing.assert_array_equal(batch[1], plain)
        for f in (
            lambda x: nv.jvp(lambda x: program(group, x), (x,), (x,)),
            nv.grad(lambda x: nv.sum(program(group, x))),
        ):
            with pytest.raises(NuvecError, match="max_steps"):
                f(x)
        mapped = nv.vmap(
            lambda n, x: nv.while_loop(
                lambda c: c[0] < n,
                lambda c: (c[0] + 1, nv.distributed.all_sum(c[1], group=group)), (0, x),
            )[1]
        )  # fmt: skip
        with pytest.raises(NuvecError, match="mapped"):
            mapped(nv.array([1, 2]), nv.stack([x, x]))

    nv.distributed.run_local(run, 2)


def test_captures_are_read_through_their_handles() -> None:
    w = nv.array([3.0])
    f = nv.compile(lambda x: nv.while_loop(lambda c: c[0] < w[0] * 10, lambda c: c * w, x))
    assert f(nv.array([2.0])).tolist() == [54.0]
    w[0] = 5.0
    assert f(nv.array([2.0])).tolist() == [50.0]


def test_nested_in_scan_cond_and_itself() -> None:
    def inner(c: Any) -> Any:
        return nv.while_loop(lambda x: x < 10, lambda x: x * 3, c)

    def f(x: Any) -> Any:
        out, ys = nv.scan(lambda c, v: (inner(c) * v, c), x, nv.array([0.1, 0.2, 0.3]))
        return nv.cond(out > 0, inner, lambda x: x, out) + nv.sum(ys)

    x = nv.array(1.5)
    assert nv.compile(f)(x).item() == pytest.approx(f(x).item())
    assert nv.vmap(f)(nv.stack([x, x * 2]))[0].item() == pytest.approx(f(x).item())
    tangent = nv.jvp(f, (x,), (nv.ones(()),))[1].item()
    eps = 1e-2
    assert tangent == pytest.approx((f(x + eps) - f(x - eps)).item() / 2 / eps, rel=1e-3)
    twice = nv.while_loop(lambda c: c < 1000, lambda c: inner(c) + c, nv.array(1.0))
    expected = 1.0
    while expected < 1000:
        inside = expected
        while inside < 10:
            inside *= 3
        expected = inside + expected
    assert twice.item() == expected


def test_weak_carries_take_the_bodys_dtype() -> None:
    one = nv.ones((), dtype=np.float16)
    assert nv.while_loop(lambda x: x < 5, lambda x: x + one, 0).dtype == np.float16
    assert nv.while_loop(lambda x: x < 5, lambda x: x + one, 0, max_steps=9).dtype == np.float16


def test_errors() -> None:
    with pytest.raises(TreeError, match="structure"):
        nv.while_loop(lambda x: x < 1, lambda x: (x, x), nv.array(1.0))
    with pytest.raises(ShapeError, match=r"\(2,\)"):
        nv.while_loop(lambda x: x < 1, lambda x: nv.ones(2), nv.array(1.0))
    with pytest.raises(DtypeError, match="astype"):
        nv.while_loop(lambda x: x < 1, lambda x: x.astype(np.int32), nv.array(1.0))
    with pytest.raises(ShapeError, match=r"boolean scalar.*nv\.any"):
        nv.while_loop(lambda x: x < 1, lambda x: x, nv.ones(2))
    with pytest.raises(DtypeError, match="boolean scalar"):
        nv.while_loop(lambda x: x, lambda x: x, nv.array(1.0))
    with pytest.raises(TreeError, match="boolean scalar"):
        nv.while_loop(lambda x: (x < 1, x), lambda x: x, nv.array(1.0))
    with pytest.raises(TreeError, match="no arrays"):
        nv.while_loop(lambda x: True, lambda x: x, None)
    with pytest.raises(TreeError, match="structure"):
        nv.while_loop(lambda x: x < 1, lambda x: (x, x), nv.array(1.0), max_steps=3)


def test_a_finished_step_makes_nothing_of_a_weights_size() -> None:
    def loss(w: Any, b: Any) -> Any:
        def body(c: Any) -> Any:
            return c[0] + 1, nv.tanh(c[1] @ w + b)

        start = (0, nv.ones((2, 30), np.float64))
        return nv.sum(nv.while_loop(lambda c: c[0] < 3, body, start, max_steps=8)[1])

    args = (np.eye(30) * 0.5, np.linspace(-1, 1, 30))
    ir = nv.make_ir(nv.grad(loss, argnums=(0, 1)))(*map(from_numpy, args))
    bodies = [e.params["body"] for e in ir.eqns if e.primitive.name == "scan"]
    assert len(bodies) == 2
    for body in bodies:
        assert max(v.aval.size for e in body.eqns for v in e.outputs) <= 60
    check_grads(loss, args, order=1)
    small = (np.eye(2) * 0.5, np.linspace(-1, 1, 2))
    check_grads(
        lambda w, b: nv.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, nv.tanh(c[1] @ w + b)),
            (0, np.ones((2, 2))), max_steps=5,
        )[1],
        small, order=2,
    )  # fmt: skip
