"""Operations of random programs that hold programs: control flow, compiled and custom functions,
and transforms used inside a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nuvec.core.array import Array, from_numpy
from nuvec.core.functions.statistics import mean
from nuvec.core.ops.exponential import sin, tanh
from nuvec.core.ops.shape import sum as total
from nuvec.distributed.axis_group import axis_group
from nuvec.testing.exchanges import Unfit
from nuvec.testing.operation import MARGIN, Choices
from nuvec.testing.programs import NESTED, Drawing, Nested, Program, Ranks, body_output, simulate
from nuvec.transforms.checkpoint import checkpoint
from nuvec.transforms.compile import compile
from nuvec.transforms.cond import cond
from nuvec.transforms.custom import custom_vjp
from nuvec.transforms.custom_jvp import custom_jvp
from nuvec.transforms.grad import grad, vjp
from nuvec.transforms.jvp import jvp
from nuvec.transforms.scan import scan
from nuvec.transforms.vmap import vmap
from nuvec.transforms.while_loop import while_loop

Drawn = tuple[tuple[Any, ...], tuple[Program, ...]] | None


def _body(drawing: Drawing, points: Sequence[Ranks], communicating: bool = True) -> Program:
    return body_output(drawing.inside(communicating).program(points), points)


def _outputs(body: Program, operands: Ranks) -> list[np.ndarray]:
    return [v[body.outputs[0]] for v in simulate(body, operands)]


class _Call(Nested):
    """A compiled function; a capture is one of its operands."""

    name, kinds = "call", "f f"
    covers: tuple[str, ...] = ("call",)

    def draw(self, choose: Choices, operands: Sequence[Ranks], drawing: Drawing) -> Drawn:
        return (), (_body(drawing, operands),)

    def apply(self, group: Any, bodies: Any, arrays: Any, params: Any) -> Array:
        x, captured = arrays
        return compile(lambda x: bodies[0](group, x, captured)[0])(x)

    def simulate(self, bodies: Any, operands: Ranks, params: Any) -> list[np.ndarray]:
        return _outputs(bodies[0], operands)


class _Custom(_Call):
    """A custom rule that is right: its backward and its forward-mode rule are the function's."""

    name, covers = "custom_vjp", ("custom_rule",)

    def apply(self, group: Any, bodies: Any, arrays: Any, params: Any) -> Array:
        def plain(x: Array, y: Array) -> Any:
            return bodies[0](group, x, y)[0]

        rule = custom_vjp(plain)
        rule.defvjp(lambda x, y: (plain(x, y), (x, y)), lambda r, c: vjp(plain, *r)[1](c))
        rule.defjvp(lambda primals, tangents: jvp(plain, primals, tangents))
        return rule(*arrays)


class _CustomForward(_Call):
    """A custom forward-mode rule that is right; reverse mode transposes it."""

    name, covers = "custom_jvp", ("custom_rule",)

    def apply(self, group: Any, bodies: Any, arrays: Any, params: Any) -> Array:
        def plain(x: Array, y: Array) -> Any:
            return bodies[0](group, x, y)[0]

        rule = custom_jvp(plain)
        rule.defjvp(lambda primals, tangents: jvp(plain, primals, tangents))
        return rule(*arrays)


class _Checkpoint(_Call):
    """A function whose forward is computed again."""

    name, covers = "checkpoint", ("checkpoint", "optimization_barrier")

    def draw(self, choose: Choices, operands: Sequence[Ranks], drawing: Drawing) -> Drawn:
        policy = choose.pick(["nothing", "dots", "everything"])
        return (policy,), (_body(drawing, operands),)

    def apply(self, group: Any, bodies: Any, arrays: Any, params: Any) -> Array:
        x, captured = arrays
        return checkpoint(lambda x: bodies[0](group, x, captured)[0], *params)(x)


class _While(Nested):
    """Two steps of a loop that may take three."""

    name, covers, kinds = "while_loop", ("finished",), "f f"

    def draw(self, choose: Choices, operands: Sequence[Ranks], drawing: Drawing) -> Drawn:
        # A step that is not taken is computed all the same, and what it communicates is not.
        return (), (_body(drawing, operands, communicating=False),)

    def apply(self, group: Any, bodies: Any, arrays: Any, params: Any) -> Array:
        start, captured = arrays

        def step(carry: Any) -> Any:
            i, c = carry
            return i + 1, c * 0.5 + sin(mean(bodies[0](group, c, captured)[0]))

        return while_loop(lambda carry: carry[0] < 2, step, (0, start), max_steps=3)[1]

    def simulate(self, bodies: Any, operands: Ranks, params: Any) -> list[np.ndarray]:
        carry = [c for c, _ in operands]
        for step in range(3):
            outs = _outputs(bodies[0], [[c, y] for c, (_, y) in zip(carry, operands, strict=True)])
            if step < 2:
                carry = [c * 0.5 + np.sin(np.mean(o)) for c, o in zip(carry, outs, strict=True)]
        return [np.asarray(c) for c in carry]


class _Axis(Nested):
    """A program for several ranks that are the rows of an operand."""

    name, kinds = "axis", "f f"
    covers = ("axis_index", "fold_sum")

    def draw(self, choose: Choices, operands: Sequence[Ranks], drawing: Drawing) -> Drawn:
        xs, _ = operands[0][0]
        if not xs.ndim or not 1 < xs.shape[0] < 5:
            return None
        worlds = [_rows(xs, c) for point in operands for xs, c in point]
        inside = drawing.inside()
        inside.communicating = True  # whatever the outer group may: these ranks are its own
        return (), (body_output(inside.program(worlds), worlds),)

    def apply(self, group: Any, bodies: Any, arrays: Any, params: Any) -> Array:
        xs, captured = arrays

        def on_rank(x: Array) -> Any:
            rows = axis_group("rows")
            return bodies[0](rows, x, captured)[0] * (rows.rank() + 1)

        return vmap(on_rank, axis_name="rows")(xs)

    def simulate(self, bodies: Any, operands: Ranks, params: Any) -> list[np.ndarray]:
        results = []
        for xs, captured in operands:
            outs = _outputs(bodies[0], _rows(xs, captured))
            results.append(np.stack([o * (r + 1) for r, o in enumerate(outs)]))
        return results


def _rows(xs: np.ndarray, captured: np.ndarray) -> Ranks:
    return [[x, captured] for x in xs]


class _Cond(Nested):
    """A branch by the sign of the operand's sum; by a constant where a branch communicates."""

    name, covers, kinds = "cond", ("cond",), "f f"

    def draw(self, choose: Choices, operands: Sequence[Ranks], drawing: Drawing) -> Drawn:
        fixed = choose.pick([None, True, False])
        bodies = tuple(_body(drawing, operands, fixed is not None) for _ in range(2))
        return (fixed,), bodies

    def apply(self, group: Any, bodies: Any, arrays: Any, params: Any) -> Array:
        x, captured = arrays
        (fixed,) = params
        # A NumPy boolean becomes a constant of the program, without a mapped axis.
        test = total(x) > 0 if fixed is None else from_numpy(np.asarray(fixed))
        yes, no = bodies
        return cond(
            test,
            lambda x: x * 0.5 + tanh(mean(yes(group, x, captured)[0])),
            lambda x: x * 0.5 + tanh(mean(no(group, x, captured)[0])),
            x,
        )

    def simulate(self, bodies: Any, operands: Ranks, params: Any) -> list[np.ndarray]:
        (fixed,) = params
        both = [_outputs(b, operands) for b in bodies]
        results = []
        for rank, (x, _) in enumerate(operands):
            if abs(np.sum(x)) < MARGIN:
                raise Unfit
            chosen = both[0 if (np.sum(x) > 0 if fixed is None else fixed) else 1][rank]
            results.append(np.asarray(x * 0.5 + np.tanh(np.mean(chosen))))
        return results


class _Scan(Nested):
    """A loop; the result is its last carry or all its outputs."""

    name, covers, kinds = "scan", ("scan",), "f f"

    def draw(self, choose: Choices, operands: Sequence[Ranks], drawing: Drawing) -> Drawn:
        xs, _ = operands[0][0]
        if not xs.ndim or not 0 < xs.shape[0] < 5:
            return None
        reverse, which = bool(choose.integer(0, 1)), choose.integer(0, 1)
        first = -1 if reverse else 0
        points = [[[c, xs[first]] for xs, c in point] for point in operands]
        return (reverse, which), (_body(drawing, points),)

    def apply(self, group: Any, bodies: Any, arrays: Any, params: Any) -> Array:
        xs, start = arrays
        reverse, which = params

        def body(c: Array, x: Array) -> Any:
            out = bodies[0](group, c, x)[0]
            return c * 0.5 + sin(mean(out)), out

        return scan(body, start, xs, reverse=reverse)[which]

    def simulate(self, bodies: Any, operands: Ranks, params: Any) -> list[np.ndarray]:
        reverse, which = params
        length = operands[0][0].shape[0]
        carry = [c for _, c in operands]
        found: list[Any] = [None] * length
        for i in reversed(range(length)) if reverse else range(length):
            outs = _outputs(bodies[0], [[c, x[0][i]] for c, x in zip(carry, operands, strict=True)])
            found[i] = outs
            carry = [c * 0.5 + np.sin(np.mean(o)) for c, o in zip(carry, outs, strict=True)]
        if which == 0:
            return [np.asarray(c) for c in carry]
        return [np.stack([outs[r] for outs in found]) for r in range(len(operands))]


class _Mapped(Nested):
    """A body mapped over the leading axis of one operand; the other is a closed-over value."""

    name, covers, kinds = "vmap", (), "f f"

    def draw(self, choose: Choices, operands: Sequence[Ranks], drawing: Drawing) -> Drawn:
        xs, _ = operands[0][0]
        if not xs.ndim or not 0 < xs.shape[0] < 5:
            return None
        points = [[[xs[0], c] for xs, c in point] for point in operands]
        return (), (_body(drawing, points),)

    def apply(self, group: Any, bodies: Any, arrays: Any, params: Any) -> Array:
        xs, captured = arrays
        return vmap(lambda x: bodies[0](group, x, captured)[0])(xs)

    def simulate(self, bodies: Any, operands: Ranks, params: Any) -> list[np.ndarray]:
        rows = [
            _outputs(bodies[0], [[xs[i], c] for xs, c in operands])
            for i in range(operands[0][0].shape[0])
        ]
        return [np.stack([row[r] for row in rows]) for r in range(len(operands))]


class _Gradient(Nested):
    """The gradient of a body that does not communicate, closed over another value."""

    name, covers, kinds = "grad", (), "f f"

    def draw(self, choose: Choices, operands: Sequence[Ranks], drawing: Drawing) -> Drawn:
        return (), (_body(drawing, operands, communicating=False),)

    def apply(self, group: Any, bodies: Any, arrays: Any, params: Any) -> Array:
        x, captured = arrays
        return grad(lambda x: total(bodies[0](group, x, captured)[0]))(x)

    def simulate(self, bodies: Any, operands: Ranks, params: Any) -> list[np.ndarray]:
        simulate(bodies[0], operands)
        return [
            np.asarray(self.apply(None, bodies, [from_numpy(x) for x in xs], params))
            for xs in operands
        ]


NESTED += [
    _Call(), _Custom(), _CustomForward(), _Checkpoint(), _Cond(), _Scan(), _While(), _Mapped(),
    _Axis(), _Gradient(),
]  # fmt: skip
