"""Ranks stay in step whatever each evaluates: nothing hangs, nothing is communicated twice."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec import distributed as nd
from nuvec.core.array import from_numpy
from nuvec.core.errors import (
    ConcretizationError,
    LeakedTracerError,
    MismatchError,
    OutOfBoundsError,
    PeerError,
)  # fmt: skip
from nuvec.core.node import context
from nuvec.core.ops.differentiation import depends, stop_gradient
from nuvec.distributed.group import Group, run_local
from nuvec.testing import recorded
from nuvec.transforms.compile import compile
from nuvec.transforms.grad import grad, value_and_grad, vjp
from nuvec.transforms.jvp import jvp
from nuvec.transforms.vmap import vmap

pytestmark = pytest.mark.timeout(60)


def values(group: Group) -> Any:
    """(1, 2) on rank 0, (2, 3) on rank 1, ... in float64."""
    return from_numpy(np.array([1.0, 2.0]) + group.rank())


def test_a_value_printed_on_one_rank_alone() -> None:
    def program(group: Group) -> Any:
        group, calls = recorded(group)
        x = values(group)
        total = nd.all_sum(x, group)
        loss = nv.sum(total)
        if group.rank() == 0:
            str(loss)  # runs as soon as the others reach a later communication
        gathered = nd.all_gather(x, group)
        nv.eval(gathered)
        return loss, gathered, calls

    for loss, gathered, calls in run_local(program, 3):
        assert loss.item() == 15
        assert gathered.tolist() == [1, 2, 2, 3, 3, 4]
        assert [c.split()[0] for c in calls] == ["all_reduce", "all_gather"]


def test_ranks_that_evaluate_in_different_orders() -> None:
    def program(group: Group) -> Any:
        group, calls = recorded(group)
        x = values(group)
        results = [
            nd.all_sum(x, group), nd.all_gather(x, group), nd.all_max(x, group),
            nd.broadcast(x, 1, group),
        ]  # fmt: skip
        for i in np.random.Generator(np.random.PCG64(group.rank())).permutation(4):
            results[i].tolist()
        return [r.tolist() for r in results], calls

    first, *others = run_local(program, 4)
    assert first[0] == [[10, 14], [1, 2, 2, 3, 3, 4, 4, 5], [4, 5], [2, 3]]
    assert all(r == first for r in others)
    assert len(first[1]) == 4


def test_a_send_whose_handle_is_dropped_arrives() -> None:
    def program(group: Group) -> Any:
        if group.rank() == 0:
            nd.send(values(group), 1, group)
            gc.collect()
            return None
        return nd.recv((2,), np.float64, 0, group)

    assert run_local(program, 2)[1].tolist() == [1, 2]


def test_a_result_that_nobody_asks_for_still_communicates() -> None:
    """The other rank asks: so this one must take part, at the latest when it ends."""

    def program(group: Group) -> Any:
        group, calls = recorded(group)
        total = nd.all_sum(values(group), group)
        result = total.tolist() if group.rank() else None
        del total
        nd.synchronize(group)
        nd.synchronize(group)
        return result, calls

    (_, first), (result, second) = run_local(program, 2)
    assert result == [3, 5]
    assert len(first) == len(second) == 1


def test_an_if_on_one_rank_under_grad() -> None:
    def program(group: Group) -> Any:
        group, calls = recorded(group)

        def loss(x: Any) -> Any:
            y = nv.sum(nd.all_sum(x * x, group))
            if group.rank() == 0 and y > 0:
                y = y * 2
            return y * nv.sum(nd.all_max(x, group))

        value, gradient = value_and_grad(loss)(values(group))
        nv.eval(gradient)
        return value.item(), gradient.tolist(), calls

    (v0, g0, calls0), (v1, g1, calls1) = run_local(program, 2)
    # y = 1+4 + 4+9 = 18, m = 2+3 = 5; rank 0's output is 36 * 5, rank 1's 18 * 5
    assert (v0, v1) == (180, 90)
    # d(sum of both)/dx = 3 * 5 * 2x, and rank 1 holds the maxima: + 3 * 18
    assert (g0, g1) == ([30, 60], [60 + 54, 90 + 54])
    assert len(calls0) == len(calls1) == 4


@pytest.mark.parametrize("what", ["gradient", "value", "both", "neither"])
def test_each_communication_runs_once_whatever_is_evaluated(what: str) -> None:
    def program(group: Group) -> Any:
        group, calls = recorded(group)

        def f(x: Any) -> Any:
            return nv.sum(nv.sin(nd.all_sum(x, group)))

        value, gradient = value_and_grad(f)(values(group))
        if group.rank():
            nv.eval(gradient, value)
        elif what != "neither":
            nv.eval({"gradient": gradient, "value": value, "both": (value, gradient)}[what])
        nd.synchronize(group)
        nv.eval(value, gradient)
        return calls

    for calls in run_local(program, 2):
        assert len(calls) == 2


def test_second_order_communications() -> None:
    """d2/dx2 of sum_r sin(sum x) is -N sin: communicated as often on every rank."""

    def program(group: Group) -> Any:
        group, calls = recorded(group)

        def f(x: Any) -> Any:
            return nv.sin(nd.all_sum(x, group))

        x = from_numpy(np.float64(0.3 + group.rank()))
        second = grad(grad(f))(x)
        nv.eval(second)
        count = len(calls)
        third = grad(grad(grad(f)))(x)
        forward = jvp(grad(f), (x,), (from_numpy(np.float64(1)),))[1]
        return second, third, forward, count

    n, total = 3, 0.3 * 3 + 3
    results = run_local(program, n)
    # Each grad sums over ranks of outputs that are alike on all of them: a factor N an order.
    for second, third, forward, count in results:
        np.testing.assert_allclose(second, -(n**2) * np.sin(total), rtol=1e-12)
        np.testing.assert_allclose(third, -(n**3) * np.cos(total), rtol=1e-12)
        np.testing.assert_allclose(forward, -(n**2) * np.sin(total), rtol=1e-12)
        assert count == results[0][3] == 4


def test_a_pipeline_of_three_ranks_with_plain_grad() -> None:
    """Each rank holds a stage; the loss is on the last, and every rank gets its gradient."""
    weights = [0.5, -1.5, 2.0]

    def stage(w: Any, h: Any) -> Any:
        return nv.tanh(h * w)

    def program(group: Group) -> Any:
        group, calls = recorded(group)
        rank, last = group.rank(), group.size() - 1

        def loss(w: Any) -> Any:
            x = from_numpy(np.array([0.2, 0.4]))
            h = x if rank == 0 else nd.recv((2,), np.float64, rank - 1, group)
            h = stage(w, h)
            if rank < last:
                nd.send(h, rank + 1, group)
                return nv.array(0.0)  # it depends on nothing here
            return nv.sum(h)

        w = from_numpy(np.float64(weights[rank]))
        plain = grad(loss)(w)
        nv.eval(plain)
        count = len(calls)
        return plain, compile(grad(loss))(w), count

    def dense(w: Any) -> Any:
        h = from_numpy(np.array([0.2, 0.4]))
        for i in range(3):
            h = stage(w[i], h)
        return nv.sum(h)

    expected = grad(dense)(from_numpy(np.array(weights)))
    for rank, (plain, compiled, count) in enumerate(run_local(program, 3)):
        np.testing.assert_allclose(plain, expected[rank], rtol=1e-12)
        np.testing.assert_array_equal(compiled, plain)
        assert count == (4 if rank == 1 else 2)


def test_a_recv_without_any_input_is_answered_in_the_backward() -> None:
    """Rank 1 differentiates something that does not reach what it received."""

    def program(group: Group) -> Any:
        if group.rank() == 0:
            return grad(lambda x: nv.sum(nd.send(x * x, 1, group)) * 0)(values(group))

        def f(y: Any) -> Any:
            got = nd.recv((2,), np.float64, 0, group)
            return nv.sum(nv.sin(got)) + 0 * nv.sum(y)

        return grad(f)(values(group))

    gradient, zeros = run_local(program, 2)
    np.testing.assert_allclose(gradient, 2 * np.array([1, 2]) * np.cos([1, 4]), rtol=1e-12)
    assert zeros.tolist() == [0, 0]


def test_stop_gradient_on_the_operand_takes_it_out_of_the_derivative() -> None:
    def program(group: Group) -> Any:
        group, calls = recorded(group)

        def f(x: Any) -> Any:
            return nv.sum(x * nd.all_sum(stop_gradient(x), group))

        gradient = grad(f)(values(group))
        nv.eval(gradient)
        moved = jvp(f, (values(group),), (values(group),))[1]
        nv.eval(moved)
        batched = vmap(grad(f))(nv.stack([values(group), values(group)]))
        nv.eval(batched)
        nd.synchronize(group)
        return gradient.tolist(), moved.item(), batched.tolist(), calls

    for rank, (gradient, moved, batched, calls) in enumerate(run_local(program, 2)):
        assert gradient == [3, 5]
        assert moved == 3 * (1 + rank) + 5 * (2 + rank)
        assert batched == [[3, 5], [3, 5]]
        assert len(calls) == 3  # one forward each, no backward


def test_a_rank_without_a_gradient_to_give_takes_part() -> None:
    """One rank's operand is a constant, another's loss ignores the result."""

    def program(group: Group) -> Any:
        def f(x: Any) -> Any:
            y = nd.all_sum(nv.ones(2, np.float64) if group.rank() == 0 else x * x, group)
            return nv.sum(x) if group.rank() == 1 else nv.sum(y)

        return grad(f)(values(group))

    a, b, c = run_local(program, 3)
    assert a.tolist() == [0, 0]
    assert b.tolist() == [1 + 2 * 2 * 2, 1 + 2 * 2 * 3]
    assert c.tolist() == [2 * 2 * 3, 2 * 2 * 4]


MISMATCHES = {
    "operation": (lambda g, x: nd.all_sum(x, g), lambda g, x: nd.all_gather(x, g)),
    "shape": (lambda g, x: nd.all_sum(x, g), lambda g, x: nd.all_sum(x[:1], g)),
    "dtype": (lambda g, x: nd.all_sum(x, g), lambda g, x: nd.all_sum(x.astype(np.float32), g)),
    "count": (lambda g, x: nd.all_sum(x, g), lambda g, x: nd.all_sum([x, x], g)),
    "root": (lambda g, x: nd.broadcast(x, 0, g), lambda g, x: nd.broadcast(x, 1, g)),
}


@pytest.mark.parametrize("kind", MISMATCHES)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_mismatch_raises_on_both_ranks_and_names_both(kind: str, compiled: bool) -> None:
    errors: dict[int, str] = {}

    def program(group: Group) -> None:
        call = MISMATCHES[kind][group.rank()]
        f = (lambda x: call(group, x)) if not compiled else compile(lambda x: call(group, x))
        try:
            nv.eval(f(values(group)))
        except MismatchError as error:
            errors[group.rank()] = str(error)
            raise

    with pytest.raises(MismatchError):
        run_local(program, 2)
    assert sorted(errors) == [0, 1]
    for text in errors.values():
        assert "rank 0" in text and "rank 1" in text
        assert {"operation": "all_gather", "root": "broadcast"}.get(kind, "all_sum") in text
        if kind == "dtype":
            assert "float32" in text and "float64" in text


def test_a_received_message_of_another_shape_is_named() -> None:
    def program(group: Group) -> Any:
        if group.rank() == 0:
            nd.send(values(group), 1, group)
            nd.synchronize(group)
            return None
        return nd.recv((3,), np.float64, 0, group).tolist()

    with pytest.raises(MismatchError, match=r"(?s)2.*3|3.*2"):
        run_local(program, 2)


def test_an_unbatched_sender_of_a_batched_receive_is_a_mismatch() -> None:
    def program(group: Group) -> Any:
        if group.rank() == 0:
            nv.eval(nd.send(nv.ones(2), 1, group))
            return None
        f = vmap(lambda x: x + nd.recv((2,), np.float32, 0, group))
        return nv.eval(f(nv.ones((3, 2))))

    with pytest.raises(MismatchError):
        run_local(program, 2)


@pytest.mark.parametrize("where", ["before", "after", "inside"])
def test_a_rank_that_raises_makes_the_others_raise(where: str) -> None:
    def program(group: Group) -> Any:
        x = values(group)
        if group.rank() == 1:
            if where == "before":
                raise ZeroDivisionError("on purpose")
            if where == "after":
                nd.all_sum(x, group).tolist()
                raise ZeroDivisionError("on purpose")
            x = x[nv.array([7, 7])]  # out of bounds, found when it is evaluated
        first = nd.all_sum(x, group).tolist()
        return first, nd.all_sum(x, group).tolist()

    expected = (OutOfBoundsError, IndexError) if where == "inside" else (ZeroDivisionError,)
    with pytest.raises(expected) as caught:
        run_local(program, 3)
    notes = "\n".join(caught.value.__notes__)
    assert "rank 0 raised PeerError" in notes and "rank 2 raised PeerError" in notes


def test_a_trace_that_raises_leaves_real_communications_queued() -> None:
    """Ranks 0 and 1 must agree: what was recorded on real values before the error still runs."""

    def program(group: Group) -> Any:
        group, calls = recorded(group)

        def f(x: Any) -> Any:
            y = nd.all_sum(x, group)
            raise KeyError("on purpose")
            return y

        with pytest.raises(KeyError, match="on purpose"):
            grad(f)(values(group))
        assert context.traces == () and len(group.queue) == 1
        with pytest.raises(KeyError, match="on purpose"):
            compile(f)(values(group))
        assert context.traces == () and len(group.queue) == 1  # placeholders communicate nothing
        after = nd.all_max(values(group), group)
        return after, calls

    for after, calls in run_local(program, 2):
        assert after.tolist() == [2, 3]
        assert [c.split()[:2] for c in calls] == [["all_reduce", "sum"], ["all_reduce", "max"]]


def test_a_leaked_communication_of_a_compiled_function() -> None:
    def program(group: Group) -> None:
        kept = []

        def f(x: Any) -> Any:
            kept.append(nd.all_sum(x, group))
            return x

        nv.eval(compile(f)(values(group)))
        with pytest.raises(LeakedTracerError):
            kept[0].tolist()

    run_local(program, 2)


def test_forcing_a_communication_inside_compile_says_so() -> None:
    def program(group: Group) -> None:
        def f(x: Any) -> Any:
            return x if nv.sum(nd.all_sum(x, group)) > 0 else -x

        with pytest.raises(ConcretizationError, match="argument 'x'"):
            compile(f)(values(group))

    run_local(program, 2)


def test_compiled_and_uncompiled_ranks_interoperate() -> None:
    def program(group: Group) -> Any:
        def loss(x: Any) -> Any:
            y = nd.all_gather(nv.sin(x), group)
            return nv.sum(nd.all_sum(nv.sum(y) * x, group))

        step = grad(loss)
        if group.rank() == 1:
            step = compile(step)
        if group.rank() == 2:
            step = grad(compile(loss))
        return step(values(group))

    mixed = run_local(program, 3)

    def plain(group: Group) -> Any:
        def loss(x: Any) -> Any:
            y = nd.all_gather(nv.sin(x), group)
            return nv.sum(nd.all_sum(nv.sum(y) * x, group))

        return grad(loss)(values(group))

    for a, b in zip(mixed, run_local(plain, 3), strict=True):
        np.testing.assert_array_equal(a, b)


def test_two_groups_keep_one_order() -> None:
    def program(group: Group) -> Any:
        half = group.split(group.rank() % 2)
        x = values(group)
        inner = nd.all_sum(x, half)
        outer = nd.all_sum(inner, group)
        other = nd.all_sum(x, half)
        if group.rank() == 0:
            other.tolist()
        if group.rank() == 1:
            outer.tolist()
        gradient = grad(lambda x: nv.sum(nd.all_sum(nd.all_sum(x, half) ** 2, group)))(x)
        return inner.tolist(), outer.tolist(), other.tolist(), gradient

    results = run_local(program, 4)
    for rank, (inner, outer, other, gradient) in enumerate(results):
        expected = [4, 6] if rank % 2 == 0 else [6, 8]
        assert inner == other == expected
        assert outer == [20, 28]
        # 4 outputs, each sums inner**2 over 4 ranks, of which 2 have this half's inner.
        np.testing.assert_array_equal(gradient, 4 * 2 * 2 * np.array(expected, float))


def test_evaluating_from_two_threads() -> None:
    def program(group: Group) -> Any:
        group, calls = recorded(group)
        results = [nd.all_sum(values(group) * k, group) for k in range(20)]
        found: list[Any] = [None, None]

        def evaluate(i: int) -> None:
            found[i] = [r.tolist() for r in (results if i else results[::-1])]

        threads = [threading.Thread(target=evaluate, args=(i,)) for i in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return found, calls

    for (backward, forward), calls in run_local(program, 2):
        assert forward == backward[::-1] == [[3 * k, 5 * k] for k in range(20)]
        assert len(calls) == 20


def test_vjp_fn_called_twice_communicates_its_backward_twice() -> None:
    def program(group: Group) -> Any:
        group, calls = recorded(group)
        out, pull = vjp(lambda x: nd.all_sum(x * x, group), values(group))
        out.tolist()
        one = pull(nv.ones(2, np.float64))[0].tolist()
        two = pull(nv.ones(2, np.float64))[0].tolist()
        return one, two, calls

    for rank, (one, two, calls) in enumerate(run_local(program, 2)):
        assert one == two == [4.0 * (1 + rank), 4.0 * (2 + rank)]
        assert len(calls) == 3


def test_depends_orders_what_data_does_not() -> None:
    def program(group: Group) -> Any:
        group, calls = recorded(group)
        sent = nd.send(values(group), (group.rank() + 1) % 2, group)
        got = depends(nd.recv_like(sent, (group.rank() + 1) % 2, group), sent)
        return got.tolist(), calls

    (a, calls), (b, _) = run_local(program, 2)
    assert (a, b) == ([2, 3], [1, 2])
    assert [c.split()[0] for c in calls] == ["send", "recv"]


def test_a_failed_communication_raises_at_each_force() -> None:
    def program(group: Group) -> None:
        if group.rank() == 0:
            return
        total = nd.all_sum(values(group), group)
        for _ in range(2):
            with pytest.raises(PeerError, match="rank 0"):
                total.tolist()

    run_local(program, 2)
