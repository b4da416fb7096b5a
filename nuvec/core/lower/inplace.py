"""Whether an operation gives the same bits when it writes over its operand.

NumPy's loops choose between vector and scalar code by whether operand and result overlap, and the
two may differ in a last bit (complex products with and without fused multiply-add, for one).  Which
do depends on the machine and the NumPy version, so it is measured: once for each operation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.ir import Eqn

_measured: dict[Any, bool] = {}
_SIZES = (67, 1, 16)  # vector loops with a rest, a single element, whole vectors


def keeps_bits_in_place(eqn: Eqn, index: int) -> bool:
    """Whether the elementwise equation may write its result over operand `index`."""
    primitive = eqn.primitive
    avals = [a.aval for a in eqn.inputs]
    if any(dtypes.is_complex(a.dtype) or a.dtype == dtypes.float16 for a in avals):
        return False  # both differ in places on common machines
    repeats = tuple(eqn.inputs.index(a) for a in eqn.inputs)  # x * x reads what it writes twice
    try:
        key = (
            primitive, tuple((a.dtype, bool(a.shape)) for a in avals), repeats, index,
            tuple(eqn.params.items()),
        )  # fmt: skip
        found = _measured.get(key)
    except TypeError:
        return False
    if found is None:
        if len(_measured) > 4096:
            _measured.clear()
        found = _measured[key] = _measure(eqn, index, repeats)
    return found


def _measure(eqn: Eqn, index: int, repeats: tuple[int, ...]) -> bool:
    lower = eqn.primitive.lower
    try:
        with np.errstate(all="ignore"):
            for size in _SIZES:
                values = [
                    _sample(size if a.aval.shape else 0, a.aval.dtype, k)
                    for k, a in enumerate(eqn.inputs)
                ]
                values = [values[k] for k in repeats]
                expected = np.asarray(lower(*values, **eqn.params))
                copies = [np.array(v) for v in values]
                copies = [copies[k] for k in repeats]
                result = lower(*copies, out=copies[index], **eqn.params)
                if result is not copies[index] or result.tobytes() != expected.tobytes():
                    return False
    except Exception:  # it does not take such values: then it allocates its result
        return False
    return True


def _sample(size: int, dtype: np.dtype, seed: int) -> Any:
    """Values of every magnitude and the special ones; a scalar for size 0."""
    generator = np.random.Generator(np.random.PCG64(seed))
    count = size or 1
    if dtypes.is_bool(dtype):
        values = generator.integers(0, 2, count).astype(dtype)
    elif dtypes.is_integer(dtype):
        values = generator.integers(0, 100, count).astype(dtype)
    else:
        values = (
            generator.standard_normal(count) * 10.0 ** generator.integers(-3, 3, count)
        ).astype(dtype)
        special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], dtype)
        if count > len(special):
            values[: len(special)] = special
    return values if size else values[-1]
