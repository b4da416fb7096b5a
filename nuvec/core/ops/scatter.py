"""scatter_max, scatter_min and scatter_multiply: x combined with updates at indices.

As scatter_add (nuvec.core.ops.indexing), with the same parameters.  An element named by several
indices is combined with every one of their updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array
from nuvec.core.ops.arithmetic import divide, masked_product, multiply
from nuvec.core.ops.bounds import index_guard
from nuvec.core.ops.build import as_operand
from nuvec.core.ops.comparison import equal
from nuvec.core.ops.differentiation import zeros_of
from nuvec.core.ops.indexing import (
    changed,
    copy_to_change,
    flat_updates,
    gather_p,
    scatter_add_p,
    scatter_rule,
    scatter_vmap,
)  # fmt: skip
from nuvec.core.ops.selection import where
from nuvec.core.ops.structure import Ints
from nuvec.core.primitive import Primitive


def _lower(ufunc: Any) -> Any:
    def lower(x: Any, updates: Any, *indices: Any, axes: Ints, mode: str, out: Any = None) -> Any:
        flat, rows = flat_updates(x, updates, indices, axes, mode)
        dtype, wide = x.dtype, dtypes.accumulation(x.dtype)
        found = copy_to_change(x, wide, out)
        if len(rows):
            ufunc.at(np.moveaxis(found, axes, range(len(axes))), flat, rows.astype(wide))
        return changed(found, dtype, out)

    return lower


def _derived(weights: Any, product: Any) -> tuple[Any, Any]:
    """jvp and vjp from `weights(out, x, updates, indices, where_to)`: the partial derivatives of
    the element an operand's element goes to, in shapes of x and of the updates.  `product` is
    how they meet a (co)tangent."""

    def jvp(
        tangents: Sequence[Array | None], out: Array, x: Array, updates: Array, *indices: Array,
        **where_to: Any,
    ) -> Array:  # fmt: skip
        dx, du = weights(out, x, updates, indices, where_to)
        zero = zeros_of(x.aval)
        first = zero if tangents[0] is None else product(dx, tangents[0])
        if tangents[1] is None:
            return first
        return scatter_add_p.bind(first, product(du, tangents[1]), *indices, **where_to)

    def vjp(
        i: int, c: Array, out: Array, x: Array, updates: Array, *indices: Array, **where_to: Any
    ) -> Array:
        dx, du = weights(out, x, updates, indices, where_to)
        if i == 0:
            return product(dx, c)
        return product(du, gather_p.bind(c, *indices, **where_to))

    return jvp, vjp


def _extreme_weights(
    out: Array, x: Array, updates: Array, indices: Sequence[Array], where_to: dict[str, Any]
) -> tuple[Array, Array]:
    """All that attain the extreme share equally."""
    mine = as_operand(equal(x, out), x.dtype)
    theirs = as_operand(equal(updates, gather_p.bind(out, *indices, **where_to)), x.dtype)
    count = scatter_add_p.bind(mine, theirs, *indices, **where_to)
    # Dropped updates read a count of 0, and weigh nothing; nor does anything in a branch that is
    # not taken, whose `out` may be another branch's numbers.
    read = gather_p.bind(count, *indices, **where_to)

    def share(own: Array, of: Array) -> Array:
        return where(equal(of, 0), 0, divide(own, of))

    return share(mine, count), share(theirs, read)


def _product_weights(
    out: Array, x: Array, updates: Array, indices: Sequence[Array], where_to: dict[str, Any]
) -> tuple[Array, Array]:
    """The product of the other factors: of all that are not 0, divided by this one if it is not
    0 itself; and 0 when another one is."""
    x_zero, u_zero = equal(x, 0), equal(updates, 0)
    x_safe, u_safe = where(x_zero, 1, x), where(u_zero, 1, updates)
    nonzero = scatter_multiply_p.bind(x_safe, u_safe, *indices, **where_to)
    zeros = scatter_add_p.bind(
        as_operand(x_zero, x.dtype), as_operand(u_zero, x.dtype), *indices, **where_to
    )

    def others(zero: Array, safe: Array, total: Array, count: Array) -> Array:
        own = as_operand(zero, x.dtype)
        return where(equal(count, own), divide(total, safe), 0)

    return (
        others(x_zero, x_safe, nonzero, zeros),
        others(u_zero, u_safe, gather_p.bind(nonzero, *indices, **where_to),
               gather_p.bind(zeros, *indices, **where_to)),
    )  # fmt: skip


def _scatter(name: str, ufunc: Any, weights: Any, selects: bool) -> Primitive:
    # As for maximum, what is not selected gets an exact zero even of an infinite cotangent.
    jvp, vjp = _derived(weights, masked_product if selects else multiply)
    primitive: Primitive
    primitive = Primitive(
        name, _lower(ufunc), scatter_rule, "gather", jvp=jvp, vjp=vjp,
        # Of given factors the product is linear in what is multiplied.
        linear=None if selects else "each", linear_operands=(0,),
        vmap=scatter_vmap(lambda: primitive), selects=selects, guard=index_guard(2),
        out=True, updates=0,
    )  # fmt: skip
    return primitive


scatter_max_p = _scatter("scatter_max", np.maximum, _extreme_weights, True)
scatter_min_p = _scatter("scatter_min", np.minimum, _extreme_weights, True)
scatter_multiply_p = _scatter("scatter_multiply", np.multiply, _product_weights, False)
