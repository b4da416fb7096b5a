"""Rows for random_bits, random_split, random_fold_in, random_permutation, random_parameter.

The references are NumPy's own generator, run key by key.
"""

from __future__ import annotations

import math

import numpy as np

from nuvec.core.ops.parameters import random_parameter_p
from nuvec.core.ops.random import (
    random_bits_p,
    random_fold_in_p,
    random_permutation_p,
    random_split_p,
)  # fmt: skip
from tests.cases.case import Case, integers, sample

KEY = np.array([0x0123456789ABCDEF, 0xFEDCBA9876543210], np.uint64)
BATCH = (np.arange(6, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).reshape(3, 2)
GRID = (np.arange(20, dtype=np.uint64) * np.uint64(0xD2B74407B1CE6E93)).reshape(2, 5, 2)
DATA = np.array([0, 7, 2**64 - 1], np.uint64)


def stream(key, salt, purpose, count):
    counter = np.array([0, salt, 0, purpose], np.uint64)
    return np.random.Philox(key=np.ascontiguousarray(key), counter=counter).random_raw(count)


def _bits(shape, dtype):
    def reference(keys):
        count = math.prod(shape)
        each = [
            stream(key, 0, 0, -(-count * dtype.itemsize // 8)).view(dtype)[:count].reshape(shape)
            for key in keys.reshape(-1, 2)
        ]
        return np.reshape(each, keys.shape[:-1] + shape).astype(dtype)

    return (lambda key: random_bits_p.bind(key, shape=shape, dtype=dtype)), reference


def _split(num):
    def reference(keys):
        each = [stream(key, 0, 1, 2 * num).reshape(num, 2) for key in keys.reshape(-1, 2)]
        return np.reshape(each, (*keys.shape[:-1], num, 2)).astype(np.uint64)

    return (lambda key: random_split_p.bind(key, num=num)), reference


def _permutation(num):
    def reference(keys):
        each = [np.argsort(stream(key, 0, 3, num), kind="stable") for key in keys.reshape(-1, 2)]
        return np.reshape(each, (*keys.shape[:-1], num)).astype(np.int32)

    return (lambda key: random_permutation_p.bind(key, num=num)), reference


def _fold_in(keys, data):
    batch = np.broadcast_shapes(keys.shape[:-1], data.shape)
    flat = np.broadcast_to(keys, (*batch, 2)).reshape(-1, 2)
    salts = np.broadcast_to(data, batch).reshape(-1)
    each = [stream(key, salt, 2, 2) for key, salt in zip(flat, salts, strict=True)]
    return np.reshape(each, (*batch, 2)).astype(np.uint64)


def _rows(primitive, made, args, label):
    return Case(primitive, made[0], args, made[1], label, differentiable=False)


def _fold_row(keys, data, label):
    return _rows("random_fold_in", (lambda k, d: random_fold_in_p.bind(k, d), _fold_in),
                 (keys, data), label)  # fmt: skip


def _parameter_row(meaning, x, dtype=None, axis=-1):
    dtype = x.dtype if dtype is None else np.dtype(dtype)

    def check(x):
        return random_parameter_p.bind(x, what="p", meaning=meaning, dtype=dtype, axis=axis)

    smooth = x.dtype.kind == "f"
    return Case("random_parameter", check, (x,), lambda x: x, meaning, differentiable=smooth)


CASES = [
    *[
        _rows("random_bits", _bits(shape, np.dtype(dtype)), (key,), label)
        for shape, dtype, key, label in [
            ((3, 5), "uint32", KEY, "uint32"),
            ((), "uint8", KEY, "scalar"),
            ((7,), "uint8", KEY, "uint8"),
            ((3,), "uint16", BATCH, "uint16-batch"),
            ((2, 3), "uint64", GRID, "uint64-grid"),
            ((0, 3), "uint32", KEY, "empty"),
            ((2,), "uint32", BATCH[:0], "no-keys"),
            ((5,), "uint32", np.asfortranarray(BATCH), "strided"),
        ]
    ],
    _rows("random_split", _split(2), (KEY,), "two"),
    _rows("random_split", _split(5), (BATCH,), "batch"),
    _rows("random_split", _split(0), (GRID,), "none"),
    _rows("random_permutation", _permutation(6), (KEY,), "one"),
    _rows("random_permutation", _permutation(5), (GRID,), "grid"),
    _rows("random_permutation", _permutation(0), (BATCH,), "empty"),
    _fold_row(KEY, np.uint64(3), "scalar"),
    _fold_row(KEY, DATA, "data-batch"),
    _fold_row(BATCH, np.uint64(2**63), "key-batch"),
    _fold_row(BATCH, DATA, "both"),
    _fold_row(BATCH[:, None], DATA[:2], "broadcast"),
    _fold_row(BATCH[:0], np.uint64(1), "empty"),
    _parameter_row("probability", sample(2, 3, low=0.1, high=0.9)),
    _parameter_row("weights", sample(2, 3, low=0.1, high=5.0), axis=-2),
    _parameter_row("logits", sample(3, 2)),
    _parameter_row("number", sample(3), "float16"),
    _parameter_row("end", integers(4), "int8"),
]
