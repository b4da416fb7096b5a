"""Rows for fold_sum."""

from __future__ import annotations

import numpy as np

from nuvec.core.ops.fold import fold_sum_p
from tests.cases.case import Case, integers, sample


def _fold(x: np.ndarray) -> np.ndarray:
    total = np.zeros(x.shape[1:], x.dtype)
    for row in x:
        total = total + row
    return total


CASES = [
    Case("fold_sum", fold_sum_p.bind, (x,), _fold, label, differentiable=x.dtype.kind == "f")
    for label, x in {
        "matrix": sample(4, 3), "vector": sample(5), "cube": sample(3, 2, 2), "one": sample(1, 3),
        "long": sample(40, 2), "long rows": sample(12, 600), "nothing": sample(0, 3),
        "empty rows": sample(3, 0), "turned": sample(3, 5).T, "integers": integers(3, 4),
    }.items()
]  # fmt: skip
