"""What a plan is: steps and what each writes to, buffers, outputs, and the memory of it all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nuvec.core.ir import Atom, Var
from nuvec.core.lower.layout import Layout
from nuvec.core.lower.schedule import Group


class Memory(NamedTuple):
    """Predicted bytes.  Scratch inside a lowering, and inputs and constants, do not count.

    peak    -- the most that is held at once: the arena, what the tiles of a group work in, and
               what a run allocates, outputs included
    arena   -- kept between runs, once for each call that runs at the same time
    outputs -- what is handed to the caller
    """

    peak: int
    arena: int
    outputs: int


class Buffer(NamedTuple):
    """A view of an arena slot."""

    slot: int
    shape: tuple[int, ...]
    dtype: np.dtype


class Into(NamedTuple):
    """The array the caller gives for an output."""

    output: int


Target = int | str | Var | Into | None


class Step(NamedTuple):
    """One group's run.

    target -- None: the lowering makes its result; "empty": a new array is passed as out=;
              an int: the number of the buffer passed as out=; a Var: the dead operand written to;
              an Into: the caller's array for an output; of a group that runs in tiles, a list of
              them, one an output (None where the sums of the tiles are summed)
    dead   -- variables whose memory the run may let go of afterwards
    """

    group: Group
    target: Target | list[Target]
    dead: tuple[Var, ...]


class Handover(NamedTuple):
    """How an output is made the caller's own.

    copy   -- it surely shares memory with something else
    shares -- it may share memory with these, which is looked at when it is known
    """

    atom: Atom
    copy: bool
    shares: tuple[Var, ...]
    order: str


class Given(NamedTuple):
    """An output that goes to an array of the caller.

    direct -- a step writes it there; else it is copied there at the end
    exposed -- before that, it is in the memory of an input that another output is written over
    """

    output: int
    direct: bool
    exposed: bool


@dataclass(frozen=True)
class Placement:
    """The plan proper: steps, buffers, slots (their bytes), outputs, predicted memory.

    into -- the outputs that go to arrays of the caller
    layouts -- what is known of each value's
    """

    steps: tuple[Step, ...]
    buffers: tuple[Buffer, ...]
    slots: tuple[int, ...]
    outputs: tuple[Handover, ...]
    memory: Memory
    into: tuple[Given, ...]
    layouts: Mapping[Var, Layout]
