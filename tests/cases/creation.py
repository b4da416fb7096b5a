"""Rows for creation functions that take Arrays."""

from __future__ import annotations

import numpy as np

from nuvec.core.functions import creation, filled, ranges
from tests.cases.case import Case, integers, sample


def _row(function, args, reference, label, **options):
    return Case(None, function, args, reference, label, **options)


CASES = [
    _row(lambda x, y: creation.array([x, [0.5, 1.5], y]), (sample(2), sample(2, seed=1)),
         lambda x, y: np.stack([x, np.float32([0.5, 1.5]), y]), "array-of-a-list"),
    _row(lambda x: creation.array([[x, x], [1, x]]), (sample(),),
         lambda x: np.stack([[x, x], [np.float32(1), x]]), "array-of-nested-lists"),
    _row(lambda x: filled.full((2, 3), x), (sample(3),), lambda x: np.broadcast_to(x, (2, 3)),
         "full"),
    _row(creation.copy, (sample(2, 3).T,), lambda x: x, "copy"),
    _row(lambda x: creation.astype(x, np.float32), (integers(3),), lambda x: x.astype(np.float32),
         "astype", differentiable=False),
    _row(filled.zeros_like, (sample(2),), np.zeros_like, "zeros_like", differentiable=False),
    _row(lambda a, b: ranges.linspace(a, b, 4), (sample(2), sample(3, 1, seed=1)),
         lambda a, b: np.linspace(a, b, 4, dtype=np.float32), "linspace"),
    _row(lambda a: ranges.linspace(a, 1.0, 3, endpoint=False, axis=-1), (sample(2),),
         lambda a: np.linspace(a, np.float32(1), 3, False, dtype=np.float32, axis=-1),
         "linspace-open"),
    _row(ranges.tril, (sample(3, 4),), np.tril, "tril"),
    _row(lambda x: ranges.tril(x, -1), (sample(2, 3, 3),), lambda x: np.tril(x, -1), "tril-batch"),
    _row(lambda x: ranges.triu(x, 1), (sample(4, 3).T,), lambda x: np.triu(x, 1), "triu"),
    _row(ranges.triu, (sample(0, 3),), np.triu, "triu-empty"),
    _row(lambda x, y: ranges.meshgrid(x, y), (sample(3), sample(2)), np.meshgrid, "meshgrid"),
    _row(lambda x, y: ranges.meshgrid(x, y, indexing="ij", sparse=True), (sample(3), sample(2)),
         lambda x, y: np.meshgrid(x, y, indexing="ij", sparse=True), "meshgrid-sparse"),
]  # fmt: skip
