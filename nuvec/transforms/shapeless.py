"""One recording for any leading size.

A function recorded at two sizes gives two IRs.  Where they are the same program, every number in
them that differs (a size in a shape, the count a mean divides by) is linear in the leading size,
and the program for a third size follows without recording it.  Where they are not, the function
depends on the size in a way no single program has, and that is said.

Two recordings do not show what the function asks of the size (is it 1, below 6, odd).  So it is
recorded once with a `Size` in its place, which notes such questions.  A size for which one has
another answer is recorded for itself, and compared with the program.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np

from nuvec.core import dtypes
from nuvec.core.errors import ShapeError
from nuvec.core.ir import IR, Atom, Aval, Eqn, Literal, Var, aval
from nuvec.core.printer import format_ir
from nuvec.core.size import Question, Size, questions
from nuvec.transforms.custom_rule import Rule
from nuvec.transforms.reads import sizes_read

# A size to confirm a program at: large and prime, so that sizes cut, capped or halved show.
PROBE = 4099
# Sizes to ask questions of.  Each is used once: answers for shapes seen before are remembered in
# many places, and not asked for again.
_asked = (n for n in itertools.count(4111, 2) if all(n % k for k in range(3, 199, 2)))


class Polymorphic:
    """A program known at two leading sizes; `at(n)` is its IR at another."""

    def __init__(self, name: str, first: IR, first_size: int, second: IR, second_size: int) -> None:
        self.name = name
        self.first, self.second = first, second
        self.sizes = (first_size, second_size)
        self.questions: dict[Question, str] = {}
        self.reads: str | None = None  # the line at which the function itself reads a size
        self.same_program(first, second)
        self.at(first_size)  # raises now when a number is not linear in the size

    def at(self, n: int) -> IR:
        """The IR at leading size `n`."""
        return _Instance(self, n).ir(self.first, self.second)

    def number(self, known: tuple[int, int], n: int) -> int:
        """What a number that is known at the two sizes is at size `n`."""
        return _Instance(self, n).number(*known, None)

    def question(self, n: int) -> str | None:
        """The line of a question that has another answer at size `n`."""
        return next((line for q, line in self.questions.items() if not q.holds(n)), None)

    def confirm(self, recorded: IR, n: int, why: str) -> None:
        """Raise unless the IR recorded at size `n` is the one that follows for it."""
        expected = self.at(n)
        constants = zip(recorded.constants, expected.constants, strict=False)
        same = all(np.array_equal(a, b, equal_nan=True) for (_, a), (_, b) in constants)
        if not same or format_ir(recorded) != format_ir(expected):
            self.fail(f"at size {n}{why} it does something else")

    def same_program(self, a: IR, b: IR) -> None:
        counts = (len(a.inputs), len(a.eqns), len(a.outputs), len(a.constants))
        if counts != (len(b.inputs), len(b.eqns), len(b.outputs), len(b.constants)):
            self.fail("the numbers of equations and arrays differ")
        for x, y in zip(a.eqns, b.eqns, strict=True):
            if x.primitive is not y.primitive or set(x.params) != set(y.params):
                self.fail(f"{x.primitive.name} is {y.primitive.name} there", x)

    def fail(self, why: str, eqn: Eqn | None = None) -> NoReturn:
        where = f", at {eqn.source}" if eqn is not None and eqn.source else ""
        small, large = self.sizes
        raise ShapeError(
            f"compile(shapeless=True) of {self.name}: there is no one program for leading sizes "
            f"{small} and {large}{where}: {why}. Compile it without shapeless, which records it "
            "for each size"
        )


class _Instance:
    """One size's IR being made from two."""

    def __init__(self, program: Polymorphic, n: int, made: dict[Any, Any] | None = None) -> None:
        self.program = program
        small, large = program.sizes
        self.fraction = Fraction(n - small, large - small)
        self.variables: dict[Var, Var] = {}
        self.made: dict[Any, Any] = {} if made is None else made  # of pairs of IRs and rules

    def number(self, a: int, b: int, eqn: Eqn | None) -> int:
        if a == b:
            return a
        value = a + (b - a) * self.fraction
        if value.denominator != 1 or value < 0:
            self.program.fail(f"{a} and {b} do not follow for size {self.size()}", eqn)
        return int(value)

    def avals(self, a: Aval, b: Aval, eqn: Eqn | None) -> Aval:
        if a is b:
            return a
        if a.dtype != b.dtype or len(a.shape) != len(b.shape):
            self.program.fail(f"{a} is {b} there", eqn)
        shape = tuple([self.number(x, y, eqn) for x, y in zip(a.shape, b.shape, strict=True)])
        return aval(shape, a.dtype, a.weak)

    def new(self, v: Var, other: Var, eqn: Eqn | None = None) -> Var:
        found = self.variables[v] = Var(self.avals(v.aval, other.aval, eqn), v.hint)
        return found

    def atom(self, a: Atom, b: Atom, eqn: Eqn | None) -> Atom:
        if isinstance(a, Var) and isinstance(b, Var):
            return self.variables[a]
        if not (isinstance(a, Literal) and isinstance(b, Literal)):
            self.program.fail("an operand is a constant at one size", eqn)
        assert isinstance(a, Literal) and isinstance(b, Literal)
        if a.value.tobytes() == b.value.tobytes():
            return a
        exact = float(a.value).is_integer() and float(b.value).is_integer()
        if dtypes.is_complex(a.value.dtype) or not exact:
            self.program.fail(f"the constant {a.value} is {b.value} there", eqn)
        number = self.number(int(a.value), int(b.value), eqn)
        try:
            with np.errstate(all="ignore"):
                value = a.value.dtype.type(number)
        except OverflowError:
            self.program.fail(f"{number} does not fit {dtypes.name(a.value.dtype)}", eqn)
        return Literal(value, a.aval.weak)

    def param(self, a: Any, b: Any, eqn: Eqn) -> Any:
        if isinstance(a, IR) and isinstance(b, IR):
            return self.inner(a, b)
        if isinstance(a, Rule) and isinstance(b, Rule):
            return self.rule(a, b, eqn)
        if isinstance(a, Aval) and isinstance(b, Aval):
            return self.avals(a, b, eqn)
        if type(a) is not type(b):
            self.program.fail(f"a parameter is {a!r} and {b!r}", eqn)
        if isinstance(a, tuple):
            if len(a) != len(b):
                self.program.fail(f"a parameter is {a!r} and {b!r}", eqn)
            return tuple([self.param(x, y, eqn) for x, y in zip(a, b, strict=True)])
        if isinstance(a, int) and not isinstance(a, bool):
            return self.number(a, b, eqn)
        if a != b:
            self.program.fail(f"a parameter is {a!r} and {b!r}", eqn)
        return a

    def inner(self, a: IR, b: IR) -> IR:
        """An IR inside of an equation."""
        found = self.made.get((a, b))
        if found is None:
            self.program.same_program(a, b)
            found = _Instance(self.program, self.size(), self.made).ir(a, b)
            self.made[a, b] = found
        return found

    def rule(self, a: Rule, b: Rule, eqn: Eqn) -> Rule:
        found = self.made.get((a, b))
        if found is None:
            found = self.made[a, b] = replace(a, derived={})  # before its IRs, which may name it
            for name in Rule.text_fields:
                setattr(found, name, self.param(getattr(a, name), getattr(b, name), eqn))
            found.restored()
        return found

    def size(self) -> int:
        small, large = self.program.sizes
        return int(small + (large - small) * self.fraction)

    def constant(self, v: Var, a: np.ndarray, other: Var, b: np.ndarray) -> np.ndarray:
        shape = self.new(v, other).aval.shape
        if a.shape == b.shape and a.tobytes() == b.tobytes():
            return a
        here, there = _progression(a), _progression(b)
        if here and there:
            first, step = [self.number(x, y, None) for x, y in zip(here, there, strict=True)]
            found = np.arange(math.prod(shape)).astype(a.dtype) * np.array(step).astype(a.dtype)
            return (found + np.array(first).astype(a.dtype)).reshape(shape)
        fill = a.reshape(-1)[:1]
        uniform = all(
            x.size and bool((np.ascontiguousarray(x).reshape(-1) == fill).all()) for x in (a, b)
        )
        if not uniform:
            self.program.fail(f"a constant array of shape {a.shape} is another there")
        return np.broadcast_to(fill.reshape(()), shape)

    def ir(self, a: IR, b: IR) -> IR:
        inputs = tuple([self.new(x, y) for x, y in zip(a.inputs, b.inputs, strict=True)])
        constants = tuple([
            (self.variables[x], value)
            for (x, xs), (y, ys) in zip(a.constants, b.constants, strict=True)
            for value in [self.constant(x, xs, y, ys)]
        ])  # fmt: skip
        eqns = []
        for x, y in zip(a.eqns, b.eqns, strict=True):
            operands = tuple([
                self.atom(p, q, x) for p, q in zip(x.inputs, y.inputs, strict=True)
            ])  # fmt: skip
            params = {k: self.param(v, y.params[k], x) for k, v in x.params.items()}
            outs = tuple([self.new(p, q, x) for p, q in zip(x.outputs, y.outputs, strict=True)])
            eqns.append(Eqn(x.primitive, operands, outs, params, x.source))
        outputs = tuple([
            self.atom(p, q, None) for p, q in zip(a.outputs, b.outputs, strict=True)
        ])  # fmt: skip
        return IR(inputs, constants, tuple(eqns), outputs)


def _progression(a: np.ndarray) -> tuple[int, int] | None:
    """(first, step) of an array of integers that is `arange` along its one axis longer than 1."""
    if a.dtype.kind not in "iu" or a.size < 2 or a.size != max(a.shape):
        return None
    numbers = [int(x) for x in a.reshape(-1)]
    step = numbers[1] - numbers[0]
    even = all(y - x == step for x, y in itertools.pairwise(numbers))
    return (numbers[0], step) if even else None


def asked_of(
    record: Callable[[tuple[Aval, ...]], Any], now: Sequence[Aval], before: Sequence[Aval]
) -> tuple[dict[Question, str], str | None]:
    """What a function asks of its leading size, where the two signatures differ in it, and the line
    at which its own code reads a size, which it may use in ways that cannot be noted.

    It is recorded at two sizes: a number that got around the `Size` (NumPy's own are plain) shows
    in how it differs between the two."""
    with sizes_read() as lines:
        (n, one), (m, other) = [_questions(record, now, before) for _ in range(2)]
    line = lines[0] if lines else None
    if [q.what for q in one] != [q.what for q in other]:
        return one, line
    found = [q.between(p, n, m) for q, p in zip(one, other, strict=True)]
    kept = {q: line for q, line in zip(found, one.values(), strict=True) if q is not None}
    return kept, line


def _questions(
    record: Callable[[tuple[Aval, ...]], Any], now: Sequence[Aval], before: Sequence[Aval]
) -> tuple[int, dict[Question, str]]:
    for n in _asked:
        asked = with_leading_size(now, before, Size(n))
        moved = [a for a, b in zip(asked, now, strict=True) if a is not b]
        if all(type(a.shape[0]) is Size for a in moved):  # else there is such an array already
            break
    with questions() as found, suppress(Exception):  # at other sizes it need not work
        record(asked)
    return n, found


def leading_size(now: Sequence[Aval], before: Sequence[Aval]) -> tuple[int, int] | None:
    """(the leading size now, before) when two signatures differ in one leading size alone."""
    sizes = set()
    for a, b in zip(now, before, strict=True):
        if a is b:
            continue
        same = a.dtype == b.dtype and a.weak == b.weak and a.shape[1:] == b.shape[1:]
        if not same or not a.shape or not b.shape:
            return None
        sizes.add((a.shape[0], b.shape[0]))
    return sizes.pop() if len(sizes) == 1 else None


def with_leading_size(now: Sequence[Aval], before: Sequence[Aval], n: int) -> tuple[Aval, ...]:
    """The signature with leading size `n` where the two differ."""
    return tuple([
        a if a is b else aval((n, *a.shape[1:]), a.dtype, a.weak)
        for a, b in zip(now, before, strict=True)
    ])  # fmt: skip
