"""The default random stream: keys for code that passes none.

Outside a traced function the k-th draw uses `fold_in(key(seed), k)`: another key at every draw,
and nothing that grows.  Inside a symbolic trace a draw must not bake in a constant:

- In a scope (compile, scan, ...) the keys derive from one base key, an input of the scope that
  its caller draws at every call: the k-th draw recorded in it uses `fold_in(base, k)`.
- Under vmap each element folds in its own index, a batched input of the mapped function.

So a compiled function draws once from the default stream at each call, and its numbers differ
from those of the same function uncompiled.

The seed is 0 until `seed` sets another, so that all ranks of a group start alike.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array
from nuvec.core.errors import ConcretizationError
from nuvec.core.ir import aval
from nuvec.core.node import Trace, constant, context
from nuvec.core.ops import philox
from nuvec.core.ops.random import as_words, random_fold_in_p, uint64_constant
from nuvec.core.primitive import placeholder
from nuvec.core.traceback import filtered, format_user_frame


class _RandomSource:
    """What a scope's random base key is captured from: `next_key()` of whoever calls it."""

    def __repr__(self) -> str:
        return "RANDOM_SOURCE"


RANDOM_SOURCE = _RandomSource()
_KEY = aval((2,), dtypes.uint64)
_WORD = 2**64 - 1


def root_key(words: int) -> np.ndarray:
    """The key from which seeds of that many 64-bit words derive."""
    return np.array((words - 1, 0), np.uint64)


def seed_key(seed: int) -> np.ndarray:
    """The key of a Python int of any size: uint64 [2].

    The root key folded with each 64-bit word of the seed, in two's complement and as few of them
    as hold it: one for -2^63 to 2^63 - 1."""
    words = seed.bit_length() // 64 + 1
    key = root_key(words)
    for i in range(words):
        key = _fold(key, (seed >> 64 * i) & _WORD)
    return key


def _fold(key: np.ndarray, data: int) -> np.ndarray:
    return philox.words(key[None], philox.FOLD_IN, 2, np.array([data], np.uint64))[0]


class StreamState(NamedTuple):
    """Where a stream is.

    seed  -- the seed it was started with, any Python int
    drawn -- how many keys were drawn since, an int
    """

    seed: int
    drawn: int


class Stream:
    """A stream of keys.  Its methods may be called from any thread."""

    def __init__(self, seed: int = 0) -> None:
        self._lock = threading.Lock()
        self._seed = seed
        self._drawn = 0
        self._key: np.ndarray | None = None  # of the seed; computed at the first draw

    def seed(self, seed: int) -> None:
        with self._lock:
            self._seed, self._drawn, self._key = seed, 0, None

    def state(self) -> StreamState:
        with self._lock:
            return StreamState(self._seed, self._drawn)

    def restore(self, state: StreamState) -> None:
        with self._lock:
            self._seed, self._drawn, self._key = state.seed, state.drawn, None

    def next_key(self) -> Array:
        """The next key, a constant."""
        with self._lock:
            if self._key is None:
                self._key = seed_key(self._seed)
            key, number = self._key, self._drawn
            self._drawn += 1
        return Array(constant(_fold(key, number), _KEY))


_process = Stream()


class _Current(threading.local):
    """The stream of this thread's rank: the process is one rank, unless `run_local` makes several
    of its threads."""

    stream: Stream = _process


_current = _Current()


@contextmanager
def stream_set(stream: Stream) -> Iterator[None]:
    """Let `stream` be the default stream of this thread."""
    before = _current.stream
    _current.stream = stream
    try:
        yield
    finally:
        _current.stream = before


@filtered
def seed(seed: int) -> None:
    """Start the default stream anew.  `seed` is any Python int; raises TypeError for others, and
    ConcretizationError inside vmap and compile, where it would act at tracing only.

    >>> import nuvec as nv
    >>> nv.random.seed(1)
    >>> x = nv.random.uniform()
    >>> nv.random.seed(1)
    >>> bool(x == nv.random.uniform())
    True
    """
    _refuse_symbolic("seed", "Call it outside, or pass keys: nv.random.key(seed)")
    _current.stream.seed(operator.index(seed))


@filtered
def get_state() -> StreamState:
    """Where the default stream is: two Python ints, the seed and how many keys were drawn.

    Saved with parameters and optimizer state and given to `set_state`, it lets a run with random
    layers go on to the same bits. Raises ConcretizationError inside vmap and compile.

    >>> import nuvec as nv
    >>> nv.random.seed(7)
    >>> x = nv.random.uniform(shape=(2,))
    >>> nv.random.get_state()
    StreamState(seed=7, drawn=1)
    """
    _refuse_symbolic("get_state", "Call it outside")
    return _current.stream.state()


@filtered
def set_state(state: Any) -> None:
    """Put the default stream where it was at `get_state`.

    `state` is what that returned, or any two integers (a list read from JSON, a NumPy array).
    Raises TypeError or ValueError for what is not, and ConcretizationError inside vmap and
    compile.

    >>> import nuvec as nv
    >>> state = nv.random.get_state()
    >>> x = nv.random.uniform()
    >>> nv.random.set_state(state)
    >>> bool(x == nv.random.uniform())
    True
    """
    _refuse_symbolic("set_state", "Call it outside")
    try:
        seed, drawn = [operator.index(item) for item in state]
    except (TypeError, ValueError) as error:
        raise type(error)(
            "nv.random.set_state takes what get_state returned, a seed and a count, got "
            f"{state!r:.60}"
        ) from None
    if not 0 <= drawn <= _WORD:
        raise ValueError(f"nv.random.set_state: {drawn} is no count of drawn keys")
    _current.stream.restore(StreamState(seed, drawn))


def _refuse_symbolic(name: str, advice: str) -> None:
    for trace in context.traces:
        if trace.symbolic:
            raise ConcretizationError(
                f"nv.random.{name} at {format_user_frame()} is inside {trace.name}, where it would "
                f"act once, at tracing, and not at every call. {advice}"
            )


def next_key() -> Array:
    """The key of the next draw from the default stream, whatever is being traced."""
    traces = context.traces
    scope = context.scope
    if scope is None:
        key = _current.stream.next_key()
    else:
        key = _scope_key(scope)
        traces = traces[traces.index(scope) + 1 :]
    for trace in traces:
        if trace.mode == "vmap":
            key = random_fold_in_p.bind(key, _element_index(trace))
    return key


def _scope_key(scope: Trace) -> Array:
    """The next key of a scope: its base key, an input, with the number of the draw folded in."""
    found = scope.captures.get("random")
    if found is None:
        node = placeholder(scope, _KEY, "the random stream")
        found = scope.captures["random"] = (RANDOM_SOURCE, node)
    number = scope.random or 0
    scope.random = number + 1
    return random_fold_in_p.bind(Array(found[1]), uint64_constant(number))


def _element_index(trace: Trace) -> Array:
    """The index of the mapped element: int32 [] inside the mapped function."""
    found: Any = trace.captures.get("index")
    if found is None:
        node = placeholder(trace, aval((), dtypes.int32), "the element index")
        found = trace.captures["index"] = (None, node)
    return as_words(Array(found[1]), "the element index")


__all__ = [
    "RANDOM_SOURCE",
    "Stream",
    "StreamState",
    "get_state",
    "next_key",
    "root_key",
    "seed",
    "seed_key",
    "set_state",
    "stream_set",
]
