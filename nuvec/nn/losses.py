"""Losses. As in MLX, `reduction` is "none" (a loss per element or row), "mean" or "sum".

A loss has the dtype that its arguments promote to, float32 for integers. That of float16 and
bfloat16 is computed and reduced in float32 and rounded once. None is the difference of larger
terms: a loss near 0 keeps its digits, whatever the logits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array, operand
from nuvec.core.errors import DtypeError, ShapeError
from nuvec.core.functions.along import take_along_axis
from nuvec.core.ops.build import normalize_axis
from nuvec.core.ops.differentiation import stop_gradient
from nuvec.core.ops.exponential import exp, log, log1p
from nuvec.core.ops.reduction import max
from nuvec.core.ops.selection import clip, where
from nuvec.core.ops.structure import expand_dims, squeeze
from nuvec.nn.arguments import number
from nuvec.nn.labels import class_index

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
    smoothing = float(number(label_smoothing, "cross_entropy: label_smoothing", 0, 1))
    rows = logits.shape[:axis] + logits.shape[axis + 1 :]
    if targets.shape not in (logits.shape, rows):
        raise ShapeError(
            f"cross_entropy: targets {targets.aval} fit logits {logits.aval} neither as class "
            f"indices, of shape {rows}, nor as probabilities, of shape {logits.shape}."
        )
    if not logits.shape[axis]:
        raise ShapeError(f"cross_entropy: axis {axis} of logits {logits.aval} has no classes.")
    probabilities = targets.shape == logits.shape
    given = [logits, targets] if probabilities else [logits]
    if weights is not None:
        weights = _matching("cross_entropy", "weights", weights, rows)
        given.append(weights)
    dtype = _common("cross_entropy", given)
    logits = logits.astype(dtypes.accumulation(dtype))
    # -log_softmax = normalizer - shifted, two terms of which none is negative. The largest logit
    # is the offset: adding a number to all of them changes no loss.
    shifted = logits - stop_gradient(max(logits, axis, keepdims=True))
    normalizer = log(exp(shifted).sum(axis=axis))
    if probabilities:
        loss = normalizer * targets.sum(axis=axis) - (shifted * targets).sum(axis=axis)
    else:
        loss = normalizer - _at_class("cross_entropy", shifted, targets, axis)
    if smoothing:
        uniform = normalizer - shifted.mean(axis=axis)
        loss = (1 - smoothing) * loss + smoothing * uniform
    if weights is not None:
        loss = loss * weights
    return _reduce(loss, reduction, dtype)


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
    dtype = _common("nll_loss", [inputs])
    scores = inputs.astype(dtypes.accumulation(dtype))
    return _reduce(-_at_class("nll_loss", scores, targets, axis), reduction, dtype)


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
    targets = _matching("binary_cross_entropy", "targets", targets, inputs.shape)
    given = [inputs, targets]
    if weights is not None:
        weights = _matching("binary_cross_entropy", "weights", weights, inputs.shape)
        given.append(weights)
    dtype = _common("binary_cross_entropy", given)
    working = dtypes.accumulation(dtype)
    x, t = inputs.astype(working), targets.astype(working)
    if with_logits:
        # max(x, 0) - t x + log(1 + exp(-|x|)), with the first two terms as one that is not
        # negative. |x| is a selection, so that derivatives of every order are right at 0 too.
        negative = x < 0
        magnitude = where(negative, -x, x)
        loss = where(negative, t, 1 - t) * magnitude + log1p(exp(-magnitude))
    else:
        positive = clip(log(x), -100.0, None)
        negative = clip(log1p(-x), -100.0, None)
        loss = -(t * positive + (1 - t) * negative)
    if weights is not None:
        loss = loss * weights
    return _reduce(loss, reduction, dtype)


def mse_loss(predictions: Array, targets: Array, reduction: str = "mean") -> Array:
    """`(predictions - targets)^2`; the two have one shape, else ShapeError.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> nn.losses.mse_loss(nv.array([1.0, 2.0]), nv.array([0.0, 0.0]))
    array(2.5, dtype=float32)
    """
    difference, dtype = _difference("mse_loss", predictions, targets)
    _refuse_complex("mse_loss", dtype)
    return _reduce(difference * difference, reduction, dtype)


def l1_loss(predictions: Array, targets: Array, reduction: str = "mean") -> Array:
    """`|predictions - targets|`; the two have one shape, else ShapeError.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> nn.losses.l1_loss(nv.array([1.0, 2.0]), nv.array([0.0, 0.0]))
    array(1.5, dtype=float32)
    """
    difference, dtype = _difference("l1_loss", predictions, targets)
    return _reduce(abs(difference), reduction, dtypes.real_part(dtype))


def _at_class(name: str, scores: Array, targets: Array, axis: int) -> Array:
    """The score of each row's class."""
    if not dtypes.is_integer(targets.dtype):
        raise DtypeError(
            f"{name}: class indices are integers, got targets {targets.aval}. Convert them with "
            ".astype(nv.int32), or pass probabilities in the shape of the first argument."
        )
    indices = class_index(targets, scores.shape[axis])
    return squeeze(take_along_axis(scores, expand_dims(indices, axis), axis=axis), axis)


def _difference(name: str, predictions: Any, targets: Any) -> tuple[Array, np.dtype[Any]]:
    """predictions - targets in the dtype to compute in, and the dtype of the loss."""
    predictions = operand(predictions, "predictions")
    targets = _matching(name, "targets", targets, predictions.shape)
    dtype = _promoted([predictions, targets])
    working = dtypes.accumulation(dtype)
    return predictions.astype(working) - targets.astype(working), dtype


def _matching(name: str, label: str, value: Any, shape: tuple[int, ...]) -> Array:
    """`value` as an Array, which must have the shape: broadcasting would hide a mistake."""
    value = operand(value, label)
    if value.shape != shape:
        raise ShapeError(
            f"{name}: {label} must have the shape {shape}, got {value.aval}. Reshape or "
            "broadcast it first."
        )
    return value


def _common(name: str, given: list[Array]) -> np.dtype[Any]:
    """The dtype of a loss of these arguments; DtypeError if it is complex."""
    dtype = _promoted(given)
    _refuse_complex(name, dtype)
    return dtype


def _promoted(given: list[Array]) -> np.dtype[Any]:
    return dtypes.inexact(dtypes.promote(*[(x.dtype, x.aval.weak) for x in given])[0])


def _refuse_complex(name: str, dtype: np.dtype[Any]) -> None:
    if dtypes.is_complex(dtype):
        raise DtypeError(
            f"{name}: the loss of {dtypes.name(dtype)} arguments would be no real number; take "
            "it of their real and imaginary parts."
        )


def _reduce(loss: Array, reduction: str, dtype: np.dtype[Any]) -> Array:
    if reduction == "mean":
        loss = loss.mean()
    elif reduction == "sum":
        loss = loss.sum()
    elif reduction != "none":
        raise ValueError(f'reduction must be "none", "mean" or "sum", got {reduction!r}.')
    return loss.astype(dtype)
