"""IRs for the tests of lowering: a builder, random programs, and comparison bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, operand
from nuvec.core.interpreter import interpret
from nuvec.core.ir import IR, Aval, Eqn, Literal, Var, aval
from nuvec.core.lower import Plan, lower
from nuvec.core.ops.arithmetic import add, divide, masked_product, multiply, negative, subtract
from nuvec.core.ops.build import convert_dtype
from nuvec.core.ops.comparison import less, logical_not
from nuvec.core.ops.contraction import dot_general_p
from nuvec.core.ops.exponential import exp, tanh
from nuvec.core.ops.selection import where
from nuvec.core.ops.shape import broadcast_to, reshape, sum, transpose
from nuvec.core.ops.structure import concatenate, slice_p
from nuvec.core.primitive import Primitive
from nuvec.core.recording import trace_ir

F4 = dtypes.float32


def program(function: Callable[..., Any], *avals: Aval, names: Sequence[str] = ()) -> IR:
    """The IR of a function of Arrays."""

    def listed(*arrays: Array) -> list[Array]:
        out = function(*arrays)
        return out if isinstance(out, list) else [out]

    labels = [f"argument '{n}' of f" for n in names] or None
    return trace_ir(listed, avals, "test", labels)[0]


def f4(*shape: int) -> Aval:
    return aval(shape, F4)


def eqn(primitive: Primitive, *inputs: Any, **params: Any) -> tuple[Eqn, Any]:
    """An equation and its output variable(s)."""
    found = primitive.infer(tuple(a.aval for a in inputs), params)
    outs = tuple(map(Var, found)) if primitive.multiple else (Var(found),)
    return Eqn(primitive, inputs, outs, params), outs if primitive.multiple else outs[0]


def scalar(value: Any, dtype: np.dtype = F4) -> Literal:
    return Literal(dtypes.python_scalar(value, dtype))


def bits(value: Any) -> tuple[Any, ...]:
    array = np.asarray(value)
    return array.dtype, array.shape, array.tobytes()


def values(a: Aval, generator: np.random.Generator, special: bool = True) -> np.ndarray:
    """Random numbers of an aval, with zeros of both signs, infinities and NaN among them."""
    if dtypes.is_bool(a.dtype) or dtypes.is_integer(a.dtype):
        return generator.integers(0, 2 if dtypes.is_bool(a.dtype) else 50, a.shape).astype(a.dtype)
    found = generator.standard_normal(a.shape) * 3
    if special and a.size > 3:
        flat = found.reshape(-1)
        flat[generator.integers(0, a.size, 2)] = generator.choice([0.0, -0.0, np.inf, np.nan], 2)
    if dtypes.is_complex(a.dtype):
        found = found + 1j * generator.standard_normal(a.shape)
    return np.asarray(found).astype(a.dtype)


LAYOUTS = ("C", "F", "strided", "backward")


def laid_out(value: np.ndarray, layout: str) -> np.ndarray:
    """The same values in another memory layout."""
    if not value.ndim or layout == "C":
        return value
    if layout == "F":
        return np.asfortranarray(value)
    if layout == "backward":
        return value[..., ::-1].copy()[..., ::-1]
    wide = np.repeat(value, 2, axis=-1)
    return wide[..., ::2]


def check(ir: IR, *arguments: Any) -> Plan:
    """Compiled equals interpreted, twice; arguments stay; outputs are the caller's own."""
    plan = lower(ir)
    with np.errstate(all="ignore"):
        expected = interpret(ir, *arguments)
    before = [bits(a) for a in arguments]
    first = plan.run(*arguments)
    kept = [bits(v) for v in first]
    second = plan.run(*arguments)
    for result in (first, second):
        assert type(result) is list
        assert [bits(v) for v in result] == [bits(v) for v in expected], plan.source
        assert all(isinstance(v, np.ndarray | np.generic) for v in result)
    assert kept == [bits(v) for v in first], "a later run wrote to an output"
    assert before == [bits(a) for a in arguments], "the program wrote to its argument"
    fixed = [*arguments, *(c for _, c in ir.constants), *(c for _, c in plan.ir.constants)]
    outputs = [*first, *second]
    for k, out in enumerate(outputs):
        if isinstance(out, np.ndarray) and out.ndim:
            for other in [*fixed, *outputs[:k]]:
                assert not np.may_share_memory(out, other), plan.source
    return plan


# Random programs

DTYPES = (
    dtypes.float32, dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16,
    dtypes.complex64, dtypes.int32,
)  # fmt: skip


def random_program(seed: int, length: int) -> IR:
    """A random IR over arrays of compatible shapes, views, reductions and conversions."""
    generator = np.random.Generator(np.random.PCG64(seed))
    dtype = DTYPES[generator.integers(len(DTYPES))]
    n, m = (int(generator.choice([0, 1, 3, 9, 33])) for _ in range(2))
    shapes = [(n, m), (n, m), (m,), (n, 1), (), (1, m)]
    chosen = [shapes[int(k)] for k in generator.integers(0, len(shapes), 4)]
    constant = values(aval((n, m), dtype), generator)

    def function(*arrays: Array) -> list[Array]:
        pool = [*arrays, operand(constant)]

        def pick() -> Array:
            return pool[int(generator.integers(max(0, len(pool) - 6), len(pool)))]

        for _ in range(length):
            made = _random_step(generator, pick, pool, dtype)
            if made is not None:
                pool.append(made)
        count = int(generator.integers(1, 5))
        return [pool[int(k)] for k in generator.integers(0, len(pool), count)]

    return program(function, *[aval(s, dtype) for s in chosen])


def _random_step(
    generator: np.random.Generator, pick: Any, pool: list[Array], dtype: np.dtype
) -> Array | None:
    kind = int(generator.integers(0, 18))
    x, y = pick(), pick()
    literal = float(generator.choice([1, 0, 2, 3]))
    number = int(literal) if dtypes.is_integer(dtype) else literal
    if kind < 5:
        try:
            np.broadcast_shapes(x.shape, y.shape)
        except ValueError:
            return None
        return (add, multiply, subtract, masked_product, multiply)[kind](x, y)
    if kind < 8:
        return (multiply, subtract, add)[kind - 5](x, number)
    if kind == 8:
        return negative(x)
    if kind == 9:
        return tanh(x) if dtypes.is_inexact(dtype) else multiply(x, x)
    if kind == 10 and x.ndim:
        return transpose(x)
    if kind == 11 and x.ndim:
        return reshape(x, x.shape[::-1])
    if kind == 12 and x.ndim:
        return sum(x, axis=int(generator.integers(0, x.ndim)), dtype=dtype)
    if kind == 13:
        widest = max(pool, key=lambda a: a.ndim)
        try:
            return broadcast_to(x, widest.shape)
        except ValueError:
            return None
    if kind == 14 and not dtypes.is_complex(dtype) and x.shape == y.shape:
        return where(logical_not(less(x, y)), x, y)
    if kind == 15 and not dtypes.is_complex(dtype):
        wide = dtypes.float64 if dtypes.is_inexact(dtype) else dtypes.int64
        return convert_dtype.bind(convert_dtype.bind(x, dtype=wide), dtype=dtype)
    if kind == 16 and x.ndim == y.ndim == 2 and x.shape[1] == y.shape[0]:
        return dot_general_p.bind(x, y, contract=((1,), (0,)), batch=((), ()))
    if kind == 17 and x.ndim == 2 and x.shape[0] > 1:
        half = slice_p.bind(x, start=(0, 0), stop=x.shape, step=(2, 1))
        return concatenate([half, x], axis=0)
    return exp(divide(x, number + 1)) if dtypes.is_inexact(dtype) else x
