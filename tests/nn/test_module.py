"""Module: what counts as a parameter, and the functions that walk over modules."""

import copy
import inspect
import pickle

import numpy as np
import pytest

import nuvec as nv
import nuvec.nn as nn
from nuvec.core import tree


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.rest = [nn.Linear(3, 3), nn.relu, nv.ones(4)]
        self.heads = {"a": nn.Linear(3, 1, bias=False), "b": nv.zeros(2)}
        self.pair = (nv.ones(1), nn.ReLU())
        self.sizes = [1, 2]
        self.rate = 0.5
        self._hidden = nv.ones(7)

    def __call__(self, x):
        return self.heads["a"](self.rest[1](self.rest[0](self.first(x))))


def shapes(parameters):
    return tree.map(lambda x: x.shape, parameters)


def test_parameters_are_nested_dicts_and_lists():
    assert shapes(Block().parameters()) == {
        "first": {"weight": (3, 2), "bias": (3,)},
        "rest": [{"weight": (3, 3), "bias": (3,)}, {}, (4,)],
        "heads": {"a": {"weight": (1, 3)}, "b": (2,)},
        "pair": [(1,), {}],
    }


def test_underscore_attributes_are_in_the_state_only():
    model = Block()
    assert "_hidden" not in model.parameters()
    assert model.state["_hidden"] is model._hidden
    assert model.state["first"]["weight"] is model.first.weight


def test_attributes_by_name():
    layer = nn.Linear(2, 3)
    assert layer["weight"] is layer.weight
    assert "bias" in layer and "scale" not in layer
    layer["weight"] = nv.zeros((3, 2))
    assert layer.weight.tolist() == [[0, 0]] * 3
    with pytest.raises(KeyError):
        layer["scale"]
    with pytest.raises(TypeError):
        iter(layer)


def test_children_and_modules():
    model = Block()
    children = model.children()
    assert sorted(children) == ["first", "heads", "pair", "rest"]
    assert children["first"] is model.first
    assert children["rest"] == [model.rest[0], {}, {}]
    names = [name for name, _ in model.named_modules()]
    assert names == ["", "first", "rest.0", "heads.a", "pair.1"]
    assert model.modules()[0] is model
    outer = nn.Sequential(nn.Sequential(nn.Linear(1, 1)), nn.Identity())
    leaves = outer.leaf_modules()
    assert leaves["layers"][0]["layers"][0] is outer.layers[0].layers[0]
    assert leaves["layers"][1] is outer.layers[1]


def test_update_replaces_what_is_named():
    model = Block()
    weight, bias = model.first.weight, model.first.bias
    rest = model.rest
    new = nv.zeros((3, 2))
    item = nv.zeros(4)
    returned = model.update(
        {"first": {"weight": new}, "rest": [{}, {}, item], "pair": [nv.zeros(1)]}
    )
    assert returned is model
    assert model.first.weight is new and model.first.bias is bias
    assert model.rest is rest and rest[2] is item
    assert isinstance(model.pair, tuple) and model.pair[0].tolist() == [0]
    model.update({"first": {"weight": None}})
    assert model.first.weight is new
    model.update({"first": {"bias": np.zeros(3, np.float32)}})
    assert isinstance(model.first.bias, nv.Array)
    model.update(tree.map(lambda x: x + 1, model))
    assert model.first.weight.tolist() == [[1, 1]] * 3
    assert weight is not new


def test_update_round_trips_parameters():
    model, other = Block(), Block()
    other.update(model.parameters())
    for a, b in zip(tree.leaves(model), tree.leaves(other), strict=True):
        assert a is b


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ({"frist": {}, "first": {"wieght": np.zeros(1)}}, "first.wieght"),
        ({"first": np.zeros(3)}, "cannot be updated"),
        ({"rest": [{}] * 4}, "4"),
        ({"heads": {"c": np.zeros(1)}}, "no keys"),
    ],
)
def test_strict_update_names_what_does_not_fit(new, message):
    with pytest.raises(ValueError, match=message):
        Block().update(new)
    Block().update(new, strict=False)


def test_update_modules():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    new = nn.Tanh()
    model.update_modules({"layers": [{}, new]})
    assert model.layers[1] is new


def test_apply_and_set_dtype():
    layer = nn.Linear(2, 3)
    layer.steps = nv.array(3)
    layer.set_dtype(nv.float16)
    assert layer.weight.dtype == nv.float16 and layer.steps.dtype == nv.int32
    layer.apply(lambda x: x * 0, lambda module, key, value: key == "bias")
    assert layer.bias.tolist() == [0, 0, 0] and any(layer.weight.tolist()[0])
    names = []
    Block().apply_to_modules(lambda name, module: names.append(name))
    assert names == ["", "first", "rest.0", "heads.a", "pair.1"]


def test_freeze_and_unfreeze():
    model = Block().freeze()
    assert tree.leaves(model.trainable_parameters()) == []
    model.unfreeze(keys="weight")
    assert shapes(model.trainable_parameters())["first"] == {"weight": (3, 2)}
    assert len(tree.leaves(model.parameters())) == 8
    model.unfreeze()
    assert len(tree.leaves(model.trainable_parameters())) == 8
    model.freeze(recurse=False)
    assert shapes(model.trainable_parameters()) == {
        "first": {"weight": (3, 2), "bias": (3,)},
        "rest": [{"weight": (3, 3), "bias": (3,)}, {}, {}],
        "heads": {"a": {"weight": (1, 3)}},
        "pair": {},
    }
    model = Block().freeze(keys=["rest", "bias"])
    assert set(model.trainable_parameters()) == {"first", "heads", "pair"}
    with pytest.raises(KeyError, match="scale"):
        model.freeze(keys="scale", strict=True, recurse=False)


def test_train_and_eval():
    model = Block()
    assert model.training and model.first.training
    assert model.eval() is model
    assert not any(module.training for module in model.modules())
    model.train()
    assert all(module.training for module in model.modules())


LEAVES = {
    "shapes": lambda a: a.shape,
    "None": lambda a: None,
    "dtypes": lambda a: a.dtype,
    "norms": lambda a: nv.abs(a).max(),
    "numbers": lambda a: float(a.max()),
    "NumPy": np.asarray,
    "objects": lambda a: np.array([None]),
    "batches": lambda a: nv.stack([a, a]),
    "lists": lambda a: [a],
    "modules": lambda a: nn.Linear(1, 1),
}


@pytest.mark.parametrize("name", LEAVES)
def test_repr_of_trees_in_place_of_parameters(name):
    layers = [
        getattr(nn, n)
        for n in nn.__all__
        if isinstance(getattr(nn, n), type) and issubclass(getattr(nn, n), nn.Module)
    ]
    for layer in layers:
        required = [
            p for p in inspect.signature(layer).parameters.values() if p.default is p.empty
            and p.kind is p.POSITIONAL_OR_KEYWORD
        ]  # fmt: skip
        module = layer(*[64, 64, 1][: len(required)])  # 64 can be quantised
        for made in (module, nn.Sequential(module, nn.relu)):
            assert layer.__name__ in repr(nv.tree.map(LEAVES[name], made))


def test_repr_shows_leaves_that_are_no_parameters():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nv.ones(3)

        def _extra_repr(self):
            return f"size={self.factor.size}"

    model = nn.Sequential(nn.Linear(2, 3), Scale())
    assert repr(nv.tree.map(lambda a: a.shape, model)) == (
        "Sequential(\n"
        "  (layers.0): Linear(bias=(3,), weight=(3, 2))\n"
        "  (layers.1): Scale(factor=(3,))\n"
        ")"
    )
    assert repr(nv.tree.map(lambda a: a.sum(), nn.Linear(2, 3))) == (
        "Linear(bias=float32[], weight=float32[])  # 2 parameters"
    )
    assert repr(nv.tree.map(lambda a: None, nn.PReLU())) == "PReLU(weight=None)"


def test_repr_counts_parameters():
    model = nn.Sequential(nn.Linear(1000, 2), nn.ReLU(), nn.Linear(2, 1).freeze())
    assert repr(model) == (
        "Sequential(\n"
        "  (layers.0): Linear(input_dims=1000, output_dims=2, bias=True)  # 2,002 parameters\n"
        "  (layers.1): ReLU()\n"
        "  (layers.2): Linear(input_dims=2, output_dims=1, bias=True)  # 3 parameters, frozen\n"
        ")  # 2,005 parameters, 2,002 trainable"
    )


def test_copies_share_nothing_that_changes():
    model = Block()
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(nn.Linear(2, 3)))):
        copied.freeze().eval()
        copied.update(tree.map(lambda x: x * 0, copied.parameters()))
    assert model.training and len(tree.leaves(model.trainable_parameters())) == 8
    assert any(model.first.weight.tolist()[0])


def test_init_of_the_base_class_may_be_left_out():
    class Bare(nn.Module):
        def __init__(self):
            self.weight = nv.ones(2)

    model = Bare().eval()
    assert not model.training and list(model.parameters()) == ["weight"]
    with pytest.raises(NotImplementedError, match="Bare"):
        model(1)


def test_a_module_cannot_contain_itself():
    class Child(nn.Module):
        pass

    model = nn.Sequential(nn.Linear(2, 2))
    child = model.child = Child()
    for make in (
        lambda: setattr(model, "me", model),
        lambda: setattr(model, "all", [1, {"x": (model,)}]),
        lambda: setattr(child, "parent", model),
        lambda: child.__setitem__("parent", model),
    ):
        with pytest.raises(nv.TreeError, match=r"a module cannot contain itself.*Name .* _"):
            make()
    assert "me" not in model and len(tree.leaves(model)) == 2
    child._parent = model
    assert model.child._parent is model and len(model.modules()) == 3
    looped = nn.Sequential()
    looped.layers.append(looped)
    for use in (repr, nn.Module.parameters, nn.Module.train):
        with pytest.raises(nv.TreeError, match="a module cannot contain itself"):
            use(looped)
    model.twice = [child, child]  # the same one in two places is none inside of itself


def test_a_shared_array_counts_once_and_is_two_leaves():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nv.ones((4, 3))
            self.out = nn.Linear(3, 4, bias=False)
            self.out.weight = self.embedding

        def __call__(self, i):
            return self.out(self.embedding[i])

    model = Tied()
    assert repr(model).endswith("# 12 parameters")
    assert len(tree.leaves(model)) == 2
    # The parts of the gradient add up to that of the array.
    i = nv.array([0, 1])
    parts = nv.grad(lambda m: m(i).sum())(model)
    whole = nv.grad(lambda w: (w[i] @ w.T).sum())(model.embedding)
    np.testing.assert_allclose(parts.embedding + parts.out.weight, whole)


# --- Changes that do not fit, and freezing below


@pytest.mark.parametrize(
    ("new", "modules"),
    [
        ({"first": {"weight": np.zeros((3, 2))}, "rest": [{}, {}, 1.0]}, False),
        ({"pair": [np.zeros(1)], "heads": {"b": np.zeros(2), "c": np.zeros(1)}}, False),
        ({"first": nn.Identity(), "nowhere": nn.Identity()}, True),
    ],
)
def test_an_update_that_does_not_fit_changes_nothing(new, modules):
    model = Block()
    leaves, first, pair = tree.leaves(model), model.first, model.pair
    with pytest.raises(ValueError):
        (model.update_modules if modules else model.update)(new)
    assert all(a is b for a, b in zip(tree.leaves(model), leaves, strict=True))
    assert model.first is first and model.pair is pair


def test_update_modules_in_tuples_and_dicts():
    model = Block()
    relu, head = nn.Tanh(), nn.Linear(3, 2)
    model.update_modules({"pair": [{}, relu], "heads": {"a": head}})
    assert model.pair[1] is relu and isinstance(model.pair, tuple) and model.heads["a"] is head
    with pytest.raises(ValueError, match=r"'rest\.1' is a function"):
        model.update_modules({"rest": [{}, relu]})
    model.update_modules({"rest": [{}, relu], "none": relu}, strict=False)
    assert model.rest[1] is nn.relu and "none" not in model


def test_none_attributes_are_no_parameters_and_stay():
    model = nn.Linear(2, 3)
    model.bias = None
    assert list(model.parameters()) == ["weight"]
    assert repr(model).endswith("# 6 parameters")
    made = tree.map(lambda x: 2 * x, model.freeze().set_dtype(nv.float16))
    assert made.bias is None and made.weight.dtype == nv.float16


def test_strict_freezing_looks_for_the_key_in_the_whole_model():
    model = Block().freeze(keys="bias", strict=True)  # nn.ReLU has none
    assert "bias" not in model.first.trainable_parameters()
    model.unfreeze(keys=("bias", "rest.0"), strict=True)
    assert "bias" in model.first.trainable_parameters()
    before = [module._no_grad for module in model.modules()]
    for change in (model.freeze, model.unfreeze):
        with pytest.raises(KeyError, match=r"Block has no parameter 'scale', 'rate', '_hidden'"):
            change(keys=["weight", "scale", "rate", "_hidden"], strict=True)
        with pytest.raises(KeyError, match=r"'weight'.*it has 'first', 'heads', 'heads.a'"):
            change(keys="weight", strict=True, recurse=False)
    assert [module._no_grad for module in model.modules()] == before
    model.freeze(keys=["scale"])  # not strict: as in MLX no error


def test_items_of_lists_and_dicts_are_frozen_by_their_paths():
    model = Block().freeze(keys=["rest.2", "heads.b", "rest.0"], strict=True, recurse=False)
    names = shapes(model.trainable_parameters())
    assert "rest" in model.parameters() and names.get("rest", {}) == {}
    assert names["heads"] == {"a": {"weight": (1, 3)}} and "pair" in names


class Fixed(nn.Module):
    """Holds something that is never to be trained, as quantised layers and running means are."""

    def __init__(self):
        super().__init__()
        self.weight = nv.ones(2)
        self.scales = nv.ones(2)
        self.freeze(keys="scales", recurse=False)

    def unfreeze(self, **arguments):
        super().unfreeze(**arguments)
        return self.freeze(keys="scales", recurse=False)


def test_a_layer_may_keep_arrays_frozen_wherever_it_is():
    model = nn.Sequential(Fixed(), nn.Sequential(Fixed()))
    for change in ({}, {"keys": "scales"}, {"keys": ["scales", "weight"], "strict": True}):
        model.freeze().unfreeze(**change)
        for layer in (model.layers[0], model.layers[1].layers[0]):
            wanted = [] if change.get("keys") == "scales" else ["weight"]
            assert list(layer.trainable_parameters()) == wanted
    assert list(Fixed().freeze().unfreeze().trainable_parameters()) == ["weight"]


def test_a_compiled_function_sees_that_a_model_was_frozen():
    traces = []

    @nv.compile
    def step(model, x):
        traces.append(sorted(model.trainable_parameters()))
        _, grads = nn.value_and_grad(model, lambda m: m(x).sum())(model)
        return grads

    model, x = nn.Linear(2, 3), nv.ones((4, 2))
    assert set(step(model, x)) == {"weight", "bias"}
    assert set(step(model.freeze(keys="weight"), x)) == {"bias"}
    assert set(step(model, 2 * x)) == {"bias"}
    assert set(step(model.unfreeze(), x)) == {"weight", "bias"}
    assert traces == [["bias", "weight"], ["bias"]]  # the first program serves again
    grads = nv.grad(lambda m: m(x).sum())(model.freeze())
    assert grads.weight.shape == (3, 2) and not grads.trainable_parameters()


def test_set_dtype_of_everything():
    layer = nn.Linear(2, 3)
    layer.steps = nv.array(3)
    assert layer.set_dtype(nv.float64, None) is layer
    assert layer.steps.dtype == layer.weight.dtype == nv.float64


def test_state_is_what_update_puts_back():
    model = Block()
    state = tree.map(lambda x: x + 1, model.state)
    model.update(state)
    assert model._hidden.tolist() == [2] * 7 and model.first.bias is state["first"]["bias"]
    model.first._parent = model  # above, so no part of it
    assert set(model.first.state) == {"weight", "bias"}
    model._aside = nn.Linear(1, 1)
    assert set(model.state["_aside"]) == {"weight", "bias"}
    assert "_aside" not in model.parameters() and len(model.modules()) == 5


def test_is_module():
    assert nn.Module.is_module(nn.ReLU()) and not nn.Module.is_module(nn.relu)


def test_deep_nesting(tmp_path):
    model = nn.Linear(2, 2)
    for _ in range(100):
        model = nn.Sequential(model)
    x = nv.ones((1, 2))
    assert len(model.modules()) == 101 and repr(model).endswith("# 6 parameters")
    assert len(tree.leaves(model.freeze().unfreeze().eval().trainable_parameters())) == 2
    model.save_weights(tmp_path / "w.npz")
    model.load_weights(tmp_path / "w.npz").update(tree.map(nv.zeros_like, model.parameters()))
    assert nn.functional_call(model, model.parameters(), x).tolist() == [[0.0, 0.0]]
    assert nn.value_and_grad(model, lambda m: m(x).sum())(model)[0].item() == 0.0
    assert copy.deepcopy(model)(x).tolist() == [[0.0, 0.0]]


def test_copies_and_pickles_keep_what_is_shared_and_frozen():
    model = Block().eval()
    model.again = model.first.freeze(keys="bias")
    model._parent = model
    model.rest[1] = abs
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert made.again is made.first is not model.first and made._parent is made
        assert made.pair[0].tolist() == [1.0] and not made.pair[1].training
        assert list(made.first.trainable_parameters()) == ["weight"]
        assert made._hidden.tolist() == [1.0] * 7 and made.heads["a"].weight.shape == (1, 3)


def test_modules_through_vmap_scan_and_compile():
    """A model as carry and result: buffers that change are leaves like all others."""

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nv.full(2, 3.0)
            self.mean = nv.zeros(2)
            self.freeze(keys="mean")

        def __call__(self, x):
            self.mean = 0.5 * (self.mean + x)
            return self.weight * self.mean

    def step(model, x):
        return model, model(x)  # what is given is changed: a copy, inside of a transform

    xs = nv.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    expected = Mean()
    outputs = [expected(x).tolist() for x in xs]
    model = Mean()
    last, found = nv.scan(step, model, xs)
    assert found.tolist() == outputs and last.mean.tolist() == expected.mean.tolist()
    assert model.mean.tolist() == [0.0, 0.0] and "mean" not in last.trainable_parameters()
    many, _ = nv.vmap(step, in_axes=(None, 0))(model, xs)
    assert many.mean.tolist() == (0.5 * xs).tolist()
    once, _ = nv.compile(step)(model, xs[0])
    assert once.mean.tolist() == [0.5, 1.0] and model.mean.tolist() == [0.0, 0.0]
    grads = nv.grad(lambda m: nv.scan(step, m, xs)[1].sum())(model)
    np.testing.assert_allclose(grads.weight, np.sum(outputs, axis=0) / 3.0)
