"""vmap's arguments: trees of axes, names, keywords, axis_size, and errors that name the place."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.errors import AxisError, ShapeError, TreeError
from nuvec.transforms.vmap import vmap

X = np.arange(24.0).reshape(2, 3, 4)


class Pair(NamedTuple):
    left: Any
    right: Any


def test_trees_of_axes() -> None:
    def f(p: Any, q: Any) -> Any:
        return {"s": p["a"][0] + p["a"][1] + q.left, "t": [q.right, q.left * 2]}

    p = {"a": [nv.ones((3, 2)), nv.ones((2, 3))]}
    q = Pair(nv.arange(3.0), nv.zeros(5))
    out = vmap(f, in_axes=({"a": [0, -1]}, Pair(0, None)), out_axes={"s": 1, "t": [None, 0]})(p, q)
    assert out["s"].tolist() == [[2, 3, 4]] * 2
    assert out["t"][0].shape == (5,) and out["t"][1].tolist() == [0, 2, 4]
    half = vmap(f, in_axes=({"a": [0, 1]}, Pair(0, None)), out_axes={"s": -1, "t": 0})(p, q)
    assert half["t"][0].shape == (3, 5)


def test_none_in_trees_and_none_arguments() -> None:
    f = lambda x, y, z: (x * 2, y, None if z is None else z + x)  # noqa: E731
    out = vmap(f, in_axes=(0, None, None))(nv.arange(3.0), "text is passed as it is" and 1.0, None)
    assert out[0].tolist() == [0, 2, 4] and out[1].tolist() == [1, 1, 1] and out[2] is None
    assert vmap(lambda x: {"a": None, "b": x}, out_axes={"a": None, "b": 0})(nv.ones(2))["b"].shape
    passed = vmap(lambda x, how: x * 2 if how == "double" else x, in_axes=(0, None))
    assert passed(nv.ones(2), "double").tolist() == [2, 2]


def test_negative_axes() -> None:
    for axis in (-1, -2, -3):
        for target in (-1, -2, 0, 1):
            found = vmap(lambda v: v * 2, in_axes=axis, out_axes=target)(X)
            np.testing.assert_array_equal(found, np.moveaxis(X, axis, target) * 2)


def test_numpy_integers_are_axes() -> None:
    found = vmap(lambda v: v, in_axes=(np.int64(1),), out_axes=np.int32(0))(X)
    np.testing.assert_array_equal(found, np.moveaxis(X, 1, 0))


def test_keyword_arguments() -> None:
    def f(x: Any, y: Any = 1.0, *, scale: Any = 1.0) -> Any:
        return (x + y) * scale

    a, b = nv.arange(3.0), nv.ones((3,))
    assert vmap(f)(a, y=b).tolist() == [1, 2, 3]
    assert vmap(f, in_axes=(0,))(a, y=b).tolist() == [1, 2, 3]  # keywords: axis 0
    assert vmap(f, in_axes=(0, None))(a, y=2.0).tolist() == [2, 3, 4]
    assert vmap(f)(y=b, x=a).tolist() == [1, 2, 3]
    assert vmap(f, in_axes={"x": 0})(a, scale=3.0).tolist() == [3, 6, 9]
    assert vmap(f, in_axes={"scale": 0, "y": 0})(1.0, scale=a, y=b).tolist() == [0, 2, 4]

    def keyed(**kw: Any) -> Any:
        return kw["b"] - kw["a"]["c"]

    assert vmap(keyed, in_axes={"a": {"c": 0}})(b=1.0, a={"c": a}).tolist() == [1, 0, -1]
    assert vmap(lambda *xs: sum(xs), in_axes=(0, None, 0))(a, 1.0, b).tolist() == [2, 3, 4]


def test_axis_size() -> None:
    assert vmap(lambda: nv.ones(2), axis_size=3)().shape == (3, 2)
    assert vmap(lambda x: x, in_axes=None, axis_size=3)(nv.ones(2)).shape == (3, 2)
    assert vmap(lambda x: x, axis_size=2)(nv.ones(2)).shape == (2,)
    assert len(set(vmap(lambda: nv.random.uniform(), axis_size=5)().tolist())) == 5
    with pytest.raises(ShapeError, match=r"'x': axis 0, size 2; axis_size: 3"):
        vmap(lambda x: x, axis_size=3)(nv.ones(2))
    with pytest.raises(ShapeError, match="negative"):
        vmap(lambda: 0, axis_size=-1)()
    with pytest.raises(TypeError, match="axis_size must be an integer"):
        vmap(lambda: 0, axis_size=1.5)()  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="axis_size="):
        vmap(lambda x: x, in_axes=None)(nv.ones(2))


def test_as_a_decorator() -> None:
    @partial(vmap, in_axes=(0, None))
    def f(x: Any, y: Any) -> Any:
        """Doc."""
        return x * y

    assert f.__doc__ == "Doc." and f(nv.ones(2), 3.0).tolist() == [3, 3]


def test_methods_and_callables() -> None:
    class Model:
        scale = 2.0

        def __call__(self, x: Any) -> Any:
            return x * self.scale

        def apply(self, x: Any, y: Any) -> Any:
            return x * self.scale + y

    assert vmap(Model())(nv.ones(2)).tolist() == [2, 2]
    assert vmap(Model().apply, in_axes={"x": 0})(nv.ones(2), 1.0).tolist() == [3, 3]
    assert vmap(nv.sin)(nv.zeros(2)).tolist() == [0, 0]


ERRORS = [
    ({"in_axes": ({"w": 0, "v": 0},)}, ({"w": X},), TreeError, r"in_axes for argument 'p' .*'v'"),
    ({"in_axes": ([0, 0],)}, ({"w": X},), TreeError, r"in_axes for argument 'p' does not fit"),
    ({"in_axes": ({"w": 1.5},)}, ({"w": X},), TypeError, r"argument 'p' must be an integer or"),
    ({"in_axes": (True,)}, ({"w": X},), TypeError, "must be an integer or None, got True"),
    ({"in_axes": ({"w": 3},)}, ({"w": X},), AxisError, r"argument 'p'\['w'\].*axis 3"),
    ({}, ({"w": 1.0},), AxisError, r"argument 'p'\['w'\].*0-d"),
    ({}, ({"w": "text"},), TypeError, r"argument 'p'\['w'\]"),
    ({"in_axes": (0, 0, 0)}, ({"w": X},), TreeError, r"in_axes has 3 entries for 1"),
    ({"in_axes": {"q": 0}}, ({"w": X},), TreeError, r"names 'q', and the arguments are \['p'\]"),
    ({}, ({"w": X, "v": X[0]},), ShapeError, r"'v'\]: axis 0, size 3; .*'w'\]: axis 0, size 2"),
    ({"out_axes": 5}, ({"w": X},), AxisError, r"out_axes for output\['w'\].*axis 5"),
    ({"out_axes": {"w": None}}, ({"w": X},), ShapeError, r"None for output\['w'\]"),
    ({"out_axes": (0, 0)}, ({"w": X},), TreeError, "out_axes does not fit"),
    ({"out_axes": {"w": "a"}}, ({"w": X},), TypeError, "out_axes must be an integer"),
]


@pytest.mark.parametrize(("options", "args", "error", "text"), ERRORS)
def test_errors_name_the_place(options: Any, args: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=f"(?s){text}") as caught:
        vmap(lambda p: p, **options)(*args)
    assert "vmap of" in str(caught.value)


def test_axis_name_must_be_hashable() -> None:
    with pytest.raises(TypeError, match="axis_name must be hashable"):
        vmap(lambda x: x, axis_name=[])  # type: ignore[arg-type]


def test_not_a_function() -> None:
    with pytest.raises(TypeError, match="vmap takes a function, got Array"):
        vmap(nv.ones(2))  # type: ignore[arg-type]
