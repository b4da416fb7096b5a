"""config.debug_nans: what makes the first NaN raises, and says where it was written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core import dtypes


@pytest.fixture(autouse=True)
def debugging() -> Iterator[None]:
    with nv.config.override(debug_nans=True):
        yield


def line_of(function: Callable[..., Any]) -> str:
    """How errors write the line after the one that defines a function: its first."""
    code = function.__code__
    return rf"test_nans.py:{code.co_firstlineno + 1} \(in {code.co_name}\)"


def logarithms(x: Any) -> Any:
    return nv.log(x) * 2


def test_an_equation_names_itself_its_operands_and_how_many() -> None:
    y = nv.log(nv.array([1.0, -1.0, -2.0])) * 2
    message = (
        r"^log made the first NaN: 2 of 3 elements of its result, float32\[3\], from operands "
        r"without any: float32\[3\] from -2 to 1\. .*nv\.where.*test_nans\.py"
    )
    for _ in range(2):  # as long as it is asked for
        with pytest.raises(nv.NanError, match=message) as caught:
            nv.eval(y)
    assert isinstance(caught.value, FloatingPointError)
    nv.config.debug_nans = False
    assert np.isnan(np.asarray(y)).tolist() == [False, True, True]


def test_a_scalar_and_every_dtype() -> None:
    for dtype in (nv.float16, nv.bfloat16, nv.float32, nv.float64):
        with pytest.raises(nv.NanError, match=rf"sqrt .*{dtypes.name(np.dtype(dtype))}\[\] = -1"):
            float(nv.sqrt(nv.array(-1, dtype)))


def test_complex_numbers() -> None:
    x = nv.array([0j, 1 + 1j])
    with pytest.raises(nv.NanError, match=r"divide .*1 of 2 elements.*complex64\[2\]"):
        nv.eval(x / x)
    assert (x * 2).tolist() == [0j, 2 + 2j]


def test_infinities_integers_and_nans_that_are_given_are_no_error() -> None:
    zero, nan = nv.zeros(2), nv.array([nv.nan, 1.0])

    def function(zero: Any, nan: Any) -> Any:
        return 1 / zero, nv.log(zero), nan * 2, nv.where(nan > 0, nan, nv.nan), nv.argmax(nan)

    for f in (function, nv.compile(function)):
        outs = [np.asarray(x) for x in f(zero, nan)]
        assert np.isinf(outs[0]).all()
        assert np.isinf(outs[1]).all()
        assert np.isnan(outs[2]).tolist() == np.isnan(outs[3]).tolist() == [True, False]


def test_the_backward_of_an_operation() -> None:
    def root(x: Any) -> Any:
        return (nv.sqrt(x) * 0.0).sum()  # its derivative at 0 is 0 * inf

    assert float(root(nv.zeros(2))) == 0
    with pytest.raises(nv.NanError, match=r"^multiply made .*2 of 2.*= 0, .*inf.*test_nans\.py"):
        nv.eval(nv.grad(root)(nv.zeros(2)))

    def gradient(x: Any) -> Any:
        return nv.grad(root)(x)

    with pytest.raises(nv.NanError, match=f"made the first NaN, recorded at {line_of(gradient)}"):
        nv.compile(gradient)(nv.zeros(2))


def test_compiled_functions() -> None:
    compiled = nv.compile(logarithms)
    good, bad = nv.array([1.0, 2.0]), nv.array([1.0, -1.0])
    expected = np.log(np.array([1, 2], np.float32)) * 2
    for _ in range(3):  # also when it goes the short way
        np.testing.assert_array_equal(compiled(good), expected)
    nv.config.debug_nans = False
    for _ in range(3):
        assert np.isnan(np.asarray(compiled(bad))[1])
    nv.config.debug_nans = True
    with pytest.raises(nv.NanError, match=f"^log .*recorded at {line_of(logarithms)}: 1 of 2"):
        compiled(bad)


def test_a_compiled_call_gives_arrays_of_its_own() -> None:
    x = nv.array(np.arange(4, dtype=np.float32))
    same, again, view = nv.compile(lambda x: (x, x, x.reshape(2, 2)))(x)
    for a in (same, again, view):
        assert not np.shares_memory(np.asarray(a), np.asarray(x))
    donated = nv.compile(lambda x: x * 2, donate_argnums=0)
    assert donated(x).tolist() == [0, 2, 4, 6]
    assert x.tolist() == [0, 1, 2, 3]  # it is kept


def countdown(c: Any, x: Any) -> Any:
    return c - x, (nv.log(c), c)


def _scanned(x: Any) -> Any:
    return nv.scan(countdown, nv.array(2.5), x)


def _called(x: Any) -> Any:
    return nv.compile(logarithms)(x - 2)


def _branches(x: Any) -> Any:
    return nv.cond(x[0] > 0, logarithms, lambda x: x, -x)


def _looped(x: Any) -> Any:
    return nv.while_loop(lambda x: x[0] > -1, lambda x: logarithms(x - 2), x)


def _checkpointed(x: Any) -> Any:
    return nv.grad(lambda x: nv.checkpoint(logarithms)(x).sum())(-x)


def _mapped(x: Any) -> Any:
    return nv.vmap(logarithms)(-x)


NESTED = (_scanned, _called, _branches, _looped)


@pytest.mark.parametrize("function", NESTED)
def test_inside_of_what_holds_programs(function: Any) -> None:
    line = line_of(countdown if function is _scanned else logarithms)
    for f in (function, nv.compile(function)):
        with pytest.raises(nv.NanError, match=f"^log .*recorded at {line}"):
            nv.eval(f(nv.ones(4)))


@pytest.mark.parametrize("function", [_checkpointed, _mapped])
def test_inside_of_what_a_transform_has_recorded_anew(function: Any) -> None:
    for f in (function, nv.compile(function)):
        with pytest.raises(nv.NanError, match=r"^log made the first NaN.*test_nans\.py"):
            nv.eval(f(nv.ones(4)))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_gives_the_same(reverse: bool) -> None:
    def scanned(x: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            n, c = state
            return (n + 1, c * x), (c, x + n, x, n)

        return nv.scan(step, (0, nv.ones(3)), x, reverse=reverse)

    x = nv.array(np.arange(1, 13, dtype=np.float32).reshape(4, 3))
    found = [np.asarray(y) for y in nv.tree.leaves((scanned(x), nv.compile(scanned)(x)))]
    with nv.config.override(debug_nans=False):
        expected = [np.asarray(y) for y in nv.tree.leaves((scanned(x), nv.compile(scanned)(x)))]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype


def test_large_graphs() -> None:
    x = nv.array(np.linspace(-1, 1, 1 << 19, dtype=np.float32))
    for _ in range(3):  # those met again would run as a program
        with pytest.raises(nv.NanError, match=r"^log made"):
            nv.eval(nv.exp(nv.log(x) + 1) * 2)


def test_communications_stay_in_order_and_ranks_look_for_themselves() -> None:
    def ranks(group: Any) -> list[Any]:
        rank = group.rank()
        x = nv.array([float(rank), 1.0])
        first = nv.distributed.all_sum(x * 2)
        inf = nv.distributed.all_sum(nv.array(nv.inf if rank else -nv.inf))  # made by both
        second = nv.distributed.all_sum(x + 1)
        return [second.tolist(), np.isnan(float(inf)), first.tolist()]

    assert nv.distributed.run_local(ranks, 2) == [[[3, 4], True, [2, 4]]] * 2


def test_nothing_is_looked_at_while_it_is_off() -> None:
    nv.config.debug_nans = False
    assert np.isnan(float(nv.log(nv.array(-1.0))))
    assert np.isnan(float(nv.compile(logarithms)(nv.array(-1.0))))
