"""Arguments that cannot be are refused by name, before anything is sent."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.errors import DistributedError, ShapeError
from nuvec.distributed import (
    Group,
    all_gather,
    all_max,
    all_sum,
    all_to_all,
    barrier,
    broadcast,
    default_group,
    recv,
    recv_like,
    run_local,
    send,
    set_default_group,
    sum_gradients,
    sum_scatter,
    synchronize,
)
from nuvec.testing.contract_tools import raises
from tests.distributed.worlds import TRANSPORTS, on_ranks

pytestmark = pytest.mark.timeout(60)

X = nv.ones(2)


@pytest.mark.parametrize("value", [1.5, None, "a", np.float32(1.0), [1]])
def test_a_split_by_what_is_no_integer(value: Any) -> None:
    def program(group: Group) -> None:
        text = raises(TypeError, lambda: group.split(value))
        assert "split: color is" in text and type(value).__name__ in text
        assert "split: key is" in raises(TypeError, lambda: group.split(0, value))
        group.barrier()  # nothing was sent

    run_local(program, 2)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_split_by_what_does_not_fit(transport: str) -> None:
    def body(c: Any) -> None:
        for wrong in (1 << 63, -(1 << 63) - 1):
            assert "64 bits" in raises(ValueError, partial(c.split, wrong))
        assert "color" in raises(TypeError, lambda: c.split(0.5))
        assert c.split((1 << 63) - 1).size == 2
        assert c.split(c.rank == 0).size == 1
        assert c.split(np.int8(3), np.uint8(c.rank)).size == 2

    on_ranks(TRANSPORTS[transport](20.0), 2, body)


def test_shapes_and_ranks_of_messages() -> None:
    def program(group: Group) -> None:
        shapes: list[Any] = [(2.7,), (-1,), -1, 2.5, "ab", (None,), None, (2, "x")]
        for shape in shapes:
            assert "recv: shape" in raises(ShapeError, partial(recv, shape, nv.float32, 0))
        calls: list[Callable[[Any], Any]] = [
            lambda r: recv((2,), nv.float32, r),
            lambda r: recv_like(X, r),
            lambda r: send(X, r),
            lambda r: broadcast(X, r),
        ]
        for call in calls:
            for rank in (2, -1, 0.0, None, "a"):
                text = raises(ShapeError, partial(call, rank))
                assert f"rank {rank!r} is not in this group of 2 (0 to 1)" in text
        # NumPy's integers are integers.
        other: Any = np.int64(1 - group.rank())
        number: Any = np.int32(2)
        send(X, other)
        assert recv(number, nv.float32, other).tolist() == [1.0, 1.0]
        send(X, other)
        assert recv([number], nv.float32, other).tolist() == [1.0, 1.0]
        assert broadcast(X, number - 1).tolist() == [1.0, 1.0]

    run_local(program, 2)


@pytest.mark.parametrize("size", [1, 2])
def test_a_group_that_is_none(size: int) -> None:
    calls: dict[str, Callable[[Any], Any]] = {
        "all_sum": lambda g: all_sum(X, g),
        "all_max": lambda g: all_max(X, group=g),
        "all_gather": lambda g: all_gather(X, g),
        "sum_scatter": lambda g: sum_scatter(X, g),
        "all_to_all": lambda g: all_to_all(X, g),
        "sum_gradients": lambda g: sum_gradients(X, g),
        "broadcast": lambda g: broadcast(X, 0, g),
        "send": lambda g: send(X, 0, g),
        "recv": lambda g: recv((2,), nv.float32, 0, g),
        "recv_like": lambda g: recv_like(X, 0, g),
        "barrier": barrier,
        "synchronize": synchronize,
        "set_default_group": set_default_group,
    }

    def program(group: Group) -> None:
        for name, call in calls.items():
            for wrong in (3, "world", group.communicator):
                text = raises(TypeError, partial(call, wrong))
                assert text.startswith(f"{name}: group is") and "should be a Group" in text
        assert default_group() is group

    run_local(program, size)


def test_only_the_default_group_pickles() -> None:
    def program(group: Group) -> None:
        assert pickle.loads(pickle.dumps({"group": group}))["group"] is group
        assert copy.deepcopy(group) is group and copy.copy(group) is group
        part = group.split(0)
        text = raises(DistributedError, lambda: pickle.dumps(part))
        assert "cannot be pickled" in text and "default group" in text
        set_default_group(part)
        assert pickle.loads(pickle.dumps(part)) is part
        set_default_group(group)

    run_local(program, 2)
    assert pickle.loads(pickle.dumps(default_group())) is default_group()
