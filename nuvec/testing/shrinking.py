"""From a program that fails to the smallest one that still does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from nuvec.core import dtypes
from nuvec.testing.programs import Case, Program, Step, simulate

__all__ = ["smallest"]


def smallest(case: Case, fails: Callable[[Case], bool], attempts: int = 300) -> Case:
    """The smallest case found that still fails, by removing one thing after another.

    One step alone, with its operands as inputs; fewer ranks; one output; a step's result given as
    an input instead of computed; inputs nobody reads; smaller bodies.  A candidate whose values
    left the domain of its operations is passed over, so that a failure never turns into another
    one of the check's own making."""
    progress = True
    while progress and attempts > 0:
        progress = False
        for smaller in _candidates(case):
            attempts -= 1
            if attempts < 0:
                break
            if smaller.fits() and fails(smaller):
                case, progress = smaller, True
                break
    return case


def _candidates(case: Case) -> Iterator[Case]:
    program = case.program
    if len(program.steps) > 1:
        yield from _single_steps(case)
    if case.ranks > 1:
        for fewer in sorted({1, case.ranks - 1}):
            yield replace(case, points=tuple(p[:fewer] for p in case.points))
    if len(program.outputs) > 1:
        for output in program.outputs:
            yield _tidy(replace(case, program=replace(program, outputs=(output,))))
    for k in reversed(range(len(program.steps))):
        if program.outputs != (program.inputs + k,):
            yield from _cut(case, k)
    if len(program.outputs) == 1:  # an earlier value may show it as well
        last = program.outputs[0] - program.inputs
        for operand in program.steps[last].operands if last >= 0 else ():
            if operand >= program.inputs:
                yield _tidy(replace(case, program=replace(program, outputs=(operand,))))
    for k, step in enumerate(program.steps):
        for b, body in enumerate(step.bodies):
            for smaller in _smaller_bodies(body):
                bodies = (*step.bodies[:b], smaller, *step.bodies[b + 1 :])
                steps = list(program.steps)
                steps[k] = replace(step, bodies=bodies)
                yield replace(case, program=replace(program, steps=tuple(steps)))


def _single_steps(case: Case) -> Iterator[Case]:
    """Each step as a program of its own: a wrong rule usually shows in one of them."""
    program = case.program
    try:
        values = [simulate(program, point) for point in case.points]
    except Exception:
        return
    for step in program.steps:
        operands = sorted(set(step.operands))
        points = tuple(
            tuple(tuple(v[i] for i in operands) for v in vs) for vs in values
        )  # fmt: skip
        own = replace(step, operands=tuple(operands.index(i) for i in step.operands))
        alone = Program(len(operands), (own,), (len(operands),))
        if any(dtypes.is_inexact(x.dtype) for x in points[0][0]):
            yield Case(alone, points, case.seed)


def _cut(case: Case, k: int) -> Iterator[Case]:
    """Without step k: what it computed becomes one more input."""
    program = case.program
    try:
        values = [simulate(program, point) for point in case.points]
    except Exception:
        return
    n = program.inputs
    points = tuple(
        tuple((*given, v[n + k]) for given, v in zip(point, vs, strict=True))
        for point, vs in zip(case.points, values, strict=True)
    )

    def renumbered(i: int) -> int:
        return i if i < n else n if i == n + k else i + 1 if i < n + k else i

    yield _tidy(Case(_without(program, k, renumbered, n + 1), points, case.seed))


def _without(program: Program, k: int, renumbered: Callable[[int], int], inputs: int) -> Program:
    steps = tuple(
        replace(step, operands=tuple(map(renumbered, step.operands)))
        for i, step in enumerate(program.steps)
        if i != k
    )
    return Program(inputs, steps, tuple(map(renumbered, program.outputs)))


def _tidy(case: Case) -> Case:
    """Without steps and inputs that no output needs; communications are needed always."""
    program = case.program
    n = program.inputs
    needed = set(program.outputs)
    kept: list[int] = []
    for k in reversed(range(len(program.steps))):
        step = program.steps[k]
        if n + k in needed or step.communicates:
            kept.append(k)
            needed.update(step.operands)
    kept.reverse()
    inputs = [i for i in range(n) if i in needed] or [0]
    number = {old: new for new, old in enumerate([*inputs, *(n + k for k in kept)])}
    steps = tuple(
        replace(program.steps[k], operands=tuple(number[i] for i in program.steps[k].operands))
        for k in kept
    )
    points = tuple(tuple(tuple(xs[i] for i in inputs) for xs in point) for point in case.points)
    outputs = tuple(number[i] for i in program.outputs)
    return Case(Program(len(inputs), steps, outputs), points, case.seed)


def _smaller_bodies(body: Program) -> Iterator[Program]:
    """Bodies keep their inputs, so a step goes only where nothing needs it, or by handing out an
    earlier value."""
    n = body.inputs
    for operand in sorted({i for step in body.steps for i in step.operands} | set(range(n))):
        if operand not in body.outputs:
            yield _pruned(replace(body, outputs=(operand,)))
    for k, step in enumerate(body.steps):
        if n + k not in body.outputs and all(n + k not in s.operands for s in body.steps):
            yield _without(body, k, lambda i, k=k: i - (i > n + k), n)  # type: ignore[misc]
        for i in step.operands:  # its operand in its place
            if n + k not in body.outputs:

                def instead(j: int, k: int = k, i: int = i) -> int:
                    return i if j == n + k else j - (j > n + k)

                yield _without(body, k, instead, n)


def _pruned(body: Program) -> Program:
    n = body.inputs
    needed = set(body.outputs)
    kept: list[tuple[int, Step]] = []
    for k in reversed(range(len(body.steps))):
        step = body.steps[k]
        if n + k in needed or step.communicates:
            kept.insert(0, (k, step))
            needed.update(step.operands)
    number = {i: i for i in range(n)} | {n + k: n + new for new, (k, _) in enumerate(kept)}
    steps = tuple(replace(s, operands=tuple(number[i] for i in s.operands)) for _, s in kept)
    return Program(n, steps, tuple(number[i] for i in body.outputs))
