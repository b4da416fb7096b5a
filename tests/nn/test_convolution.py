"""Convolution and pooling layers: shapes, values, draws, gradients, reprs and errors."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import nuvec as nv
import nuvec.nn as nn

CONVOLUTIONS = [nn.Conv1d, nn.Conv2d, nn.Conv3d]
TRANSPOSES = [nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d]
POOLS = [nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d]


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def looped(x: np.ndarray, weight: np.ndarray, stride: int, padding: int) -> np.ndarray:
    """Every output for itself."""
    rank = x.ndim - 2
    padded = np.pad(x, [(0, 0), *[(padding, padding)] * rank, (0, 0)])
    kernel = weight.shape[1:-1]
    outputs = [(n - k) // stride + 1 for n, k in zip(padded.shape[1:-1], kernel, strict=True)]
    out = np.zeros((x.shape[0], *outputs, weight.shape[0]), x.dtype)
    for where in itertools.product(*map(range, outputs)):
        at = [slice(o * stride, o * stride + k) for o, k in zip(where, kernel, strict=True)]
        seen = padded[(slice(None), *at)]
        out[(slice(None), *where)] = np.tensordot(seen, weight, (range(1, rank + 2),) * 2)
    return out


@pytest.mark.parametrize("layer", CONVOLUTIONS)
def test_a_convolution_against_a_loop(layer: Any) -> None:
    rank = layer.rank
    made = layer(3, 4, 2, stride=2, padding=1)
    made.bias = nv.array(numbers(4, seed=1))
    x = numbers(2, *(5, 4, 3)[:rank], 3)
    expected = looped(x, np.asarray(made.weight), 2, 1) + np.asarray(made.bias)
    np.testing.assert_allclose(made(nv.array(x)), expected, rtol=1e-4, atol=1e-5)
    assert made.weight.shape == (4, *(2,) * rank, 3) and made.bias.shape == (4,)
    assert layer(3, 4, 2, bias=False).parameters().keys() == {"weight"}


@pytest.mark.parametrize("layer", CONVOLUTIONS)
def test_draws_and_groups(layer: Any) -> None:
    nv.random.seed(0)
    made = layer(4, 60, 3, groups=2, padding="same", dilation=2)
    bound = 1 / math.sqrt(4 * 3**layer.rank)
    drawn = np.asarray(made.weight)
    assert drawn.shape == (60, *(3,) * layer.rank, 2)
    assert -bound <= drawn.min() < -0.95 * bound and 0.95 * bound < drawn.max() < bound
    assert not np.asarray(made.bias).any()
    x = numbers(1, *(5,) * layer.rank, 4)
    halves = [layer(2, 30, 3, padding="same", dilation=2) for _ in range(2)]
    for g, half in enumerate(halves):
        half.weight = made.weight[30 * g : 30 * g + 30]
    parts = [half(nv.array(x[..., 2 * g : 2 * g + 2])) for g, half in enumerate(halves)]
    joined = nv.concatenate(parts, axis=-1)
    np.testing.assert_allclose(made(nv.array(x)), joined, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layer", TRANSPOSES)
def test_a_transpose_undoes_the_sizes_and_is_the_adjoint(layer: Any) -> None:
    rank = layer.rank
    made = layer(3, 4, 3, stride=2, padding=1, output_padding=1, bias=False)
    x, y = numbers(2, *(4, 3, 2)[:rank], 3), numbers(2, *(8, 6, 4)[:rank], 4, seed=1)
    out = made(nv.array(x))
    assert out.shape == y.shape
    # <W x, y> = <x, W^T y>, the weight with its channels the other way round.
    back = looped(y, np.moveaxis(np.asarray(made.weight), (0, -1), (-1, 0)), 2, 1)
    np.testing.assert_allclose(np.sum(np.asarray(out) * y), np.sum(x * back), rtol=1e-3)


@pytest.mark.parametrize("layer", POOLS)
def test_a_pool_against_a_loop(layer: Any) -> None:
    rank = layer.rank
    x = numbers(2, *(6, 5, 4)[:rank], 3)
    found = np.asarray(layer(3, stride=2, padding=1)(nv.array(x)))
    largest = layer.__name__.startswith("Max")
    padded = np.pad(x, [(0, 0), *[(1, 1)] * rank, (0, 0)],
                    constant_values=-np.inf if largest else 0)  # fmt: skip
    expected = np.empty_like(found)
    for where in itertools.product(*map(range, found.shape[1:-1])):
        seen = padded[(slice(None), *[slice(2 * o, 2 * o + 3) for o in where])]
        fold = np.max if largest else np.mean
        expected[(slice(None), *where)] = fold(seen, axis=tuple(range(1, rank + 1)))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert layer(2)(nv.array(x)).shape == (2, *(3, 2, 2)[:rank], 3)


def test_gradients_of_a_small_network() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2),
                          nn.Conv2d(3, 2, 2), nn.AvgPool2d(2))  # fmt: skip
    x = nv.array(numbers(2, 8, 8, 1).astype(np.float64))
    model = nv.tree.map(lambda p: p.astype(nv.float64), model)
    nv.testing.check_grads(lambda m: (m(x) ** 2).sum(), (model,), order=2)

    def loss(m: Any) -> Any:
        return (m(x) ** 2).sum()

    compiled = nv.compile(nv.value_and_grad(loss))(model)
    for a, b in zip(nv.tree.leaves(compiled), nv.tree.leaves(nv.value_and_grad(loss)(model)),
                    strict=True):  # fmt: skip
        np.testing.assert_array_equal(a, b)


def test_repr() -> None:
    assert repr(nn.Conv2d(4, 6, 3, groups=2, dilation=2, bias=False)) == (
        "Conv2d(4, 6, kernel_size=(3, 3), stride=(1, 1), padding=(0, 0), dilation=(2, 2), "
        "groups=2, bias=False)  # 108 parameters"
    )
    assert repr(nn.ConvTranspose1d(4, 6, 3)) == (
        "ConvTranspose1d(4, 6, kernel_size=3, stride=1, padding=0, dilation=1, output_padding=0, "
        "bias=True)  # 78 parameters"
    )
    assert repr(nn.Conv1d(4, 6, 3, padding="same")).startswith(
        "Conv1d(4, 6, kernel_size=3, stride=1, padding=same"
    )
    assert repr(nn.AvgPool2d(3, (2, 1), 1)) == (
        "AvgPool2d(kernel_size=(3, 3), stride=(2, 1), padding=(1, 1))"
    )
    layer = nn.Conv1d(1, 1, 1)
    assert "weight" in repr(nv.tree.map(lambda x: x.shape, layer))


def test_errors() -> None:
    with pytest.raises(ValueError, match="in_channels must be a positive integer"):
        nn.Conv2d(0, 4, 3)
    with pytest.raises(ValueError, match="groups=3 must divide in_channels=4"):
        nn.Conv2d(4, 6, 3, groups=3)
    with pytest.raises(nv.ShapeError, match="Conv2d's kernel_size is one number or 2"):
        nn.Conv2d(4, 6, (3, 3, 3))
    with pytest.raises(nv.ShapeError, match="Conv1d's stride must be at least 1"):
        nn.Conv1d(4, 6, 3, stride=0)
    with pytest.raises(nv.ShapeError, match=r"needs an input of 4 axes.* 4 channels last"):
        nn.Conv2d(4, 6, 3)(nv.ones((2, 8, 8, 3)))
    with pytest.raises(nv.ShapeError, match="needs an input of 4 axes"):
        nn.Conv2d(4, 6, 3)(nv.ones((8, 8, 4)))
    with pytest.raises(nv.ShapeError, match="MaxPool2d needs an input of 4 axes"):
        nn.MaxPool2d(2)(nv.ones((8, 8, 4)))
    with pytest.raises(nv.ShapeError, match="MaxPool2d's padding must be at least 0"):
        nn.MaxPool2d(2, padding=-1)
