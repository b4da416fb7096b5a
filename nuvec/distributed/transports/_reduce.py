"""The fold: the definition of what a reduction's bits are.

Every transport that promises rank-order bits calls `fold` and nothing else. (Where NaNs meet, which
of them survives a sum is the processor's choice; that the result is NaN is not.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nuvec.core.errors import DtypeError
from nuvec.distributed.communicator import Buffer
from nuvec.distributed.transports._call import Op
from nuvec.distributed.transports._specs import BFLOAT16

_ACCUMULATED_IN_FLOAT32 = {np.dtype(np.float16), BFLOAT16}


def check_reducible(op: Op, dtype: np.dtype[Any]) -> None:
    """Raise unless `op` means something for `dtype`."""
    if dtype == np.bool_ and op in (Op.ALL_SUM, Op.SUM_SCATTER):
        raise DtypeError(
            f"{op.label} of bool is ambiguous: all_max is 'any' and all_min is 'all'; to count, "
            "convert to an integer dtype first"
        )
    if dtype.kind == "c" and op in (Op.ALL_MAX, Op.ALL_MIN):
        raise DtypeError(f"{op.label} of {dtype}: complex numbers have no order")


def is_widened(op: Op, dtype: np.dtype[Any]) -> bool:
    """Whether the partial results of `op` are float32, to be rounded to `dtype` in the end."""
    return dtype in _ACCUMULATED_IN_FLOAT32 and op in (Op.ALL_SUM, Op.SUM_SCATTER)


def fold(op: Op, values: Sequence[Buffer], out: Buffer) -> None:
    """Write the left fold of `values` (in rank order, at least one) into `out`.

    `out` may be the first of `values`, and must not overlap the others.
    """
    dtype = out.dtype
    if op is Op.ALL_MAX:
        combine: np.ufunc = np.maximum
    elif op is Op.ALL_MIN:
        combine = np.minimum
    else:
        combine = np.add
    # Overflow and NaN are the caller's values, not an event of the communication.
    with np.errstate(all="ignore"):
        if dtype in _ACCUMULATED_IN_FLOAT32:
            total = np.array(values[0], dtype=np.float32)
            for value in values[1:]:
                combine(total, value.astype(np.float32), out=total)
            out[...] = total.astype(dtype)
        elif len(values) == 1:
            out[...] = values[0]
        else:
            combine(values[0], values[1], out=out)
            for value in values[2:]:
                combine(out, value, out=out)
