"""A leading size that notes what is asked of it.

A function recorded for one size may hold for others, as long as whatever it asked of the size
(is it 1, is it below 6, is it odd) has the same answer there.  In a recording with a `Size` in
the place of that number, every such question is noted as a `Question`; what follows from it by
adding and multiplying constants is a `Size` again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from nuvec.core.traceback import format_user_frame

Affine = tuple[int, int]  # (a, b) is a * size + b

_noted: ContextVar[dict[Question, str] | None] = ContextVar("noted", default=None)


@dataclass(frozen=True)
class Question:
    """A comparison ("lt", ...) or remainder ("mod") of two numbers, and its answer."""

    what: str
    left: Affine
    right: Affine
    answer: Any

    def holds(self, n: int) -> bool:
        """Whether the answer is the same where the size is `n`."""
        a, b = (slope * n + offset for slope, offset in (self.left, self.right))
        return bool(_ASKED[self.what](a, b) == self.answer)

    def between(self, other: Question, n: int, m: int) -> Question | None:
        """The question that this one, asked where the size was `n`, and `other`, at `m`, are; None
        where it has one answer at every size."""
        right, constant = self.right, other.right
        if self.what != "mod" and right[0] == constant[0] == 0 and right != constant:
            slope, rest = divmod(constant[1] - right[1], m - n)
            if not rest:
                right = (slope, right[1] - slope * n)
        if right[0] == self.left[0] and self.what != "mod":
            return None
        return Question(self.what, self.left, right, self.answer)


_ASKED: dict[str, Callable[[int, int], Any]] = {
    name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne", "mod")
}


@contextmanager
def questions() -> Iterator[dict[Question, str]]:
    """The questions asked of sizes within, each with the line it was first asked at."""
    found: dict[Question, str] = {}
    token = _noted.set(found)
    try:
        yield found
    finally:
        _noted.reset(token)


def _affine(x: Any) -> Affine | None:
    if type(x) is Size:
        return x.affine
    return (0, int(x)) if isinstance(x, int) else None


def _ask(what: str, x: int, y: Any) -> Any:
    answer = getattr(int, f"__{what}__")(x, y)
    left, right, noted = _affine(x), _affine(y), _noted.get()
    if right is None or left is None or answer is NotImplemented:
        return answer
    if noted is None or (left[0] == right[0] and what != "mod"):
        return answer
    if (what, answer) in (("eq", True), ("ne", False)):
        return answer  # by chance: equal shapes of other programs are one object
    question = Question(what, left, right, answer)
    if question not in noted:
        noted[question] = str(format_user_frame())
    return answer


class Size(int):
    """An integer that is `affine[0] * size + affine[1]` of the leading size."""

    affine: Affine

    def __new__(cls, value: int, affine: Affine = (1, 0)) -> Size:
        made = super().__new__(cls, value)
        made.affine = affine
        return made

    def __hash__(self) -> int:
        return int.__hash__(self)

    # Questions

    def __lt__(self, other: Any) -> bool:
        return _ask("lt", self, other)

    def __le__(self, other: Any) -> bool:
        return _ask("le", self, other)

    def __gt__(self, other: Any) -> bool:
        return _ask("gt", self, other)

    def __ge__(self, other: Any) -> bool:
        return _ask("ge", self, other)

    def __eq__(self, other: Any) -> bool:
        return _ask("eq", self, other)

    def __ne__(self, other: Any) -> bool:
        return _ask("ne", self, other)

    def __bool__(self) -> bool:
        return self != 0

    def __mod__(self, other: Any) -> int:
        return _ask("mod", self, other)

    def __divmod__(self, other: Any) -> tuple[int, int]:
        return self // other, self % other

    # What is a size again

    def __add__(self, other: Any) -> int:
        return _sum(self, other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> int:
        return _sum(self, other, -1)

    def __rsub__(self, other: Any) -> int:
        a, b = self.affine
        return _sum(Size(-int(self), (-a, -b)), other, 1)

    def __neg__(self) -> int:
        return self * -1

    def __abs__(self) -> int:
        return self if self >= 0 else -self

    def __mul__(self, other: Any) -> int:
        product = int.__mul__(self, other)
        factor = _affine(other)
        if product is NotImplemented or factor is None or factor[0]:
            return product
        a, b = self.affine
        return Size(product, (a * factor[1], b * factor[1]))

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> int:
        quotient = int.__floordiv__(self, other)
        divisor = _affine(other)
        if quotient is NotImplemented or divisor is None or divisor[0]:
            return quotient
        rest = self % divisor[1]
        a, b = self.affine
        if a % divisor[1] or (b - rest) % divisor[1]:
            return quotient
        return Size(quotient, (a // divisor[1], (b - rest) // divisor[1]))


def _sum(x: Size, y: Any, sign: int) -> int:
    total = int.__add__(x, y) if sign == 1 else int.__sub__(x, y)
    other = _affine(y)
    if total is NotImplemented or other is None:
        return total
    a, b = x.affine
    return Size(total, (a + sign * other[0], b + sign * other[1]))


def slice_indices(entry: slice, n: int) -> tuple[int, int, int]:
    """`entry.indices(n)`, which is to hold for a `Size`: how its bounds lie to it is asked."""
    if type(n) is Size:
        for bound in (entry.start, entry.stop):
            if isinstance(bound, int):
                _ask("le", n, bound)
                _ask("lt", n, -bound)
    return entry.indices(n)


__all__ = ["Question", "Size", "questions", "slice_indices"]
