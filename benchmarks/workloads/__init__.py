"""The workloads of compare.py, a module each.

TEXT     what it measures, in words
TARGET   the largest ratio of nuvec's time to JAX's that is aimed at; None where there is none
UNIT     "us" or "ms"
SIZES    the sizes of the benchmark, as arguments of `inputs`; SMALL those of the tests
inputs   (**sizes) -> the arguments of the workload's function: trees of NumPy arrays, the same
         for every framework; where something is differentiated it is the first, a tuple

and, by the framework's name, a function from the inputs to a Task for each framework that can do
it.  torch's takes a second argument, applied to what is differentiated: `torch.compile`, or what
leaves it as it is.  Each imports its framework itself, so these files need nothing but NumPy.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from _worker import Framework, Task

NAMES = (
    "gelu", "gelu_exact", "softmax", "layer_norm", "adam", "mlp", "transformer", "per_example",
    "rnn", "logistic", "pairwise", "hessian", "convnet",
)  # fmt: skip
FRAMEWORKS = ("nuvec", "jax", "torch", "mlx", "autograd", "torch-compile")


def module(name: str) -> Any:
    """The module of a workload."""
    return importlib.import_module(f"workloads.{name}")


def build(name: str, framework: str, sizes: Mapping[str, int]) -> Task | None:
    """A workload's task in a framework; None when that framework cannot do it."""
    workload = module(name)
    maker: Callable[..., Task] | None = getattr(workload, framework.split("-")[0], None)
    if maker is None:
        return None
    inputs = workload.inputs(**sizes)
    if framework == "torch-compile":
        import torch

        return maker(inputs, torch.compile)
    return maker(inputs)


class Tasks(Mapping[str, Task]):
    """A framework's tasks, each made when it is asked for: the inputs of all are large."""

    def __init__(self, framework: str) -> None:
        self._framework = framework
        kind = framework.split("-")[0]
        self._names = [name for name in NAMES if hasattr(module(name), kind)]

    def __getitem__(self, name: str) -> Task:
        task = name in self._names and build(name, self._framework, module(name).SIZES)
        if not task:
            raise KeyError(name)
        return task

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names


def framework(name: str) -> Framework:
    """What a worker is given for the framework of that name."""
    return lambda: Tasks(name)
