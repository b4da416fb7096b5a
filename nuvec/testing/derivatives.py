"""Checks of derivative rules: against finite differences, and of one mode against the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes, tree
from nuvec.core.array import Array, from_numpy, operand
from nuvec.core.errors import ArgumentError
from nuvec.core.ops.build import convert_dtype
from nuvec.testing.compare import (
    call_of,
    close,
    difference,
    failure,
    inexact_leaves,
    inner,
    moved,
    natural,
    program_of,
    random_like,
    redrawing,
    rules_run,
    run_smooth,
)  # fmt: skip
from nuvec.transforms.grad import vjp
from nuvec.transforms.jvp import jvp

STEP = 6e-6  # of central differences: the cube root of float64's rounding error
Function = Callable[..., Any]
_MODES = {
    "fwd": ("forward mode", "the jvp rule (or derivatives)"),
    "rev": ("reverse mode", "the vjp rule (or transpose)"),
}
_DOUBLE = (np.dtype(np.float64), np.dtype(np.complex128))


def check_jvp(
    fn: Function, args: Sequence[Any], *, rtol: float = 1e-6, atol: float = 1e-6, seed: int = 0
) -> None:
    """Check forward mode against central finite differences, in float64 (complex128).

    fn   -- takes `args` as Arrays and returns an Array or a tree of them
    args -- arrays or trees; inexact leaves are converted to double precision and moved, others
            are constants.  Keep them further than `1e-5` from kinks and poles

    Complex arguments are moved along a real and an imaginary direction.  What `fn` draws from the
    default random stream is the same at every call.  Raises AssertionError
    with the program, the inputs and the two values, or the error that a rule raised (its cause);
    ArgumentError (a TypeError and a ValueError) when it is itself called with something else, also
    where there is nothing to differentiate or `fn` is not finite at `args`.

    >>> import nuvec as nv
    >>> nv.testing.check_jvp(nv.sin, (nv.array([0.5, 1.0]),))
    """
    args = call_of("check_jvp", fn, args, double=True)
    fn = redrawing(fn)
    generator = np.random.Generator(np.random.PCG64(seed))
    direction = random_like(args, generator)
    directions = [direction]
    if any(dtypes.is_complex(x.dtype) for x in tree.leaves(args)):
        directions = [tree.map(_real_part, direction), tree.map(_imaginary_part, direction)]
    run_smooth("check_jvp", fn, args)
    with rules_run(*_MODES["fwd"], fn, args):
        for tangents in directions:
            _check_direction(fn, args, tangents, rtol, atol)
        _check_one_at_a_time(fn, args, direction)


def _real_part(d: Array) -> Array:
    x = np.asarray(d)
    return from_numpy(np.asarray(x.real.astype(x.dtype)))


def _imaginary_part(d: Array) -> Array:
    x = np.asarray(d)
    return from_numpy(np.asarray(1j * x.imag)) if dtypes.is_complex(x.dtype) else d


def _check_direction(fn: Function, args: Any, tangents: Any, rtol: float, atol: float) -> None:
    out, out_tangent = jvp(fn, args, tangents)
    found = [
        t for t, o in zip(_flat(out_tangent), _flat(out), strict=True)
        if dtypes.is_inexact(o.dtype)
    ]  # fmt: skip
    plus = inexact_leaves(fn(*moved(args, tangents, STEP)))
    minus = inexact_leaves(fn(*moved(args, tangents, -STEP)))
    for k, (t, p, m) in enumerate(zip(found, plus, minus, strict=True)):
        with np.errstate(all="ignore"):
            expected = np.asarray((p - m) / (2 * STEP))
        scale = float(np.max(np.abs(p), initial=1.0)) if np.all(np.isfinite(p)) else 1.0
        if t.shape != p.shape or t.dtype != p.dtype or not close(t, expected, rtol, atol * scale):
            raise failure(
                f"the jvp of output {k} differs from finite differences",
                "the jvp rule (or derivatives)", program_of(fn, args), (args, tangents),
                ("jvp", t), ("finite differences", expected),
                difference(t, expected) if t.shape == expected.shape else None,
            )  # fmt: skip


def _check_one_at_a_time(fn: Function, args: Any, direction: Any) -> None:
    """A rule must take a None for an input that does not move: the tangents add up."""
    leaves, structure = tree.flatten(args)
    tangents = tree.leaves(direction)
    moving = [i for i, x in enumerate(leaves) if dtypes.is_inexact(x.dtype)]
    if len(moving) < 2:
        return
    together = inexact_leaves(jvp(fn, args, direction)[1])
    total = [np.zeros_like(t) for t in together]
    for i in moving:

        def alone(x: Array, i: int = i) -> Any:
            return fn(*tree.unflatten(structure, [*leaves[:i], x, *leaves[i + 1 :]]))

        parts = inexact_leaves(jvp(alone, (leaves[i],), (tangents[i],))[1])
        with np.errstate(all="ignore"):
            total = [np.asarray(t + p) for t, p in zip(total, parts, strict=True)]
    for k, (t, expected) in enumerate(zip(together, total, strict=True)):
        if not close(t, expected, 1e-9, 1e-9):
            raise failure(
                f"the jvp of output {k} is not the sum of the jvps of one input at a time",
                "the jvp rule, where a tangent is None", program_of(fn, args), (args, direction),
                ("all at once", t), ("sum", expected), difference(t, expected),
            )  # fmt: skip


def _flat(value: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in tree.leaves(value)]


def check_vjp(fn: Function, args: Sequence[Any], *, rtol: float = 1e-9, seed: int = 0) -> None:
    """Check reverse mode against forward mode: <c, J v> equals <J^T c, v>, in float64.

    The products are taken without conjugation, and their real parts compared.  One random
    cotangent and tangent suffice to meet any wrong entry with probability one.  Raises as
    `check_jvp` does.

    >>> import nuvec as nv
    >>> nv.testing.check_vjp(nv.sin, (nv.array([0.5, 1.0]),))
    """
    args = call_of("check_vjp", fn, args, double=True)
    fn = redrawing(fn)
    generator = np.random.Generator(np.random.PCG64(seed + 1))
    run_smooth("check_vjp", fn, args)
    tangents = random_like(args, generator)
    with rules_run(*_MODES["fwd"], fn, args):
        out, out_tangent = jvp(fn, args, tangents)
        inexact_leaves(out_tangent)
    with rules_run(*_MODES["rev"], fn, args):
        _check_against(fn, args, tangents, out, out_tangent, rtol, generator)


def _check_against(
    fn: Function, args: Any, tangents: Any, out: Any, out_tangent: Any, rtol: float,
    generator: np.random.Generator,
) -> None:  # fmt: skip
    """Reverse mode against the output and the tangent of forward mode."""
    cotangent = random_like(out, generator)
    pulled_out, pull = vjp(fn, *args)
    pulled = pull(cotangent)
    which = [dtypes.is_inexact(x.dtype) for x in tree.leaves(out)]
    c = [np.asarray(x) for x, w in zip(tree.leaves(cotangent), which, strict=True) if w]
    jv = [np.asarray(x) for x, w in zip(tree.leaves(out_tangent), which, strict=True) if w]
    moving = [x for x in tree.leaves(args) if dtypes.is_inexact(x.dtype)]
    given = [np.asarray(x) for x in tree.leaves(pulled) if x is not None]
    v = [np.asarray(t) for t in tree.leaves(tangents) if dtypes.is_inexact(t.dtype)]
    for x, g in zip(moving, given, strict=True):
        if x.shape != g.shape or x.dtype != g.dtype:
            raise failure("a cotangent has another shape or dtype than its input", "the vjp rule",
                          program_of(fn, args), args, ("cotangent", g), ("input", x))  # fmt: skip
    forward, size = inner(c, jv)
    backward, size_back = inner(given, v)
    apart = abs(forward - backward)
    if not apart <= rtol * max(size, size_back, 1e-3):
        raise failure(
            "reverse mode differs from forward mode: <c, J v> is not <J^T c, v>",
            "the vjp rule (or transpose)", program_of(fn, args), (args, tangents, cotangent),
            ("<J^T c, v>", backward), ("<c, J v>", forward), apart,
        )  # fmt: skip
    _check_alone(fn, args, cotangent, given)
    for a, b in zip(inexact_leaves(pulled_out), inexact_leaves(out), strict=True):
        if difference(a, b) != 0:
            raise failure("vjp and jvp give different outputs", "the rules", program_of(fn, args),
                          args, ("vjp", a), ("jvp", b))  # fmt: skip


def _check_alone(fn: Function, args: Any, cotangent: Any, given: list[np.ndarray]) -> None:
    """The cotangent of one input does not depend on whether others are differentiated."""
    leaves, structure = tree.flatten(args)
    moving = [i for i, x in enumerate(leaves) if dtypes.is_inexact(x.dtype)]
    if len(moving) < 2:
        return
    for i, expected in zip(moving, given, strict=True):

        def alone(x: Array, i: int = i) -> Any:
            return fn(*tree.unflatten(structure, [*leaves[:i], x, *leaves[i + 1 :]]))

        found = np.asarray(vjp(alone, leaves[i])[1](cotangent)[0])
        if not close(found, expected, 1e-9, 1e-9):
            raise failure(
                f"the cotangent of input {i} changes when it alone is differentiated",
                "the vjp rule", program_of(fn, args), (args, cotangent), ("alone", found),
                ("with the others", expected), difference(found, expected),
            )  # fmt: skip


def gradient_map(fn: Function, args: Any, generator: np.random.Generator) -> tuple[Function, Any]:
    """The map (inexact leaves of args, cotangent) -> J^T cotangent, and a point to check it at."""
    flat, leaves = _inexact_part(fn, args)
    cotangent = random_like(flat(*leaves), generator)

    def gradient(moving: list[Array], c: list[Array]) -> Any:
        return vjp(flat, *moving)[1](list(c))

    return gradient, (leaves, cotangent)


def tangent_map(fn: Function, args: Any, generator: np.random.Generator) -> tuple[Function, Any]:
    """The map (inexact leaves of args, tangent) -> J tangent, and a point to check it at."""
    flat, leaves = _inexact_part(fn, args)
    tangents = random_like(leaves, generator)

    def tangent(moving: list[Array], t: list[Array]) -> Any:
        return jvp(flat, tuple(moving), tuple(t))[1]

    return tangent, (leaves, tangents)


def _inexact_part(fn: Function, args: Any) -> tuple[Function, list[Array]]:
    """`fn` as a function of its inexact leaves that returns a list of its inexact outputs."""
    leaves, structure = tree.flatten(args)
    which = [i for i, x in enumerate(leaves) if dtypes.is_inexact(x.dtype)]

    double = all(leaves[i].dtype in _DOUBLE for i in which)

    def flat(*moving: Array) -> list[Array]:
        full = list(leaves)
        for i, x in zip(which, moving, strict=True):
            full[i] = x
        outs = tree.leaves(fn(*tree.unflatten(structure, full)))
        return [_double(o) if double else o for o in outs if dtypes.is_inexact(o.dtype)]

    return flat, [leaves[i] for i in which]


def _double(x: Any) -> Array:
    """An output in double precision: a constant in the function may have another."""
    if x.dtype in _DOUBLE:
        return x
    wide = np.complex128 if dtypes.is_complex(x.dtype) else np.float64
    return convert_dtype.bind(operand(x, "an output"), dtype=np.dtype(wide))


def check_second_order(
    fn: Function, args: Sequence[Any], *, rtol: float = 1e-5, atol: float = 1e-5, seed: int = 0
) -> None:
    """Check that the rules' own derivatives are right: those of the gradient and of the tangent.

    The gradient, as a function of the inputs and of the cotangent, is checked in forward mode
    against finite differences and in reverse mode against forward mode; so is the tangent.
    Raises as `check_jvp` does.

    >>> import nuvec as nv
    >>> nv.testing.check_second_order(nv.sin, (nv.array([0.5, 1.0]),))
    """
    args = call_of("check_second_order", fn, args, double=True)
    check_grads(fn, args, order=2, rtol=rtol, atol=atol, seed=seed, _from=2)


def check_grads(
    fn: Function, args: Sequence[Any], order: int = 2, modes: Sequence[str] = ("fwd", "rev"), *,
    rtol: float = 1e-5, atol: float = 1e-5, seed: int = 0, _from: int = 1,
) -> None:  # fmt: skip
    """Check derivatives up to `order`, in float64.

    fn, args -- as for `check_jvp`
    order    -- 1 or more
    modes    -- "fwd": forward mode against finite differences; "rev": reverse mode against forward
                mode (<c, J v> equals <J^T c, v>).  With order 2 every nesting of the modes

    Raises as `check_jvp` does.

    >>> import nuvec as nv
    >>> nv.testing.check_grads(lambda x, y: x * nv.exp(y), (1.5, 0.5), order=3)
    """
    if isinstance(modes, str) or not modes or not set(modes) <= {"fwd", "rev"}:
        raise ArgumentError(f"check_grads: modes are 'fwd' and 'rev', got {modes!r}")
    order = natural("check_grads: order", order, 1)
    args = call_of("check_grads", fn, args, double=True)
    fn = redrawing(fn)
    if _from <= 1:
        check_jvp(fn, args, rtol=rtol, atol=atol, seed=seed)
        if "rev" in modes:
            check_vjp(fn, args, seed=seed)
    if order == 1:
        return
    run_smooth("check_grads", fn, args)
    generator = np.random.Generator(np.random.PCG64(seed + 2))
    for mode, derived in (("fwd", tangent_map), ("rev", gradient_map)):
        if mode in modes:
            with rules_run(*_MODES[mode], fn, args):
                inner_fn, point = derived(fn, args, generator)
                values = inexact_leaves(inner_fn(*point))
            for k, x in enumerate(values):
                if not np.all(np.isfinite(x)):
                    raise failure(
                        f"{_MODES[mode][0]} gives what is not finite, output {k}", _MODES[mode][1],
                        program_of(fn, args), args, ("derivative", x), ("the function", fn(*args)),
                    )  # fmt: skip
            check_grads(inner_fn, point, order - 1, modes, rtol=rtol, atol=atol, seed=seed + 3)
