"""Products with a matrix that stays packed: quantized_matmul, scaled_matmul, quantized_scales.

A row of the matrix W is cut into groups; element k of row n, in group g, is

    W[n, k] = scales[n, g] * q[n, k] + biases[n, g],

with q an integer code.  quantized_matmul is `x @ W.T`, or, with transpose=False, `x @ W`: linear in
x, and each is the other's transpose.  It is affine in scales and biases, and its derivatives for
these are linear:

- scaled_matmul is the same without biases, linear in x and in scales;
- quantized_scales is its transpose for the scales: the sum over m, and over the columns of a
  group, of  x[m, n] y[m, k] q[n, k],  linear in x and y, and scaled_matmul is its transpose;
- biases, which meet sums over groups, need no matrix.

W itself is never there: all three work block by block (nuvec.core.ops.blocks).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array
from nuvec.core.errors import DtypeError, ShapeError
from nuvec.core.ir import Aval, Eqn, aval
from nuvec.core.ops.arithmetic import add
from nuvec.core.ops.batching import batch_first
from nuvec.core.ops.blocks import (
    BLOCK,
    accumulate,
    by_planes,
    codes_of,
    columns_of,
    cuts,
    elements_of,
    in_order,
    product_for,
    share,
)
from nuvec.core.ops.contraction import matmul
from nuvec.core.ops.packing import WORD, plane_count
from nuvec.core.ops.shape import broadcast_to_p, move_axis, reshape_p, sum, transpose_p
from nuvec.core.primitive import Primitive
from nuvec.core.threads import thread_count

# Shapes


def check_packed(
    name: str, words: Aval, scales: Aval, biases: Aval | None, group_size: int, bits: int
) -> int:
    """The columns of the matrix; raises unless words, scales and biases describe one."""
    if words.dtype != dtypes.uint32:
        raise DtypeError(
            f"{name}: the quantized matrix is uint32, as nv.quantize returns it, got {words}"
        )
    if biases is not None and scales.shape != biases.shape:
        raise ShapeError(
            f"{name}: scales {scales} and biases {biases} must have one shape: both have an "
            "element for each group, as nv.quantize returns them"
        )
    groups = scales.shape[-1] if scales.ndim else 0
    columns = groups * group_size
    if (
        not words.ndim
        or words.ndim != scales.ndim
        or words.shape[:-1] != scales.shape[:-1]
        or words.shape[-1] * WORD != columns * bits
    ):
        needed = (*words.shape[:-1], words.shape[-1] * WORD // (bits * group_size))
        raise ShapeError(
            f"{name}: a quantized matrix {words} with group_size={group_size} and bits={bits} has "
            f"{words.shape[-1] * WORD / bits:g} columns, and needs scales and biases of shape "
            f"{needed}; got {scales}, for {columns} columns. Pass the group_size and bits it was "
            "quantized with"
        )
    return columns


def _check_dtypes(name: str, *operands: Aval) -> None:
    if len({a.dtype for a in operands}) > 1 or not dtypes.is_floating(operands[0].dtype):
        given = ", ".join(map(str, operands))
        raise DtypeError(f"{name}: the primitive takes one real floating dtype, got {given}")


def _check_batches(name: str, *operands: Aval) -> None:
    if len({a.shape[:-2] for a in operands}) > 1 or any(a.ndim < 2 for a in operands):
        given = ", ".join(map(str, operands))
        raise ShapeError(f"{name}: the primitive takes equal leading axes, got {given}")


# quantized_matmul and scaled_matmul: x @ W.T, or x @ W


def _matmul_rule(
    name: str, x: Aval, words: Aval, scales: Aval, biases: Aval | None, transpose: bool,
    group_size: int, bits: int,
) -> Aval:  # fmt: skip
    numbers = (x, scales) if biases is None else (x, scales, biases)
    _check_dtypes(name, *numbers)
    columns = check_packed(name, words, scales, biases, group_size, bits)
    _check_batches(name, x, words)
    rows = words.shape[-2]
    summed, free = (columns, rows) if transpose else (rows, columns)
    if x.shape[-1] != summed:
        other = " Did you mean the other transpose=?" if x.shape[-1] == free else ""
        raise ShapeError(
            f"{name}: the last axis of x {x} has size {x.shape[-1]}, and the quantized matrix is "
            f"{rows} x {columns} ({words}, group_size={group_size}, bits={bits}): with "
            f"transpose={transpose} it must be {summed}.{other}"
        )
    return aval((*x.shape[:-1], free), x.dtype, all(a.weak for a in numbers))


def _matmul_lower(
    x: Any, words: Any, scales: Any, biases: Any, transpose: bool, group_size: int, bits: int
) -> Any:
    wide = dtypes.accumulation(x.dtype)
    factor, s = (np.asarray(a).astype(wide, copy=False) for a in (x, scales))
    b = None if biases is None else np.asarray(biases).astype(wide, copy=False)
    free = words.shape[-2] if transpose else s.shape[-1] * group_size
    out = np.empty((*x.shape[:-1], free), wide)
    multiply = _times_transposed if transpose else _times
    for place in np.ndindex(*out.shape[:-2]):

        def block(rows: slice, groups: slice, at: Any = place) -> Any:
            bias = None if b is None else b[at][rows]
            return elements_of(words[at][rows], s[at][rows], bias, groups, group_size, bits)

        multiply(factor[place], s[place], block, group_size, bits, out[place])
    return out.astype(x.dtype, copy=False)


Block = Callable[[slice, slice], Any]  # of some rows and groups


def _times_transposed(
    x: Any, scales: Any, block: Block, group_size: int, bits: int, out: Any
) -> None:
    rows, groups = cuts(scales, group_size, True)
    pieces = [by_planes(x[:, columns_of(some, group_size)], bits) for some in groups]
    product = product_for(len(rows))

    def work(i: int) -> None:
        pairs = zip(pieces, groups, strict=True)
        parts = (product(piece, block(rows[i], some).T) for piece, some in pairs)
        accumulate(parts, out[:, rows[i]])

    share(work, len(rows), scales.size * group_size, x)


def _times(x: Any, scales: Any, block: Block, group_size: int, bits: int, out: Any) -> None:
    rows, groups = cuts(scales, group_size, False)
    product = product_for(len(groups))
    count = plane_count(bits)
    periods = out.reshape(len(out), out.shape[1] // count, count)

    def work(i: int) -> None:
        parts = (product(x[:, some], block(some, groups[i])) for some in rows)
        here = slice(*(k * group_size // count for k in (groups[i].start, groups[i].stop)))
        accumulate((in_order(part, bits) for part in parts), periods[:, here])

    share(work, len(groups), scales.size * group_size, x)


def _matmul_jvp(
    tangents: Sequence[Array | None], out: Array, x: Array, words: Array, scales: Array,
    biases: Array, transpose: bool, group_size: int, bits: int,
) -> Array:  # fmt: skip
    """d(x W) = dx W + x dW"""
    dx, _, ds, db = tangents
    params = {"transpose": transpose, "group_size": group_size, "bits": bits}
    terms = []
    if dx is not None:
        terms.append(quantized_matmul_p.bind(dx, words, scales, biases, **params))
    if ds is not None:
        terms.append(scaled_matmul_p.bind(x, words, ds, **params))
    if db is not None and transpose:
        terms.append(matmul(_sum_groups(x, group_size), _turned(db)))
    elif db is not None:
        terms.append(_repeat(matmul(x, db), group_size))
    return functools.reduce(add, terms)


def _matmul_vjp(
    i: int, c: Array, out: Array, x: Array, words: Array, scales: Array, biases: Array,
    transpose: bool, group_size: int, bits: int,
) -> Array:  # fmt: skip
    packing = {"group_size": group_size, "bits": bits}
    if i == 0:
        return quantized_matmul_p.bind(c, words, scales, biases, transpose=not transpose, **packing)
    by_row, by_column = (c, x) if transpose else (x, c)
    if i == 2:
        return quantized_scales_p.bind(by_row, by_column, words, **packing)
    return matmul(_turned(by_row), _sum_groups(by_column, group_size))


def _scaled_transpose(
    i: int, c: Array, out: Array, x: Array, words: Array, scales: Array, transpose: bool,
    **packing: Any,
) -> Array:  # fmt: skip
    if i == 0:
        return scaled_matmul_p.bind(c, words, scales, transpose=not transpose, **packing)
    by_row, by_column = (c, x) if transpose else (x, c)
    return quantized_scales_p.bind(by_row, by_column, words, **packing)


def _sum_groups(x: Array, group_size: int) -> Array:
    """x[..., m, k] -> [..., m, g]"""
    grouped = (*x.shape[:-1], x.shape[-1] // group_size, group_size)
    return sum(reshape_p.bind(x, shape=grouped), axis=-1)


def _repeat(x: Array, group_size: int) -> Array:
    """x[..., m, g] -> [..., m, k], the transpose of `_sum_groups`."""
    one = reshape_p.bind(x, shape=(*x.shape, 1))
    many = broadcast_to_p.bind(one, shape=(*x.shape, group_size))
    return reshape_p.bind(many, shape=(*x.shape[:-1], x.shape[-1] * group_size))


def _turned(x: Array) -> Array:
    """The last two axes in each other's place."""
    order = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
    return transpose_p.bind(x, permutation=order)


def _matmul_vmap(primitive: Callable[[], Primitive]) -> Any:
    def vmap(
        size: int, axes: Sequence[int | None], x: Array, *packed: Array, **params: Any
    ) -> tuple[Array, int]:
        """A batch of x alone is more rows of x: the matrix is unpacked once for all of it."""
        if axes[0] is not None and all(a is None for a in axes[1:]):
            place = x.ndim - 3
            x = move_axis(x, axes[0], place)
            folded = (*x.shape[:place], size * x.shape[-2], x.shape[-1])
            out = primitive().bind(reshape_p.bind(x, shape=folded), *packed, **params)
            return reshape_p.bind(out, shape=(*x.shape[:-1], out.shape[-1])), place
        pairs = zip((x, *packed), axes, strict=True)
        return primitive().bind(*[batch_first(a, k, size) for a, k in pairs], **params), 0

    return vmap


def _memory(blocks: int) -> Callable[[Eqn], tuple[int, int]]:
    """So many blocks for each thread, and bytes of one; the operands in their working dtype, or
    ordered plane after plane."""

    def memory(eqn: Eqn) -> tuple[int, int]:
        out = eqn.outputs[0].aval
        wide = dtypes.accumulation(out.dtype).itemsize
        passing = thread_count() * BLOCK * (blocks * wide + 2)
        for a in eqn.inputs:
            if dtypes.is_floating(a.aval.dtype):
                passing += wide * a.aval.size
        return out.nbytes, passing + (wide * out.size if wide != out.dtype.itemsize else 0)

    return memory


quantized_matmul_p: Primitive = Primitive(
    "quantized_matmul", _matmul_lower, functools.partial(_matmul_rule, "quantized_matmul"),
    "contraction", jvp=_matmul_jvp, vjp=_matmul_vjp, linear="each", linear_operands=(0,),
    vmap=_matmul_vmap(lambda: quantized_matmul_p), memory=_memory(1),
)  # fmt: skip

scaled_matmul_p: Primitive = Primitive(
    "scaled_matmul",
    lambda x, words, scales, **params: _matmul_lower(x, words, scales, None, **params),
    lambda x, words, scales, **params: _matmul_rule(
        "scaled_matmul", x, words, scales, None, **params
    ),
    "contraction", transpose=_scaled_transpose, linear="each", linear_operands=(0, 2),
    vmap=_matmul_vmap(lambda: scaled_matmul_p), memory=_memory(1),
)  # fmt: skip


# quantized_scales: sum over m and over the columns of group g of  x[m, n] y[m, k] q[n, k]


def _scales_rule(x: Aval, y: Aval, words: Aval, group_size: int, bits: int) -> Aval:
    name = "quantized_scales"
    _check_dtypes(name, x, y)
    _check_batches(name, x, y, words)
    shape = (*words.shape[:-1], words.shape[-1] * WORD // (bits * group_size))
    columns = check_packed(name, words, aval(shape, x.dtype), None, group_size, bits)
    if x.shape[-2] != y.shape[-2] or (x.shape[-1], y.shape[-1]) != (words.shape[-2], columns):
        raise ShapeError(
            f"{name}: x {x} and y {y} must be m x {words.shape[-2]} and m x {columns}, for a "
            f"quantized matrix {words} with group_size={group_size}, bits={bits}"
        )
    return aval(shape, x.dtype, x.weak and y.weak)


def _scales_lower(x: Any, y: Any, words: Any, group_size: int, bits: int) -> Any:
    wide = dtypes.accumulation(x.dtype)
    a, b = (np.asarray(v).astype(wide, copy=False) for v in (x, y))
    groups = words.shape[-1] * WORD // (bits * group_size)
    out = np.empty((*words.shape[:-1], groups), wide)
    for place in np.ndindex(*out.shape[:-2]):
        _scales_of(a[place], b[place], words[place], group_size, bits, out[place])
    return out.astype(x.dtype, copy=False)


def _scales_of(x: Any, y: Any, words: Any, group_size: int, bits: int, out: Any) -> None:
    rows, groups = cuts(out, group_size, True)
    pieces = [by_planes(y[:, columns_of(g, group_size)], bits) for g in groups]
    product = product_for(len(rows))

    def work(i: int) -> None:
        some = rows[i]
        for piece, g in zip(pieces, groups, strict=True):
            codes = codes_of(words[some], g, group_size, bits, x.dtype)
            meeting = product(x[:, some].T, piece).reshape(codes.shape)
            out[some, g] = np.einsum("rpgk,rpgk->rg", meeting, codes)

    share(work, len(rows), out.size * group_size, y)


def _scales_transpose(
    i: int, v: Array, out: Array, x: Array, y: Array, words: Array, **packing: Any
) -> Array:
    """<v, S(x, y)> = sum over m, n, k of  x[m, n] y[m, k] v[n, g] q[n, k]"""
    return scaled_matmul_p.bind(y if i == 0 else x, words, v, transpose=i == 0, **packing)


def _scales_vmap(
    size: int, axes: Sequence[int | None], *operands: Array, **packing: Any
) -> tuple[Array, int]:
    pairs = zip(operands, axes, strict=True)
    return quantized_scales_p.bind(*[batch_first(a, k, size) for a, k in pairs], **packing), 0


quantized_scales_p: Primitive = Primitive(
    "quantized_scales", _scales_lower, _scales_rule, "contraction",
    transpose=_scales_transpose, linear="each", linear_operands=(0, 1), vmap=_scales_vmap,
    memory=_memory(2),
)  # fmt: skip
