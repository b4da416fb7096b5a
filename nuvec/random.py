"""Random numbers: explicit keys, and a default stream for code that passes none.

>>> import nuvec as nv
>>> key = nv.random.key(0)
>>> x = nv.random.normal(key, (3,))  # the same numbers at every call
>>> y = nv.random.normal(shape=(3,))  # from the default stream: others at every call
"""

from nuvec.core.functions.choices import categorical, choice, permutation, randint
from nuvec.core.functions.distributions import bernoulli, exponential, gumbel, normal, uniform
from nuvec.core.functions.keys import bits, fold_in, key, split
from nuvec.core.functions.stream import seed

__all__ = [
    "bernoulli",
    "bits",
    "categorical",
    "choice",
    "exponential",
    "fold_in",
    "gumbel",
    "key",
    "normal",
    "permutation",
    "randint",
    "seed",
    "split",
    "uniform",
]
