"""nuvec: functional transforms of NumPy programs.  INTERIM namespace."""

import importlib as _importlib
import pkgutil as _pkgutil

from nuvec.core.array import Array, eval
from nuvec.core.functions import methods as _methods
from nuvec.core.dtypes import *  # noqa: F403
import nuvec.core.ops as _ops
import nuvec.core.functions as _functions

for _package in (_ops, _functions):
    for _info in _pkgutil.iter_modules(_package.__path__):
        try:
            _module = _importlib.import_module(_package.__name__ + "." + _info.name)
        except Exception as _error:
            print("interim nuvec/__init__.py: skipping", _info.name, type(_error).__name__, _error)
            continue
        for _k, _v in vars(_module).items():
            if callable(_v) and not _k.startswith("_") and not isinstance(_v, type):
                if getattr(_v, "__module__", "").startswith("nuvec"):
                    globals().setdefault(_k, _v)
from nuvec.core.functions.creation import *  # noqa: F403
from nuvec import linalg, random, tree
from nuvec.core.functions.creation import astype  # noqa
for _m,_ns in (("grad","grad value_and_grad vjp jacrev hessian"),("vmap","vmap"),("jvp","jvp jacfwd linearize"),("compile","compile")):
    try:
        _mod = _importlib.import_module("nuvec.transforms."+_m)
        for _n in _ns.split():
            if hasattr(_mod,_n): globals()[_n]=getattr(_mod,_n)
    except Exception as _error:
        print("interim nuvec/__init__.py: skipping", _m, type(_error).__name__, _error)
__all__ = [_k for _k in dir() if not _k.startswith("_")]
