"""Checks of what a program computes: lowering against shape rules, compiled against interpreted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes, tree
from nuvec.core.array import operand
from nuvec.core.errors import ArgumentError
from nuvec.core.ir import IR, Eqn, Literal, sub_irs
from nuvec.testing.compare import (
    CheckFailure,
    call_of,
    close,
    compare_trees,
    difference,
    numpy_leaves,
    program_of,
    redrawing,
    rules_run,
    run_plain,
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
    and into a given buffer where its lowering takes one; where it is declared elementwise, also in
    reverse order and on single elements.  The results must agree to `rtol` (bit
    for bit into a buffer).

    Raises AssertionError quoting the equation, also where a lowering raises (its error is the
    cause), as one does that writes on an operand; ArgumentError (a TypeError and a ValueError) when
    it is itself called with something else.

    >>> import nuvec as nv
    >>> nv.testing.check_lowering(nv.sin, (nv.ones((2, 3)),))
    """
    arrays = call_of("check_lowering", fn, args, constant=True)
    with rules_run("recording", "the shape rule", fn, arrays):
        ir = make_ir(fn)(*arrays)
    if not ir.eqns and not ir.outputs:
        raise ArgumentError(
            "check_lowering: the function computes nothing, so there is nothing to check"
        )
    captures = len(ir.inputs) - len(tree.leaves(arrays))
    if captures:
        raise ArgumentError(
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

    def lower(given: Sequence[Any], **options: Any) -> Any:
        try:
            return primitive.lower(*given, **eqn.params, **options)
        except Exception as error:
            hint = "; it must leave its operands alone" if "read-only" in str(error) else ""
            text = f"raised {type(error).__name__}: {error}{hint}"
            raise _wrong(eqn, operands, text) from error

    def run(given: Sequence[Any]) -> list[np.ndarray]:
        result = lower(given)
        if primitive.multiple and not isinstance(result, list | tuple):
            raise _wrong(eqn, operands, f"returned a {type(result).__name__}, not a tuple")
        outs = list(result) if primitive.multiple else [result]
        if len(outs) != len(eqn.outputs):
            raise _wrong(
                eqn, operands, f"returned {len(outs)} results, and the shape rule says "
                f"{len(eqn.outputs)}",
            )  # fmt: skip
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
            if not _agree(a, b, rtol):
                raise _wrong(eqn, operands, f"with {what} gives {a}, else {b}: largest difference "
                             f"{difference(a, b):.3g}")  # fmt: skip
    if primitive.kind == "elementwise" and not primitive.multiple:
        _check_elementwise(eqn, fixed, expected[0], lower, rtol)
    if primitive.out:
        v = eqn.outputs[0].aval
        buffer = np.full(v.shape, 1, v.dtype)
        result = lower(fixed, out=buffer)
        if result is not buffer and not np.shares_memory(result, buffer) and buffer.size:
            raise _wrong(eqn, operands, "did not return the buffer given as `out`")
        if not same_bits(buffer, expected[0]):
            raise _wrong(eqn, operands, f"wrote {buffer} into `out`, and returns {expected[0]}")
    if primitive.updates is not None:
        _check_update(eqn, fixed, expected[0], lower, primitive.updates)
    return expected


def _check_update(
    eqn: Eqn, fixed: list[np.ndarray], expected: np.ndarray, lower: Callable[..., Any], place: int
) -> None:
    """It gives the same when it changes the operand that the result is a changed copy of."""
    old = fixed[place]
    if not expected.ndim or old.shape != expected.shape or old.dtype != expected.dtype:
        return
    given = list(fixed)
    given[place] = buffer = old.copy()
    result = lower(given, out=buffer)
    if result is not buffer or not same_bits(buffer, expected):
        raise _wrong(
            eqn, fixed, f"with operand {place} itself as `out`, which it `updates`, returned "
            f"{result}, else {expected}",
        )  # fmt: skip


def _check_elementwise(
    eqn: Eqn, operands: list[np.ndarray], expected: np.ndarray, lower: Callable[..., Any],
    rtol: float | None,
) -> None:  # fmt: skip
    """Each element of the result comes from the operands' elements at its own place: in reverse
    order they give the reverse, and each alone gives what it gives among the others."""
    shape = expected.shape
    try:
        flat = [np.broadcast_to(x, shape).reshape(-1) for x in operands]
    except ValueError:
        raise _wrong(
            eqn, operands, f"returned {list(shape)}, and it is declared elementwise: its result "
            "has the shape that its operands broadcast to",
        ) from None  # fmt: skip
    n = expected.size
    places = [slice(None, None, -1), *(slice(k, k + 1) for k in sorted({0, n // 2, n - 1}))]
    for place in places if n > 1 else []:
        found = np.asarray(lower([x[place] for x in flat]))
        alone = expected.reshape(-1)[place]
        if _agree(found, alone, rtol):
            continue
        raise _wrong(
            eqn, operands, f"is declared elementwise, and for its operands' elements [{place.start}"
            f":{place.stop}:{place.step}] alone gives {found}, among all {alone}: an element of "
            "the result may depend on the operands' elements at its own place only; declare "
            "another kind, with a vmap rule",
        )  # fmt: skip


def _agree(a: np.ndarray, b: np.ndarray, rtol: float | None) -> bool:
    if same_bits(a, b):
        return True
    return a.dtype == b.dtype and dtypes.is_inexact(b.dtype) and (
        close(a, b, *_tolerance(b.dtype, rtol))
    )  # fmt: skip


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


def _wrong(eqn: Eqn, operands: list[np.ndarray], what: str) -> CheckFailure:
    given = ", ".join(f"{dtypes.name(x.dtype)}{list(x.shape)}" for x in operands)
    lines = [f"lowering of {eqn.primitive.name}({given}), params {eqn.params}: {what}"]
    lines += [f"operand {i}: {x}" for i, x in enumerate(operands) if x.size <= 24]
    return CheckFailure("\n".join(lines))


def check_compile(
    fn: Callable[..., Any], args: Sequence[Any], *, rtol: float | None = None
) -> None:
    """Check that `compile(fn)` gives what `fn` gives, bit for bit (or to `rtol`), twice, from the
    same place in the default random stream.

    Raises AssertionError with the program, the inputs and the two values, or the error that
    compiling or running raised (its cause); ArgumentError (a TypeError and a ValueError) when it is
    itself called with something else.

    >>> import nuvec as nv
    >>> nv.testing.check_compile(lambda x: nv.sin(x) * 2, (nv.ones(3),))
    """
    arrays = call_of("check_compile", fn, args, constant=True)
    compiled = redrawing(compile(fn))
    fn = redrawing(fn)
    run_plain("check_compile", fn, arrays)
    look_at = "the simplify, schedule and emit passes, and the lowering"
    expected = [operand(x, "a result") for x in tree.leaves(fn(*arrays))]
    for call in ("first", "second"):
        with rules_run(f"the {call} call of the compiled function", look_at, fn, arrays):
            compare_trees(
                f"the {call} call of the compiled function differs from the interpreted one",
                look_at, lambda: program_of(fn, arrays), arrays,
                ("compiled", tree.leaves(compiled(*arrays))), ("interpreted", expected), rtol,
            )  # fmt: skip
