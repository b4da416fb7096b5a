"""class_index: labels as indices, each checked against the number of classes."""

from __future__ import annotations

from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, literal
from nuvec.core.errors import DtypeError, OutOfBoundsError
from nuvec.core.ir import Aval, aval
from nuvec.core.ops.selection import where
from nuvec.core.primitive import NOT_DIFFERENTIABLE, Primitive

__all__ = ["class_index", "class_index_p"]


def _rule(labels: Aval, classes: int) -> Aval:
    if not dtypes.is_integer(labels.dtype):
        raise DtypeError(f"class_index: labels are integers, got {labels}")
    return aval(labels.shape, dtypes.int64)


def _lower(labels: Any, classes: int) -> Any:
    outside = (labels < 0) | (labels >= classes)
    if np.any(outside):
        raise OutOfBoundsError(
            f"the label {np.asarray(labels)[outside].ravel()[0]} is none of the {classes} classes, "
            f"which are 0 to {classes - 1}. Leave examples without a label out of the batch, or "
            "give them a class and the weight 0"
        )
    return np.asarray(labels).astype(np.int64)


def _guard(
    wanted: Array, labels: Array, classes: int
) -> tuple[tuple[Array], dict[str, Any]]:  # fmt: skip
    return (where(wanted, labels, literal(0, labels.dtype)),), {"classes": classes}


class_index_p = Primitive(
    "class_index", _lower, _rule, "elementwise", derivatives=(NOT_DIFFERENTIABLE,), guard=_guard
)


def class_index(labels: Array, classes: int) -> Array:
    """Integers of any dtype as int64: one dtype in which every class has a number.

    When it is evaluated, IndexError (OutOfBoundsError) for a label outside [0, classes): a
    negative index would count from the end, and labels such as -1 for "none" must not pass.

    >>> import nuvec as nv
    >>> class_index(nv.array([2, 0], dtype="int8"), 3)
    array([2, 0], dtype=int64)
    """
    return class_index_p.bind(labels, classes=classes)
