"""Random numbers: explicit keys, and a default stream for code that passes none.

>>> import nuvec as nv
>>> key = nv.random.key(0)
>>> x = nv.random.normal(key, (3,))  # the same numbers at every call
>>> y = nv.random.normal(shape=(3,))  # from the default stream: others at every call

A function draws the same numbers from the default stream plain, compiled, checkpointed or mapped
compiled, and a scan the same as a Python loop; a `while_loop` without `max_steps` and the backward
of a custom rule have streams of their own. The stream starts alike on every rank of a group;
`fold_in(key, group.rank())` makes keys that differ.

>>> state = nv.random.get_state()  # save it with what it takes to go on
>>> nv.random.set_state(state)
"""

from nuvec.core.functions.choices import categorical, choice, permutation, randint
from nuvec.core.functions.distributions import bernoulli, exponential, gumbel, normal, uniform
from nuvec.core.functions.keys import bits, fold_in, key, split
from nuvec.core.functions.stream import get_state, seed, set_state

__all__ = [
    "bernoulli",
    "bits",
    "categorical",
    "choice",
    "exponential",
    "fold_in",
    "get_state",
    "gumbel",
    "key",
    "normal",
    "permutation",
    "randint",
    "seed",
    "set_state",
    "split",
    "uniform",
]
