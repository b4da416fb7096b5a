"""Which functions linear_transpose takes, and which it refuses: values that depend linearly on the
inputs, judged through programs that hold programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec import distributed as nd
from nuvec.core.errors import ConcretizationError, DtypeError, NuvecError
from nuvec.core.ops.differentiation import zeros_of
from nuvec.core.recording import trace_ir
from nuvec.transforms.linearity import (
    CONSTANT,
    LINEAR,
    ZERO,
    dependence_of_constant,
    first_fault,
)

W = nv.array([1.0, 2.0, 3.0])
ZEROS = nv.zeros(3)
MASK = nv.array([True, False, True])
Function = Callable[..., Any]


def _adjoint(f: Function, x: Any) -> None:
    """<c, f(x)> = <transpose(c), x> for random c."""
    rng = np.random.default_rng(0)
    out = f(x)
    c = nv.tree.map(lambda o: nv.array(rng.normal(size=o.shape).astype(o.dtype)), out)
    (found,) = nv.linear_transpose(f, nv.tree.map(nv.zeros_like, x))(c)
    pairs = [(c, out), (found, x)]
    left, right = (
        sum(float((a * b).sum()) for a, b in zip(nv.tree.leaves(p), nv.tree.leaves(q), strict=True))
        for p, q in pairs
    )
    assert left != 0
    np.testing.assert_allclose(left, right, rtol=1e-5)


def _custom(f: Function) -> Function:
    g = nv.custom_vjp(f)
    g.defvjp(lambda x: (f(x), None), lambda _, c: (2 * c,))
    return g


def _count(x: Any) -> Any:
    """A loop that carries a counter beside what is linear."""
    _, total = nv.fori_loop(0, 3, lambda i, s: (s[0] + 1, s[1] + i * x), (0, nv.zeros(3)))
    return total


TAKEN: dict[str, Function] = {
    "joined with zeros": lambda x: nv.concatenate([x, nv.zeros(2), nv.full(1, 0.0)]),
    "padded with zeros": lambda x: nv.pad(x, 1),
    "where zero": lambda x: nv.where(MASK, x, 0.0),
    "set to zero": lambda x: x.at[1].set(0.0),
    "scaled in place": lambda x: x.at[1].multiply(3.0),
    "added in place": lambda x: x.at[1].add(x[0]),
    "plus integer zeros": lambda x: x + nv.zeros(3, nv.int32),
    "plus a product with zero": lambda x: x + 0 * W,
    "an output that is zero": lambda x: (x, nv.zeros_like(x)),
    "a constant used twice": lambda x: (x + ZEROS, ZEROS, x * W, x * W),
    "division": lambda x: x / W,
    "real part": lambda x: nv.real(x * (1 + 2j)),
    "another dtype": lambda x: x.astype(nv.float64),
    "unused": lambda x: (nv.sin(x), x)[1],
    "unused, compiled": lambda x: nv.compile(lambda y: (nv.sin(y), y))(x)[1],
    "if on a constant": lambda x: x if W[0] > 0 else nv.sin(x),
    "compile": nv.compile(lambda x: x * W),
    "checkpoint": nv.checkpoint(lambda x: nv.roll(x, 1) * W),
    "custom_vjp": _custom(lambda x: 2 * x),
    "vmap": nv.vmap(lambda x: 3 * x),
    "scan": lambda x: nv.scan(lambda c, y: (c + y, (c, nv.stack([y, 0 * c]))), 0.0, x),
    "zeros made in a body": lambda x: nv.scan(
        lambda c, y: (c, nv.concatenate([y[None], nv.zeros(1)])), None, x)[1],
    "counter": _count,
    "while_loop": lambda x: nv.while_loop(
        lambda s: s[0] < 2, lambda s: (s[0] + 1, 2 * s[1]), (0, x), max_steps=3)[1],
    "cond": lambda x: nv.cond(W[0] > 0, lambda y: 2 * y, lambda y: nv.zeros(3), x),
    "switch": lambda x: nv.switch(1, [nv.zeros_like, lambda y: 3 * y], x),
    "map": lambda x: nv.map(lambda y: 2 * y, x),
    "associative_scan": lambda x: nv.associative_scan(nv.add, x),
    "a derivative": lambda x: nv.jvp(nv.sin, (W,), (x,))[1],
    "a masked derivative": lambda x: nv.vjp(lambda y: nv.maximum(y, 2.0) ** 2, W)[1](x)[0],
    "a transpose": lambda x: nv.linear_transpose(lambda y: y * W, W)(x)[0],
    "compiled outside": nv.compile(
        lambda x: nv.linear_transpose(lambda y: nv.concatenate([y, nv.zeros(2)]), x)(
            nv.concatenate([x, x[:2]]))[0]),
    "ordered": lambda x: nv.depends(x, nv.sin(x)),
    "over an axis": lambda x: nv.vmap(
        lambda y: nd.all_sum(y * nd.axis_group("a").rank(), nd.axis_group("a")), axis_name="a")(x),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_linear_functions_are_transposed(name: str) -> None:
    _adjoint(TAKEN[name], W)


def test_trees_and_several_arguments() -> None:
    _adjoint(lambda p: {"s": p["a"] - p["b"].sum(), "t": [p["b"]]}, {"a": W, "b": W[:2]})
    transposed = nv.linear_transpose(lambda x, y: x + 2 * y, W, W)
    assert [c.tolist() for c in transposed(W)] == [[1, 2, 3], [2, 4, 6]]
    with pytest.raises(NuvecError, match=r"multiply of .* multiplies two values that depend on"):
        nv.linear_transpose(lambda x, y: x * y, W, W)


AFFINE = "a constant that is not zero"
REFUSED: dict[str, tuple[Function, str]] = {
    "joined": (lambda x: nv.concatenate([x, nv.ones(2)]), f"concatenate of .*{AFFINE}"),
    "padded": (lambda x: nv.pad(x, 1, constant_values=2.0), f"concatenate of .*{AFFINE}"),
    "where": (lambda x: nv.where(MASK, x, 1.0), f"where of .*{AFFINE}"),
    "set": (lambda x: x.at[1].set(1.0), AFFINE),
    "scatter": (lambda x: x.at[nv.array([0, 1])].set(W[:2]), f"scatter_set of .*{AFFINE}"),
    "constant": (lambda x: W, f"output 0, float32\\[3\\], is {AFFINE}"),
    "one constant": (lambda x: (x, 1.0), f"output 1, .*{AFFINE}"),
    "mask": (lambda x: nv.where(x > 0, x, -x), "greater of"),
    "index": (lambda x: W[x.astype(nv.int32)], "convert_dtype of"),
    "remainder": (lambda x: x % 2.0, "remainder of"),
    "rounded": (nv.floor, "floor of"),
    "stopped": (lambda x: x * nv.stop_gradient(x), "stop_gradient of"),
    "compile": (nv.compile(lambda x: nv.sin(x)), "sin of"),
    "compile, affine": (nv.compile(lambda x: x + 1), f"add of .*{AFFINE}"),
    "checkpoint": (nv.checkpoint(lambda x: x * x), "multiplies two values"),
    "custom_vjp": (_custom(lambda x: x * x), "multiplies two values"),
    "vmap": (nv.vmap(nv.exp), "exp of"),
    "scan": (lambda x: nv.scan(lambda c, y: (c * y, None), x[0], x)[0], "multiplies two values"),
    "scan, first carry": (lambda x: nv.scan(lambda c, y: (c + y, None), 1.0, x)[0], "add of"),
    "scan, changing carry": (
        lambda x: nv.scan(lambda c, y: ((c[1], 1.0), None), (0.0, x[0]), x)[0],
        "scan of .*: a carry is linear at one step",
    ),
    "predicate": (lambda x: nv.cond(x[0] > 0, lambda y: y, lambda y: -y, x), "greater of"),
    "branch": (lambda x: nv.cond(W[0] > 0, lambda y: y, lambda y: y + W, x), "add of"),
    "constant branch": (
        lambda x: nv.cond(W[0] > 0, lambda y: y, lambda y: W, x),
        "cond of .*linear in one branch",
    ),
    "steps": (
        lambda x: nv.while_loop(lambda c: c.sum() < 9, lambda c: 2 * c, x, max_steps=9),
        "less of",
    ),
    "steps, unbounded": (
        lambda x: nv.while_loop(lambda c: c.sum() < 9, lambda c: 2 * c, x), "less of"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_other_functions_are_refused_with_their_line(name: str) -> None:
    f, why = REFUSED[name]
    with pytest.raises(NuvecError, match=f"not linear in its arguments: .*{why}") as caught:
        nv.linear_transpose(f, W)
    assert "test_linearity.py:" in str(caught.value)


def test_a_decision_on_the_value_is_refused() -> None:
    with pytest.raises(ConcretizationError, match=r"primals\[0\]\['x'\] of .*is not linear"):
        nv.linear_transpose(lambda p: p["x"] if p["x"].sum() > 0 else -p["x"], {"x": W})
    with pytest.raises(ConcretizationError, match="linear_transpose of <lambda>"):
        nv.linear_transpose(lambda x: x * float(x[0]), W)


def test_integers_are_no_primals() -> None:
    with pytest.raises(DtypeError, match=r"primals\[1\]\['n'\] is int32\[\]"):
        nv.linear_transpose(lambda x, p: x * p["n"], W, {"n": nv.array(2)})


def test_the_function_runs_once_and_evaluates_nothing() -> None:
    calls = []
    nv.linear_transpose(lambda x: calls.append(1) or 2 * x, W)(W)
    assert calls == [1]


# Collectives


def _sent(x: Any, group: Any) -> Any:
    """Rank 0's x, on rank 1."""
    if group.rank() == 0:
        return nd.send(2 * x, 1, group)
    return nd.recv((3,), nv.float32, 0, group) * 3 + x


COLLECTIVES: dict[str, Callable[[Any, Any], Any]] = {
    "all_sum": lambda x, g: nd.all_sum((2 * x, nv.zeros(3)), g)[0],
    "broadcast": lambda x, g: nd.broadcast(x, 1, g),
    "all_gather": lambda x, g: nd.all_gather(x, g),
    "sum_scatter": lambda x, g: nd.sum_scatter(nv.concatenate([x, -x]), g),
    "all_to_all": lambda x, g: nd.all_to_all(nv.concatenate([x, 2 * x]), g),
    "permute": lambda x, g: nd.permute(x, [(0, 1), (1, 0)], g),
    "point to point": _sent,
    "compiled": nv.compile(lambda x, g: nd.all_sum(x, g), static_argnums=1),
    "weights": lambda x, g: x * nd.all_max(W, g),
    "a metric": lambda x, g: (nd.all_max(nv.stop_gradient(nv.sin(x)), g), 2 * x)[1],
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_linear_collectives_are_transposed(name: str) -> None:
    f = COLLECTIVES[name]

    def on_rank(group: Any) -> tuple[float, float]:
        x = W * (group.rank() + 1)
        out = f(x, group)
        c = nv.array(np.random.default_rng(group.rank()).normal(size=out.shape).astype(np.float32))
        (found,) = nv.linear_transpose(lambda y: f(y, group), x)(c)
        return float((c * out).sum()), float((found * x).sum())

    pairs = nd.run_local(on_rank, 2)
    np.testing.assert_allclose(sum(a for a, _ in pairs), sum(b for _, b in pairs), rtol=1e-5)


NOT_LINEAR: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "all_max": (lambda x, g: nd.all_max(x, g), "all_max of"),
    "all_min, compiled": (nv.compile(lambda x, g: nd.all_min(x, g), static_argnums=1), "all_min"),
    "all_sum of a square": (lambda x, g: nd.all_sum(x * x, g), "multiplies two values"),
    "all_sum of a constant": (lambda x, g: nd.all_sum((x, W), g)[1], "output 0, .*constant"),
    "sent, and not used": (
        lambda x, g: (nd.permute(nv.sin(x), [(0, 1), (1, 0)], g), x)[1], "sin of"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_LINEAR)
def test_other_collectives_are_refused(name: str) -> None:
    f, why = NOT_LINEAR[name]

    def on_rank(group: Any) -> None:
        with pytest.raises(NuvecError, match=f"not linear in its arguments: .*{why}"):
            nv.linear_transpose(lambda y: f(y, group), W)

    nd.run_local(on_rank, 2)


# The judgement itself


def _ir(f: Callable[..., Sequence[Any]], *arrays: Any) -> Any:
    ir, captures = trace_ir(f, [nv.asarray(a).aval for a in arrays], "f")
    assert not captures
    return ir


def test_outputs_are_judged_by_what_their_inputs_are() -> None:
    ir = _ir(lambda x, t: [nv.sin(x), nv.cos(x) * t], W, W)
    assert first_fault(ir, [CONSTANT, LINEAR], [1]) is None
    assert "output 0" in str(first_fault(ir, [CONSTANT, LINEAR]))
    assert "cos of" in str(first_fault(ir, [LINEAR, CONSTANT], [1]))
    assert first_fault(_ir(lambda x, y: [x + y], W, W), [LINEAR, ZERO]) is None
    assert "add of" in str(first_fault(_ir(lambda x, y: [x + y], W, W), [LINEAR, CONSTANT]))


def test_zeros_are_known_without_evaluation() -> None:
    for zero in (nv.zeros(3), zeros_of(W.aval), nv.zeros(2, nv.int32).astype(nv.float32), 0 * W,
                 nv.broadcast_to(nv.zeros(()), (4,)) - nv.zeros(4), nv.ones(0)):  # fmt: skip
        assert dependence_of_constant(zero) == ZERO
    for other in (W, W * 2, nv.zeros(3) + W, nv.cos(nv.zeros(3)), nv.array(np.nan)):
        assert dependence_of_constant(other) == CONSTANT


@pytest.mark.parametrize(
    "f",
    [
        nv.conj, nv.real, nv.imag, lambda z: nv.real(z) + 0j, lambda z: nv.sum(z * nv.conj(z)),
        nv.compile(nv.conj), lambda z: nv.scan(lambda c, _: (nv.conj(c), None), z, None, 3)[0],
    ],
)  # fmt: skip
def test_conjugates_are_not_linear_over_the_complex_numbers(f: Any) -> None:
    z = nv.array([1 + 2j, 3.0])
    with pytest.raises(NuvecError, match=r"real numbers alone|multiplies two"):
        nv.linear_transpose(f, z)


def test_conjugates_of_constants_and_parts_of_real_functions_are_linear() -> None:
    z = nv.array([1 + 2j, 3.0])
    (found,) = nv.linear_transpose(lambda x: x * nv.conj(z), z)(z)
    np.testing.assert_allclose(found, np.conj(z) * np.asarray(z))
    (found,) = nv.linear_transpose(lambda x: nv.real(x * (1 + 2j)), nv.ones(2))(nv.ones(2))
    np.testing.assert_allclose(found, [1.0, 1.0])
