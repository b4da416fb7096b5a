"""Rows for where, maximum, minimum, clip."""

from __future__ import annotations

import numpy as np

from nuvec.core.ops import selection as se
from tests.cases.case import Case, integers, sample

_mask = integers(2, 3, low=0, high=2).astype(bool)


def _where(c, x, y, label, **options):
    return Case("where", lambda c, x, y: se.where(c, x, y), (c, x, y), np.where, label, **options)


def _extreme(name):
    operation, reference = getattr(se, name), getattr(np, name)

    def function(x, y):
        return operation(x, y)

    def row(x, y, label, **options):
        return Case(name, function, (x, y), reference, label, **options)

    nan = np.float32([1, np.nan, 3])
    return [
        row(sample(2, 3), sample(2, 3, low=-1.9, seed=1), "same"),
        row(sample(2, 1), sample(4, 1, 3, seed=1), "broadcast"),
        row(sample(), sample(low=0.5), "scalars"),
        row(sample(2, 3), sample(low=0.01, high=0.6), "scalar"),
        row(sample(0, 3), sample(1), "empty"),
        row(sample(4, 3).T, sample(6, 8, seed=1)[::2, ::2], "strided"),
        row(integers(2, 3), integers(2, 3, seed=1), "integers", differentiable=False),
        row(nan, nan[::-1], "nan", differentiable=False),
    ]


CASES = [
    _where(_mask, sample(2, 3), sample(2, 3, seed=1), "same"),
    _where(_mask, sample(2, 1), sample(4, 1, 3, seed=1), "broadcast"),
    _where(_mask[:, 0], sample(2, 2), sample(2, 1), "condition-broadcast"),
    _where(_mask[0, 0], sample(), sample(low=0.5), "scalars"),
    _where(_mask, sample(), sample(2, 3), "scalar-branch"),
    _where(_mask[:0], sample(0, 3), sample(3), "empty"),
    _where(np.eye(3, dtype=bool).T, sample(3, 3).T, sample(6, 6)[::2, ::2], "strided"),
    _where(_mask, integers(2, 3), integers(2, 3, seed=1), "integers", differentiable=False),
    _where(_mask, sample(2, 3).astype(np.complex64), 1j * np.ones(3, np.complex64), "complex"),
    Case("where", lambda c, x: se.where(c, x, 0), (_mask, sample(2, 3)),
         lambda c, x: np.where(c, x, np.float32(0)), "literal-branch"),
    *_extreme("maximum"),
    *_extreme("minimum"),
    Case("maximum", lambda x: se.maximum(x, 0), (sample(4, low=-1.9),), lambda x: np.maximum(x, 0),
         "python-scalar"),
    Case(None, lambda x: se.clip(x, -1, 1), (sample(5),), lambda x: np.clip(x, -1, 1), "clip"),
    Case("maximum", lambda x: se.clip(x, min=-1), (sample(5),), lambda x: np.maximum(x, -1),
         "clip-below"),
    Case("minimum", lambda x: se.clip(x, max=1), (sample(5),), lambda x: np.minimum(x, 1),
         "clip-above"),
    Case(None, lambda x, lo, hi: se.clip(x, lo, hi),
         (sample(2, 3), sample(3, high=0), np.float32(1)), np.clip, "clip-arrays"),
]  # fmt: skip
