"""What an operation of a random program is: the operands it accepts, and how it is drawn."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from nuvec.core import dtypes

__all__ = [
    "LIMIT",
    "MARGIN",
    "Choices",
    "Named",
    "Operation",
    "adder",
    "away",
    "below",
    "kind_of",
    "seeded",
]

LIMIT = 8.0  # values of a program stay below this, so that its derivatives stay moderate
MARGIN = 0.03  # how far values stay from kinks


class Choices(Protocol):
    """Where random decisions come from: a seed, or Hypothesis."""

    def integer(self, low: int, high: int) -> int:
        """An integer in [low, high]."""
        ...

    def pick(self, options: Sequence[Any]) -> Any:
        """One of the options."""
        ...


class _Seeded:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self.random.randrange(len(options))]


def seeded(seed: int) -> Choices:
    """Decisions that follow from a seed, alike on every platform."""
    return _Seeded(seed)


def _no_params(choose: Choices, *operands: np.ndarray) -> tuple[Any, ...]:
    return ()


@dataclass(frozen=True)
class Operation:
    """name     -- how programs show it
    covers   -- the primitives it records
    kinds    -- of the operands, a letter each: f real, c complex, b boolean, i integer; several
                alternatives for one operand in brackets are written "f|c" (all operands alike)
    apply    -- `apply(group, *arrays, *params) -> Array`
    params   -- `params(choose, *values)`: static parameters for operands like these; None where
                the operation does not take them
    fits     -- `fits(*values)`: whether these values are far from kinks and poles
    exchange -- a communication: `exchange(values of all ranks, *params)`, what each rank gets
    sizes    -- the smallest group it works in
    """

    name: str
    covers: tuple[str, ...]
    kinds: str
    apply: Callable[..., Any]
    params: Callable[..., Any] = field(default=_no_params)
    fits: Callable[..., Any] | None = None
    exchange: Callable[..., list[np.ndarray]] | None = None
    sizes: int = 1

    @property
    def communicates(self) -> bool:
        return self.exchange is not None


def kind_of(dtype: np.dtype) -> str:
    """The letter of a dtype: f real, c complex, b boolean, i integer."""
    if dtypes.is_bool(dtype):
        return "b"
    return "c" if dtypes.is_complex(dtype) else "f" if dtypes.is_inexact(dtype) else "i"


Named = list[tuple[str, Callable[..., Any]]]


def adder(operations: list[Operation]) -> Callable[..., None]:
    """`add(covers, kinds, apply, params, fits, name)`: puts an operation of arrays, which does not
    communicate, in a table.  `covers` names its primitives; the first is its name, where no other
    is given."""

    def add(
        covers: str, kinds: str, apply: Callable[..., Any], params: Any = _no_params,
        fits: Any = None, name: str = "",
    ) -> None:  # fmt: skip
        def local(group: Any, *arguments: Any) -> Any:
            return apply(*arguments)

        names = tuple(covers.split())
        operations.append(Operation(name or names[0], names, kinds, local, params, fits))

    return add


def away(low: float) -> Callable[[Any], Any]:
    return lambda x: np.abs(x) > low


def below(high: float) -> Callable[[Any], Any]:
    return lambda x: np.abs(x) < high
