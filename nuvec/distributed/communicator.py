"""`Communicator`: the interface between nuvec's collectives and a transport.

A third party can bring a transport by implementing this class; `communicator_contract` is the
test suite such an implementation has to pass.

What every implementation promises
----------------------------------
*Messages.* Each operation takes a list of C-contiguous NumPy arrays, which together are one
message, and returns a list of fresh ones, C-contiguous too. The caller's arrays are neither
modified nor aliased by the result, and may be reused as soon as the call returns.

*Order.* All ranks of a group make the same sequence of collective calls. `send` and `recv` pair
up in order per (source, destination). Each rank calls from one thread at a time; `abort` alone
may be called from any thread.

*Bits.* Each element of a reduction is the left fold in rank order, ``((x0 + x1) + x2) + ...``,
accumulated in float32 for float16 and bfloat16 and rounded once, whatever the element's position
and the message's size. (A transport may promise less, and says so: `folds_in_rank_order`.)

*Mismatches.* When ranks make different calls (operation, dtype, shape, root or number), the ranks
concerned raise `MismatchError` naming both sides. Nothing hangs and no wrong value is delivered.

*Failure.* A peer that dies, leaves or falls silent raises `PeerError` naming the rank. After an
error the group is broken: every later call raises at once and quotes the first error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nuvec.core.errors import MismatchError

__all__ = ["Buffer", "Communicator", "ReduceOp", "Spec"]

Buffer = NDArray[Any]
ReduceOp = Literal["sum", "max", "min"]
Spec = tuple[tuple[int, ...], np.dtype[Any]]
"""What `recv` expects of one array: its shape and dtype."""


class Communicator(ABC):
    """One rank's end of a group of ranks, over one transport."""

    folds_in_rank_order: bool = True
    """Whether every element of a sum is the fold in rank order. A transport that says no promises
    the same bits on every rank, and still to accumulate as above and to round once."""

    sends_to_neighbours_only: bool = False
    """Whether `send` and `recv` reach this rank and the two next to it only, modulo `size`; to
    others they raise `DistributedError`, and leave the group intact."""

    @property
    @abstractmethod
    def rank(self) -> int:
        """This rank's number in the group, from 0."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many ranks the group has."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The transport's name, such as ``"mesh"``."""

    @abstractmethod
    def all_reduce(self, op: ReduceOp, arrays: Sequence[Buffer]) -> list[Buffer]:
        """Fold every element over the ranks, in rank order; all ranks get the result.

        NaN propagates in ``max`` and ``min``. Raises `TypeError` for the sum of booleans (use
        ``max``, which is "any") and for the extremes of complex numbers.
        """

    @abstractmethod
    def all_gather(self, arrays: Sequence[Buffer]) -> list[Buffer]:
        """Concatenate along axis 0 in rank order: ``(n, ...)`` gives ``(size * n, ...)``.

        An array of no dimensions gives a vector of `size` elements.
        """

    @abstractmethod
    def sum_scatter(self, arrays: Sequence[Buffer]) -> list[Buffer]:
        """This rank's slice along axis 0 of the sum: ``(size * n, ...)`` gives ``(n, ...)``.

        Raises `ValueError` where axis 0 is not divisible by `size`.
        """

    @abstractmethod
    def all_to_all(self, arrays: Sequence[Buffer]) -> list[Buffer]:
        """Block `rank` of every rank's array, concatenated in rank order; shapes are kept.

        Raises `ValueError` where axis 0 is not divisible by `size`.
        """

    @abstractmethod
    def broadcast(self, arrays: Sequence[Buffer], root: int) -> list[Buffer]:
        """The arrays of rank `root`. Elsewhere only the shapes and dtypes of `arrays` count."""

    @abstractmethod
    def send(self, arrays: Sequence[Buffer], dst: int) -> None:
        """Send one message to rank `dst`, which may be this rank.

        Never waits for `dst` to call `recv`: two ranks may send to each other first and receive
        afterwards, whatever the size. It may wait for `dst` to make *some* call.
        """

    @abstractmethod
    def recv(self, specs: Sequence[Spec], src: int) -> list[Buffer]:
        """Receive the next message of rank `src`, whose arrays must be as `specs` says."""

    def permute(self, arrays: Sequence[Buffer], perm: Sequence[tuple[int, int]]) -> list[Buffer]:
        """The arrays of the rank that `perm`, (source, destination) pairs, sends here; zeros where
        it sends nothing.

        A collective: every rank calls it, with the same `perm` in the same order, in which no
        source and no destination is there twice.  Raises `MismatchError` on all ranks when they
        differ; nothing was sent then, and the group stays whole.
        """
        for ranks in zip(*perm, strict=True):
            if len(set(ranks)) < len(ranks) or not all(0 <= r < self.size for r in ranks):
                raise ValueError(f"permute {list(perm)} is no permutation of {self.size} ranks")
        table = np.array(perm, np.int64).reshape(-1)
        padded = np.full(2 * self.size, -1, np.int64)
        padded[: table.size] = table
        # A message to who does not expect it would be found out much later: agree first.
        given = self.all_gather([padded])[0].reshape(self.size, -1)
        for rank, other in enumerate(given):
            if not np.array_equal(other, given[0]):
                pairs = [
                    [tuple(p) for p in row.reshape(-1, 2).tolist() if p[0] >= 0]
                    for row in (given[0], other)
                ]
                raise MismatchError(
                    f"rank 0 is at permute {pairs[0]}, rank {rank} at permute {pairs[1]}; every "
                    "rank must give the same pairs in the same order"
                )
        return self._exchange([np.asarray(a, order="C") for a in arrays], perm)

    def _exchange(self, arrays: Sequence[Buffer], perm: Sequence[tuple[int, int]]) -> list[Buffer]:
        """What `permute` does once the ranks have agreed; a transport may have a better way."""
        for source, destination in perm:
            if source == self.rank and destination != self.rank:
                self.send(arrays, destination)
        for source, destination in perm:
            if destination == self.rank:
                if source == self.rank:
                    return [np.array(a) for a in arrays]
                return self.recv([(a.shape, a.dtype) for a in arrays], source)
        return [np.zeros_like(a) for a in arrays]

    @abstractmethod
    def barrier(self) -> None:
        """Return when every rank of the group has called this."""

    @abstractmethod
    def split(self, color: int, key: int = -1) -> Communicator:
        """Form a new group of the ranks that gave the same `color` (a collective call).

        The new ranks are ordered by ``(key, old rank)``; a negative key stands for the old rank.
        """

    @abstractmethod
    def close(self) -> None:
        """Leave in order: what was sent still arrives, peers that need this rank later raise."""

    @abstractmethod
    def abort(self, reason: str) -> None:
        """Break the group: peers raise `PeerError` with `reason` instead of waiting for us."""
