"""random_parameter: a parameter of a distribution, passed on once its values were looked at.

What has its values when a function is called is looked at there and then.  Anything else (a pending
or traced array) becomes an equation, which raises when it is evaluated, as one with an index out
of bounds does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, literal, trace_owns
from nuvec.core.errors import ArgumentError, DtypeError
from nuvec.core.ir import Aval, aval
from nuvec.core.node import context
from nuvec.core.ops.batching import batch_first
from nuvec.core.ops.selection import where
from nuvec.core.primitive import Primitive

# probability -- from 0 to 1
# weights     -- finite, not negative, and along the axis one of them positive
# logits      -- below infinity, and along the axis one of them finite
# number      -- what the dtype holds
# end         -- what the dtype holds, or the next integer
Meaning = Literal["probability", "weights", "logits", "number", "end"]


def _look(x: Any, what: str, meaning: Meaning, dtype: np.dtype, axis: int) -> None:
    """Raise ArgumentError unless the values of a parameter can be what it means."""
    outside, rule = _outside(x, meaning, dtype)
    if np.any(outside):
        value = np.asarray(x)[outside].ravel()[0]
        raise ArgumentError(f"{what} cannot be {value}: {rule}")
    if meaning == "weights" and not np.all(np.any(x > 0, axis=axis)):
        raise ArgumentError(f"{what} is 0 everywhere: nothing could come up")
    if meaning == "logits" and not np.all(np.any(x > -np.inf, axis=axis)):
        raise ArgumentError(f"{what} are -inf along the whole axis: no class could come up")


def _outside(x: Any, meaning: Meaning, dtype: np.dtype) -> tuple[Any, str]:
    """Which values are none of those allowed, and the rule they break."""
    if meaning == "probability":
        return np.logical_not((x >= 0) & (x <= 1)), "a probability is from 0 to 1"
    if meaning == "weights":
        return np.logical_not((x >= 0) & (x < np.inf)), "probabilities are finite, and 0 or more"
    if meaning == "logits":
        return np.logical_not(x < np.inf), "logits are finite, or -inf where a class has no chance"
    if dtypes.is_floating(dtype):
        with np.errstate(over="ignore"):
            inside = np.isfinite(np.asarray(x).astype(dtype))
        largest = dtypes.finfo(dtype).max
        return np.logical_not(inside), (
            f"it is out of range for {dtypes.name(dtype)}, whose finite numbers are at most "
            f"{largest} in size"
        )
    limits = np.iinfo(dtype)
    return (x < limits.min) | (x > limits.max + (meaning == "end")), (
        f"it is out of range for {dtypes.name(dtype)}, which holds {limits.min} to {limits.max}; "
        "pass a dtype= that holds the numbers wanted"
    )


def _lower(x: Any, what: str, meaning: Meaning, dtype: np.dtype, axis: int) -> Any:
    _look(x, what, meaning, dtype, axis)
    return np.array(x)


def _rule(x: Aval, what: str, meaning: Meaning, dtype: np.dtype, axis: int) -> Aval:
    if dtypes.is_complex(x.dtype):
        raise DtypeError(f"{what} must be real, got {x}")
    return aval(x.shape, x.dtype, x.weak)


def _vmap(size: int, axes: Sequence[int | None], x: Array, **params: Any) -> tuple[Array, int]:
    # The axis counts from the end, where the batch does not move it.
    return random_parameter_p.bind(batch_first(x, axes[0], size), **params), 0


def _guard(wanted: Array, x: Array, **params: Any) -> tuple[tuple[Array], dict[str, Any]]:
    # 1 is allowed by every meaning.
    return (where(wanted, x, literal(1, x.dtype)),), params


random_parameter_p = Primitive(
    "random_parameter", _lower, _rule, "other",
    # The identity, where it does not raise; a tangent and a cotangent may have any value.
    jvp=lambda tangents, out, x, **params: tangents[0],
    vjp=lambda i, c, out, x, **params: c,
    vmap=_vmap, guard=_guard,
)  # fmt: skip


def known_value(x: Array) -> Any:
    """The value of an array, if it has one now and will have no other; else None.

    Inside compile a captured array has none: it is read anew at every call."""
    node = x._node
    if context.scope is not None and not trace_owns(context.scope, node):
        return None
    return node.value


def looked_at(
    x: Array, what: str, meaning: Meaning, dtype: np.dtype | None = None, axis: int = 0
) -> Array:
    """`x`, whose values are what `meaning` says (numbers of `dtype`, weights along `axis`).

    `what` names it: "random.choice's p".  Raises ArgumentError (a ValueError), now or when the
    array is evaluated."""
    dtype = x.dtype if dtype is None else dtype
    axis -= x.ndim
    known = known_value(x)
    if known is None:
        return random_parameter_p.bind(x, what=what, meaning=meaning, dtype=dtype, axis=axis)
    _look(known, what, meaning, dtype, axis)
    return x


__all__ = ["known_value", "looked_at", "random_parameter_p"]
