"""One call of a custom function: its arguments, taken apart, and its rules, run and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nuvec.core import dtypes, tree
from nuvec.core.array import Array, operand
from nuvec.core.errors import ArgumentError, DtypeError, ShapeError, TreeError
from nuvec.core.ir import Aval
from nuvec.core.ops.differentiation import zeros_of
from nuvec.transforms.arguments import call
from nuvec.transforms.grad import name_of
from nuvec.transforms.jvp import in_dtype, matching_leaves

_RETURNS = {
    "the function": "",
    "fwd": "fwd returns the pair (output, residuals)",
    "the jvp rule": "The rule returns the pair (output, tangent of the output)",
}


class Call:
    """One call's arguments, taken apart: the differentiable ones are a tree of arrays."""

    def __init__(self, rule: Any, args: tuple[Any, ...]) -> None:
        self.rule = rule
        self.name = name_of(rule.fun)
        count = len(args)
        option = f"{self.rule.kind} {self.name}: nondiff_argnums"
        for n in rule.nondiff:
            if not -count <= n < count:
                raise ArgumentError(f"{option}={n} of a call with {count} arguments")
        fixed = {n % count for n in rule.nondiff}
        if len(fixed) != len(rule.nondiff):
            raise ArgumentError(f"{option}={rule.nondiff} names an argument twice")
        self.fixed = {i: args[i] for i in sorted(fixed)}
        self.positions = [i for i in range(count) if i not in fixed]
        moving = tuple(args[i] for i in self.positions)
        paths, self.structure = tree.flatten_with_path(moving)
        self.arrays = [
            operand(leaf, f"{self.rule.kind} {self.name}: argument{tree.keystr(p)}")
            for p, leaf in paths
        ]
        self.avals = [a.aval for a in self.arrays]
        self.out_structure: Any = None
        self.out_avals: Sequence[Aval] | None = None  # of the function, where it was run
        self.residual_structure: Any = None
        self.residual_static: dict[int, Any] = {}

    def signature(self) -> Any:
        """What calls of one function have in common that are recorded alike."""
        fixed = tuple([(k, type(v), v) for k, v in self.fixed.items()])
        return self.structure, tuple(self.avals), fixed

    def arguments(self, arrays: Sequence[Array]) -> list[Any]:
        moving = iter(tree.unflatten(self.structure, list(arrays)))
        count = len(self.positions) + len(self.fixed)
        return [self.fixed[i] if i in self.fixed else next(moving) for i in range(count)]

    def fun(self, *arrays: Array) -> list[Array]:
        return self._flat(self.rule.fun(*self.arguments(arrays)), "the function")

    def _flat(self, result: Any, what: str) -> list[Array]:
        leaves, structure = tree.flatten(result)
        if self.out_structure is not None and structure != self.out_structure:
            raise TreeError(
                f"{self.rule.kind} {self.name}: {what} returns the output {structure}, and the "
                f"function {self.out_structure}; they must be the same. {_RETURNS[what]}"
            )
        self.out_structure = structure
        return [operand(leaf, f"an output of {self.name}") for leaf in leaves]

    def check_outputs(self, what: str, found: Sequence[Aval]) -> None:
        """Raise unless a rule's outputs are the function's, where these are known."""
        if self.out_avals is None:
            return
        paths, _ = tree.flatten_with_path(
            tree.unflatten(self.out_structure, list(range(len(found))))
        )
        for (path, _), a, b in zip(paths, self.out_avals, found, strict=True):
            if (a.shape, a.dtype) != (b.shape, b.dtype):
                raise ShapeError(
                    f"{self.rule.kind} {self.name}: output{tree.keystr(path)} of the function is "
                    f"{a}, and of {what} {b}; they must be the same"
                )

    def fwd(self, *arrays: Array) -> tuple[list[Array], list[Array]]:
        """Outputs and residuals, flat."""
        assert self.rule.fwd is not None
        what = f"{self.rule.kind} {self.name}: fwd is called with the function's arguments"
        result = call(self.rule.fwd, self.arguments(arrays), what)
        if not isinstance(result, tuple) or len(result) != 2:
            raise TreeError(
                f"{self.rule.kind} {self.name}: fwd must return a pair (output, residuals), and it "
                f"returned {type(result).__name__}"
            )
        outs = self._flat(result[0], "fwd")
        leaves, self.residual_structure = tree.flatten(result[1])
        # What is no array (a shape, an axis, a flag) is handed to bwd as it is.
        self.residual_static = {
            i: x for i, x in enumerate(leaves) if not isinstance(x, Array | np.ndarray | np.generic)
        }
        return outs, [
            operand(x, f"a residual of {self.name}")
            for i, x in enumerate(leaves)
            if i not in self.residual_static
        ]

    def bwd(self, residuals: Sequence[Array], cs: Sequence[Array]) -> list[Array | None]:
        """The arguments' cotangents, flat, checked against the arguments."""
        assert self.rule.bwd is not None
        kept, static = iter(residuals), self.residual_static
        count = self.residual_structure.num_leaves
        leaves = [static[i] if i in static else next(kept) for i in range(count)]
        given = [
            *self.fixed.values(),
            tree.unflatten(self.residual_structure, leaves),
            tree.unflatten(self.out_structure, list(cs)),
        ]
        fixed = "the arguments at nondiff_argnums, " if self.fixed else ""
        what = f"{self.rule.kind} {self.name}: bwd is called with {fixed}residuals and cotangents"
        result = call(self.rule.bwd, given, what)
        if not isinstance(result, tuple | list) or len(result) != len(self.positions):
            raise TreeError(
                f"{self.rule.kind} {self.name}: bwd must return a tuple with a cotangent for each "
                f"of the {len(self.positions)} differentiable arguments; it returned "
                + (f"{len(result)}" if isinstance(result, tuple | list) else type(result).__name__)
            )
        flat: list[Array | None] = []
        for i, (part, c) in enumerate(zip(self.structure.children, result, strict=True)):
            flat += self._cotangent(i, part, c, self.avals[len(flat) : len(flat) + part.num_leaves])
        return flat

    def jvp(self, *arrays: Array) -> list[Array]:
        """Outputs and tangents by the forward-mode rule, flat, from primals and tangents."""
        assert self.rule.jvp is not None
        count = len(self.avals)
        primals = tree.unflatten(self.structure, list(arrays[:count]))
        tangents = tree.unflatten(self.structure, list(arrays[count:]))
        fixed = "the arguments at nondiff_argnums, " if self.fixed else ""
        what = f"{self.rule.kind} {self.name}: the jvp rule is called with {fixed}primals, tangents"
        result = call(self.rule.jvp, [*self.fixed.values(), primals, tangents], what)
        if not isinstance(result, tuple) or len(result) != 2:
            raise TreeError(
                f"{self.rule.kind} {self.name}: the jvp rule must return (out, tangent_out)"
            )
        outs = self._flat(result[0], "the jvp rule")
        self.check_outputs("the jvp rule", [o.aval for o in outs])
        moved = tree.leaves(result[1], is_leaf=lambda t: t is None)
        if len(moved) != len(outs):
            raise TreeError(
                f"{self.rule.kind} {self.name}: the jvp rule's tangent is "
                f"{tree.structure(result[1])}, and the output {self.out_structure}"
            )
        found = []
        for t, out in zip(moved, outs, strict=True):
            array = zeros_of(out.aval) if t is None else operand(t, f"a tangent of {self.name}")
            if array.dtype != out.dtype and array.aval.weak:
                array = array.astype(out.dtype)
            both = f"the jvp rule's tangent is {array.aval}, and the output {out.aval}"
            if array.shape != out.shape:
                raise ShapeError(
                    f"{self.rule.kind} {self.name}: {both}; their shapes must be equal"
                )
            if array.dtype != out.dtype:
                raise DtypeError(
                    f"{self.rule.kind} {self.name}: {both}; convert it with "
                    f".astype({dtypes.name(out.dtype)!r})"
                )
            found.append(array)
        return [*outs, *found]

    def _cotangent(
        self, i: int, structure: Any, c: Any, avals: Sequence[Aval]
    ) -> list[Array | None]:
        if c is None:
            return [None] * structure.num_leaves
        what = f"{self.rule.kind} {self.name}: bwd's cotangents for argument {self.positions[i]}"
        leaves = matching_leaves(what, structure, c)
        paths, _ = tree.flatten_with_path(tree.unflatten(structure, list(range(len(avals)))))
        found: list[Array | None] = []
        for leaf, a, (path, _) in zip(leaves, avals, paths, strict=True):
            where = what.replace("cotangents", "cotangent") + tree.keystr(path)
            if leaf is None:
                found.append(None)
                continue
            array = operand(leaf, where)
            if array.shape != a.shape:
                raise ShapeError(
                    f"{where} has shape {array.shape}, and the argument {a.shape}; they must be "
                    "equal (sum over what the function broadcast)"
                )
            if not dtypes.is_inexact(a.dtype):  # it has no derivative, whatever is returned
                found.append(None)
                continue
            says = f"{where} is {array.aval}, and the argument {a}"
            found.append(in_dtype(array, a, says))
        return found
