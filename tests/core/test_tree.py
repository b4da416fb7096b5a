"""Pytrees: flatten and unflatten, structures, registration, mismatches."""

from __future__ import annotations

import copy
import enum
import pickle
from collections import OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nuvec.core import tree
from nuvec.core.errors import TreeError

Point = namedtuple("Point", "x y")


class NoTruth:
    """A leaf that cannot be compared, hashed or asked for its truth value."""

    __hash__ = None

    def __bool__(self):
        raise AssertionError("a leaf was asked for its truth value")

    def __eq__(self, other):
        raise AssertionError("a leaf was compared")


def trees():
    leaf = st.one_of(st.integers(), st.text(max_size=2), st.floats(allow_nan=False))
    keys = st.text(max_size=2)

    def grow(children):
        return st.one_of(
            st.lists(children, max_size=3),
            st.lists(children, max_size=3).map(tuple),
            st.dictionaries(keys, children, max_size=3),
            st.dictionaries(st.integers(), children, max_size=3),
            st.dictionaries(keys, children, max_size=3).map(OrderedDict),
            st.dictionaries(keys, children, max_size=3).map(lambda d: defaultdict(list, d)),
            st.tuples(children, children).map(lambda pair: Point(*pair)),
        )

    return st.recursive(st.one_of(leaf, st.none()), grow, max_leaves=12)


@given(trees())
def test_round_trip(given_tree):
    leaves, structure = tree.flatten(given_tree)
    assert len(leaves) == structure.num_leaves == len(structure.paths())
    back = structure.unflatten(leaves)
    assert back == given_tree
    assert type(back) is type(given_tree)
    assert tree.structure(back) == structure
    assert hash(tree.structure(copy.deepcopy(given_tree))) == hash(structure)
    assert tree.all_leaves(leaves)


@given(trees())
def test_a_predicate_that_is_never_true_changes_nothing(given_tree):
    assert tree.flatten(given_tree, is_leaf=lambda x: False) == tree.flatten(given_tree)


@given(trees(), trees())
def test_structures_are_equal_when_their_texts_are(one, other):
    a, b = tree.structure(one), tree.structure(other)
    assert (a == b) == (repr(a) == repr(b))


@given(trees())
def test_paths_reach_their_leaves(given_tree):
    pairs, _ = tree.flatten_with_path(given_tree)
    for path, leaf in pairs:
        assert eval("root" + tree.keystr(path), {"root": given_tree}) is leaf


def test_leaves_are_left_alone():
    a, b = NoTruth(), NoTruth()
    for given_tree in (a, [a, b], (a, b), {"x": a, "y": b}, {1: a, 2: [b]}, Point(a, {"k": b})):
        leaves, structure = tree.flatten(given_tree)
        assert leaves[0] is a
        structure.unflatten(leaves)
        tree.map(lambda x, y: x, given_tree, given_tree)
        tree.broadcast_prefix(a, structure)


def test_dict_keys_are_sorted():
    assert tree.leaves({"b": 1, "a": 2}) == [2, 1]
    assert tree.structure({"b": 1, "a": 2}) == tree.structure({"a": 1, "b": 2})
    assert list(tree.map(str, {"b": 1, "a": 2})) == ["a", "b"]
    assert tree.leaves(OrderedDict(b=1, a=2)) == [1, 2]


def test_unsortable_keys():
    with pytest.raises(TreeError, match=r"sorted.*\[1, 'a'\].*OrderedDict"):
        tree.flatten({1: 0, "a": 0})
    assert tree.leaves(OrderedDict({1: 5, "a": 6})) == [5, 6]


def test_keys_equal_to_strings_come_back_as_they_were():
    class Name(enum.StrEnum):
        W = "w"

    tree.flatten({"w": 1, "x": 2})
    back = tree.map(lambda x: x, {Name.W: 1, "x": 2})
    assert any(key is Name.W for key in back)
    assert tree.structure({True: 1}).unflatten([1]) == {True: 1}
    assert type(next(iter(tree.map(str, {True: 1})))) is bool


def test_none_is_an_empty_subtree():
    assert tree.flatten(None) == ([], tree.structure(None))
    assert tree.leaves([1, None, 2]) == [1, 2]
    assert tree.leaves([1, None], is_leaf=lambda x: x is None) == [1, None]
    assert tree.map(str, {"a": None, "b": 1}) == {"a": None, "b": "1"}


def test_subclasses_of_containers_are_leaves_unless_namedtuples():
    class MyList(list):
        pass

    assert tree.leaves([MyList([1])]) == [[1]]
    assert tree.all_leaves([MyList(), np.zeros(2)])
    assert not tree.all_leaves([Point(1, 2)])


@pytest.mark.parametrize(
    ("given_tree", "text"),
    [
        (1, "*"),
        ({"a": 1, "b": [2, 3]}, "{'a': *, 'b': [*, *]}"),
        ((1,), "(*,)"),
        (((), None), "((), None)"),
        (Point(1, [2]), "Point(x=*, y=[*])"),
        (OrderedDict(b=1, a=2), "OrderedDict({'b': *, 'a': *})"),
        (defaultdict(int, k=1), "defaultdict(int, {'k': *})"),
    ],
)
def test_repr(given_tree, text):
    assert repr(tree.structure(given_tree)) == f"PyTree({text})"


def test_structures_are_immutable_and_pickle():
    structure = tree.structure({"a": [1, None, Point(2, 3)]})
    with pytest.raises(AttributeError, match="immutable"):
        structure.num_leaves = 3
    again = pickle.loads(pickle.dumps(structure))
    assert again == structure
    assert hash(again) == hash(structure)
    assert again.unflatten([1, 2, 3]) == {"a": [1, None, Point(2, 3)]}
    assert structure != "something else"


def test_unflatten_counts_the_leaves():
    structure = tree.structure({"a": 1, "b": [2, 3]})
    assert structure.unflatten(iter([1, 2, 3])) == {"a": 1, "b": [2, 3]}
    for wrong in ([], [1, 2], [1, 2, 3, 4]):
        with pytest.raises(TreeError, match=f"has 3 leaves, but {len(wrong)} were given"):
            tree.unflatten(structure, wrong)
    with pytest.raises(TreeError, match="has 1 leaves"):
        tree.unflatten(tree.structure(0), [])


# --- map and reduce


def test_map_takes_subtrees_of_the_rest():
    assert tree.map(lambda a, b: (a, b), [1, 2], [(3, 4), None]) == [(1, (3, 4)), (2, None)]
    with_path = tree.map_with_path(lambda p, a, b: (tree.keystr(p), a, b), {"w": [1]}, {"w": [2]})
    assert with_path == {"w": [("['w'][0]", 1, 2)]}


def test_reduce():
    assert tree.reduce(lambda a, b: a + b, {"a": 1, "b": [2, 3]}) == 6
    assert tree.reduce(lambda a, b: a + b, [], 5) == 5
    with pytest.raises(TreeError, match="initial"):
        tree.reduce(lambda a, b: a + b, [])


@pytest.mark.parametrize(
    ("first", "other", "message"),
    [
        ({"a": [1, 2]}, {"a": [1, 2, 3]}, r"at \['a'\].*list of 2: \[\*, \*\].*list of 3"),
        ({"a": 1, "b": 2}, {"a": 1, "c": 2}, r"at the top.*Missing keys: 'b'.*Unexpected.*'c'"),
        ([1, Point(1, [2])], [1, Point(1, 3)], r"at \[1\]\.y: .*a list of 1.*got a leaf"),
        ([None], [1], r"at \[0\]: expected None, got a leaf"),
        ([1], (1,), r"at the top: expected a list of 1: \[\*\], got a tuple of 1: \(\*,\)"),
    ],
)
def test_mismatch_names_the_path_and_both_sides(first, other, message):
    with pytest.raises(TreeError, match=message):
        tree.map(lambda a, b: a, first, other)


# --- Prefixes


def test_broadcast_prefix():
    structure = tree.structure(({"w": 1, "b": 2}, [3, None], 4))
    assert tree.broadcast_prefix(0, structure) == [0, 0, 0, 0]
    assert tree.broadcast_prefix((0, None, 1), structure) == [0, 0, None, 1]
    assert tree.broadcast_prefix(({"w": 0, "b": None}, 1, 2), structure) == [None, 0, 1, 2]
    assert tree.broadcast_prefix((0, [1, None], 2), structure) == [0, 0, 1, 2]


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ((0, 1), r"at the top: a prefix of a tuple of 1.*got a tuple of 2: \(\*, \*\)"),
        (({"w": 0},), r"at \[0\]: a prefix of a dict of 2.*Missing keys: 'b'"),
        (({"w": [0], "b": 0},), r"at \[0\]\['w'\]: a prefix of a leaf, got a list"),
    ],
)
def test_broadcast_prefix_mismatch(prefix, message):
    with pytest.raises(TreeError, match=message):
        tree.broadcast_prefix(prefix, tree.structure(({"w": 1, "b": 2},)))


# --- Registration


def test_registered_classes():
    class Layer:
        def __init__(self, weight, bias, name):
            self.weight, self.bias, self.name = weight, bias, name

    layer = Layer(1, 2, "dense")
    assert tree.leaves(layer) == [layer]
    tree.register(
        Layer,
        lambda x: (iter((x.weight, x.bias)), x.name),
        lambda name, children: Layer(*children, name),
        keys=lambda name: ("weight", 1),
    )
    pairs, structure = tree.flatten_with_path({"k": layer})
    found = [(tree.keystr(path), leaf) for path, leaf in pairs]
    assert found == [("['k'].weight", 1), ("['k'][1]", 2)]
    assert repr(structure) == "PyTree({'k': Layer['dense'](*, *)})"
    assert tree.map(lambda x: x * 10, layer).bias == 20
    assert tree.structure(Layer(1, 2, "conv")) != tree.structure(layer)
    with pytest.raises(TreeError, match="already"):
        tree.register(Layer, lambda x: ((), None), lambda aux, children: layer)

    class Derived(Layer):
        pass

    assert tree.all_leaves([Derived(1, 2, "d")])


def test_registered_with_subclasses():
    class Base:
        pass

    class Derived(Base):
        pass

    def unflatten(aux, children):
        made = object.__new__(aux[0])
        made.__dict__.update(zip(aux[1], children, strict=True))
        return made

    tree.register(
        Base,
        lambda x: (tuple(vars(x).values()), (type(x), tuple(vars(x)))),
        unflatten,
        keys=lambda aux: aux[1],
        subclasses=True,
    )
    derived = Derived()
    derived.w = [1, 2]
    back = tree.map(lambda x: x + 1, derived)
    assert type(back) is Derived
    assert back.w == [2, 3]
    assert [tree.keystr(path) for path in tree.structure(derived).paths()] == [".w[0]", ".w[1]"]


def test_unhashable_auxiliary_data():
    class Odd:
        pass

    tree.register(Odd, lambda x: ((), [1]), lambda aux, children: Odd())
    with pytest.raises(TreeError, match="not hashable"):
        hash(tree.structure(Odd()))


def test_a_deep_tree():
    deep = 0
    for _ in range(200):
        deep = [deep]
    assert tree.leaves(deep) == [0]
    assert tree.map(lambda x: x, deep) == deep
