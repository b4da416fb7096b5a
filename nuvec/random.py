"""Random numbers: explicit keys, and a default stream for code that passes none.

>>> import nuvec as nv
>>> key = nv.random.key(0)
>>> x = nv.random.normal(key, (3,))  # the same numbers at every call
>>> y = nv.random.normal(shape=(3,))  # from the default stream: others at every call
"""

from nuvec.core.functions.distributions import (
    bernoulli,
    bits,
    exponential,
    fold_in,
    gumbel,
    key,
    normal,
    randint,
    split,
    uniform,
)
from nuvec.core.functions.stream import seed

__all__ = [
    "bernoulli",
    "bits",
    "exponential",
    "fold_in",
    "gumbel",
    "key",
    "normal",
    "randint",
    "seed",
    "split",
    "uniform",
]
