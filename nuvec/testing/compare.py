"""What the checks share: leaves, random directions, comparisons, and what a failure prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import numpy as np

from nuvec.core import dtypes, tree
from nuvec.core.array import Array, from_numpy, operand
from nuvec.core.array import eval as evaluate
from nuvec.core.config import config
from nuvec.core.errors import ArgumentError
from nuvec.core.functions.stream import Stream, stream_set
from nuvec.core.ir import IR, held_irs
from nuvec.core.primitive import Primitive
from nuvec.core.traceback import strip_error
from nuvec.transforms.arguments import bind_arguments, require_function
from nuvec.transforms.ir_tools import make_ir

PROGRAM_LINES = 40  # how much of a program a failure prints


class CheckFailure(AssertionError):
    """What a check found.  An AssertionError that is none of these was raised by a rule."""


def call_of(
    check: str, fn: Callable[..., Any], args: Sequence[Any], double: bool = False,
    constant: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """The arguments that a check is given, as Arrays (see `arrays_of`).  With `constant`, a
    function of no arrays will do.

    What is wrong with the call of the check itself is an ArgumentError (a TypeError and a
    ValueError) or DtypeError; what is wrong with a rule is found later, and fails the check."""
    require_function(check, fn)
    if not isinstance(args, tuple | list):
        raise ArgumentError(
            f"{check}: args must be a tuple of the function's arguments, got "
            f"{type(args).__name__}; write {check}(f, (x,))"
        )
    bind_arguments(fn, tuple(args), {}, f"{check} of {getattr(fn, '__name__', fn)}")
    arrays = arrays_of(args, double)
    if not constant and not tree.leaves(arrays):
        raise ArgumentError(f"{check}: there is no array among the arguments, so nothing to check")
    return arrays


def redrawing(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, which draws the same numbers from the default stream at every call."""

    @wraps(fn)
    def run(*args: Any) -> Any:
        with stream_set(Stream()):
            return fn(*args)

    return run


@contextmanager
def rules_run(what: str, look_at: str, fn: Callable[..., Any], args: Any) -> Iterator[None]:
    """Whatever a rule raises meanwhile fails the check, and is the failure's cause."""
    try:
        with config.override(traceback="full"):
            yield
    except CheckFailure:
        raise
    except Exception as error:
        on = _primitives_on(error)  # now: a second error would strip the traceback of this one
        strip_error(error)
        parts = [f"{what} raised {type(error).__name__}: {error}"]
        parts += [f"look at: {look_at} of the primitives below", program_of(fn, args)]
        parts += [f"raised in: {', '.join(on)}"] if on else []
        parts += inputs_shown(args)
        raise CheckFailure("\n".join(parts)) from error


def _primitives_on(error: Exception) -> list[str]:
    """The names of the primitives whose rules an error passed through, outermost first."""
    found: dict[str, None] = {}
    traceback = error.__traceback__
    while traceback is not None:
        known = traceback.tb_frame.f_locals
        # `bind` is the primitive's own method; the walks and the interpreter hold a node.
        for value in (known.get("self"), getattr(known.get("node"), "primitive", None)):
            if isinstance(value, Primitive):
                found[value.name] = None
        traceback = traceback.tb_next
    return list(found)


def run_plain(check: str, fn: Callable[..., Any], args: Any) -> list[np.ndarray]:
    """The results of the function itself, so that its own errors are told from those of the rules.

    A function without results is the caller's fault: there is nothing to check."""
    with rules_run("the function itself", "the shape rule and the lowering", fn, args):
        found = numpy_leaves(fn(*args))
    if not found:
        raise ArgumentError(f"{check}: the function returns no array, so there is nothing to check")
    return found


def run_smooth(check: str, fn: Callable[..., Any], args: Any) -> list[np.ndarray]:
    """As `run_plain`, for checks of derivatives: there must be some, and be numbers."""
    if not any(dtypes.is_inexact(x.dtype) for x in tree.leaves(args)):
        raise ArgumentError(
            f"{check}: no argument is floating or complex, so there is nothing to differentiate; "
            f"got {', '.join(map(dtypes.name, [x.dtype for x in tree.leaves(args)]))}"
        )
    found = [x for x in run_plain(check, fn, args) if dtypes.is_inexact(x.dtype)]
    if not found:
        raise ArgumentError(
            f"{check}: no result is floating or complex, so there is nothing to differentiate"
        )
    for k, x in enumerate(found):
        if not np.all(np.isfinite(x)):
            raise ArgumentError(
                f"{check}: the function is not finite at the arguments given (result {k} is "
                f"{_show(x)}), so its derivatives cannot be compared; give arguments that lie "
                "inside its domain"
            )
    return found


def natural(what: str, value: Any, least: int = 0) -> int:
    """An integer of at least `least`; ArgumentError for anything else."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise ArgumentError(f"{what} must be an integer of at least {least}, got {value!r}")
    return int(value)


def arrays_of(args: Sequence[Any], double: bool = False) -> tuple[Any, ...]:
    """The arguments with every leaf an Array; with `double`, inexact ones in double precision."""

    def convert(leaf: Any) -> Array:
        array = operand(leaf, "an argument of the function checked")
        if double and dtypes.is_inexact(array.dtype):
            wide = np.complex128 if dtypes.is_complex(array.dtype) else np.float64
            return from_numpy(np.asarray(array).astype(wide))
        return Array(array._node)

    return tree.map(convert, tuple(args))


def numpy_leaves(value: Any) -> list[np.ndarray]:
    """The evaluated leaves of a tree, each of the shape and dtype that its shape rule says."""
    leaves = [operand(x, "a result") for x in tree.leaves(value)]
    evaluate(leaves)
    found = [np.asarray(x._node.value) for x in leaves]
    for x, leaf in zip(found, leaves, strict=True):
        if x.shape != leaf.shape or x.dtype != leaf.dtype:
            raise AssertionError(
                f"a lowering returned {x.dtype}{list(x.shape)} where the shape rule says "
                f"{leaf.aval}; check_lowering says which"
            )
    return found


def inexact_leaves(value: Any) -> list[np.ndarray]:
    """The evaluated leaves of a tree that have derivatives."""
    return [x for x in numpy_leaves(value) if dtypes.is_inexact(x.dtype)]


def random_like(value: Any, generator: np.random.Generator) -> Any:
    """A tree of random directions: normal numbers for inexact leaves, integer zeros elsewhere."""

    def draw(leaf: Any) -> Array:
        array = operand(leaf, "a value")
        if not dtypes.is_inexact(array.dtype):
            return from_numpy(np.zeros(array.shape, array.dtype))
        drawn = generator.standard_normal(array.shape)
        if dtypes.is_complex(array.dtype):
            drawn = drawn + 1j * generator.standard_normal(array.shape)
        return from_numpy(np.asarray(drawn).astype(array.dtype))

    return tree.map(draw, value)


def moved(args: Any, direction: Any, step: float) -> Any:
    """`args + step * direction`, in double precision; leaves without derivatives stay."""

    def move(x: Array, d: Array) -> Array:
        if not dtypes.is_inexact(x.dtype):
            return x
        return from_numpy(np.asarray(np.asarray(x) + step * np.asarray(d)))

    return tree.map(move, args, direction)


def inner(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> tuple[float, float]:
    """The real part of <a, b> without conjugation, and the size of its terms.

    For complex numbers the real part is what both modes agree on: a function that is not
    holomorphic (conj, real) is linear over the reals alone."""
    total, size = 0.0, 0.0
    for x, y in zip(a, b, strict=True):
        products = np.real(x * y)
        total += float(np.sum(products))
        size += float(np.sum(np.abs(products)))
    return total, size


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal to the last bit; any NaN equals any other."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if dtypes.is_complex(a.dtype):
        return same_bits(a.real, b.real) and same_bits(a.imag, b.imag)
    return bool(np.all((_bits(a) == _bits(b)) | ((a != a) & (b != b))))


def _bits(x: np.ndarray) -> np.ndarray:
    return x.copy().view(np.dtype(f"u{x.dtype.itemsize}"))


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """The largest absolute difference; infinite where one is NaN and the other not, and for
    different shapes."""
    if a.shape != b.shape:
        return np.inf
    if a.size == 0:
        return 0.0
    a, b = _wide(a), _wide(b)
    with np.errstate(all="ignore"):
        apart = np.where(a == b, 0.0, np.abs(a - b))
    apart = np.where((a != a) & (b != b), 0.0, apart)
    return float(np.max(np.where(apart != apart, np.inf, apart)))


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.complex128 if dtypes.is_complex(x.dtype) else np.float64)


def close(a: np.ndarray, b: np.ndarray, rtol: float, atol: float) -> bool:
    """Equal up to `atol + rtol * |b|`, where NaN equals NaN and infinities themselves; integers
    and booleans must be equal (a uint64 has more digits than a float64 can tell apart)."""
    if a.shape != b.shape:
        return False
    if not dtypes.is_inexact(a.dtype) and not dtypes.is_inexact(b.dtype):
        return bool(np.array_equal(a, b))
    with np.errstate(all="ignore"):
        return bool(np.allclose(_wide(a), _wide(b), rtol=rtol, atol=atol, equal_nan=True))


def primitives_in(ir: IR) -> set[str]:
    """The names of the primitives a program uses, those of IRs inside it included."""
    names: set[str] = set()
    seen: set[int] = set()
    stack = [ir]
    while stack:
        for eqn in stack.pop().eqns:
            names.add(eqn.primitive.name)
            stack.extend(inner for _, inner in held_irs(eqn, seen))
    return names


def program_of(fn: Callable[..., Any], args: Sequence[Any]) -> str:
    """The program of a function as text, with the primitives whose rules it exercises."""
    try:
        ir = make_ir(fn)(*args)
    except Exception as error:  # a function that needs values has no program to show
        return f"(no program: {type(error).__name__}: {error})"
    lines = str(ir).splitlines()
    if len(lines) > PROGRAM_LINES:
        lines = [*lines[:PROGRAM_LINES], f"... and {len(lines) - PROGRAM_LINES} lines more"]
    return "\n".join(lines) + f"\nprimitives: {', '.join(sorted(primitives_in(ir)))}"


def failure(
    what: str, look_at: str, program: str, inputs: Any, got: tuple[str, Any],
    expected: tuple[str, Any], apart: float | None = None,
) -> CheckFailure:  # fmt: skip
    """The smallest useful facts of a failed check, as an error to raise."""
    parts = [what]
    if apart is not None:
        parts[0] += f" (largest difference {apart:.3g})"
    parts.append(f"look at: {look_at} of the primitives below")
    parts.append(program)
    parts += inputs_shown(inputs)
    for name, value in (got, expected):
        parts.append(f"{name}: {_show(value)}")
    return CheckFailure("\n".join(parts + _worst(got, expected)))


def inputs_shown(inputs: Any) -> list[str]:
    """A line for each leaf of the inputs that a check failed on."""
    return [f"input {k}: {_show(leaf)}" for k, leaf in enumerate(tree.leaves(inputs))]


def _worst(got: tuple[str, Any], expected: tuple[str, Any]) -> list[str]:
    """Where two arrays are furthest apart, and the two elements."""
    a, b = got[1], expected[1]
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return []
    if a.shape != b.shape or a.size < 2:
        return []
    apart = [difference(x, y) for x, y in zip(a.reshape(-1), b.reshape(-1), strict=True)]
    where = tuple(int(i) for i in np.unravel_index(int(np.argmax(apart)), a.shape))
    return [f"furthest apart at {list(where)}: {got[0]} {a[where]}, {expected[0]} {b[where]}"]


def _show(value: Any) -> str:
    if isinstance(value, Array):
        try:
            value = np.asarray(value)
        except Exception:
            return repr(value)
    if not isinstance(value, np.ndarray | np.generic):
        return str(value)
    value = np.asarray(value)
    text = np.array2string(value, precision=9, threshold=24, edgeitems=3)
    return f"{dtypes.name(value.dtype)}{list(value.shape)} {text}"


def compare_trees(
    what: str, look_at: str, program: Callable[[], str], inputs: Any, got: tuple[str, Any],
    expected: tuple[str, Any], rtol: float | None, atol: float = 0.0,
) -> None:  # fmt: skip
    """Raise unless two trees agree leaf by leaf; bit for bit with `rtol=None`."""
    a, b = numpy_leaves(got[1]), numpy_leaves(expected[1])
    if len(a) != len(b):
        raise failure(f"{what}: {len(a)} outputs against {len(b)}", look_at, program(), inputs,
                      (got[0], len(a)), (expected[0], len(b)))  # fmt: skip
    for k, (x, y) in enumerate(zip(a, b, strict=True)):
        where = f"{what}, output {k}"
        if x.shape != y.shape or x.dtype != y.dtype:
            raise failure(
                f"{where}: {dtypes.name(x.dtype)}{list(x.shape)} against "
                f"{dtypes.name(y.dtype)}{list(y.shape)}",
                look_at, program(), inputs, (got[0], x), (expected[0], y),
            )  # fmt: skip
        agree = same_bits(x, y) if rtol is None else close(x, y, rtol, atol)
        if not agree:
            how = "not the same bits" if rtol is None else "differ"
            raise failure(f"{where}: {how}", look_at, program(), inputs, (got[0], x),
                          (expected[0], y), difference(x, y))  # fmt: skip
