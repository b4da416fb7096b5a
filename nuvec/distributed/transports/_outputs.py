"""Memory for large results, used again once nobody has the earlier result any more.

New memory costs as much as the communication itself: the system clears every page of it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nuvec.core.lower.arena import KEPT, SPARE, SPARES, Spares
from nuvec.distributed.communicator import Buffer

_Key = tuple[tuple[int, ...], np.dtype[Any]]


class Outputs:
    """The results of one rank's calls. Keeps at most `SPARES` bytes, of the latest shapes."""

    def __init__(self) -> None:
        self._spares: dict[_Key, Spares] = {}
        self._kept = 0

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Buffer:
        """An array like `np.empty`'s, which nobody else sees."""
        nbytes = math.prod(shape) * dtype.itemsize
        if not SPARE <= nbytes <= SPARES // KEPT:
            return np.empty(shape, dtype)
        spares = self._spares.pop((shape, dtype), None)
        if spares is None:
            spares = Spares(shape, dtype)
            self._kept += KEPT * nbytes
        self._spares[shape, dtype] = spares  # now the latest
        while self._kept > SPARES:
            oldest = next(iter(self._spares))
            self._kept -= KEPT * math.prod(oldest[0]) * oldest[1].itemsize
            del self._spares[oldest]
        return spares()

    def clear(self) -> None:
        """Keep nothing."""
        self._spares.clear()
        self._kept = 0
