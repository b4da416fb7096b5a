"""The public contract suite: every transport passes it, and broken ones do not."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.distributed.communicator import Buffer, Communicator, ReduceOp
from nuvec.distributed.transports.local import LocalCommunicator, local_world
from nuvec.testing import CONTRACT, communicator_contract
from nuvec.testing.contract import MakeWorld, on_processes
from nuvec.testing.contract_large import LARGE_CASES
from tests.distributed.contract import CASES
from tests.distributed.worlds import TRANSPORTS

pytestmark = pytest.mark.timeout(240)

LARGE = [case.__name__ for case in LARGE_CASES]
LESS = {
    "local": [],
    "mesh-unix": [],
    "mesh-tcp": [],
    "ring-tcp": [
        "sums have the same bits on every rank, not those of the fold in rank order",
        "messages are sent to the next and the previous rank only",
    ],
}


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("transport", ["mesh-unix", "ring-tcp"])
def test_the_contract_in_processes(transport: str, size: int) -> None:
    less = communicator_contract(
        TRANSPORTS[transport](30.0), (size,), processes=True, cases=CASES, timeout=60
    )
    assert less == LESS[transport]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("transport", LESS)
def test_large_messages(transport: str, size: int) -> None:
    communicator_contract(
        TRANSPORTS[transport](60.0), (size,), processes=transport != "local", cases=LARGE
    )


# What breaks the contract is noticed.


class _OneBit(LocalCommunicator):
    """The last bit of the last element of a sum is wrong on rank 0."""

    def all_reduce(self, op: ReduceOp, arrays: Sequence[Buffer]) -> list[Buffer]:
        results = super().all_reduce(op, arrays)
        if self.rank == 0:
            for result in results:
                if result.size > 1000 and result.dtype == np.float32:
                    result[-1] = np.nextafter(result[-1], np.float32(np.inf))
        return results


class _OtherBitsAllowed(_OneBit):
    """It declares another order, and still is wrong: ranks differ."""

    folds_in_rank_order = False


class _RoundsTwice(LocalCommunicator):
    """Halves are summed in their own dtype, though in the same order on all ranks."""

    folds_in_rank_order = False

    def all_reduce(self, op: ReduceOp, arrays: Sequence[Buffer]) -> list[Buffer]:
        gathered = [self.all_gather([array[None]])[0] for array in arrays]
        combine: Any = {"sum": np.add, "max": np.maximum, "min": np.minimum}[op]
        results = []
        for values in gathered:
            total = values[0].copy()
            with np.errstate(all="ignore"):
                for value in values[1:]:
                    total = np.asarray(combine(total, value), total.dtype)
            results.append(total)
        return results


class _Aliases(LocalCommunicator):
    """The result of a broadcast is the caller's own array."""

    def broadcast(self, arrays: Sequence[Buffer], root: int) -> list[Buffer]:
        results = super().broadcast(arrays, root)
        return list(arrays) if self.rank == root else results


class _WrongOrder(LocalCommunicator):
    """Blocks are concatenated in another order."""

    def all_gather(self, arrays: Sequence[Buffer]) -> list[Buffer]:
        return [np.roll(result, 1, axis=0) for result in super().all_gather(arrays)]


class _IgnoresKeys(LocalCommunicator):
    def split(self, color: int, key: int = -1) -> Communicator:
        return super().split(color)


class _Silent(LocalCommunicator):
    """An abort reaches nobody, who then leave in order."""

    def abort(self, reason: str) -> None:
        pass


class _NeighboursInSecret(LocalCommunicator):
    """It sends to neighbours only, and has not said so."""

    def send(self, arrays: Sequence[Buffer], dst: int) -> None:
        if (dst - self.rank) % self.size in (1, self.size - 1):
            super().send(arrays, dst)
        else:
            raise nv.DistributedError("no neighbour")


class _NeighboursInVain(LocalCommunicator):
    """It declares that, and takes what goes further without a word."""

    sends_to_neighbours_only = True


def broken_world(kind: type[LocalCommunicator]) -> MakeWorld:
    def make(size: int) -> Sequence[Callable[[], Communicator]]:
        ranks = local_world(size, timeout=3)
        for communicator in ranks:
            communicator.__class__ = kind
        return [lambda c=c: c for c in ranks]  # type: ignore[misc]

    return make


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        (_OneBit, "reduces_large_messages_with_the_same_bits"),
        (_OtherBitsAllowed, "reduces_large_messages_with_the_same_bits"),
        (_RoundsTwice, "reduces_large_messages_with_the_same_bits"),
        (_Aliases, "leaves_inputs_alone"),
        (_WrongOrder, "moves_every_dtype"),
        (_IgnoresKeys, "splits_by_color_and_key"),
        (_Silent, "abort_reaches_everyone"),
        (_NeighboursInSecret, "all_may_send_first"),
        (_NeighboursInVain, "wrong_arguments_leave_the_group_intact"),
    ],
)
def test_what_breaks_it_is_noticed(kind: type[LocalCommunicator], case: str) -> None:
    communicator_contract(TRANSPORTS["local"](10.0), (4,), cases=[case])
    with pytest.raises(AssertionError, match=rf"{case}, group of size 4: rank \d"):
        communicator_contract(broken_world(kind), (4,), cases=[case])


def test_every_case_notices_a_transport_that_does_nothing() -> None:
    """No case passes whatever a transport does."""

    class Nothing(LocalCommunicator):
        def _collective(self, call: Any, arrays: list[Buffer]) -> list[Buffer]:
            return [np.zeros(0)] * len(arrays)

        def _send(self, call: Any, arrays: list[Buffer]) -> None: ...

        def _recv(self, call: Any, specs: list[Any]) -> list[Buffer]:
            return [np.zeros(0)] * len(specs)

        def abort(self, reason: str) -> None: ...

    # What it does right all the same: nothing arrives, and nothing was to arrive.
    trivial = {"messages_may_be_empty"}
    for case in CONTRACT:
        if case in trivial:
            continue
        with pytest.raises(AssertionError, match=case):
            communicator_contract(broken_world(Nothing), (2,), cases=[case])


def test_a_hang_is_a_failure() -> None:
    def hangs(c: Communicator) -> None:
        if c.rank == 1:
            time.sleep(60)

    with pytest.raises(AssertionError, match=r"hangs, group of size 2: after 1 s ranks \[1\]"):
        on_processes(TRANSPORTS["local"](1.0), 2, hangs, 1.0)


def test_the_failure_of_a_process_says_where() -> None:
    def fails(c: Communicator) -> None:
        raise ValueError("this line")

    with pytest.raises(AssertionError, match=r"rank 0 raised\n(.|\n)*ValueError: this line"):
        on_processes(TRANSPORTS["local"](1.0), 1, fails, 10.0)


@pytest.mark.parametrize(
    ("sizes", "cases"), [((), None), ((0,), None), ((True,), None), ((2,), ["such"]), ((2,), [])]
)
def test_wrong_arguments(sizes: Any, cases: Any) -> None:
    with pytest.raises(nv.ArgumentError, match="communicator_contract"):
        communicator_contract(TRANSPORTS["local"](1.0), sizes, cases=cases)
