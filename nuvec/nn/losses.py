"""Losses. As in MLX, `reduction` is "none" (a loss per element or row), "mean" or "sum"."""

from __future__ import annotations

from typing import Any

from nuvec.core import dtypes
from nuvec.core.array import Array, operand
from nuvec.core.errors import DtypeError, ShapeError
from nuvec.core.functions.along import take_along_axis
from nuvec.core.functions.exponentials import logsumexp
from nuvec.core.ops.build import normalize_axis
from nuvec.core.ops.exponential import log
from nuvec.core.ops.logaddexp import logaddexp
from nuvec.core.ops.selection import clip, where
from nuvec.core.ops.structure import expand_dims, squeeze

__all__ = [
    "binary_cross_entropy",
    "cross_entropy",
    "l1_loss",
    "mse_loss",
    "nll_loss",
]


def cross_entropy(
    logits: Array,
    targets: Array,
    weights: Array | None = None,
    axis: int = -1,
    label_smoothing: float = 0.0,
    reduction: str = "none",
) -> Array:
    """`-sum(p * log_softmax(logits))` along `axis`, for target probabilities p.

    logits  -- unnormalised log-probabilities, the classes along `axis`
    targets -- class indices: an integer array with the shape of logits without `axis`;
               or probabilities: the shape of logits
    weights -- multiplied with the losses: the shape of logits without `axis`
    label_smoothing -- s in [0, 1): p becomes (1 - s) p + s / classes

    With "none" the result has the shape of logits without `axis`. Raises ShapeError and
    DtypeError when these do not fit, and IndexError for an index outside [0, classes).

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> logits = nv.array([[2.0, -1.0], [-1.0, 2.0]])
    >>> [round(loss, 4) for loss in nn.losses.cross_entropy(logits, nv.array([0, 1])).tolist()]
    [0.0486, 0.0486]
    >>> targets = nv.array([[1.0, 0.0], [0.5, 0.5]])
    >>> round(nn.losses.cross_entropy(logits, targets, reduction="mean").item(), 4)
    0.7986
    """
    logits, targets = operand(logits, "logits"), operand(targets, "targets")
    axis = normalize_axis(axis, logits.ndim, "cross_entropy")
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must be in [0, 1), got {label_smoothing}.")
    rows = logits.shape[:axis] + logits.shape[axis + 1 :]
    if targets.shape != logits.shape and targets.shape != rows:
        raise ShapeError(
            f"cross_entropy: targets {targets.aval} fit logits {logits.aval} neither as class "
            f"indices, of shape {rows}, nor as probabilities, of shape {logits.shape}."
        )
    total = logsumexp(logits, axis=axis)
    if targets.shape == logits.shape:
        score = (logits * targets).sum(axis=axis)
        loss = total * targets.sum(axis=axis) - score
    else:
        loss = total - _at_class("cross_entropy", logits, targets, axis)
    if label_smoothing:
        uniform = total - logits.mean(axis=axis)
        loss = (1 - label_smoothing) * loss + label_smoothing * uniform
    if weights is not None:
        loss = loss * _matching("cross_entropy", "weights", weights, loss)
    return _reduce(loss, reduction)


def nll_loss(inputs: Array, targets: Array, axis: int = -1, reduction: str = "none") -> Array:
    """`-inputs[target]`: the loss of log-probabilities, with class indices as targets.

    inputs  -- log-probabilities, the classes along `axis`
    targets -- integers with the shape of inputs without `axis`

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> nn.losses.nll_loss(nv.array([[-0.5, -1.0]]), nv.array([1]))
    array([1.], dtype=float32)
    """
    inputs, targets = operand(inputs, "inputs"), operand(targets, "targets")
    axis = normalize_axis(axis, inputs.ndim, "nll_loss")
    rows = inputs.shape[:axis] + inputs.shape[axis + 1 :]
    if targets.shape != rows:
        raise ShapeError(
            f"nll_loss: inputs {inputs.aval} need class indices of shape {rows}, got targets "
            f"{targets.aval}."
        )
    return _reduce(-_at_class("nll_loss", inputs, targets, axis), reduction)


def binary_cross_entropy(
    inputs: Array,
    targets: Array,
    weights: Array | None = None,
    with_logits: bool = True,
    reduction: str = "mean",
) -> Array:
    """`-(t log p + (1 - t) log(1 - p))`, element by element.

    inputs  -- logits (p = sigmoid(inputs)) or, with `with_logits=False`, the probabilities p,
               whose logarithms are kept above -100
    targets -- in [0, 1], the shape of inputs
    weights -- multiplied with the losses: the shape of inputs

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> nn.losses.binary_cross_entropy(nv.array([0.0, 0.0]), nv.array([0.0, 1.0]))
    array(0.6931472, dtype=float32)
    """
    inputs = operand(inputs, "inputs")
    targets = _matching("binary_cross_entropy", "targets", targets, inputs)
    if with_logits:
        # log(1 + exp(x)) - t x
        loss = logaddexp(inputs, 0.0) - inputs * targets
    else:
        positive = clip(log(inputs), -100.0, None)
        negative = clip(log(1 - inputs), -100.0, None)
        loss = -(targets * positive + (1 - targets) * negative)
    if weights is not None:
        loss = loss * _matching("binary_cross_entropy", "weights", weights, inputs)
    return _reduce(loss, reduction)


def mse_loss(predictions: Array, targets: Array, reduction: str = "mean") -> Array:
    """`(predictions - targets)^2`; the two have one shape, else ShapeError.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> nn.losses.mse_loss(nv.array([1.0, 2.0]), nv.array([0.0, 0.0]))
    array(2.5, dtype=float32)
    """
    predictions = operand(predictions, "predictions")
    difference = predictions - _matching("mse_loss", "targets", targets, predictions)
    return _reduce(difference * difference, reduction)


def l1_loss(predictions: Array, targets: Array, reduction: str = "mean") -> Array:
    """`|predictions - targets|`; the two have one shape, else ShapeError.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> nn.losses.l1_loss(nv.array([1.0, 2.0]), nv.array([0.0, 0.0]))
    array(1.5, dtype=float32)
    """
    predictions = operand(predictions, "predictions")
    return _reduce(
        abs(predictions - _matching("l1_loss", "targets", targets, predictions)), reduction
    )


def _at_class(name: str, scores: Array, targets: Array, axis: int) -> Array:
    """The score of each row's class."""
    if not dtypes.is_integer(targets.dtype):
        raise DtypeError(
            f"{name}: class indices are integers, got targets {targets.aval}. Convert them with "
            ".astype(nv.int32), or pass probabilities in the shape of the first argument."
        )
    if dtypes.is_signed(targets.dtype):
        # A negative index would count from the end: labels such as -1 for "none" must not pass.
        targets = where(targets < 0, scores.shape[axis], targets)
    chosen = take_along_axis(scores, expand_dims(targets, axis), axis=axis)
    return squeeze(chosen, axis)


def _matching(name: str, label: str, value: Any, like: Array) -> Array:
    """`value` as an Array of the shape of `like`: broadcasting would hide a mistake."""
    value = operand(value, label)
    if value.shape != like.shape:
        raise ShapeError(
            f"{name}: {label} must have the shape {like.shape}, got {value.aval}. Reshape or "
            "broadcast it first."
        )
    return value


def _reduce(loss: Array, reduction: str) -> Array:
    if reduction == "none":
        return loss
    if reduction == "mean":
        return loss.mean()
    if reduction == "sum":
        return loss.sum()
    raise ValueError(f'reduction must be "none", "mean" or "sum", got {reduction!r}.')
