"""Rows for rounding."""

from __future__ import annotations

import numpy as np

from nuvec.core.ops import rounding as ro
from tests.cases.case import Case, integers, sample


def _rows(name, **params):
    operation, reference = getattr(ro, name), getattr(np, name)
    label = "".join(f"-{k}{v}" for k, v in params.items())

    def row(x, kind, **options):
        return Case(name, lambda x: operation(x, **params), (x,),
                    lambda x: reference(x, **params), kind + label, **options)  # fmt: skip

    return [
        row(sample(2, 3), "matrix"),
        row(sample(low=0.2), "scalar"),
        row(sample(0, 2), "empty"),
        row(sample(4, 6, low=-1.9).T[::2], "strided"),
        row(np.float32([-0.5, 0.5, 1.5, -1.5, 2.5, np.inf, np.nan]), "halves",
            differentiable=False),
    ]  # fmt: skip


CASES = [
    *_rows("floor"),
    *_rows("ceil"),
    *_rows("trunc"),
    *_rows("round"),
    *_rows("round", decimals=1),
    Case("round", lambda x: ro.round(x, -1), (integers(5, low=-99, high=100),),
         lambda x: np.round(x, -1), "integers", differentiable=False),
]  # fmt: skip
