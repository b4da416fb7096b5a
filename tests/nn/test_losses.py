"""Losses against NumPy."""

import numpy as np
import pytest

import nuvec as nv
import nuvec.nn as nn

LOGITS = np.array([[2.0, -1.0, 0.5], [-1.0, 2.0, 1000.0], [0.0, 0.0, 0.0], [3.0, 1.0, -2.0]])
CLASSES = np.array([0, 2, 1, 1])
PROBABILITIES = np.array([[1.0, 0.0, 0.0], [0.2, 0.3, 0.5], [0.5, 0.5, 0.0], [0.1, 0.1, 0.8]])


def log_softmax(x, axis=-1):
    x = x - x.max(axis=axis, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=axis, keepdims=True))


def one_hot(classes):
    return np.eye(3)[classes]


@pytest.mark.parametrize("targets", [CLASSES, CLASSES.astype(np.uint8), PROBABILITIES])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_cross_entropy(targets, smoothing, reduction):
    p = targets if targets.ndim == 2 else one_hot(targets)
    p = (1 - smoothing) * p + smoothing / 3
    expected = -(p * log_softmax(LOGITS)).sum(axis=-1)
    expected = {"none": expected, "mean": expected.mean(), "sum": expected.sum()}[reduction]
    loss = nn.cross_entropy(
        nv.array(LOGITS), nv.array(targets), label_smoothing=smoothing, reduction=reduction
    )
    np.testing.assert_allclose(loss, expected, rtol=1e-12, atol=1e-12)


def test_cross_entropy_weights_and_axis():
    weights = np.array([1.0, 0.5, 2.0, 0.0])
    expected = -log_softmax(LOGITS)[np.arange(4), CLASSES]
    loss = nn.cross_entropy(nv.array(LOGITS), nv.array(CLASSES), weights=nv.array(weights))
    np.testing.assert_allclose(loss, expected * weights)
    loss = nn.cross_entropy(nv.array(LOGITS.T), nv.array(CLASSES), axis=0)
    np.testing.assert_allclose(loss, expected)
    images = np.stack([LOGITS, LOGITS + 1, -LOGITS])[:, :, None]
    labels = np.stack([CLASSES] * 3)[:, None]
    images, labels = images.transpose(0, 3, 1, 2), labels.transpose(0, 2, 1)
    loss = nn.cross_entropy(nv.array(images), nv.array(labels), axis=1)
    assert loss.shape == (3, 4, 1)
    np.testing.assert_allclose(loss[0, :, 0], expected)


def test_cross_entropy_gradient():
    gradient = nv.grad(
        lambda x: nn.cross_entropy(x, nv.array(CLASSES), reduction="sum")
    )(nv.array(LOGITS))  # fmt: skip
    expected = np.exp(log_softmax(LOGITS)) - one_hot(CLASSES)
    np.testing.assert_allclose(gradient, expected, atol=1e-12)


def test_cross_entropy_errors():
    logits = nv.array(LOGITS)
    with pytest.raises(nv.ShapeError, match=r"indices, of shape \(4,\).*of shape \(4, 3\)"):
        nn.cross_entropy(logits, nv.array([0, 1]))
    with pytest.raises(nv.DtypeError, match="class indices are integers"):
        nn.cross_entropy(logits, nv.ones(4))
    with pytest.raises(nv.ShapeError, match="weights"):
        nn.cross_entropy(logits, nv.array(CLASSES), weights=nv.ones(3))
    with pytest.raises(ValueError, match="label_smoothing"):
        nn.cross_entropy(logits, nv.array(CLASSES), label_smoothing=1.0)
    with pytest.raises(ValueError, match="reduction"):
        nn.cross_entropy(logits, nv.array(CLASSES), reduction="avg")
    with pytest.raises(nv.AxisError):
        nn.cross_entropy(logits, nv.array(CLASSES), axis=2)
    for wrong in (3, -1, -100):
        with pytest.raises(IndexError):
            nv.eval(nn.cross_entropy(logits, nv.array([0, 1, wrong, 2])))


def test_nll_loss():
    loss = nn.nll_loss(nv.array(log_softmax(LOGITS)), nv.array(CLASSES))
    np.testing.assert_allclose(loss, nn.cross_entropy(nv.array(LOGITS), nv.array(CLASSES)))
    with pytest.raises(nv.ShapeError):
        nn.nll_loss(nv.array(LOGITS), nv.array(PROBABILITIES))


def test_binary_cross_entropy():
    x, t = np.array([-800.0, -1.0, 0.5, 800.0]), np.array([0.0, 0.25, 1.0, 0.0])
    expected = np.logaddexp(x, 0) - x * t
    loss = nn.binary_cross_entropy(nv.array(x), nv.array(t), reduction="none")
    np.testing.assert_allclose(loss, expected)
    p = 1 / (1 + np.exp(-x[1:3]))
    loss = nn.binary_cross_entropy(nv.array(p), nv.array(t[1:3]), with_logits=False)
    np.testing.assert_allclose(loss, expected[1:3].mean())
    loss = nn.binary_cross_entropy(
        nv.array([0.0, 1.0]), nv.array([0.0, 0.0]), with_logits=False, reduction="none"
    )
    assert loss.tolist() == [0.0, 100.0]
    weighted = nn.binary_cross_entropy(
        nv.array(x), nv.array(t), weights=nv.array([0.0, 2.0, 1.0, 0.0]), reduction="sum"
    )
    np.testing.assert_allclose(weighted, 2 * expected[1] + expected[2])
    with pytest.raises(nv.ShapeError, match="targets"):
        nn.binary_cross_entropy(nv.ones(3), nv.ones(2))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_mse_and_l1(reduction):
    a, b = LOGITS[:, :2] - 1, PROBABILITIES[:, 1:]
    reduce = {"none": lambda x: x, "mean": np.mean, "sum": np.sum}[reduction]
    x, y = nv.array(a), nv.array(b)
    np.testing.assert_allclose(nn.mse_loss(x, y, reduction), reduce((a - b) ** 2))
    np.testing.assert_allclose(nn.l1_loss(x, y, reduction), reduce(abs(a - b)))


def test_mse_refuses_to_broadcast():
    for loss in (nn.mse_loss, nn.l1_loss):
        with pytest.raises(nv.ShapeError, match=r"\(4, 1\).*float32\[4\]"):
            loss(nv.ones((4, 1)), nv.ones(4))
