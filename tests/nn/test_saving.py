"""save_weights and load_weights: files, MLX's files, and what does not fit."""

import json
import os
import pickle
import stat
import struct
import sys
import threading
import zipfile

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import nuvec as nv
import nuvec.nn as nn
from nuvec.core import tree
from nuvec.nn.names import named_leaves
from tests.nn.module_models import DATA, Dtypes

FORMATS = ["npz", "safetensors"]


def numbers(start, shape, dtype):
    count = np.arange(int(np.prod(shape, dtype=int)))
    return nv.array((count + start).reshape(shape)).astype(dtype)


def make(start=0):
    """The model of the weight files; another start gives other values."""
    return Dtypes.build(nn, lambda s, shape, dtype: numbers(s + start, shape, dtype))


def assert_equal(model, other):
    pairs = zip(named_leaves(model.parameters()), named_leaves(other.parameters()), strict=True)
    for (name, a), (other_name, b) in pairs:
        assert name == other_name and a.dtype == b.dtype and a.shape == b.shape, name
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), name


@pytest.fixture(params=FORMATS)
def path(request, tmp_path):
    return tmp_path / f"weights.{request.param}"


def test_what_is_saved_is_loaded(path):
    model, other = make(), make(10)
    model.save_weights(path)
    hidden = other._hidden
    assert other.load_weights(str(path)) is other
    assert_equal(model, other)
    assert other._hidden is hidden
    assert os.listdir(path.parent) == [path.name]


def test_files_of_mlx_are_loaded():
    for form in FORMATS:
        other = make(10)
        other.load_weights(DATA / f"weights.{form}")
        assert_equal(make(), other)


def test_files_say_what_those_of_mlx_say(tmp_path):
    """Same names, the same dtypes under the same names, the same bytes of data."""
    make().save_weights(tmp_path / "weights.npz")
    with np.load(DATA / "weights.npz") as theirs, np.load(tmp_path / "weights.npz") as ours:
        assert set(ours.files) == set(theirs.files)
        for name in theirs.files:
            assert ours[name].dtype.str == theirs[name].dtype.str, name
            assert ours[name].tobytes() == theirs[name].tobytes()
            assert ours[name].shape == theirs[name].shape
    make().save_weights(tmp_path / "weights.safetensors")
    found = [safetensors_entries(folder / "weights.safetensors") for folder in (DATA, tmp_path)]
    assert found[0] == found[1]


def safetensors_entries(path):
    """name -> dtype, shape, bytes: read by the format's definition."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    entries = json.loads(content[8 : 8 + size])
    entries.pop("__metadata__", None)
    found = {}
    for name, entry in entries.items():
        start, end = entry["data_offsets"]
        found[name] = entry["dtype"], entry["shape"], content[8 + size :][start:end]
    return found


@pytest.mark.parametrize("dtype", nv.core.dtypes.ALL, ids=str)
def test_every_dtype(path, dtype):
    model, other = nn.Module(), nn.Module()
    values = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    for m, v in ((model, values), (other, 0 * values)):
        m.w = nv.array(v.astype(dtype))
        m.scalar = m.w[0, 1]
        m.empty = m.w[:, :0]
    if dtype == nv.complex128 and path.suffix == ".safetensors":
        with pytest.raises(nv.ArgumentError, match=r"no complex128, which .*w would need"):
            model.save_weights(path)
        assert not os.listdir(path.parent)
        return
    model.save_weights(path)
    assert_equal(model, other.load_weights(path))
    assert other.w.dtype == dtype and other.scalar.shape == ()


def test_the_order_in_memory_does_not_matter(path):
    model, other = nn.Module(), nn.Module()
    base = nv.array(np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    model.w = nv.transpose(base, (2, 0, 1))
    model.part = base[:, 1, ::2]
    other.w, other.part = nv.zeros((4, 2, 3)), nv.zeros((2, 2))
    model.save_weights(path)
    assert_equal(model, other.load_weights(path))


def test_any_name_will_do(path):
    """Also those that np.savez keeps for itself, and those that look like files."""
    model = nn.Module()
    model.named = {
        name: nv.array(float(i))
        for i, name in enumerate(["file", "a.npy", "x/y", "..", " ", "größe", "args"])
    }
    model.file = nv.array(7.0)
    model.allow_pickle = nv.array(8.0)
    other = tree.map(lambda x: -x, model)
    model.save_weights(path)
    assert_equal(model, other.load_weights(path))


def test_two_arrays_of_one_name_are_refused(path):
    model = nn.Module()
    model.a = {"b.c": nv.ones(1), "b": {"c": nv.zeros(1)}}
    with pytest.raises(nv.TreeError, match=r"two arrays have the name 'a.b.c'"):
        model.save_weights(path)
    assert not os.listdir(path.parent)


def test_a_model_without_parameters(path):
    nn.ReLU().save_weights(path)
    nn.ReLU().load_weights(path)
    with pytest.raises(nv.TreeError, match=r"missing \(2\): bias, weight"):
        nn.Linear(1, 1).load_weights(path)


def test_all_that_does_not_fit_is_named_at_once(path):
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4), nn.Linear(4, 5))
    file = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 4), nn.Linear(4, 5, bias=False))
    file.layers[1].set_dtype(nv.float16)
    file.extra = nv.ones(2)
    file.save_weights(path)
    before = tree.leaves(model)
    with pytest.raises(ValueError) as error:
        model.load_weights(path)
    text = str(error.value)
    assert f"{str(path)!r} does not fit this Sequential" in text
    assert "missing (1): layers.2.bias" in text
    assert "unexpected (1): extra" in text
    assert "another shape: layers.0.weight is float32[3,2] here, got float32[3,3]" in text
    assert "another dtype: layers.1.bias is float32[4] here, got float16[4]" in text
    assert "another dtype: layers.1.weight is float32[4,3] here, got float16[4,3]" in text
    assert "layers.0.bias" not in text and "layers.2.weight" not in text
    assert "set_dtype" in text and "strict=False" in text
    assert all(a is b for a, b in zip(tree.leaves(model), before, strict=True))


def test_not_strict_takes_what_there_is(path):
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    file = nn.Sequential(nn.Linear(3, 3).set_dtype(nv.float16), nn.Linear(3, 4, bias=False))
    file.extra = nv.ones(2)
    file.save_weights(path)
    bias = model.layers[1].bias
    model.load_weights(path, strict=False)
    assert model.layers[0].weight.dtype == nv.float16 and model.layers[0].weight.shape == (3, 3)
    assert model.layers[1].bias is bias and "extra" not in model
    np.testing.assert_array_equal(model.layers[1].weight, file.layers[1].weight)


def test_another_dtype_after_set_dtype(path):
    model, other = nn.Linear(2, 3), nn.Linear(2, 3)
    model.set_dtype(nv.bfloat16).save_weights(path)
    with pytest.raises(nv.TreeError, match="another dtype"):
        other.load_weights(path)
    assert_equal(model, other.set_dtype(nv.bfloat16).load_weights(path))


def test_frozen_models_are_loaded_and_stay_frozen(path):
    model, other = nn.Linear(2, 3), nn.Linear(2, 3).freeze(keys="bias").eval()
    model.freeze().save_weights(path)
    other.load_weights(path)
    assert_equal(model, other)
    assert list(other.trainable_parameters()) == ["weight"] and not other.training


class Tied(nn.Module):
    def __init__(self, twice=True):
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.again = self.first if twice else nn.Linear(2, 2)
        self.none = None
        self.pair = (nn.Linear(1, 1), nv.ones(2))


def test_modules_in_two_places_are_under_both_names(path):
    model, other = Tied(), Tied()
    model.save_weights(path)
    other.load_weights(path)
    assert_equal(model, other)
    assert other.first is other.again
    separate = Tied(twice=False).load_weights(path)
    np.testing.assert_array_equal(separate.again.weight, model.first.weight)
    # Two sets of weights for the one module: none is dropped in silence.
    separate.first.bias = nv.full(2, 5.0)
    separate.save_weights(path)
    before = tree.leaves(other)
    with pytest.raises(nv.TreeError, match=r"found in two places"):
        other.load_weights(path)
    assert all(a is b for a, b in zip(tree.leaves(other), before, strict=True))
    other.load_weights(path, strict=False)


def test_weights_given_as_pairs_or_a_dict():
    weight = np.ones((3, 2), np.float32)
    bias = nv.full(3, 2.0)
    for weights in (
        [("weight", weight), ("bias", bias)],
        iter([["bias", bias], ["weight", weight]]),
        {"weight": weight, "bias": bias},
        {"weight": weight.astype(">f4"), "bias": bias},
    ):
        layer = nn.Linear(2, 3).load_weights(weights)
        assert isinstance(layer.weight, nv.Array) and layer.weight.dtype == nv.float32
        assert layer.weight.tolist() == weight.tolist() and layer.bias is bias
    layer = nn.Linear(2, 3).load_weights([("weight", weight)], strict=False)
    weight[0] = 5
    assert layer.weight.tolist() == [[1, 1]] * 3


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (3, "got int"),
        ([("weight", 1.0, 2)], "takes the path of a file"),
        ([(1, np.ones(1))], "takes the path of a file"),
        ([("bias", np.ones(1)), ("bias", np.ones(1))], "'bias' occurs twice"),
        ({"weight": [[1.0]], "bias": nv.ones(1)}, r"no array: weight is .*got a list"),
        ({"weight": np.array([["x"]]), "bias": nv.ones(1)}, r"no dtype of nuvec's: weight"),
    ],
)
def test_weights_of_other_kinds_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        nn.Linear(1, 1).load_weights(weights)


def test_values_that_are_no_arrays_are_refused_without_strict_too():
    with pytest.raises(nv.ArgumentError, match="bias is a float, not an array"):
        nn.Linear(1, 1).load_weights({"bias": 1.0}, strict=False)


# --- Files


@pytest.mark.parametrize("name", ["weights.pt", "weights", "weights.npz.gz"])
def test_other_kinds_of_files_are_refused(tmp_path, name):
    for use in (nn.Linear(1, 1).save_weights, nn.Linear(1, 1).load_weights):
        with pytest.raises(nv.ArgumentError, match=r"end in \.npz or \.safetensors"):
            use(tmp_path / name)
    assert not os.listdir(tmp_path)


def test_files_and_folders_that_do_not_exist(path):
    with pytest.raises(FileNotFoundError, match=path.name):
        nn.Linear(1, 1).load_weights(path)
    with pytest.raises(FileNotFoundError, match=r"no folder .*nowhere"):
        nn.Linear(1, 1).save_weights(path.parent / "nowhere" / path.name)


def test_files_that_are_cut_off_or_something_else(path):
    nn.Linear(64, 64).save_weights(path)
    whole = path.read_bytes()
    layer = nn.Linear(64, 64)
    before = tree.leaves(layer)
    for content in (b"", b"no weights", whole[: len(whole) // 2], whole[:-3], whole[20:]):
        path.write_bytes(content)
        with pytest.raises(nv.ArgumentError, match=path.name):
            layer.load_weights(path)
    assert all(a is b for a, b in zip(tree.leaves(layer), before, strict=True))


def test_a_damaged_array_is_named(tmp_path):
    path = tmp_path / "weights.npz"
    nn.Linear(64, 64).save_weights(path)
    content = bytearray(path.read_bytes())
    content[2000] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(nv.ArgumentError, match=r"weight cannot be read: Bad CRC"):
        nn.Linear(64, 64).load_weights(path)


class Trap:
    """Unpickling one leaves a trace."""

    sprung = False

    def __reduce__(self):
        return _spring, ()


def _spring():
    Trap.sprung = True


def test_nothing_is_unpickled(tmp_path):
    path = tmp_path / "weights.npz"
    np.savez(path, bias=np.array([Trap()], dtype=object), weight=np.ones((1, 1), np.float32))
    with pytest.raises(nv.ArgumentError, match=r"bias cannot be read: Object arrays"):
        nn.Linear(1, 1).load_weights(path)
    path.write_bytes(pickle.dumps({"bias": Trap()}))
    with pytest.raises(nv.ArgumentError, match="no npz file"):
        nn.Linear(1, 1).load_weights(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("bias.npy", pickle.dumps(Trap()))
    with pytest.raises(nv.ArgumentError, match="no array in NumPy's format"):
        nn.Linear(1, 1).load_weights(path)
    assert not Trap.sprung


def test_an_interrupted_save_leaves_the_old_file(path, monkeypatch):
    model, other = nn.Linear(2, 3), nn.Linear(2, 3)
    model.save_weights(path)
    for interrupted in ("fsync", "replace"):

        def fails(*args):
            raise OSError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(os, interrupted, fails)
            with pytest.raises(OSError, match="full"):
                other.save_weights(path)
        assert os.listdir(path.parent) == [path.name]
        assert_equal(model, nn.Linear(2, 3).load_weights(path))


def test_readers_see_the_old_or_the_new_file(path):
    """Two threads write while this one reads."""
    models = [nn.Module(), nn.Module()]
    for value, model in enumerate(models):
        model.w = nv.full(2000, float(value))
    models[0].save_weights(path)
    done = threading.Event()

    def writes(model):
        while not done.is_set():
            model.save_weights(path)

    threads = [threading.Thread(target=writes, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    try:
        for _ in range(50):
            read = nn.Module()
            read.w = nv.zeros(2000)
            values = set(read.load_weights(path).w.tolist())
            assert len(values) == 1
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert os.listdir(path.parent) == [path.name]


def test_a_link_stays_one_and_the_mode_is_the_usual(path):
    place = path.parent / "folder" / f"real{path.suffix}"
    place.parent.mkdir()
    path.symlink_to(place)
    nn.Linear(1, 1).save_weights(path)
    assert path.is_symlink() and place.is_file()
    usual = path.parent / "usual"
    usual.touch()
    assert stat.S_IMODE(place.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)


def test_the_same_weights_make_the_same_file(path):
    model = nn.Linear(2, 3)
    model.save_weights(path)
    first = path.read_bytes()
    model.save_weights(path)
    assert path.read_bytes() == first
    if path.suffix == ".npz":
        with zipfile.ZipFile(path) as archive:  # its earliest date, not that of the save
            assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_safetensors_is_an_extra(tmp_path, monkeypatch):
    path = tmp_path / "weights.safetensors"
    nn.Linear(1, 1).save_weights(path)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    for use in (nn.Linear(1, 1).save_weights, nn.Linear(1, 1).load_weights):
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'nuvec\[io\]'"):
            use(path)
    nn.Linear(1, 1).save_weights(tmp_path / "weights.npz")
    assert sorted(os.listdir(tmp_path)) == ["weights.npz", "weights.safetensors"]


def test_dtypes_that_nuvec_has_not(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file({"bias": np.ones(1, ml_dtypes.float8_e5m2)}, path)
    for strict in (True, False):
        with pytest.raises(nv.ArgumentError, match=r"bias is of dtype F8_E5M2, which nuvec"):
            nn.Linear(1, 1).load_weights(path, strict=strict)
    path = tmp_path / "weights.npz"
    np.savez(path, bias=np.array(["text"]))
    layer = nn.Linear(1, 1, bias=False)
    layer.bias = nv.ones(1)
    with pytest.raises(nv.TreeError, match=r"no dtype of nuvec's: bias is float32\[1\] here"):
        layer.load_weights(path)
    with pytest.raises(nv.DtypeError):
        layer.load_weights(path, strict=False)


def test_traced_weights_are_not_saved(path):
    def f(weight):
        layer = nn.Linear(2, 3)
        layer.weight = weight
        layer.save_weights(path)
        return weight.sum()

    with pytest.raises(nv.ConcretizationError):
        nv.compile(f)(nv.ones((3, 2)))
    with pytest.raises(TypeError):
        nv.grad(f)(nv.ones((3, 2)))
    assert not os.listdir(path.parent)


def test_training_goes_on_from_saved_weights(path):
    """Saved, loaded into a model made anew, the next steps have the same bits."""
    x = nv.array(np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3))

    @nv.compile
    def step(model):
        grads = nv.grad(lambda m: (m(x) ** 2).sum())(model)
        return tree.map(lambda p, g: p - 0.01 * g, model, grads)

    model = step(nn.Sequential(nn.Linear(3, 4), nn.tanh, nn.Linear(4, 2)))
    model.save_weights(path)
    other = nn.Sequential(nn.Linear(3, 4), nn.tanh, nn.Linear(4, 2)).load_weights(path)
    assert_equal(step(step(model)), step(step(other)))
