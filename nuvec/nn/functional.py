"""functional_call: a module's call as a function of its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nuvec.core.array import Array
from nuvec.core.errors import ArgumentError, TreeError
from nuvec.core.primitive import local_handle
from nuvec.core.traceback import filtered
from nuvec.nn.contents import arrays, copied, replace
from nuvec.nn.module import Module
from nuvec.nn.names import differences, named_leaves
from nuvec.nn.writing import write

__all__ = ["functional_call"]


@filtered
def functional_call(model: Module, params: Any, /, *args: Any, **kwargs: Any) -> Any:
    """What `model(*args, **kwargs)` returns with other parameters; the model stays as it is.

    params -- nested as `model.parameters()` returns it, or a module of the same make; what it
              does not mention, and what is None in it, the model's own is used for. So
              `trainable_parameters()` will do, and so will `state`, which has the underscore
              attributes too

    It is `copy.update(params)(*args, **kwargs)` for a copy that is thrown away, in which a module
    found in two places is still one: the last of its parameters counts, as for `update`. What the
    call assigns to attributes (running statistics) is lost; `nn.value_and_grad` keeps it.

    Under `nv.grad`, `nv.vmap`, `nv.compile` and in loops it is a function like any other. It is
    the way to differentiate in what is not frozen, with the gradients nested as the parameters.

    Raises TreeError, naming all of them, for names the model does not have and for arrays of
    another shape than the model's. Another dtype is used as it is.

    >>> import nuvec as nv
    >>> import nuvec.nn as nn
    >>> model = nn.Linear(2, 1).freeze(keys="weight")
    >>> def loss(params, x):
    ...     return nn.functional_call(model, params, x).sum()
    >>> nv.grad(loss)(model.trainable_parameters(), nv.ones((3, 2)))
    {'bias': array([3.], dtype=float32)}

    One model for each row of a stack of parameters:

    >>> params = {"bias": nv.array([[0.0], [1.0]])}
    >>> nv.vmap(loss, in_axes=(0, None))(params, nv.zeros((3, 2)))
    array([0., 3.], dtype=float32)
    """
    if not isinstance(model, Module):
        raise ArgumentError(
            f"functional_call takes a module first, got {type(model).__name__}: "
            "functional_call(model, params, *args)."
        )
    if isinstance(params, Module):
        params = params.parameters()
    if not isinstance(params, Mapping):
        raise ArgumentError(
            "functional_call: params is nested as model.parameters(), or is a module; got "
            f"{type(params).__name__}. Write functional_call(model, params, *args)."
        )
    given = {name: leaf for name, leaf in named_leaves(params) if leaf is not None}
    wrong = differences(dict(named_leaves(model.state)), given, complete=False, same_dtype=False)
    if wrong:
        raise TreeError(
            f"functional_call: the parameters do not fit this {type(model).__name__}:\n" + wrong
        )
    made = copied(model)
    write(made, params, Array, strict=True)
    # Handles of its own: `self.count += 1` in the call is not to reach the model, or `params`.
    replace(made, {id(array): local_handle(array) for array in arrays(made)})
    return made(*args, **kwargs)
