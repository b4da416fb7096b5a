"""What is known of each value's memory layout before the program runs.

Bits depend on layout: NumPy sums an array in the order of its strides, so that the sum of a
transposed array and the sum of its C-ordered copy differ in their last bits, and the result of an
elementwise operation is laid out as its operands are.  A rewrite or a reused buffer keeps the bits
only where it keeps the layout, so passes ask this analysis first and leave alone what is UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from nuvec.core.ir import IR, Atom, Eqn, Var
from nuvec.core.ops.differentiation import depends_p, optimization_barrier_p, stop_gradient_p
from nuvec.core.ops.shape import broadcast_to_p, reshape_p, transpose_p
from nuvec.core.primitive import IDENTITY, Primitive

# Their result is their operand.
ALIASES = frozenset((IDENTITY, stop_gradient_p, depends_p, optimization_barrier_p))


class Layout(IntEnum):
    """UNKNOWN -- any strides
    ORDERED -- no stride is smaller than that of a later axis, where both are not 0 and neither
               axis has size 1 (a broadcast array, every second row)
    CONTIGUOUS -- C-contiguous
    """

    UNKNOWN = 0
    ORDERED = 1
    CONTIGUOUS = 2


# Of these kinds every lowering gives C-contiguous results for C-contiguous operands; so do the
# primitives named.  Of others nothing is known.  A test holds the table of cases against this.
KNOWN_KINDS = frozenset(("elementwise", "reduction"))
KNOWN = frozenset(("concatenate",))
# These copy into C order whatever their operands' layouts are.
ALWAYS_CONTIGUOUS = frozenset((
    "dot_general", "pad", "update_slice", "take_along", "add_along", "scatter_add",
    "scatter_set", "scatter_max", "scatter_min", "scatter_multiply", "erf", "complex", "scan",
    "conv_general", "conv_weight", "window_max", "window_min", "window_sum", "window_spread",
    "window_pick", "window_deal",
))  # fmt: skip

# Communications whose results are their operands: they communicate when differentiated.
PASSED_ON = frozenset(("sum_gradients",))


def layout_of(value: Any) -> Layout:
    """The layout of an array in hand."""
    if value.flags.c_contiguous:
        return Layout.CONTIGUOUS
    strides = [s for n, s in zip(value.shape, value.strides, strict=True) if n != 1 and s]
    ordered = all(s > 0 for s in strides) and sorted(strides, reverse=True) == strides
    return Layout.ORDERED if ordered else Layout.UNKNOWN


def result_layout(eqn: Eqn, layout: Callable[[Atom], Layout], index: int = 0) -> Layout:
    """The layout of an equation's output from those of its operands."""
    out = eqn.outputs[index].aval
    if out.size <= 1 or not out.shape:
        return Layout.CONTIGUOUS
    primitive = eqn.primitive
    if primitive.name in ALWAYS_CONTIGUOUS:
        return Layout.CONTIGUOUS
    if primitive in ALIASES:
        return layout(eqn.inputs[0])
    if primitive.kind == "effect":  # a transport takes and gives C-contiguous arrays
        return layout(eqn.inputs[index]) if primitive.name in PASSED_ON else Layout.CONTIGUOUS
    if primitive.name == "gather" and len(eqn.inputs) == 2 and eqn.params["mode"] == "raise":
        return Layout.CONTIGUOUS  # as np.take gives it
    known = primitive.kind in KNOWN_KINDS or primitive.name in KNOWN
    if primitive.kind == "random":  # a batch of draws is a part of whole blocks
        known = len(eqn.inputs[0].aval.shape) == 1
    if primitive.kind == "view" and not known:
        return _view_layout(primitive, eqn, layout)
    if not known:
        return Layout.UNKNOWN
    # A ufunc sorts axes by its operands' nonzero strides; copies sort zero strides as well.
    needed = Layout.ORDERED if isinstance(primitive.lower, np.ufunc) else Layout.CONTIGUOUS
    fits = all(layout(a) >= needed for a in eqn.inputs)
    return Layout.CONTIGUOUS if fits else Layout.UNKNOWN


def layouts_of(ir: IR, contiguous: Sequence[bool]) -> Callable[[Atom], Layout]:
    """The layout of every value of a program; `contiguous` says which inputs are known to be."""
    known: dict[Var, Layout] = {
        v: Layout.CONTIGUOUS if c else Layout.UNKNOWN
        for v, c in zip(ir.inputs, contiguous, strict=True)
    }
    known.update({v: layout_of(value) for v, value in ir.constants})

    def layout(atom: Atom) -> Layout:
        return known[atom] if type(atom) is Var else Layout.CONTIGUOUS

    for eqn in ir.eqns:
        for k, v in enumerate(eqn.outputs):
            known[v] = result_layout(eqn, layout, k)
    return layout


def _view_layout(primitive: Primitive, eqn: Eqn, layout: Callable[[Atom], Layout]) -> Layout:
    before = layout(eqn.inputs[0])
    if primitive is reshape_p:
        return before if before is Layout.CONTIGUOUS else Layout.UNKNOWN
    if primitive is broadcast_to_p:
        return min(before, Layout.ORDERED)
    if primitive is transpose_p:
        shape = eqn.inputs[0].aval.shape
        moved = [p for p in eqn.params["permutation"] if shape[p] != 1]
        return before if moved == sorted(moved) else Layout.UNKNOWN
    if primitive.name == "slice":
        return _slice_layout(eqn, before)
    return Layout.UNKNOWN


def _slice_layout(eqn: Eqn, before: Layout) -> Layout:
    if before is Layout.UNKNOWN or any(s < 0 for s in eqn.params["step"]):
        return Layout.UNKNOWN
    if before is Layout.ORDERED:
        return before
    stride = expected = 1  # in elements, from the last axis to the first
    shapes = zip(
        eqn.inputs[0].aval.shape, eqn.outputs[0].aval.shape, eqn.params["step"], strict=True
    )
    for old, new, step in reversed(list(shapes)):
        if new != 1 and stride * step != expected:
            return Layout.ORDERED
        stride *= old
        expected *= new
    return Layout.CONTIGUOUS
