"""The default random stream."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.errors import ConcretizationError
from nuvec.core.functions.stream import Stream, stream_set

random = nv.random


@pytest.fixture(autouse=True)
def own_stream():
    with stream_set(Stream()):
        yield


def draw():
    return float(random.uniform())


def test_every_draw_is_another_and_a_seed_starts_anew():
    first = [draw() for _ in range(5)]
    assert len(set(first)) == 5
    random.seed(0)
    assert [draw() for _ in range(5)] == first  # the seed is 0 until another is set
    random.seed(1)
    assert draw() != first[0]


def test_the_stream_is_made_of_keys():
    assert draw() == float(random.uniform(random.fold_in(random.key(0), 0)))
    assert draw() == float(random.uniform(random.fold_in(random.key(0), 1)))


def test_unevaluated_draws_keep_their_place():
    a, b = random.uniform(), random.uniform()
    values = [float(b), float(a)]
    random.seed(0)
    assert [draw(), draw()] == values[::-1]


def test_draws_differ_between_elements_of_vmap_and_calls():
    x = nv.zeros((5, 2))
    noisy = nv.vmap(lambda row: row + random.normal(shape=(2,)))
    first, second = np.asarray(noisy(x)), np.asarray(noisy(x))
    assert len(np.unique(np.concatenate([first, second]))) == 20
    random.seed(0)
    np.testing.assert_array_equal(np.asarray(noisy(x)), first)


def test_draws_differ_between_elements_of_nested_vmap():
    noisy = nv.vmap(nv.vmap(lambda e: e + random.uniform()))
    assert len(np.unique(np.asarray(noisy(nv.zeros((3, 4)))))) == 12


def test_draws_under_grad_are_constants():
    def loss(w):
        return (w * random.normal(shape=(3,))).sum()

    gradient = np.asarray(nv.grad(loss)(nv.ones(3)))
    random.seed(0)
    np.testing.assert_array_equal(gradient, np.asarray(random.normal(shape=(3,))))


def test_draws_of_a_compiled_function_differ_between_runs():
    noisy = nv.compile(lambda x: (x + random.uniform(), x + random.uniform()))
    values = [float(v) for _ in range(3) for v in noisy(nv.array(0.0))]
    assert len(set(values)) == 6
    random.seed(0)
    assert [float(v) for _ in range(3) for v in noisy(nv.array(0.0))] == values


def test_draws_of_a_compiled_function_differ_between_elements_of_vmap():
    noisy = nv.compile(lambda x: x + random.uniform())
    mapped = nv.vmap(noisy)
    values = [*np.asarray(mapped(nv.zeros(4))), *np.asarray(mapped(nv.zeros(4)))]
    assert len(set(values)) == 8
    inside = nv.compile(nv.vmap(lambda x: x + random.uniform()))
    values = [*np.asarray(inside(nv.zeros(4))), *np.asarray(inside(nv.zeros(4)))]
    assert len(set(values)) == 8


def test_seeding_inside_a_trace_is_refused():
    def f(x):
        random.seed(1)
        return x

    with pytest.raises(ConcretizationError, match=r"nv\.random\.seed"):
        nv.vmap(f)(nv.zeros(3))


def test_threads_share_the_stream_and_draw_each_key_once():
    stream = Stream()
    drawn: list[tuple[int, ...]] = []

    def work():
        with stream_set(stream):
            for _ in range(50):
                drawn.append(tuple(np.asarray(stream.next_key()).tolist()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    again = Stream()
    expected = {tuple(np.asarray(again.next_key()).tolist()) for _ in range(200)}
    assert set(drawn) == expected and len(drawn) == 200


def test_ranks_start_alike():
    """Each rank has its own stream; all begin with the same seed."""
    draws = []
    for _ in range(2):
        with stream_set(Stream()):
            draws.append([draw(), draw()])
    assert draws[0] == draws[1]


def test_the_state_is_two_integers_and_brings_back_the_draws():
    random.seed(-(2**70))
    draw()
    state = random.get_state()
    assert state == (-(2**70), 1) and all(type(item) is int for item in state)
    expected = [draw(), draw()]
    for saved in (state, list(state)):
        random.seed(5)
        random.set_state(saved)
        assert [draw(), draw()] == expected
    random.set_state(np.array([3, 2]))
    assert random.get_state() == (3, 2)


def test_the_state_of_compiled_draws():
    noisy = nv.compile(lambda x: (x + random.uniform(), x + random.uniform()))
    noisy(nv.array(0.0))
    state = random.get_state()
    assert state.drawn == 1  # one key a call, from which the draws inside derive
    expected = [float(v) for v in noisy(nv.array(0.0))]
    draw()
    random.set_state(state)
    assert [float(v) for v in noisy(nv.array(0.0))] == expected


@pytest.mark.parametrize("wrong", [None, 3, (1,), (1, 2, 3), (1.5, 0), ("a", 0), {"seed": 1}])
def test_states_that_are_none(wrong):
    with pytest.raises((TypeError, ValueError), match="set_state takes what get_state returned"):
        random.set_state(wrong)
    with pytest.raises(ValueError, match="no count"):
        random.set_state((0, -1))


def test_the_state_inside_a_trace_is_refused():
    for function in (random.get_state, lambda: random.set_state((0, 0))):

        def f(x, function=function):
            function()
            return x

        for transform in (nv.vmap, nv.compile):
            with pytest.raises(ConcretizationError, match=r"nv\.random\.[gs]et_state"):
                transform(f)(nv.zeros(3))
