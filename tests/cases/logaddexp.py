"""Rows for logaddexp."""

import numpy as np

from nuvec.core.ops.logaddexp import logaddexp
from tests.cases.case import Case, sample

CASES = [
    Case("logaddexp", logaddexp, (sample(3, 4), sample(3, 4, seed=1)), np.logaddexp),
    Case("logaddexp", logaddexp, (sample(3, 4), sample(4, seed=1)), np.logaddexp, "broadcast"),
    Case("logaddexp", logaddexp, (sample(), sample(2, 1, seed=1)), np.logaddexp, "scalar"),
    Case("logaddexp", lambda x: logaddexp(x, 0.0), (sample(5, low=-90, high=90),),
         lambda x: np.logaddexp(x, np.float32(0)), "softplus"),
]  # fmt: skip
