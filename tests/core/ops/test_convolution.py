"""Convolutions: against numbers of another library, arguments, errors, and how they are cut up.

Rows in tests/cases/convolution.py hold each rule against the formula."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.errors import DtypeError, ShapeError
from nuvec.core.functions.convolution import conv1d, conv2d, conv3d, conv_general
from nuvec.core.ops import columns
from tests.cases.convolution import direct


def ramp(shape: tuple[int, ...], step: int) -> np.ndarray:
    """Whole numbers, so that every sum below is exact."""
    return (np.arange(np.prod(shape)) * step % 11 - 5.0).reshape(shape)


def number(x: Any) -> int:
    x = np.asarray(x)
    return int(np.sum(x * ramp(x.shape, 5)))


# Input, weight, options; and what PyTorch 2.13 gives in float64 (inputs dilated and kernels flipped
# by hand, channels moved): the result's shape, and `number` of it and of both gradients.
# fmt: off
GOLDEN: list[Any] = [
    ((2, 9, 4), (6, 3, 4), {},
     (2, 7, 6), -526, -1448, -640),
    ((2, 9, 4), (6, 3, 2), {"stride": 2, "padding": 1, "groups": 2},
     (2, 5, 6), -17, 519, 295),
    ((2, 8, 7, 3), (5, 3, 2, 3), {"stride": (2, 1), "padding": (1, 2), "kernel_dilation": (1, 2)},
     (2, 4, 9, 5), 518, 2118, 1014),
    ((2, 8, 7, 4), (6, 3, 3, 2), {"padding": 1, "groups": 2, "kernel_dilation": 2},
     (2, 6, 5, 6), -288, 1704, -277),
    ((2, 5, 6, 3), (4, 3, 3, 3), {"padding": ((1, 2), (0, 3))},
     (2, 4, 9, 4), 2396, -1215, -2236),
    ((2, 5, 6, 3), (4, 3, 3, 3), {"padding": 1, "input_dilation": 2},
     (2, 9, 11, 4), 383, -1170, 773),
    ((2, 5, 6, 3), (4, 3, 3, 3),
     {"stride": (1, 2), "padding": 1, "input_dilation": (2, 3), "flip": True},
     (2, 9, 8, 4), -406, 1777, 436),
    ((2, 5, 6, 3), (4, 2, 3, 3), {"padding": ((1, 2), (2, 0)), "kernel_dilation": (1, 2),
                                  "input_dilation": (2, 1), "flip": True},
     (2, 11, 4, 4), -739, -6219, 34),
    ((2, 5, 6, 8), (16, 3, 3, 1), {"padding": 1, "groups": 8},
     (2, 5, 6, 16), 3384, -1385, -3546),
    ((2, 6, 5, 1), (3, 3, 3, 1), {"stride": 2, "padding": 1},
     (2, 3, 3, 3), -714, -784, 241),
    ((1, 4, 5, 6, 2), (3, 2, 3, 2, 2), {"stride": (1, 2, 1), "padding": 1},
     (1, 5, 3, 7, 3), 6197, -2790, 247),
    ((1, 4, 5, 6, 2), (3, 2, 2, 2, 2), {"padding": 1, "input_dilation": 2, "flip": True},
     (1, 8, 10, 12, 3), 28, -326, 1065),
]
# fmt: on


@pytest.mark.parametrize(("x", "weight", "options", "shape", "out", "dx", "dw"), GOLDEN)
def test_golden_numbers(
    x: Any, weight: Any, options: Any, shape: Any, out: int, dx: int, dw: int
) -> None:
    given = nv.array(ramp(x, 7)), nv.array(ramp(weight, 3))
    y, pull = nv.vjp(lambda x, w: conv_general(x, w, **options), *given)
    assert y.shape == shape and number(y) == out
    assert tuple(map(number, pull(nv.array(ramp(shape, 2))))) == (dx, dw)


def test_golden_numbers_of_transposes() -> None:
    # PyTorch's conv_transpose2d of the same arrays, stride 2, padding 1 and output_padding 1.
    x, weight = ramp((2, 3, 4, 3), 7), ramp((5, 3, 3, 3), 3)
    y = nv.conv_transpose2d(x, weight, stride=2, padding=1, output_padding=1)
    assert y.shape == (2, 6, 8, 5) and number(y) == 365


# Arguments


def test_padding_takes_every_form() -> None:
    x, w = nv.array(ramp((1, 7, 8, 2), 7)), nv.array(ramp((3, 3, 2, 2), 3))
    for padding, pair in (
        (1, ((1, 1), (1, 1))), ([1, 2], ((1, 2), (1, 2))), ((2, 0), ((2, 0), (2, 0))),
        (([1, 0], [0, 2]), ((1, 0), (0, 2))), ([(1, 0), 2], ((1, 0), (2, 2))),
        ("valid", ((0, 0), (0, 0))), ("same", ((1, 0), (1, 1))), ("SAME", ((1, 0), (1, 1))),
    ):  # fmt: skip
        found = conv_general(x, w, padding=padding)
        one = (1, 1)
        np.testing.assert_array_equal(
            found, direct(np.asarray(x), np.asarray(w), one, pair, one, one)
        )


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
def test_same_padding_keeps_the_size(stride: int, dilation: int) -> None:
    x, w = nv.ones((1, 10, 7, 1)), nv.ones((1, 3, 4, 1))
    y = conv_general(x, w, stride=stride, padding="same", kernel_dilation=dilation)
    assert y.shape[1:3] == (-(-10 // stride), -(-7 // stride))


def test_integers_and_mixed_dtypes() -> None:
    x, w = nv.array([[[1], [2], [3]]], dtype=nv.int8), nv.array([[[1], [1]]], dtype=nv.int8)
    np.testing.assert_array_equal(conv1d(x, w), [[[3], [5]]])
    assert conv1d(x, w).dtype == nv.int8
    assert conv1d(x, w.astype(nv.float16)).dtype == nv.float16
    with pytest.raises(DtypeError, match="booleans have no arithmetic"):
        conv1d(x > 1, w > 0)


def test_half_precision_accumulates_in_float32() -> None:
    x, w = nv.ones((1, 1, 4096), dtype=nv.float16), nv.ones((1, 1, 4096), dtype=nv.float16)
    assert np.asarray(conv1d(x, w))[0, 0, 0] == 4096  # float16 sums stop at 2048
    tall = nv.ones((1, 4096, 1), dtype=nv.bfloat16)
    grad = nv.grad(lambda w: conv1d(tall, w).sum())(nv.ones((1, 1, 1), dtype=nv.bfloat16))
    assert float(grad[0, 0, 0]) == 4096  # bfloat16 sums stop at 256


# Errors


def test_errors() -> None:
    x, w = nv.ones((2, 8, 8, 4)), nv.ones((6, 3, 3, 4))
    with pytest.raises(ShapeError, match="one spatial axis or more, got an input of shape"):
        conv_general(nv.ones((2, 4)), nv.ones((6, 4)))
    with pytest.raises(ShapeError, match=r"\(N, L, C\).* of 3 axes each"):
        conv1d(x, w)
    with pytest.raises(ShapeError, match=r"\(N, D, H, W, C\)"):
        conv3d(x, w)
    with pytest.raises(ShapeError, match=r"conv2d: .* 4 channels; .* size 4, and has 3"):
        conv2d(x, nv.ones((6, 3, 3, 3)))
    with pytest.raises(ShapeError, match=r"4 channels in 2 groups of 2; .* size 2, and has 4"):
        conv2d(x, w, groups=2)
    with pytest.raises(ShapeError, match="groups=4 must divide"):
        conv2d(x, nv.ones((6, 3, 3, 1)), groups=4)
    with pytest.raises(ShapeError, match="groups must be at least 1"):
        conv2d(x, w, groups=0)
    with pytest.raises(ShapeError, match=r"extends over \(9, 3\) positions.*pad more"):
        conv2d(x, nv.ones((6, 9, 3, 4)))
    with pytest.raises(ShapeError, match="stride must be at least 1"):
        conv2d(x, w, stride=0)
    with pytest.raises(ShapeError, match="one number or 2, one for each spatial axis"):
        conv2d(x, w, stride=(1, 2, 3))
    with pytest.raises(TypeError, match="stride is an integer"):
        conv2d(x, w, stride=1.5)  # type: ignore[arg-type]
    x = nv.ones((1, 4, 4, 2))
    with pytest.raises(ShapeError, match=r"\(8, 8\) positions, .*\(5, 5\).*less padding"):
        nv.conv_transpose2d(x, nv.ones((3, 2, 2, 2)), stride=2, padding=5)
    with pytest.raises(
        ShapeError, match=r"output_padding \(2, 1\) must be smaller than .*\(2, 2\)"
    ):
        nv.conv_transpose2d(x, nv.ones((3, 2, 2, 2)), stride=2, output_padding=(2, 1))
    dilated = nv.conv_transpose2d(x, nv.ones((3, 2, 2, 2)), dilation=2, output_padding=1)
    assert dilated.shape == (1, 7, 7, 3)
    with pytest.raises(ValueError, match="neither 'same' nor 'valid'"):
        conv2d(x, w, padding="full")
    with pytest.raises(ShapeError, match="a number, one for each axis or a pair"):
        conv2d(x, w, padding=((1, 1), (1, 1), (1, 1)))


# How it is cut up


@pytest.mark.parametrize("piece", [1, 500, 4000])
@pytest.mark.parametrize("channels", [2, 5])
def test_pieces_of_any_size_give_the_same(
    piece: int, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w = ramp((3, 6, 5, channels), 7), ramp((4, 3, 3, channels), 3)

    def results() -> list[Any]:
        y, pull = nv.vjp(lambda x, w: conv2d(x, w, 2, 1), nv.array(x), nv.array(w))
        return [np.asarray(a) for a in (y, *pull(y))]

    whole = results()
    monkeypatch.setattr(columns, "PIECE", piece)
    for a, b in zip(results(), whole, strict=True):
        np.testing.assert_array_equal(a, b)


def test_phases_cover_every_output_once() -> None:
    for s, low, m, d, n, k in itertools.product(
        (1, 2, 3), (-1, 2), (1, 2), (1, 2, 4), (5,), (1, 3)
    ):
        window = columns.Window((s,), (low,), (m,), (d,), 1, False)
        met = set()
        for phase in columns.phases(window, (n,), (k,))[0]:
            for j, o in enumerate(range(n)[phase.outputs[0]]):
                for t, tap in enumerate(range(k)[phase.taps[0]]):
                    at = j * phase.stride[0] + t * phase.dilation[0] - phase.low[0]
                    met.add((o, tap, at))
        positions = {(o, t): o * s + t * m - low for o in range(n) for t in range(k)}
        assert met == {(o, t, p // d) for (o, t), p in positions.items() if p % d == 0}


def test_many_groups_at_once_and_few_one_by_one_agree() -> None:
    x, w = ramp((2, 5, 4, 6), 7), ramp((12, 3, 2, 1), 3)
    y = conv2d(x, w, groups=6, padding=1)
    parts = [conv2d(x[..., g : g + 1], w[2 * g : 2 * g + 2], padding=1) for g in range(6)]
    np.testing.assert_array_equal(y, nv.concatenate(parts, axis=-1))


def test_per_example_gradients_of_a_weight() -> None:
    x, w = nv.array(ramp((3, 6, 5, 2), 7)), nv.array(ramp((4, 3, 3, 2), 3))

    def loss(w: Any, x: Any) -> Any:
        return (conv2d(x[None], w, padding=1) ** 2).sum()

    each = nv.vmap(nv.grad(loss), in_axes=(None, 0))(w, x)
    np.testing.assert_array_equal(each, nv.stack([nv.grad(loss)(w, x[i]) for i in range(3)]))


def test_large_convolutions_have_the_same_bits_for_any_number_of_threads() -> None:
    random = np.random.Generator(np.random.PCG64(0))
    x = nv.array(random.standard_normal((9, 28, 28, 32)).astype(np.float32))
    weight = nv.array(random.standard_normal((64, 3, 3, 32)).astype(np.float32))

    def loss(x, weight):
        return (nv.conv2d(x, weight, padding=1) ** 2).sum()

    results = []
    for threads in (1, 2, 3):
        with nv.config.override(threads=threads):
            value, gradients = nv.value_and_grad(loss, argnums=(0, 1))(x, weight)
            results.append([np.asarray(v).tobytes() for v in (value, *gradients)])
    assert results[0] == results[1] == results[2]
