"""The optimizers."""

from __future__ import annotations

from nuvec.core.array import Array
from nuvec.nn.arguments import number
from nuvec.nn.optim.base import GradientTransformation, Schedule, chain
from nuvec.nn.optim.transforms import (
    Mask,
    add_decayed_weights,
    scale_by_adam,
    scale_by_learning_rate,
    trace,
)

__all__ = ["adam", "adamw", "sgd"]


def sgd(
    learning_rate: float | Array | Schedule,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> GradientTransformation:
    """Stochastic gradient descent: p -= learning_rate v, where v = g without momentum.

    learning_rate -- a number, a scalar Array, or a schedule (`scale_by_learning_rate`)
    momentum      -- m >= 0 in v = g + m v; with `nesterov` the step is g + m v instead of v
    weight_decay  -- d >= 0 in g = gradient + d p; `update` then needs the parameters

    >>> import nuvec as nv
    >>> from nuvec.nn import optim
    >>> optimizer = optim.sgd(0.1)
    >>> params = {"w": nv.array([1.0, 2.0])}
    >>> state = optimizer.init(params)
    >>> grads = nv.grad(lambda p: (p["w"] * p["w"]).sum())(params)
    >>> updates, state = optimizer.update(grads, state, params)
    >>> optim.apply_updates(params, updates)["w"]
    array([0.8, 1.6], dtype=float32)
    """
    momentum = number(momentum, "sgd: momentum", 0)
    weight_decay = number(weight_decay, "sgd: weight_decay", 0)
    with_momentum = isinstance(momentum, Array) or momentum != 0
    if nesterov and not with_momentum:
        raise ValueError("sgd: nesterov needs a momentum, as in sgd(0.1, 0.9, nesterov=True).")
    decays = isinstance(weight_decay, Array) or weight_decay != 0
    parts = [add_decayed_weights(weight_decay)] if decays else []
    if with_momentum:
        parts.append(trace(momentum, nesterov))
    return chain(*parts, scale_by_learning_rate(learning_rate))


def adam(
    learning_rate: float | Array | Schedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
) -> GradientTransformation:
    """Adam with bias correction: p -= learning_rate u, with the u of `scale_by_adam`.

    learning_rate -- a number, a scalar Array, or a schedule (`scale_by_learning_rate`)
    b1, b2        -- decay of the means of the gradients and of their squares
    eps, eps_root -- added to the square root, and inside of it

    >>> import nuvec as nv
    >>> from nuvec.nn import optim
    >>> optimizer = optim.adam(0.5)
    >>> params = nv.array([1.0, -1.0])
    >>> updates, state = optimizer.update(nv.array([3.0, -4.0]), optimizer.init(params))
    >>> optim.apply_updates(params, updates)
    array([ 0.5, -0.5], dtype=float32)
    """
    return chain(scale_by_adam(b1, b2, eps, eps_root), scale_by_learning_rate(learning_rate))


def adamw(
    learning_rate: float | Array | Schedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    weight_decay: float = 1e-4,
    mask: Mask = None,
) -> GradientTransformation:
    """Adam with decoupled weight decay: p -= learning_rate (u + weight_decay p).

    mask -- where to decay: a tree of bools like the parameters, or a function of the parameters
            that makes one; None decays all. The other arguments are those of `adam`, and `update`
            needs the parameters. (Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101)

    >>> import nuvec as nv
    >>> from nuvec.nn import optim
    >>> matrices = lambda params: nv.tree.map(lambda p: p.ndim > 1, params)
    >>> optimizer = optim.adamw(1e-3, weight_decay=0.1, mask=matrices)
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )
