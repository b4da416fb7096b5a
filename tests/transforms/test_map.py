"""map: a function applied to slices, one after the other or in batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.errors import ShapeError
from nuvec.testing import check_collective, check_compile, check_grads, check_vmap

XS = np.linspace(-1, 1, 14).reshape(7, 2)


def one(x: Any) -> Any:
    return {"s": nv.sum(nv.sin(x)), "x": x * x}


@pytest.mark.parametrize("batch_size", [None, 1, 2, 3, 7, 20])
def test_equals_vmap(batch_size: int | None) -> None:
    found = nv.map(one, XS, batch_size=batch_size)
    expected = nv.vmap(one)(nv.asarray(XS))
    for k in ("s", "x"):
        np.testing.assert_allclose(found[k], expected[k], rtol=1e-14)


@pytest.mark.parametrize("batch_size", [None, 3])
def test_rules(batch_size: int | None) -> None:
    def f(w: Any, xs: Any) -> Any:
        return nv.map(lambda x: one(x * w), xs, batch_size=batch_size)

    args = (np.float64(0.7), XS[:4])
    check_grads(f, args, order=2)
    check_vmap(f, args)
    check_compile(f, args)


def test_trees_and_zero_length() -> None:
    found = nv.map(lambda t: t["a"] + t["b"], {"a": nv.arange(3), "b": nv.ones(3)}, batch_size=2)
    assert found.tolist() == [1, 2, 3]
    for batch_size in (None, 2):
        assert nv.map(lambda x: x * 2, nv.zeros((0, 3)), batch_size=batch_size).shape == (0, 3)


def test_communication() -> None:
    def program(group: Any, xs: Any) -> Any:
        return nv.map(lambda x: nv.distributed.all_sum(nv.sin(x), group=group) * x, xs)

    check_collective(program, (np.ones((3, 2)),), sizes=(1, 2))


def test_errors() -> None:
    with pytest.raises(ShapeError, match="leading"):
        nv.map(lambda t: t[0], (nv.ones(2), nv.ones(3)))
    with pytest.raises(ShapeError, match="leading"):
        nv.map(lambda t: t[0], (nv.ones(2), nv.ones(3)), batch_size=2)
    with pytest.raises(ValueError, match="batch_size"):
        nv.map(lambda x: x, nv.ones(2), batch_size=0)
