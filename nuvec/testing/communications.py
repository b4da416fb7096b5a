"""A communicator that notes every call it passes on: which communications ran, in which order."""

from __future__ import annotations

from collections.abc import Sequence

from nuvec.distributed.communicator import Buffer, Communicator, ReduceOp, Spec
from nuvec.distributed.group import Group


class RecordingCommunicator(Communicator):
    """Passes every call on to another communicator and notes it in `calls`.

    calls -- one line a call, as "all_reduce sum float32[2,3]"; groups made by `split` note theirs
             in the same list
    """

    def __init__(self, inner: Communicator, calls: list[str] | None = None) -> None:
        self.inner = inner
        self.calls: list[str] = [] if calls is None else calls

    @property
    def rank(self) -> int:
        return self.inner.rank

    @property
    def size(self) -> int:
        return self.inner.size

    @property
    def name(self) -> str:
        return self.inner.name

    def _note(self, what: str, arrays: Sequence[Buffer]) -> None:
        listed = [f"{a.dtype}[{','.join(map(str, a.shape))}]" for a in arrays]
        self.calls.append(" ".join([what, *listed]))

    def all_reduce(self, op: ReduceOp, arrays: Sequence[Buffer]) -> list[Buffer]:
        self._note(f"all_reduce {op}", arrays)
        return self.inner.all_reduce(op, arrays)

    def all_gather(self, arrays: Sequence[Buffer]) -> list[Buffer]:
        self._note("all_gather", arrays)
        return self.inner.all_gather(arrays)

    def sum_scatter(self, arrays: Sequence[Buffer]) -> list[Buffer]:
        self._note("sum_scatter", arrays)
        return self.inner.sum_scatter(arrays)

    def all_to_all(self, arrays: Sequence[Buffer]) -> list[Buffer]:
        self._note("all_to_all", arrays)
        return self.inner.all_to_all(arrays)

    def broadcast(self, arrays: Sequence[Buffer], root: int) -> list[Buffer]:
        self._note(f"broadcast from {root}", arrays)
        return self.inner.broadcast(arrays, root)

    def send(self, arrays: Sequence[Buffer], dst: int) -> None:
        self._note(f"send to {dst}", arrays)
        self.inner.send(arrays, dst)

    def recv(self, specs: Sequence[Spec], src: int) -> list[Buffer]:
        listed = [f"{dtype}[{','.join(map(str, shape))}]" for shape, dtype in specs]
        self.calls.append(" ".join([f"recv from {src}", *listed]))
        return self.inner.recv(specs, src)

    def permute(self, arrays: Sequence[Buffer], perm: Sequence[tuple[int, int]]) -> list[Buffer]:
        self._note(f"permute {list(perm)}", arrays)
        return self.inner.permute(arrays, perm)

    def barrier(self) -> None:
        self.calls.append("barrier")
        self.inner.barrier()

    def split(self, color: int, key: int = -1) -> Communicator:
        self.calls.append("split")
        return RecordingCommunicator(self.inner.split(color, key), self.calls)

    def close(self) -> None:
        self.inner.close()

    def abort(self, reason: str) -> None:
        self.inner.abort(reason)


def recorded(group: Group) -> tuple[Group, list[str]]:
    """A group of the same ranks in which calls are noted, and the list they are noted in.

    >>> import nuvec as nv
    >>> def program(group):
    ...     group, calls = nv.testing.recorded(group)
    ...     nv.eval(nv.distributed.all_sum(nv.ones(3), group))
    ...     return calls
    >>> nv.distributed.run_local(program, 2)[0]
    ['all_reduce sum float32[3]']
    """
    communicator = RecordingCommunicator(group.communicator)
    return Group(communicator, group.queue), communicator.calls
