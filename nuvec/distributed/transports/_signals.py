"""Words in shared memory that a rank waits for, and when it pays to wait for them awake."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from nuvec.distributed.transports._link import Key, Link

SPIN_SECONDS = 500e-6
"""How long a rank waits awake. Waking it takes a tenth of that, or more on a shared core."""

TRUST = 4
"""How many vain spins in a row end the spinning, and how many that were not are remembered."""

RETRY = 32
"""After so many waits without, spinning is trusted again: for a few waits in a row, since the first
only brings ranks that have slept back into step."""


class Signal:
    """What a peer is to say: that it has begun the call, or how far it is in it."""

    __slots__ = ("_is_token", "_value", "_word", "_words", "key")

    def __init__(
        self, words: memoryview[int], word: int, value: int, is_token: bool, key: Key
    ) -> None:
        self._words, self._word, self._value, self._is_token = words, word, value, is_token
        self.key = key

    @property
    def done(self) -> bool:
        """Whether it has."""
        said = self._words[self._word]
        return said == self._value if self._is_token else said >= self._value


class Awake:
    """Waiting awake, by a rank that learns from whether it pays.

    It gives way to whoever else can use its core, which may be the rank it waits for: ranks that
    share a core take turns by it, sooner than by sleeping and waking each other. It does not pay
    where the others have long computations before them.
    """

    def __init__(self) -> None:
        self._trust = TRUST
        self._waits = 0

    def wait(self, signals: Sequence[tuple[Link, Signal]]) -> bool:
        """Whether all signals are there, perhaps after a short wait."""
        missing = [signal for _, signal in signals if not signal.done]
        if not missing:
            return True
        self._waits += 1
        if self._trust <= 0 and self._waits % RETRY == 0:
            self._trust = TRUST
        if self._trust <= 0:
            return False
        until = time.perf_counter() + SPIN_SECONDS
        while time.perf_counter() < until:
            if all(signal.done for signal in missing):
                self._trust = min(self._trust + 1, TRUST)
                return True
            os.sched_yield()
        self._trust = max(self._trust - 1, 0)
        return False
