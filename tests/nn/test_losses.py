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
    with pytest.raises(nv.ShapeError, match="no classes"):
        nn.cross_entropy(nv.ones((2, 0)), nv.array([0, 0]))


@pytest.mark.parametrize("wrong", [3, -1, -100])
@pytest.mark.parametrize("compiled", [False, True])
def test_labels_outside_the_classes_are_named(wrong, compiled):
    for loss in (nn.cross_entropy, nn.nll_loss):
        run = nv.compile(loss) if compiled else loss
        with pytest.raises(IndexError, match=f"label {wrong} is none of the 3 .* 0 to 2"):
            nv.eval(run(nv.array(LOGITS), nv.array([0, 1, wrong, 2])))


@pytest.mark.parametrize(
    "dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
)
def test_labels_of_every_integer_dtype(dtype):
    # More classes than int8 has numbers, so that the number of classes does not fit it.
    logits = np.sin(np.arange(3 * 40000.0)).reshape(3, 40000)
    labels = np.array([0, 5, 127]).astype(dtype)
    expected = -log_softmax(logits)[np.arange(3), labels.astype(int)]
    loss = nn.cross_entropy(nv.array(logits), nv.array(labels))
    np.testing.assert_allclose(loss, expected, rtol=1e-12)
    np.testing.assert_allclose(
        nn.nll_loss(nv.array(log_softmax(logits)), nv.array(labels)), expected, rtol=1e-12
    )


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


# --- Precision: against NumPy in float64, on the very numbers the dtype holds

DTYPES = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-21, "float64": 2.0**-50}


def held(values, dtype):
    """An Array, and the numbers in it as float64."""
    array = nv.array(np.asarray(values)).astype(dtype)
    return array, np.asarray(array.astype("float64"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0.0, 1000.0, -30000.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.25])
@pytest.mark.parametrize("probabilities", [False, True])
def test_cross_entropy_does_not_cancel(dtype, offset, smoothing, probabilities):
    steps = np.array([[0.0, 3.0, -2.0], [5.0, 1.0, 0.0], [0.0, 0.0, 0.0], [-3.0, 2.0, 2.5]])
    if offset and dtype in ("float16", "bfloat16"):
        steps = steps * 256  # what such numbers can hold beside their offset
    logits, x = held(steps + offset, dtype)
    p = PROBABILITIES if probabilities else one_hot(CLASSES)
    targets, p = held(p, dtype) if probabilities else (nv.array(CLASSES), p)
    smooth = (1 - smoothing) * p + smoothing * p.sum(axis=-1, keepdims=True) / 3
    expected = -(smooth * log_softmax(x)).sum(axis=-1)
    for reduction, value in [("none", expected), ("mean", expected.mean())]:
        loss = nn.cross_entropy(logits, targets, None, -1, smoothing, reduction)
        assert loss.dtype == logits.dtype
        np.testing.assert_allclose(
            loss.astype("float64"), value, rtol=DTYPES[dtype], atol=DTYPES[dtype] / 8
        )
    gradient = nv.grad(lambda x: nn.cross_entropy(x, targets, reduction="sum"))(logits)
    assert gradient.dtype == logits.dtype
    expected = np.exp(log_softmax(x)) * p.sum(axis=-1, keepdims=True) - p
    np.testing.assert_allclose(
        gradient.astype("float64"), expected, rtol=DTYPES[dtype], atol=2 * DTYPES[dtype]
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_binary_cross_entropy_does_not_cancel(dtype):
    logits = np.array([-300.0, -30.0, -8.0, -1.0, 0.0, 1e-3, 0.5, 6.0, 12.0, 40.0, 300.0])
    x, t = np.meshgrid(logits, [0.0, 0.25, 0.9, 1.0])
    (inputs, x), (targets, t) = held(x, dtype), held(t, dtype)
    expected = np.where(x < 0, t, 1 - t) * abs(x) + np.log1p(np.exp(-abs(x)))
    loss = nn.binary_cross_entropy(inputs, targets, reduction="none")
    assert loss.dtype == inputs.dtype
    smallest = float(nv.finfo(dtype).smallest_subnormal)
    np.testing.assert_allclose(loss.astype("float64"), expected, rtol=DTYPES[dtype], atol=smallest)
    mean = nn.binary_cross_entropy(inputs, targets)
    np.testing.assert_allclose(mean.astype("float64"), expected.mean(), rtol=DTYPES[dtype])
    gradient = nv.grad(lambda x: nn.binary_cross_entropy(x, targets, reduction="sum"))(inputs)
    wanted = np.where(x < 0, np.exp(np.minimum(x, 0)) / (1 + np.exp(-abs(x))), 0) - t
    wanted = np.where(x < 0, wanted, (1 - t) - np.exp(-abs(x)) / (1 + np.exp(-abs(x))))
    np.testing.assert_allclose(gradient.astype("float64"), wanted, atol=DTYPES[dtype])


def test_binary_cross_entropy_of_probabilities_near_0():
    inputs, p = held([1e-8, 1e-5, 0.5], "float32")
    loss = nn.binary_cross_entropy(inputs, nv.zeros(3), with_logits=False, reduction="none")
    np.testing.assert_allclose(loss, -np.log1p(-p), rtol=1e-6)


def test_binary_cross_entropy_second_derivative_at_0():
    t = nv.array(0.25)
    slope = nv.grad(lambda x: nn.binary_cross_entropy(x, t))
    assert slope(nv.array(0.0)).item() == 0.25
    assert nv.grad(slope)(nv.array(0.0)).item() == 0.25


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_losses_reduce_in_float32(dtype):
    # 300^2 is more than float16 holds, the mean is not.
    x, a = held([300.0] + [0.0] * 99, dtype)
    loss = nn.mse_loss(x, nv.zeros(100, dtype=dtype))
    np.testing.assert_allclose(loss.astype("float64"), (a * a).mean(), rtol=DTYPES[dtype])
    ones = nv.ones(5000, dtype=dtype)
    loss = nn.l1_loss(ones, ones * 2)
    assert loss.dtype == ones.dtype and loss.item() == 1


def test_numpy_numbers_do_not_widen_a_loss():
    logits = nv.array(LOGITS).astype("float32")
    loss = nn.cross_entropy(logits, nv.array(CLASSES), label_smoothing=np.float64(0.1))
    assert loss.dtype == nv.float32
    for wrong in (np.nan, -0.1, 1):
        with pytest.raises(ValueError, match="label_smoothing"):
            nn.cross_entropy(logits, nv.array(CLASSES), label_smoothing=wrong)
    with pytest.raises(nv.DtypeError, match="mse_loss"):
        nn.mse_loss(nv.array([1j]), nv.array([1j]))
