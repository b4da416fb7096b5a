"""Signals as events of a selector, so that a loop looks at once when a process ends."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType

NUMBERS = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD),
)


@contextlib.contextmanager
def wakes(selector: selectors.BaseSelector, caught: Callable[[int], None]) -> Iterator[None]:
    """Inside, each of `NUMBERS` ends the selector's wait; all but SIGCHLD are given to `caught`.

    A hang-up that is ignored, as under nohup, stays so.
    """
    woken, wake = socket.socketpair()
    woken.setblocking(False)
    wake.setblocking(False)

    def catch(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            caught(number)

    def drain() -> None:
        try:
            os.read(woken.fileno(), 4096)
        except BlockingIOError:
            pass

    old_wake = signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    keeps = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    numbers = [number for number in NUMBERS if not (keeps and number == signal.SIGHUP)]
    old = {number: signal.signal(number, catch) for number in numbers}
    selector.register(woken, selectors.EVENT_READ, drain)
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(old_wake)
        selector.unregister(woken)
        woken.close()
        wake.close()
