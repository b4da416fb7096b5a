"""Windows that slide over an array: window_max and window_min; window_sum with window_spread, its
transpose; and window_pick with window_deal, of which the derivatives of the extremes are made.

A window has a size, a stride and so on along every axis (1 where nothing slides), as slices have.
Output o takes x at o * stride + k * dilation - low for every k in range(window), and meets nothing
where that is outside of x.  `sizes` is the shape of the result.

The extreme of a box of elements is that of the extremes along each axis, and so is the sum: all
four work one axis after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array
from nuvec.core.errors import DtypeError, ShapeError
from nuvec.core.ir import Aval, aval
from nuvec.core.ops.batching import batch_first
from nuvec.core.ops.sliding import (
    Axis,
    Ints,
    axes_of,
    deal,
    fold,
    highest,
    lowest,
    pick,
    spread,
)
from nuvec.core.primitive import Primitive

# window_sum and window_spread: <c, sum of windows of x> = <c spread over windows, x>


def _rule(x: Aval, sizes: Ints, **window: Ints) -> Aval:
    if any(len(part) != x.ndim for part in (sizes, *window.values())):
        raise ShapeError(f"a window over {x} has an entry for each axis, got {window} to {sizes}")
    return aval(sizes, x.dtype, x.weak)


def _vmap(primitive: Callable[[], Primitive]) -> Any:
    """Nothing slides along the batch."""

    def vmap(
        size: int, axes: Sequence[int | None], x: Array, window: Ints, stride: Ints, low: Ints,
        dilation: Ints, sizes: Ints,
    ) -> tuple[Array, int]:  # fmt: skip
        return primitive().bind(
            batch_first(x, axes[0], size), window=(1, *window), stride=(1, *stride), low=(0, *low),
            dilation=(1, *dilation), sizes=(size, *sizes),
        ), 0  # fmt: skip

    return vmap


window_sum_p: Primitive = Primitive(
    "window_sum", fold(np.add, lambda dtype: 0), _rule, "reduction",
    transpose=lambda i, c, out, x, sizes, **window: window_spread_p.bind(
        c, sizes=x.shape, **window
    ),
    vmap=_vmap(lambda: window_sum_p), out=True,
)  # fmt: skip
window_spread_p: Primitive = Primitive(
    "window_spread", spread, _rule, "other",
    transpose=lambda i, c, out, x, sizes, **window: window_sum_p.bind(c, sizes=x.shape, **window),
    vmap=_vmap(lambda: window_spread_p), out=True,
)  # fmt: skip


# window_max, window_min: the extreme takes the cotangent; equal ones share it, as for max


def check_windows(name: str, x: Aval, sizes: Ints, **window: Ints) -> None:
    """Raise ShapeError where a window has no element of x."""
    for a, n, axis in axes_of(sizes=sizes, shape=x.shape, **window):
        if 0 not in sizes and not _present(n, axis).any(axis=1).all():
            raise ShapeError(
                f"{name}: along axis {a} of shape {x.shape} a window of size {axis[0]} lies "
                f"outside of the {n} elements, with padding {axis[2]} before them; pad less"
            )


def _extreme_rule(name: str) -> Callable[..., Aval]:
    def rule(x: Aval, sizes: Ints, **window: Ints) -> Aval:
        out = _rule(x, sizes, **window)
        check_windows(name, x, sizes, **window)
        return out

    return rule


def _present(n: int, axis: Axis) -> np.ndarray:
    """Whether each window has an element at each tap of an axis: (size, window)."""
    window, stride, low, dilation, size = axis
    positions = np.arange(size)[:, None] * stride + np.arange(window) * dilation - low
    present: np.ndarray = (positions >= 0) & (positions < n)
    return present


def _extreme(name: str, ufunc: Any, start: Callable[[np.dtype], Any]) -> Primitive:
    """The primitive `window_max` or `window_min`."""

    def jvp(tangents: Sequence[Array], out: Array, x: Array, sizes: Ints, **window: Ints) -> Array:
        return window_pick_p.bind(tangents[0], x, out, **window)

    def vjp(i: int, c: Array, out: Array, x: Array, sizes: Ints, **window: Ints) -> Array:
        return window_deal_p.bind(c, x, out, **window)

    primitive: Primitive
    primitive = Primitive(
        name, fold(ufunc, start), _extreme_rule(name), "reduction", jvp=jvp, vjp=vjp,
        vmap=_vmap(lambda: primitive), selects=True, out=True,
    )  # fmt: skip
    return primitive


window_max_p = _extreme("window_max", np.maximum, lowest)
window_min_p = _extreme("window_min", np.minimum, highest)


# window_pick(t, x, m) is the mean of t over those elements of a window of x that equal its m;
# window_deal(c, x, m), its transpose, deals each c out to them in equal parts.  Both are exactly
# zero where an element is not picked, whatever it is


def _select_rule(deals: bool) -> Callable[..., Aval]:
    def rule(t: Aval, x: Aval, m: Aval, **window: Ints) -> Aval:
        _rule(x, m.shape, **window)
        if not dtypes.is_floating(t.dtype):
            raise DtypeError(f"a mean of what is picked has real floating dtypes, got {t}")
        given, result = (m, x) if deals else (x, m)
        if t.shape != given.shape or not t.dtype == x.dtype == m.dtype:
            raise ShapeError(f"a window over {x} with results {m} takes {given}, got {t}")
        return aval(result.shape, t.dtype, t.weak)

    return rule


def _select_vmap(primitive: Callable[[], Primitive]) -> Any:
    def vmap(
        size: int, axes: Sequence[int | None], t: Array, x: Array, m: Array, window: Ints,
        stride: Ints, low: Ints, dilation: Ints,
    ) -> tuple[Array, int]:  # fmt: skip
        batched = [batch_first(y, a, size) for y, a in zip((t, x, m), axes, strict=True)]
        return primitive().bind(
            *batched, window=(1, *window), stride=(1, *stride), low=(0, *low),
            dilation=(1, *dilation),
        ), 0  # fmt: skip

    return vmap


def _select(name: str, lower: Any, deals: bool, other: Callable[[], Primitive]) -> Primitive:
    def transpose(
        i: int, c: Array, out: Array, t: Array, x: Array, m: Array, **window: Ints
    ) -> Array | None:
        # What is picked does not change with x and m, wherever that has a derivative.
        return None if i else other().bind(c, x, m, **window)

    primitive: Primitive
    primitive = Primitive(
        name, lower, _select_rule(deals), "other", transpose=transpose, linear="each",
        linear_operands=(0,), vmap=_select_vmap(lambda: primitive), selects=True, out=True,
    )  # fmt: skip
    return primitive


window_pick_p: Primitive = _select("window_pick", pick, False, lambda: window_deal_p)
window_deal_p: Primitive = _select("window_deal", deal, True, lambda: window_pick_p)
