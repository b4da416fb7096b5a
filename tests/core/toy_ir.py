"""A few primitives and IRs built by hand, for the tests of the printer, parser and checker.

The primitives enter the table only inside `toy_primitives()`, for tests that go over the table
must not meet them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.errors import ShapeError
from nuvec.core.ir import IR, Eqn, Literal, Var, aval
from nuvec.core.primitive import NOT_BATCHABLE, NOT_DIFFERENTIABLE, TABLE, Primitive

# What a primitive says that is neither differentiated nor batched.
NO_RULES: Any = {"jvp": NOT_DIFFERENTIABLE, "vjp": NOT_DIFFERENTIABLE, "vmap": NOT_BATCHABLE}


def _same(*avals: Any, **params: Any) -> Any:
    for other in avals[1:]:
        if other.shape not in (avals[0].shape, ()) or other.dtype != avals[0].dtype:
            raise ShapeError(f"{avals[0]} and {other} differ")
    return aval(avals[0].shape, avals[0].dtype)


def _unused(*args: Any, **params: Any) -> Any:
    raise AssertionError("toy primitives are never run")


@contextmanager
def toy_primitives() -> Iterator[SimpleNamespace]:
    """Primitives `add`, `shift` (any params), `pair` (two results), `send`, `call`."""
    made = SimpleNamespace(
        add=Primitive("toy.add", _unused, _same, "elementwise", **NO_RULES),
        shift=Primitive("toy.shift", _unused, _same, "other", **NO_RULES),
        pair=Primitive(
            "toy.pair", _unused, lambda x, **_: (x, x), "other", multiple=True, **NO_RULES
        ),
        nothing=Primitive(
            "toy.nothing", _unused, lambda *_: (), "other", multiple=True, **NO_RULES
        ),
        send=Primitive("toy.send", _unused, _same, "effect", effect=True, **NO_RULES),
        call=Primitive(
            "toy.call", _unused, lambda *avals, ir, **_: ir.out_avals, "call",
            multiple=True, higher_order=True, **NO_RULES,
        ),
    )  # fmt: skip
    try:
        yield made
    finally:
        for primitive in vars(made).values():
            del TABLE[primitive.name]


F3 = aval((3,), dtypes.float32)


def var(shape: tuple[int, ...] = (3,), dtype: Any = "float32", hint: str = "") -> Var:
    return Var(aval(shape, dtypes.as_dtype(dtype)), hint)


def literal(value: Any, dtype: Any = "float32", weak: bool = False) -> Literal:
    return Literal(dtypes.python_scalar(value, dtypes.as_dtype(dtype)), weak)


def eqn(primitive: Primitive, inputs: Any, outputs: Any, source: str | None = None, **params: Any):
    return Eqn(primitive, tuple(inputs), tuple(outputs), params, source)


def example(toy: SimpleNamespace, send: bool = False) -> IR:
    """Every kind of part an IR has: hints, constants, literals, params, an IR inside."""
    x, y = var(hint="x"), var()
    m = var((2, 2))
    inner = IR((y,), (), (eqn(toy.send if send else toy.shift, [y], [z := var()], by=1),), (z,))
    a, b, c, d = (var() for _ in range(4))
    eqns = (
        eqn(toy.add, [x, literal(0.5)], [a], "train.py:12 (in loss)"),
        eqn(toy.call, [a], [b], ir=inner, name="f"),
        eqn(toy.pair, [b], [c, d], "train.py:14 (in loss)"),
    )
    constants = ((m, np.array([[1, 2], [3, 4.5]], np.float32)),)
    return IR((x,), constants, eqns, (c, m, literal(2, "int32")))
