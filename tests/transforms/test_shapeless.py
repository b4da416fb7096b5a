"""compile(shapeless=True): one recording for any leading size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.size import Size, questions

w = nv.array(np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32))


def batch(n: int) -> Any:
    return nv.array(np.random.default_rng(n).normal(size=(n, 4)).astype(np.float32))


def loss(w: Any, x: Any) -> Any:
    y = nv.tanh(x @ w)
    return ((y - y.mean(axis=0)) ** 2).mean() + nv.zeros((x.shape[0], 2)).sum()


PROGRAMS = {
    "forward": lambda x: nv.softmax(x @ w, axis=-1),
    "mean": lambda x: loss(w, x),
    "gradient": lambda x: nv.grad(loss)(w, x),
    "per example": lambda x: nv.vmap(lambda row: nv.grad(loss)(w, row[None]))(x),
    "scan": lambda x: nv.scan(lambda c, row: (c + row.sum(), row * c), 0.0, x),
    "reshape": lambda x: nv.concatenate([x.reshape(-1), x[:, 0]]),
    "nested": lambda x: nv.compile(lambda x: x.sum(0) * x.shape[0])(x),
}


READING = ("mean", "gradient", "per example", "nested")  # of `x.shape`, in their own code


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_recording_for_any_size(name: str) -> None:
    f, calls = PROGRAMS[name], []

    def counted(x: Any) -> Any:
        calls.append(x._node.aval.shape)  # `x.shape` would be noticed
        return f(x)

    compiled = nv.compile(counted, shapeless=True)
    for n in (5, 8, 3, 1, 17, 8, 64):
        found, expected = compiled(batch(n)), nv.compile(f)(batch(n))
        for a, b in zip(nv.tree.leaves(found), nv.tree.leaves(expected), strict=True):
            assert a.shape == b.shape
            assert np.array_equal(np.asarray(a), np.asarray(b))
    assert calls[:3] == [(5, 4), (8, 4), (4099, 4)]  # then twice to ask what depends on the size
    if name in READING:  # each new size is compared
        assert [n for n, _ in calls[5:]] == [3, 1, 17, 64]
    else:  # NumPy treats an axis of size 1 in its own way; 3 is also the width of `w`
        assert {n for n, _ in calls[5:]} <= {1, 3}


def test_several_arguments_and_other_shapes() -> None:
    compiled = nv.compile(lambda x, y: (x * y[:, None]).sum(), shapeless=True)
    for n in (2, 4, 6, 9):
        assert compiled(nv.ones((n, 4)), nv.ones(n)).item() == 4 * n
    for n in (2, 4, 6):  # another width is another program
        assert compiled(nv.ones((n, 5)), nv.ones(n)).item() == 5 * n


@pytest.mark.parametrize(
    ("f", "why"),
    [
        (lambda x: x.sum() if x.shape[0] < 4 else x.sum() * 2, "numbers of equations"),
        (lambda x: x * nv.array([[i * i] for i in range(x.shape[0])]), "constant array"),
        (lambda x: x * nv.array([[i % 7] for i in range(x.shape[0])]), "something else"),
        (lambda x: x.sum() / float(x.shape[0]) ** 0.5, "constant"),
        (lambda x: x[: x.shape[0] // 2], "do not follow"),
        (lambda x: x[:100], "something else|do not follow"),
    ],
)
def test_what_has_no_one_program(f: Any, why: str) -> None:
    compiled = nv.compile(f, shapeless=True)
    compiled(nv.ones((2, 4)))
    with pytest.raises(nv.ShapeError, match=f"shapeless=True.*{why}"):
        compiled(nv.ones((5, 4)))


def test_a_first_batch_of_one() -> None:
    compiled = nv.compile(nv.grad(lambda x: (x + nv.ones((x.shape[0], 4))).sum()), shapeless=True)
    for n in (1, 4, 6, 1, 9):
        assert compiled(nv.ones((n, 4))).tolist() == [[1.0] * 4] * n


def test_captures_and_gradients_of_it() -> None:
    scale = nv.array(2.0)
    compiled = nv.compile(lambda x: (x * scale).sum(0), shapeless=True)
    for n in (2, 3, 5):
        assert compiled(nv.ones((n, 1))).item() == 2 * n
    scale += 1
    assert compiled(nv.ones((5, 1))).item() == 15
    assert nv.grad(lambda x: compiled(x).sum())(nv.ones((7, 1))).tolist() == [[3.0]] * 7


def test_positions_along_the_leading_axis() -> None:
    def f(x: Any) -> Any:
        n = x.shape[0]
        return x * nv.arange(n)[:, None] + nv.arange(n - 1, -1, -1)[:, None]

    compiled = nv.compile(f, shapeless=True)
    for n in (2, 3, 7, 40):
        np.testing.assert_array_equal(compiled(nv.ones((n, 2))), f(nv.ones((n, 2))))
    assert len(compiled._sizes.bases) == 1


def test_draws_in_a_loop_as_long_as_the_leading_axis() -> None:
    def f(xs: Any) -> Any:
        noisy = nv.scan(lambda c, x: (c + x * nv.random.uniform(), c), nv.zeros(2), xs)
        return noisy, nv.random.uniform()

    compiled = nv.compile(f, shapeless=True)
    for n in (2, 3, 7, 40):
        found = []
        for g in (f, compiled):
            nv.random.seed(n)
            found.append([*nv.tree.leaves(g(nv.ones((n, 2)))), nv.random.uniform()])
        for a, b in zip(*found, strict=True):
            np.testing.assert_array_equal(a, b)


QUESTIONS: dict[str, tuple[Any, tuple[int, ...], int]] = {
    "parity": (lambda x: x * (x.shape[0] % 2), (3, 5, 7), 4),
    "below": (lambda x: x if x.shape[0] < 6 else -x, (10, 20, 8), 3),
    "one size": (lambda x: x if x.shape[0] != 4 else -x, (3, 5, 8), 4),
    "maximum": (lambda x: x * max(x.shape[0], 6), (10, 20, 8), 3),
    "quotient": (lambda x: x * (x.shape[0] // 2 * 2), (10, 20, 8), 7),
    "slice": (lambda x: x[8:], (10, 20, 9), 3),
    "slice from the end": (lambda x: x[-8:], (10, 20, 9), 3),
    "both ends": (lambda x: x[2:-2], (10, 20, 9), 3),
    "set a slice": (lambda x: x.at[2:8].set(0.0), (10, 20, 9), 7),
    "roll": (lambda x: nv.roll(x, 5, 0), (10, 20, 9), 3),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_sizes_at_which_the_function_does_something_else(name: str) -> None:
    f, sizes, other = QUESTIONS[name]
    compiled = nv.compile(f, shapeless=True)

    def called_with(*sizes: int) -> None:
        for n in sizes:
            np.testing.assert_array_equal(compiled(batch(n)), f(batch(n)))

    # Said at once, where the size that it is confirmed at shows it.
    with pytest.raises(nv.ShapeError, match=f"no one program.*({other}|4099)"):
        called_with(*sizes, other)


@pytest.mark.parametrize(
    ("f", "n"),
    [
        (lambda x: x[4], 3),
        (lambda x: x.at[5].set(0.0), 3),
        (lambda x: nv.max(x, 0), 0),
        (lambda x: x.reshape(2, -1)[1:, :8], 1),
        (lambda x: x.astype("int16") * x.shape[0], 70000),
        (lambda x: nv.random.choice(nv.random.key(0), x.shape[0], (2,), replace=False), 1),
    ],
)
def test_errors_and_results_of_sizes_that_are_special(f: Any, n: int) -> None:
    """What the function itself does there, be it an error."""
    compiled = nv.compile(f, shapeless=True)
    for size in (10, 20, 8):
        np.testing.assert_array_equal(compiled(batch(size)), f(batch(size)))

    def told(g: Any) -> Any:
        try:
            return g(batch(n)).tolist()
        except Exception as error:
            return type(error), str(error).partition("[")[0].strip()

    assert told(compiled) == told(f)


def test_a_batch_of_one_loses_its_axis() -> None:
    compiled = nv.compile(lambda x: x.squeeze(), shapeless=True)
    for n in (10, 20, 1, 5, 1):
        assert compiled(batch(n)).shape == ((n, 4) if n > 1 else (4,))


def test_an_error_at_the_size_tried_to_confirm_is_told_so() -> None:
    compiled = nv.compile(lambda x: nv.split(x, 2), shapeless=True)
    compiled(batch(10))
    with pytest.raises(nv.ShapeError, match="size 4099, tried to confirm it, it raises: split"):
        compiled(batch(20))


def test_sizes_note_questions() -> None:
    with questions() as asked:
        n = Size(101)
        m = 2 * n + 3
        assert m == 205 and type(m) is Size and m.affine == (2, 3)
        assert type(m - n) is Size and (m - n).affine == (1, 3)
        assert type(n * n) is int and type(n % 7) is int and type((m - 3) // 2) is Size
        assert (10 - n).affine == (-1, 10) and (-n).affine == (-1, 0)  # type: ignore[attr-defined]
        assert n < m and not n < 50 and n and divmod(n, 2) == (50, 1)
    found = {(q.what, q.left, q.right, q.answer) for q in asked}
    assert ("lt", (1, 0), (0, 50), False) in found and ("mod", (1, 0), (0, 7), 3) in found
    assert ("lt", (1, 0), (2, 3), True) in found and ("ne", (1, 0), (0, 0), True) in found
    below = next(q for q in asked if q.right == (0, 50))
    assert below.holds(50) and not below.holds(49)
    n < 3  # noqa: B015  nobody notes it


TABLE = [1, 2, 3, 4, 5, 6, 7, 8]
USES: dict[str, Any] = {
    "float": lambda x: x * (2 if x.shape[0] < 7.5 else 1),
    "equal float": lambda x: x * (2 if x.shape[0] == 7.0 else 1),
    "quotient": lambda x: x * (2 if x.shape[0] / 2 < 4 else 1),
    "NumPy number": lambda x: x * (2 if x.shape[0] <= np.int64(8) else 1),
    "set": lambda x: x * (5.0 if x.shape[0] in {7} else 1.0),
    "dict of shapes": lambda x: x * {(7, 4): 5.0}.get(x.shape, 1.0),
    "slice of a list": lambda x: x * len(TABLE[: x.shape[0]]),
    "NumPy minimum": lambda x: x * int(np.minimum(len(x), 8)),
    "np.shape": lambda x: x * (2.0 if np.shape(x)[0] in {7} else 1.0),
    "size": lambda x: x * (2.0 if x.size in {28} else 1.0),
}


@pytest.mark.parametrize("name", USES)
def test_sizes_that_the_function_reads_are_traced_and_compared(name: str) -> None:
    f = USES[name]
    compiled = nv.compile(f, shapeless=True)
    for n in (100, 50, 20):
        np.testing.assert_array_equal(compiled(batch(n)), f(batch(n)))
    with pytest.raises(nv.ShapeError, match="no one program"):
        compiled(batch(7))


PAIRS: dict[str, Any] = {
    "means": lambda x, y: x.mean(0) - 2 * y.mean(0),
    "one size": lambda x, y: y.sum(0) * x.shape[0],
    "joined": lambda x, y: nv.concatenate([x, y]).mean(0),
    "product": lambda x, y: x @ y.T,
    "drawn": lambda x, y: nv.random.uniform(nv.random.key(0), (x.shape[0], y.shape[0])),
    "mapped": lambda x, y: nv.vmap(lambda row: (row * y).sum())(x),
}


@pytest.mark.parametrize("name", PAIRS)
def test_two_arguments_of_the_same_and_of_other_sizes(name: str) -> None:
    f, right = PAIRS[name], 0
    generator = np.random.default_rng(0)
    for _ in range(20):
        compiled = nv.compile(f, shapeless=True)
        for n, m in generator.choice([2, 3, 4, 7], (6, 2)):
            x, y = nv.ones((n, 3)), nv.ones((m, 3))
            try:
                found = compiled(x, y)
            except nv.ShapeError:  # it has no one program there
                continue
            np.testing.assert_array_equal(found, f(x, y))
            right += 1
    assert right > 60


clipped = nv.custom_vjp(lambda x: x)
clipped.defvjp(lambda x: (x, None), lambda _, c: (nv.clip(c, -1, 1),))
ruled = nv.custom_jvp(nv.sin)
ruled.defjvps(lambda t, out, x: t * nv.cos(x))
recursive = nv.custom_vjp(nv.sin)
recursive.defvjp(lambda x: (recursive(x), x), lambda x, c: (2 * c * nv.cos(x),))
RULED: dict[str, Any] = {
    "custom_vjp": lambda x: clipped(x).sum(0),
    "its gradient": nv.grad(lambda x: (clipped(x) * 3).sum()),
    "custom_jvp": lambda x: ruled(x).sum(0),
    "in a scan": lambda x: nv.scan(lambda c, r: (c + clipped(r), ruled(r)), x[0], x),
    "recursive": nv.grad(lambda x: recursive(x).sum()),
    "recursive, mapped": nv.vmap(recursive),
    "compiled": nv.grad(lambda x: nv.compile(recursive)(x).sum()),
}


@pytest.mark.parametrize("name", RULED)
def test_custom_rules(name: str) -> None:
    f = RULED[name]
    compiled = nv.compile(f, shapeless=True)
    for n in (2, 3, 7, 1, 20):
        for a, b in zip(nv.tree.leaves(compiled(batch(n))), nv.tree.leaves(f(batch(n))),
                        strict=True):  # fmt: skip
            np.testing.assert_allclose(a, b, rtol=1e-6)
