"""Rows for quantized_matmul, quantized_scales, and packing."""

from __future__ import annotations

from typing import Any

import numpy as np

from nuvec.core.functions.quantization import dequantize, quantized_matmul
from nuvec.core.ops.packing import pack_codes_p, unpack_codes_p
from nuvec.core.ops.quantization import quantized_matmul_p, quantized_scales_p, scaled_matmul_p
from tests.cases.case import Case, integers, sample


def codes(*shape: int, bits: int, seed: int = 0) -> np.ndarray:
    """Deterministic codes, uint8."""
    return integers(*shape, low=0, high=2**bits, seed=seed).astype(np.uint8)


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes as a stream of bits, the least significant first, in words."""
    stream = (codes[..., None] >> np.arange(bits)) & 1
    words = stream.reshape(*codes.shape[:-1], codes.shape[-1] * bits // 32, 32).astype(np.uint64)
    return (words << np.arange(32, dtype=np.uint64)).sum(axis=-1).astype(np.uint32)


def unpack(words: np.ndarray, bits: int) -> np.ndarray:
    stream = ((words[..., None] >> np.arange(32, dtype=np.uint32)) & 1).astype(np.uint8)
    stream = stream.reshape(*words.shape[:-1], words.shape[-1] * 32 // bits, bits)
    return (stream << np.arange(bits, dtype=np.uint8)).sum(axis=-1).astype(np.uint8)


def _plain(words: Any, scales: Any, biases: Any, group_size: int, bits: int) -> np.ndarray:
    q = unpack(words, bits).astype(scales.dtype)
    return q * np.repeat(scales, group_size, -1) + np.repeat(biases, group_size, -1)


def _product(
    label: str, x: tuple[int, ...], rows: int, columns: int, transpose: bool, group_size: int = 32,
    bits: int = 4, stack: tuple[int, ...] = (), **options: Any,
) -> Case:  # fmt: skip
    def reference(x: Any, words: Any, scales: Any, biases: Any) -> np.ndarray:
        w = _plain(words, scales, biases, group_size, bits)
        return x @ (w.swapaxes(-1, -2) if transpose else w)

    groups = (*stack, rows, columns // group_size)
    args = (
        sample(*x, low=-0.5, high=0.5), pack(codes(*stack, rows, columns, bits=bits), bits),
        sample(*groups, seed=1) / 2**bits, sample(*groups, seed=2),
    )  # fmt: skip
    return Case(
        "quantized_matmul",
        lambda x, *packed: quantized_matmul(x, *packed, transpose, group_size, bits),
        args, reference, label, **options,
    )  # fmt: skip


def _scales(label: str, m: int, rows: int, columns: int, bits: int, *stack: int) -> Case:
    def reference(x: Any, y: Any, words: Any) -> np.ndarray:
        met = x.swapaxes(-1, -2) @ y * unpack(words, bits)
        return met.reshape(*stack, rows, columns // 32, 32).sum(axis=-1)

    args = (
        sample(*stack, m, rows), sample(*stack, m, columns, low=-0.5, high=0.5, seed=1),
        pack(codes(*stack, rows, columns, bits=bits), bits),
    )  # fmt: skip
    return Case(
        "quantized_scales",
        lambda x, y, words: quantized_scales_p.bind(x, y, words, group_size=32, bits=bits),
        args, reference, label, rtol=1e-4,
    )  # fmt: skip


def _scaled(label: str, x: tuple[int, ...], transpose: bool, bits: int, *stack: int) -> Case:
    def reference(x: Any, words: Any, scales: Any) -> np.ndarray:
        w = _plain(words, scales, np.zeros_like(scales), 32, bits)
        return x @ (w.swapaxes(-1, -2) if transpose else w)

    args = (
        sample(*stack, *x, low=-0.5, high=0.5), pack(codes(*stack, 3, 64, bits=bits), bits),
        sample(*stack, 3, 2, seed=1) / 2**bits,
    )  # fmt: skip
    params = {"transpose": transpose, "group_size": 32, "bits": bits}
    return Case(
        "scaled_matmul", lambda *operands: scaled_matmul_p.bind(*operands, **params), args,
        reference, label,
    )  # fmt: skip


def _direct(x: Any, *packed: Any) -> Any:
    return quantized_matmul_p.bind(x, *packed, transpose=True, group_size=32, bits=2)


CASES = [
    _product("rows", (3, 64), 2, 64, True),
    _product("columns", (3, 2), 2, 64, False),
    _product("three-bits", (2, 32), 3, 32, True, bits=3),
    _product("five-bits", (2, 3), 3, 64, False, 64, 5),
    _product("six-bits", (2, 64), 3, 64, True, 64, 6),
    _product("eight-bits", (2, 3), 3, 32, False, bits=8),
    _product("group-of-128", (1, 128), 2, 128, True, 128, 2),
    _product("vector", (32,), 2, 32, True, bits=2),
    _product("leading-axes", (2, 1, 3, 32), 2, 32, True, bits=2),
    _product("stack", (2, 3, 32), 2, 32, True, bits=2, stack=(2,)),
    _product("stack-by-columns", (2, 3, 2), 2, 32, False, bits=2, stack=(2,)),
    _product("no-rows-of-x", (0, 32), 2, 32, True),
    _product("nothing-summed", (2, 0), 0, 32, False),
    Case("quantized_matmul", _direct,
         (sample(2, 3, 32), pack(codes(2, 2, 32, bits=2), 2), sample(2, 2, 1), sample(2, 2, 1)),
         lambda x, *packed: x @ _plain(*packed, 32, 2).swapaxes(-1, -2), "primitive"),
    _scaled("rows", (2, 64), True, 3),
    _scaled("columns", (2, 3), False, 4),
    _scaled("stack", (2, 64), True, 2, 2),
    _scales("matrix", 3, 2, 64, 4),
    _scales("three-bits", 2, 3, 32, 3),
    _scales("stack", 2, 2, 32, 2, 2),
    _scales("nothing-summed", 0, 2, 32, 2),
    *[Case("unpack_codes", lambda words, bits=bits: unpack_codes_p.bind(words, bits=bits),
           (pack(codes(2, 3, 64, bits=bits), bits),),
           lambda words, bits=bits: unpack(words, bits), f"{bits}-bits", differentiable=False)
      for bits in (2, 3, 4, 5, 6, 8)],
    *[Case("pack_codes", lambda codes, bits=bits: pack_codes_p.bind(codes, bits=bits),
           (codes(2, 3, 64, bits=bits),),
           lambda codes, bits=bits: pack(codes, bits), f"{bits}-bits", differentiable=False)
      for bits in (2, 3, 4, 5, 6, 8)],
    Case("unpack_codes", lambda words, s, b: dequantize(words, s, b, 32, 3),
         (pack(codes(2, 64, bits=3), 3), sample(2, 2), sample(2, 2, seed=1)),
         lambda words, s, b: _plain(words, s, b, 32, 3), "dequantize"),
]  # fmt: skip
