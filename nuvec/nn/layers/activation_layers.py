"""The activation functions as layers, for `Sequential` and for attributes that are modules.

The arguments of a layer are its attributes, and are passed to the function at every call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from nuvec.core.array import Array
from nuvec.nn import init
from nuvec.nn.arguments import check_size
from nuvec.nn.layers import activations
from nuvec.nn.module import Module
from nuvec.nn.structure import leaves_text


class _Activation(Module):
    """`function(x, **attributes)`"""

    function: ClassVar[Callable[..., Array]]

    def __call__(self, x: Array) -> Array:
        """x of any shape and floating dtype -> the same (GLU: its axis halved)"""
        return type(self).function(x, **self._arguments())

    def _arguments(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def _extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self._arguments().items())


class ReLU(_Activation):
    """`nn.relu` as a layer.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> nn.ReLU()(nv.array([-1.0, 2.0]))
    array([0., 2.], dtype=float32)
    """

    function = staticmethod(activations.relu)


class ReLU2(_Activation):
    """`nn.relu2` as a layer."""

    function = staticmethod(activations.relu2)


class ReLU6(_Activation):
    """`nn.relu6` as a layer."""

    function = staticmethod(activations.relu6)


class LeakyReLU(_Activation):
    """`nn.leaky_relu` as a layer."""

    function = staticmethod(activations.leaky_relu)

    def __init__(self, negative_slope: float = 0.01) -> None:
        super().__init__()
        self.negative_slope = negative_slope


class PReLU(Module):
    """`nn.prelu` with a slope that is learned.

    weight -- [num_parameters], which broadcasts with the last axis of the input; `init` at first
    """

    weight: Array

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        super().__init__()
        num_parameters = check_size("PReLU", "num_parameters", num_parameters)
        self.weight = _constant(init)((num_parameters,))

    def __call__(self, x: Array) -> Array:
        """x[..., n], n any size when num_parameters is 1, else num_parameters -> the same"""
        return activations.prelu(x, self.weight)

    def _extra_repr(self) -> str:
        if not isinstance(self.weight, Array):
            return leaves_text(self)
        return f"num_parameters={self.weight.size}"


_constant = init.constant


class ELU(_Activation):
    """`nn.elu` as a layer."""

    function = staticmethod(activations.elu)

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = alpha


class CELU(_Activation):
    """`nn.celu` as a layer."""

    function = staticmethod(activations.celu)

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = alpha


class SELU(_Activation):
    """`nn.selu` as a layer."""

    function = staticmethod(activations.selu)


class Sigmoid(_Activation):
    """`nn.sigmoid` as a layer."""

    function = staticmethod(activations.sigmoid)


class LogSigmoid(_Activation):
    """`nn.log_sigmoid` as a layer."""

    function = staticmethod(activations.log_sigmoid)


class Tanh(_Activation):
    """`nn.tanh` as a layer."""

    function = staticmethod(activations.tanh)


class Softplus(_Activation):
    """`nn.softplus` as a layer."""

    function = staticmethod(activations.softplus)


class Softsign(_Activation):
    """`nn.softsign` as a layer."""

    function = staticmethod(activations.softsign)


class SiLU(_Activation):
    """`nn.silu` as a layer."""

    function = staticmethod(activations.silu)


class Mish(_Activation):
    """`nn.mish` as a layer."""

    function = staticmethod(activations.mish)


class GELU(Module):
    """`nn.gelu` as a layer.

    approx -- "none" (exact), "precise" or "tanh" (`nn.gelu_approx`), or "fast"
              (`nn.gelu_fast_approx`)
    """

    def __init__(self, approx: str = "none") -> None:
        super().__init__()
        if approx not in _GELU:
            raise ValueError(f"GELU: approx must be one of {sorted(_GELU)}, got {approx!r}.")
        self.approx = approx

    def __call__(self, x: Array) -> Array:
        """x of any shape and floating dtype -> the same"""
        return _GELU[self.approx](x)

    def _extra_repr(self) -> str:
        return f"approx={self.approx!r}"


_GELU: dict[str, Callable[[Array], Array]] = {
    "none": activations.gelu,
    "precise": activations.gelu_approx,
    "tanh": activations.gelu_approx,
    "fast": activations.gelu_fast_approx,
}


class HardTanh(_Activation):
    """`nn.hard_tanh` as a layer."""

    function = staticmethod(activations.hard_tanh)

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        super().__init__()
        self.min_val = min_val
        self.max_val = max_val


class HardShrink(_Activation):
    """`nn.hard_shrink` as a layer."""

    function = staticmethod(activations.hard_shrink)

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd


class Softshrink(_Activation):
    """`nn.softshrink` as a layer."""

    function = staticmethod(activations.softshrink)

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd


class Hardswish(_Activation):
    """`nn.hardswish` as a layer."""

    function = staticmethod(activations.hardswish)


class Step(_Activation):
    """`nn.step` as a layer."""

    function = staticmethod(activations.step)

    def __init__(self, threshold: float = 0.0) -> None:
        super().__init__()
        self.threshold = threshold


class Softmax(_Activation):
    """`nn.softmax` as a layer."""

    function = staticmethod(activations.softmax)

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis


class Softmin(_Activation):
    """`nn.softmin` as a layer."""

    function = staticmethod(activations.softmin)

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis


class LogSoftmax(_Activation):
    """`nn.log_softmax` as a layer."""

    function = staticmethod(activations.log_softmax)

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis


class GLU(_Activation):
    """`nn.glu` as a layer."""

    function = staticmethod(activations.glu)

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis
