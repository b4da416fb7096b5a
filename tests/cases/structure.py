"""Rows for joining, cutting and padding."""

from __future__ import annotations

from typing import Any

import numpy as np

from nuvec.core.functions.padding import pad
from nuvec.core.functions.structure import diagonal
from nuvec.core.ops.structure import concatenate, flip, pad_p, slice_p
from tests.cases.case import Case, integers, sample

_cube = sample(2, 3, 4)
_line = sample(7)


def _slice(x: np.ndarray, label: str, *index: slice, differentiable: bool = True) -> Case:
    bounds = [s.indices(n) for s, n in zip(index, x.shape, strict=True)]
    start, stop, step = (tuple(b[k] for b in bounds) for k in range(3))
    return Case(
        "slice", lambda x: slice_p.bind(x, start=start, stop=stop, step=step), (x,),
        lambda x: x[index], label, differentiable=differentiable,
    )  # fmt: skip


def _pad(x: np.ndarray, label: str, low: Any, high: Any, interior: Any, expected: Any) -> Case:
    return Case(
        "pad", lambda x: pad_p.bind(x, low=low, high=high, interior=interior), (x,), expected,
        label, differentiable=x.dtype.kind == "f",
    )  # fmt: skip


def _dilated(x: np.ndarray) -> np.ndarray:
    out = np.zeros((1 + 2 * x.shape[0] - 1, 3 * x.shape[1] + 1), x.dtype)
    out[1::2, : 3 * x.shape[1] : 3] = x
    return out


CASES = [
    Case("concatenate", lambda x, y: concatenate([x, y]), (sample(2, 3), sample(1, 3)),
         lambda x, y: np.concatenate([x, y]), "two"),
    Case("concatenate", lambda x, y, z: concatenate([x, y, z], axis=1),
         (sample(2, 3, 2), sample(2, 1, 2), sample(2, 2, 2, seed=1)),
         lambda x, y, z: np.concatenate([x, y, z], axis=1), "three"),
    Case("concatenate", lambda x: concatenate([x, x, x], axis=-1), (sample(2, 3),),
         lambda x: np.concatenate([x, x, x], axis=-1), "the-same-thrice"),
    Case("concatenate", lambda x, y: concatenate([x, y], axis=None), (sample(2, 3), sample(2)),
         lambda x, y: np.concatenate([x, y], axis=None), "flattened"),
    Case("concatenate", lambda x, y: concatenate([x, y], axis=1), (sample(2, 0), sample(2, 3)),
         lambda x, y: np.concatenate([x, y], axis=1), "zero-size-axis"),
    Case("concatenate", lambda x, y: concatenate([x, y]), (sample(0, 3), sample(0, 3)),
         lambda x, y: np.concatenate([x, y]), "empty"),
    Case("concatenate", lambda x, y: concatenate([x, y], axis=1),
         (sample(4, 6)[::2].T, sample(2, 6).T),
         lambda x, y: np.concatenate([x, y], axis=1), "strided"),
    Case("concatenate", lambda x, y: concatenate([x, y]), (integers(3), sample(2)),
         lambda x, y: np.concatenate([x.astype("f4"), y]), "promoted"),
    Case("concatenate", lambda x, y: concatenate([x, y]), (integers(3), integers(2)),
         lambda x, y: np.concatenate([x, y]), "integers", differentiable=False),
    _slice(_cube, "middle", slice(0, 2), slice(1, 3), slice(1, 3)),
    _slice(_line, "step", slice(1, 6, 2)),
    _slice(_line, "step-with-remainder", slice(0, 7, 3)),
    _slice(_line, "negative-step", slice(5, 1, -1)),
    _slice(_line, "negative-step-to-the-front", slice(None, None, -2)),
    _slice(_line, "negative-step-one-item", slice(3, 2, -1)),
    _slice(_cube, "steps", slice(None, None, -1), slice(0, 3, 2), slice(3, 0, -2)),
    _slice(_line, "empty", slice(3, 3)),
    _slice(_line, "empty-backward", slice(1, 5, -1)),
    _slice(sample(0, 3), "of-empty", slice(None), slice(1, 3)),
    _slice(sample(6, 5).T[::2], "strided", slice(1, 3), slice(0, 6, 4)),
    _slice(integers(6), "integers", slice(4, None, -3), differentiable=False),
    _slice(integers(6) > 0, "booleans", slice(1, 4), differentiable=False),
    Case("slice", lambda x: flip(x, (0, 2)), (_cube,), lambda x: np.flip(x, (0, 2)), "flip"),
    Case("slice", lambda x: diagonal(x, 1, 0, 2), (_cube,), lambda x: np.diagonal(x, 1, 0, 2),
         "diagonal"),
    Case("slice", lambda x: diagonal(x, -2), (sample(4, 3),), lambda x: np.diagonal(x, -2),
         "diagonal-below"),
    Case("pad", lambda x: pad(x, ((1, 2), (0, 3))), (sample(2, 3),),
         lambda x: np.pad(x, ((1, 2), (0, 3))), "around"),
    Case("pad", lambda x: pad(x, 1), (_cube,), lambda x: np.pad(x, 1), "everywhere"),
    _pad(sample(3, 2), "interior", (1, 0), (0, 3), (1, 2),
         lambda x: np.pad(_dilated(x), ((0, 0), (0, 0)))),
    _pad(sample(1), "interior-of-one", (2,), (1,), (5,), lambda x: np.pad(x, (2, 1))),
    _pad(sample(0, 2), "empty", (1, 0), (2, 1), (3, 0), lambda x: np.zeros((3, 3), x.dtype)),
    _pad(sample(4, 3).T[::2], "strided", (1, 0), (0, 1), (0, 0),
         lambda x: np.pad(x, ((1, 0), (0, 1)))),
    _pad(sample(), "scalar", (), (), (), lambda x: x),
    _pad(integers(3), "integers", (1,), (1,), (0,), lambda x: np.pad(x, 1)),
    _pad(integers(3) > 0, "booleans", (1,), (1,), (1,),
         lambda x: np.array([0, x[0], 0, x[1], 0, x[2], 0], bool)),
]  # fmt: skip
