"""vectorize: signatures, broadcasting of loop dimensions, excluded arguments, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.errors import ShapeError, TreeError
from nuvec.transforms.vectorize import parse_signature

G = np.random.Generator(np.random.PCG64(0))


def test_signatures() -> None:
    assert parse_signature("(n,m),(m)->(n)") == ([("n", "m"), ("m",)], [("n",)])
    assert parse_signature(" ( n , m ) , () -> (3), (n)") == ([("n", "m"), ()], [("3",), ("n",)])
    assert parse_signature("->(k)") == ([], [("k",)])
    assert parse_signature("(a)->") == ([("a",)], [])
    for wrong in ("(n)", "(n)->(m)->(k)", "n->(m)", "(n)(m)->()", "(n,->()", "((n))->()", "(n)->)"):
        with pytest.raises(ValueError, match="signature"):
            parse_signature(wrong)


LOOPS = [
    ((), ()), ((5,), ()), ((), (5,)), ((2, 1), (5,)), ((1, 5), (2, 1)), ((1,), (1,)),
    ((0,), (1,)), ((4, 1, 3), (2, 1)),
]  # fmt: skip


@pytest.mark.parametrize("loops", LOOPS, ids=str)
def test_a_product_is_numpys(loops: Any) -> None:
    a, b = G.normal(size=(*loops[0], 2, 3)), G.normal(size=(*loops[1], 3))
    calls = []

    def matvec(x: Any, y: Any) -> Any:
        calls.append(1)
        assert (x.shape, y.shape) == ((2, 3), (3,))
        return nv.dot(x, y)

    found = nv.vectorize(matvec, signature="(n,m),(m)->(n)")(a, b)
    np.testing.assert_allclose(found, np.vectorize(np.dot, signature="(n,m),(m)->(n)")(a, b)
                               if 0 not in loops[0] else np.zeros((0, 2)), rtol=1e-12)  # fmt: skip
    assert calls == [1]


def test_scalars_without_a_signature() -> None:
    f = nv.vectorize(lambda x, y: nv.where(x > y, x - y, x + y))
    a, b = G.normal(size=(3, 1)), G.normal(size=4)
    np.testing.assert_allclose(f(a, b), np.where(a > b, a - b, a + b))
    assert f(2.0, 1).item() == 1
    two = nv.vectorize(lambda x: (x, x * 2))
    assert [o.tolist() for o in two(nv.arange(3.0))] == [[0, 1, 2], [0, 2, 4]]


def test_several_outputs_new_and_fixed_sizes() -> None:
    f = nv.vectorize(
        lambda x, y: (nv.outer(x, y), nv.concatenate([x, y]), nv.sum(x)),
        signature="(n),(m)->(n,m),(k),()",
    )
    x, y = G.normal(size=(4, 2)), G.normal(size=(5, 1, 3))
    a, b, c = f(x, y)
    assert (a.shape, b.shape, c.shape) == ((5, 4, 2, 3), (5, 4, 5), (5, 4))
    np.testing.assert_allclose(a, x[:, :, None] * y[:, :, None, :])
    cross = nv.vectorize(lambda u, v: u * v, signature="(3),(3)->(3)")
    assert cross(nv.ones((2, 3)), nv.ones(3)).shape == (2, 3)


def test_keywords_and_excluded() -> None:
    def f(x: Any, y: Any, how: str = "add", *, scale: float = 1.0) -> Any:
        assert isinstance(how, str) and isinstance(scale, float)
        return (x + y if how == "add" else x - y) * scale

    g = nv.vectorize(f, excluded={"how", "scale"})
    a, b = np.arange(3.0), np.arange(2.0)[:, None]
    np.testing.assert_array_equal(g(a, y=b), a + b)
    np.testing.assert_array_equal(g(a, b, "sub"), a - b)
    np.testing.assert_array_equal(g(a, b, how="sub", scale=2.0), (a - b) * 2)
    np.testing.assert_array_equal(nv.vectorize(f, excluded={2})(a, b, "sub"), a - b)
    assert nv.vectorize(f, excluded={"how"}).__name__ == "f"


EXCLUDED: list[set[int | str]] = [{"p"}, {1}, {"p", 1}]
CALLS = {  # of f(x, p, y): what is excluded in the middle, and passed in every way
    "positions": lambda g, x, p, y: g(x, p, y),
    "last by keyword": lambda g, x, p, y: g(x, p, y=y),
    "excluded by keyword": lambda g, x, p, y: g(x, p=p, y=y),
    "keywords": lambda g, x, p, y: g(y=y, p=p, x=x),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("signature", [None, "(),(n)->(n)"])
@pytest.mark.parametrize("excluded", EXCLUDED, ids=["name", "position", "both"])
def test_an_argument_is_excluded_however_it_is_passed(
    excluded: set[int | str], signature: str | None, call: str
) -> None:
    def f(x: Any, p: Any = (1, 2), y: Any = 3.0) -> Any:
        assert isinstance(p, tuple)  # as it was passed
        return x * p[0] + y * p[1]

    x, y = np.arange(6.0).reshape(2, 3), np.arange(3.0)
    g = nv.vectorize(f, excluded=excluded, signature=signature)
    core = y if signature is None else y[:1]
    expected = x * 4 + core * 5 if signature is None else x[..., None] * 4 + core * 5
    np.testing.assert_array_equal(CALLS[call](g, x, (4, 5), core), expected)


@pytest.mark.parametrize("excluded", EXCLUDED, ids=["name", "position", "both"])
def test_an_excluded_argument_may_be_left_out(excluded: set[int | str]) -> None:
    def f(x: Any, p: Any = (1, 2), y: Any = 3.0) -> Any:
        return x * p[0] + y * p[1]

    x = np.arange(3.0)
    g = nv.vectorize(f, excluded=excluded)
    np.testing.assert_array_equal(g(x), x + 6)
    np.testing.assert_array_equal(g(x, y=x[:, None]), x + 2 * x[:, None])
    np.testing.assert_array_equal(g(y=x, x=1), 1 + 2 * x)


def test_keyword_only_arguments_and_those_without_a_name() -> None:
    def f(*xs: Any, scale: Any = 1.0, **rest: Any) -> Any:
        assert xs[1] == "text" and rest.get("how") in (None, "up")
        return xs[0] * scale + rest.get("shift", 0.0)

    x = np.arange(3.0)
    g = nv.vectorize(f, excluded={1, "how"})
    np.testing.assert_array_equal(g(x, "text", scale=x), x * x)
    np.testing.assert_array_equal(g(x, "text", how="up", shift=x[:, None]), x + x[:, None])
    with_core = nv.vectorize(f, excluded={1, "how"}, signature="(),(n)->(n)")
    np.testing.assert_array_equal(with_core(x, "text", scale=x), x[:, None] * x)


def test_numpys_own_example_of_excluded() -> None:
    def mypolyval(p: Any, x: Any) -> Any:
        result = p[0]
        for c in p[1:]:
            result = result * x + c
        return result

    for excluded in ({0}, {"p"}):
        g = nv.vectorize(mypolyval, excluded=excluded)
        assert g([1, 2, 3], x=np.array([0, 1])).tolist() == [3, 6]
        assert g(p=[1, 2, 3], x=np.array([0, 1])).tolist() == [3, 6]


@pytest.mark.parametrize(
    ("excluded", "text"),
    [
        ({-1}, "excluded must be positions or argument names, got -1"),
        ({True}, "excluded must be positions or argument names, got True"),
        ("how", r"excluded must be a set .* got 'how'; write \{'how'\}"),
        (1, r"excluded must be a set .* got 1; write \{1\}"),
        ({2}, r"excluded=\{2\} names \[2\], and the arguments are \['x', 'y'\]"),
        ({"hwo"}, r"names \['hwo'\], and the arguments are \['x', 'y'\]"),
    ],
    ids=str,
)
def test_what_cannot_be_excluded(excluded: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        nv.vectorize(lambda x, y: x + y, excluded=excluded)


def test_under_transforms() -> None:
    f = nv.vectorize(lambda m, v: nv.sum(nv.sin(m @ v)), signature="(n,m),(m)->()")
    a, b = G.normal(size=(4, 1, 2, 3)), G.normal(size=(5, 3))
    dense = lambda m: nv.sum(nv.sin(nv.einsum("aijk,bk->abj", m, b)))  # noqa: E731
    np.testing.assert_allclose(nv.grad(lambda m: nv.sum(f(m, b)))(a), nv.grad(dense)(a), rtol=1e-12)
    np.testing.assert_allclose(nv.compile(f)(a, b), f(a, b), rtol=1e-12)
    np.testing.assert_allclose(nv.vmap(f, in_axes=(0, None))(a, b), f(a, b), rtol=1e-12)


def test_errors_name_the_argument_and_the_dimension() -> None:
    def f(mat: Any, vec: Any) -> Any:
        return mat @ vec

    g = nv.vectorize(f, signature="(n,m),(m)->(n)")
    one = np.ones
    for args, text in (
        ((one((2, 3)), one(4)), r"dimension 'm' has size 4 in vec and 3 in mat"),
        ((one(3), one(3)), r"mat has shape \(3,\), and its core dimensions \(n,m\) need"),
        ((one((5, 2, 3)), one((4, 3))), r"loop dimension -1 has size 5 in mat and 4 in vec"),
    ):
        with pytest.raises(ShapeError, match=text):
            g(*args)
    with pytest.raises(TypeError, match=r"has 2 arguments, and the call 1 \(mat\)"):
        nv.vectorize(lambda mat: mat, signature="(n,m),(m)->(n)")(one((2, 2)))
    with pytest.raises(ShapeError, match=r"output 0 has shape \(2,\) for one element.*\(n,k\)"):
        nv.vectorize(f, signature="(n,m),(m)->(n,k)")(one((2, 3)), one(3))
    with pytest.raises(ShapeError, match=r"'m' has size 2 in output 0 and 3 in mat"):
        nv.vectorize(f, signature="(n,m),(m)->(m)")(one((2, 3)), one(3))
    with pytest.raises(TreeError, match="returned 1 outputs, and the signature has 2"):
        nv.vectorize(f, signature="(n,m),(m)->(n),()")(one((2, 3)), one(3))
    with pytest.raises(ShapeError, match="'3' has size 2 in u and 3 in the signature"):
        nv.vectorize(lambda u: u, signature="(3)->(3)")(one(2))
    with pytest.raises(TypeError, match="vectorize takes a function"):
        nv.vectorize(3)  # type: ignore[arg-type]
