"""fori_loop: a scan where its bounds are known, a while_loop where they are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.errors import DtypeError, NuvecError, ShapeError
from nuvec.testing import check_collective, check_compile, check_grads, check_vmap


def f(x: Any) -> Any:
    return nv.fori_loop(1, 4, lambda i, c: nv.sin(c) * i + x, x)


def test_equals_a_python_loop() -> None:
    expected = x = 0.3
    for i in range(1, 4):
        expected = np.sin(expected) * i + x
    assert f(np.float64(x)).item() == pytest.approx(expected, rel=1e-14)
    assert nv.fori_loop(3, 3, lambda i, c: c + 1, 5).item() == 5
    assert nv.fori_loop(3, -3, lambda i, c: c + 1, 5).item() == 5
    assert nv.fori_loop(-2, 2, lambda i, c: c.at[i + 2].set(i), nv.zeros(4)).tolist() == [
        -2,
        -1,
        0,
        1,
    ]
    assert nv.fori_loop(np.int64(0), 4, lambda i, c: c + i, np.int64(0)).item() == 6


def test_rules() -> None:
    x = (np.array([0.3, 0.7]),)
    check_grads(f, x, order=3)
    check_vmap(f, x)
    check_compile(f, x)
    check_compile(nv.grad(lambda x: nv.sum(f(x))), x)


def test_traced_bounds() -> None:
    def g(n: Any, x: Any) -> Any:
        return nv.fori_loop(1, n, lambda i, c: c * i + x, x)

    x = nv.array(2.0)
    expected = [g(k, x).item() for k in range(5)]
    assert [nv.compile(g)(k, x).item() for k in range(5)] == expected
    assert nv.vmap(g, (0, None))(nv.arange(5), x).tolist() == expected
    tangents = nv.vmap(lambda n: nv.jvp(lambda x: g(n, x), (x,), (nv.ones(()),))[1])(nv.arange(5))
    known = [nv.grad(lambda x, k=k: g(k, x))(x).item() for k in range(5)]
    assert tangents.tolist() == known
    with pytest.raises(NuvecError, match="max_steps"):
        nv.compile(nv.grad(g, argnums=1))(3, x)
    # An array whose value is known makes a scan as well.
    assert nv.grad(lambda x: g(nv.array(4), x))(x).item() == known[4]


def test_the_index_is_weak_where_bounds_are_python_integers() -> None:
    start = nv.ones((), dtype=np.int8)
    assert nv.fori_loop(0, 3, lambda i, c: c + i, start).dtype == np.int8
    big = nv.fori_loop(2**31, 2**31 + 2, lambda i, c: c + i, nv.zeros((), dtype=np.int64))
    assert big.item() == 2**32 + 1


def test_unroll_changes_nothing() -> None:
    x = nv.array([0.3, 0.7])
    for unroll in (1, 2, 3, True, False):
        found = nv.fori_loop(0, 5, lambda i, c: nv.sin(c) + i, x, unroll=unroll)
        np.testing.assert_array_equal(found, nv.fori_loop(0, 5, lambda i, c: nv.sin(c) + i, x))


def test_communication_in_the_body() -> None:
    def program(group: Any, x: Any) -> Any:
        return nv.fori_loop(
            0, 2, lambda i, c: nv.distributed.all_sum(nv.sin(c), group=group) * 0.5, x
        )

    check_collective(program, (np.ones(2),))


def test_errors() -> None:
    with pytest.raises(DtypeError, match="upper must be an integer"):
        nv.fori_loop(0, 3.0, lambda i, c: c, 1.0)
    with pytest.raises(ShapeError, match="lower must be an integer scalar"):
        nv.fori_loop(nv.array([0, 1]), 3, lambda i, c: c, 1.0)
    with pytest.raises(TypeError, match="unroll"):
        nv.fori_loop(0, 3, lambda i, c: c, 1.0, unroll=-1)


BOUNDS: list[tuple[Any, Any]] = [
    (np.uint8(10), np.uint8(20)), (10, np.uint8(20)), (np.int8(100), np.int8(110)),
    (-3, np.uint8(5)), (np.int16(-7), np.uint16(3)), (np.int64(2**40), np.int64(2**40 + 3)),
    (2**33, 2**33 + 2), (np.uint32(5), 9), (np.int64(2**62), np.uint64(2**62 + 5)), (7, 3),
]  # fmt: skip


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_the_index_holds_what_is_computed_with_it(bounds: tuple[Any, Any]) -> None:
    lower, upper = bounds
    first = int(lower)

    def count(a: Any, b: Any) -> Any:
        def body(i: Any, carry: Any) -> Any:
            return carry[0] + 1, carry[1] + (i - first) * 1000

        return nv.fori_loop(a, b, body, (0, nv.array(0, nv.int64)))

    steps = range(int(lower), int(upper))
    expected = (len(steps), sum(1000 * (i - first) for i in steps))
    assert tuple(int(v) for v in count(lower, upper)) == expected
    if not isinstance(upper, int):
        assert tuple(int(v) for v in nv.compile(lambda b: count(lower, b))(upper)) == expected
        assert tuple(int(v) for v in nv.compile(count)(np.int64(lower), upper)) == expected
