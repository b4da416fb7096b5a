"""compile: one trace a signature, captures read through their handle, errors that name places."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.array import from_numpy
from nuvec.core.errors import ConcretizationError, LeakedTracerError
from nuvec.core.node import context
from nuvec.testing import check_compile
from nuvec.transforms.compile import CACHE_SIZE, compile
from nuvec.transforms.grad import grad, value_and_grad
from nuvec.transforms.vmap import vmap


class Counted:
    """A function that counts how often Python runs it."""

    def __init__(self, f: Any) -> None:
        self.f = f
        self.runs = 0
        self.__name__ = "counted"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.runs += 1
        return self.f(*args, **kwargs)


def test_one_trace_a_signature() -> None:
    f = Counted(lambda x, y: {"s": x + y, "p": [x * y]})
    g = compile(f)
    for value in (1.0, 2.5):
        out = g(nv.full(3, value, dtype=np.float32), nv.ones(3))
        assert out["s"].tolist() == [value + 1] * 3
    assert f.runs == 1
    g(nv.ones(4), nv.ones(4))
    assert f.runs == 2
    g(nv.ones(4), nv.ones(4, dtype=np.float64))
    assert f.runs == 3
    g(nv.ones(3), nv.ones(3))
    assert f.runs == 3


def test_python_scalars_do_not_trace_again_and_stay_weak() -> None:
    f = Counted(lambda x, s: x * s)
    g = compile(f)
    x = nv.ones(2, dtype=np.float16)
    for s in (1.0, 2.0, 3.5):
        out = g(x, s)
        assert out.dtype == np.float16 and out.tolist() == [s, s]
    assert f.runs == 1
    g(x, 2)  # an integer is another signature
    assert f.runs == 2
    assert g(x, True).dtype == np.float16


def test_static_arguments() -> None:
    f = Counted(lambda x, n, mode="a": x * n if mode == "a" else x - n)
    g = compile(f, static_argnums=1, static_argnames="mode")
    assert g(3.0, 2).item() == 6
    assert g(3.0, 2).item() == 6 and f.runs == 1
    assert g(3.0, 4).item() == 12 and f.runs == 2
    assert g(3.0, 4, mode="b").item() == -1 and f.runs == 3
    assert g(3.0, 2.0).item() == 6 and f.runs == 4  # 2 and 2.0 are equal and not the same
    with pytest.raises(TypeError, match="hashable"):
        g(3.0, [1])
    assert compile(static_argnums=(0,))(lambda n: nv.ones(n))(3).shape == (3,)


def test_keyword_arguments_and_structures() -> None:
    f = Counted(lambda x, *, scale: x["a"] * scale)
    g = compile(f)
    assert g({"a": nv.ones(2)}, scale=2.0).tolist() == [2, 2]
    g({"a": nv.ones(2), "b": nv.ones(3)}, scale=2.0)
    assert f.runs == 2
    assert compile(lambda: nv.ones(2) * 3)().tolist() == [3, 3]
    assert compile(lambda x: None)(1.0) is None
    assert compile(lambda x: (x, x, 5))(2.0)[2].item() == 5


def test_captured_arrays_are_read_through_their_handle() -> None:
    w = nv.array([1.0, 2.0])
    f = Counted(lambda x: x * w)
    g = compile(f)
    assert g(nv.ones(2)).tolist() == [1, 2]
    w[0] = 10.0
    assert g(nv.ones(2)).tolist() == [10, 2]
    w += 1
    assert g(nv.ones(2)).tolist() == [11, 3]
    assert f.runs == 1
    gradient = grad(lambda x: nv.sum(g(x)))
    assert gradient(nv.ones(2)).tolist() == [11, 3]
    w *= 2
    assert gradient(nv.ones(2)).tolist() == [22, 6]
    assert vmap(g)(nv.ones((2, 2))).tolist() == [[22, 6]] * 2


def test_a_capture_rebound_to_another_shape_traces_again() -> None:
    w = nv.array([1.0, 2.0])
    f = Counted(lambda x: nv.sum(x * w))
    g = compile(f)
    assert g(2.0).item() == 6
    w._node = nv.ones(5)._node
    assert g(2.0).item() == 10 and f.runs == 2


def test_a_captured_traced_value() -> None:
    """A function compiled inside grad captures the differentiated value."""
    assert grad(lambda w: compile(lambda x: x * w * w)(3.0))(2.0).item() == 12
    assert vmap(lambda w: compile(lambda x: x * w)(3.0))(nv.array([1.0, 2.0])).tolist() == [3, 6]


def test_forcing_an_argument_or_a_capture_raises() -> None:
    w = nv.array(2.0)

    def on_argument(x: Any) -> Any:
        return x if x > 0 else -x

    def on_capture(x: Any) -> Any:
        return x if w > 0 else -x

    with pytest.raises(ConcretizationError) as caught:
        compile(on_argument)(1.0)
    text = str(caught.value)
    assert "argument 'x' of on_argument" in text and "test_compile.py" in text
    assert "nv.where" in text and "static_argnums" in text
    with pytest.raises(ConcretizationError, match=r"(?s)captured|inside compile"):
        compile(on_capture)(1.0)
    for force in (float, np.asarray, lambda v: v.item(), lambda v: v.tolist(), nv.eval):
        with pytest.raises((ConcretizationError, TypeError)):
            compile(lambda x, force=force: (force(w), x)[1])(1.0)
        with pytest.raises((ConcretizationError, TypeError)):
            compile(lambda x, force=force: (force(x), x)[1])(1.0)
    assert context.traces == () and context.scope is None
    assert w.item() == 2


def test_a_constant_made_inside_is_real() -> None:
    def f(x: Any) -> Any:
        return x * 2 if nv.array(1.0) > 0 else x

    try:
        assert compile(f)(3.0).item() == 6
    except ConcretizationError:
        pass  # it may as well be recorded


def test_a_trace_that_raises_leaves_nothing_behind() -> None:
    fail = [True]

    def f(x: Any) -> Any:
        y = x * 2
        if fail[0]:
            raise KeyError("on purpose")
        return y

    g = compile(f)
    with pytest.raises(KeyError, match="on purpose"):
        g(1.0)
    assert context.traces == () and context.scope is None and context.observed is None
    fail[0] = False
    assert g(1.0).item() == 2


def test_leaked_placeholders() -> None:
    kept = []

    def f(x: Any) -> Any:
        kept.append(x * 2)
        return x

    compile(f)(1.0)
    with pytest.raises(LeakedTracerError, match="return it"):
        kept[0].item()
    with pytest.raises(LeakedTracerError):
        (kept[0] + 1).item()
    with pytest.raises(LeakedTracerError):
        compile(lambda x: x + kept[0])(1.0).item()
    with pytest.raises(LeakedTracerError):
        grad(lambda x: x * kept[0])(1.0).item()


def test_what_was_captured_of_a_transform_that_has_returned_is_refused() -> None:
    kept: dict[str, Any] = {}

    def through(w: Any) -> Any:
        if "c" not in kept:
            kept["c"] = compile(lambda x: x * (w * 2))
        return kept["c"](nv.ones(2)).sum() + kept["c"](nv.ones(2)).sum()

    def tangent(f: Any, x: Any) -> Any:
        return nv.jvp(f, (x,), (x,))[1]

    for transform, expected in ((grad, 8), (vmap, 16), (lambda f: partial(tangent, f), 16)):
        kept.clear()
        x = nv.array([2.0]) if transform is vmap else nv.array(2.0)
        assert transform(through)(x).item() == expected
        for again in (lambda t=transform, x=x: t(through)(x), lambda: kept["c"](nv.ones(2))):
            with pytest.raises(LeakedTracerError, match=r"test_compile.*of through.* captured"):
                again()


def test_values_that_transforms_returned_can_be_captured() -> None:
    value, pull = nv.vjp(lambda x: x * x, nv.array(3.0))
    loss, gradient = value_and_grad(lambda x: x * x)(nv.array(2.0))
    f = compile(lambda x: x * value * loss * gradient + pull(x)[0])
    assert [f(1.0).item(), grad(f)(1.0).item(), f(2.0).item()] == [150, 150, 300]


def test_explain() -> None:
    w = nv.ones(3)
    g = compile(lambda x: x * w)
    assert "nothing is cached" in g.explain(nv.ones(3))
    g(nv.ones(3))
    assert "cache" in g.explain(nv.ones(3)) and "float32[3]" in g.explain(nv.ones(3))
    text = g.explain(nv.ones(3, dtype=np.float64))
    assert "traces" in text and "float64[3]" in text and "float32[3]" in text
    assert "structure" in g.explain((nv.ones(3),))
    d = compile(lambda: nv.random.uniform())
    d()
    assert "random" in d.explain()


def test_the_cache_is_bounded() -> None:
    g = compile(lambda x: x * 1.0)
    for n in range(CACHE_SIZE + 5):
        g(nv.ones(n))
    assert len(g._cache) == CACHE_SIZE


def test_draws_differ_at_every_run() -> None:
    g = compile(lambda x: (nv.random.uniform() + x, nv.random.uniform()))
    seen = [v.item() for _ in range(3) for v in g(0.0)]
    assert len(set(seen)) == 6
    nv.random.seed(5)
    first = [v.item() for v in g(0.0)]
    nv.random.seed(5)
    assert [v.item() for v in g(0.0)] == first
    with pytest.raises(ConcretizationError, match="seed"):
        compile(lambda x: (nv.random.seed(1), x)[1])(0.0)


def test_a_gradient_sees_the_draw_of_its_forward() -> None:
    def f(x: Any) -> Any:
        return nv.sum(x * nv.random.uniform(shape=(3,)))

    for g in (value_and_grad(compile(f)), compile(value_and_grad(f)), value_and_grad(f)):
        value, gradient = g(nv.ones(3))
        np.testing.assert_allclose(value, np.sum(np.asarray(gradient)), rtol=1e-6)


def test_assignments_to_an_argument_stay_local() -> None:
    x = nv.array([1.0, 2.0])

    def f(x: Any) -> Any:
        x[0] = x[1] * 10
        x += 1
        return x

    g = compile(f)
    for _ in range(2):
        assert g(x).tolist() == [21, 3]
    assert x.tolist() == [1, 2]


def test_results_are_fresh_and_repeatable() -> None:
    g = compile(lambda x: (x, x + 1, nv.reshape(x, (2, 1))))
    x = nv.ones(2)
    first = g(x)
    second = g(x * 5)
    assert [r.tolist() for r in first] == [[1, 1], [2, 2], [[1], [1]]]
    assert second[0].tolist() == [5, 5]


def test_errors_of_evaluation_are_raised_by_the_call() -> None:
    g = compile(lambda x, i: x[i])
    assert g(nv.arange(3), nv.array(2)).item() == 2
    for _ in range(2):
        with pytest.raises(IndexError):
            g(nv.arange(3), nv.array(7))
    assert g(nv.arange(3), nv.array(1)).item() == 1


def test_nested_and_methods() -> None:
    inner = compile(lambda x: nv.sin(x) * 2)
    outer = compile(lambda x: inner(x) + inner(x + 1))
    check_compile(lambda x: inner(x) + inner(x + 1), (np.float32(0.5),))
    np.testing.assert_allclose(outer(0.5), 2 * np.sin(0.5) + 2 * np.sin(1.5), rtol=1e-6)

    class Model:
        def __init__(self) -> None:
            self.w = nv.array(3.0)

        @compile
        def scaled(self, x: Any) -> Any:
            return x

        def step(self, x: Any) -> Any:
            return self.w * x

    model = Model()
    step = compile(model.step)
    assert step(2.0).item() == 6
    model.w[...] = 5.0
    assert step(2.0).item() == 10


def test_nothing_of_a_call_is_kept() -> None:
    g = compile(lambda x: x * 2)
    x = from_numpy(np.ones(1000))
    out = g(x)
    seen = [weakref.ref(x), weakref.ref(out)]
    del x, out
    gc.collect()
    assert [r() for r in seen] == [None, None]


def test_disable_compile() -> None:
    f = Counted(lambda x: x * 2 if x > 0 else x)
    with nv.config.override(disable_compile=True):
        g = compile(f)
        assert g(nv.array(2.0)).item() == 4 and g(nv.array(-2.0)).item() == -2
    assert f.runs == 2


def test_assignments_stay_local_without_compiling_too() -> None:
    def write(a: Any, n: int, b: Any) -> Any:
        a[0] = n
        return b

    x = nv.ones(2)
    with nv.config.override(disable_compile=True):
        assert compile(write, static_argnums=1)(x, 9, b=x).tolist() == [1, 1]
    assert x.tolist() == [1, 1]
