"""Checks of what a program computes: lowering against shape rules, compiled against interpreted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes, tree
from nuvec.core.array import operand
from nuvec.core.ir import IR, Eqn, Literal, sub_irs
from nuvec.testing.compare import (
    arrays_of,
    close,
    compare_trees,
    difference,
    numpy_leaves,
    program_of,
    same_bits,
)  # fmt: skip
from nuvec.transforms.compile import compile
from nuvec.transforms.ir_tools import make_ir


def check_lowering(
    fn: Callable[..., Any], args: Sequence[Any], *, rtol: float | None = None
) -> None:
    """Check every equation of `fn`: its value has the shape and dtype that the shape rule says,
    whatever the memory layout of the operands, and the operands are left alone.

    Each equation runs on contiguous operands, on strided ones, with NumPy scalars for 0-d arrays,
    and into a given buffer where its lowering takes one.  The results must agree to `rtol` (bit
    for bit into a buffer).  Raises AssertionError quoting the equation.

    >>> import nuvec as nv
    >>> nv.testing.check_lowering(nv.sin, (nv.ones((2, 3)),))
    """
    arrays = arrays_of(args)
    ir = make_ir(fn)(*arrays)
    captures = len(ir.inputs) - len(tree.leaves(arrays))
    if captures:
        raise ValueError(
            f"check_lowering: the function captures {captures} arrays; pass them as arguments"
        )
    run_checked(ir, numpy_leaves(arrays), rtol)


def run_checked(ir: IR, values: Sequence[np.ndarray], rtol: float | None = None) -> list[Any]:
    """Interpret an IR, checking each equation as `check_lowering` says."""
    environment: dict[Any, Any] = dict(zip(ir.inputs, values, strict=True))
    environment.update(ir.constants)

    def read(atom: Any) -> np.ndarray:
        return np.asarray(atom.value if type(atom) is Literal else environment[atom])

    with np.errstate(all="ignore"):
        for eqn in ir.eqns:
            outs = _check_equation(eqn, [read(a) for a in eqn.inputs], rtol)
            environment.update(zip(eqn.outputs, outs, strict=True))
    return [read(a) for a in ir.outputs]


def _check_equation(eqn: Eqn, operands: list[np.ndarray], rtol: float | None) -> list[np.ndarray]:
    primitive = eqn.primitive

    def run(given: Sequence[Any], **options: Any) -> list[np.ndarray]:
        result = primitive.lower(*given, **eqn.params, **options)
        outs = list(result) if primitive.multiple else [result]
        for out, v in zip(outs, eqn.outputs, strict=True):
            if not isinstance(out, np.ndarray | np.generic):
                raise _wrong(eqn, operands, f"returned a {type(out).__name__}, not a NumPy value")
            if out.shape != v.aval.shape or out.dtype != v.aval.dtype:
                raise _wrong(
                    eqn, operands, f"returned {dtypes.name(out.dtype)}{list(out.shape)}, and the "
                    f"shape rule says {v.aval}",
                )  # fmt: skip
        return [np.asarray(o) for o in outs]

    fixed = [_read_only(x) for x in operands]
    expected = run(fixed)
    if sub_irs(eqn.params):
        return expected
    for what, given in (
        ("strided operands", [_strided(x) for x in operands]),
        ("NumPy scalars for 0-d arrays", [x if x.ndim else x[()] for x in fixed]),
    ):
        for a, b in zip(run(given), expected, strict=True):
            agree = same_bits(a, b) or (
                dtypes.is_inexact(b.dtype) and close(a, b, *_tolerance(b.dtype, rtol))
            )
            if not agree:
                raise _wrong(eqn, operands, f"with {what} gives {a}, else {b}: largest difference "
                             f"{difference(a, b):.3g}")  # fmt: skip
    if primitive.out:
        v = eqn.outputs[0].aval
        buffer = np.full(v.shape, 1, v.dtype)
        result = primitive.lower(*fixed, **eqn.params, out=buffer)
        if result is not buffer and not np.shares_memory(result, buffer) and buffer.size:
            raise _wrong(eqn, operands, "did not return the buffer given as `out`")
        if not same_bits(buffer, expected[0]):
            raise _wrong(eqn, operands, f"wrote {buffer} into `out`, and returns {expected[0]}")
    return expected


def _tolerance(dtype: np.dtype, rtol: float | None) -> tuple[float, float]:
    """A reduction's order of additions depends on the layout: a few rounding errors."""
    if rtol is None:
        rtol = 64 * float(dtypes.finfo(dtype).eps)
    return rtol, rtol


def _read_only(x: np.ndarray) -> np.ndarray:
    view = np.ascontiguousarray(x).reshape(x.shape).view()
    view.flags.writeable = False
    return view


def _strided(x: np.ndarray) -> np.ndarray:
    """The same values with gaps between them, axes in reverse order in memory."""
    wide = np.empty((*x.shape[::-1], 2), x.dtype)[..., 0].T
    wide[...] = x
    wide.flags.writeable = False
    return wide


def _wrong(eqn: Eqn, operands: list[np.ndarray], what: str) -> AssertionError:
    given = ", ".join(f"{dtypes.name(x.dtype)}{list(x.shape)}" for x in operands)
    lines = [f"lowering of {eqn.primitive.name}({given}), params {eqn.params}: {what}"]
    lines += [f"operand {i}: {x}" for i, x in enumerate(operands) if x.size <= 24]
    return AssertionError("\n".join(lines))


def check_compile(
    fn: Callable[..., Any], args: Sequence[Any], *, rtol: float | None = None
) -> None:
    """Check that `compile(fn)` gives what `fn` gives, bit for bit (or to `rtol`), twice.

    Raises AssertionError with the program, the inputs and the two values.

    >>> import nuvec as nv
    >>> nv.testing.check_compile(lambda x: nv.sin(x) * 2, (nv.ones(3),))
    """
    arrays = arrays_of(args)
    expected = [operand(x, "a result") for x in tree.leaves(fn(*arrays))]
    compiled = compile(fn)
    for call in ("first", "second"):
        compare_trees(
            f"the {call} call of the compiled function differs from the interpreted one",
            "the simplify, schedule and emit passes, and the lowering",
            lambda: program_of(fn, arrays), arrays,
            ("compiled", tree.leaves(compiled(*arrays))), ("interpreted", expected), rtol,
        )  # fmt: skip
