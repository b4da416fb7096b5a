"""Rows for reshape, transpose, broadcast_to, and the identities stop_gradient and depends."""

from __future__ import annotations

import numpy as np

from nuvec.core.ops import differentiation as di
from nuvec.core.ops import shape as sh
from tests.cases.case import Case, integers, sample

_complex = (sample(2, 3) + 1j * sample(2, 3, seed=1)).astype(np.complex64)


def _reshape(x, shape, label, **options):
    return Case("reshape", lambda x: sh.reshape(x, shape), (x,), lambda x: np.reshape(x, shape),
                label, **options)  # fmt: skip


def _transpose(x, label, axes=None, **options):
    return Case("transpose", lambda x: sh.transpose(x, axes), (x,),
                lambda x: np.transpose(x, axes), label, **options)  # fmt: skip


def _broadcast(x, shape, label, **options):
    return Case("broadcast_to", lambda x: sh.broadcast_to(x, shape), (x,),
                lambda x: np.broadcast_to(x, shape), label, **options)  # fmt: skip


CASES = [
    _reshape(sample(2, 3), (3, 2), "matrix"),
    _reshape(sample(2, 3, 4), (-1, 4), "unknown-size"),
    _reshape(sample(), (1, 1), "scalar"),
    _reshape(sample(1, 1), (), "to-scalar"),
    _reshape(sample(0, 3), (3, 0, 2), "empty"),
    _reshape(sample(4, 6).T[::2], (2, 6), "strided"),
    _reshape(integers(2, 3), 6, "integers", differentiable=False),
    _reshape(_complex, (6,), "complex"),
    _transpose(sample(2, 3), "matrix"),
    _transpose(sample(2, 3, 4), "cube"),
    _transpose(sample(2, 3, 4), "axes", (1, 2, 0)),
    _transpose(sample(2, 3, 4), "negative-axes", (-1, 0, 1)),
    _transpose(sample(0, 3), "empty"),
    _transpose(sample(4, 6).T[::2], "strided"),
    _transpose(integers(2, 3), "integers", differentiable=False),
    _transpose(_complex, "complex"),
    _broadcast(sample(3), (2, 3), "rows"),
    _broadcast(sample(3, 1), (2, 3, 4), "stretched"),
    _broadcast(sample(), (2, 3), "scalar"),
    _broadcast(sample(1), (0,), "empty"),
    _broadcast(sample(6)[::2], (2, 3), "strided"),
    _broadcast(integers(3), (2, 3), "integers", differentiable=False),
    _broadcast(_complex, (2, 2, 3), "complex"),
    # Its derivative is zero on purpose, which finite differences do not see.
    Case("stop_gradient", di.stop_gradient, (sample(2, 3),), lambda x: x, "matrix",
         differentiable=False),
    Case("stop_gradient", di.stop_gradient, (sample(),), lambda x: x, "scalar",
         differentiable=False),
    Case("depends", lambda x, y: di.depends(x, y), (sample(2, 3), sample(4)), lambda x, y: x,
         "matrix"),
    Case("depends", lambda x, y, z: di.depends(x, [y, z]), (sample(), integers(2), sample(0)),
         lambda x, y, z: x, "several"),
    Case("optimization_barrier", di.optimization_barrier_p.bind, (sample(2, 3), sample(4)),
         lambda x, y: x, "matrix"),
    Case("optimization_barrier", di.optimization_barrier_p.bind, (sample(), integers(2)),
         lambda x, y: x, "scalar"),
]  # fmt: skip
