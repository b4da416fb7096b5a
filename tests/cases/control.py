"""Rows for what control flow adds to the table beside its calls: finished."""

from __future__ import annotations

import numpy as np

from nuvec.transforms.while_rules import finished_p
from tests.cases.case import Case, integers, sample

CASES = [
    Case("finished", lambda x, going: finished_p.bind(x, going, steps=3), (x, going),
         lambda x, going: x, label, differentiable=x.dtype.kind == "f")
    for x, going, label in (
        (sample(2, 3), np.array(False), "matrix"),
        (sample(), np.array(False), "scalar"),
        (sample(0, 2), np.array(False), "empty"),
        (sample(3, 2).T, np.array([False, False]), "transposed"),
        (integers(3), np.array(False), "integers"),
    )
]  # fmt: skip
