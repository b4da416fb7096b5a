"""Models that MLX and nuvec both can build, and what is recorded of them.

What MLX does with them is kept in tests/data/mlx_modules, where the README says how it was made:
by this file, run as a program under MLX.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent.parent / "data" / "mlx_modules"


def models(nn: Any, zeros: Callable[..., Any]) -> dict[str, Callable[[], Any]]:
    """Makers of models, with `nn` one of the two libraries' and `zeros(shape)` its arrays."""

    class Block(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.norm = zeros((size,))
            self.inner = nn.Sequential(nn.Linear(size, 2 * size), nn.ReLU(), nn.Dropout(0.1))
            self.out = nn.Linear(2 * size, size, bias=False)

    class Everything(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = zeros(())
            self.blocks = [Block(2), Block(3)]
            self.heads = {"a": nn.Linear(3, 1), "b": {"c": nn.PReLU(), "d": zeros((2, 0))}}
            self.extra = [zeros((4,)), [zeros((5,)), nn.Linear(1, 2)]]
            self.size = 3
            self.nothing = None
            self.function = abs
            self._mask = zeros((7,))

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(2, 2)
            self.again = self.first
            self.listed = [self.first, nn.Linear(2, 1)]
            self.tied = self.first.weight

    def deep() -> Any:
        model = nn.Linear(2, 2)
        for _ in range(12):
            model = nn.Sequential(model)
        return model

    def convolutions() -> Any:
        return nn.Sequential(
            nn.Conv1d(2, 3, 5), nn.Conv2d(3, 4, (3, 2)), nn.Conv3d(4, 2, 3, bias=False),
            nn.ConvTranspose2d(2, 3, 3), nn.MaxPool2d(2), nn.GELU(),
        )  # fmt: skip

    return {
        "linear": lambda: nn.Linear(2, 3),
        "no parameters": nn.ReLU,
        "empty": nn.Sequential,
        "block": lambda: Block(2),
        "everything": Everything,
        "shared": Shared,
        "deep": deep,
        "convolutions": convolutions,
    }


# What is done to each model before it is recorded: calls of its methods.
RECIPES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "as made": [],
    "frozen": [("freeze", {})],
    "frozen twice, thawed": [("freeze", {}), ("freeze", {}), ("unfreeze", {})],
    "only biases": [("freeze", {}), ("unfreeze", {"keys": "bias"})],
    "frozen at the top": [("freeze", {"recurse": False})],
    "thawed at the top": [("freeze", {}), ("unfreeze", {"recurse": False})],
    "keys": [("freeze", {"keys": ["weight", "norm", "blocks", "heads.b"]})],
    "a key at the top": [("freeze", {"keys": "bias", "recurse": False})],
    "an unknown key": [("freeze", {"keys": "nowhere"})],
    "strict": [("freeze", {"keys": "bias", "strict": True})],
    "strict at the top": [("freeze", {"keys": ["bias"], "strict": True, "recurse": False})],
    "strict thaw": [("freeze", {}), ("unfreeze", {"keys": "scale", "strict": True})],
    "a number": [("freeze", {"keys": "size", "strict": True})],
    "evaluated": [("eval", {})],
    "trained": [("eval", {}), ("train", {})],
}


Flatten = Callable[..., list[tuple[str, Any]]]  # (nested, is_leaf) -> names and leaves


def record(model: Any, recipe: str, flatten: Flatten, is_module: Callable[[Any], bool]) -> Any:
    """What a model says after a recipe, as JSON; the name of an error where that raises."""
    try:
        for method, arguments in RECIPES[recipe]:
            getattr(model, method)(**arguments)
    except (KeyError, ValueError) as error:
        return type(error).__name__
    changing = {
        "trainable": sorted(name for name, _ in flatten(model.trainable_parameters())),
        "training": all(m.training for m in model.modules()),
    }
    if RECIPES[recipe]:
        return changing
    return changing | {
        "parameters": {name: list(a.shape) for name, a in sorted(flatten(model.parameters()))},
        "modules": sorted([name, type(m).__name__] for name, m in model.named_modules()),
        "leaf modules": sorted(name for name, _ in flatten(model.leaf_modules(), is_module)),
    }


def updates(ones: Callable[..., Any]) -> dict[str, Any]:
    """Arguments of `update` for "everything", most of which do not fit it."""
    return {
        "nothing": {},
        "a scalar": {"scale": ones(())},
        "deep": {"blocks": [{}, {"inner": {"layers": [{"bias": ones((6,))}]}}]},
        "in lists": {"extra": [ones((4,)), [ones((5,)), {"weight": ones((2, 1))}]]},
        "another shape": {"scale": ones((2,))},
        "an unknown name": {"scale": ones(()), "nowhere": ones(())},
        "an unknown name below": {"blocks": [{"out": {"wait": ones(())}}]},
        "too long": {"extra": [ones((4,)), {}, ones(())]},
        "a dict for an array": {"scale": {"x": ones(())}},
        "a number for an array": {"scale": 1.0},
        "a list for a module": {"blocks": [[ones(())]]},
    }


def update_record(model: Any, new: Any, strict: bool, flatten: Flatten) -> Any:
    """The shapes and sums of the parameters after an update, or "error" (MLX raises whatever its
    walk runs into)."""
    try:
        model.update(new, strict=strict)
        parameters = sorted(flatten(model.parameters()))
        return {name: [list(a.shape), float(a.sum())] for name, a in parameters}
    except Exception:
        return "error"


class Dtypes:
    """The arrays of the weight files: by name, the dtype and the values."""

    shape = (2, 3)
    names = ("float32", "float16", "bfloat16", "int32", "uint8", "complex64")

    @classmethod
    def build(cls, nn: Any, numbers: Callable[[int, tuple[int, ...], str], Any]) -> Any:
        """A module with an array of each dtype and a frozen layer; `numbers(start, shape, dtype)`
        counts up from start."""
        model = nn.Module()
        model.layers = [nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1, bias=False)]
        model.layers[0].weight = numbers(-3, (2, 3), "float32")
        model.layers[0].bias = numbers(1, (2,), "float32")
        model.layers[2].weight = numbers(5, (1, 2), "bfloat16")
        model.layers[2].freeze()
        model.table = {name: numbers(i, cls.shape, name) for i, name in enumerate(cls.names)}
        model.scalar = numbers(7, (), "float32")
        model.empty = numbers(0, (0, 4), "float16")
        model._hidden = numbers(0, (9,), "float32")
        return model


def main() -> None:
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten

    def flatten(nested: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
        return tree_flatten(nested, is_leaf=is_leaf)

    makers = models(nn, mx.zeros)
    recorded = {
        "mlx": mx.__version__,
        "models": {
            name: {recipe: record(make(), recipe, flatten, nn.Module.is_module)
                   for recipe in RECIPES}
            for name, make in makers.items()
        },
        "updates": {},
    }  # fmt: skip
    for name, new in updates(mx.ones).items():
        for strict in (True, False):
            model = makers["everything"]()
            model.apply(mx.zeros_like)
            recorded["updates"][f"{name}, {strict}"] = update_record(model, new, strict, flatten)
    (DATA / "record.json").write_text(json.dumps(recorded, separators=(",", ":")) + "\n")

    def numbers(start: int, shape: tuple[int, ...], dtype: str) -> Any:
        count = mx.arange(mx.prod(mx.array(shape or (1,))).item())
        return (count + start).reshape(shape).astype(getattr(mx, dtype))

    model = Dtypes.build(nn, numbers)
    for ending in ("npz", "safetensors"):
        model.save_weights(str(DATA / f"weights.{ending}"))


if __name__ == "__main__":
    main()
