"""NumPy's functions called on Arrays: every way to pass the arguments, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import nuvec as nv

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 1.5

CALLS = [
    lambda x: np.sum(a=x),
    lambda x: np.sum(x, 0, None, None, True),
    lambda x: np.sum(x, axis=1, initial=2.0, where=X > 0),
    lambda x: np.prod(x, 0, initial=2.0, where=X > 0),
    lambda x: np.max(x, axis=0, initial=0.0),
    lambda x: np.min(a=x, axis=(0, 1), keepdims=True, initial=0.0, where=X > 0),
    lambda x: np.mean(x, 0, None, None, True),
    lambda x: np.std(a=x, axis=0, ddof=1),
    lambda x: np.var(x, correction=1),
    lambda x: np.any(x, 0, None, True),
    lambda x: np.argmax(a=x, axis=0, keepdims=True),
    lambda x: np.clip(x, a_min=-1, a_max=1),
    lambda x: np.clip(x, min=-1, max=1),
    lambda x: np.clip(x, -1, 1),
    lambda x: np.round(a=x, decimals=1),
    lambda x: np.reshape(x, (3, 2), order="C"),
    lambda x: np.reshape(x, shape=-1),
    lambda x: np.ravel(a=x, order="C"),
    lambda x: np.transpose(a=x, axes=(1, 0)),
    lambda x: np.flip(m=x, axis=0),
    lambda x: np.rot90(m=x, k=1),
    lambda x: np.tril(m=x, k=-1),
    lambda x: np.tile(A=x, reps=(2, 1)),
    lambda x: np.repeat(a=x, repeats=2, axis=0),
    lambda x: np.roll(a=x, shift=1, axis=1),
    lambda x: np.split(ary=x, indices_or_sections=3, axis=1)[1],
    lambda x: np.broadcast_to(array=x, shape=(2, 2, 3), subok=True),
    lambda x: np.take(a=x, indices=[1], axis=0, out=None),
    lambda x: np.take_along_axis(arr=x, indices=np.array([[1], [0]]), axis=1),
    lambda x: np.pad(array=x, pad_width=1, mode="constant", constant_values=3),
    lambda x: np.outer(a=x, b=x),
    lambda x: np.tensordot(a=x, b=x.T, axes=1),
    lambda x: np.dot(a=x, b=x.T),
    lambda x: np.einsum("ij,ij->i", x, x, optimize=False),
    lambda x: np.concatenate((x, x), 1, None, dtype="f8", casting="same_kind"),
    lambda x: np.stack(arrays=[x, x], axis=-1),
    lambda x: np.vstack(tup=[x, x]),
    lambda x: np.full_like(a=x, fill_value=2, order="K", subok=True),
    lambda x: np.zeros_like(x, dtype=np.float64, shape=(2,), device="cpu"),
    lambda x: np.empty_like(prototype=x).shape if False else np.ones_like(a=x),
    lambda x: np.copy(a=x, order="K"),
    lambda x: np.average(a=x, axis=0, weights=np.float32([1, 2])),
    lambda x: np.allclose(a=x, b=x),
    lambda x: np.array_equal(a1=x, a2=x),
    lambda x: np.isclose(a=x, b=x, rtol=1e-3),
    lambda x: np.meshgrid(x[0], x[1], indexing="ij")[1],
    lambda x: np.where(x > 0, x, 0),
    lambda x: np.linalg.norm(x=x, ord=2, axis=1),
    lambda x: np.add.reduce(x, axis=1, initial=1.0, where=X > 0),
    lambda x: np.real(val=x),
    lambda x: np.linspace(start=x[0], stop=x[1], num=3, endpoint=False),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda c: str(c.__code__.co_firstlineno))
def test_calls_as_numpys(call):
    expected = np.asarray(call(X))
    out = call(nv.array(X))
    assert isinstance(out, nv.Array)
    assert out.shape == expected.shape
    np.testing.assert_allclose(np.asarray(out), expected, rtol=1e-6)


REFUSED = [
    (lambda x: np.sum(x, out=np.ones(())), r"np\.sum.*out="),
    (lambda x: np.add(x, 1, out=np.ones((2, 3))), r"np\.add.*out="),
    (lambda x: np.mean(x, where=X > 0), r"np\.mean.*where.*nv\.where"),
    (lambda x: np.add(x, 1, where=X > 0), r"np\.add.*where.*nv\.where"),
    (lambda x: np.ravel(x, order="F"), r"np\.ravel.*order='F'.*transpose"),
    (lambda x: np.reshape(x, (3, 2), order="F"), r"np\.reshape.*order='F'"),
    (lambda x: np.var(x, mean=1.0), r"np\.var.*mean"),
    (lambda x: np.concatenate([x], casting="no"), r"np\.concatenate.*casting='no'.*astype"),
    (lambda x: np.pad(x, 1, mode="linear_ramp", end_values=2), r"np\.pad.*end_values"),
    (lambda x: np.clip(x, 0, 1, max=2), r"np\.clip.*max"),
    (lambda x: np.put_along_axis(x, np.array([[0]]), 1, 1), r"np\.put_along_axis.*nv\.put_along"),
    (lambda x: np.where(x > 0), r"np\.where.*nv\.where"),
    (lambda x: np.nansum(x), r"no function for np\.nansum"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=lambda c: "")
def test_what_is_refused_says_so(call, message):
    with pytest.raises(TypeError, match=message):
        call(nv.array(X))


def test_gradients_flow_through_numpys_names():
    gradient = nv.grad(lambda x: np.sum(a=np.clip(x, a_min=0, a_max=None), where=X > 1))
    assert gradient(nv.array(X)).tolist() == (X > 1).astype(float).tolist()


def test_where_and_initial():
    x, mask = nv.array(X), nv.array(X > 0)
    assert float(x.sum(where=mask, initial=1)) == 1 + X[X > 0].sum()
    assert float(nv.max(x[:0], initial=-3.0)) == -3
    assert nv.min(x[:, :0], axis=1, keepdims=True, initial=2).tolist() == [[2], [2]]
    assert int(nv.sum(nv.array([True, True]), where=nv.array([True, False]))) == 1
    assert nv.sum(nv.array([np.inf, 1.0]), where=nv.array([False, True])).tolist() == 1
    with pytest.raises(ValueError, match="initial"):
        nv.max(x, where=mask)
