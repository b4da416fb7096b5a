"""Checks of whole programs: every transform, and every pair of them nested in both orders.

`check_case` runs a program and what the transforms make of it on all ranks of a local group:

jvp      -- against finite differences, all ranks moving at once
vjp      -- against jvp: the sum over ranks of <c, J v> equals that of <J^T c, v>
vmap     -- against a loop
compile  -- against the interpreter, bit for bit

checkpoint, linearize -- against the function without, and against jvp

each of the program itself, and of what every one of these makes of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, from_numpy
from nuvec.core.array import eval as evaluate
from nuvec.core.config import config
from nuvec.core.errors import ArgumentError
from nuvec.core.ops.differentiation import depends
from nuvec.distributed.group import Group, run_local
from nuvec.testing.compare import difference, inner, program_of, random_like, same_bits
from nuvec.testing.programs import Case
from nuvec.testing.shrinking import smallest
from nuvec.transforms.checkpoint import checkpoint
from nuvec.transforms.compile import compile
from nuvec.transforms.grad import vjp
from nuvec.transforms.jvp import jvp
from nuvec.transforms.linearize import linearize
from nuvec.transforms.vmap import vmap

__all__ = ["CHECKS", "ProgramFailure", "check_case", "failure_of"]

STEP = 2e-5  # of the finite differences, which are extrapolated from this and twice this
Leaves = list[Array]
Map = Callable[..., Leaves]


@dataclass
class _Subject:
    """What is checked: a map of real or complex leaves, and the points (one a sample)."""

    f: Map
    points: list[Leaves]
    generator: np.random.Generator

    def directions(self, values: Sequence[Array]) -> Leaves:
        return [random_like(v, self.generator) for v in values]


# --- What is checked: the program, and what each transform makes of it


def _itself(s: _Subject) -> _Subject:
    return s


def _jvp(s: _Subject) -> _Subject:
    n = len(s.points[0])
    return _Subject(
        lambda *v: list(jvp(s.f, v[:n], v[n:])[1]),
        [[*p, *s.directions(p)] for p in s.points], s.generator,
    )  # fmt: skip


def _vjp(s: _Subject) -> _Subject:
    n = len(s.points[0])
    outs = s.f(*s.points[0])
    return _Subject(
        lambda *v: list(vjp(s.f, *v[:n])[1](list(v[n:]))),
        [[*p, *s.directions(outs)] for p in s.points], s.generator,
    )  # fmt: skip


def _vmap(s: _Subject) -> _Subject:
    orders = [s.points, s.points[::-1]]
    axes = tuple((i + 1) % (p.ndim + 1) for i, p in enumerate(s.points[0]))
    return _Subject(vmap(s.f, in_axes=axes), [_stacked(o, axes) for o in orders], s.generator)


def _compile(s: _Subject) -> _Subject:
    return _Subject(compile(s.f), s.points, s.generator)


def _checkpoint(s: _Subject) -> _Subject:
    return _Subject(checkpoint(s.f), s.points, s.generator)


def _linearize(s: _Subject) -> _Subject:
    n = len(s.points[0])
    return _Subject(
        lambda *v: list(linearize(s.f, *v[:n])[1](*v[n:])),
        [[*p, *s.directions(p)] for p in s.points], s.generator,
    )  # fmt: skip


FORMS: dict[str, Callable[[_Subject], _Subject]] = {
    "": _itself, "jvp": _jvp, "vjp": _vjp, "vmap": _vmap, "compile": _compile,
    "checkpoint": _checkpoint, "linearize": _linearize,
}  # fmt: skip


def _stacked(points: Sequence[Leaves], axes: Sequence[int]) -> Leaves:
    return [
        from_numpy(np.stack([np.asarray(p[i]) for p in points], axis))
        for i, axis in enumerate(axes)
    ]


# --- How it is checked.  Each returns, for this rank, what `_judge` compares


@dataclass
class _Finding:
    """found and expected -- values to compare: bit for bit with `bits`, else to `slack`
    sums                  -- or two sums over this rank, with the size of their terms"""

    found: list[np.ndarray]
    expected: list[np.ndarray]
    slack: list[Any]
    bits: bool = False
    sums: tuple[tuple[float, float], tuple[float, float]] | None = None


def _values(leaves: Sequence[Any]) -> list[np.ndarray]:
    evaluate(list(leaves))
    return [np.asarray(x) for x in leaves]


def _scale(values: Sequence[np.ndarray]) -> float:
    return max([1.0, *[float(np.max(np.abs(v), initial=0)) for v in values]])


def _against_differences(s: _Subject) -> _Finding:
    x = s.points[0]
    v = s.directions(x)
    found = _values(jvp(s.f, tuple(x), tuple(v))[1])

    def at(step: float) -> list[np.ndarray]:
        return _values(s.f(*[from_numpy(np.asarray(np.asarray(a) + step * np.asarray(t)))
                             for a, t in zip(x, v, strict=True)]))  # fmt: skip

    center = _scale(at(0.0))
    fine, coarse = [
        [(p - m) / (2 * h) for p, m in zip(at(h), at(-h), strict=True)] for h in (STEP, 2 * STEP)
    ]
    expected = [np.asarray((4 * f - c) / 3) for f, c in zip(fine, coarse, strict=True)]
    # Where the two steps disagree the differences themselves are inexact.
    slack = [
        2e-6 * _scale([e]) + 2e-10 / STEP * 1e-3 * center + 4 * np.abs(f - c)
        for e, f, c in zip(expected, fine, coarse, strict=True)
    ]
    return _Finding(found, expected, slack)


def _against_forward(s: _Subject) -> _Finding:
    x = s.points[0]
    v = s.directions(x)
    moved = jvp(s.f, tuple(x), tuple(v))[1]
    outs, pull = vjp(s.f, *x)
    c = s.directions(outs)
    pulled = pull(list(c))
    evaluate(moved, list(pulled))
    sums = (inner(_values(c), _values(moved)), inner(_values(pulled), _values(v)))
    return _Finding([], [], [], sums=sums)


def _against_loop(s: _Subject) -> _Finding:
    axes = tuple(i % (p.ndim + 1) for i, p in enumerate(s.points[0]))
    found = _values(vmap(s.f, in_axes=axes)(*_stacked(s.points, axes)))
    each = [_values(s.f(*p)) for p in s.points]
    expected = [np.stack(outs) for outs in zip(*each, strict=True)]
    return _Finding(found, expected, [1e-8 * _scale([e]) for e in expected])


def _against_interpreter(s: _Subject) -> _Finding:
    expected = _values(s.f(*s.points[0]))
    compiled = compile(s.f)
    compiled(*s.points[0])
    found = _values(compiled(*s.points[0]))
    return _Finding(found, expected, [], bits=True)


def _against_original(s: _Subject) -> _Finding:
    x = s.points[0]
    c = s.directions(s.f(*x))
    found = _values(vjp(checkpoint(s.f), *x)[1](list(c)))
    expected = _values(vjp(s.f, *x)[1](list(c)))
    return _Finding(found, expected, [1e-10 * _scale([e]) for e in expected])


def _against_jvp(s: _Subject) -> _Finding:
    x = s.points[0]
    v = s.directions(x)
    found = _values(linearize(s.f, *x)[1](*v))
    expected = _values(jvp(s.f, tuple(x), tuple(v))[1])
    return _Finding(found, expected, [1e-10 * _scale([e]) for e in expected])


METHODS: dict[str, tuple[Callable[[_Subject], _Finding], str, tuple[str, str], str]] = {
    "jvp": (_against_differences, "differs from finite differences", ("jvp", "differences"),
            "the jvp rule (or derivatives)"),
    "vjp": (_against_forward, "is not the adjoint of jvp", ("<c, J v>", "<J^T c, v>"),
            "the vjp rule (or transpose)"),
    "vmap": (_against_loop, "differs from a loop", ("vmap", "loop"), "the vmap rule"),
    "compile": (_against_interpreter, "differs from the interpreter", ("compiled", "interpreted"),
                "the lowering and the compile passes"),
    "checkpoint": (_against_original, "has another gradient than without", ("with", "without"),
                   "checkpoint, and the split of the calls"),
    "linearize": (_against_jvp, "differs from jvp", ("linearize", "jvp"),
                  "linearize, and the jvp rule"),
}  # fmt: skip

# Every check: (transform, of which form of the program), the plain ones first.
CHECKS: tuple[tuple[str, str], ...] = tuple(
    (method, form) for form, method in itertools.product(FORMS, METHODS)
)


class ProgramFailure(AssertionError):
    """A check of a program that failed.

    check  -- which: (transform, of which form of the program)
    what   -- what went wrong, in a line
    values -- what was found and what was expected
    kind   -- the type of the exception that was raised, "" for values that differ
    """

    def __init__(
        self, check: tuple[str, str], what: str, values: Sequence[str] = (), kind: str = ""
    ) -> None:
        super().__init__(what)
        self.check, self.what, self.values, self.kind = check, what, list(values), kind


def failure_of(
    case: Case, checks: Sequence[tuple[str, str]] = CHECKS, timeout: float = 20
) -> ProgramFailure | None:
    """The first check that fails, or None."""
    for check in checks:
        method, form = check
        examine, complaint, names, _ = METHODS[method]
        what = f"{method} of {form + ' of ' if form else ''}the program"

        def on_rank(group: Group, form: str = form, examine: Any = examine) -> _Finding:
            inputs = [[from_numpy(x) for x in point[group.rank()]] for point in case.points]
            moving = [i for i, x in enumerate(inputs[0]) if dtypes.is_inexact(x.dtype)]

            def f(*xs: Array) -> Leaves:
                given = list(inputs[0])
                for i, x in zip(moving, xs, strict=True):
                    given[i] = x
                outs = [o for o in case.program(group, *given) if dtypes.is_inexact(o.dtype)]
                # An output that is an input, or a constant, is an ordinary output as well.
                return [depends(o, given[moving[0]]) if moving else o for o in outs]

            points = [[p[i] for i in moving] for p in inputs]
            generator = np.random.Generator(np.random.PCG64([7, group.rank()]))
            return examine(FORMS[form](_Subject(f, points, generator)))

        try:
            with config.override(timeout=timeout):
                findings = run_local(on_rank, case.ranks)
        except Exception as error:
            kind = type(error).__name__
            return ProgramFailure(check, f"{what} raises {kind}: {error}", (), kind)
        found = _judge(findings, names)
        if found is not None:
            return ProgramFailure(check, f"{what} {complaint} {found[0]}", found[1])
    return None


def _judge(
    findings: Sequence[_Finding], names: tuple[str, str]
) -> tuple[str, list[str]] | None:  # fmt: skip
    sums = [f.sums for f in findings if f.sums is not None]
    if sums:
        (one, a), (other, b) = [np.sum([s[i] for s in sums], axis=0) for i in (0, 1)]
        if abs(one - other) <= 1e-9 * max(a, b, 1e-3):
            return None
        shown = [
            f"sum over ranks of {n}: {float(x)!r}" for n, x in zip(names, (one, other), strict=True)
        ]
        return f"(difference {abs(one - other):.3g})", shown
    for rank, f in enumerate(findings):
        for k, (a, b) in enumerate(zip(f.found, f.expected, strict=True)):
            same = a.shape == b.shape and a.dtype == b.dtype
            if f.bits:
                good = same_bits(a, b)
            else:
                good = same and bool(np.all(np.abs(a - b) <= f.slack[k]))
            if not good:
                where = f"in output {k} on rank {rank} (largest difference {difference(a, b):.3g})"
                return where, [
                    f"{n}: {v.dtype}{list(v.shape)} {v}" for n, v in zip(names, (a, b), strict=True)
                ]
    return None


def check_case(
    case: Case, checks: Sequence[tuple[str, str]] = CHECKS, *, shrink: bool = True,
    timeout: float = 20,
) -> None:  # fmt: skip
    """Check a program in all ways of `checks`; see the top of this file.

    Raises AssertionError with the smallest program that still fails, its inputs, the two values
    and the rule to look at; ArgumentError when `checks` is empty or names something else.

    >>> from nuvec.testing.programs import random_case
    >>> check_case(random_case(3, ranks=1, sizes=(2, 4)), [("jvp", ""), ("vjp", "")])
    """
    if not isinstance(case, Case):
        raise ArgumentError(
            f"check_case takes a Case, as random_case(seed) makes one, got {type(case).__name__}"
        )
    failed = failure_of(case, _checked(checks), timeout)
    if failed is None:
        return
    small = case
    if shrink:
        check, kind = failed.check, failed.kind

        def still_fails(smaller: Case) -> bool:
            other = failure_of(smaller, [check], min(timeout, 5))
            return other is not None and other.kind == kind

        small = smallest(case, still_fails)
        failed = failure_of(small, [check], timeout) or failed
    method, _ = failed.check
    lines = [failed.what, f"look at: {METHODS[method][3]} of the primitives below",
             *failed.values, "the smallest program that fails:", str(small),
             "as recorded on rank 0:", _recorded(small)]  # fmt: skip
    raise AssertionError("\n".join(lines))


def _checked(checks: Any) -> list[tuple[str, str]]:
    """The checks that `check_case` is given; ArgumentError for what is none."""
    found = [tuple(c) if isinstance(c, list) else c for c in checks] if (
        isinstance(checks, tuple | list)
    ) else []  # fmt: skip
    if not found:
        raise ArgumentError(
            "check_case: checks must be a list of pairs (what, of which form of the program), as "
            f"in [('jvp', ''), ('vmap', 'vjp')]; got {checks!r}"
        )
    for c in found:
        if c not in CHECKS:
            raise ArgumentError(
                f"check_case: {c!r} is no check; a check is a pair of one of {tuple(METHODS)} and "
                f"one of {tuple(FORMS)}"
            )
    return found


def _recorded(case: Case) -> str:
    def show(group: Group) -> str:
        inputs = [from_numpy(x) for x in case.points[0][group.rank()]]
        return program_of(lambda *xs: case.program(group, *xs), inputs)

    try:
        return run_local(show, case.ranks)[0]
    except Exception as error:
        return f"(no program: {type(error).__name__}: {error})"
