"""The parts that optimizers are chained from."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from nuvec.core import dtypes, tree
from nuvec.core.array import Array, operand
from nuvec.core.errors import DtypeError, TreeError
from nuvec.core.functions.filled import zeros
from nuvec.core.ops.arithmetic import sqrt
from nuvec.core.ops.exponential import expm1
from nuvec.core.ops.selection import where
from nuvec.nn.arguments import as_number, like, number
from nuvec.nn.optim.base import (
    GradientTransformation,
    Schedule,
    as_update,
    check_shapes,
    expect_state,
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
    """u = factor g, for a number or a scalar Array."""
    factor = number(factor, "scale: factor")

    def scaled(g: Any) -> Array:
        g = as_update(g)
        return g * like(factor, g)

    return stateless(lambda updates, params: map_arrays(scaled, updates))


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
        fixed = number(learning_rate, "learning_rate")
        return stateless(lambda updates, params: _scaled(updates, params, fixed))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        expect_state(state, ScaleByScheduleState, "a learning rate that is a schedule")
        rate = as_number(learning_rate(state.count), "what the learning rate's schedule returns")
        return _scaled(updates, params, rate), ScaleByScheduleState(state.count + 1)

    return GradientTransformation(lambda params: ScaleByScheduleState(zero_count()), update)


def _scaled(updates: Any, params: Any, rate: Any) -> Any:
    if params is not None:
        check_shapes(updates, params)

    def scaled(g: Any) -> Array:
        g = as_update(g)
        return g * -like(rate, g)

    return map_arrays(scaled, updates)


class TraceState(NamedTuple):
    """trace -- like the parameters: the decayed sum of the gradients, at first 0"""

    trace: Any


def trace(decay: float, nesterov: bool = False) -> GradientTransformation:
    """Momentum: t = g + decay t; u = t, or with `nesterov` u = g + decay t of the new t.

    (Sutskever et al. 2013, https://proceedings.mlr.press/v28/sutskever13.html)
    """
    decay = number(decay, "momentum", 0)

    def decayed(t: Array, g: Array) -> Array:
        return g + like(decay, t) * t

    def update(updates: Any, state: TraceState, params: Any = None) -> tuple[Any, TraceState]:
        expect_state(state, TraceState, "momentum")
        updates = _updates_like(state.trace, updates)
        # A parameter without a gradient keeps its trace.
        new = map_arrays(lambda t, g: t if g is None else decayed(t, g), state.trace, updates)
        if nesterov:
            return map_arrays(lambda g, t: decayed(t, g), updates, new), TraceState(new)
        return map_arrays(lambda g, t: t, updates, new), TraceState(new)

    return GradientTransformation(
        lambda params: TraceState(map_arrays(moment_like, params)), update
    )


def _updates_like(moments: Any, updates: Any) -> Any:
    """The gradients in the dtypes of their moments, so that the state keeps its dtypes."""
    check_shapes(moments, updates)

    def convert(gradient: Any, moment: Array | None) -> Array:
        gradient = as_update(gradient)
        if moment is None:
            raise TreeError(
                f"a gradient {gradient.aval} came for a parameter that has no state: it was None, "
                "or integer, at init(params)."
            )
        return gradient.astype(moment.dtype)

    return map_arrays(convert, updates, moments)


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

    # Floats, also if they are Arrays: their logarithm is taken in Python.
    b1 = float(number(float(as_number(b1, "adam: b1")), "adam: b1", 0, 1))
    b2 = float(number(float(as_number(b2, "adam: b2")), "adam: b2", 0, 1))
    eps = number(eps, "adam: eps", 0)
    eps_root = number(eps_root, "adam: eps_root", 0)

    def init(params: Any) -> ScaleByAdamState:
        moments = map_arrays(_real_moment, params)
        return ScaleByAdamState(zero_count(), moments, map_arrays(lambda m: m, moments))

    def update(updates: Any, state: ScaleByAdamState, params: Any = None) -> tuple[Any, Any]:
        expect_state(state, ScaleByAdamState, "adam")
        updates = _updates_like(state.mu, updates)
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
            # Both fractions of the formula multiplied by sqrt(1 - b2^t): what is left of it are
            # numbers, and arrays are read less often.
            root = sqrt(operand(second))
            inside = isinstance(eps_root, Array) or eps_root > 0
            inner = n + like(eps_root, n) * second if inside else n
            return m * (root / first) / (sqrt(inner) + like(eps, n) * root)

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

    weight_decay = number(weight_decay, "weight_decay", 0)

    def decayed(g: Any, p: Any, flag: bool) -> Array:
        if not flag:
            return as_update(g)
        p = operand(p, "a parameter")
        p = p.astype(dtypes.accumulation(p.dtype))
        return as_update(g) + like(weight_decay, p) * p

    def update(updates: Any, params: Any) -> Any:
        if params is None:
            raise ValueError(
                "weight decay needs the parameters: call update(grads, state, params)."
            )
        if mask is None:
            return map_arrays(lambda g, p: decayed(g, p, True), updates, params)
        flags = map_arrays(bool, mask(params) if callable(mask) else mask)
        return map_arrays(decayed, updates, params, flags)

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

    max_norm is at least 0; infinity clips nothing. Gradients within the bound keep their bits.
    (Pascanu et al. 2013, arXiv:1211.5063)
    """
    max_norm = number(max_norm, "clip_by_global_norm: max_norm", 0, infinite=True)

    def update(updates: Any, params: Any) -> Any:
        norm = global_norm(updates)
        # The comparison is this way round so that a NaN norm shows instead of passing.
        bound = like(max_norm, norm)
        factor = where(norm <= bound, 1.0, bound / norm)

        def clipped(g: Any) -> Array:
            g = as_update(g)
            return g * like(factor, g)

        return map_arrays(clipped, updates)

    return stateless(update)
