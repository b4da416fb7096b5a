"""cond: one branch runs, both are recorded; under vmap each element selects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.array import from_numpy
from nuvec.core.errors import DtypeError, OutOfBoundsError, ShapeError, TreeError
from nuvec.testing import check_compile, check_grads, check_vmap
from nuvec.transforms.compile import compile
from nuvec.transforms.cond import cond
from nuvec.transforms.grad import grad
from nuvec.transforms.vmap import vmap


def f(x: Any, y: Any) -> Any:
    return cond(
        nv.sum(x) > 0, lambda x, y: {"a": nv.sin(x) * y, "n": 1.0},
        lambda x, y: {"a": x * nv.exp(y), "n": 2.0}, x, y,
    )  # fmt: skip


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_rules(sign: float) -> None:
    x, y = sign * np.array([0.3, 0.8]), np.float64(0.5)
    check_grads(f, (x, y), order=3)
    check_compile(f, (x, y))
    check_compile(lambda x, y: grad(lambda x: nv.sum(f(x, y)["a"]))(x), (x, y))


def test_vmap_with_and_without_a_mapped_predicate() -> None:
    check_vmap(f, (np.array([0.3, -0.8]), np.float64(0.5)))
    batch = from_numpy(np.array([[0.3, 0.8], [-0.3, -0.8]]))
    found = vmap(f, in_axes=(0, None))(batch, 0.5)
    assert found["n"].tolist() == [1, 2]
    p = nv.array(True)
    out = vmap(lambda x: cond(p, lambda x: x * 2, lambda x: x, x))(nv.ones(3))
    assert out.tolist() == [2, 2, 2]


def test_gradient_under_vmap_with_a_mapped_predicate() -> None:
    """The branch that an element does not take gives it an exact zero, however wild."""

    def safe(x: Any) -> Any:
        return cond(x > 0, lambda x: nv.sqrt(x), lambda x: -x, x)

    x = from_numpy(np.array([4.0, -1.0, 9.0, 0.0]))
    outside = grad(lambda x: nv.sum(vmap(safe)(x)))
    for g in (vmap(grad(safe)), compile(vmap(grad(safe))), outside, compile(outside)):
        np.testing.assert_array_equal(g(x), [0.25, -1, 1 / 6, -1])


def test_only_one_branch_runs() -> None:
    x = nv.arange(3.0)
    index = nv.array(7)
    out = cond(nv.array(True), lambda x: x, lambda x: x[index] + x, x)
    assert out.tolist() == [0, 1, 2]
    with pytest.raises((OutOfBoundsError, IndexError)):
        cond(nv.array(False), lambda x: x, lambda x: x[index] + x, x).tolist()


def test_captures_of_either_branch_are_differentiated() -> None:
    def g(w: Any, v: Any, p: Any) -> Any:
        return cond(p, lambda x: x * w, lambda x: x * v * v, 3.0)

    for wrap in (lambda f: f, compile):
        found = wrap(grad(g, argnums=(0, 1)))(2.0, 5.0, nv.array(True))
        assert [a.item() for a in found] == [3, 0]
        found = wrap(grad(g, argnums=(0, 1)))(2.0, 5.0, nv.array(False))
        assert [a.item() for a in found] == [0, 30]


def test_an_output_with_a_derivative_in_one_branch_only() -> None:
    def g(x: Any) -> Any:
        return cond(x > 0, lambda x: x * x, lambda x: nv.array(1.0), x)

    assert grad(g)(nv.array(3.0)).item() == 6
    assert grad(g)(nv.array(-3.0)).item() == 0
    check_grads(lambda x: cond(x > 0, lambda x: x * x, lambda x: nv.zeros((), np.float64), x),
                (np.float64(3),), order=2)  # fmt: skip


def test_errors() -> None:
    with pytest.raises(ShapeError, match=r"predicate.*float32\[2\]|boolean scalar"):
        cond(nv.ones(2) > 0, lambda: 1.0, lambda: 2.0)
    with pytest.raises(DtypeError, match="boolean scalar"):
        cond(nv.array(1.0), lambda: 1.0, lambda: 2.0)
    with pytest.raises(TreeError, match="structure"):
        cond(True, lambda: (1.0,), lambda: 2.0)
    with pytest.raises(ShapeError, match=r"\(3,\).*\(2,\)"):
        cond(True, lambda: nv.ones(2), lambda: nv.ones(3))
    with pytest.raises(DtypeError, match="astype"):
        cond(True, lambda: nv.ones(2), lambda: nv.ones(2, dtype=np.int32))


def test_python_predicates_and_weak_scalars() -> None:
    assert cond(True, lambda x: x + 1, lambda x: x, 1.0).item() == 2
    out = cond(nv.array(False), lambda: 1, lambda: nv.ones((), dtype=np.float16))
    assert out.dtype == np.float16
