"""Modules as pytrees."""

import numpy as np
import pytest

import nuvec as nv
import nuvec.nn as nn
from nuvec.core import tree
from nuvec.core.tree import keystr


class Holder(nn.Module):
    def __init__(self, **attributes):
        super().__init__()
        for name, value in attributes.items():
            setattr(self, name, value)


def test_leaves_are_arrays_in_sorted_attribute_order():
    a, b, c, d = (nv.array(float(i)) for i in range(4))
    model = Holder(z=a, list=[b, 3, nn.relu], inner=Holder(x=c), pair=(d,), _hidden=nv.ones(2))
    found, structure = tree.flatten_with_path(model)
    assert [keystr(path) for path, _ in found] == [".inner.x", ".list[0]", ".pair[0]", ".z"]
    assert found[0][1] is c and structure.num_leaves == 4


def test_round_trip_keeps_class_statics_and_containers():
    hidden = nv.ones(2)
    model = Holder(
        layers=[nn.Linear(2, 2), nn.relu, {"rate": 0.5, "w": nv.ones(1)}, (1, 2)],
        sizes=[1, [2]], names={"x"}, table={"a": {"b": 1}}, nothing=None, _hidden=hidden,
        function=np.tanh,
    ).eval().freeze(keys="layers", recurse=False)  # fmt: skip
    leaves, structure = tree.flatten(model)
    made = structure.unflatten([leaf + 1 for leaf in leaves])
    assert type(made) is Holder and made is not model
    assert made.layers[1] is nn.relu and made.layers[2]["rate"] == 0.5
    assert made.layers[3] == (1, 2) and type(made.layers[3]) is tuple
    assert made.sizes == [1, [2]] and made.sizes is not model.sizes
    assert made.names == {"x"} and made.table == {"a": {"b": 1}} and made.nothing is None
    assert made._hidden is hidden and made.function is np.tanh
    assert not made.training and not made.layers[0].training
    assert made._no_grad == {"layers"}
    assert tree.structure(made) == structure and hash(tree.structure(made)) == hash(structure)
    assert made.layers[2]["w"].tolist() == [2.0]


def test_unflatten_does_not_call_init():
    class Loud(nn.Module):
        def __init__(self):
            raise AssertionError("called")

    model = object.__new__(Loud)
    model.weight = nv.ones(2)
    assert type(tree.map(lambda x: x, model)) is Loud


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.eval(),
        lambda m: m.freeze(keys="w", recurse=False),
        lambda m: setattr(m, "n", 2),
        lambda m: setattr(m, "n", 1.0),
        lambda m: setattr(m, "n", True),
        lambda m: setattr(m, "f", nn.tanh),
        lambda m: m.sizes.append(3),
        lambda m: m.items.__setitem__(1, "b"),
        lambda m: setattr(m, "extra", None),
        lambda m: setattr(m, "w", None),
        lambda m: setattr(m, "constant", np.ones(2)),
        lambda m: setattr(m, "_hidden", nv.ones(2)),
    ],
)
def test_structure_differs_when_a_static_attribute_changes(change):
    model = Holder(
        w=nv.ones(1), n=1, f=nn.relu, sizes=[1, 2], items=[nv.ones(1), "a"],
        constant=np.ones(2), _hidden=nv.ones(2),
    )  # fmt: skip
    before = tree.structure(model)
    assert tree.structure(tree.map(lambda x: x + 1, model)) == before
    change(model)
    assert tree.structure(model) != before


def test_values_do_not_matter_and_classes_do():
    class Other(Holder):
        pass

    same = tree.structure(Holder(w=nv.ones(1))), tree.structure(Holder(w=nv.zeros((2, 2))))
    assert same[0] == same[1] and hash(same[0]) == hash(same[1])
    assert tree.structure(Other(w=nv.ones(1))) != same[0]
    assert tree.structure(nn.Linear(2, 2)) != tree.structure(nn.Linear(2, 2, bias=False))


def test_other_leaves_stay_leaves():
    model = nn.Sequential(nn.Linear(2, 3), nn.relu)
    structure = tree.structure(model)
    for value in (True, (1, 2), "text", np.ones(2)):
        filled = structure.unflatten([value] * 2)
        assert filled.layers[0].weight is value
    mask = tree.map(lambda x: x.ndim > 1, model)
    assert tree.structure(mask) == structure
    kept = tree.map(lambda x, m: x if m else None, model, mask)
    assert kept.layers[0].bias is None
    assert tree.flatten(kept, is_leaf=lambda x: x is None)[1] == structure
    mask.layers[0].weight = nv.ones(1)
    assert tree.structure(mask) == structure


def test_dicts_without_leaves_need_no_order():
    model = Holder(table={1: 2, "a": 3})
    assert tree.leaves(model) == []
    assert tree.map(lambda x: x, model).table == {1: 2, "a": 3}


def test_structure_prints():
    assert "Linear" in repr(tree.structure(nn.Linear(2, 2)))


def test_transforms_take_a_model_whole():
    model = nn.Sequential(nn.Linear(3, 2), nn.tanh, nn.Linear(2, 1))

    def loss(model, x):
        return (model(x) * model(x)).sum()

    x = nv.array(np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3))
    value, grads = nv.value_and_grad(loss)(model, x)
    assert type(grads) is nn.Sequential
    assert tree.map(lambda g: g.shape, grads.parameters()) == tree.map(
        lambda p: p.shape, model.parameters()
    )
    compiled = nv.compile(nv.value_and_grad(loss))
    value_2, grads_2 = compiled(model, x)
    np.testing.assert_allclose(value_2, value, rtol=1e-6)
    for g, h in zip(tree.leaves(grads), tree.leaves(grads_2), strict=True):
        np.testing.assert_allclose(g, h, rtol=1e-5, atol=1e-6)
    # One model over a batch of inputs, and a batch of models.
    np.testing.assert_allclose(
        nv.vmap(lambda m, x: m(x), in_axes=(None, 0))(model, x), model(x), rtol=1e-6
    )
    stacked = tree.map(lambda p: nv.stack([p, 2 * p]), model)
    both = nv.vmap(lambda m, x: m(x), in_axes=(0, None))(stacked, x)
    np.testing.assert_allclose(both[0], model(x), rtol=1e-6)


def test_compile_retraces_when_the_training_flag_changes():
    traces = []

    @nv.compile
    def run(model, x):
        traces.append(model.training)
        return model(x)

    model = nn.Dropout(0.5)
    x = nv.ones(8)
    run(model, x), run(model, x)
    assert traces == [True]
    assert run(model.eval(), x).tolist() == [1.0] * 8
    run(model.train(), x)
    assert traces == [True, False]


def test_integer_leaves_have_no_gradient():
    model = nn.Linear(2, 1)
    model.steps = nv.array(3)
    grads = nv.grad(lambda m: (m.weight * m.steps).sum())(model)
    assert grads.steps is None and grads.weight.tolist() == [[3.0, 3.0]]
