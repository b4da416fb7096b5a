"""Communications inside compiled functions, loops and branches, where ranks differ in what is
mapped, differentiated or ignored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import nuvec as nv
from nuvec import distributed as nd


def a(*values: float) -> Any:
    return nv.array(list(values), dtype=nv.float32)


def results(function: Callable[[Any], Any], size: int = 2) -> list[Any]:
    return [nv.tree.map(lambda x: x.tolist(), r) for r in nd.run_local(function, size)]


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda f: f,
    "compile": nv.compile,
    "compile twice": lambda f: nv.compile(nv.compile(f)),
    "scan": lambda f: lambda x: nv.scan(lambda c, _: (c, f(x)), nv.array(0.0), length=1)[1][0],
    "cond": lambda f: lambda x: nv.cond(nv.array(True), f, lambda x: f(x) * 2, x),
}
DERIVATIVES: dict[str, Callable[[Any], Any]] = {
    "grad": nv.grad,
    "compile of grad": lambda f: nv.compile(nv.grad(f)),
    "vmap of grad": lambda f: lambda x: nv.vmap(nv.grad(f))(nv.stack([x, x]))[1],
}


@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_backward_that_only_communicates(wrapper: str, derivative: str) -> None:
    def on_rank(group: Any) -> Any:
        def loss(x: Any) -> Any:
            if group.rank() == 0:
                nd.send(x * x, 1)
                return x.sum() * 0
            return (nd.recv_like(x, 0) * 3).sum()

        return DERIVATIVES[derivative](WRAPPERS[wrapper](loss))(a(2.0))

    assert results(on_rank) == [[12.0], [0.0]]


@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_one_rank_constant_and_one_rank_ignoring(wrapper: str, derivative: str) -> None:
    def on_rank(group: Any) -> Any:
        def loss(x: Any) -> Any:
            y = nd.all_sum(x if group.rank() else a(5.0))
            return (y * y).sum() if group.rank() != 1 else x.sum() * 0

        return DERIVATIVES[derivative](WRAPPERS[wrapper](loss))(a(2.0))

    assert results(on_rank) == [[0.0], [14.0]]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_an_operand_mapped_on_one_rank_only(wrapper: str) -> None:
    def on_rank(group: Any) -> Any:
        f = WRAPPERS[wrapper](nd.all_sum)
        return nv.vmap(lambda x: f(x if group.rank() else nv.array(5.0)))(a(1.0, 2.0))

    assert results(on_rank) == [[6.0, 7.0], [6.0, 7.0]]


def test_ranks_that_wait_for_each_other_are_told() -> None:
    with pytest.raises(nv.MismatchError, match="recv"):
        nd.run_local(lambda g: nd.recv((1,), nv.float32, 1 - g.rank()), 2)
