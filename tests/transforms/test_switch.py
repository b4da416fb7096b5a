"""switch: one of several branches runs; an index outside of them is clamped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.array import from_numpy
from nuvec.core.errors import DtypeError, NuvecError, ShapeError, TreeError
from nuvec.testing import check_collective, check_compile, check_grads, check_vmap

BRANCHES = [
    lambda x, y: {"a": nv.sin(x) * y, "n": nv.array(1)},
    lambda x, y: {"a": x * nv.exp(y), "n": nv.array(2)},
    lambda x, y: {"a": x, "n": nv.array(3)},
]


def f(x: Any, y: Any, shift: int = 0) -> Any:
    index = nv.sum(x > 0) + shift
    return nv.switch(index, BRANCHES, x, y)


@pytest.mark.parametrize("index", [-3, 0, 1, 2, 7])
def test_equals_the_branch_called_directly(index: int) -> None:
    x, y = nv.array([0.3, -0.8]), nv.array(0.5)
    expected = BRANCHES[min(max(index, 0), 2)](x, y)
    for wrap in (lambda f: f, nv.compile):
        found = wrap(lambda i, x, y: nv.switch(i, BRANCHES, x, y))(nv.array(index), x, y)
        for k in ("a", "n"):
            np.testing.assert_array_equal(found[k], expected[k])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint64"])
def test_any_integer_dtype_is_clamped_and_not_wrapped(dtype: str) -> None:
    index = nv.array(np.iinfo(dtype).max, dtype=dtype)
    assert nv.switch(index, [lambda: 0, lambda: 1, lambda: 2]).item() == 2
    index = nv.array(np.iinfo(dtype).min, dtype=dtype)
    assert nv.switch(index, [lambda: 0, lambda: 1, lambda: 2]).item() == 0


@pytest.mark.parametrize("x", [[0.3, 0.8], [-0.3, 0.8], [-0.3, -0.8]])
def test_rules(x: list[float]) -> None:
    args = (np.array(x), np.float64(0.5))
    check_grads(f, args, order=3)
    check_compile(f, args)
    check_compile(lambda x, y: nv.grad(lambda x: nv.sum(f(x, y)["a"]))(x), args)
    check_vmap(f, args)


def test_vmap_with_and_without_a_mapped_index() -> None:
    x = from_numpy(np.arange(5.0) + 2)
    branches = [lambda x: x, lambda x: x * x, lambda x: -x]
    indices = nv.array([-1, 0, 1, 2, 5])
    one = lambda i, x: nv.switch(i, branches, x)  # noqa: E731
    assert nv.vmap(one)(indices, x).tolist() == [2, 3, 16, -5, -6]
    assert nv.vmap(one, (0, None))(indices, nv.array(2.0)).tolist() == [2, 2, 4, -2, -2]
    assert nv.vmap(one, (None, 0))(nv.array(1), x).tolist() == [4, 9, 16, 25, 36]
    for g in (nv.vmap(nv.grad(one, argnums=1)), nv.compile(nv.vmap(nv.grad(one, argnums=1)))):
        assert g(indices, x).tolist() == [1, 1, 8, -1, -1]
    assert nv.grad(lambda x: nv.sum(nv.vmap(one)(indices, x)))(x).tolist() == [1, 1, 8, -1, -1]
    nested = nv.vmap(nv.vmap(one, (0, None)), (None, 0))(indices, x)
    assert nested.shape == (5, 5)


def test_a_branch_not_taken_gives_an_exact_zero() -> None:
    branches = [lambda x: nv.sqrt(x), lambda x: -x, lambda x: nv.log(x)]
    x, i = nv.array([4.0, 0.0, 0.5]), nv.array([0, 1, 2])
    g = nv.vmap(nv.grad(lambda x, i: nv.switch(i, branches, x)))(x, i)
    np.testing.assert_array_equal(g, [0.25, -1, 2])


def test_only_one_branch_runs_and_captures_are_differentiated() -> None:
    bad = nv.array(9)

    def g(w: Any, v: Any, i: Any) -> Any:
        return nv.switch(i, [lambda x: x * w, lambda x: x * v * v, lambda x: w[bad, None] * x], 3.0)

    w = nv.array([2.0])
    found = nv.grad(lambda w, v: nv.sum(g(w, v, nv.array(1))), argnums=(0, 1))(w, nv.array([5.0]))
    assert [a.tolist() for a in found] == [[0], [30]]


def test_residual_operands_are_passed_not_copied() -> None:
    """A weight that a branch multiplies by is an operand of the backward cond, not a result of
    the forward one: a loop around it would keep a copy a step."""

    def step(w: Any, c: Any) -> Any:
        return nv.switch(nv.array(1), [lambda c: c, lambda c: nv.tanh(c @ w), lambda c: -c], c)

    def loss(w: Any) -> Any:
        return nv.sum(nv.scan(lambda c, _: (step(w, c), None), nv.ones((2, 50)), length=10)[0])

    ir = nv.make_ir(nv.grad(loss))(nv.ones((50, 50)))
    sizes = [v.aval.size for e in ir.eqns for v in e.outputs if e.primitive.name == "scan"]
    assert max(sizes) <= 50 * 50


def test_one_branch_and_weak_scalars() -> None:
    assert nv.switch(5, [lambda x: x + 1], 1.0).item() == 2
    out = nv.switch(0, [lambda: 1, lambda: nv.ones((), dtype=np.float16), lambda: 2.0])
    assert out.dtype == np.float16


def test_communication_in_a_branch() -> None:
    def program(group: Any, x: Any) -> Any:
        return nv.switch(
            nv.array(1),
            [lambda x: x, lambda x: nv.distributed.all_sum(nv.sin(x), group=group) * x], x,
        )  # fmt: skip

    check_collective(program, (np.ones(2),), sizes=(1, 2, 3))


def test_errors() -> None:
    one, two = (lambda: 1.0), (lambda: nv.ones(2))
    with pytest.raises(DtypeError, match=r"integer scalar.*nv\.cond"):
        nv.switch(True, [one, one])
    with pytest.raises(DtypeError, match="integer scalar"):
        nv.switch(1.0, [one, one])
    with pytest.raises(ShapeError, match=r"int32\[2\]"):
        nv.switch(nv.array([0, 1]), [one, one])
    with pytest.raises(TypeError, match="at least one"):
        nv.switch(0, [])
    with pytest.raises(TypeError, match="float"):
        nv.switch(0, [one, 2.0])  # type: ignore[list-item]
    with pytest.raises(ShapeError, match=r"branch 0.*branch 2"):
        nv.switch(0, [one, one, two])
    with pytest.raises(TreeError, match="branch 1"):
        nv.switch(0, [one, lambda: (1.0,)])

    def f(i: Any, x: Any) -> Any:
        return nv.switch(i, [lambda x: nv.distributed.all_sum(x), lambda x: x], x)

    def run(_: Any) -> None:
        with pytest.raises(NuvecError, match="mapped"):
            nv.vmap(f)(nv.array([0, 1]), nv.ones(2))

    nv.distributed.run_local(run, 2)
