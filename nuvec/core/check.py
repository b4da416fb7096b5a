"""The IR's type-checker: what must hold of every IR, whoever made it.

Recording and every pass hand what they build to `check_ir` when `config.check_ir` is on. An
IRError is a defect in a pass or in a rule; it quotes the equation, and the user's line that the
equation came from.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np

from nuvec.core import dtypes
from nuvec.core.errors import IRError
from nuvec.core.ir import IR, Atom, Aval, Eqn, Literal, Var, held_irs, results_of, sub_irs
from nuvec.core.printer import Names, format_eqn

__all__ = ["check_ir"]


def check_ir(ir: IR, lines: Mapping[Eqn, int] | None = None) -> None:
    """Raise IRError unless the IR is well-formed.

    lines -- of an IR read from text: the line of each equation, for messages

    Every variable is defined before it is used, and once. Every equation has as many outputs,
    of the shapes and dtypes, as its primitive's shape rule gives for its inputs. Literals and
    constants hold what their avals say. IRs in parameters, those of custom rules included, are
    well-formed themselves, use no variable from outside, and fit the operands of a call. What
    `IR.effect` remembers is true.

    >>> from nuvec.core.ir import aval
    >>> x = Var(aval((3,), dtypes.float32))
    >>> check_ir(IR((x,), (), (), (x,)))
    >>> check_ir(IR((), (), (), (x,)))
    Traceback (most recent call last):
        ...
    nuvec.core.errors.IRError: the outputs use a (float32[3]), which is not defined before.
    """
    _Checker(ir, "", set(), lines or {}).check()


class _Checker:
    def __init__(self, ir: IR, within: str, seen: set[int], lines: Mapping[Eqn, int]) -> None:
        self.ir = ir
        self.within = within  # which IR of which equation this is; "" for the outermost
        self.seen = seen  # the records whose IRs are checked
        self.lines = lines
        self.names = Names(ir)
        self.defined: set[Var] = set()

    def check(self) -> None:
        self.define(self.ir.inputs, "the inputs")
        for var, value in self.ir.constants:
            self.define((var,), "the constants")
            self.check_constant(var, value)
        for eqn in self.ir.eqns:
            self.check_eqn(eqn)
        for atom in self.ir.outputs:
            self.check_atom(atom, "the outputs")
        self.check_effect()

    # Variables and literals

    def define(self, variables: Iterable[Any], place: str, eqn: Eqn | None = None) -> None:
        for var in variables:
            if not isinstance(var, Var):
                self.fail(f"{place} define {var!r}, which is not a variable", eqn)
            if not isinstance(var.aval, Aval):
                self.fail(f"{place} define a variable whose aval is {var.aval!r}", eqn)
            if var in self.defined:
                self.fail(f"{place} define {self.name(var)} a second time", eqn)
            self.defined.add(var)

    def check_atom(self, atom: Atom, place: str, eqn: Eqn | None = None) -> None:
        if isinstance(atom, Literal):
            value, expected = atom.value, atom.aval
            dtype = getattr(value, "dtype", None)
            if dtype is None or dtype != expected.dtype or expected.shape or np.ndim(value):
                self.fail(
                    f"{place} use the literal {value!r} as {expected!r}: a literal is a NumPy "
                    "scalar of its aval's dtype",
                    eqn,
                )
        elif not isinstance(atom, Var):
            self.fail(f"{place} use {atom!r}, which is neither a variable nor a literal", eqn)
        elif atom not in self.defined:
            self.fail(f"{place} use {self.name(atom)}, which is not defined before", eqn)

    def check_constant(self, var: Var, value: Any) -> None:
        dtype, shape = getattr(value, "dtype", None), np.shape(value)
        if dtype is None or dtype != var.aval.dtype or shape != var.aval.shape:
            got = type(value).__name__ if dtype is None else f"{dtypes.name(dtype)}{list(shape)}"
            self.fail(f"the constant {self.name(var)} has a value that is {got}")

    # Equations

    def check_eqn(self, eqn: Eqn) -> None:
        for atom in eqn.inputs:
            self.check_atom(atom, "the operands", eqn)
        primitive = eqn.primitive
        inner = held_irs(eqn, self.seen)
        if inner and not primitive.higher_order:
            self.fail(
                f"{primitive.name} holds an IR but is not declared higher_order, so that its "
                "communications would be lost",
                eqn,
            )
        for name, ir in inner:
            within = f" in the parameter {name} of {primitive.name}{self.within}"
            _Checker(ir, within, self.seen, self.lines).check()
        self.check_call(eqn, inner)
        self.check_avals(eqn)
        self.define(eqn.outputs, "the outputs of the equation", eqn)

    def check_avals(self, eqn: Eqn) -> None:
        """The outputs are what the shape rule says."""
        given = tuple(atom.aval for atom in eqn.inputs)
        operands = ", ".join(map(repr, given))
        refuses = "lowering"
        try:
            # A shape rule may be one for many primitives, and take whatever it is given.
            _calling(eqn.primitive.lower)(*given, **eqn.params)
            refuses = "shape rule"
            found = eqn.primitive.shape_rule(*given, **eqn.params)
        except Exception as error:
            self.fail(
                f"the {refuses} of {eqn.primitive.name} refuses ({operands}): "
                f"{type(error).__name__}: {error}",
                eqn,
                error,
            )
        expected = tuple(found) if eqn.primitive.multiple else (found,)
        actual = tuple(var.aval for var in eqn.outputs)
        if len(expected) != len(actual):
            self.fail(
                f"the equation has {len(actual)} outputs, expected {len(expected)} by the shape "
                f"rule of {eqn.primitive.name} for ({operands})",
                eqn,
            )
        for i, (want, got) in enumerate(zip(expected, actual, strict=True)):
            if want is not got:
                self.fail(
                    f"output {i} is {got!r}, expected {want!r} by the shape rule of "
                    f"{eqn.primitive.name} for ({operands})",
                    eqn,
                )

    def check_call(self, eqn: Eqn, inner: list[tuple[str, IR]]) -> None:
        """A parameter named `ir` is what a call runs on its operands: they must fit it."""
        if eqn.primitive.kind != "call":
            return
        for name, ir in inner:
            if name == "ir":
                given = tuple(atom.aval for atom in eqn.inputs)
                results = tuple(var.aval for var in eqn.outputs)
                self.check_fit("operands", "inputs", given, ir.in_avals, eqn)
                self.check_fit("outputs", "outputs", results, results_of(ir), eqn)

    def check_fit(
        self, mine: str, its: str, got: tuple[Aval, ...], want: tuple[Aval, ...], eqn: Eqn
    ) -> None:
        # Weakness may differ: it decides promotion while recording and nothing afterwards.
        if [(a.shape, a.dtype) for a in got] != [(a.shape, a.dtype) for a in want]:
            self.fail(f"the {mine} are {got}, expected {want}, the {its} of the IR it calls", eqn)

    # Effects

    def check_effect(self) -> None:
        """What the IR and the IRs inside remember of communications agrees with the equations."""
        remembered = self.ir.derived.get("effect")
        actual = any(_communicates(eqn) for eqn in self.ir.eqns)
        if remembered is not None and remembered != actual:
            text = "communicates" if actual else "does not communicate"
            self.fail(f"the IR is marked effect={remembered}, but it {text}")

    # Messages

    def name(self, var: Var) -> str:
        return f"{self.names[var]} ({var.aval!r})"

    def fail(
        self, message: str, eqn: Eqn | None = None, cause: Exception | None = None
    ) -> NoReturn:
        text = message + self.within
        if eqn is not None:
            if eqn in self.lines:
                text = f"line {self.lines[eqn]} of the IR's text: {text}"
            text += "\n    " + format_eqn(eqn, self.names).replace("\n", "\n    ")
            text += f"\nrecorded at {eqn.source}" if eqn.source else ""
            raise IRError(text) from cause
        raise IRError(f"{text}.") from cause


@lru_cache(maxsize=1024)
def _calling(lower: Callable[..., Any]) -> Callable[..., Any]:
    """A function that raises TypeError for operands and parameters that a lowering cannot take."""
    if isinstance(lower, np.ufunc):
        names = [inspect.Parameter(f"x{i}", inspect.Parameter.POSITIONAL_ONLY)
                 for i in range(lower.nin)]  # fmt: skip
        return inspect.Signature(names).bind
    try:
        return inspect.signature(lower).bind
    except ValueError:  # written in C, and silent on what it takes
        return lambda *operands, **params: None


def _communicates(eqn: Eqn) -> bool:
    """`Eqn.effect`, found anew in the equations instead of in what the IRs remember."""
    return eqn.primitive.effect or any(
        _communicates(inner) for ir in sub_irs(eqn.params) for inner in ir.eqns
    )
