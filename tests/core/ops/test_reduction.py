"""What reductions refuse, and how they treat empty arrays and NaN."""

from __future__ import annotations

import numpy as np
import pytest

from nuvec.core.array import from_numpy
from nuvec.core.errors import AxisError, ShapeError
from nuvec.core.ops import reduction as re
from nuvec.core.ops import shape as sh
from nuvec.transforms.vmap import vmap


@pytest.mark.parametrize("op", [re.max, re.min, re.argmax, re.argmin])
def test_the_extreme_of_nothing_is_an_error_at_the_call(op):
    with pytest.raises(ShapeError, match=rf"{op.__name__}: an array of shape \(0,\)"):
        op(np.zeros(0))
    with pytest.raises(ValueError, match=r"\(2, 0\)"):
        op(np.zeros((2, 0)), axis=1)
    with pytest.raises(ShapeError):
        op(np.zeros((0, 3)))
    assert op(np.zeros((0, 3)), axis=1).shape == (0,)
    with pytest.raises(ShapeError):
        vmap(op)(np.zeros((3, 0)))


def test_sums_products_and_quantifiers_of_nothing():
    empty = from_numpy(np.zeros((2, 0), np.float32))
    assert np.asarray(sh.sum(empty, axis=1)).tolist() == [0, 0]
    assert np.asarray(re.prod(empty, axis=1)).tolist() == [1, 1]
    assert np.asarray(re.any(empty, axis=1)).tolist() == [False, False]
    assert np.asarray(re.all(empty, axis=1)).tolist() == [True, True]


@pytest.mark.parametrize("op", [sh.sum, re.prod, re.max, re.min, re.any, re.all])
def test_axes_are_checked(op):
    x = np.ones((2, 3), np.float32)
    with pytest.raises(AxisError, match=r"axis 2 is out of bounds"):
        op(x, axis=2)
    with pytest.raises(AxisError, match="twice"):
        op(x, axis=(1, -1))
    with pytest.raises(TypeError, match="integer"):
        op(x, axis=1.5)
    with pytest.raises(AxisError, match="0-d"):
        op(np.float32(1), axis=0)


def test_argmax_of_nan_points_at_the_first():
    x = np.float32([1, np.nan, 3, np.nan])
    assert (int(re.argmax(x)), int(re.argmin(x))) == (1, 1)


def test_argmax_keepdims_and_flattening():
    x = np.arange(6).reshape(2, 3)[:, ::-1]
    assert int(re.argmax(x)) == np.argmax(x)
    assert re.argmax(x, keepdims=True).shape == (1, 1)
    assert re.argmax(x, axis=1, keepdims=True).shape == (2, 1)
    assert re.argmin(np.float32(3)).shape == ()
    with pytest.raises(TypeError):
        re.argmax(x, axis=(0, 1))
