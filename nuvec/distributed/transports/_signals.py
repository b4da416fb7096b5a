"""Words in shared memory that a rank waits for, and when it pays to wait for them awake."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from nuvec.distributed.transports._link import Key, Link

SPIN_SECONDS = 50e-6
"""How long a rank waits awake: to be woken takes as long."""

TRUST = 4
"""How many vain spins in a row end the spinning, and how many that were not are remembered."""

RETRY = 32
"""One wait of so many tries again whether spinning pays."""


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

    It does where the ranks run at the same time. Where they share a core (because there are more
    of them than cores, or others keep the cores busy) a rank that spins only keeps the others from
    what it waits for.
    """

    def __init__(self, ranks: int) -> None:
        """`ranks` is how many ranks this host has."""
        self._never = ranks > len(os.sched_getaffinity(0))
        self._trust = TRUST
        self._waits = 0

    def wait(self, signals: Sequence[tuple[Link, Signal]]) -> bool:
        """Whether all signals are there, perhaps after a short wait."""
        missing = [signal for _, signal in signals if not signal.done]
        if not missing:
            return True
        self._waits += 1
        if self._never or (self._trust <= 0 and self._waits % RETRY):
            return False
        until = time.perf_counter() + SPIN_SECONDS
        while time.perf_counter() < until:
            if all(signal.done for signal in missing):
                self._trust = min(self._trust + 1, TRUST)
                return True
        self._trust = max(self._trust - 1, 0)
        return False
