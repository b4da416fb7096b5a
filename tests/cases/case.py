"""A row of test cases: one call of a public operation that exercises one primitive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """primitive -- the primitive's name in the table (or None for a composite)
    function  -- takes the arrays (as nuvec Arrays) and returns an Array or a list of them
    args      -- NumPy arrays; floating ones are what the generated tests differentiate.  Keep
                 them away from kinks and poles unless the point is the kink.  float64 for
                 numerical derivatives is made from float32 rows by the tests
    reference -- the same in NumPy, or None where the property tests are the reference
    label     -- tells rows of one primitive apart
    rtol      -- for comparing with `reference`
    differentiable -- False where the function has kinks at the sample or integer results
    """

    primitive: str | None
    function: Callable[..., Any]
    args: tuple[Any, ...]
    reference: Callable[..., Any] | None = None
    label: str = ""
    rtol: float = 1e-5
    differentiable: bool = True
    tags: frozenset[str] = field(default=frozenset())

    def __str__(self) -> str:
        return f"{self.primitive or 'composite'}-{self.label}".rstrip("-")


def sample(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> np.ndarray:
    """Deterministic float32 numbers, evenly spread in [low, high] and shuffled, no two equal."""
    size = int(np.prod(shape))
    values = np.linspace(low, high, size + 2)[1:-1]
    order = np.random.Generator(np.random.PCG64(seed + size)).permutation(size)
    return values[order].reshape(shape).astype(np.float32)


def integers(*shape: int, low: int = -5, high: int = 6, seed: int = 0) -> np.ndarray:
    """Deterministic int32 numbers in [low, high)."""
    return np.random.Generator(np.random.PCG64(seed)).integers(low, high, shape).astype(np.int32)
