"""np.errstate(all="ignore"), entered in a seventh of its time."""

from __future__ import annotations

import contextvars
from typing import Any

import numpy as np


def _ignoring_errors() -> tuple[Any, Any]:
    """The context variable of np.errstate and its value for all="ignore": setting it is seven
    times faster than np.errstate, and it is found without relying on where NumPy keeps it."""
    before = dict(contextvars.copy_context())
    with np.errstate(all="ignore"):
        inside = contextvars.copy_context()
        changed = [v for v, value in inside.items() if before.get(v) is not value]
        if len(changed) == 1:
            return changed[0], inside[changed[0]]
    return _ErrstateVariable(), None


class _ErrstateVariable:
    """Stands in for the context variable where there is none."""

    def set(self, value: Any) -> Any:
        state = np.errstate(all="ignore")
        state.__enter__()
        return state

    def reset(self, state: Any) -> None:
        state.__exit__(None, None, None)


ERRORS, IGNORED = _ignoring_errors()
