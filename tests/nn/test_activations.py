"""Activation functions against NumPy formulas, and the layers against the functions."""

import math

import numpy as np
import pytest

import nuvec as nv
import nuvec.nn as nn
from nuvec.nn.layers import activation_layers

X = np.array(
    [-40.0, -7.0, -6.1, -3.2, -1.5, -0.51, -0.49, -0.1, 0.0, 0.1, 0.49, 0.51, 1.5, 3.2, 6.1, 40.0]
)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def erf(x):
    return np.array([math.erf(v) for v in x])


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


EXPECTED = {
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "relu6": lambda x: np.clip(x, 0, 6),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "celu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
    "sigmoid": sigmoid,
    "log_sigmoid": lambda x: -softplus(-x),
    "tanh": np.tanh,
    "softplus": softplus,
    "softsign": lambda x: x / (1 + np.abs(x)),
    "silu": lambda x: x * sigmoid(x),
    "mish": lambda x: x * np.tanh(softplus(x)),
    "gelu": lambda x: x * (1 + erf(x / np.sqrt(2))) / 2,
    "gelu_approx": lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
    "gelu_fast_approx": lambda x: x * sigmoid(1.702 * x),
    "hard_tanh": lambda x: np.clip(x, -1, 1),
    "hard_shrink": lambda x: np.where(np.abs(x) > 0.5, x, 0),
    "softshrink": lambda x: np.where(np.abs(x) > 0.5, x - 0.5 * np.sign(x), 0),
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "step": lambda x: np.where(x > 0, 1.0, 0.0),
    "softmax": softmax,
    "softmin": lambda x: softmax(-x),
    "log_softmax": lambda x: x - x.max() - np.log(np.exp(x - x.max()).sum()),
    "glu": lambda x: x[: len(x) // 2] * sigmoid(x[len(x) // 2 :]),
}

LAYERS = {
    "ReLU": "relu", "ReLU2": "relu2", "ReLU6": "relu6", "LeakyReLU": "leaky_relu", "ELU": "elu",
    "CELU": "celu", "SELU": "selu", "Sigmoid": "sigmoid", "LogSigmoid": "log_sigmoid",
    "Tanh": "tanh", "Softplus": "softplus", "Softsign": "softsign", "SiLU": "silu", "Mish": "mish",
    "GELU": "gelu", "HardTanh": "hard_tanh", "HardShrink": "hard_shrink",
    "Softshrink": "softshrink", "Hardswish": "hardswish", "Step": "step", "Softmax": "softmax",
    "Softmin": "softmin", "LogSoftmax": "log_softmax", "GLU": "glu",
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_function_against_numpy(name):
    function = getattr(nn, name)
    np.testing.assert_allclose(function(nv.array(X)), EXPECTED[name](X), rtol=1e-12, atol=1e-14)
    single = function(nv.array(X.astype(np.float32)))
    assert single.dtype == nv.float32
    np.testing.assert_allclose(single, EXPECTED[name](X), rtol=1e-5, atol=1e-6)
    assert function(nv.array(X).astype(nv.float16)).dtype == nv.float16


@pytest.mark.parametrize("name", sorted(set(EXPECTED) - {"step"}))
def test_gradient_against_finite_differences(name):
    function = getattr(nn, name)
    x = X[(X != 0) & (np.abs(X) < 30)]
    x = x[: len(x) // 2 * 2]
    weights = np.cos(np.arange(len(EXPECTED[name](x))))
    gradient = nv.grad(lambda x: (function(x) * weights).sum())(nv.array(x))
    h = 1e-6
    expected = [
        ((EXPECTED[name](x + h * e) - EXPECTED[name](x - h * e)) * weights).sum() / (2 * h)
        for e in np.eye(len(x))
    ]
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", sorted(set(EXPECTED) - {"softmax", "softmin", "log_softmax"}))
def test_extreme_values_give_no_spurious_nan(name):
    function = getattr(nn, name)
    ends = nv.array([-1e30, -1e4, 1e4, 1e30], dtype="float32")
    _, gradient = nv.value_and_grad(lambda x: function(x).sum())(ends[1:3])
    assert np.isfinite(function(ends[1:3])).all() and np.isfinite(gradient).all()
    if name not in ("step", "glu"):
        assert np.isnan(function(nv.array([np.nan]))).all()


def test_relu_at_its_kink():
    assert nv.grad(lambda x: nn.relu(x).sum())(nv.array([-1.0, 0.0, 1.0])).tolist() == [0, 0, 1]


def test_arguments():
    x = nv.array([-2.0, 1.0])
    assert nn.leaky_relu(x, 0.5).tolist() == [-1, 1]
    assert nn.prelu(x, nv.array([0.25])).tolist() == [-0.5, 1]
    np.testing.assert_allclose(nn.celu(x, 2.0), [2 * np.expm1(-1.0), 1], rtol=1e-6)
    assert nn.hard_tanh(x, -3.0, 0.5).tolist() == [-2, 0.5]
    y = nv.array([[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_allclose(nn.softmax(y, axis=0).sum(axis=0), [1, 1], rtol=1e-6)
    assert nn.glu(y, axis=0).shape == (1, 2)
    with pytest.raises(nv.ShapeError, match="odd"):
        nn.glu(nv.ones(3))


@pytest.mark.parametrize("name", LAYERS)
def test_layer_is_its_function(name):
    layer = getattr(nn, name)()
    x = nv.array(X)
    np.testing.assert_array_equal(layer(x), getattr(nn, LAYERS[name])(x))
    assert layer.parameters() == {} and repr(layer).startswith(f"{name}(")


def test_every_layer_is_tested_and_exported():
    layers = {
        name
        for name, value in vars(activation_layers).items()
        if isinstance(value, type) and value.__module__ == activation_layers.__name__
    }
    assert layers - {"_Activation"} == set(LAYERS) | {"PReLU"}
    assert layers - {"_Activation"} <= set(nn.__all__)


def test_layer_arguments():
    x = nv.array([-2.0, 1.0])
    assert nn.LeakyReLU(0.5)(x).tolist() == [-1, 1]
    assert repr(nn.LeakyReLU(0.5)) == "LeakyReLU(negative_slope=0.5)"
    assert nn.HardTanh(max_val=0.5)(x).tolist() == [-1, 0.5]
    layer = nn.PReLU(2, init=0.5)
    assert layer(x).tolist() == [-1, 1] and layer.weight.shape == (2,)
    grads = nv.grad(lambda layer: layer(x).sum())(layer)
    assert grads.weight.tolist() == [-2, 0]
    np.testing.assert_array_equal(nn.GELU("tanh")(x), nn.gelu_approx(x))
    np.testing.assert_array_equal(nn.GELU("fast")(x), nn.gelu_fast_approx(x))
    with pytest.raises(ValueError, match="approx"):
        nn.GELU("exact")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("value", [np.float64(0.25), nv.array(np.float64(0.25))])
def test_numbers_widen_nothing(dtype, value):
    x = nv.array([-2.0, -0.1, 0.3, 2.0]).astype(dtype)
    for function in [
        nn.leaky_relu, nn.elu, nn.celu, nn.hard_shrink, nn.softshrink, nn.step,
        lambda x, a: nn.hard_tanh(x, -a, a),
    ]:  # fmt: skip
        found = function(x, value)
        assert found.dtype == x.dtype
        np.testing.assert_array_equal(found, function(x, 0.25))
    assert nn.LeakyReLU(np.float64(0.25))(x).dtype == x.dtype
    assert nn.prelu(x, np.float64(0.25)).dtype == x.dtype
