"""vmap: in_axes and out_axes, trees, names, sizes, and what a mapped value cannot do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.array import from_numpy
from nuvec.core.errors import (
    AxisError,
    ConcretizationError,
    LeakedTracerError,
    ShapeError,
    TreeError,
)
from nuvec.core.node import context
from nuvec.transforms.vmap import vmap

X = np.arange(24.0).reshape(2, 3, 4)


def test_in_axes_and_out_axes() -> None:
    x = from_numpy(X)
    for axis in (0, 1, 2, -1, -3):
        found = vmap(lambda v: nv.sum(v, axis=0), in_axes=axis)(x)
        expected = np.stack([s.sum(0) for s in np.moveaxis(X, axis, 0)])
        np.testing.assert_array_equal(found, expected)
        turned = vmap(lambda v: v * 2, in_axes=axis, out_axes=-1)(x)
        np.testing.assert_array_equal(turned, np.moveaxis(X, axis, -1) * 2)


def test_trees_prefixes_and_names() -> None:
    p = {"w": nv.ones((5, 2)), "b": nv.ones(2)}

    def f(p: Any, x: Any, k: Any = 1.0) -> Any:
        return p["w"] + p["b"] * x * k, {"x": x}

    out, aux = vmap(f, in_axes=({"w": 0, "b": None}, None))(p, 3.0)
    assert out.shape == (5, 2) and aux["x"].shape == (5,)
    out, aux = vmap(f, in_axes={"p": {"w": 0, "b": None}, "k": 0}, out_axes=(1, None))(
        p, 3.0, k=nv.ones(5)
    )
    assert out.shape == (2, 5) and aux["x"].item() == 3
    with pytest.raises(TreeError, match="in_axes names"):
        vmap(f, in_axes={"q": 0})(p, 3.0)
    with pytest.raises(TreeError, match="in_axes has 1 entries for 2"):
        vmap(f, in_axes=(0,))(p, 3.0)


def test_sizes_that_differ_are_listed() -> None:
    with pytest.raises(ValueError, match=r"(?s)'x': axis 0, size 2.*'y': axis 1, size 3"):
        vmap(lambda x, y: x, in_axes=(0, 1))(nv.ones((2, 3)), nv.ones((2, 3)))
    with pytest.raises(ShapeError, match="nothing is mapped"):
        vmap(lambda x: x, in_axes=None)(nv.ones(2))
    with pytest.raises(AxisError, match="axis 1"):
        vmap(lambda x: x, in_axes=1)(nv.ones(2))
    with pytest.raises(ShapeError, match="out_axes is None"):
        vmap(lambda x: x, out_axes=None)(nv.ones(2))


def test_an_empty_batch() -> None:
    assert vmap(lambda x: nv.sum(x))(nv.ones((0, 3))).shape == (0,)


def test_a_mapped_value_has_no_value() -> None:
    def branch(x: Any) -> Any:
        if x > 0:
            return x
        return -x

    with pytest.raises(ConcretizationError) as caught:
        vmap(branch)(nv.ones(3))
    text = str(caught.value)
    assert "argument 'x' of branch" in text
    assert "test_vmap.py" in text
    assert "nv.where" in text and "nv.cond" in text
    assert context.traces == ()
    for force in (float, int, bool, np.asarray, lambda x: x.item(), lambda x: x.tolist()):
        with pytest.raises((ConcretizationError, TypeError)):
            vmap(lambda x, force=force: force(x) * x)(nv.ones(3))


def test_values_that_are_not_mapped_stay_real() -> None:
    def f(x: Any, y: Any) -> Any:
        return x * 2 if y > 0 else x

    assert vmap(f, in_axes=(0, None))(nv.ones(2), nv.array(1.0)).tolist() == [2, 2]


def test_a_leaked_mapped_value() -> None:
    kept: list[Any] = []
    vmap(lambda x: kept.append(x * 2) or x)(nv.ones(2))
    with pytest.raises(LeakedTracerError, match="return it"):
        kept[0].tolist()
    with pytest.raises(LeakedTracerError):
        nv.eval(kept[0] + 1)


def test_draws_differ_between_elements_and_calls() -> None:
    f = vmap(lambda x: x + nv.random.uniform())
    first, second = f(nv.zeros(4)).tolist(), f(nv.zeros(4)).tolist()
    assert len(set(first + second)) == 8
    nested = vmap(vmap(lambda x: x + nv.random.uniform()))(nv.zeros((3, 4)))
    assert len(set(np.asarray(nested).ravel().tolist())) == 12


def test_a_batch_of_keys_is_exactly_a_loop() -> None:
    keys = nv.random.split(nv.random.key(0), 5)
    batched = vmap(lambda k: nv.random.normal(k, (3,)))(keys)
    loop = np.stack([np.asarray(nv.random.normal(keys[i], (3,))) for i in range(5)])
    np.testing.assert_array_equal(batched, loop)


def test_assignment_inside_is_local_and_batched() -> None:
    x = nv.array([[1.0, 2.0], [3.0, 4.0]])

    def f(row: Any) -> Any:
        row[0] = row[1] * 10
        row += 1
        return row

    assert vmap(f)(x).tolist() == [[21, 3], [41, 5]]
    assert x.tolist() == [[1, 2], [3, 4]]


def test_triple_nesting_is_an_outer_product() -> None:
    a, b, c = nv.arange(2.0), nv.arange(3.0), nv.arange(4.0)
    f = vmap(lambda a, b, c: a * b + c, (None, None, 0))
    f = vmap(vmap(f, (None, 0, None)), (0, None, None))
    expected = np.arange(2.0)[:, None, None] * np.arange(3.0)[:, None] + np.arange(4.0)
    np.testing.assert_array_equal(f(a, b, c), expected)
