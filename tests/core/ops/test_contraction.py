"""Matrix products against NumPy; what dot_general becomes; its messages."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nuvec as nv
from nuvec.core.errors import AxisError, DtypeError, ShapeError
from nuvec.core.functions.products import inner, outer, tensordot, vdot, vecdot
from nuvec.core.ops.contraction import dot, dot_general, dot_general_p, matmul
from nuvec.transforms.grad import vjp
from nuvec.transforms.vmap import vmap


def _random(rng: Any, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape)


def test_matmul_of_every_broadcast() -> None:
    rng = np.random.default_rng(0)
    batches = [(), (1,), (3,), (2, 1), (1, 3), (2, 3)]
    for bx, by in itertools.product(batches, repeat=2):
        for xs, ys in (((4, 5), (5, 2)), ((1, 5), (5, 1))):
            x, y = _random(rng, *bx, *xs), _random(rng, *by, *ys)
            out = matmul(x, y)
            assert out.shape == (x @ y).shape
            np.testing.assert_allclose(np.asarray(out), x @ y, rtol=1e-12)


def test_vjp_of_every_broadcast_is_the_adjoint() -> None:
    rng = np.random.default_rng(0)
    for bx, by in itertools.product([(), (1,), (3,), (2, 1), (2, 3)], repeat=2):
        x, y = _random(rng, *bx, 4, 5), _random(rng, *by, 5, 2)
        out, pull = vjp(matmul, nv.array(x), nv.array(y))
        c = _random(rng, *out.shape)
        dx, dy = (np.asarray(d) for d in pull(nv.array(c)))
        assert dx.shape == x.shape
        assert dy.shape == y.shape
        # <c, x @ y> is linear in each operand: both pairings give it.
        expected = np.sum(c * (x @ y))
        np.testing.assert_allclose([np.sum(dx * x), np.sum(dy * y)], expected, rtol=1e-9)


def test_random_dot_generals_as_einsum() -> None:
    rng = np.random.default_rng(0)
    for _ in range(150):
        sizes = dict(zip("abcdefg", rng.integers(1, 4, 7), strict=True))
        letters = list(rng.permutation(list("abcdefg")))
        nb, nc, nx, ny = (int(rng.integers(0, 3)) for _ in range(4))
        nb, nc, nx, ny = min(nb, 2), min(nc, 2), min(nx, 1), min(ny, 2)
        batch, contract = letters[:nb], letters[nb : nb + nc]
        fx = letters[nb + nc : nb + nc + nx]
        fy = letters[nb + nc + nx : nb + nc + nx + ny]
        xl, yl = (
            list(rng.permutation(batch + contract + fx)),
            list(rng.permutation(batch + contract + fy)),
        )
        x, y = _random(rng, *(sizes[l] for l in xl)), _random(rng, *(sizes[l] for l in yl))
        out = [*batch, *(l for l in xl if l in fx), *(l for l in yl if l in fy)]
        text = f"{''.join(xl)},{''.join(yl)}->{''.join(out)}"
        axes = [([xl.index(l) for l in ls], [yl.index(l) for l in ls]) for ls in (contract, batch)]
        got = np.asarray(dot_general(x, y, *axes))
        np.testing.assert_allclose(got, np.einsum(text, x, y), rtol=1e-9, atol=1e-12)
        buffer = np.empty(got.shape)
        params = {"contract": tuple(map(tuple, axes[0])), "batch": tuple(map(tuple, axes[1]))}
        assert dot_general_p.lower(x, y, **params, out=buffer) is buffer
        np.testing.assert_array_equal(buffer, got)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bit_floats_accumulate_in_float32(dtype: Any) -> None:
    x = np.ones((1, 8192), dtype)  # by itself either stops counting before
    out = matmul(x, x.T)
    assert out.dtype == dtype
    assert float(np.asarray(out)[0, 0]) == 8192
    wide = matmul(x, x.T, preferred_element_type="float32")
    assert wide.dtype == np.float32


def test_integers_wrap_unless_asked() -> None:
    x = np.full((1, 3), 100, np.int8)
    assert np.asarray(matmul(x, x.T))[0, 0] == np.int8(30000 & 0xFF)
    assert np.asarray(matmul(x, x.T, preferred_element_type="int32"))[0, 0] == 30000
    with pytest.raises(DtypeError, match="cannot hold"):
        matmul(x.astype("f4"), x.T, preferred_element_type="int8")


def test_an_operand_batched_alone_is_no_batch_axis() -> None:
    x, y = nv.ones((6, 2, 3)), nv.ones((3, 4))
    out = vmap(matmul, in_axes=(0, None))(x, y)
    assert out.shape == (6, 2, 4)
    nodes, found = [out._node], []
    while nodes:
        node = nodes.pop()
        if node.primitive is dot_general_p:
            found.append(node.params["batch"])
        nodes.extend(node.inputs)
    assert found == [((), ())]


def test_products_of_numpy() -> None:
    rng = np.random.default_rng(0)
    x, y = _random(rng, 2, 3), _random(rng, 4, 3)
    np.testing.assert_allclose(np.asarray(inner(x, y)), np.inner(x, y))
    np.testing.assert_allclose(np.asarray(outer(x, y)), np.outer(x, y))
    np.testing.assert_allclose(np.asarray(dot(x, y.T)), np.dot(x, y.T))
    np.testing.assert_allclose(np.asarray(dot(x, 2.0)), x * 2)
    a, b = _random(rng, 2, 3, 4), _random(rng, 4, 3, 5)
    for axes in (([1, 2], [1, 0]), (2, 0), ((-1,), (0,)), 0):
        np.testing.assert_allclose(np.asarray(tensordot(a, b, axes)), np.tensordot(a, b, axes))
    z = x + 1j * y[:2]
    np.testing.assert_allclose(np.asarray(vdot(z, x)), np.vdot(z, x))
    np.testing.assert_allclose(np.asarray(vecdot(z, x[0])), np.vecdot(z, x[0]))
    np.testing.assert_allclose(np.asarray(vecdot(a, a[0], axis=-2)), np.vecdot(a, a[0], axis=-2))


# Messages


@pytest.mark.parametrize(("x", "y", "fix"), [
    ((2, 3), (4, 3), r"x @ y\.T"), ((2, 4, 3), (2, 5, 3), r"x @ nv\.swapaxes\(y, -1, -2\)"),
    ((3, 2), (3, 4), r"nv\.swapaxes\(x, -1, -2\) @ y"), ((2, 3), (5, 2), "y @ x fits"),
    ((2, 3), (4,), "must be equal"), ((4,), (3, 2), "must be equal"),
    ((2, 4, 3), (5, 3, 2), "leading axes"), ((), (3,), r"multiply by a scalar with x \* y"),
])  # fmt: skip
def test_matmul_shows_both_shapes_and_a_fix(x: Any, y: Any, fix: str) -> None:
    with pytest.raises(ShapeError, match=fix) as caught:
        matmul(nv.zeros(x), nv.zeros(y))
    assert str(x) in str(caught.value)
    assert str(y) in str(caught.value)


def test_other_messages() -> None:
    x = nv.zeros((2, 3))
    with pytest.raises(ShapeError, match=r"contracts axis 1 of the first \(size 3\) with axis 1"):
        dot_general(x, nv.zeros((3, 4)), ((1,), (1,)))
    with pytest.raises(AxisError, match="twice"):
        dot_general(x, x, ((1,), (1,)), ((1,), (1,)))
    with pytest.raises(ShapeError, match="pairs 1 axes with 2"):
        dot_general(x, x, ((1,), (0, 1)))
    with pytest.raises(ShapeError, match=r"tensordot: axes \(1,\) of shape \(2, 3\)"):
        tensordot(x, x, 1)
    with pytest.raises(AxisError, match="cannot sum over 3 axes"):
        tensordot(x, x, 3)
    with pytest.raises(ShapeError, match=r"inner.*For a matrix product use x @ y"):
        inner(x, nv.zeros((3, 2)))
    with pytest.raises(ShapeError, match="dot: shapes"):
        dot(x, x)
    with pytest.raises(ShapeError, match="6 and 3 elements"):
        vdot(x, nv.zeros(3))
    with pytest.raises(AxisError, match="vecdot"):
        vecdot(x, nv.zeros(3), axis=0)
