"""The default random stream."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.array import from_numpy
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
    key = from_numpy(Stream().take(1)[0].value)
    assert draw() == float(random.uniform(random.fold_in(key, 0)))
    assert draw() == float(random.uniform(random.fold_in(key, 1)))


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
    drawn: list[int] = []

    def work():
        with stream_set(stream):
            for _ in range(50):
                drawn.append(stream.take(1)[1])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    again = Stream()
    expected = {again.take(1)[1] for _ in range(200)}
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
    assert state.drawn == 2
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
    with pytest.raises(ValueError, match="no count"):
        random.set_state((0, 2**63))


def test_the_state_inside_a_trace_is_refused():
    for function in (random.get_state, lambda: random.set_state((0, 0))):

        def f(x, function=function):
            function()
            return x

        for transform in (nv.vmap, nv.compile):
            with pytest.raises(ConcretizationError, match=r"nv\.random\.[gs]et_state"):
                transform(f)(nv.zeros(3))


def noisy(x):
    return x * random.normal(shape=x.shape) + random.uniform()


def from_seed(f, *args):
    """What `f` returns, and the stream after it."""
    random.seed(3)
    leaves = [np.asarray(leaf) for leaf in nv.tree.leaves(f(*args))]
    return leaves, random.get_state()


def python_loop(x, order=1):
    ys = []
    for _ in range(4):
        x = noisy(x)
        ys.append(random.uniform(shape=(2,)))
    return x, nv.stack(ys[::order])


def as_scan(x, reverse=False):
    def step(carry, _):
        return noisy(carry), random.uniform(shape=(2,))

    return nv.scan(step, x, None, 4, reverse=reverse)


def total(x):
    return noisy(x).sum()


def python_while(x):
    while float(x.sum()) < 20:
        x = x + random.uniform() + 1
    return x


def as_while(x, **kwargs):
    return nv.while_loop(lambda c: c.sum() < 20, lambda c: c + random.uniform() + 1, x, **kwargs)


@nv.custom_jvp
def dropped(x):
    return x * random.bernoulli(p=0.5, shape=x.shape)


dropped.defjvps(lambda t, out, x: t * 2)


@nv.custom_vjp
def hidden(x):
    return x * random.bernoulli(p=0.5, shape=x.shape)


hidden.defvjp(lambda x: (hidden(x), None), lambda _, c: (c * random.uniform(),))

SAME_DRAWS = {
    "compile": (noisy, nv.compile(noisy)),
    "checkpoint": (noisy, nv.checkpoint(noisy)),
    "compile in vmap": (nv.vmap(noisy), nv.vmap(nv.compile(noisy))),
    "vmap in compile": (nv.vmap(noisy), nv.compile(nv.vmap(noisy))),
    "checkpoint in vmap": (nv.vmap(noisy), nv.vmap(nv.checkpoint(noisy))),
    "compile in grad": (nv.grad(total), nv.grad(nv.compile(total))),
    "checkpoint in grad": (nv.grad(total), nv.grad(nv.checkpoint(total))),
    "grad in compile": (nv.grad(total), nv.compile(nv.grad(total))),
    "scan": (python_loop, as_scan),
    "scan in compile": (python_loop, nv.compile(as_scan)),
    "scan in vmap": (
        lambda x: nv.vmap(python_loop)(nv.stack([x, x])),
        lambda x: nv.vmap(as_scan)(nv.stack([x, x])),
    ),
    "reversed scan": (lambda x: python_loop(x, -1), lambda x: as_scan(x, reverse=True)),
    "fori_loop": (
        lambda x: noisy(noisy(x)),
        lambda x: nv.fori_loop(0, 2, lambda i, c: noisy(c), x),
    ),
    "map": (lambda x: nv.stack([noisy(v) for v in x]), lambda x: nv.map(noisy, x)),
    "cond": (
        lambda x: noisy(x) if float(x.sum()) > 0 else x,
        lambda x: nv.cond(x.sum() > 0, noisy, lambda x: x, x),
    ),
    "custom_jvp": (dropped, nv.compile(dropped)),
    "jvp of a custom_jvp": (
        lambda x: nv.jvp(dropped, (x,), (x,)),
        nv.compile(lambda x: nv.jvp(dropped, (x,), (x,))),
    ),
    "custom_vjp": (hidden, nv.compile(hidden)),
    "vjp of a custom_vjp": (
        lambda x: nv.vjp(hidden, x)[1](x),
        nv.compile(lambda x: nv.vjp(hidden, x)[1](x)),
    ),
}


@pytest.mark.parametrize("name", SAME_DRAWS)
def test_a_function_draws_the_same_however_it_is_transformed(name):
    plain, transformed = SAME_DRAWS[name]
    x = nv.arange(3.0)
    values, state = from_seed(plain, x)
    for _ in range(2):  # traced, and from the cache
        found, after = from_seed(transformed, x)
        assert len(found) == len(values) and after == state
        for a, b in zip(values, found, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_while_loop_of_known_length_draws_as_a_python_loop():
    x = nv.arange(3.0)
    values, _ = from_seed(python_while, x)
    found, state = from_seed(lambda x: as_while(x, max_steps=9), x)
    np.testing.assert_array_equal(values[0], found[0])
    assert state.drawn == 9  # as many as it can take
    values, state = from_seed(as_while, x)
    assert state.drawn == 1  # a stream of its own
    np.testing.assert_array_equal(values[0], from_seed(nv.compile(as_while), x)[0][0])


def test_draws_of_a_custom_backward_are_not_those_of_its_forward():
    @nv.custom_vjp
    def f(x):
        return x + random.uniform()

    f.defvjp(lambda x: (x + random.uniform(), None), lambda _, c: (c * random.uniform(),))
    compiled = nv.compile(f)

    @nv.compile
    def both(x):
        out, pull = nv.vjp(compiled, x)
        return out, *pull(nv.ones(()))

    draws = [float(v) for _ in range(2) for v in both(nv.array(0.0))]
    assert len(set(draws)) == 4


def test_no_two_draws_are_the_same():
    """Positions, elements, steps and backwards of one stream, and keys of the user's own."""

    def step(state):
        i, found = state
        return i + 1, found.at[i].set(random.uniform())

    def steps():
        return nv.while_loop(lambda s: s[0] < 4, step, (0, nv.zeros(4)))[1]

    @nv.custom_vjp
    def hidden(x):
        return x

    hidden.defvjp(lambda x: (x, None), lambda _, c: (c * random.uniform(),))
    random.seed(0)
    rows, twice = nv.zeros(4), nv.zeros((3, 4))
    found = [random.uniform() for _ in range(4)]
    found += [nv.vmap(lambda x: random.uniform())(rows) for _ in range(4)]
    found += [nv.vmap(nv.vmap(lambda x: random.uniform()))(twice) for _ in range(4)]
    found += [steps() for _ in range(4)]
    found += [nv.vmap(lambda x: steps() + x)(rows) for _ in range(4)]
    found += [nv.grad(nv.checkpoint(hidden))(1.0) for _ in range(4)]
    for seed in range(3):
        key = random.key(seed)
        found += [random.uniform(random.fold_in(key, i)) for i in range(-4, 8)]
        found += [random.uniform(k) for k in random.split(key, 4)] + [random.uniform(key)]
    values = np.concatenate([np.asarray(v).ravel() for v in found])
    assert len(set(values.tolist())) == values.size
