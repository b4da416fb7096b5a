"""Static arguments: which of them share a program, and which are refused."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.errors import ArgumentError
from nuvec.transforms.static import key_of

NAN = float("nan")


@dataclass(frozen=True)
class Options:
    scale: Any
    note: str = field(default="", compare=False)


@dataclass(frozen=True)
class Folded:
    """Has an equality of its own."""

    name: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Folded) and self.name.lower() == other.name.lower()

    def __hash__(self) -> int:
        return hash(self.name.lower())


class Point(NamedTuple):
    x: Any


class Parity(int):
    """An integer that says itself what is equal."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Parity) and int(self) % 2 == int(other) % 2

    def __hash__(self) -> int:
        return int(self) % 2


WRAPPERS: dict[str, Any] = {
    "itself": lambda v: v,
    "tuple": lambda v: (v,),
    "nested": lambda v: (0, ((v,),)),
    "frozenset": lambda v: frozenset([v]),
    "set in tuple": lambda v: (frozenset([(v,)]),),
    "dataclass": Options,
    "namedtuple": Point,
    "in dataclass": lambda v: Options((Point(v),)),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_what_is_equal_and_not_the_same_has_a_program_of_its_own(wrap: Any) -> None:
    ones = [1, 1.0, True, 1 + 0j, np.int8(1), np.float32(1), np.float64(1)]
    zeros = [0.0, -0.0, 0, False, complex(0, -0.0), complex(-0.0, 0), np.float16(-0.0)]
    values = [*ones, *zeros, NAN, -NAN, "1", b"1", None]
    keys = [key_of(wrap(v)) for v in values]
    assert len(set(keys)) == len(values)
    assert keys == [key_of(wrap(v)) for v in values]


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_a_nan_hits_the_cache(wrap: Any) -> None:
    runs = []
    f = nv.compile(lambda x, n: (runs.append(n), x * 2)[1], static_argnums=1)
    for _ in range(3):
        fresh = struct.unpack("d", struct.pack("d", math.nan))[0]
        assert f(1.0, wrap(fresh)).item() == 2
    assert len(runs) == 1


def test_signed_zeros_and_types_reach_the_function() -> None:
    f = nv.compile(lambda x, n: x / n, static_argnums=1)
    assert [f(1.0, z).item() for z in (0.0, -0.0, 0.0)] == [math.inf, -math.inf, math.inf]
    g = nv.compile(lambda x, n: x * n[0], static_argnames="n")
    i = nv.ones(2, dtype=nv.int32)
    found = [g(i, n=(n,)).dtype for n in (1, 1.0, True, np.int8(1))]
    assert found == [nv.int32, nv.float32, nv.int32, nv.int32]
    h = nv.compile(lambda x, n: x * n.scale, static_argnums=1)
    assert [h(i, Options(n)).dtype for n in (1, 1.0)] == [nv.int32, nv.float32]
    assert "Options(scale=1.5" in h.explain(i, Options(1.5))


def test_other_objects_are_the_same_when_they_say_so() -> None:
    assert key_of(Folded("A")) == key_of(Folded("a")) != key_of(Folded("b"))
    assert key_of(Parity(1)) == key_of(Parity(3)) != key_of(Parity(2))
    assert key_of(Options(1, "a")) == key_of(Options(1, "b"))
    assert key_of(Point(1)) != key_of((1,))
    assert key_of(math.sin) == key_of(math.sin) != key_of(math.cos)


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize("call", ["__call__", "lower", "explain"])
def test_an_array_is_refused(wrap: Any, call: str) -> None:
    f = nv.compile(lambda x, n: x, static_argnums=1)
    with pytest.raises(
        ArgumentError, match=r"static argument 1 is or holds an Array, float32\[2\]"
    ):
        getattr(f, call)(1.0, wrap(nv.ones(2)))


@pytest.mark.parametrize("call", ["__call__", "lower", "explain"])
def test_what_cannot_be_hashed_is_refused_everywhere(call: str) -> None:
    f = nv.compile(lambda x, n: x, static_argnums=1)
    f(1.0, 2)
    with pytest.raises(ArgumentError, match="argument 1 is a list; pass a hashable"):
        getattr(f, call)(1.0, [1])
    with pytest.raises(ArgumentError, match=r"in which \[1\] is a tuple, in which \[0\] is a list"):
        getattr(f, call)(1.0, (1, ([2],)))
    with pytest.raises(ArgumentError, match="is a Options"):
        getattr(f, call)(1.0, Options([1]))
    with pytest.raises(ArgumentError, match="is a ndarray"):
        getattr(f, call)(1.0, np.ones(2))
