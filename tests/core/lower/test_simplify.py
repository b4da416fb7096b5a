"""Every rewrite keeps the bits, effects stay, and equal means equal to the bit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import nuvec.core.ops.comparison
from nuvec.core import dtypes
from nuvec.core.check import check_ir
from nuvec.core.interpreter import interpret
from nuvec.core.ir import IR, Aval, Eqn, Literal, Var, aval
from nuvec.core.lower.rules import NEUTRAL, ROWS
from nuvec.core.lower.simplify import simplify
from nuvec.core.ops.arithmetic import add_p, divide_p, multiply_p, negative_p
from nuvec.core.ops.build import convert_dtype
from nuvec.core.ops.contraction import dot_general_p
from nuvec.core.ops.differentiation import depends_p, stop_gradient_p
from nuvec.core.ops.exponential import exp_p
from nuvec.core.ops.indexing import gather_p
from nuvec.core.ops.shape import broadcast_to_p, reshape_p, sum_p, transpose_p
from nuvec.core.primitive import IDENTITY, MARK, TABLE, Primitive
from tests.core.lower.programs import bits, eqn, f4, scalar, values
from tests.core.toy_ir import NO_RULES

REAL = tuple(d for d in dtypes.ALL if not dtypes.is_complex(d))
assert nuvec.core.ops.comparison  # its primitives are in the table


def simplified(ir: IR, contiguous: bool = True) -> IR:
    check_ir(ir)
    found = simplify(ir, (contiguous,) * len(ir.inputs))
    check_ir(found)
    return found


def same_bits(ir: IR, other: IR, *arguments: Any) -> None:
    with np.errstate(all="ignore"):
        mine, theirs = interpret(ir, *arguments), interpret(other, *arguments)
    assert [bits(v) for v in mine] == [bits(v) for v in theirs], f"{ir}\n{other}"


def chain(x: Var, *steps: tuple[Primitive, tuple[Any, ...], dict[str, Any]]) -> IR:
    """Equations one after the other; None stands for the result of the one before."""
    eqns: list[Eqn] = []
    last: Any = x
    for primitive, operands, params in steps:
        made, last = eqn(primitive, *[last if o is None else o for o in operands], **params)
        eqns.append(made)
    return IR((x,), (), tuple(eqns), (last,))


def awkward(dtype: np.dtype) -> np.ndarray:
    """Every bit pattern of a narrow dtype, many of a wide one; signalling NaNs are quieted."""
    generator = np.random.Generator(np.random.PCG64(0))
    if dtypes.is_bool(dtype):
        return np.array([False, True])
    if dtype.itemsize <= 2:
        raw = np.arange(256**dtype.itemsize).astype(f"u{dtype.itemsize}")
    else:
        raw = generator.integers(0, 2 ** (8 * dtype.itemsize) - 1, 4000, np.uint64, True)
        raw = raw.astype(f"u{dtype.itemsize}")
    found = raw.view(dtype)
    if dtypes.is_inexact(dtype):
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1.0, 1e-30, 65504.0]
        with np.errstate(all="ignore"):
            found = np.concatenate([found, np.array(special).astype(dtype)])
        with np.errstate(all="ignore"):
            nan = np.isnan(found)
        found = found[~nan | (np.arange(found.size) >= found.size - len(special))]
    return found


def guarded(a: Aval, number: float, first: bool, second: bool) -> IR:
    """where(x == number and isinf(x), 1, x), both pairs in either order."""
    x = Var(a)
    pair = (scalar(number, a.dtype), x)
    same_eqn, same = eqn(TABLE["equal"], *(pair if first else pair[::-1]))
    infinite_eqn, infinite = eqn(TABLE["isinf"], x)
    both_eqn, both = eqn(TABLE["logical_and"], *((infinite, same) if second else (same, infinite)))
    out_eqn, out = eqn(TABLE["where"], both, scalar(1.0, a.dtype), x)
    return IR((x,), (), (same_eqn, infinite_eqn, both_eqn, out_eqn), (out,))


# Every row has an example it applies to, and both sides have the same bits


def examples() -> Iterator[tuple[str, IR, np.ndarray]]:
    """(a part of the row's pattern, a program it shortens, an argument)."""
    for row in NEUTRAL:
        kinds = {"b": (dtypes.bool_,), "f": (dtypes.float32, dtypes.float64),
                 "i": (dtypes.int8, dtypes.uint32, dtypes.int64)}  # fmt: skip
        for dtype in (d for k in row.kinds for d in kinds[k]):
            value: Any = -0.0 if row.negative_zero else row.value
            literal = scalar(bool(value) if dtypes.is_bool(dtype) else value, dtype)
            argument = awkward(dtype)
            for flip in (False, True) if row.commutes else (False,):
                x = Var(aval(argument.shape, dtype))
                pair = (literal, x) if flip else (x, literal)
                ir = chain(x, (TABLE[row.primitive], pair, {}))
                yield f"{row.primitive}(", ir, argument
    for name in ("negative", "logical_not", "invert"):
        for dtype in (dtypes.float32, dtypes.int16, dtypes.bool_):
            fits = dtypes.is_bool(dtype) if name == "logical_not" else dtypes.is_integer(dtype)
            if fits or (name == "negative" and dtype == dtypes.float32):
                argument = awkward(dtype)
                x = Var(aval(argument.shape, dtype))
                yield f"{name}(", chain(x, *[(TABLE[name], (None,), {})] * 2), argument
    x, matrix = Var(f4(4, 6)), np.arange(24, dtype=np.float32).reshape(4, 6)
    for alias in (IDENTITY, stop_gradient_p, depends_p):
        yield "identity(x)", chain(x, (alias, (None,), {})), matrix
    yield "reshape(x, x.shape)", chain(x, (reshape_p, (x,), {"shape": (4, 6)})), matrix
    yield (
        "reshape(reshape",
        chain(x, (reshape_p, (x,), {"shape": (24,)}), (reshape_p, (None,), {"shape": (8, 3)})),
        matrix,
    )
    yield "transpose(x, 0", chain(x, (transpose_p, (x,), {"permutation": (0, 1)})), matrix
    yield (
        "transpose(transpose",
        chain(x, *[(transpose_p, (None,), {"permutation": (1, 0)})] * 2),
        (matrix),
    )
    y, cube = Var(f4(2, 3, 4)), np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    yield "transpose(transpose", chain(y, *[(transpose_p, (None,), {"permutation": (1, 2, 0)})] * 2
                                       ), cube  # fmt: skip
    yield "broadcast_to(x, x.shape)", chain(x, (broadcast_to_p, (x,), {"shape": (4, 6)})), matrix
    yield "broadcast_to(broadcast", chain(
        x, (broadcast_to_p, (x,), {"shape": (2, 4, 6)}),
        (broadcast_to_p, (None,), {"shape": (3, 2, 4, 6)}),
    ), matrix  # fmt: skip
    yield "f(broadcast_to", chain(
        x, (sum_p, (x,), {"axes": (0,)}), (broadcast_to_p, (None,), {"shape": (4, 6)}),
        (multiply_p, (None, x), {}),
    ), matrix  # fmt: skip
    yield "convert(x, x.dtype)", chain(x, (convert_dtype, (x,), {"dtype": x.aval.dtype})), matrix
    yield "convert(convert", chain(
        x, (convert_dtype, (x,), {"dtype": dtypes.float64}),
        (convert_dtype, (None,), {"dtype": dtypes.float32}),
    ), matrix  # fmt: skip
    column = Var(f4(4, 1))
    yield "dot_general(x, y) over", chain(
        column, (dot_general_p, (column, column), {"contract": ((1,), (1,)), "batch": ((), ())}),
        (multiply_p, (None, scalar(1.0)), {}),
    ), matrix[:, :1]  # fmt: skip
    for exponent in range(3, 9):
        for dtype in (dtypes.float32, dtypes.float64, dtypes.complex64, dtypes.int32):
            argument = awkward(dtype)
            powers = Var(aval(argument.shape, dtype))
            ir = chain(powers, *[(TABLE["integer_power"], (powers,), {"exponent": exponent})] * 2)
            yield "integer_power(x, n)", ir, argument
    for dtype in (dtypes.float32, dtypes.float64, dtypes.float16):
        argument = awkward(dtype)
        for flips in itertools.product((False, True), repeat=2):
            yield "where(equal(x, c)", guarded(aval(argument.shape, dtype), 0.0, *flips), argument
    params = {"trace": None, "linear": None, "count": 1}
    out = Var(x.aval)
    ir = IR((x,), (), (Eqn(MARK, (x, x), (out,), params),), (out,))
    yield "mark(", ir, matrix


EXAMPLES = list(examples())


@pytest.mark.parametrize(("row", "ir", "argument"), EXAMPLES, ids=[e[0] for e in EXAMPLES])
def test_rows_keep_the_bits(row: str, ir: IR, argument: np.ndarray) -> None:
    short = simplify(ir, (True,))
    # It applies: what a row makes of an equation is shorter, or other primitives than it.
    made = [(e.primitive, e.params) for e in short.eqns]
    assert made != [(e.primitive, e.params) for e in ir.eqns]
    same_bits(ir, short, argument)


def test_every_row_has_an_example() -> None:
    covered = {e[0] for e in EXAMPLES}
    missing = [r.pattern for r in ROWS if not any(r.pattern.startswith(c) for c in covered)]
    assert not missing
    assert all(r.why and r.replacement for r in ROWS)


def test_conversions_of_conversions() -> None:
    shorter = 0
    for first in REAL:
        argument = awkward(first)
        for second in REAL:
            for third in REAL:
                ir = chain(
                    Var(aval(argument.shape, first)),
                    (convert_dtype, (None,), {"dtype": second}),
                    (convert_dtype, (None,), {"dtype": third}),
                )
                short = simplify(ir, (True,))
                if len(short.eqns) < (1 if first == second else 2):
                    shorter += 1
                    same_bits(ir, short, argument)
    assert shorter > 100


@pytest.mark.parametrize("wrong", [
    (add_p, 0.0), (multiply_p, 0.0), (divide_p, 2.0), (TABLE["subtract"], -0.0), (multiply_p, -1.0),
])  # fmt: skip
def test_what_is_not_exact_stays(wrong: tuple[Primitive, float]) -> None:
    x = Var(f4(3))
    assert len(simplified(chain(x, (wrong[0], (x, scalar(wrong[1])), {}))).eqns) == 1


def test_infinite_and_equal_to_infinity_stays() -> None:
    ir = guarded(f4(5), np.inf, False, False)
    assert len(simplified(ir).eqns) == 4


def test_rewrites_that_need_a_layout_stay_without_one() -> None:
    x = Var(f4(4, 6))
    ir = chain(x, (multiply_p, (x, scalar(1.0)), {}), (sum_p, (None,), {"axes": (0, 1)}))
    assert len(simplified(ir).eqns) == 1
    assert len(simplified(ir, contiguous=False).eqns) == 2


def test_complex_times_one_stays() -> None:
    # (inf + 0j) * (1 + 0j) has a NaN part
    x = Var(aval((3,), dtypes.complex64))
    ir = chain(x, (multiply_p, (x, scalar(1, dtypes.complex64)), {}))
    assert len(simplified(ir).eqns) == 1


# Common subexpressions


def test_equal_equations_are_one() -> None:
    x = Var(f4(3))
    (e1, a), (e2, b) = eqn(exp_p, x), eqn(exp_p, x)
    e3, c = eqn(add_p, a, b)
    found = simplified(IR((x,), (), (e1, e2, e3), (c,)))
    assert [e.primitive.name for e in found.eqns] == ["exp", "add"]
    assert found.eqns[1].inputs[0] is found.eqns[1].inputs[1]


def test_literals_that_look_equal_are_not() -> None:
    x = Var(f4(3))
    pairs = [
        (scalar(0.0), scalar(-0.0)),
        (scalar(np.nan), Literal(np.array(0x7FC00001, np.uint32).view(np.float32)[()])),
    ]
    for one, other in pairs:
        (e1, a), (e2, b) = eqn(divide_p, x, one), eqn(divide_p, x, other)
        ir = IR((x,), (), (e1, e2), (a, b))
        assert len(simplified(ir).eqns) == 2
        same_bits(ir, simplified(ir), np.array([1, -1, 0], np.float32))


def test_parameters_that_look_equal_are_not() -> None:
    kind = Primitive("test.typed", lambda x, by: x * by, lambda x, by: x, "elementwise", **NO_RULES)
    try:
        x = Var(aval((), dtypes.int32))
        made = [eqn(kind, x, by=by) for by in (1, True, 1.0, 0.0, -0.0)]
        ir = IR((x,), (), tuple(e for e, _ in made), tuple(v for _, v in made))
        assert len(simplified(ir).eqns) == 5
    finally:
        del TABLE["test.typed"]


# Effects


def test_effects_are_neither_dropped_nor_merged() -> None:
    sent: list[Any] = []

    def lower(x: Any) -> Any:
        sent.append(x)
        return x

    send = Primitive("test.send", lower, lambda x: x, "effect", effect=True, **NO_RULES)
    try:
        x = Var(f4(3))
        (e1, _), (e2, b) = eqn(send, x), eqn(send, x)
        e3, _ = eqn(send, scalar(1.0))
        e4, d = eqn(exp_p, b)
        e5, _ = eqn(exp_p, d)  # dead, and not an effect
        found = simplified(IR((x,), (), (e1, e2, e3, e4, e5), (d,)))
        assert [e.primitive.name for e in found.eqns] == ["test.send"] * 3 + ["exp"]
        assert sent == []
    finally:
        del TABLE["test.send"]


# Folding


def test_constants_are_folded() -> None:
    c = Var(f4(3))
    e1, a = eqn(exp_p, c)
    e2, total = eqn(sum_p, a, axes=(0,))
    x = Var(f4(3))
    e3, out = eqn(multiply_p, x, total)
    value = np.array([1, 2, 3], np.float32)
    ir = IR((x,), ((c, value),), (e1, e2, e3), (out, a))
    found = simplified(ir)
    assert [e.primitive.name for e in found.eqns] == ["multiply"]
    assert type(found.eqns[0].inputs[1]) is Literal
    same_bits(ir, found, value)


def test_a_uniform_constant_is_a_scalar_where_that_is_exact() -> None:
    e1, full = eqn(broadcast_to_p, scalar(2.0), shape=(5, 7))
    e2, halves = eqn(negative_p, full)
    x = Var(f4(5, 7))
    e3, product = eqn(multiply_p, x, halves)
    e4, total = eqn(sum_p, halves, axes=(1,))
    found = simplified(IR((x,), (), (e1, e2, e3), (product,)))
    assert not found.constants
    assert type(found.eqns[0].inputs[1]) is Literal
    ir = IR((x,), (), (e1, e2, e3, e4), (product, total))
    same_bits(ir, simplified(ir), values(x.aval, np.random.Generator(np.random.PCG64(5))))


def test_large_results_are_not_folded() -> None:
    e1, a = eqn(broadcast_to_p, scalar(2.0), shape=(1024, 1024))
    assert len(simplified(IR((), (), (e1,), (a,))).eqns) == 1
    e1, a = eqn(broadcast_to_p, scalar(2.0), shape=(16, 1024))
    assert len(simplified(IR((), (), (e1,), (a,))).eqns) == 0


def test_an_error_in_a_constant_shows_when_it_runs() -> None:
    c, i = Var(f4(3)), Var(aval((1,), dtypes.int32))
    e1, out = eqn(gather_p, c, i, axes=(0,), mode="raise")
    constants = ((c, np.zeros(3, np.float32)), (i, np.array([7], np.int32)))
    ir = IR((), constants, (e1,), (out,))
    found = simplified(ir)
    assert len(found.eqns) == 1
    with pytest.raises(IndexError):
        interpret(found)


def test_repeated_negations_and_dead_code() -> None:
    x = Var(f4(5))
    ir = chain(x, *[(negative_p, (None,), {})] * 7)
    found = simplified(ir)
    assert len(found.eqns) == 1
    argument = values(x.aval, np.random.Generator(np.random.PCG64(3)))
    same_bits(ir, found, argument)
