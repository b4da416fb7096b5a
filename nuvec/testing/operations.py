"""The operations random programs are drawn from: one or more for every primitive of the table.

An operation knows which operands it accepts: kinds of numbers, shapes, and values far enough from
its kinks and poles for finite differences to be trusted.  Programs are drawn together with the
points they will be checked at, so that this is decided on the very values that occur.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nuvec.core.array import Array, from_numpy
from nuvec.core.functions import choices, distributions, joining
from nuvec.core.functions.along import take_along_axis
from nuvec.core.functions.keys import fold_in, key, split
from nuvec.core.functions.padding import pad
from nuvec.core.functions.quantization import quantized_matmul
from nuvec.core.ops import reduction as re
from nuvec.core.ops import shape as sh
from nuvec.core.ops.along import add_along_p
from nuvec.core.ops.contraction import matmul
from nuvec.core.ops.convolution import conv_general_p, conv_weight_p
from nuvec.core.ops.differentiation import depends
from nuvec.core.ops.quantization import quantized_scales_p, scaled_matmul_p
from nuvec.core.ops.structure import concatenate
from nuvec.core.ops.windows import (
    window_deal_p,
    window_max_p,
    window_min_p,
    window_pick_p,
    window_spread_p,
    window_sum_p,
)
from nuvec.testing.elementwise_operations import ELEMENTWISE
from nuvec.testing.operation import MARGIN, Choices, Named, Operation, adder

__all__ = ["OPERATIONS", "UNDRAWN"]

OPERATIONS: list[Operation] = [*ELEMENTWISE]
_add = adder(OPERATIONS)


# --- Reductions


def _axis(choose: Choices, x: np.ndarray) -> tuple[Any, ...] | None:
    if x.size == 0:
        return None
    axis = choose.pick([None, *range(-x.ndim, x.ndim)])
    return axis, bool(choose.integer(0, 1))


def _one_axis(choose: Choices, x: np.ndarray) -> tuple[Any, ...] | None:
    return (choose.integer(-x.ndim, x.ndim - 1),) if x.ndim else None


def _distinct(x: np.ndarray) -> Any:
    """No two values near each other: then no extreme along any axis is a tie."""
    ordered = np.sort(x.reshape(-1))
    return np.diff(ordered) > MARGIN


for _name, _reduce in Named([("sum", sh.sum), ("prod", re.prod)]):
    _add(_name, "f|c", lambda x, axis, keep, r=_reduce: r(x, axis=axis, keepdims=keep), _axis)
for _name, _reduce in Named([("max", re.max), ("min", re.min)]):
    _add(
        _name,
        "f",
        lambda x, axis, keep, r=_reduce: r(x, axis=axis, keepdims=keep),
        _axis,
        _distinct,
    )
for _name, _reduce in Named([("any", re.any), ("all", re.all)]):
    _add(_name, "b", lambda x, axis, keep, r=_reduce: r(x, axis=axis, keepdims=keep), _axis)
for _name, _reduce in Named([("argmax", re.argmax), ("argmin", re.argmin)]):
    _add(_name, "f", lambda x, axis, r=_reduce: r(x, axis=axis), _one_axis, _distinct)


# --- Shapes


def _new_shape(choose: Choices, x: np.ndarray) -> tuple[Any, ...]:
    n = x.size
    return (choose.pick([(n,), x.shape[::-1], (1, *x.shape), (n, 1)]),)


def _order(choose: Choices, x: np.ndarray) -> tuple[Any, ...] | None:
    if x.ndim < 2:
        return None
    k = choose.integer(1, x.ndim - 1)
    return (tuple((i + k) % x.ndim for i in range(x.ndim)),)


def _slice(choose: Choices, x: np.ndarray) -> tuple[Any, ...] | None:
    if not x.ndim or x.shape[0] < 2:
        return None
    n = x.shape[0]
    return choose.pick([(0, n - 1, 1), (1, n, 1), (0, n, 2), (n - 1, None, -1)])


def _width(choose: Choices, x: np.ndarray) -> tuple[Any, ...] | None:
    return (
        (tuple((choose.integer(0, 1), choose.integer(0, 1)) for _ in x.shape),) if x.ndim else None
    )


def _indices(choose: Choices, x: np.ndarray, *rest: np.ndarray) -> tuple[Any, ...] | None:
    if not x.ndim or not x.shape[0]:
        return None
    return (tuple(choose.integer(0, x.shape[0] - 1) for _ in range(2)),)


def _distinct_indices(choose: Choices, x: np.ndarray, *rest: np.ndarray) -> Any:
    if not x.ndim or x.shape[0] < 2:
        return None
    first = choose.integer(0, x.shape[0] - 1)
    return ((first, (first + 1) % x.shape[0]),)


def _index(indices: Any) -> Array:
    return from_numpy(np.asarray(indices, np.int32))


def _at(x: Array, v: Array, indices: Any, method: str) -> Any:
    v = sh.broadcast_to(v, (len(indices), *x.shape[1:]))
    return getattr(x.at[_index(indices)], method)(v)


_add("reshape", "f|c|b", lambda x, s: sh.reshape(x, s), _new_shape)
_add("transpose", "f|c|b", lambda x, axes: sh.transpose(x, axes), _order)
_add(
    "broadcast_to",
    "f|c",
    lambda x, n: sh.broadcast_to(x, (n, *x.shape)),
    lambda choose, x: (choose.integer(2, 3),),
)
_add(
    "concatenate",
    "f|c f|c",
    lambda x, y, a: concatenate([x, y], axis=a),
    lambda choose, x, y: (choose.integer(0, x.ndim - 1),) if x.ndim and x.ndim == y.ndim else None,
)
_add(
    "concatenate",
    "f|c f|c",
    lambda x, y: joining.stack([x, y]),
    name="stack",
    params=lambda choose, x, y: () if x.shape == y.shape else None,
)
_add("slice", "f|c", lambda x, start, stop, step: x[start:stop:step], _slice)
_add("pad", "f|c", pad, _width)
_add("depends", "f|c f", depends)
_add(
    "update_slice",
    "f f",
    lambda x, v, i: x.at[i].set(sh.broadcast_to(v, x.shape[1:])),
    lambda choose, x, v: (
        (choose.integer(0, x.shape[0] - 1),)
        if x.ndim and x.shape[0] and _broadcasts(v.shape, x.shape[1:])
        else None
    ),
)
_add("gather", "f|c", lambda x, indices: x[_index(indices)], _indices)
_add(
    "gather",
    "f i",
    lambda x, i: x[i % x.shape[0]],
    name="gather at computed places",
    params=lambda choose, x, i: () if x.ndim and x.shape[0] and i.ndim < 2 else None,
)


_add(
    "take_along",
    "f|c",
    lambda x, indices: take_along_axis(x, _index_of_lines(x.ndim, indices), 0),
    _indices,
)
_add(
    "take_along",
    "f i",
    lambda x, i: take_along_axis(x, i % x.shape[-1], -1),
    name="take_along at computed places",
    params=lambda choose, x, i: () if _lined_up(x, i) else None,
)
_add(
    "add_along",
    "f f",
    lambda x, v, i: add_along_p.bind(
        x, _index_of_lines(x.ndim, i), v, axis=-x.ndim, shape=x.shape, mode="raise"
    ),
    lambda choose, x, v: (
        _indices(choose, x) if x.ndim and _broadcasts(v.shape, (2, *x.shape[1:])) else None
    ),
)


def _index_of_lines(ndim: int, indices: Any) -> Array:
    """Indices along axis 0, the same for every line."""
    return sh.reshape(_index(indices), (-1, *(1,) * (ndim - 1)))


def _lined_up(x: np.ndarray, i: np.ndarray) -> bool:
    return bool(x.ndim and x.ndim == i.ndim and x.size and x.shape[:-1] == i.shape[:-1])


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def _scattered(draw: Any) -> Any:
    def params(choose: Choices, x: np.ndarray, v: np.ndarray) -> Any:
        return draw(choose, x) if x.ndim and _broadcasts(v.shape, (2, *x.shape[1:])) else None

    return params


_add("scatter_add", "f f", lambda x, v, i: _at(x, v, i, "add"), _scattered(_indices))
for _p, _m, _fits in (("scatter_set", "set", None), ("scatter_multiply", "multiply", None),
                      ("scatter_max", "max", lambda x, v: _all_apart(x, v)),
                      ("scatter_min", "min", lambda x, v: _all_apart(x, v))):  # fmt: skip
    _add(_p, "f f", lambda x, v, i, m=_m: _at(x, v, i, m), _scattered(_distinct_indices), _fits)


def _all_apart(x: np.ndarray, v: np.ndarray) -> Any:
    return np.abs(x.reshape(-1, 1) - v.reshape(1, -1)) > MARGIN


_add(
    "dot_general",
    "f|c f|c",
    matmul,
    lambda choose, x, y: () if _multiplies(x.shape, y.shape) else None,
)


def _multiplies(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return bool(a and b and len(a) < 3 and len(b) < 3 and a[-1] == b[-2 if len(b) > 1 else 0])


def _matrices(choose: Choices, x: np.ndarray, y: np.ndarray) -> tuple[Any, ...] | None:
    return () if x.ndim == y.ndim == 2 and x.dtype == y.dtype and x.size and y.size else None


# --- Quantised matrices: of two rows of 32 codes, the bits of a constant

_PACKED: dict[str, Any] = {"group_size": 32, "bits": 2}


def _words() -> Array:
    return from_numpy(np.array([[0x1B6C93E4, 0x9D27C1B5], [0x72E4A90F, 0x3C81F65A]], np.uint32))


def _alike(x: Array, columns: int) -> Array:
    """The first column of a matrix, so many times."""
    return sh.broadcast_to(x[:, :1] / columns, (x.shape[0], columns))


def _two(s: Array) -> Array:
    """A number for each of two rows."""
    return sh.broadcast_to(s[:1, :1], (2, 1))


_add(
    "quantized_matmul",
    "f f",
    lambda x, s: quantized_matmul(
        _alike(x, 32), _words(), _two(s), s[:1, -1:] - _two(s), **_PACKED
    ),
    _matrices,
)
_add(
    "scaled_matmul",
    "f f",
    lambda x, s: scaled_matmul_p.bind(_alike(x, 32), _words(), _two(s), transpose=True, **_PACKED),
    _matrices,
)
_add(
    "quantized_scales",
    "f f",
    lambda x, y: quantized_scales_p.bind(_alike(x, 2), _alike(y, 32), _words(), **_PACKED),
    lambda choose, x, y: _matrices(choose, x, y) if x.shape[:1] == y.shape[:1] else None,
)


# --- Convolutions and windows: of a matrix, (positions, channels)

_ONE: dict[str, Any] = {
    "stride": (1,), "low": (1,), "kernel_dilation": (1,), "input_dilation": (1,), "groups": 1,
    "flip": False,
}  # fmt: skip
_WINDOW: dict[str, Any] = {"window": (3, 1), "stride": (2, 1), "low": (1, 0), "dilation": (1, 1)}


def _windows(n: int) -> int:
    return (n + 1) // 2  # of _WINDOW: from the element before each even one to that after it


def _same_rest(choose: Choices, x: np.ndarray, y: np.ndarray) -> tuple[Any, ...] | None:
    return _matrices(choose, x, y) if x.shape[1:] == y.shape[1:] else None


def _same_shape(choose: Choices, x: np.ndarray, y: np.ndarray) -> tuple[Any, ...] | None:
    return _matrices(choose, x, y) if x.shape == y.shape else None


def _largest(x: Array) -> Array:
    return window_max_p.bind(x, sizes=(_windows(x.shape[0]), x.shape[1]), **_WINDOW)


def _lone(x: Array) -> Array:
    return sh.reshape(x, (1, *x.shape))


def _matrix(choose: Choices, x: np.ndarray) -> tuple[Any, ...] | None:
    return () if x.ndim == 2 and x.size else None


_add(
    "conv_general",
    "f|c f|c",
    lambda x, w: conv_general_p.bind(_lone(x), _lone(w), outputs=(x.shape[0],), **_ONE),
    _same_rest,
)
_add(
    "conv_weight",
    "f|c f|c",
    lambda x, c: conv_weight_p.bind(_lone(x), _lone(c), kernel=(2,), **_ONE),
    _matrices,
)
for _p, _bind in (("window_max", window_max_p), ("window_min", window_min_p)):
    _add(
        _p,
        "f",
        lambda x, p=_bind: p.bind(x, sizes=(_windows(x.shape[0]), x.shape[1]), **_WINDOW),
        _matrix,
        _distinct,
    )
_add(
    "window_sum",
    "f|c",
    lambda x: window_sum_p.bind(x, sizes=(_windows(x.shape[0]), x.shape[1]), **_WINDOW),
    _matrix,
)
_add(
    "window_spread",
    "f|c",
    lambda c: window_spread_p.bind(c, sizes=(2 * c.shape[0], c.shape[1]), **_WINDOW),
    _matrix,
)
_add(
    "window_pick",
    "f f",
    lambda t, x: window_pick_p.bind(t, x, _largest(x), **_WINDOW),
    _same_shape,
    lambda t, x: _distinct(x),
)
_add(
    "window_deal",
    "f f",
    lambda c, x: window_deal_p.bind(_largest(c), x, _largest(x), **_WINDOW),
    _same_shape,
    lambda c, x: bool(np.all(_distinct(x)) and np.all(_distinct(c))),
)


# --- Random numbers from a fixed key: constants that depend on no input


def _uniform(x: Array, seed: int) -> Any:
    keys = split(fold_in(key(seed), 1))
    first, second = keys[0], keys[1]
    scale = distributions.uniform(first, x.shape, dtype=np.float64)
    return x * (scale + choices.permutation(second, 3)[0].astype(np.float64))


_add(
    "random_bits random_split random_permutation random_fold_in",
    "f",
    _uniform,
    lambda choose, x: (choose.integer(0, 99),),
)

# What is not drawn, and why.
UNDRAWN = {
    "stop_gradient": "its derivative is not that of its value",
    "sum_gradients": "its backward is not the adjoint of its forward, by design",
    "sum_partials": "its backward is not the adjoint of its forward, by design",
    "sum_gradients.axis": "its backward is not the adjoint of its forward, by design",
    "sum_partials.axis": "its backward is not the adjoint of its forward, by design",
    "class_index": "a check of labels, which are integers",
    "pack_codes": "codes and words, which are integers",
    "unpack_codes": "codes and words, which are integers",
    "checked_index": "a check of indices, which are integers",
    "random_parameter": "a check of what a draw is given, which is itself no float",
    "while_loop": "without max_steps it has forward mode alone",
    "placeholder": "made by recording", "projection": "made by recording",
    "identity": "made by recording", "mark": "made by recording",
}  # fmt: skip
