"""The public namespace: explicit, complete, documented."""

from __future__ import annotations

import importlib
import inspect

import pytest

import nuvec as nv

ROOMS = ["nuvec", "nuvec.linalg", "nuvec.random", "nuvec.tree"]


@pytest.mark.parametrize("name", ROOMS)
def test_every_listed_name_is_there_once(name: str) -> None:
    room = importlib.import_module(name)
    assert len(room.__all__) == len(set(room.__all__))
    assert [n for n in room.__all__ if not hasattr(room, n)] == []


@pytest.mark.parametrize("name", ROOMS)
def test_every_public_function_has_a_docstring(name: str) -> None:
    room = importlib.import_module(name)
    bare = [
        n for n in room.__all__
        if inspect.isfunction(getattr(room, n)) and not getattr(room, n).__doc__
    ]  # fmt: skip
    assert bare == []


@pytest.mark.parametrize("name", ROOMS)
def test_nothing_public_is_left_out(name: str) -> None:
    room = importlib.import_module(name)
    extra = {
        n for n, value in vars(room).items()
        if not n.startswith("_") and not inspect.ismodule(value)
    } - set(room.__all__)  # fmt: skip
    assert extra == set()


def test_the_names_that_the_array_api_asks_for() -> None:
    missing = [n for n in ARRAY_API.split() if n not in nv.__all__]
    assert missing == []


# https://data-apis.org/array-api/2025.12/: what nuvec has of it so far.
ARRAY_API = """
    e inf nan newaxis pi bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64
    complex64 complex128 arange asarray empty empty_like eye from_dlpack full full_like linspace
    meshgrid ones ones_like tril triu zeros zeros_like astype broadcast_arrays broadcast_to can_cast
    finfo iinfo isdtype result_type abs add bitwise_and bitwise_invert bitwise_left_shift bitwise_or
    bitwise_right_shift bitwise_xor ceil clip conj cos cosh divide equal exp expm1 floor
    floor_divide greater greater_equal imag isfinite isinf isnan less less_equal log log1p log2
    log10 logical_and logical_not logical_or logical_xor maximum minimum multiply negative not_equal
    positive pow real reciprocal remainder round sign sin sinh sqrt square subtract tan tanh trunc
    matmul matrix_transpose tensordot vecdot concat expand_dims flip moveaxis permute_dims repeat
    reshape roll squeeze stack tile unstack argmax argmin where take take_along_axis max mean min
    prod std sum var all any count_nonzero
"""
