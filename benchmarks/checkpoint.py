"""Peak memory of a deep MLP's gradient, with and without checkpoint.

    python benchmarks/checkpoint.py [--depths 16 36 64 100] [--width 64] [--batch 1024]

Layers are cut into sqrt(depth) checkpointed pieces.  Memory is what tracemalloc sees of one
gradient, arena included, in activations (batch x width float32 arrays); beside it what the plan
predicts.  Gradients are compared bit for bit.
"""

from __future__ import annotations

import argparse
import gc
import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

import nuvec as nv


def layers(x: Any, ws: Any) -> Any:
    for w in ws:
        x = nv.tanh(x @ w)
    return x


def network(depth: int, policy: str | None) -> Callable[[Any, Any], Any]:
    piece = layers if policy is None else nv.checkpoint(layers, policy)
    size = math.isqrt(depth)

    def loss(ws: Any, x: Any) -> Any:
        for i in range(0, depth, size):
            x = piece(x, ws[i : i + size])
        return (x * x).mean()

    return loss


def peak(gradient: Callable[..., Any], *args: Any) -> tuple[int, Any]:
    """Bytes at the peak of a call, everything made by it included."""
    gc.collect()
    tracemalloc.start()
    try:
        result = gradient(*args)
        nv.eval(result)
        return tracemalloc.get_traced_memory()[1], result
    finally:
        tracemalloc.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--depths", type=int, nargs="+", default=[16, 36, 64, 100])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1024)
    args = parser.parse_args()
    unit = args.batch * args.width * 4
    print(f"activations of {args.batch} x {args.width}: {unit / 1e6:.2f} MB each\n")
    print("depth  policy       eager  compiled  predicted   in activations; / sqrt(depth)")
    for depth in args.depths:
        random = np.random.default_rng(0)
        ws = [
            nv.array((random.normal(size=(args.width,) * 2) / args.width**0.5).astype(np.float32))
            for _ in range(depth)
        ]
        x = nv.array(random.normal(size=(args.batch, args.width)).astype(np.float32))
        expected = None
        for policy in (None, "everything", "dots", "nothing"):
            gradient = nv.grad(network(depth, policy))
            nv.eval(gradient(ws, x))  # traces and plans
            eager, found = peak(gradient, ws, x)
            compiled = nv.compile(gradient)
            predicted = compiled.lower(ws, x).memory.peak
            measured, same = peak(compiled, ws, x)
            expected = found if expected is None else expected
            for a, b, c in zip(expected, found, same, strict=True):
                equal = np.array_equal(np.asarray(a), np.asarray(b))
                assert equal and np.array_equal(np.asarray(a), np.asarray(c)), "bits differ"
            print(
                f"{depth:5d}  {policy or 'none':11s}{eager / unit:7.1f}{measured / unit:10.1f}"
                f"{predicted / unit:11.1f}   {measured / unit / depth**0.5:6.2f}"
            )


if __name__ == "__main__":
    main()
