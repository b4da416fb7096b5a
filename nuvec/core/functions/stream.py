"""The default random stream: keys for code that passes none.

The draw at position p of the stream uses its key with p folded in: another key at every draw, and
nothing that grows.  A stream's key is none that a user has: it is made of `key(seed)` as no other
key is.  A symbolic trace must not bake in a constant, and draws what the same function
draws without it:

- A scope (compile, checkpoint, a branch, a step of scan, ...) has the stream's key and position as
  inputs.  Its k-th draw is at `position + k`, and its caller's position moves on by as many as it
  has.  A branch of cond counts as its longest; a while_loop, whose steps are not known, as one
  draw, from which a stream of its own begins.
- Under vmap each element folds its own index into the key: a batched input of the mapped function.

What is folded in says what for (`Folded`), so that no two of them are ever the same key.

The seed is 0 until `seed` sets another, so that all ranks of a group start alike.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array
from nuvec.core.errors import ConcretizationError
from nuvec.core.ir import Aval, aval
from nuvec.core.node import Node, Trace, constant, context
from nuvec.core.ops import philox
from nuvec.core.ops.arithmetic import add
from nuvec.core.ops.random import as_words, random_fold_in_p, uint64_constant
from nuvec.core.primitive import placeholder
from nuvec.core.traceback import filtered, format_user_frame


class Folded(IntEnum):
    """What is folded into a stream's key: a position, or with one of these added, what makes the
    key of another stream."""

    ELEMENT = 1 << 62  # the index of a mapped element
    LOOP = 1 << 63  # the position of a while_loop
    BACKWARD = 3 << 62  # the position of a custom rule whose backward draws


class _RandomKey:
    """The source of a scope's stream key, as a capture: the key of whoever calls it."""

    def __repr__(self) -> str:
        return "RANDOM_KEY"


RANDOM_KEY = _RandomKey()


@dataclass(eq=False)
class RandomPosition:
    """The source of a scope's position in the stream, as a capture: where its caller is.

    count -- by how many positions the scope's draws move the caller on
    """

    count: int = 0


_KEY = aval((2,), dtypes.uint64)
_POSITION = aval((), dtypes.uint64)
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


def _stream_key(seed: int) -> np.ndarray:
    return philox.words(seed_key(seed)[None], philox.STREAM, 2)[0]


def another_stream(key: Array, position: Array, what: Folded) -> Array:
    """The key of a stream of its own, for what is at a position."""
    return random_fold_in_p.bind(key, add(position, uint64_constant(what)))


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
        self._key: Node | None = None  # of the seed; computed at the first draw

    def seed(self, seed: int) -> None:
        with self._lock:
            self._seed, self._drawn, self._key = seed, 0, None

    def state(self) -> StreamState:
        with self._lock:
            return StreamState(self._seed, self._drawn)

    def restore(self, state: StreamState) -> None:
        with self._lock:
            self._seed, self._drawn, self._key = state.seed, state.drawn, None

    def take(self, count: int) -> tuple[Node, int]:
        """The stream's key and the first of `count` positions that are the caller's alone."""
        with self._lock:
            if self._key is None:
                self._key = constant(_stream_key(self._seed), _KEY)
            position = self._drawn
            self._drawn += count
            return self._key, position


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
    if not 0 <= drawn < Folded.ELEMENT // 2:  # so many that there is no end
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
    if context.symbolic:
        return random_fold_in_p.bind(*take(1))
    key, number = _current.stream.take(1)
    return Array(constant(_fold(key.value, number), _KEY))


def take(count: int) -> tuple[Array, Array]:
    """The stream's key, uint64 [2], and the first of its next `count` positions, uint64 []: they
    are the caller's alone."""
    traces = context.traces
    scope = context.scope
    if scope is None:
        node, number = _current.stream.take(count)
        key, position = Array(node), Array(constant(np.asarray(number, np.uint64), _POSITION))
    else:
        key, position = _scope_stream(scope, count)
        traces = traces[traces.index(scope) + 1 :]
    for trace in traces:
        if trace.mode == "vmap":
            key = _element_key(trace, key)
    return key, position


@contextmanager
def draws_undone() -> Iterator[None]:
    """The stream is where it was before, afterwards: for what is recorded only to be looked at."""
    scope = context.scope
    found = None if scope is None else scope.captures.get(_SOURCE)
    count = 0 if found is None else found[0].count
    try:
        with stream_set(Stream()):
            yield
    finally:
        if scope is not None and _SOURCE in scope.captures:
            scope.captures[_SOURCE][0].count = count


def _scope_stream(scope: Trace, count: int) -> tuple[Array, Array]:
    """The key of a scope's stream, an input, and where in it the scope has got to."""
    if _SOURCE not in scope.captures:
        node = placeholder(scope, _KEY, "the random stream's key")
        scope.captures[_STREAM] = (RANDOM_KEY, node)
        node = placeholder(scope, _POSITION, "the random stream's position")
        scope.captures[_SOURCE] = (RandomPosition(), node)
    source, start = scope.captures[_SOURCE]
    number = source.count
    source.count += count
    position = Array(start)
    if number:
        position = add(position, uint64_constant(number))
    return Array(scope.captures[_STREAM][1]), position


_STREAM, _SOURCE = "random key", "random position"  # where a scope keeps them among its captures


def _element_key(trace: Trace, key: Array) -> Array:
    """The key of the mapped element's stream."""
    place = (_STREAM, id(key._node))
    if place not in trace.captures:
        folded = another_stream(key, _element_index(trace), Folded.ELEMENT)
        trace.captures[place] = (key, folded._node)
    return Array(trace.captures[place][1])


def source_aval(source: Any) -> Aval:
    """What a captured source gives: the stream's key, its position, or an Array's."""
    if source is RANDOM_KEY:
        return _KEY
    return _POSITION if isinstance(source, RandomPosition) else source._node.aval


def source_id(source: Any) -> Any:
    """Equal for captures of several bodies that are one input of their equation."""
    return RandomPosition if isinstance(source, RandomPosition) else id(source)


def drawn(sources: Iterable[Any]) -> int:
    """How many positions of the stream a scope with these captures uses."""
    return sum(s.count for s in sources if isinstance(s, RandomPosition))


def read_sources(sources: Sequence[Any]) -> list[Array]:
    """The arrays a scope's captures are now; the caller's stream moves on."""
    if RANDOM_KEY not in sources:
        return list(sources)
    key, position = take(drawn(sources))
    return [
        key if s is RANDOM_KEY else position if isinstance(s, RandomPosition) else s
        for s in sources
    ]


def _element_index(trace: Trace) -> Array:
    """The index of the mapped element: int32 [] inside the mapped function."""
    found: Any = trace.captures.get("index")
    if found is None:
        node = placeholder(trace, aval((), dtypes.int32), "the element index")
        found = trace.captures["index"] = (None, node)
    return as_words(Array(found[1]), "the element index")


__all__ = [
    "RANDOM_KEY",
    "Folded",
    "RandomPosition",
    "Stream",
    "StreamState",
    "another_stream",
    "drawn",
    "get_state",
    "next_key",
    "read_sources",
    "root_key",
    "seed",
    "seed_key",
    "set_state",
    "source_aval",
    "source_id",
    "stream_set",
    "take",
]
