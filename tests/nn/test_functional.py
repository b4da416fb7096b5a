"""nn.functional_call, alone and under every transform."""

import numpy as np
import pytest

import nuvec as nv
import nuvec.nn as nn
from nuvec.core import tree


def make():
    nv.random.seed(3)
    return nn.Sequential(nn.Linear(3, 4), nn.tanh, nn.Linear(4, 2)), nv.ones((5, 3))


class Counting(nn.Module):
    """Changes its buffers in all the ways there are."""

    def __init__(self):
        super().__init__()
        self.weight = nv.ones(2)
        self.mean = nv.zeros(2)
        self.steps = [nv.array(0)]
        self.cache = None
        self._last = nv.zeros(2)
        self.freeze(keys=["mean", "steps.0"])

    def __call__(self, x):
        self.mean = 0.5 * self.mean + 0.5 * x
        self.steps[0] += 1
        self.cache = x * 2
        self._last[0] = 7.0
        self.weight *= 1.0
        return self.weight * x


def state_of(model):
    arrays = [np.array(leaf) for leaf in tree.leaves(model.state)]
    return [(id(v), k) for k, v in vars(model).items()], arrays


def assert_untouched(model, before):
    after = state_of(model)
    assert after[0] == before[0]
    for a, b in zip(after[1], before[1], strict=True):
        np.testing.assert_array_equal(a, b)


def loss(model, x):
    return (model(x) ** 2).sum()


def functional_loss(model):
    return lambda params, x: (nn.functional_call(model, params, x) ** 2).sum()


def test_it_is_the_call_with_these_parameters():
    model, x = make()
    params = tree.map(lambda p: 2 * p, model.parameters())
    before = state_of(model)
    y = nn.functional_call(model, params, x)
    assert_untouched(model, before)
    np.testing.assert_array_equal(y, model.update(params)(x))


def test_some_parameters_or_a_module_will_do():
    model, x = make()
    bias = nv.full(2, 3.0)
    y = nn.functional_call(model, {"layers": [{}, {}, {"bias": bias}]}, x)
    np.testing.assert_allclose(y, model(x) - model.layers[2].bias + bias, rtol=1e-5)
    np.testing.assert_array_equal(nn.functional_call(model, {}, x), model(x))
    other = tree.map(lambda p: -p, model)
    np.testing.assert_array_equal(nn.functional_call(model, other, x), other(x))
    nothing = tree.map(lambda p: None, model.parameters())
    np.testing.assert_array_equal(nn.functional_call(model, nothing, x), model(x))


def test_arguments_are_passed_on():
    class Add(nn.Module):
        def __call__(self, model, *, params):
            return model + params

    assert nn.functional_call(Add(), {}, 1, params=2) == 3
    with pytest.raises(NotImplementedError, match="Module"):
        nn.functional_call(nn.Module(), {}, model=1)


def test_the_model_and_the_parameters_stay_what_they_were():
    model = Counting()
    before = state_of(model)
    params = {"weight": nv.full(2, 2.0), "steps": [nv.array(5)]}
    assert nn.functional_call(model, params, nv.ones(2)).tolist() == [2.0, 2.0]
    assert_untouched(model, before)
    assert model.cache is None and params["steps"][0].item() == 5

    class Fails(Counting):
        def __call__(self, x):
            super().__call__(x)
            raise RuntimeError("no result")

    model = Fails()
    before = state_of(model)
    with pytest.raises(RuntimeError, match="no result"):
        nn.functional_call(model, {}, nv.ones(2))
    assert_untouched(model, before)


def test_state_may_be_given():
    model = Counting()
    state = dict(model.state, _last=nv.full(2, 4.0))
    seen = []

    class Shows(Counting):
        def __call__(self, x):
            seen.append(self._last.tolist())

    nn.functional_call(Shows(), state, nv.ones(2))
    assert seen == [[4.0, 4.0]]


TRANSFORMS = {
    "grad": lambda model, params, x: nv.grad(functional_loss(model))(params, x),
    "compiled": lambda model, params, x: nv.compile(nv.grad(functional_loss(model)))(params, x),
    "grad of compiled": lambda model, params, x: nv.grad(nv.compile(functional_loss(model)))(
        params, x
    ),
    "checkpoint": lambda model, params, x: nv.grad(nv.checkpoint(functional_loss(model)))(
        params, x
    ),
    "vmap of grad": lambda model, params, x: tree.map(
        lambda g: g.sum(axis=0),
        nv.vmap(nv.grad(functional_loss(model)), in_axes=(None, 0))(params, x[:, None]),
    ),
    "grad of vmap": lambda model, params, x: nv.grad(
        lambda p: nv.vmap(functional_loss(model), in_axes=(None, 0))(p, x[:, None]).sum()
    )(params),
    "scan": lambda model, params, x: nv.grad(
        lambda p: nv.scan(
            lambda total, row: (total + functional_loss(model)(p, row[None]), None),
            nv.array(0.0),
            x,
        )[0]
    )(params),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_gradients_are_those_of_the_model(name):
    model, x = make()
    model.layers[0].freeze(keys="bias")
    params = model.trainable_parameters()
    before = state_of(model)
    grads = TRANSFORMS[name](model, params, x)
    assert_untouched(model, before)
    assert tree.structure(grads) == tree.structure(params)
    _, expected = nn.value_and_grad(model, loss)(model, x)
    for a, b in zip(tree.leaves(grads), tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("transform", [nv.grad, nv.compile, nv.vmap, nv.jacfwd])
def test_changed_buffers_do_not_leak_from_a_transform(transform):
    model = Counting()
    before = state_of(model)
    calls = {
        nv.grad: lambda f: nv.grad(lambda w: f(w).sum())(nv.ones(2)),
        nv.compile: lambda f: nv.compile(f)(nv.ones(2)),
        nv.vmap: lambda f: nv.vmap(f)(nv.ones((3, 2))),
        nv.jacfwd: lambda f: nv.jacfwd(f)(nv.ones(2)),
    }
    out = calls[transform](lambda w: nn.functional_call(model, {"weight": w}, nv.ones(2)))
    assert np.isfinite(np.asarray(out)).all()
    assert_untouched(model, before)


def test_an_ensemble_by_vmap():
    model, x = make()
    stacked = tree.map(lambda p: nv.stack([p, 2 * p, 0 * p]), model.parameters())
    y = nv.vmap(lambda p: nn.functional_call(model, p, x))(stacked)
    for i in range(3):
        one = tree.map(lambda p, i=i: p[i], stacked)
        np.testing.assert_allclose(y[i], nn.functional_call(model, one, x), rtol=1e-5)


def test_second_derivatives():
    model, x = make()
    params = model.parameters()
    f = functional_loss(model)
    tangent = tree.map(nv.ones_like, params)
    _, found = nv.jvp(lambda p: nv.grad(f)(p, x), (params,), (tangent,))
    _, whole = nv.jvp(lambda m: nv.grad(loss)(m, x), (model,), (tree.map(nv.ones_like, model),))
    for a, b in zip(tree.leaves(found), tree.leaves(whole.parameters()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_a_shared_module_is_one():
    layer = nn.Linear(2, 2)
    model = nn.Sequential(layer, nn.tanh, layer)
    x = nv.ones((3, 2))
    weight = nv.array([[1.0, 2.0], [3.0, 4.0]])
    first_only = nn.functional_call(model, {"layers": [{"weight": weight}]}, x)
    other = nn.Linear(2, 2).update({"weight": weight, "bias": layer.bias})
    np.testing.assert_allclose(first_only, other(nn.tanh(other(x))), rtol=1e-6)
    grads = nv.grad(functional_loss(model))(model.parameters(), x)
    expected = nv.grad(lambda m: (m(nn.tanh(m(x))) ** 2).sum())(layer)
    np.testing.assert_allclose(grads["layers"][2]["weight"], expected.weight, rtol=1e-5)
    assert not np.asarray(grads["layers"][0]["weight"]).any()


def test_training_without_a_change_to_the_model():
    model, x = make()
    model.layers[0].freeze()
    frozen = np.array(model.layers[0].weight)
    optimizer = nn.adamw(0.05, weight_decay=0.1)
    params = model.trainable_parameters()
    state = optimizer.init(params)

    @nv.compile
    def step(params, state, x):
        value, grads = nv.value_and_grad(functional_loss(model))(params, x)
        updates, state = optimizer.update(grads, state, params)
        return nn.apply_updates(params, updates), state, value

    values = []
    for _ in range(30):
        params, state, value = step(params, state, x)
        values.append(value.item())
    assert values[-1] < 0.5 * values[0]
    model.update(params)
    np.testing.assert_array_equal(model.layers[0].weight, frozen)


def test_all_that_does_not_fit_is_named_at_once():
    model, x = make()
    params = {
        "layers": [
            {"wait": nv.ones(1), "weight": nv.ones((3, 4))}, {}, {"bias": 1.0}, {"weight": x}
        ],
        "head": nv.ones(1),
    }  # fmt: skip
    with pytest.raises(nv.TreeError) as error:
        nn.functional_call(model, params, x)
    text = str(error.value)
    assert "do not fit this Sequential" in text
    assert "unexpected (3): head, layers.0.wait, layers.3.weight" in text
    assert "another shape: layers.0.weight is float32[4,3] here, got float32[3,4]" in text
    assert "no array: layers.2.bias is float32[2] here, got a float" in text
    with pytest.raises(nv.TreeError, match=r"float32\[4,3\] here, got float32\[2,4,3\]"):
        nn.functional_call(model, {"layers": [{"weight": nv.ones((2, 4, 3))}]}, x)
    with pytest.raises(nv.TreeError, match="another shape"):
        nv.vmap(lambda p: nn.functional_call(model, p, x))(
            {"layers": [{"weight": nv.ones((2, 3, 4))}]}
        )


def test_what_is_no_module_or_no_parameters_is_named():
    model, x = make()
    with pytest.raises(nv.ArgumentError, match="takes a module first, got dict"):
        nn.functional_call(model.parameters(), model, x)
    with pytest.raises(nv.ArgumentError, match="nested as model"):
        nn.functional_call(model, x)


def test_another_dtype_is_used_as_it_is():
    model, x = make()
    params = tree.map(lambda p: p.astype(nv.bfloat16), model.parameters())
    assert nn.functional_call(model, params, x.astype(nv.bfloat16)).dtype == nv.bfloat16
