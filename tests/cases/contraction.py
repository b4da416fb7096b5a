"""Rows for dot_general through the products made of it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from nuvec.core.functions.einsum import einsum
from nuvec.core.functions.products import inner, tensordot, vecdot
from nuvec.core.ops.contraction import dot, dot_general, matmul
from tests.cases.case import Case, integers, sample

_MATMUL = [
    ((3,), (3,)), ((3,), (3, 2)), ((2, 3), (3,)), ((2, 3), (3, 4)), ((1, 3), (3, 1)),
    ((3,), (5, 3, 2)), ((5, 2, 3), (3,)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)), ((1, 2, 3), (5, 3, 4)), ((5, 2, 3), (1, 3, 4)),
    ((1, 2, 3), (1, 3, 4)), ((2, 1, 2, 3), (3, 3, 2)), ((2, 1, 2, 3), (1, 3, 3, 2)),
    ((2, 3, 2, 4), (2, 3, 4, 2)), ((3, 2, 1), (3, 1, 2)), ((2, 0), (0, 3)), ((0, 3), (3, 2)),
    ((2, 3), (3, 0)), ((0, 2, 3), (0, 3, 2)), ((2, 1, 3), (2, 3, 1)),
]  # fmt: skip


def _general(label: str, x: tuple[int, ...], y: tuple[int, ...], contract: Any, batch: Any,
             text: str) -> Case:  # fmt: skip
    return Case(
        "dot_general", lambda x, y: dot_general(x, y, contract, batch),
        (sample(*x), sample(*y, seed=1)), lambda x, y: np.einsum(text, x, y), label,
    )  # fmt: skip


def _typed(label: str, x: np.ndarray, y: np.ndarray, rtol: float = 1e-5, **options: Any) -> Case:
    return Case("dot_general", matmul, (x, y), np.matmul, label, rtol=rtol, **options)


def _half(dtype: Any) -> Any:
    """Accumulated in float32, rounded once."""
    return lambda x, y: (x.astype("f4") @ y.astype("f4")).astype(dtype)


CASES = [
    *[Case("dot_general", matmul, (sample(*x), sample(*y, seed=1)), np.matmul,
           f"matmul-{'x'.join(map(str, x))}-{'x'.join(map(str, y))}") for x, y in _MATMUL],
    _general("no-axes", (2,), (3, 2), ((), ()), ((), ()), "a,bc->abc"),
    _general("first-with-first", (3, 2), (3, 4), ((0,), (0,)), ((), ()), "ka,kb->ab"),
    _general("last-with-last", (2, 3), (4, 3), ((1,), (1,)), ((), ()), "ak,bk->ab"),
    _general("two-axes", (2, 3, 4), (4, 3, 5), ((1, 2), (1, 0)), ((), ()), "ajk,kjb->ab"),
    _general("all-axes", (2, 3), (3, 2), ((0, 1), (1, 0)), ((), ()), "ab,ba->"),
    _general("middle-axis", (2, 3, 4), (5, 3, 2), ((1,), (1,)), ((), ()), "akb,ckd->abcd"),
    _general("batch-last", (2, 3, 4), (3, 5, 4), ((1,), (0,)), ((2,), (2,)), "akz,kbz->zab"),
    _general("two-batch-axes", (2, 3, 4, 5), (3, 5, 6, 2), ((3,), (1,)), ((1, 0), (0, 3)),
             "yxak,ykbx->xyab".replace("yxak", "xyak").replace("->xyab", "->yxab")),
    _general("batch-without-contraction", (3, 2), (3, 4), ((), ()), ((0,), (0,)), "za,zb->zab"),
    _general("batch-of-dots", (4, 3), (4, 3), ((1,), (1,)), ((0,), (0,)), "zk,zk->z"),
    _general("batch-and-two-contracted", (2, 3, 4, 5), (3, 4, 2), ((2, 1), (1, 0)), ((0,), (2,)),
             "zjka,jkz->za"),
    Case("dot_general", dot, (sample(2, 3), sample(5, 3, 4)), np.dot, "dot"),
    Case("dot_general", inner, (sample(2, 3), sample(5, 4, 3)), np.inner, "inner"),
    Case("dot_general", lambda x, y: tensordot(x, y, 2), (sample(2, 3, 4), sample(3, 4, 2)),
         lambda x, y: np.tensordot(x, y, 2), "tensordot"),
    Case("dot_general", vecdot, (sample(4, 3), sample(2, 4, 3)),
         lambda x, y: np.sum(x * y, -1), "vecdot"),
    Case("dot_general", lambda x, y: einsum("bqhd,bkhd->bhqk", x, y),
         (sample(2, 3, 2, 4), sample(2, 5, 2, 4)),
         lambda x, y: np.einsum("bqhd,bkhd->bhqk", x, y), "attention"),
    _typed("transposed", sample(3, 4).T, sample(2, 3).T),
    _typed("strided", sample(4, 6)[::2, ::-2], sample(6, 5)[::2, 1::2]),
    _typed("strided-batch", sample(3, 4, 2).transpose(2, 1, 0), sample(3, 2, 5).transpose(1, 0, 2)),
    _typed("the-other-dtype", sample(2, 3).astype("f8"), sample(3, 2).astype("f8"), 1e-12),
    _typed("complex", sample(2, 3) + 1j * sample(2, 3, seed=2),
           (sample(3, 2) - 1j * sample(3, 2, seed=3)).astype("c8")),
    _typed("integers", integers(4, 3), integers(3, 2), differentiable=False),
    _typed("integers-batched", integers(2, 4, 3), integers(2, 3, 2), differentiable=False),
    _typed("int8-wraps", np.full((2, 3), 100, "i1"), np.full((3, 2), 2, "i1"),
           differentiable=False),
    _typed("booleans", integers(4, 3) > 0, integers(3, 2) > 0, differentiable=False),
    Case("dot_general", matmul, (sample(3, 64).astype("f2"), sample(64, 2).astype("f2")),
         _half(np.float16), "float16", differentiable=False),
    Case("dot_general", matmul,
         (sample(3, 64).astype(ml_dtypes.bfloat16), sample(64, 2).astype(ml_dtypes.bfloat16)),
         _half(ml_dtypes.bfloat16), "bfloat16", differentiable=False),
    Case("dot_general", matmul,
         (sample(2, 3, 64).astype("f2"), sample(2, 64, 2).astype("f2")),
         _half(np.float16), "float16-batched", differentiable=False),
]  # fmt: skip
