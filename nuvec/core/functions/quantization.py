"""Affine quantisation: matrices of a few bits an element, with MLX's names, rule and packing."""

from __future__ import annotations

import math
import operator
from typing import Any

from nuvec.core import dtypes
from nuvec.core.array import Array, operand
from nuvec.core.errors import ArgumentError, DtypeError, ShapeError
from nuvec.core.ops.arithmetic import add, divide, multiply, negative, subtract
from nuvec.core.ops.build import (
    as_operand,
    broadcast_shapes,
    converted,
    promote_operands,
    real_inexact,
)
from nuvec.core.ops.comparison import greater, not_equal
from nuvec.core.ops.packing import pack_codes_p, unpack_codes_p
from nuvec.core.ops.quantization import check_packed, quantized_matmul_p
from nuvec.core.ops.reduction import max, min
from nuvec.core.ops.rounding import round
from nuvec.core.ops.selection import maximum, minimum, where
from nuvec.core.ops.shape import broadcast_to, reshape
from nuvec.core.ops.signs import abs
from nuvec.core.traceback import filtered

BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)
LEAST = 1e-7  # of a scale


def check_packing(name: str, group_size: Any, bits: Any, mode: str = "affine") -> tuple[int, int]:
    """`group_size` and `bits` as ints; raises ArgumentError for others than those supported."""
    found: list[int] = []
    for what, value, allowed in (("group_size", group_size, GROUP_SIZES), ("bits", bits, BITS)):
        try:
            number = 0 if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = 0
        if number not in allowed:
            choices = ", ".join(map(str, allowed[:-1]))
            raise ArgumentError(f"{name}: {what} is {choices} or {allowed[-1]}, got {value!r}")
        found.append(number)
    if mode != "affine":
        raise ArgumentError(
            f"{name}: mode={mode!r} is not supported; the mode is 'affine', with a scale and a "
            "bias for each group"
        )
    return found[0], found[1]


@filtered
def quantize(
    w: Any, group_size: int = 64, bits: int = 4, mode: str = "affine"
) -> tuple[Array, Array, Array]:
    """`w` in a few bits an element: the packed elements, and scales and biases of their groups.

    w[..., K] is cut into groups of `group_size` (32, 64 or 128) elements of the last axis, which K
    must be a multiple of.  Each element becomes a code of `bits` (2, 3, 4, 5, 6 or 8) bits, and
    `scale * code + bias` of its group is near it.  Returns

    - the codes, uint32[..., K * bits / 32]: a stream of bits, the least significant first
    - scales and biases, [..., K / group_size], in the dtype of `w`

    with the bits of MLX's `quantize` in mode "affine".  Of the least and the greatest element of a
    group, the one further from 0 (the edge) has code 0 and is its bias, and the codes count from
    it to the other one, in steps of `(greatest - least) / (2^bits - 1)` or 1e-7, whichever is more.
    The step is then changed so that 0, too, is a code: `scale = edge / round(edge / step)`; where
    that rounds to 0 the bias is 0.  float16 and bfloat16 work in float32, and scales and biases are
    rounded after the codes were found.  A group with a NaN or an infinity is NaN when dequantised.

    Codes have no derivative; scales and biases have one, that of the least or greatest element.
    Raises DtypeError unless `w` is real and floating, ShapeError where K is not divisible,
    ArgumentError for other group sizes, bits or modes.

    >>> import nuvec as nv
    >>> w = nv.array([[-1.0] * 16 + [0.0] * 8 + [2.0] * 8])
    >>> codes, scales, biases = nv.quantize(w, group_size=32, bits=2)
    >>> codes.shape, scales.tolist(), biases.tolist()
    ((1, 2), [[-1.0]], [[2.0]])
    """
    group_size, bits = check_packing("quantize", group_size, bits, mode)
    w = operand(w, "quantize's w")
    if not dtypes.is_floating(w.dtype):
        raise DtypeError(
            f"quantize: w must be real and floating, got {w.aval}; convert it with "
            ".astype(nv.float32)"
        )
    if not w.ndim or w.shape[-1] % group_size:
        size = f"has size {w.shape[-1]}" if w.ndim else "is not there"
        raise ShapeError(
            f"quantize: the last axis of {w.aval} {size}, and must be a multiple of group_size="
            f"{group_size}; pad it, or pass another group_size ({', '.join(map(str, GROUP_SIZES))})"
        )
    levels = 2**bits - 1
    wide = as_operand(w, dtypes.accumulation(w.dtype), w.aval.weak)
    groups = reshape(wide, (*w.shape[:-1], w.shape[-1] // group_size, group_size))
    least, greatest = min(groups, axis=-1), max(groups, axis=-1)
    below = greater(abs(least), abs(greatest))
    step = maximum(divide(subtract(greatest, least), levels), LEAST)
    step = where(below, step, negative(step))
    edge = where(below, least, greatest)
    steps = round(divide(edge, step))
    has_edge = not_equal(steps, 0)
    scales = where(has_edge, divide(edge, where(has_edge, steps, 1)), step)
    biases = where(has_edge, edge, 0)
    codes = round(divide(subtract(groups, _of_groups(biases)), _of_groups(scales)))
    codes = where(greater(codes, 0), minimum(codes, levels), 0)  # 0 also for NaN
    codes = converted(reshape(codes, w.shape), dtypes.uint8)
    packed = pack_codes_p.bind(codes, bits=bits)
    return packed, as_operand(scales, w.dtype), as_operand(biases, w.dtype)


@filtered
def dequantize(
    wq: Any, scales: Any, biases: Any, group_size: int = 64, bits: int = 4, mode: str = "affine"
) -> Array:
    """What `quantize` made its three arrays of, nearly: `scale * code + bias`, elementwise.

    wq uint32[..., K * bits / 32] with scales and biases [..., K / group_size] gives [..., K], in
    the promoted dtype of scales and biases, in which it is computed too (as MLX's).
    Differentiable in scales and biases.  Raises ShapeError and DtypeError where the three do not
    belong together, ArgumentError for group sizes, bits or modes that are not supported.

    >>> import nuvec as nv
    >>> w = nv.array([[-1.0] * 16 + [0.0] * 8 + [2.0] * 8])
    >>> packed = nv.quantize(w, group_size=32, bits=2)
    >>> bool((nv.dequantize(*packed, group_size=32, bits=2) == w).all())
    True
    """
    group_size, bits = check_packing("dequantize", group_size, bits, mode)
    wq = operand(wq, "dequantize's wq")
    scales, biases = promote_operands("dequantize", (scales, biases), real_inexact)
    columns = check_packed("dequantize", wq.aval, scales.aval, biases.aval, group_size, bits)
    codes = converted(unpack_codes_p.bind(wq, bits=bits), scales.dtype)
    codes = reshape(codes, (*scales.shape, group_size))
    elements = add(multiply(codes, _of_groups(scales)), _of_groups(biases))
    return reshape(elements, (*wq.shape[:-1], columns))


@filtered
def quantized_matmul(
    x: Any, wq: Any, scales: Any, biases: Any, transpose: bool = True, group_size: int = 64,
    bits: int = 4, mode: str = "affine",
) -> Array:  # fmt: skip
    """`x @ w.T`, or `x @ w` with transpose=False, where w is the matrix that was quantized.

    With w of N rows and K columns, x[..., M, K] gives [..., M, N], or x[..., M, N] gives
    [..., M, K]; x may be a vector.  Leading axes of x and of the quantized matrix broadcast.  It
    works in the promoted dtype of x, scales and biases (float16 and bfloat16 accumulate in
    float32) and dequantizes a small block of w at a time, never all of it.

    Differentiable in x, scales and biases; codes have no derivative.  Raises ShapeError and
    DtypeError where operands do not fit, ArgumentError for group sizes, bits or modes that are
    not supported.

    >>> import nuvec as nv
    >>> packed = nv.quantize(nv.ones((4, 64)))
    >>> nv.quantized_matmul(nv.ones((2, 64)), *packed).tolist()
    [[64.0, 64.0, 64.0, 64.0], [64.0, 64.0, 64.0, 64.0]]
    """
    name = "quantized_matmul"
    group_size, bits = check_packing(name, group_size, bits, mode)
    wq = operand(wq, f"{name}'s wq")
    x, scales, biases = promote_operands(name, (x, scales, biases), real_inexact)
    check_packed(name, wq.aval, scales.aval, biases.aval, group_size, bits)
    if not x.ndim or wq.ndim < 2:
        raise ShapeError(
            f"{name}: x must have an axis and the quantized matrix two, got {x.aval} and {wq.aval}"
        )
    shape = x.shape  # of what is multiplied; its last axis is replaced
    if wq.ndim == 2:  # all of x's leading axes are rows of one matrix
        x = reshape(x, (math.prod(shape[:-1]), shape[-1]))
    else:
        x = reshape(x, (1, *shape)) if x.ndim == 1 else x
        many = broadcast_shapes(name, x.shape[:-2], wq.shape[:-2])
        shape = (*many, *shape[-2:])
        x = broadcast_to(x, (*many, *x.shape[-2:]))
        wq, scales, biases = (broadcast_to(a, (*many, *a.shape[-2:])) for a in (wq, scales, biases))
    packing = {"transpose": bool(transpose), "group_size": group_size, "bits": bits}
    out = quantized_matmul_p.bind(x, wq, scales, biases, **packing)
    return reshape(out, (*shape[:-1], out.shape[-1]))


def _of_groups(x: Array) -> Array:
    """A number for each group, against the elements of the group."""
    return reshape(x, (*x.shape, 1))
