"""How a rank notices that its launcher is gone, on systems whose kernel does not tell it.

The launcher holds the writing end of a pipe and every rank the reading end; nobody ever writes.
When the launcher dies, however it dies, the pipe ends.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping

VARIABLE = "NUVEC_LIFELINE_FD"

GRACE_SECONDS = 5.0


def watch_launcher(environment: Mapping[str, str]) -> None:
    """End this process when its launcher is gone. Does nothing without a launcher."""
    text = environment.get(VARIABLE, "")
    if not text.isdecimal():
        return
    fd = int(text)
    try:
        os.set_inheritable(fd, False)
    except OSError:  # the variable was inherited, the pipe was not: not the launcher's own child
        return

    def watch() -> None:
        try:
            while os.read(fd, 1):
                pass
        except OSError:
            return
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="nuvec launcher watch", daemon=True).start()
