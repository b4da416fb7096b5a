"""einsum against np.einsum, on chosen and on random subscripts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.errors import ShapeError
from nuvec.core.functions.einsum import einsum, einsum_path
from nuvec.transforms.compile import compile
from nuvec.transforms.grad import grad
from nuvec.transforms.vmap import vmap

_SIZES = {"a": 2, "b": 3, "c": 1, "d": 4}


def _random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize(("text", "shapes"), [
    ("ii->i", [(3, 3)]), ("ii", [(3, 3)]), ("ij->ji", [(2, 3)]), ("ij->", [(2, 3)]),
    ("ij->j", [(2, 3)]), ("iij->ji", [(3, 3, 2)]), ("iii->i", [(3, 3, 3)]), ("->", [()]),
    ("ba", [(2, 3)]), ("i,i", [(3,), (3,)]), ("i,j", [(3,), (2,)]), ("i,i->i", [(3,), (3,)]),
    ("ij,jk", [(2, 3), (3, 4)]), ("ij,jk->ki", [(2, 3), (3, 4)]), ("ij,kj->ik", [(2, 3), (4, 3)]),
    ("bij,bjk->bik", [(5, 2, 3), (5, 3, 4)]), ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
    ("...ij,...jk->...ik", [(5, 2, 3), (3, 4)]), ("...ij,...jk", [(5, 1, 2, 3), (6, 3, 4)]),
    ("i...->...", [(2, 3, 4)]), ("...", [(2, 3)]), ("...i->i...", [(2, 3, 4)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]), ("ij,jk,ki->", [(2, 3), (3, 4), (4, 2)]),
    ("ea,fb,abcd,gc,hd->efgh", [(2, 3), (2, 3), (3, 3, 3, 3), (2, 3), (2, 3)]),
    ("ij,ij,ij->ij", [(2, 3)] * 3), ("ii,jj->ij", [(3, 3), (2, 2)]), ("ij,jk", [(2, 1), (3, 4)]),
    ("ij,i->i", [(2, 3), (1,)]), ("ij,jk->ik", [(2, 0), (0, 3)]),
    ("i j , j k -> i k", [(2, 3), (3, 4)]),
    ("iij,jk->ik", [(3, 3, 2), (2, 4)]), ("ij,kl->", [(2, 3), (4, 5)]),
])  # fmt: skip
def test_chosen_subscripts(text: str, shapes: list[tuple[int, ...]]) -> None:
    operands = [_random(*s, seed=k) for k, s in enumerate(shapes)]
    expected = np.einsum(text, *operands)
    for optimize in (True, False, "optimal"):
        got = np.asarray(einsum(text, *operands, optimize=optimize))
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


def _random_case(rng: Any) -> tuple[str, list[np.ndarray]]:
    terms, operands = [], []
    dots = rng.random() < 0.3
    for _ in range(int(rng.integers(1, 4))):
        labels = "".join(rng.choice(list(_SIZES), size=int(rng.integers(0, 4))))
        shape = [
            _SIZES[l] if labels.count(l) > 1 or rng.random() < 0.9 else 1 for l in labels
        ]  # size 1 broadcasts
        if dots and rng.random() < 0.8:
            at, count = int(rng.integers(0, len(labels) + 1)), int(rng.integers(0, 3))
            hidden = [n if rng.random() < 0.7 else 1 for n in (2, 3)[2 - count :]]
            labels = labels[:at] + "..." + labels[at:]
            shape[at:at] = hidden
        terms.append(labels)
        operands.append(rng.standard_normal(shape))
    text = ",".join(terms)
    if rng.random() < 0.7:
        output = [l for l in sorted(set(text) - set(",.")) if rng.random() < 0.5]
        rng.shuffle(output)
        text += "->" + ("..." if "..." in text else "") + "".join(output)
    return text, operands


def test_random_subscripts() -> None:
    rng = np.random.default_rng(0)
    for _ in range(400):
        text, operands = _random_case(rng)
        expected = np.asarray(np.einsum(text, *operands))
        got = np.asarray(einsum(text, *operands))
        assert got.shape == expected.shape, text
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-10, err_msg=text)


def test_sublists() -> None:
    x, y = _random(2, 3), _random(3, 4)
    got = np.asarray(einsum(x, [0, 1], y, [1, 2], [2, 0]))
    np.testing.assert_allclose(got, np.einsum(x, [0, 1], y, [1, 2], [2, 0]))
    got = np.asarray(einsum(x, [Ellipsis, 7], y, [7, 60]))
    np.testing.assert_allclose(got, x @ y)


def test_dtypes() -> None:
    flags = _random(3, 4) > 0
    assert np.array_equal(np.asarray(einsum("ij->j", flags)), flags.any(0))
    ints = np.arange(6).reshape(2, 3)
    assert np.array_equal(np.asarray(einsum("ij,kj->ik", ints, ints)), ints @ ints.T)
    half = np.ones((1, 8192), np.float16)
    assert float(np.asarray(einsum("ij,ij->i", half, half))[0]) == 8192
    assert einsum("i,i->i", np.float32([1]), np.int64([1])).dtype == np.float32


def test_under_transforms() -> None:
    x, y = nv.array(_random(2, 3, 3)), nv.array(_random(3, 4))

    def f(x: Any, y: Any) -> Any:
        return einsum("bii,ij->bj", x, y)

    dx, dy = grad(lambda x, y: f(x, y).sum(), argnums=(0, 1))(x, y)
    expected = np.zeros((2, 3, 3))
    expected[:, range(3), range(3)] = np.asarray(y).sum(1)
    np.testing.assert_allclose(np.asarray(dx), expected, rtol=1e-12)
    diagonals = np.asarray(x)[:, range(3), range(3)].sum(0)
    np.testing.assert_allclose(np.asarray(dy), np.repeat(diagonals[:, None], 4, 1), rtol=1e-12)
    batched = vmap(lambda x: einsum("ii,ij->j", x, y))(x)
    np.testing.assert_allclose(np.asarray(batched), np.asarray(f(x, y)), rtol=1e-12)
    np.testing.assert_allclose(np.asarray(compile(f)(x, y)), np.asarray(f(x, y)), rtol=1e-12)


def test_path() -> None:
    path, text = einsum_path("ij,jk,kl->il", _random(2, 30), _random(30, 40), _random(40, 2))
    assert path[0] == "einsum_path"
    assert "il" in text
    x = [_random(2, 3), _random(3, 4), _random(4, 2)]
    got = np.asarray(einsum("ij,jk,kl->il", *x, optimize=["einsum_path", (1, 2), (0, 1)]))
    np.testing.assert_allclose(got, x[0] @ x[1] @ x[2])


@pytest.mark.parametrize(("args", "message"), [
    (("ij,jk", (2, 3), (4, 5)), r"label 'j' has size 3 in an operand of shape \(2, 3\) and size 4"),
    (("ij", (2, 3, 4)), r"'ij' names 2 axes, and the operand of shape \(2, 3, 4\) has 3"),
    (("ijk", (2, 3)), "names 3 axes"), (("ij,jk", (2, 3)), "names 2 operands, and 1 are given"),
    (("ij->k", (2, 3)), "'k' of the output is in no operand"),
    (("ij->ii", (2, 3)), "'i' stands twice in the output"), (("i1", (2, 3)), "'1' in 'i1'"),
    (("i...->i", (2, 3)), "write '...' there too"), (("ii", (2, 3)), "label 'i' has size 2"),
])  # fmt: skip
def test_messages(args: Any, message: str) -> None:
    text, *shapes = args
    with pytest.raises(ValueError, match=message):
        einsum(text, *[nv.zeros(s) for s in shapes])


def test_no_operands() -> None:
    with pytest.raises(TypeError, match="needs operands"):
        einsum("ij")
    with pytest.raises(TypeError, match="needs subscripts"):
        einsum()
    with pytest.raises(ShapeError):
        einsum("ij", nv.zeros(2))
