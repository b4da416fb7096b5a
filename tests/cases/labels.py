"""Rows for class_index."""

from __future__ import annotations

import numpy as np

from nuvec.nn.labels import class_index
from tests.cases.case import Case, integers

_LABELS = {
    "int32": integers(2, 3, low=0, high=4),
    "int8": integers(5, low=0, high=4).astype(np.int8),
    "uint64": integers(5, low=0, high=4).astype(np.uint64),
    "scalar": integers(low=0, high=4)[()],
    "empty": integers(0, 3),
    "strided": integers(6, 4, low=0, high=4).T[::2],
}

CASES = [
    Case("class_index", lambda x: class_index(x, 4), (labels,), lambda x: x.astype(np.int64),
         label, differentiable=False)
    for label, labels in _LABELS.items()
]  # fmt: skip
