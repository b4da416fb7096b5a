"""Rows for conversion between dtypes, and between real and complex numbers."""

from __future__ import annotations

import numpy as np

from nuvec.core import dtypes
from nuvec.core.ops import conversion as cv
from tests.cases.case import Case, integers, sample

_plane = (sample(2, 3) + 1j * sample(2, 3, seed=1)).astype(np.complex64)
_shapes = {"matrix": _plane, "scalar": _plane[0, 0], "empty": _plane[:0], "strided": _plane.T[::2]}


def _astype(x, dtype, label, **options):
    return Case("convert_dtype", lambda x: cv.astype(x, dtype), (x,), lambda x: x.astype(dtype),
                label, **options)  # fmt: skip


def _to_complex(x, label):
    """Float to the complex dtype of its width."""
    return Case("convert_dtype", lambda x: cv.astype(x, dtypes.complex_of(x.dtype)), (x,),
                lambda x: x.astype(np.complex64), label)  # fmt: skip


CASES = [
    _to_complex(sample(2, 3), "matrix"),
    _to_complex(np.float32(1.5), "scalar"),
    _to_complex(sample(0, 3), "empty"),
    _to_complex(sample(4, 6).T[::2], "strided"),
    _astype(sample(2, 3), np.complex128, "to-double"),
    _astype(sample(2, 3), np.float16, "to-half", differentiable=False),
    _astype(sample(2, 3), np.int32, "to-int", differentiable=False),
    _astype(sample(2, 3), np.bool_, "to-bool", differentiable=False),
    _astype(integers(2, 3), np.float32, "from-int", differentiable=False),
    _astype(_plane, np.bool_, "complex-to-bool", differentiable=False),
]
for _label, _x in _shapes.items():
    CASES += [
        Case("real", lambda x: cv.real(x), (_x,), np.real, _label),
        Case("imag", lambda x: cv.imag(x), (_x,), np.imag, _label),
        Case("conj", lambda x: cv.conj(x), (_x,), np.conj, _label),
    ]
CASES += [
    Case("complex", lambda x, y: cv.make_complex(x, y), (x, y), lambda x, y: x + 1j * y, label)
    for label, x, y in (
        ("same", sample(2, 3), sample(2, 3, seed=1)),
        ("broadcast", sample(2, 1), sample(4, 1, 3)),
        ("scalars", sample(), sample(low=0.5)),
        ("empty", sample(0, 3), sample(3)),
        ("strided", sample(4, 3).T, sample(6, 8)[::2, ::2]),
    )
]
