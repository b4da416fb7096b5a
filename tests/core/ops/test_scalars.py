"""Python numbers that another operand's dtype cannot hold, or holds where their own cannot."""

from __future__ import annotations

import operator

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.errors import DtypeError

COMPARISONS = [
    operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
]  # fmt: skip
NUMBERS = [
    0, 1, -1, 127, 128, 255, 256, 2**31 - 1, 2**31, -(2**31) - 1, 2**40, 2**63, 2**64, -(2**64),
]  # fmt: skip
NAMES = {"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal",
         "ne": "not_equal"}  # fmt: skip


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64", "uint64"])
@pytest.mark.parametrize("compare", COMPARISONS)
def test_comparisons_with_any_int(compare, dtype):
    values = [0, 1] if dtype == "bool" else [0, 1, 100, 127]
    x = nv.array(values, dtype)
    for number in NUMBERS:
        expected = [compare(v, number) for v in values]
        turned = [compare(number, v) for v in values]
        assert compare(x, number).tolist() == expected
        assert compare(number, x).tolist() == turned
        assert nv.vmap(lambda v, n=number: compare(v, n))(x).tolist() == expected
        public = getattr(nv, NAMES[compare.__name__.strip("_")])
        assert public(number, x).tolist() == turned
    compiled = nv.compile(lambda x: [compare(x, n) for n in NUMBERS])(x)
    assert [c.tolist() for c in compiled] == [[compare(v, n) for v in values] for n in NUMBERS]
    assert 2**40 not in x


def test_clip_by_bounds_beyond_the_dtype():
    x = nv.array([1, 200], nv.uint8)
    assert nv.clip(x, -5, 300).tolist() == [1, 200]
    assert x.clip(min=-5, max=100).tolist() == [1, 100]
    assert x.clip(max=2**40).dtype == nv.uint8
    for bounds in ((300, None), (None, -1)):
        with pytest.raises(DtypeError, match="out of range for uint8"):
            nv.clip(x, *bounds)
    with pytest.raises(DtypeError, match=r"300 is out of range for uint8.*astype"):
        x + 300


def test_ints_wider_than_int32_go_straight_to_the_other_dtype():
    x = nv.array([1], nv.int64)
    assert (x + 2**40).tolist() == [2**40 + 1]
    assert nv.where(nv.array([True]), x, 2**40).tolist() == [1]
    assert float((nv.ones(1) * 2**40)[0]) == 2**40
    assert float((nv.ones(1, nv.float64) * (2**53 - 1))[0]) == 2**53 - 1
    assert np.isinf((nv.ones(1) * 10**400).item())
    assert nv.maximum(x, 2**40).dtype == nv.int64
    with pytest.raises(DtypeError, match="1099511627776 is out of range for int32"):
        nv.array([1]) + 2**40
    with pytest.raises(DtypeError, match="1099511627776 is out of range for int32"):
        nv.sum(2**40)
