"""Arguments that modules and optimizers share: sizes of layers, hyperparameters, groups.

A hyperparameter takes the dtype of what it meets: a NumPy scalar (`np.linspace(...)[i]`) counts
as the Python number it holds, and an Array is converted. Neither widens an update or a loss.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, operand
from nuvec.core.errors import DtypeError, ShapeError
from nuvec.distributed.group import Group, default_group

__all__ = ["as_group", "as_number", "check_size", "like", "number"]


def check_size(layer: str, name: str, size: Any) -> int:
    """`size` as an int: any integer, NumPy's too, that is positive; ValueError for others."""
    try:
        count = operator.index(size)
    except TypeError:
        count = 0
    if isinstance(size, bool) or count < 1:
        raise ValueError(f"{layer}: {name} must be a positive integer, got {size!r}.")
    return count


def as_group(group: Any, name: str) -> Group:
    """`group`, or the default one for None; TypeError for what is no Group."""
    if group is None:
        return default_group()
    if not isinstance(group, Group):
        raise TypeError(
            f"{name}: group is a Group, as nv.distributed.init() and group.split(color) return, "
            f"or None for the default one; got {group!r:.60}."
        )
    return group


def as_number(value: Any, name: str) -> Any:
    """A hyperparameter: a Python number for a Python or NumPy one, a scalar Array as it is.

    Raises TypeError for what is no real number, and ShapeError for more than one."""
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} is a number, got {value!r}.")
    if isinstance(value, int | float) and not isinstance(value, np.generic):
        return value
    if isinstance(value, Array | np.ndarray | np.generic):
        if value.shape:
            raise ShapeError(
                f"{name} is one number, got an array of shape {value.shape}. To scale parameters "
                "differently, chain a transformation of your own for each."
            )
        dtype = dtypes.as_dtype(value.dtype)
        if dtypes.is_complex(dtype) or dtypes.is_bool(dtype):
            raise DtypeError(f"{name} is a real number, got one of dtype {dtypes.name(dtype)}.")
        if isinstance(value, Array):
            return value
        return int(value) if dtypes.is_integer(dtype) else float(value)
    if isinstance(value, complex):
        raise DtypeError(f"{name} is a real number, got {value!r}.")
    raise TypeError(f"{name} is a number, got {value!r:.60}, a {type(value).__name__}.")


def number(
    value: Any, name: str, low: float = -math.inf, below: float = math.inf, infinite: bool = False
) -> Any:
    """`as_number`, checked: ValueError for NaN, for what is not in [low, below), and for an
    infinity unless `infinite`. An Array is not looked at: its value may not be there yet."""
    value = as_number(value, name)
    if isinstance(value, Array):
        return value
    good = low <= value < below or (infinite and value == below)
    if not good or (math.isinf(value) and not infinite):
        bounds = [f"at least {low:g}"] * (low > -math.inf) + [f"less than {below:g}"] * (
            below < math.inf
        )
        raise ValueError(f"{name} must be {' and '.join(bounds) or 'finite'}, got {value!r}.")
    return value


def like(value: Any, x: Array) -> Any:
    """A hyperparameter to combine with `x` without changing x's dtype."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.shape):
        return value.item()
    if isinstance(value, Array | np.ndarray):
        return operand(value).astype(dtypes.real_part(dtypes.inexact(x.dtype)))
    return value
