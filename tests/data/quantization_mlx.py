"""Makes quantization_mlx.npz, as quantization_mlx.txt says: run with a Python that has mlx[cpu]."""

import zlib
from pathlib import Path

import mlx.core as mx
import numpy as np

COLUMNS = 128
DTYPES = {
    "float32": (mx.float32, mx.uint32),
    "float16": (mx.float16, mx.uint16),
    "bfloat16": (mx.bfloat16, mx.uint16),
}


def weights() -> np.ndarray:
    """Rows that each ask something else of the rule."""
    draw = np.random.Generator(np.random.PCG64(2026))
    normal = draw.normal(size=(9, COLUMNS))
    normal[1] = np.abs(normal[1])  # all positive
    normal[2] = -np.abs(normal[2]) - 3  # far from 0
    normal[3] = 0.7  # constant in each group
    normal[3, 64:] = -0.3
    normal[4] = 0  # zeros, and zeros with one other element
    normal[4, 96] = -1.5
    normal[5, 5] = 3e4  # a single huge value
    normal[6] *= 1e-6  # steps near the least one
    normal[7] = np.round(normal[7] * 2) / 2  # ties
    normal[8, ::2] = -normal[8, 1::2]  # as far from 0 on both sides
    return normal.astype(np.float32)


def bits_of(x: mx.array, words: mx.Dtype) -> np.ndarray:
    return np.array(mx.view(x, words))


def main() -> None:
    found: dict[str, np.ndarray] = {}
    for name, (dtype, words) in DTYPES.items():
        w = mx.array(weights()).astype(dtype)
        found[f"{name}_w"] = bits_of(w, words)
        all_codes, all_scales, all_biases, sums = [], [], [], []
        for bits in (2, 3, 4, 5, 6, 8):
            for group_size in (32, 64, 128):
                codes, scales, biases = mx.quantize(w, group_size, bits)
                again = mx.dequantize(codes, scales, biases, group_size, bits)
                all_codes.append(np.array(codes).ravel())
                all_scales.append(bits_of(scales, words).ravel())
                all_biases.append(bits_of(biases, words).ravel())
                sums.append(zlib.crc32(bits_of(again, words).tobytes()))
        found[f"{name}_codes"] = np.concatenate(all_codes)
        found[f"{name}_scales"] = np.concatenate(all_scales)
        found[f"{name}_biases"] = np.concatenate(all_biases)
        found[f"{name}_again"] = np.array(sums, np.uint32)
    draw = np.random.Generator(np.random.PCG64(7))
    x = draw.normal(size=(2, COLUMNS)).astype(np.float32)
    y = draw.normal(size=(2, len(weights()))).astype(np.float32)
    found["x"], found["y"] = x, y
    w = mx.array(weights())
    for bits in (2, 3, 4, 5, 6, 8):
        packed = mx.quantize(w, 64, bits)
        found[f"x_{bits}"] = np.array(mx.quantized_matmul(mx.array(x), *packed, True, 64, bits))
        found[f"y_{bits}"] = np.array(mx.quantized_matmul(mx.array(y), *packed, False, 64, bits))
    np.savez_compressed(Path(__file__).with_suffix(".npz"), **found)


main()
