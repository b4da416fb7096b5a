"""associative_scan: prefixes in logarithmic depth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.errors import AxisError, DtypeError, ShapeError, TreeError
from nuvec.testing import check_collective, check_compile, check_grads, check_vmap

X = np.random.Generator(np.random.PCG64(0)).standard_normal((5, 3))


@pytest.mark.parametrize("size", range(10))
@pytest.mark.parametrize("reverse", [False, True])
def test_sums_of_every_size(size: int, reverse: bool) -> None:
    values = np.arange(1, size + 1)
    expected = np.cumsum(values[::-1])[::-1] if reverse else np.cumsum(values)
    found = nv.associative_scan(nv.add, nv.array(values), reverse=reverse)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_axes(axis: int) -> None:
    found = nv.associative_scan(nv.multiply, nv.asarray(X), axis=axis)
    np.testing.assert_allclose(found, np.cumprod(X, axis), rtol=1e-13)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_linear_recurrence_that_does_not_commute(reverse: bool) -> None:
    """h[t] = a[t] h[t-1] + b[t], as a prefix of affine maps."""

    def combine(left: Any, right: Any) -> Any:
        (a, b), (c, d) = left, right
        return a * c, c * b + d

    a, b = X[:, 0], X[:, 1]
    _, found = nv.associative_scan(combine, (nv.asarray(a), nv.asarray(b)), reverse=reverse)
    h, expected = 0.0, []
    for x, y in list(zip(a, b, strict=True))[:: -1 if reverse else 1]:
        h = x * h + y
        expected.append(h)
    np.testing.assert_allclose(found, expected[:: -1 if reverse else 1], rtol=1e-12)


def test_depth_is_logarithmic() -> None:
    calls: list[int] = []
    nv.associative_scan(lambda a, b: (calls.append(1), a + b)[1], nv.arange(1000))
    assert len(calls) <= 20


def test_rules() -> None:
    def f(x: Any) -> Any:
        return nv.associative_scan(lambda a, b: a * nv.cos(b) + b, x)

    check_grads(f, (X,), order=2)
    check_vmap(f, (X,))
    check_compile(f, (X,))


def test_communication() -> None:
    def program(group: Any, x: Any) -> Any:
        return nv.associative_scan(lambda a, b: a + nv.distributed.all_sum(b, group=group), x)

    check_collective(program, (np.ones((4, 2)),), sizes=(1, 2))


def test_errors() -> None:
    with pytest.raises(TypeError, match="function"):
        nv.associative_scan(nv.ones(3), nv.add)  # type: ignore[arg-type]
    with pytest.raises(TreeError, match="structure"):
        nv.associative_scan(lambda a, b: (a, b), nv.ones(3))
    with pytest.raises(ShapeError, match="keep shapes"):
        nv.associative_scan(lambda a, b: nv.sum(a), nv.ones(3))
    with pytest.raises(DtypeError, match="keep shapes and dtypes"):
        nv.associative_scan(lambda a, b: a > b, nv.ones(3))
    with pytest.raises(ShapeError, match="differ"):
        nv.associative_scan(lambda a, b: a, (nv.ones(3), nv.ones(4)))
    with pytest.raises(AxisError):
        nv.associative_scan(nv.add, nv.ones(3), axis=1)
    with pytest.raises(TreeError, match="no arrays"):
        nv.associative_scan(nv.add, ())
