"""Every primitive of the table, by every check: generated from the rows in tests/cases."""

from __future__ import annotations

import importlib
import pkgutil
import zlib
from typing import Any

import numpy as np
import pytest

import nuvec.core.functions
import nuvec.core.ops
from nuvec.core import dtypes, tree
from nuvec.core.array import from_numpy
from nuvec.core.errors import NuvecError
from nuvec.core.ops.differentiation import stop_gradient_p
from nuvec.core.primitive import NOT_DIFFERENTIABLE, RECORDING, TABLE, Primitive
from nuvec.testing import (
    check_compile,
    check_jvp,
    check_lowering,
    check_second_order,
    check_vjp,
    check_vmap,
)  # fmt: skip
from nuvec.testing.compare import arrays_of, close, difference, numpy_leaves, primitives_in
from nuvec.testing.derivatives import gradient_map
from nuvec.transforms.ir_tools import make_ir
from tests.cases.case import Case
from tests.cases.rows import all_rows

for _package in (nuvec.core.ops, nuvec.core.functions):
    for _info in pkgutil.iter_modules(_package.__path__):
        importlib.import_module(f"{_package.__name__}.{_info.name}")


ROWS = all_rows()
SMOOTH = [row for row in ROWS if row.differentiable]
REFERENCED = [row for row in ROWS if row.reference is not None]
BATCHED = [row for row in ROWS if row.args]
# Equations of recording, calls and communications have tables of their own.
PRIMITIVES = {
    name: p for name, p in TABLE.items()
    if p not in RECORDING and p.kind not in ("call", "effect") and p.__class__ is Primitive
    and not name.startswith("test")
}  # fmt: skip


def _ids(rows: list[Case]) -> list[str]:
    seen: dict[str, int] = {}
    ids = []
    for row in rows:
        n = seen[str(row)] = seen.get(str(row), 0) + 1
        ids.append(str(row) if n == 1 else f"{row}-{n}")
    return ids


every_row = pytest.mark.parametrize("row", ROWS, ids=_ids(ROWS))
every_smooth_row = pytest.mark.parametrize("row", SMOOTH, ids=_ids(SMOOTH))


def _outputs(row: Case, args: Any = None) -> list[np.ndarray]:
    return numpy_leaves(row.function(*map(from_numpy, map(np.asarray, args or row.args))))


# The table is complete


@pytest.mark.parametrize("name", PRIMITIVES)
def test_every_primitive_has_rows(name: str) -> None:
    rows = [row for row in ROWS if row.primitive == name]
    assert rows, f"{name} has no row in tests/cases"
    primitive = PRIMITIVES[name]
    floats = any(
        dtypes.is_inexact(np.asarray(a).dtype) for row in rows for a in row.args
    )  # fmt: skip
    if primitive.jvp is not NOT_DIFFERENTIABLE and floats and _has_derivative(primitive):
        assert any(row.differentiable for row in rows), (
            f"{name} has derivative rules, and no row that differentiates it"
        )


def _has_derivative(primitive: Primitive) -> bool:
    if primitive.derivatives is None:
        return True
    if primitive is stop_gradient_p:  # wrong on purpose, as finite differences see it
        return False
    return any(d is not NOT_DIFFERENTIABLE for d in primitive.derivatives)


@pytest.mark.parametrize("name", PRIMITIVES)
def test_every_primitive_has_rules(name: str) -> None:
    primitive = PRIMITIVES[name]
    if primitive.derivatives is None:
        assert primitive.vjp is not None, f"{name} has no vjp (or transpose, or derivatives)"
        assert primitive.jvp is not None or primitive.linear is not None, f"{name} has no jvp"
    if primitive.vmap is None:
        assert primitive.kind == "elementwise" or primitive.derivatives is not None, (
            f"{name} is not elementwise and has no vmap rule"
        )


@every_row
def test_a_row_exercises_its_primitive(row: Case) -> None:
    found = primitives_in(make_ir(row.function)(*row.args))
    assert row.primitive is None or row.primitive in found, f"recorded {sorted(found)}"


# What it computes


@pytest.mark.parametrize("row", REFERENCED, ids=_ids(REFERENCED))
def test_reference(row: Case) -> None:
    assert row.reference is not None
    with np.errstate(all="ignore"):
        expected = row.reference(*row.args)
    expected = list(expected) if isinstance(expected, list | tuple) else [expected]
    found = _outputs(row)
    assert len(found) == len(expected)
    for a, b in zip(found, map(np.asarray, expected), strict=True):
        assert a.shape == b.shape
        if b.dtype != a.dtype:  # nuvec's promotion decides
            assert dtypes.is_complex(a.dtype) or not dtypes.is_complex(b.dtype)
            b = b.astype(a.dtype)
        rtol = row.rtol if dtypes.is_inexact(a.dtype) else 0
        assert close(a, b, rtol, rtol / 10), f"{a}\n{b}\nlargest difference {difference(a, b):.3g}"


@every_row
def test_shape_rule_and_layouts(row: Case) -> None:
    check_lowering(row.function, row.args)


DTYPES = {
    "float64": (np.float64, np.complex128),
    "float16": (np.float16, np.complex64),
    "bfloat16": (dtypes.bfloat16, np.complex64),
    "integer": (np.int32, np.complex64),
    "small-integer": (np.int8, np.complex64),
    "complex": (np.complex64, np.complex64),
    "bool": (np.bool_, np.bool_),
}


def _converted(row: Case, dtype: str) -> list[np.ndarray]:
    for_real, for_complex = DTYPES[dtype]

    def convert(x: Any) -> np.ndarray:
        x = np.asarray(x)
        if not dtypes.is_inexact(x.dtype):
            return x
        with np.errstate(all="ignore"):
            return np.asarray(x.astype(for_complex if dtypes.is_complex(x.dtype) else for_real))

    return [convert(a) for a in row.args]


_VARIANTS = [
    pytest.param(row, dtype, id=f"{name}-{dtype}")
    for row, name in zip(ROWS, _ids(ROWS), strict=True)
    for dtype in DTYPES
    if [x.dtype for x in _converted(row, dtype)] != [np.asarray(x).dtype for x in row.args]
]


@pytest.mark.parametrize(("row", "dtype"), _VARIANTS)
def test_shape_rule_in_other_dtypes(row: Case, dtype: str) -> None:
    """In every dtype the operation accepts, its values have the dtype it promises."""
    args = _converted(row, dtype)
    try:
        make_ir(row.function)(*args)
    except NuvecError:
        return  # refused, by an error of ours, when it is recorded
    check_lowering(row.function, args)


@every_row
def test_compiled_equals_interpreted(row: Case) -> None:
    check_compile(row.function, row.args)


@pytest.mark.parametrize("row", BATCHED, ids=_ids(BATCHED))
def test_vmap_equals_a_loop(row: Case) -> None:
    check_vmap(row.function, row.args, vary="same-batch" not in row.tags)


# Derivatives


def _seed(row: Case) -> int:
    return zlib.crc32(str(row).encode()) % 1000


@every_smooth_row
def test_jvp(row: Case) -> None:
    check_jvp(row.function, row.args, seed=_seed(row))


@every_smooth_row
def test_vjp(row: Case) -> None:
    check_vjp(row.function, row.args, seed=_seed(row))


@every_smooth_row
def test_second_order(row: Case) -> None:
    check_second_order(row.function, row.args, seed=_seed(row))


@every_smooth_row
def test_derivatives_in_single_precision(row: Case) -> None:
    """The rules keep the dtype, and what they record is well formed."""
    gradient, point = gradient_map(
        row.function, arrays_of(row.args), np.random.Generator(np.random.PCG64(0))
    )
    found = numpy_leaves(gradient(*point))
    for g, x in zip(found, tree.leaves(point[0]), strict=True):
        assert (g.shape, g.dtype) == (x.shape, x.dtype)
    check_compile(lambda *leaves: gradient(list(leaves), point[1]), tuple(point[0]))
