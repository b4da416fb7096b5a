"""What the checks share: leaves, random directions, comparisons, and what a failure prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes, tree
from nuvec.core.array import Array, from_numpy, operand
from nuvec.core.array import eval as evaluate
from nuvec.core.ir import IR, sub_irs
from nuvec.transforms.ir_tools import make_ir

PROGRAM_LINES = 40  # how much of a program a failure prints


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
    """The evaluated leaves of a tree."""
    leaves = [operand(x, "a result") for x in tree.leaves(value)]
    evaluate(leaves)
    return [np.asarray(x._node.value) for x in leaves]


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
    stack = [ir]
    while stack:
        for eqn in stack.pop().eqns:
            names.add(eqn.primitive.name)
            stack.extend(sub_irs(eqn.params))
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
) -> AssertionError:  # fmt: skip
    """The smallest useful facts of a failed check, as an AssertionError to raise."""
    parts = [what]
    if apart is not None:
        parts[0] += f" (largest difference {apart:.3g})"
    parts.append(f"look at: {look_at} of the primitives below")
    parts.append(program)
    for k, leaf in enumerate(tree.leaves(inputs)):
        parts.append(f"input {k}: {_show(leaf)}")
    for name, value in (got, expected):
        parts.append(f"{name}: {_show(value)}")
    return AssertionError("\n".join(parts))


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
