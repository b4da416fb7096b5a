"""Joining, cutting, rearranging and padding against NumPy; their messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.errors import AxisError, DtypeError, ShapeError
from nuvec.core.functions import joining, structure
from nuvec.core.functions.padding import pad
from nuvec.core.ops.structure import concatenate, expand_dims, flip, pad_p, slice_p, squeeze
from nuvec.transforms.grad import grad
from nuvec.transforms.vmap import vmap

_x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
_v = np.arange(5, dtype=np.float32)


@pytest.mark.parametrize(("name", "args"), [
    ("moveaxis", (_x, 0, -1)), ("moveaxis", (_x, (0, 2), (2, 0))), ("moveaxis", (_x, [1], [0])),
    ("swapaxes", (_x, 0, -1)), ("ravel", (_x,)), ("roll", (_x, 2)), ("roll", (_x, -1, 1)),
    ("roll", (_x, (1, 2), (0, 2))), ("roll", (_x, 7, 2)), ("roll", (_x, 1, (0, 1))),
    ("roll", (np.zeros((0, 2)), 1, 0)), ("tile", (_v, 3)), ("tile", (_x, (2, 1))),
    ("tile", (_v, (2, 3))), ("tile", (_x, (2, 1, 1, 3))), ("tile", (_v, 0)),
    ("repeat", (_x, 2)), ("repeat", (_x, 3, 1)), ("repeat", (_v, [1, 0, 2, 3, 1])),
    ("repeat", (_x, np.array([2, 1]), 0)), ("repeat", (_x, 0, -1)), ("rot90", (_x,)),
    ("rot90", (_x, 2)), ("rot90", (_x, 3, (1, 2))), ("rot90", (_x, -3, (2, 0))),
    ("flipud", (_x,)), ("fliplr", (_x,)), ("atleast_1d", (3.0,)), ("atleast_2d", (_v,)),
    ("atleast_3d", (_v,)), ("atleast_3d", (_x[0],)), ("atleast_2d", (3.0,)),
    ("diagonal", (_x,)), ("diagonal", (_x, -1)), ("diagonal", (_x, 5)), ("diagonal", (_x, 1, 2, 0)),
    ("diagonal", (_x, -9, 1, 2)), ("matrix_transpose", (_x,)),
])  # fmt: skip
def test_as_numpy(name: str, args: Any) -> None:
    expected = getattr(np, name)(*args)
    got = np.asarray(getattr(structure, name)(*args))
    assert got.shape == np.shape(expected)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("name", "arrays"), [
    ("vstack", [_v, _v]), ("vstack", [_x, _x]), ("hstack", [_v, _v[:2]]), ("hstack", [_x, _x]),
    ("dstack", [_v, _v]), ("column_stack", [_v, _v]), ("column_stack", [_x[0], _v[:3]]),
])  # fmt: skip
def test_joins_as_numpy(name: str, arrays: Any) -> None:
    got = np.asarray(getattr(joining, name)(arrays))
    np.testing.assert_array_equal(got, getattr(np, name)(arrays))


def test_stack_and_unstack() -> None:
    for axis in (0, 1, -1, -4):
        got = joining.stack([_x, _x + 1], axis)
        np.testing.assert_array_equal(np.asarray(got), np.stack([_x, _x + 1], axis))
        parts = joining.unstack(got, axis)
        np.testing.assert_array_equal(np.asarray(parts[1]), _x + 1)
    assert joining.stack([1, 2.0]).dtype == np.float32
    np.testing.assert_array_equal(np.asarray(concatenate(nv.array(_x))), np.concatenate(_x))
    with pytest.raises(ShapeError, match=r"\(2, 3, 4\) and \(5,\); broadcast"):
        joining.stack([_x, _v])
    with pytest.raises(ShapeError, match="at least one array"):
        joining.stack([])


@pytest.mark.parametrize("cut", [2, [1, 3], [3, 1], [-1], [0, 9], np.array([2])])
def test_split_as_numpy(cut: Any) -> None:
    x = np.arange(12).reshape(6, 2)
    parts = joining.split(x, cut)
    expected = np.split(x, cut)
    assert len(parts) == len(expected)
    for a, b in zip(parts, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(a), b)


def test_unequal_split() -> None:
    for got, want in zip(joining.array_split(_v, 3), np.array_split(_v, 3), strict=True):
        np.testing.assert_array_equal(np.asarray(got), want)
    with pytest.raises(ShapeError, match=r"size 5, which does not divide into 3.*array_split"):
        joining.split(_v, 3)


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric", "wrap", "constant"])
@pytest.mark.parametrize("width", [1, (2, 0), ((1, 2), (0, 3), (4, 1)), ((9, 8), (0, 0), (7, 7))])
def test_pad_as_numpy(mode: Any, width: Any) -> None:
    got = np.asarray(pad(_x, width, mode=mode))
    np.testing.assert_array_equal(got, np.pad(_x, width, mode=mode))


def test_pad_with_constants() -> None:
    for values in (3, -0.0, (1, 2), ((1, 2), (3, 4), (5, 6))):
        got = np.asarray(pad(_x, 2, constant_values=values))
        expected = np.pad(_x, 2, constant_values=values)
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(expected))
    value = grad(lambda v: pad(nv.array(_v), 2, constant_values=v).sum())(1.5)
    assert float(value) == 4
    with pytest.raises(DtypeError):
        pad(np.array([1, 2]), 1, constant_values=0.5)


def test_pad_gradient_adds_up_mirror_images() -> None:
    got = grad(lambda x: pad(x, 2, mode="reflect").sum())(nv.array(_v[:4]))
    np.testing.assert_array_equal(np.asarray(got), [1, 3, 3, 1])


def test_pad_messages() -> None:
    with pytest.raises(ShapeError, match=r"does not fit an array of shape \(5,\)"):
        pad(_v, ((1, 2), (3, 4)))
    with pytest.raises(ShapeError, match="non-negative integers"):
        pad(_v, -1)
    with pytest.raises(ValueError, match="mode must be 'constant', 'edge'"):
        pad(_v, 1, mode="mean")
    with pytest.raises(ShapeError, match="is empty"):
        pad(np.zeros((0, 2)), 1, mode="edge")


def test_flip_squeeze_expand_dims() -> None:
    for axis in (None, 0, (0, -1), ()):
        np.testing.assert_array_equal(np.asarray(flip(_x, axis)), np.flip(_x, axis))
    y = _x[:, None, :, None]
    for axis in (None, 1, -2, (1, 3), ()):
        assert squeeze(y, axis).shape == np.squeeze(y, axis).shape
    for axis in (0, -1, (0, 2), (-1, 0), ()):
        assert expand_dims(_x, axis).shape == np.expand_dims(_x, axis).shape
    with pytest.raises(ShapeError, match=r"axis 0 of an array of shape .+ has size 2"):
        squeeze(y, 0)
    with pytest.raises(AxisError):
        expand_dims(_x, 5)


def test_concatenate_messages() -> None:
    with pytest.raises(ShapeError, match=r"\(2, 3, 4\) and \(5,\) must have the same"):
        concatenate([_x, _v])
    with pytest.raises(ShapeError, match=r"nv\.stack"):
        concatenate([nv.array(1.0), nv.array(2.0)])
    with pytest.raises(ShapeError, match="at least one"):
        concatenate([])
    with pytest.raises(AxisError, match="axis 1 is out of bounds"):
        concatenate([_v, _v], axis=1)


def test_other_messages() -> None:
    with pytest.raises(AxisError, match="names an axis twice"):
        structure.moveaxis(_x, (0, 0), (1, 2))
    with pytest.raises(AxisError, match="must name as many"):
        structure.moveaxis(_x, (0, 1), 2)
    with pytest.raises(ShapeError, match="there are repeats of shape"):
        structure.repeat(_v, [1, 2])
    with pytest.raises(ShapeError, match="non-negative integers"):
        structure.repeat(_v, -1)
    with pytest.raises(ShapeError, match="must not be negative"):
        structure.tile(_v, -1)
    with pytest.raises(AxisError, match="must differ"):
        structure.rot90(_x, 1, (0, 0))
    with pytest.raises(AxisError, match="must differ"):
        structure.diagonal(_x, 0, 1, 1)


def test_slice_and_pad_are_transposes() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        n = int(rng.integers(0, 8))
        bounds = [None if rng.random() < 0.2 else int(b) for b in rng.integers(-9, 10, 2)]
        start, stop, step = slice(*bounds, int(rng.choice([-3, -2, -1, 1, 2, 3]))).indices(n)
        x = rng.standard_normal(n)
        params = {"start": (start,), "stop": (stop,), "step": (step,)}
        got = np.asarray(slice_p.bind(nv.array(x), **params))
        np.testing.assert_array_equal(got, x[list(range(start, stop, step))])
        c = rng.standard_normal(got.shape)
        back = grad(lambda x, c=c, p=params: (slice_p.bind(x, **p) * c).sum())(nv.array(x))
        expected = np.zeros(n)
        expected[list(range(start, stop, step))] = c
        np.testing.assert_array_equal(np.asarray(back), expected)


def test_lowerings_write_into_a_buffer() -> None:
    x = np.float32([1, 2])
    out = np.full(7, 9, np.float32)
    assert pad_p.lower(x, low=(1,), high=(3,), interior=(1,), out=out) is out
    np.testing.assert_array_equal(out, [0, 1, 0, 2, 0, 0, 0])


def test_composites_under_vmap() -> None:
    y = np.arange(12, dtype=np.float32).reshape(3, 4)
    for f, reference in (
        (lambda r: structure.roll(r, 1), lambda r: np.roll(r, 1)),
        (lambda r: structure.tile(r, 2), lambda r: np.tile(r, 2)),
        (lambda r: structure.repeat(r, 2), lambda r: np.repeat(r, 2)),
        (lambda r: pad(r, 3, mode="wrap"), lambda r: np.pad(r, 3, mode="wrap")),
        (lambda r: joining.stack([r, r * 2], 1), lambda r: np.stack([r, r * 2], 1)),
        (lambda r: joining.split(r, 2)[1], lambda r: np.split(r, 2)[1]),
    ):
        expected = np.stack([reference(r) for r in y])
        np.testing.assert_array_equal(np.asarray(vmap(f)(y)), expected)
