"""The parts that optimizers are chained from."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from nuvec.core import dtypes, tree
from nuvec.core.array import Array, operand
from nuvec.core.errors import DtypeError
from nuvec.core.functions.filled import zeros
from nuvec.core.ops.arithmetic import sqrt
from nuvec.core.ops.exponential import expm1
from nuvec.core.ops.selection import where
from nuvec.nn.optim.base import (
    GradientTransformation,
    Schedule,
    as_update,
    map_arrays,
    moment_like,
    stateless,
    zero_count,
)

__all__ = [
    "ScaleByAdamState",
    "ScaleByScheduleState",
    "TraceState",
    "add_decayed_weights",
    "clip_by_global_norm",
    "global_norm",
    "scale",
    "scale_by_adam",
    "scale_by_learning_rate",
    "trace",
]


def scale(factor: float | Array) -> GradientTransformation:
    """u = factor g"""
    return stateless(lambda updates, params: map_arrays(lambda g: as_update(g) * factor, updates))


class ScaleByScheduleState(NamedTuple):
    """count -- how many steps are done: int32, shape ()"""

    count: Array  # type: ignore[assignment]  # it hides tuple.count


def scale_by_learning_rate(learning_rate: float | Array | Schedule) -> GradientTransformation:
    """u = -learning_rate g, for a number, a scalar Array, or a schedule.

    A schedule is called with the number of steps done, an int32 scalar Array (0 at the first
    step), and returns the step's learning rate; it must be written in nuvec functions for a
    compiled step.
    """
    if not callable(learning_rate):
        return stateless(
            lambda updates, params: map_arrays(lambda g: _scaled(g, learning_rate), updates)
        )

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        rate = learning_rate(state.count)
        scaled = map_arrays(lambda g: _scaled(g, rate), updates)
        return scaled, ScaleByScheduleState(state.count + 1)

    return GradientTransformation(lambda params: ScaleByScheduleState(zero_count()), update)


def _scaled(gradient: Any, rate: Any) -> Array:
    gradient = as_update(gradient)
    # A learning rate held in an Array must not widen the update.
    if isinstance(rate, Array):
        rate = rate.astype(dtypes.real_part(gradient.dtype))
    return gradient * -rate


class TraceState(NamedTuple):
    """trace -- like the parameters: the decayed sum of the gradients, at first 0"""

    trace: Any


def trace(decay: float, nesterov: bool = False) -> GradientTransformation:
    """Momentum: t = g + decay t; u = t, or with `nesterov` u = g + decay t of the new t.

    (Sutskever et al. 2013, https://proceedings.mlr.press/v28/sutskever13.html)
    """

    def update(updates: Any, state: TraceState, params: Any = None) -> tuple[Any, TraceState]:
        updates = map_arrays(as_update, updates)
        # A parameter without a gradient keeps its trace.
        new = map_arrays(lambda t, g: t if g is None else g + decay * t, state.trace, updates)
        if nesterov:
            return map_arrays(lambda g, t: g + decay * t, updates, new), TraceState(new)
        return map_arrays(lambda g, t: t, updates, new), TraceState(new)

    return GradientTransformation(
        lambda params: TraceState(map_arrays(moment_like, params)), update
    )


class ScaleByAdamState(NamedTuple):
    """count -- how many steps are done: int32, shape ()
    mu    -- like the parameters: the mean of the gradients, exponentially decayed, at first 0
    nu    -- like the parameters: the same of their squares
    """

    count: Array  # type: ignore[assignment]  # it hides tuple.count
    mu: Any
    nu: Any


def scale_by_adam(
    b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, eps_root: float = 0.0
) -> GradientTransformation:
    """u = (mu / (1 - b1^t)) / (sqrt(nu / (1 - b2^t) + eps_root) + eps) at step t, with
    mu = b1 mu + (1 - b1) g and nu = b2 nu + (1 - b2) g^2.

    (Kingma and Ba 2015, https://arxiv.org/abs/1412.6980, algorithm 1.)
    """

    for name, decay in (("b1", b1), ("b2", b2)):
        if not 0 <= decay < 1:
            raise ValueError(f"adam: {name} must be at least 0 and less than 1, got {decay}.")

    def init(params: Any) -> ScaleByAdamState:
        moments = map_arrays(_real_moment, params)
        return ScaleByAdamState(zero_count(), moments, map_arrays(lambda m: m, moments))

    def update(updates: Any, state: ScaleByAdamState, params: Any = None) -> tuple[Any, Any]:
        updates = map_arrays(as_update, updates)
        count = state.count + 1
        mu = map_arrays(lambda m, g: m if g is None else b1 * m + (1 - b1) * g, state.mu, updates)
        nu = map_arrays(
            lambda n, g: n if g is None else b2 * n + (1 - b2) * (g * g), state.nu, updates
        )
        corrections: dict[Any, tuple[Array, Array]] = {}

        def direction(g: Array, m: Array, n: Array) -> Array:
            if g.dtype not in corrections:
                # In the dtype of the moments: float32 would cost float64 half of its digits.
                t = count.astype(g.dtype)
                corrections[g.dtype] = _bias_correction(b1, t), _bias_correction(b2, t)
            first, second = corrections[g.dtype]
            return (m / first) / (sqrt(n / second + eps_root) + eps)

        return map_arrays(direction, updates, mu, nu), ScaleByAdamState(count, mu, nu)

    return GradientTransformation(init, update)


def _bias_correction(decay: float, t: Array) -> Any:
    """1 - decay^t, without the cancellation there is at small t: b2^t is close to 1."""
    return -expm1(t * math.log(decay)) if decay else 1.0


def _real_moment(parameter: Any) -> Array | None:
    parameter = operand(parameter, "a parameter")
    if dtypes.is_complex(parameter.dtype):
        raise DtypeError(
            f"adam takes real parameters, got {parameter.aval}; keep the real and imaginary part "
            "as two parameters."
        )
    return moment_like(parameter)


Mask = Any  # a tree of bools like the parameters, or a function of the parameters that makes one


def add_decayed_weights(weight_decay: float, mask: Mask = None) -> GradientTransformation:
    """u = g + weight_decay p, where the mask (a tree of bools, or a function of the parameters
    that makes one) is True; without one, everywhere. `update` needs the parameters."""

    def update(updates: Any, params: Any) -> Any:
        if params is None:
            raise ValueError(
                "weight decay needs the parameters: call update(grads, state, params)."
            )
        if mask is None:
            return map_arrays(lambda g, p: as_update(g) + weight_decay * p, updates, params)
        flags = mask(params) if callable(mask) else mask
        return map_arrays(
            lambda g, p, flag: as_update(g) + weight_decay * p if flag else g,
            updates, params, flags,
        )  # fmt: skip

    return stateless(update)


def global_norm(updates: Any) -> Array:
    """The Euclidean norm of all leaves together, in float32, or float64 where a leaf is.

    >>> import nuvec as nv
    >>> from nuvec.nn import optim
    >>> optim.global_norm({"a": nv.array([3.0]), "b": nv.array([4.0])})
    array(5., dtype=float32)
    """
    total: Any = None
    for leaf in tree.leaves(updates):
        magnitude = abs(as_update(leaf))
        square = (magnitude * magnitude).sum()
        total = square if total is None else total + square
    return zeros(()) if total is None else sqrt(total)


def clip_by_global_norm(max_norm: float) -> GradientTransformation:
    """u = g min(1, max_norm / |g|), where |g| is the norm of all gradients together.

    Gradients within the bound keep their bits. (Pascanu et al. 2013, arXiv:1211.5063)
    """

    def update(updates: Any, params: Any) -> Any:
        norm = global_norm(updates)
        # The comparison is this way round so that a NaN norm shows instead of passing.
        factor = where(norm <= max_norm, 1.0, max_norm / norm)
        return map_arrays(
            lambda g: as_update(g) * factor.astype(dtypes.real_part(as_update(g).dtype)), updates
        )

    return stateless(update)
