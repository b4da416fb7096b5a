"""Module against MLX's, by what MLX was recorded to do (tests/data/mlx_modules)."""

import json

import pytest

import nuvec as nv
import nuvec.nn as nn
from nuvec.core import tree
from nuvec.nn.names import dotted
from tests.nn import module_models

RECORD = json.loads((module_models.DATA / "record.json").read_text())
MODELS = module_models.models(nn, nv.zeros)
UPDATES = module_models.updates(nv.ones)

# Without `strict`, MLX puts what is no array in the place of one, and walks a list against a module
# until a KeyError; here such values are passed over.
PASSED_OVER = {
    "a dict for an array, False": 'the array "scale" becomes a dict',
    "a number for an array, False": 'the array "scale" becomes a number',
    "a list for a module, False": "KeyError",
}


def flatten(nested, is_leaf=None):
    return [(dotted(path), leaf) for path, leaf in tree.flatten_with_path(nested, is_leaf)[0]]


def test_every_case_is_recorded():
    assert set(RECORD["models"]) == set(MODELS)
    assert all(set(recipes) == set(module_models.RECIPES) for recipes in RECORD["models"].values())
    assert set(RECORD["updates"]) == {f"{name}, {s}" for name in UPDATES for s in (True, False)}


@pytest.mark.parametrize("recipe", module_models.RECIPES)
@pytest.mark.parametrize("name", MODELS)
def test_parameters_modules_and_freezing(name, recipe):
    found = module_models.record(MODELS[name](), recipe, flatten, nn.Module.is_module)
    assert found == RECORD["models"][name][recipe]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", UPDATES)
def test_update(name, strict):
    model = MODELS["everything"]().apply(nv.zeros_like)
    found = module_models.update_record(model, UPDATES[name], strict, flatten)
    case = f"{name}, {strict}"
    if case in PASSED_OVER:
        unchanged = MODELS["everything"]().apply(nv.zeros_like)
        assert found == module_models.update_record(unchanged, {}, True, flatten)
        assert found != RECORD["updates"][case]  # else it belongs in the table no more
    else:
        assert found == RECORD["updates"][case]
