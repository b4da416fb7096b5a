"""How scan runs: one step is a program that writes where its results belong.

A step's results go straight to their places: an output to its row of the stacked array, a carry
to one of two buffers that take turns, or, when it is also an output, to that output's row.  An
output that is the carry as the step found it (reverse mode keeps these) needs no copy either: the
carry's rows then begin one step earlier.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np

from nuvec.core.config import config
from nuvec.core.ir import IR, Aval, Var
from nuvec.core.lower import lower_into, owns_memory, run_without_nans
from nuvec.core.node import context

Loop = Callable[..., Any]


class ScanLoop:
    """The loop over `body`, whose first inputs are `consts` constants and `carry` carries."""

    def __init__(self, body: IR, consts: int, carry: int) -> None:
        self.body, self.consts, self.carry = body, consts, carry
        start = consts + carry
        inputs = {v: i for i, v in enumerate(body.inputs)}
        outs = body.outputs
        self.where: list[tuple[str, int]] = []  # for each output, what is done about it
        chosen: list[int] = []  # the outputs that the step computes
        first: dict[Var, int] = {}
        for k, a in enumerate(outs[carry:], carry):  # stacked ones first: a carry can be one's row
            if type(a) is not Var:
                self.where.append(("same", k))
            elif a in inputs:
                i = inputs[a]
                kind = "same" if i < consts else "before" if i < start else "slices"
                self.where.append((kind, i - consts if kind == "before" else i))
            elif a in first:
                self.where.append(("again", first[a]))
            else:
                first[a] = k
                chosen.append(k)
                self.where.append(("computed", k))
        carried: list[tuple[str, int]] = []
        for k, a in enumerate(outs[:carry]):
            if type(a) is not Var:
                carried.append(("literal", k))
            elif a in inputs:
                i = inputs[a]
                carried.append(("kept" if i == consts + k else "input", i))
            elif a in first:
                # A carry that was seen among the carries is copied from there.
                carried.append(("row" if first[a] >= carry else "copy", first[a]))
            else:
                first[a] = k
                chosen.append(k)
                carried.append(("computed", k))
        self.where = [*carried, *self.where]
        self.shifted: dict[int, int] = {}  # carry -> the output whose rows are one step ahead of it
        for k in range(carry, len(outs)):
            kind, i = self.where[k]
            if kind != "before":
                continue
            how, row = self.where[i]
            if how == "kept":
                self.where[k] = ("same", consts + i)
            elif (
                outs[i].aval.shape
                and how in ("computed", "row")
                and (row not in self.shifted.values() or self.shifted.get(i) == row)
            ):
                self.shifted[i] = row
        self.chosen = chosen
        self.shaped = [bool(outs[k].aval.shape) for k in chosen]
        chosen_outs = tuple([outs[k] for k in chosen])
        self.step_ir = IR(body.inputs, body.constants, body.eqns, chosen_outs)
        self._lower = partial(lower_into, self.step_ir, [j for j, s in enumerate(self.shaped) if s])
        self.step = self._lower()
        self.source, self.loop = self._loop()
        self.recorded: Loop | None = None  # the loop that records its steps

    def _loop(self) -> tuple[str, Loop]:
        """The loop itself, as Python text: no tuple is built or taken apart at a step."""
        outs, carry, consts = self.body.outputs, self.carry, self.consts
        count = len(self.body.inputs)
        fixed = [f"c{i}" for i in range(consts)]
        state = [f"s{i}" for i in range(carry)]
        given = [f"x{i}" for i in range(count - consts - carry)]
        iterated = [*given]
        targets = [f"d{k}" for k, s in zip(self.chosen, self.shaped, strict=True) if s]
        iterated += targets
        scalars = [k for k, s in zip(self.chosen, self.shaped, strict=True) if not s]
        before, after, moves = [], [], []
        for k in scalars:
            after.append(f"r{k} = r{k}[()]")  # a number, not a view of one
            if k >= carry:
                after.append(f"y{k}[i] = r{k}")
        for k in range(carry, len(outs)):
            kind, i = self.where[k]
            if kind == "before" and not outs[k].aval.shape:
                before.append(f"y{k}[i] = s{i}")
            elif kind == "before" and i not in self.shifted:
                before.append(f"d{k}[...] = s{i}")
                iterated.append(f"d{k}")
        for k in range(carry):
            kind, i = self.where[k]
            source = ""
            if kind == "computed":
                source = f"d{k}" if outs[k].aval.shape else f"r{k}"
            elif kind == "row":
                source = f"d{i}" if outs[k].aval.shape else f"r{i}"
            elif kind in ("literal", "copy", "input"):
                if kind == "literal":
                    value = f"l{k}"
                elif kind == "copy":
                    value = f"d{i}" if outs[k].aval.shape else f"r{i}"
                else:
                    value = [*fixed, *state, *given][i]
                if outs[k].aval.shape:
                    iterated.append(f"d{k}")
                    after.append(f"d{k}[...] = {value}")
                    source = f"d{k}"
                else:
                    source = value
            if source:
                moves.append((f"s{k}", source))
        call = f"step({', '.join([*fixed, *state, *given, *targets])})"
        results = "".join(f"r{k}, " for k in scalars).strip()
        lines = [*before, f"{results} = {call}" if scalars else call, *after]
        if moves:
            lines.append(f"{', '.join(m[0] for m in moves)} = {', '.join(m[1] for m in moves)}")
        literals = [f"l{k}" for k in range(carry) if self.where[k][0] == "literal"]
        stacked = [
            f"y{k}" for k in range(carry, len(outs))
            if not outs[k].aval.shape and self.where[k][0] in ("before", "computed")
        ]  # fmt: skip
        self.iterated, self.literals, self.stacked = iterated, literals, stacked
        arguments = ["numbers", *fixed, *state, *[f"{n}_" for n in iterated], *literals, *stacked]
        body = "\n        ".join(lines)
        every = "".join(f", {n}_" for n in iterated)
        names = ", ".join(["i", *iterated]) + ("" if iterated else ",")
        text = (
            f"def loop({', '.join(arguments)}):\n"
            f"    for {names} in zip(numbers{every}):\n"
            f"        {body}\n"
            f"    return [{', '.join(state)}]\n"
        )
        namespace: dict[str, Any] = {"step": self.step}
        exec(compile(text, "<nuvec scan>", "exec"), namespace)
        return text, namespace["loop"]

    def _recorded(self) -> Loop:
        """The loop while a profile is open, made when it is first asked for."""
        if self.recorded is None:
            self.recorded = self._stepping(self._lower(record=True))
        return self.recorded

    def _stepping(self, step: Loop) -> Loop:
        """The loop, with another program for a step."""
        return FunctionType(self.loop.__code__, {**self.loop.__globals__, "step": step})

    def _step_without_nans(self, *arrays: Any) -> list[Any]:
        """A step that refuses what makes a NaN (config.debug_nans)."""
        count = len(self.step_ir.inputs)
        outs = run_without_nans(self.step_ir, *arrays[:count])
        destinations = iter(arrays[count:])
        for value, shaped in zip(outs, self.shaped, strict=True):
            if shaped:
                next(destinations)[...] = value
        return [value for value, shaped in zip(outs, self.shaped, strict=True) if not shaped]

    def run(self, values: Sequence[Any], length: int, reverse: bool) -> list[Any]:
        """The last carry, and the stacked outputs."""
        outs, carry, consts = self.body.outputs, self.carry, self.consts
        avals = self.body.out_avals
        start = consts + carry
        fixed = [contiguous(v) for v in values[:consts]]
        state = [contiguous(v) for v in values[consts:start]]
        xs = list(values[start:])
        rows: dict[int, np.ndarray] = {}  # the rows of stacked outputs, by output
        wide: dict[int, np.ndarray] = {}
        for i, k in self.shifted.items():
            whole = np.empty((length + 1, *avals[i].shape), avals[i].dtype)
            whole[length if reverse else 0] = state[i]
            wide[i] = whole
            rows[k] = whole[:-1] if reverse else whole[1:]
        for k in range(carry, len(outs)):
            kind, i = self.where[k]
            if k in rows or kind in ("same", "slices", "again"):
                continue
            if kind == "before" and i in wide:
                rows[k] = wide[i][1:] if reverse else wide[i][:-1]
            else:
                rows[k] = np.empty((length, *avals[k].shape), avals[k].dtype)
        finals = self._steps(fixed, state, xs, rows, length, reverse) if length else state
        results = [self._own(k, finals[k], length) for k in range(carry)]
        for k in range(carry, len(outs)):
            kind, i = self.where[k]
            if kind == "same":
                value = outs[k].value if type(outs[k]) is not Var else values[i]  # type: ignore[union-attr]
                whole = np.empty((length, *avals[k].shape), avals[k].dtype)
                whole[...] = value
                results.append(whole)
            elif kind == "slices":
                results.append(xs[i - start].copy("C"))
            else:
                results.append(rows[i if kind == "again" else k])
        return results

    def _own(self, k: int, value: Any, length: int) -> Any:
        """A last carry, in memory of its own."""
        kind, _ = self.where[k]
        if length and self.body.outputs[k].aval.shape and kind != "kept":
            return value if owns_memory(value) else value.copy()
        return value

    def held(self, length: int) -> int:
        """The bytes of what `run` returns, each memory counted once."""
        avals, carry = self.body.out_avals, self.carry
        total = sum(a.nbytes for a in avals[:carry])
        total += sum((length + 1) * avals[i].nbytes for i in self.shifted)
        for k in range(carry, len(avals)):
            kind, i = self.where[k]
            shares = kind == "again" or (kind == "before" and i in self.shifted)
            if not shares and k not in self.shifted.values():
                total += length * avals[k].nbytes
        return total

    def _steps(
        self, fixed: list[Any], state: list[Any], xs: list[Any], rows: dict[int, np.ndarray],
        length: int, reverse: bool,
    ) -> list[Any]:  # fmt: skip
        numbers = range(length)
        avals = self.body.out_avals
        iterators: list[Any] = []
        for name in self.iterated:
            k = int(name[1:])
            if name[0] == "x":
                iterators.append(_slices(xs[k], reverse))
            elif k in rows:
                iterators.append(rows[k][::-1] if reverse else rows[k])
            elif self.body.effect:  # what a communication was given is never written again
                iterators.append(_new_arrays(avals[k]))
            else:
                both = [np.empty(avals[k].shape, avals[k].dtype) for _ in range(2)]
                iterators.append(itertools.cycle(both))
        literals = [self.body.outputs[int(n[1:])].value for n in self.literals]  # type: ignore[union-attr]
        stacked = [rows[int(n[1:])] for n in self.stacked]
        if config.debug_nans:
            loop = self._stepping(self._step_without_nans)
        else:
            loop = self.loop if not context.profiles else self._recorded()
        return loop(
            reversed(numbers) if reverse else numbers, *fixed, *state, *iterators, *literals,
            *stacked,
        )  # fmt: skip


def _slices(x: np.ndarray, reverse: bool) -> Iterator[Any] | np.ndarray:
    """The slices of an input, C-contiguous each, in the order of the steps."""
    if x.strides[0] == 0 or len(x) == 1:  # one slice again and again
        return itertools.repeat(contiguous(x[0]))
    if not x[0].flags.c_contiguous:
        x = x.copy("C")
    return x[::-1] if reverse else x


def _new_arrays(a: Aval) -> Iterator[np.ndarray]:
    while True:
        yield np.empty(a.shape, a.dtype)


def contiguous(x: Any) -> Any:
    x = np.asarray(x)
    return x if x.flags.c_contiguous else x.copy("C")
