"""permute: values on every transport, derivatives of all orders, batching, and its errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec import distributed as nd
from nuvec.core.array import from_numpy
from nuvec.core.errors import MismatchError, ShapeError
from nuvec.core.queue import CommunicationQueue
from nuvec.distributed.collectives.permute import checked_perm
from nuvec.distributed.communicator import Communicator
from nuvec.distributed.group import Group, run_local
from nuvec.testing import check_collective
from nuvec.testing.communications import recorded
from tests.distributed.worlds import TIMEOUT, TRANSPORTS, on_ranks

pytestmark = pytest.mark.timeout(120)

PERMS = {
    "ring": lambda n: [(r, (r + 1) % n) for r in range(n)],
    "chain": lambda n: [(r, r + 1) for r in range(n - 1)],
    "mirror": lambda n: [(r, n - 1 - r) for r in range(n)],
    "one": lambda n: [(n - 1, 0)],
    "nobody": lambda n: [],
}


@pytest.mark.parametrize("perm", PERMS.values(), ids=PERMS)
def test_every_rule(perm: Any) -> None:
    check_collective(
        lambda g, x, y: nd.permute({"x": x, "y": y}, perm(g.size()), g),
        (np.ones((2, 2)), np.ones(())), sizes=(1, 2, 3, 4),
    )  # fmt: skip


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [2, 3])
def test_gradients_on_every_transport(transport: str, size: int) -> None:
    pairs = [(r, r + 1) for r in range(size - 1)]

    def program(c: Communicator) -> Any:
        g = Group(c, CommunicationQueue())
        x = from_numpy(np.arange(3.0) + g.rank())
        f = lambda v: nv.sum(nd.permute(v * v, pairs, g) * (g.rank() + 1))  # noqa: E731
        second = nv.grad(lambda v: nv.sum(nv.grad(f)(v)))
        found = [nv.grad(f)(x), nv.compile(nv.grad(f))(x), second(x)]
        nv.eval(found)
        return [np.asarray(v) for v in found]

    for rank, (plain, compiled, second) in enumerate(
        on_ranks(TRANSPORTS[transport](TIMEOUT), size, program)
    ):
        weight = rank + 2 if rank < size - 1 else 0
        np.testing.assert_array_equal(plain, 2 * (np.arange(3.0) + rank) * weight)
        np.testing.assert_array_equal(compiled, plain)
        np.testing.assert_array_equal(second, np.full(3, 2.0 * weight))


def test_the_backward_is_the_inverse_permutation() -> None:
    def program(g: Group) -> Any:
        g, calls = recorded(g)
        nv.eval(nv.grad(lambda x: nv.sum(nd.permute(x, [(0, 2), (2, 1)], g)))(nv.ones(2)))
        return calls

    for calls in run_local(program, 3):
        assert calls == [
            "permute [(0, 2), (2, 1)] float32[2]", "permute [(1, 2), (2, 0)] float32[2]",
        ]  # fmt: skip


def test_the_order_of_pairs_does_not_matter() -> None:
    def program(g: Group) -> Any:
        pairs = [(0, 1), (1, 2), (2, 0)]
        return nd.permute(nv.array(g.rank()), pairs[g.rank() :] + pairs[: g.rank()], g)

    assert [int(v) for v in run_local(program, 3)] == [2, 0, 1]


def test_every_rank_takes_part() -> None:
    def program(g: Group) -> Any:
        if g.rank() == 2:
            return nd.all_sum(nv.ones(2), g)
        return nd.permute(nv.ones(2), [(0, 1)], g)

    with pytest.raises(MismatchError):
        run_local(program, 3)

    def other(g: Group) -> Any:
        return nd.permute(nv.ones(2), [(0, 1)] if g.rank() else [(1, 0)], g)

    with pytest.raises(MismatchError, match=r"permute \[\(1, 0\)\], rank 1 at permute \[\(0, 1\)"):
        run_local(other, 2)


def test_wrong_pairs() -> None:
    for perm, text in (
        ([(0, 3)], "destination 3 is not in this group of 3"),
        ([(-1, 0)], "source -1"),
        ([(0, 1), (2, 1)], "rank 1 is a destination twice"),
        ([(0, 1), (0, 2)], "rank 0 is a source twice"),
    ):
        with pytest.raises(ShapeError, match=text):
            checked_perm(perm, 3)
    for wrong in ([0, 1], [(0, 1, 2)], [(0.5, 1)]):
        with pytest.raises(TypeError, match="pairs of ranks"):
            checked_perm(wrong, 3)  # type: ignore[arg-type]


def test_a_long_permutation_over_an_axis() -> None:
    n = 300
    order = np.random.Generator(np.random.PCG64(0)).permutation(n)
    x = np.random.Generator(np.random.PCG64(1)).normal(size=(n, 2))
    for kept in (n, n - 7):
        pairs = [(int(s), d) for d, s in enumerate(order)][:kept]
        found = nv.vmap(lambda v, p=pairs: nd.permute(v, p, nd.axis_group("i")), axis_name="i")(x)
        expected = np.zeros_like(x)
        for s, d in pairs:
            expected[d] = x[s]
        np.testing.assert_array_equal(found, expected)
