"""What `config.debug_nans` asks of every equation: that it makes no NaN.

A NaN that an operand has already was made elsewhere, or was given; one that a communication brings
was made on another rank, which looks for itself; and an equation that holds IRs looks inside them.
What is infinite is no error.  An equation is refused whoever reads its NaN, also where `where`
takes the other operand, or an element of a batch the other branch of a `cond`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.errors import NanError
from nuvec.core.ir import aval
from nuvec.core.traceback import format_user_frame

if TYPE_CHECKING:
    from nuvec.core.primitive import Primitive


def refuse_nans(
    primitive: Primitive, operands: Sequence[Any], result: Any, source: str | None
) -> None:
    """Raise NanError where an equation has made a NaN: its result has one, and no operand has.

    operands, result -- NumPy values; `result` is a sequence of them with `multiple`
    source -- the user's line, where it was noted when the equation was recorded
    """
    if primitive.effect or primitive.higher_order:
        return
    results = result if primitive.multiple else (result,)
    made = sum(map(count_nans, results))
    if not made or any(isinstance(x, tuple) or count_nans(x) for x in operands):
        return
    given = ", ".join(map(_described, operands)) or "no operands"
    size = sum(np.size(r) for r in results)
    got = ", ".join(repr(aval(np.shape(r), r.dtype)) for r in results)
    at = f", recorded at {source}" if source else ""
    error = NanError(
        f"{primitive.name} made the first NaN{at}: {made} of {size} elements of its result, {got}, "
        f"from operands without any: {given}. Look at what those hold there (log of a negative "
        "number, 0 / 0, inf - inf), and keep them from it, with nv.where around the operand or a "
        "small number added; or turn config.debug_nans off to see the result"
        + ("" if source else ". In a function that nv.compile runs, its line is known")
    )
    error.line = source or format_user_frame()
    raise error


def count_nans(x: Any) -> int:
    """How many elements are NaN: a complex number is where one of its parts is."""
    if isinstance(x, tuple) or not dtypes.is_inexact(x.dtype):
        return 0
    return int(np.count_nonzero(np.isnan(x)))


def _described(x: Any) -> str:
    """An operand, which has no NaN: its aval, and between which numbers it is."""
    text = repr(aval(np.shape(x), x.dtype))
    if not dtypes.is_inexact(x.dtype) or dtypes.is_complex(x.dtype) or not np.size(x):
        return text
    low, high = float(np.min(x)), float(np.max(x))
    return f"{text} = {low:g}" if low == high else f"{text} from {low:g} to {high:g}"


__all__ = ["count_nans", "refuse_nans"]
