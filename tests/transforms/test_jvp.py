"""jvp: signatures, structures, and that forward mode is as complete as reverse mode."""

from __future__ import annotations

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.array import from_numpy
from nuvec.core.errors import DtypeError, ShapeError, TreeError
from nuvec.core.primitive import NOT_DIFFERENTIABLE, TABLE
from nuvec.transforms.jvp import jvp


def test_values_and_tangents() -> None:
    out, moved = jvp(
        lambda x, y: {"p": x * y, "s": [x + y]}, (nv.array([1.0, 2.0]), 3.0),
        (nv.array([1.0, 0.0]), 10.0),
    )  # fmt: skip
    assert out["p"].tolist() == [3, 6] and out["s"][0].tolist() == [4, 5]
    assert moved["p"].tolist() == [13, 20] and moved["s"][0].tolist() == [11, 10]


def test_none_and_integer_tangents() -> None:
    _, moved = jvp(lambda x, n: (x * n, n), (nv.array(2.0), nv.array(3)), (1.0, None))
    assert moved[0].item() == 3 and moved[1].item() == 0
    _, moved = jvp(lambda x, y: x * y, (2.0, 3.0), (None, 1.0))
    assert moved.item() == 2
    _, moved = jvp(lambda x, n: x * n, (nv.array(2.0), nv.array(3)), (1.0, nv.array(0)))
    assert moved.item() == 3


def test_outputs_that_do_not_move() -> None:
    out, moved = jvp(lambda x: (x > 1, nv.floor(x), 3.0, nv.argmax(x[None])), (2.5,), (1.0,))
    assert [o.item() for o in out] == [True, 2, 3, 0]
    assert [m.item() for m in moved] == [0, 0, 0, 0]
    assert [m.shape for m in moved] == [()] * 4


def test_has_aux() -> None:
    out, moved, aux = jvp(lambda x: (x * x, {"x": x}), (3.0,), (1.0,), has_aux=True)
    assert (out.item(), moved.item(), aux["x"].item()) == (9, 6, 3)


def test_errors() -> None:
    with pytest.raises(TreeError, match="takes tuples"):
        jvp(nv.sin, 1.0, 1.0)  # type: ignore[arg-type]
    with pytest.raises(TreeError, match="2 primals but 1 tangents"):
        jvp(nv.multiply, (1.0, 2.0), (1.0,))
    with pytest.raises(ShapeError, match=r"\(2,\).*\(3,\)"):
        jvp(nv.sin, (nv.ones(2),), (nv.ones(3),))
    with pytest.raises(DtypeError, match="astype"):
        jvp(nv.sin, (nv.ones(2),), (nv.ones(2, dtype=np.float64),))
    with pytest.raises(TreeError, match="structure"):
        jvp(lambda x: x["a"], ({"a": 1.0},), ({"a": 1.0, "b": 2.0},))


def test_branches_and_printing_see_values() -> None:
    def f(x):
        return x * 2 if x > 0 and "array" in repr(x) else x

    assert jvp(f, (3.0,), (1.0,))[1].item() == 2
    assert jvp(f, (-3.0,), (1.0,))[1].item() == 1


def test_forward_mode_is_as_complete_as_reverse_mode() -> None:
    for name, p in TABLE.items():
        forward = p.derivatives or p.jvp or p.linear or p.split
        backward = p.derivatives or p.vjp or p.split
        assert bool(forward) == bool(backward), name
        assert (p.jvp is NOT_DIFFERENTIABLE) == (p.vjp is NOT_DIFFERENTIABLE), name


def test_a_tangent_through_an_assignment() -> None:
    def f(x):
        y = nv.zeros(3)
        y[1] = x * x
        return y

    assert jvp(f, (3.0,), (1.0,))[1].tolist() == [0, 6, 0]


def test_complex_tangents() -> None:
    z, dz = from_numpy(np.complex128(1 + 2j)), from_numpy(np.complex128(1j))
    assert jvp(lambda z: z * z, (z,), (dz,))[1].item() == 2 * (1 + 2j) * 1j
    assert jvp(nv.conj, (z,), (dz,))[1].item() == -1j
    assert jvp(nv.abs, (from_numpy(np.complex128(3 + 4j)),), (dz,))[1].item() == pytest.approx(0.8)
