"""Optimizers against NumPy steps written out, and what holds for all of them."""

import numpy as np
import pytest

import nuvec as nv
import nuvec.nn as nn
from nuvec.core import tree
from nuvec.nn import optim


def start(dtype=np.float64):
    return {"w": np.array([[1.0, -2.0], [0.5, 3.0]], dtype), "b": np.array([0.1, -0.2], dtype)}


def gradients(params, step):
    """Some gradients that depend on the parameters and the step."""
    return {name: np.cos(step + p).astype(p.dtype) for name, p in params.items()}


def run(optimizer, steps, dtype=np.float64, state=None, params=None, first=0):
    params = tree.map(nv.array, start(dtype)) if params is None else params
    state = optimizer.init(params) if state is None else state
    for step in range(first, first + steps):
        grads = tree.map(nv.array, gradients(tree.map(np.asarray, params), step))
        updates, state = optimizer.update(grads, state, params)
        params = optim.apply_updates(params, updates)
    return params, state


def sgd_steps(steps, lr, momentum=0.0, nesterov=False, weight_decay=0.0):
    params = start()
    trace = tree.map(np.zeros_like, params)
    for step in range(steps):
        grads = gradients(params, step)
        for name, p in params.items():
            g = grads[name] + weight_decay * p
            trace[name] = g + momentum * trace[name]
            u = g + momentum * trace[name] if nesterov else trace[name]
            params[name] = p - (lr(step) if callable(lr) else lr) * u
    return params


def adam_steps(steps, lr, b1=0.9, b2=0.999, eps=1e-8, eps_root=0.0, weight_decay=0.0, decayed="wb"):
    params = start()
    mu, nu = tree.map(np.zeros_like, params), tree.map(np.zeros_like, params)
    for step in range(steps):
        grads = gradients(params, step)
        for name, p in params.items():
            g = grads[name]
            mu[name] = b1 * mu[name] + (1 - b1) * g
            nu[name] = b2 * nu[name] + (1 - b2) * g * g
            first, second = mu[name] / (1 - b1 ** (step + 1)), nu[name] / (1 - b2 ** (step + 1))
            u = first / (np.sqrt(second + eps_root) + eps)
            if name in decayed:
                u = u + weight_decay * p
            params[name] = p - (lr(step) if callable(lr) else lr) * u
    return params


def only_matrices(params):
    return {name: p.ndim > 1 for name, p in params.items()}


def halving(step):
    return 0.1 * 0.5**step


def halving_in_float64(count):
    return halving(count.astype("float64"))


CASES = {
    "sgd": (optim.sgd(0.1), sgd_steps(7, 0.1)),
    "sgd momentum": (optim.sgd(0.1, 0.9), sgd_steps(7, 0.1, 0.9)),
    "sgd nesterov": (optim.sgd(0.1, 0.9, nesterov=True), sgd_steps(7, 0.1, 0.9, True)),
    "sgd decay": (optim.sgd(0.1, 0.5, weight_decay=0.3), sgd_steps(7, 0.1, 0.5, False, 0.3)),
    "sgd schedule": (optim.sgd(halving_in_float64), sgd_steps(7, halving)),
    "sgd array": (optim.sgd(nv.array(np.float64(0.1))), sgd_steps(7, 0.1)),
    "adam": (optim.adam(0.1), adam_steps(7, 0.1)),
    "adam arguments": (
        optim.adam(0.1, 0.8, 0.9, 1e-3, 1e-4), adam_steps(7, 0.1, 0.8, 0.9, 1e-3, 1e-4)
    ),
    "adam without b1": (optim.adam(0.1, 0.0), adam_steps(7, 0.1, 0.0)),
    "adam schedule": (optim.adam(halving_in_float64), adam_steps(7, halving)),
    "adamw": (optim.adamw(0.1, weight_decay=0.2), adam_steps(7, 0.1, weight_decay=0.2)),
    "adamw mask": (
        optim.adamw(0.1, weight_decay=0.2, mask=only_matrices),
        adam_steps(7, 0.1, weight_decay=0.2, decayed="w"),
    ),
    "adamw mask tree": (
        optim.adamw(0.1, weight_decay=0.2, mask={"w": False, "b": True}),
        adam_steps(7, 0.1, weight_decay=0.2, decayed="b"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_steps_against_numpy(name):
    optimizer, expected = CASES[name]
    params, _ = run(optimizer, 7)
    for key in expected:
        np.testing.assert_allclose(params[key], expected[key], rtol=1e-12)
    single, _ = run(optimizer, 7, np.float32)
    for key in expected:
        assert single[key].dtype == nv.float32
        np.testing.assert_allclose(single[key], expected[key], rtol=2e-4)


@pytest.mark.parametrize("name", CASES)
def test_a_resumed_run_has_the_same_bits(name):
    optimizer, _ = CASES[name]
    straight, _ = run(optimizer, 6, np.float32)
    params, state = run(optimizer, 3, np.float32)
    saved = [np.array(leaf) for leaf in tree.leaves((params, state))]
    params, state = tree.unflatten(tree.structure((params, state)), map(nv.array, saved))
    resumed, _ = run(optimizer, 3, np.float32, state, params, first=3)
    for key in straight:
        np.testing.assert_array_equal(resumed[key], straight[key])


@pytest.mark.parametrize("name", CASES)
def test_compiled_step(name):
    optimizer, expected = CASES[name]

    @nv.compile
    def step(params, state, grads):
        updates, state = optimizer.update(grads, state, params)
        return optim.apply_updates(params, updates), state

    params = tree.map(nv.array, start())
    state = optimizer.init(params)
    for i in range(7):
        grads = tree.map(nv.array, gradients(tree.map(np.asarray, params), i))
        params, state = step(params, state, grads)
    for key in expected:
        np.testing.assert_allclose(params[key], expected[key], rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("optimizer", [optim.adam(1e-3), optim.sgd(1e-3, 0.9, weight_decay=0.1)])
def test_16_bit_parameters_have_a_float32_state(dtype, optimizer):
    params = [nv.array([1.0, -1.0]).astype(dtype)]
    state = optimizer.init(params)
    floats = [leaf for leaf in tree.leaves(state) if leaf.dtype != nv.int32]
    assert floats and all(leaf.dtype == nv.float32 for leaf in floats)
    updates, after = optimizer.update([nv.array([3.0, -4.0]).astype(dtype)], state, params)
    assert tree.map(lambda x: x.dtype, after) == tree.map(lambda x: x.dtype, state)
    assert updates[0].dtype == nv.float32
    assert optim.apply_updates(params, updates)[0].dtype == params[0].dtype


def test_states_name_their_fields():
    params = tree.map(nv.array, start(np.float32))
    (adam, rate) = optim.adam(1e-3).init(params)
    assert isinstance(adam, optim.ScaleByAdamState) and rate == optim.EmptyState()
    assert adam.count.dtype == nv.int32 and adam.count.shape == ()
    assert tree.map(lambda x: x.shape, adam.mu) == tree.map(lambda x: x.shape, params)
    (trace, schedule) = optim.sgd(halving, 0.9).init(params)
    assert isinstance(trace, optim.TraceState)
    assert isinstance(schedule, optim.ScaleByScheduleState)


def test_adam_counts_in_the_dtype_of_each_parameter():
    optimizer = optim.adam(0.1)
    mixed = [nv.array([1.0]), nv.array(np.array([1.0]))]
    state = optimizer.init(mixed)
    updates, state = optimizer.update([g * 0.5 for g in mixed], state)
    assert [u.dtype for u in updates] == [nv.float32, nv.float64]
    assert abs(updates[0].item() + 0.1) < 1e-7
    assert abs(updates[1].item() + 0.1) < 1e-8


def test_parameters_without_a_gradient_stay():
    params = {"w": nv.array([1.0]), "frozen": nv.array([2.0]), "steps": nv.array(3)}
    for optimizer in (optim.adam(0.1), optim.sgd(0.1, 0.9), optim.adamw(0.1)):
        state = optimizer.init(params)
        grads = {"w": nv.array([1.0]), "frozen": None, "steps": None}
        updates, state = optimizer.update(grads, state, params)
        updates, state = optimizer.update(grads, state, params)
        assert updates["frozen"] is None and updates["steps"] is None
        after = optim.apply_updates(params, updates)
        assert after["frozen"] is params["frozen"] and after["steps"] is params["steps"]
        assert after["w"].item() < 1


def test_a_module_is_a_tree_of_parameters():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.Linear(2, 1))
    optimizer = optim.adam(0.1)
    state = optimizer.init(model)
    grads = nv.grad(lambda model: model(nv.ones((3, 2))).sum())(model)
    # The structure may change in between, the leaves may not.
    model.eval()
    updates, state = optimizer.update(grads, state, model)
    new = optim.apply_updates(model, updates)
    assert type(new) is nn.Sequential and not new.training
    np.testing.assert_allclose(new.layers[2].bias, model.layers[2].bias - 0.1, rtol=1e-5)


def test_apply_updates_keeps_dtypes_and_rounds_once():
    params = [nv.array([1.0]).astype("float16")]
    new = optim.apply_updates(params, [nv.array([2.0**-12])])
    assert new[0].dtype == nv.float16 and new[0].tolist() == [1.0]
    with pytest.raises(nv.ShapeError, match=r"float32\[2\].*float32\[1\]"):
        optim.apply_updates([nv.ones(2)], [nv.ones(1)])


def test_clip_by_global_norm():
    clip = optim.clip_by_global_norm(1.0)
    grads = {"a": nv.array([3.0, 0.0]), "b": nv.array([[4.0]])}
    assert optim.global_norm(grads).item() == 5
    clipped, _ = clip.update(grads, clip.init(grads))
    np.testing.assert_allclose(clipped["a"], [0.6, 0])
    np.testing.assert_allclose(clipped["b"], [[0.8]])
    small = {"a": nv.array([0.1, 0.7]), "b": None}
    kept, _ = clip.update(small, clip.init(small))
    np.testing.assert_array_equal(kept["a"], small["a"])
    zero, _ = clip.update([nv.zeros(2)], ())
    assert zero[0].tolist() == [0, 0]
    bad, _ = clip.update([nv.array([np.nan, 1.0])], ())
    assert np.isnan(bad[0]).all()
    assert optim.global_norm([nv.array([300.0]).astype("float16")] * 2).dtype == nv.float32


def test_chain_scale_identity():
    optimizer = optim.chain(optim.scale(2.0), optim.identity(), optim.scale(nv.array(3.0)))
    params = [nv.array([1.0])]
    updates, state = optimizer.update(params, optimizer.init(params))
    assert updates[0].tolist() == [6.0] and len(state) == 3
    with pytest.raises(nv.TreeError, match="3 transformations"):
        optimizer.update(params, ())


def test_errors():
    params = {"w": nv.ones(2), "b": nv.ones(1)}
    optimizer = optim.adam(0.1)
    with pytest.raises(nv.TreeError, match=r"without a counterpart: \['b'\]"):
        optimizer.update({"w": nv.ones(2)}, optimizer.init(params))
    with pytest.raises(ValueError, match="update\\(grads, state, params\\)"):
        optim.adamw(0.1).update(params, optim.adamw(0.1).init(params))
    with pytest.raises(nv.DtypeError, match="gradient"):
        optim.sgd(0.1).update([nv.array([1, 2])], ((),))
    with pytest.raises(nv.DtypeError, match="real"):
        optimizer.init([nv.array([1j])])
    with pytest.raises(ValueError, match="b2 must be"):
        optim.adam(0.1, 0.9, 1.0)
    with pytest.raises(ValueError, match="momentum"):
        optim.sgd(0.1, nesterov=True)


# --- Hyperparameters


def float64_schedule(count):
    return np.float64(0.1)


HYPER = np.float64(0.25)
ARRAY = nv.array(HYPER)
NUMPY = {
    "sgd": lambda h: optim.sgd(h, momentum=h, weight_decay=h),
    "nesterov": lambda h: optim.sgd(h, momentum=h, nesterov=True),
    "adam": lambda h: optim.adam(h, b1=h, b2=h, eps=h, eps_root=h),
    "adamw": lambda h: optim.adamw(h, weight_decay=h),
    "scale": lambda h: optim.scale(h),
    "decay": lambda h: optim.add_decayed_weights(h),
    "clip": lambda h: optim.clip_by_global_norm(h),
    "schedule": lambda h: optim.sgd(lambda count: h),
}


@pytest.mark.parametrize("name", NUMPY)
@pytest.mark.parametrize("value", [HYPER, ARRAY, np.array(HYPER)], ids=["scalar", "Array", "0-d"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_hyperparameters_widen_nothing(name, value, dtype):
    params = {"w": nv.array([1.0, -2.0]).astype(dtype)}
    grads = {"w": nv.array([0.5, 3.0]).astype(dtype)}

    def run(h):
        optimizer = NUMPY[name](h)
        before = optimizer.init(params)
        updates, after = optimizer.update(grads, before, params)
        assert tree.map(lambda x: x.dtype, after) == tree.map(lambda x: x.dtype, before)
        return tree.leaves((updates, after))

    for found, expected in zip(run(value), run(0.25), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def test_the_state_keeps_its_dtype_in_a_scan():
    optimizer = optim.sgd(np.float64(0.1), momentum=np.float64(0.9))
    params = nv.ones(2)

    def step(state, grads):
        return optimizer.update(grads, state)[1], None

    state, _ = nv.scan(step, optimizer.init(params), nv.ones((3, 2), dtype="float64"))
    np.testing.assert_allclose(state[0].trace, [2.71, 2.71], rtol=1e-6)
    assert state[0].trace.dtype == nv.float32


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optim.clip_by_global_norm(-1), "max_norm must be at least 0, got -1"),
        (lambda: optim.clip_by_global_norm(np.nan), "max_norm"),
        (lambda: optim.sgd(float("nan")), "learning_rate must be finite, got nan"),
        (lambda: optim.sgd(np.inf), "learning_rate must be finite"),
        (lambda: optim.sgd(0.1, momentum=-0.1), "sgd: momentum must be at least 0"),
        (lambda: optim.sgd(0.1, weight_decay=-0.1), "sgd: weight_decay"),
        (lambda: optim.trace(np.nan), "momentum"),
        (lambda: optim.adam(0.1, eps=-1e-8), "adam: eps must be at least 0"),
        (lambda: optim.adam(0.1, eps_root=-1.0), "adam: eps_root"),
        (lambda: optim.adam(0.1, b1=np.nan), "adam: b1 must be at least 0 and less than 1"),
        (lambda: optim.adamw(0.1, weight_decay=-1), "weight_decay"),
        (lambda: optim.scale(np.nan), "scale: factor"),
    ],
)
def test_hyperparameters_out_of_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_hyperparameters_that_are_no_number():
    for wrong in ("0.1", None, [0.1], True):
        with pytest.raises(TypeError, match="learning_rate is a number"):
            optim.sgd(wrong)
    with pytest.raises(nv.ShapeError, match=r"learning_rate is one number, .* shape \(2,\)"):
        optim.adam(nv.array([0.1, 0.2]))
    optimizer = optim.sgd(lambda count: nv.array([0.1, 0.2]))
    with pytest.raises(nv.ShapeError, match="schedule returns is one number"):
        optimizer.update(nv.ones(2), optimizer.init(nv.ones(2)))
    with pytest.raises(nv.DtypeError, match="real"):
        optim.sgd(1j)


def test_no_clipping_at_infinity():
    clip = optim.clip_by_global_norm(np.inf)
    assert clip.update([nv.array([3.0, 4.0])], ())[0][0].tolist() == [3, 4]


# --- What does not fit


@pytest.mark.parametrize(
    "optimizer",
    [optim.sgd(0.1), optim.sgd(halving), optim.sgd(0.1, 0.9), optim.adam(0.1), optim.adamw(0.1)],
)
@pytest.mark.parametrize("shape", [(1,), (), (1, 2), (3,)])
def test_gradients_of_another_shape_are_refused(optimizer, shape):
    params = {"layers": [{"w": nv.ones(2)}]}
    grads = {"layers": [{"w": nv.ones(shape)}]}
    with pytest.raises(nv.ShapeError, match=r"at \['layers'\]\[0\]\['w'\] there are"):
        optimizer.update(grads, optimizer.init(params), params)


def test_states_and_parts_of_another_kind_are_refused():
    for optimizer in (optim.adam(0.1), optim.sgd(0.1, 0.9), optim.scale_by_adam()):
        for wrong in (None, 3, {}):
            with pytest.raises(TypeError, match="init\\(params\\) or the last update"):
                optimizer.update(nv.ones(2), wrong)
    with pytest.raises(TypeError, match="adam: the state is the ScaleByAdamState"):
        optim.adam(0.1).update(nv.ones(2), optim.sgd(0.1, 0.9).init(nv.ones(2)))
    with pytest.raises(TypeError, match="argument 1 is no GradientTransformation but 3"):
        optim.chain(optim.adam(0.1), 3)
    with pytest.raises(TypeError, match=r"call it: adam\(\.\.\.\)"):
        optim.chain(optim.adam)
    optimizer = optim.adam(0.1)
    with pytest.raises(nv.TreeError, match="has no state"):
        optimizer.update({"w": nv.ones(2)}, optimizer.init({"w": None}))


def test_decay_of_16_bit_parameters_is_computed_in_float32():
    p = nv.array([3.0]).astype("float16")
    updates, _ = optim.add_decayed_weights(1e-4).update(p * 0, (), p)
    np.testing.assert_allclose(updates, [3e-4], rtol=1e-6)
