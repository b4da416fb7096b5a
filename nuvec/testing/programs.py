"""Random programs: drawn from the table of primitives, with the points they are checked at.

A program is a list of steps, each an operation on earlier values.  All ranks of a group run the
same one, each on its own inputs.  It is drawn together with its inputs: an operation is taken only
where all values that occur are far from its kinks and poles, so derivatives can be compared.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, from_numpy
from nuvec.core.errors import ArgumentError, ShapeError
from nuvec.testing.compare import natural
from nuvec.testing.exchanges import EXCHANGES, Unfit
from nuvec.testing.operation import LIMIT, Choices, Operation, kind_of, seeded
from nuvec.testing.operations import OPERATIONS

__all__ = ["Case", "Nested", "Program", "Step", "draw_case", "random_case", "simulate"]

SAMPLES = 2  # points a program is drawn for; batches are made of them
LARGEST = 24  # elements of a value
SHAPES: tuple[tuple[int, ...], ...] = ((), (2,), (3,), (2, 3), (3, 2), (4,), (12,))
Ranks = Sequence[Sequence[np.ndarray]]  # for each rank, a list of values


@dataclass(frozen=True)
class Step:
    """`operation` on the values numbered `operands`; its result is the next value."""

    operation: Operation | Nested
    operands: tuple[int, ...]
    params: tuple[Any, ...] = ()
    bodies: tuple[Program, ...] = ()

    def apply(self, group: Any, arrays: Sequence[Array]) -> Array:
        if isinstance(self.operation, Nested):
            return self.operation.apply(group, self.bodies, arrays, self.params)
        return self.operation.apply(group, *arrays, *self.params)

    @property
    def communicates(self) -> bool:
        own = isinstance(self.operation, Operation) and self.operation.communicates
        return own or any(b.communicates for b in self.bodies)

    def simulate(self, operands: Ranks) -> list[np.ndarray]:
        """The results on all ranks; raises Unfit."""
        operation = self.operation
        if isinstance(operation, Nested):
            return operation.simulate(self.bodies, operands, self.params)
        if operation.exchange is not None:
            return operation.exchange([xs[0] for xs in operands], *self.params)
        found = []
        for xs in operands:
            if operation.fits is not None:
                with np.errstate(all="ignore"):
                    try:
                        fits = np.all(operation.fits(*xs))
                    except ValueError:  # shapes that do not broadcast
                        raise Unfit from None
                if not fits:
                    raise Unfit
            found.append(np.asarray(self.apply(None, [from_numpy(x) for x in xs])))
        return found


class Nested(ABC):
    """An operation that holds programs: control flow, a compiled or custom function, a transform.

    See `nuvec.testing.nested`, which has them."""

    name: str
    covers: tuple[str, ...]
    kinds: str
    sizes: int = 1

    @abstractmethod
    def draw(
        self, choose: Choices, operands: Sequence[Ranks], drawing: Drawing
    ) -> tuple[tuple[Any, ...], tuple[Program, ...]] | None:
        """Parameters and bodies for these operands (for each sample, of all ranks)."""

    @abstractmethod
    def apply(
        self, group: Any, bodies: Sequence[Program], arrays: Sequence[Array], params: Any
    ) -> Array:
        """The operation, recorded with nuvec on one rank."""

    @abstractmethod
    def simulate(self, bodies: Sequence[Program], operands: Ranks, params: Any) -> list[np.ndarray]:
        """What it gives on every rank, by NumPy."""


@dataclass(frozen=True)
class Program:
    """A program of `inputs` values: value k is input k, then the results of the steps.

    Calling it, `program(group, *arrays)`, gives the values numbered `outputs`."""

    inputs: int
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]

    def __call__(self, group: Any, *arrays: Array) -> list[Array]:
        values = list(arrays)
        for step in self.steps:
            values.append(step.apply(group, [values[i] for i in step.operands]))
        return [values[i] for i in self.outputs]

    @property
    def communicates(self) -> bool:
        return any(step.communicates for step in self.steps)

    @property
    def ranks(self) -> int:
        """The smallest group it runs on."""
        # The bodies of `axis` have a group of their own, whose size is that of an operand.
        own = [
            max([step.operation.sizes, *(b.ranks for b in step.bodies)])
            for step in self.steps
            if step.operation.name != "axis"
        ]
        return max(own, default=1)

    @property
    def size(self) -> int:
        """How many steps there are, those of the bodies included."""
        return sum(1 + sum(b.size for b in step.bodies) for step in self.steps)

    @property
    def covers(self) -> set[str]:
        """The primitives it was drawn from."""
        found: set[str] = set()
        for step in self.steps:
            found.update(step.operation.covers, *(b.covers for b in step.bodies))
        return found

    def __str__(self) -> str:
        return "\n".join(self._lines(""))

    def _lines(self, margin: str) -> list[str]:
        lines = [f"{margin}inputs {', '.join(f'v{i}' for i in range(self.inputs))}"]
        for k, step in enumerate(self.steps):
            operands = " ".join(f"v{i}" for i in step.operands)
            params = " ".join(map(str, step.params))
            text = f"v{self.inputs + k} = {step.operation.name} {operands} {params}".rstrip()
            lines.append(margin + text)
            for body in step.bodies:
                lines += body._lines(margin + "    ")
        return [*lines, f"{margin}outputs {', '.join(f'v{i}' for i in self.outputs)}"]


def simulate(program: Program, points: Ranks) -> list[list[np.ndarray]]:
    """All values of a program on all ranks, in NumPy; raises Unfit where one is out of place."""
    values = [list(p) for p in points]
    for step in program.steps:
        results = step.simulate([[v[i] for i in step.operands] for v in values])
        for v, x in zip(values, results, strict=True):
            v.append(_fitting(x))
    return values


def _fitting(x: np.ndarray) -> np.ndarray:
    if x.size > LARGEST or x.ndim > 4 or not np.all(np.isfinite(x)):
        raise Unfit
    if dtypes.is_inexact(x.dtype) and np.max(np.abs(x), initial=0) > LIMIT:
        raise Unfit
    return x


@dataclass(frozen=True)
class Case:
    """A program, and `points[sample][rank]`: the inputs it is checked at.

    seed -- what it was drawn from, or None"""

    program: Program
    points: tuple[tuple[tuple[np.ndarray, ...], ...], ...]
    seed: int | None = None

    @property
    def ranks(self) -> int:
        return len(self.points[0])

    def fits(self) -> bool:
        """Whether every value is still where derivatives can be compared."""
        if self.program.ranks > self.ranks:
            return False
        try:
            for point in self.points:
                simulate(self.program, point)
        except Exception:  # without a step or a rank, shapes and roots may not fit any more
            return False
        return True

    def __str__(self) -> str:
        lines = [f"{self.ranks} rank(s), seed {self.seed}", str(self.program)]
        for k, values in enumerate(zip(*self.points[0], strict=True)):
            shown = "; ".join(np.array2string(v, precision=6, threshold=24) for v in values)
            lines.append(f"v{k} on each rank: {shown}")
        return "\n".join(lines)


def random_case(
    seed: int, ranks: int | None = None, sizes: tuple[int, int] = (10, 40),
    operations: Sequence[Operation | Nested] | None = None,
) -> Case:  # fmt: skip
    """The random program of a seed: of `sizes` steps, on 1 to 4 ranks unless `ranks` says.

    operations -- what to draw from, everything in the table by default

    >>> import nuvec as nv
    >>> from nuvec.testing.programs import random_case
    >>> case = random_case(0, ranks=1)
    >>> outs = case.program(nv.distributed.default_group(), *map(nv.array, case.points[0][0]))
    """
    name = "random_case"
    case = draw_case(seeded(natural(f"{name}: seed", seed)), ranks, sizes, operations, name)
    return replace(case, seed=seed)


def draw_case(
    choose: Choices, ranks: int | None = None, sizes: tuple[int, int] = (10, 40),
    operations: Sequence[Operation | Nested] | None = None, name: str = "draw_case",
) -> Case:  # fmt: skip
    """A random program from any source of decisions; `name` is whose arguments these are."""
    if ranks is not None:
        ranks = natural(f"{name}: ranks", ranks, 1)
    if not isinstance(sizes, tuple | list) or len(sizes) != 2:
        raise ArgumentError(f"{name}: sizes must be (fewest, most) steps, got {sizes!r}")
    low, high = (natural(f"{name}: sizes[{i}]", n, 1) for i, n in enumerate(sizes))
    if low > high:
        raise ArgumentError(f"{name}: sizes must be (fewest, most) steps, got {tuple(sizes)}")
    if operations is not None:
        _check_operations(operations, 4 if ranks is None else ranks, name)
    count = choose.pick([1, 1, 2, 2, 3, 4]) if ranks is None else ranks
    shapes = [choose.pick(SHAPES) for _ in range(choose.integer(2, 3))]
    generator = np.random.Generator(np.random.PCG64(choose.integer(0, 2**31)))
    points = tuple(
        tuple(tuple(_point(generator, s) for s in shapes) for _ in range(count))
        for _ in range(SAMPLES)
    )
    drawing = Drawing(choose, operations, choose.integer(low, high), depth=1)
    return Case(drawing.program(points), points)


def _check_operations(operations: Any, ranks: int, name: str) -> None:
    if not isinstance(operations, tuple | list) or not operations:
        raise ArgumentError(
            f"{name}: operations must be a list of what to draw from (nuvec.testing.OPERATIONS has "
            f"all), got {operations!r}"
        )
    for o in operations:
        if not isinstance(o, Operation | Nested):
            raise ArgumentError(f"{name}: {o!r} is no nuvec.testing.Operation")
    if all(o.sizes > ranks for o in operations):
        raise ArgumentError(
            f"{name}: none of the operations runs on {ranks} rank{'s' * (ranks > 1)}: they need "
            f"{min(o.sizes for o in operations)} or more"
        )


def _point(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    drawn = generator.uniform(0.25, 1.75, shape) * generator.choice([-1, 1, 1], shape)
    return np.asarray(drawn, np.float64)


class Drawing:
    """Draws a program step by step, following all its values at all points."""

    def __init__(
        self, choose: Choices, operations: Sequence[Operation | Nested] | None, size: int,
        depth: int, communicating: bool = True,
    ) -> None:  # fmt: skip
        self.choose = choose
        self.given = operations
        self.size = size
        self.depth = depth  # how deep bodies may still be nested
        self.communicating = communicating

    def inside(self, communicating: bool = True) -> Drawing:
        """The drawing of a body."""
        size = self.choose.integer(1, 4)
        return Drawing(self.choose, self.given, size, self.depth - 1,
                       communicating and self.communicating)  # fmt: skip

    def operations(self, ranks: int) -> list[list[Operation | Nested]]:
        """What may be drawn, by families that are drawn from equally often."""
        everything: list[Operation | Nested] = [*OPERATIONS, *EXCHANGES, *NESTED]
        given = everything if self.given is None else self.given
        usable = [o for o in given if o.sizes <= ranks]
        local = [o for o in usable if isinstance(o, Operation) and not o.communicates]
        exchanges = [o for o in usable if isinstance(o, Operation) and o.communicates]
        nested = [o for o in usable if isinstance(o, Nested)]
        # Operations of several operands tie a program together, so half of them are.
        families: list[list[Any]] = [
            [o for o in local if len(o.kinds.split()) > 1], local
        ] * 4  # fmt: skip
        families += [exchanges] if self.communicating else []
        families += [nested] if self.depth > 0 else []
        return [f for f in families if f]

    def program(self, points: Sequence[Ranks]) -> Program:
        """A program of inputs like these; its outputs are all values with derivatives that no
        other value was made of."""
        inputs = len(points[0][0])
        values = [[list(v) for v in point] for point in points]
        families = self.operations(len(points[0]))
        if not families:  # a body, where all there is to draw from holds bodies itself
            raise Unfit
        steps: list[Step] = []
        used: set[int] = set()
        count = failures = 0
        while count < self.size and failures < 400:
            step = self._step(families, values, used)
            if step is None:
                failures += 1
                continue
            steps.append(step)
            used.update(step.operands)
            count += 1 + sum(b.size for b in step.bodies)
        kinds = [kind_of(v.dtype) for v in values[0][0]]
        loose = [i for i, k in enumerate(kinds) if i not in used and k in "fc" and i >= inputs]
        return Program(inputs, tuple(steps), tuple(loose) or (_last_real(kinds),))

    def _step(self, families: Any, values: list[Any], used: set[int]) -> Step | None:
        operation = self.choose.pick(self.choose.pick(families))
        kinds = [kind_of(v.dtype) for v in values[0][0]]
        operands: list[int] = []
        for wanted in operation.kinds.split():
            fitting = [i for i, k in enumerate(kinds) if k in wanted.split("|")]
            fresh = [i for i in fitting if i not in used]
            if not fitting:
                return None
            prefer_fresh = fresh and self.choose.integer(0, 2)
            operands.append(self.choose.pick(fresh if prefer_fresh else fitting))
        given = [[[v[i] for i in operands] for v in point] for point in values]
        first = given[0][0]
        bodies: tuple[Program, ...] = ()
        try:
            if isinstance(operation, Nested):
                drawn = operation.draw(self.choose, given, self)
                if drawn is None:
                    return None
                params, bodies = drawn
            elif operation.communicates:
                params = operation.params(self.choose, *first, len(values[0]))
            else:
                params = operation.params(self.choose, *first)
            if params is None:
                return None
            step = Step(operation, tuple(operands), params, bodies)
            results = [[_fitting(x) for x in step.simulate(g)] for g in given]
        except (Unfit, ShapeError):
            return None
        for point, result in zip(values, results, strict=True):
            for v, x in zip(point, result, strict=True):
                v.append(x)
        return step


def _last_real(kinds: Sequence[str]) -> int:
    return max(i for i, k in enumerate(kinds) if k == "f")


def body_output(program: Program, points: Sequence[Ranks]) -> Program:
    """The program with one output: its last real value."""
    values = simulate(program, points[0])[0]
    return replace(program, outputs=(_last_real([kind_of(v.dtype) for v in values]),))


NESTED: list[Nested] = []  # filled by nuvec.testing.nested
