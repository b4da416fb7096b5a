"""Rows for functions composed of several primitives: statistics, softmax, norms, draws."""

from __future__ import annotations

import math

import numpy as np

from nuvec.core.functions import choices, distributions, exponentials, norm, statistics
from tests.cases.case import Case, integers, sample

_INF = np.array([[-np.inf, -np.inf], [0.5, -np.inf], [1.0, 2.0]], np.float32)
_KEY = np.array([3, 5], np.uint64)


def _row(function, args, reference, label, **options):
    return Case(None, function, args, reference, label, **options)


def _reduced(name, **keywords):
    """Rows of a reduction that NumPy has under the same name."""
    ours, numpys = getattr(statistics, name), getattr(np, name)
    rows = [
        (sample(2, 3), {}, "all"),
        (sample(2, 3, 4), {"axis": -1}, "last"),
        (sample(2, 3, 4), {"axis": (0, 2), "keepdims": True}, "keepdims"),
        (sample(4, 6).T[::2], {"axis": 0}, "strided"),
        (sample(1, 3), {"axis": 1}, "row"),
        (integers(3, 4), {"axis": 0}, "integers"),
        (sample(3, 4).astype(np.float16), {"axis": 0}, "float16"),
        (sample(0, 3), {"axis": 1}, "empty"),
    ]
    return [
        _row(
            lambda x, k=k: ours(x, **k, **keywords),
            (x,),
            lambda x, k=k: np.asarray(
                numpys(np.asarray(x, np.float64), **k, **keywords),
                x.dtype if x.dtype.kind == "f" else np.float32,
            ),
            "-".join((name, label, *keywords)),
            rtol=2e-3 if x.dtype == np.float16 else 1e-5,
            differentiable=x.dtype == np.float32,
        )
        for x, k, label in rows
    ]


def _softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def _logsumexp(x, axis=None, keepdims=False):
    with np.errstate(divide="ignore"):
        return np.log(np.exp(x.astype(np.float64)).sum(axis, keepdims=keepdims)).astype(x.dtype)


def _norm(x, label, **keywords):
    return _row(
        lambda x: norm.norm(x, **keywords),
        (x,),
        lambda x: np.linalg.norm(x, **keywords),
        "norm-" + label,
    )


_complex = (sample(2, 3) + 1j * sample(2, 3, seed=1)).astype(np.complex64)

CASES = [
    *_reduced("mean"),
    *_reduced("var"),
    *_reduced("std"),
    *_reduced("var", ddof=1)[:3],
    _row(lambda x: statistics.var(x, axis=0), (_complex,), lambda x: np.var(x, axis=0),
         "var-complex"),
    _row(lambda x, w: statistics.average(x, axis=1, weights=w), (sample(2, 3, 2), sample(3, low=1)),
         lambda x, w: np.average(x, axis=1, weights=w), "average"),
    _row(lambda x: statistics.count_nonzero(x, axis=0), (integers(5, 3, low=-1, high=2),),
         lambda x: np.count_nonzero(x, axis=0).astype(np.int32), "count_nonzero",
         differentiable=False),
    _row(exponentials.softmax, (sample(3, 4),), _softmax, "softmax"),
    _row(lambda x: exponentials.softmax(x, axis=0), (sample(3, 4),), lambda x: _softmax(x, 0),
         "softmax-first"),
    _row(lambda x: exponentials.softmax(x, axis=(0, 2)), (sample(3, 4, 2),),
         lambda x: _softmax(x, (0, 2)), "softmax-axes"),
    _row(exponentials.softmax, (sample(0, 3),), lambda x: x, "softmax-empty"),
    _row(exponentials.softmax, (sample(2, 3) + 1000,), _softmax, "softmax-large",
         differentiable=False),
    _row(exponentials.log_softmax, (sample(3, 4),), lambda x: np.log(_softmax(x)), "log_softmax"),
    _row(lambda x: exponentials.log_softmax(x, axis=0), (sample(3, 4).T,),
         lambda x: np.log(_softmax(x, 0)), "log_softmax-first"),
    _row(exponentials.logsumexp, (sample(2, 3),), _logsumexp, "logsumexp"),
    _row(lambda x: exponentials.logsumexp(x, axis=-1, keepdims=True), (sample(2, 3),),
         lambda x: _logsumexp(x, -1, True), "logsumexp-keepdims"),
    _row(lambda x: exponentials.logsumexp(x, axis=1), (_INF,), lambda x: _logsumexp(x, 1),
         "logsumexp-infinite", differentiable=False),
    _row(lambda x, b: exponentials.logsumexp(x, axis=1, b=b), (sample(2, 3), sample(2, 3, low=0.5)),
         lambda x, b: np.log((b * np.exp(x)).sum(1)), "logsumexp-weights"),
    _row(lambda x: exponentials.one_hot(x, 4), (integers(2, 3, low=-1, high=5),),
         lambda x: (x[..., None] == np.arange(4)).astype(np.float32), "one_hot",
         differentiable=False),
    _row(lambda x: exponentials.one_hot(x, 4, np.int32, axis=0), (integers(2, 3, low=0, high=4),),
         lambda x: (x[None] == np.arange(4)[:, None, None]).astype(np.int32), "one_hot-first",
         differentiable=False),
    _norm(sample(5), "vector"),
    _norm(sample(2, 3, 4), "all"),
    _norm(sample(3, 4), "fro", ord="fro"),
    _norm(_complex, "complex"),
    *[
        _norm(sample(3, 4, low=-1.9), f"vector-{p}", ord=p, axis=-1)
        for p in (1, 2, 3, math.inf, -math.inf)
    ],
    *[
        _norm(sample(2, 3, 4, low=0.1) ** 2, f"matrix-{p}", ord=p, axis=(0, 2), keepdims=True)
        for p in (1, -1, math.inf, -math.inf)
    ],
    *[
        _row(lambda k, d=d: d(k), (_KEY,), None, "draw-" + label, differentiable=False)
        for label, d in {
            "uniform": lambda k: distributions.uniform(k, (2, 3), minval=-1.0),
            "normal": lambda k: distributions.normal(k, (5,)),
            "bernoulli": lambda k: distributions.bernoulli(k, 0.3, (5,)),
            "permutation": lambda k: choices.permutation(k, sample(4, 2)),
            "categorical": lambda k: choices.categorical(k, sample(4, 3)),
            "randint": lambda k: choices.randint(k, (5,), -3, 7),
            "randint64": lambda k: choices.randint(k, (5,), -3, 7, np.int64),
        }.items()
    ],
    _row(lambda low, high: distributions.uniform(_KEY, (2, 3), low.dtype, low, high),
         (sample(3, high=-0.5), sample(2, 1, low=0.5)), None, "uniform-bounds"),
]  # fmt: skip
