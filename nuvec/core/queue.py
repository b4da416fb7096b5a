"""The communication queue: one per rank, over all its groups.

Communications run in the order they were recorded, each exactly once, whichever of them is asked
for first and from whichever thread; so ranks stay in step whatever each evaluates.  No lock is
held while one waits for its peers.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable

from nuvec.core.ir import sequence
from nuvec.core.node import Node


class CommunicationQueue:
    """Pending communications of one rank, in program order.

    ended -- whether the rank has, so that nothing can run in it any more"""

    def __init__(self) -> None:
        self._pending: deque[Node] = deque()
        self._changed = threading.Condition()
        self._running = False
        self.ended = False

    def __len__(self) -> int:
        return len(self._pending)

    def append(self, node: Node) -> None:
        """Enter a communication; its place in program order is decided here, under the lock."""
        with self._changed:
            node.seq = sequence()
            self._pending.append(node)

    def through(self, node: Node) -> list[Node]:
        """The pending communications up to and including `node`."""
        with self._changed:
            return list(itertools.takewhile(lambda n: n.seq <= node.seq, self._pending))

    def pending(self) -> list[Node]:
        with self._changed:
            return list(self._pending)

    def run(self, node: Node, compute: Callable[[Node], None]) -> None:
        """Run `compute(node)` once, after everything before it; a thread that comes second waits
        for the first.  `compute` stores the value, or the error, on the node."""
        with self._changed:
            while True:
                if node.value is not None or not self._holds(node):
                    return
                if not self._running and self._pending[0] is node:
                    self._running = True
                    break
                self._changed.wait()
        try:
            compute(node)
        finally:
            with self._changed:
                self._pending.popleft()
                self._running = False
                self._changed.notify_all()

    def discard(self, node: Node) -> None:
        """Take a communication that can never run (its operand failed) out of the queue."""
        with self._changed:
            if node in self._pending:
                self._pending.remove(node)
                self._changed.notify_all()

    def _holds(self, node: Node) -> bool:
        pending = self._pending
        if not pending or pending[0].seq > node.seq:
            return False
        return pending[0] is node or node in pending


_process = CommunicationQueue()


def process_queue() -> CommunicationQueue:
    """The queue of this process, which is one rank unless `run_local` made several."""
    return _process
