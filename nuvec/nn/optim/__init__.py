"""Optimizers after optax: pairs of init and update over pytrees of parameters and state."""

from nuvec.nn.optim.base import (
    EmptyState,
    GradientTransformation,
    Schedule,
    apply_updates,
    chain,
    identity,
    stateless,
)
from nuvec.nn.optim.optimizers import adam, adamw, sgd
from nuvec.nn.optim.transforms import (
    ScaleByAdamState,
    ScaleByScheduleState,
    TraceState,
    add_decayed_weights,
    clip_by_global_norm,
    global_norm,
    scale,
    scale_by_adam,
    scale_by_learning_rate,
    trace,
)

__all__ = [
    "EmptyState",
    "GradientTransformation",
    "ScaleByAdamState",
    "ScaleByScheduleState",
    "Schedule",
    "TraceState",
    "adam",
    "adamw",
    "add_decayed_weights",
    "apply_updates",
    "chain",
    "clip_by_global_norm",
    "global_norm",
    "identity",
    "scale",
    "scale_by_adam",
    "scale_by_learning_rate",
    "sgd",
    "stateless",
    "trace",
]
