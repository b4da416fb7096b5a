"""nn.value_and_grad."""

import numpy as np
import pytest

import nuvec as nv
import nuvec.nn as nn
from nuvec.core import tree


def loss(model, x):
    y = model(x)
    return (y * y).sum()


def make():
    return nn.Sequential(nn.Linear(3, 4), nn.tanh, nn.Linear(4, 2)), nv.ones((5, 3))


def test_gradients_are_nested_as_trainable_parameters():
    model, x = make()
    value, grads = nn.value_and_grad(model, loss)(model, x)
    whole = nv.grad(loss)(model, x)
    assert value.item() == loss(model, x).item()
    assert tree.structure(grads) == tree.structure(model.trainable_parameters())
    for a, b in zip(tree.leaves(grads), tree.leaves(whole.parameters()), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_model_may_be_closed_over():
    model, x = make()
    before = tree.leaves(model)
    _, grads = nn.value_and_grad(model, lambda x: loss(model, x))(x)
    np.testing.assert_array_equal(
        grads["layers"][2]["bias"], nv.grad(loss)(model, x).layers[2].bias
    )
    assert all(a is b for a, b in zip(before, tree.leaves(model), strict=True))


def test_frozen_parameters_have_no_gradient():
    model, x = make()
    model.layers[0].freeze()
    model.layers[2].freeze(keys="bias")
    _, grads = nn.value_and_grad(model, loss)(model, x)
    assert tree.map(lambda g: g.shape, grads) == {"layers": [{}, {}, {"weight": (2, 4)}]}


def test_what_the_function_returns_comes_back():
    model, x = make()

    def with_output(x):
        y = model(x)
        return y.sum(), y, "note"

    (value, output, note), grads = nn.value_and_grad(model, with_output)(x)
    assert output.shape == (5, 2) and note == "note"
    np.testing.assert_allclose(value, output.sum(), rtol=1e-6)
    assert grads["layers"][2]["bias"].tolist() == [5.0, 5.0]


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 1)
        self.mean = nv.zeros(2)
        self.calls = nv.array(0)
        self.freeze(keys=["mean", "calls"], recurse=False)

    def __call__(self, x):
        self.calls = self.calls + 1
        self.mean = 0.5 * self.mean + 0.5 * x.mean(axis=0)
        return self.inner(x - self.mean)


def test_buffers_keep_what_the_call_gave_them():
    model = Counting()
    step = nn.value_and_grad(model, loss)
    weight = model.inner.weight
    for _ in range(2):
        _, grads = step(model, nv.ones((4, 2)))
    assert model.calls.item() == 2 and model.mean.tolist() == [0.75, 0.75]
    assert set(grads) == {"inner"} and model.inner.weight is weight
    nv.grad(loss)(model, nv.ones((4, 2)))
    assert model.calls.item() == 2  # nv.grad works on a copy


class Caching(nn.Module):
    """Assigns in its call what was not there, or was no array, or is in a container."""

    def __init__(self):
        super().__init__()
        self.weight = nv.ones(2)
        self.none = None
        self._last = nv.zeros(2)
        self.seen = []
        self.table = {"sum": nv.zeros(())}
        self.pair = (nv.zeros(2), 1)
        self.freeze(keys=["table.sum", "pair.0"], recurse=False)

    def __call__(self, x):
        y = self.weight * x
        self.none = y.sum()
        self._last = y
        self.seen.append(y)
        self.table["sum"] = y.sum() + self.table["sum"]
        self.pair = (2 * y, self.pair[1] + 1)
        self.new = self._last
        return y


def test_all_that_is_assigned_has_its_value_afterwards():
    model, x = Caching(), nv.array([1.0, 2.0])
    weight = model.weight
    step = nn.value_and_grad(model, loss)
    _, grads = step(model, x)
    assert grads["weight"].tolist() == [2.0, 8.0] and model.weight is weight
    assert model.none.item() == 3.0 and model._last.tolist() == [1.0, 2.0]
    assert model.seen[0].tolist() == [1.0, 2.0] and model.table["sum"].item() == 3.0
    assert model.pair[0].tolist() == [2.0, 4.0] and model.pair[1] == 2
    assert model.new is model._last
    model.freeze().unfreeze(keys="weight")
    step(model, x)
    assert len(model.seen) == 2 and model.table["sum"].item() == 6.0


def test_the_whole_model_is_restored_after_an_error():
    class Fails(Caching):
        def __call__(self, x):
            super().__call__(x)
            raise RuntimeError("no loss")

    model = Fails()
    before = dict(vars(model), table=dict(model.table))
    with pytest.raises(RuntimeError, match="no loss"):
        nn.value_and_grad(model, loss)(model, nv.ones(2))
    assert vars(model) == before | {"seen": []}
    assert model.table["sum"].item() == 0.0


def test_what_is_assigned_to_parameters_does_not_stay():
    class Assigns(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nv.ones(2)
            self._was = None

        def __call__(self, x):
            self._was = self.weight
            self.weight = 3 * self.weight
            return self.weight * x

    model = Assigns()
    weight = model.weight
    _, grads = nn.value_and_grad(model, loss)(model, nv.ones(2))
    assert model.weight is weight and grads["weight"].tolist() == [18.0, 18.0]
    assert model._was.tolist() == [1.0, 1.0]


def test_inside_vmap_with_the_model_an_argument():
    model, x = make()
    xs = nv.stack([x, 2 * x])
    step = lambda model, x: nn.value_and_grad(model, loss)(model, x)  # noqa: E731
    value, grads = nv.vmap(step, in_axes=(None, 0))(model, xs)
    for i in range(2):
        expected_value, expected = step(model, xs[i])
        np.testing.assert_allclose(value[i], expected_value, rtol=1e-5)
        for a, b in zip(tree.leaves(grads), tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-4, atol=1e-5)


def test_differentiated_again():
    """The gradient's own derivative, forward and reverse."""
    model, x = make()

    def norm(x):
        _, grads = nn.value_and_grad(model, loss)(model, x)
        return sum((g**2).sum() for g in tree.leaves(grads))

    def whole(x):
        return sum((g**2).sum() for g in tree.leaves(nv.grad(loss)(model, x)))

    np.testing.assert_allclose(nv.grad(norm)(x), nv.grad(whole)(x), rtol=1e-4, atol=1e-4)
    _, found = nv.jvp(norm, (x,), (x,))
    _, expected = nv.jvp(whole, (x,), (x,))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_buffers_in_a_compiled_step_come_back_with_the_model():
    @nv.compile
    def step(model, x):
        value, grads = nn.value_and_grad(model, loss)(model, x)
        return model, grads, value

    model, other = Counting(), Counting()
    other.update(model.parameters())
    for _ in range(2):
        _, expected = nn.value_and_grad(other, loss)(other, nv.ones((4, 2)))
        model, grads, _ = step(model, nv.ones((4, 2)))
    assert model.calls.item() == 2 and model.mean.tolist() == [0.75, 0.75]
    for a, b in zip(tree.leaves(grads), tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_integer_parameters_have_none():
    model = nn.Linear(2, 1)
    model.steps = nv.array(3)
    _, grads = nn.value_and_grad(model, loss)(model, nv.ones((1, 2)))
    assert grads["steps"] is None and grads["weight"].shape == (1, 2)


def test_parameters_are_restored_after_an_error():
    model, x = make()
    before = tree.leaves(model)

    def fails(x):
        raise RuntimeError("no loss")

    with pytest.raises(RuntimeError, match="no loss"):
        nn.value_and_grad(model, fails)(x)
    with pytest.raises(TypeError):
        nn.value_and_grad(model, lambda x: model(x))(x)  # not a scalar
    assert all(a is b for a, b in zip(before, tree.leaves(model), strict=True))
    with pytest.raises(TypeError, match="module first"):
        nn.value_and_grad(loss, model)


def test_shared_modules_are_counted_once():
    model, _ = make()
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, nn.tanh, shared)
    x = nv.ones((3, 2))
    _, grads = nn.value_and_grad(model, loss)(model, x)
    # The last place a module is found in has the whole gradient.
    expected = nv.grad(lambda m: (m(nn.tanh(m(x))) ** 2).sum())(shared)
    np.testing.assert_allclose(grads["layers"][2]["weight"], expected.weight, rtol=1e-5)


def test_inside_compile():
    model, x = make()
    expected_value, expected = nn.value_and_grad(model, loss)(model, x)

    @nv.compile
    def step(model, x):
        return nn.value_and_grad(model, loss)(model, x)

    value, grads = step(model, x)
    np.testing.assert_allclose(value, expected_value, rtol=1e-6)
    for a, b in zip(tree.leaves(grads), tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_training_reduces_the_loss():
    nv.random.seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
    points = np.random.Generator(np.random.PCG64(0)).normal(size=(64, 2)).astype(np.float32)
    x, labels = nv.array(points), nv.array((points.prod(axis=1) > 0).astype(np.int32))
    optimizer = nn.adam(0.05)
    state = optimizer.init(model.trainable_parameters())

    def objective(model):
        return nn.cross_entropy(model(x), labels, reduction="mean")

    step = nn.value_and_grad(model, objective)
    losses = []
    for _ in range(60):
        value, grads = step(model)
        updates, state = optimizer.update(grads, state)
        model.update(nn.apply_updates(model.trainable_parameters(), updates))
        losses.append(value.item())
    assert losses[-1] < 0.3 * losses[0]
