"""Walks over everything a module holds."""

from collections import OrderedDict, namedtuple

import numpy as np

import nuvec as nv
import nuvec.nn as nn
from nuvec.nn.contents import Snapshot, arrays, copied, replace

Pair = namedtuple("Pair", "left right")


def make():
    model = nn.Module()
    model.weight = nv.ones(2)
    model.again = model.weight
    model.layers = [nn.Linear(2, 2), (nv.zeros(1), Pair(nv.zeros(3), 4))]
    model.named = OrderedDict(z=nn.Linear(1, 1), a=nv.zeros(5))
    model._cache = {"x": nv.zeros(6)}
    model.layers[0]._parent = model
    model.constant = np.ones(2)
    model.function = abs
    return model


def test_arrays_are_found_once_wherever_they_are():
    model = make()
    found = arrays(model)
    assert sorted(a.size for a in found) == [1, 1, 1, 2, 2, 3, 4, 5, 6]
    assert len({id(a) for a in found}) == len(found)


def test_a_copy_shares_arrays_and_nothing_else():
    model = make()
    made = copied(model)
    assert {id(a) for a in arrays(made)} == {id(a) for a in arrays(model)}
    assert made.layers[0] is not model.layers[0] and made.layers[0]._parent is made
    assert type(made.named) is OrderedDict and list(made.named) == ["z", "a"]
    assert type(made.layers[1][1]) is Pair and made.constant is model.constant
    made.layers[0].bias = nv.ones(2)
    made.layers.append(1)
    made._cache.clear()
    made.named["z"].freeze().eval()
    assert model.layers[0].bias.tolist() != [1, 1] and len(model.layers) == 2
    assert "x" in model._cache and model.named["z"].training
    assert model.named["z"].trainable_parameters()


def test_what_is_shared_stays_shared_in_a_copy():
    layer = nn.Linear(2, 2)
    made = copied(nn.Sequential(layer, nn.Sequential(layer)))
    assert made.layers[0] is made.layers[1].layers[0] is not layer


def test_replace_puts_arrays_in_all_their_places():
    model = make()
    new = nv.full(2, 3.0)
    left = nv.full(3, 4.0)
    pair = model.layers[1]
    replace(model, {id(model.weight): new, id(pair[1].left): left})
    assert model.weight is new and model.again is new
    assert model.layers[1] == (pair[0], Pair(left, 4)) and type(model.layers[1][1]) is Pair
    unchanged = model.layers[1]
    replace(model, {})
    assert model.layers[1] is unchanged


def test_a_snapshot_restores_modules_lists_and_dicts():
    model = make()
    before = dict(vars(model)), list(model.layers), dict(model.named), dict(model._cache)
    bias = model.layers[0].bias
    snapshot = Snapshot(model)
    model.layers[0].bias = nv.ones(2)
    model.layers.pop()
    model.named["new"] = 1
    model._cache.clear()
    model.fresh = nv.ones(1)
    del model.weight
    snapshot.restore()
    assert dict(vars(model)) == before[0] and model.layers == before[1]
    assert dict(model.named) == before[2] and model._cache == before[3]
    assert model.layers[0].bias is bias
