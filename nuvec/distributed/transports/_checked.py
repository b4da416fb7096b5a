"""`CheckedCommunicator`: what the built-in transports have in common.

Arguments are checked here, before anything is sent, so a wrong argument raises on this rank and
leaves the group intact. A group of one rank never reaches the transport.
"""

from __future__ import annotations

import hashlib
import operator
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from nuvec.core.errors import DistributedError, ShapeError
from nuvec.distributed.communicator import Buffer, Communicator, ReduceOp, Spec
from nuvec.distributed.transports._call import REDUCTIONS, Call, Op
from nuvec.distributed.transports._reduce import check_reducible
from nuvec.distributed.transports._specs import check_dtype, encode_spec_list, encode_specs

DEFAULT_TIMEOUT = 300.0
"""Seconds a silent peer is waited for (`NUVEC_TIMEOUT`)."""

WARN_AFTER = 10.0
"""Seconds after which a waiting rank says whom it waits for."""

LONGEST_WAIT = 1e6
"""Seconds after which a wait is begun anew if the timeout is longer: the system's have limits."""


def again(error: DistributedError) -> DistributedError:
    """A new error like `error`, for another thread or a later call to raise."""
    return type(error)(*error.args)


def split_number(name: str, value: Any) -> int:
    """A colour or key of a split, which travels as 64 bits; `TypeError` or `ValueError`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(
            f"split: {name} is {value!r}, a {type(value).__name__}, and should be an integer"
        ) from None
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"split: {name} {number} does not fit into 64 bits")
    return number


class CheckedCommunicator(Communicator):
    """Checks arguments and numbers the calls; a transport fills in the four `_` methods."""

    def __init__(self, rank: int, members: Sequence[int], group: int) -> None:
        """`members` are the group's ranks in the whole job, `group` its number on the wire."""
        self._rank = rank
        self._members = tuple(members)
        self._group = group
        self._closed = False
        self._calls = 0
        self._sent: dict[int, int] = {}
        self._received: dict[int, int] = {}

    # What a transport provides.

    @abstractmethod
    def _check_usable(self) -> None:
        """Raise if the group is broken."""

    @abstractmethod
    def _collective(self, call: Call, arrays: list[Buffer]) -> list[Buffer]:
        """Run one checked collective of a group of at least two ranks."""

    @abstractmethod
    def _send(self, call: Call, arrays: list[Buffer]) -> None:
        """Send one message to the rank `call.peer` of the group, perhaps this one."""

    @abstractmethod
    def _recv(self, call: Call, specs: list[Spec]) -> list[Buffer]:
        """Receive one message from the rank `call.peer` of the group, perhaps this one."""

    @abstractmethod
    def _subgroup(self, rank: int, members: Sequence[int], group: int) -> Communicator:
        """The communicator of a group that a split has formed."""

    # What every transport then has.

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return len(self._members)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} rank {self.rank} of {self.size}, {self.name}>"

    def all_reduce(self, op: ReduceOp, arrays: Sequence[Buffer]) -> list[Buffer]:
        if op not in REDUCTIONS:
            raise ValueError(f"unknown reduction {op!r}: one of {', '.join(REDUCTIONS)}")
        return self._call(REDUCTIONS[op], arrays)

    def all_gather(self, arrays: Sequence[Buffer]) -> list[Buffer]:
        return self._call(Op.ALL_GATHER, arrays)

    def sum_scatter(self, arrays: Sequence[Buffer]) -> list[Buffer]:
        return self._call(Op.SUM_SCATTER, arrays)

    def all_to_all(self, arrays: Sequence[Buffer]) -> list[Buffer]:
        return self._call(Op.ALL_TO_ALL, arrays)

    def broadcast(self, arrays: Sequence[Buffer], root: int) -> list[Buffer]:
        return self._call(Op.BROADCAST, arrays, self._checked_rank("root", root))

    def barrier(self) -> None:
        self._call(Op.BARRIER, [])

    def send(self, arrays: Sequence[Buffer], dst: int) -> None:
        self._check_point_to_point(Op.SEND)
        dst = self._checked_rank("dst", dst)
        checked = _checked_arrays(arrays)
        call = Call(Op.SEND, self._sent.get(dst, 0), dst, encode_specs(checked))
        self._check_open()
        self._sent[dst] = call.seq + 1
        self._send(call, checked)

    def recv(self, specs: Sequence[Spec], src: int) -> list[Buffer]:
        self._check_point_to_point(Op.RECV)
        src = self._checked_rank("src", src)
        checked: list[Spec] = []
        for shape, dtype in specs:
            check_dtype(np.dtype(dtype))
            checked.append((tuple(shape), np.dtype(dtype)))
        call = Call(Op.RECV, self._received.get(src, 0), src, encode_spec_list(checked))
        self._check_open()
        self._received[src] = call.seq + 1
        return self._recv(call, checked)

    def split(self, color: int, key: int = -1) -> Communicator:
        color, key = split_number("color", color), split_number("key", key)
        mine = np.array([color, self.rank if key < 0 else key], dtype=np.int64)
        seq = self._calls
        table = self._call(Op.SPLIT, [mine])[0].reshape(self.size, 2).tolist()
        order = sorted((k, old) for old, (c, k) in enumerate(table) if c == color)
        members = [self._members[old] for _, old in order]
        # Every member computes the same number without another message; 63 bits of a hash keep
        # two groups of one job apart.
        text = f"{self._group}/{seq}/{color}".encode()
        group = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
        return self._subgroup(members.index(self._members[self.rank]), members, group)

    def _call(self, op: Op, arrays: Sequence[Buffer], peer: int = -1) -> list[Buffer]:
        checked = _checked_arrays(arrays)
        if op in (Op.ALL_SUM, Op.ALL_MAX, Op.ALL_MIN, Op.SUM_SCATTER):
            for array in checked:
                check_reducible(op, array.dtype)
        if op in (Op.SUM_SCATTER, Op.ALL_TO_ALL):
            for array in checked:
                self._check_divisible(op, array)
        self._check_open()
        call = Call(op, self._calls, peer, encode_specs(checked))
        self._calls += 1
        if self.size == 1:
            return [_alone(op, array) for array in checked]
        return self._collective(call, checked)

    def _check_open(self) -> None:
        if self._closed:
            raise DistributedError(f"{self!r} is closed")
        self._check_usable()

    def _check_divisible(self, op: Op, array: Buffer) -> None:
        if array.ndim == 0 or array.shape[0] % self.size:
            length = array.shape[0] if array.ndim else "absent (a scalar)"
            raise ShapeError(
                f"{op.label} of shape {array.shape}: axis 0 is {length}, which is not divisible "
                f"by the group's size {self.size}"
            )

    def _check_point_to_point(self, op: Op) -> None:
        if self.size == 1:
            raise DistributedError(
                f"{op.label} needs a group of at least two ranks; this one has 1"
            )

    def _checked_rank(self, name: str, rank: int) -> int:
        if not 0 <= rank < self.size:
            raise ValueError(f"{name}={rank} is not a rank of a group of size {self.size}")
        return int(rank)


def _checked_arrays(arrays: Sequence[Buffer]) -> list[Buffer]:
    checked = [np.asarray(array, order="C") for array in arrays]
    for array in checked:
        check_dtype(array.dtype)
    return checked


def _alone(op: Op, array: Buffer) -> Buffer:
    copy = array.copy()
    return copy.reshape(1) if op is Op.ALL_GATHER and copy.ndim == 0 else copy
