"""The strategies draw what they say (programs: see test_programs.py)."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import nuvec as nv
from nuvec.testing import strategies as ns

quick = settings(max_examples=25, deadline=None, derandomize=True, database=None)


@quick
@given(st.data())
def test_arrays_and_axes(data: Any) -> None:
    x = data.draw(ns.arrays(ns.dtypes))
    assert x.ndim <= 3
    axis = data.draw(ns.axes(x.ndim))
    if x.dtype != np.bool_:
        np.testing.assert_allclose(
            np.asarray(nv.sum(nv.array(x), axis=axis)).astype(np.complex128),
            np.sum(x.astype(np.complex128), axis=axis), rtol=2e-2,
        )  # fmt: skip


@quick
@given(ns.broadcastable(3))
def test_broadcastable(shapes: Any) -> None:
    found = nv.zeros(shapes[0]) + nv.zeros(shapes[1]) + nv.zeros(shapes[2])
    assert found.shape == np.broadcast_shapes(*shapes)


def test_without_hypothesis_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "import nuvec.testing\n"
        "try:\n    import nuvec.testing.strategies\n"
        "except ImportError as e: assert 'pip install hypothesis' in str(e)\n"
        "else: raise SystemExit('imported')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
