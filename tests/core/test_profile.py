"""Profiles: which events there are, how they nest, what is shown, and that nothing else changes."""

from __future__ import annotations

import itertools
import json
import threading

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.lower import lower
from nuvec.core.node import context
from nuvec.core.profile import Profile, Span
from nuvec.core.profile_report import common, own_pieces, table
from nuvec.core.profiler import Event
from tests.core.lower.programs import bits, f4, program


def _names(p, kind="compute"):
    return [e.name for e in p.events if e.kind == kind]


def _inside(inner, outer):
    return outer.start <= inner.start <= inner.end <= outer.end


def _loss(w, x):
    return nv.mean(nv.exp(nv.tanh(nv.matmul(x, w))))


def _arguments():
    w, x = nv.array(np.eye(8, dtype=np.float32)), nv.array(np.ones((16, 8), np.float32))
    nv.eval(w, x)
    return w, x


def test_lazy_evaluation_is_its_equations_in_order() -> None:
    x = nv.array(np.ones((4, 3), np.float32))
    with nv.profile() as p:
        nv.eval(nv.sum(nv.exp(x) * x))
    assert _names(p) == ["exp", "multiply", "sum"]
    exp, multiply, _ = p.events
    assert exp.bytes == 2 * 48 and multiply.bytes == 3 * 48
    assert exp.details == {"results": "float32[4,3]"} and exp.lane == "compute"
    ends = [0, *[e.end for e in p.events]]
    assert all(end <= e.start <= e.end for end, e in zip(ends, p.events, strict=False))
    assert p.events[-1].end <= p.spans[0].end


def test_a_large_lazy_graph_shows_the_steps_of_its_program() -> None:
    def function():
        return nv.sum(nv.exp(x) * x + 1)

    x = nv.array(np.ones((1024, 1024), np.float32))
    expected = bits(function())
    with nv.profile():  # a graph that is met again makes a program; with steps that are recorded
        assert bits(function()) == expected
    with nv.profile() as p:
        assert bits(function()) == expected
    (graph,) = [e for e in p.events if e.kind == "program"]
    steps = [e for e in p.events if e.kind == "compute"]
    assert graph.name == "lazy graph" and "exp" in steps[0].name
    assert all(_inside(e, graph) for e in steps if e.name != "sum")
    assert bits(function()) == expected


def test_a_compiled_call_has_its_steps_inside_it_and_lines() -> None:
    step = nv.compile(nv.value_and_grad(_loss))
    w, x = _arguments()
    with nv.profile() as p:
        step(w, x)
        step(w, x)
    first, second = [e for e in p.events if e.kind == "program"]
    assert first.name == "compiled _loss" and first.end <= second.start
    for call in (first, second):
        steps = [e for e in p.events if e.kind == "compute" and _inside(e, call)]
        assert steps[0].name == "dot_general"
        assert any(e.source and "test_profile.py" in e.source for e in steps)
        assert all(a.end <= b.start for a, b in itertools.pairwise(steps))
    assert "trace _loss" in _names(p, "trace")
    assert "lower" in _names(p, "lower")
    assert all(e.end <= second.start for e in p.events if e.kind in ("trace", "lower"))


def test_calls_that_were_seen_before_are_recorded_too() -> None:
    step = nv.compile(nv.tanh)
    x = nv.array(np.ones(3, np.float32))
    step(x), step(x)
    with nv.profile() as p:
        step(x)
    assert _names(p) == ["tanh"] and _names(p, "program") == ["compiled tanh"]


def test_bits_are_the_same_and_the_program_too() -> None:
    step = nv.compile(nv.value_and_grad(_loss))
    w, x = _arguments()
    before = step(w, x)
    run = step.lower(w, x).plan.run
    with nv.profile():
        during = step(w, x)
    after = step(w, x)
    assert step.lower(w, x).plan.run is run is step.lower(w, x).plan.runner()
    for a, b, c in zip(*map(nv.tree.leaves, (before, during, after)), strict=True):
        assert bits(a) == bits(b) == bits(c)


def test_a_plan_records_only_while_a_profile_is_open() -> None:
    plan = lower(program(lambda x: nv.exp(x) * 2, f4(3)))
    assert "tick" not in plan.source
    with nv.profile() as p:
        runner = plan.runner()
        assert runner is not plan.run and runner is plan.runner()
        runner(np.ones(3, np.float32))
    assert _names(p) == ["exp", "multiply"]
    assert plan.runner() is plan.run


def test_operands_of_any_layout() -> None:
    step = nv.compile(lambda x: nv.exp(x) * x)
    x = nv.array(np.ones((4, 3), np.float32)).T
    nv.eval(x)
    with nv.profile() as p:
        step(x)
    assert _names(p)[-2:] == ["exp", "multiply"]


def test_nothing_is_recorded_after_the_block_nor_in_other_threads() -> None:
    x = nv.array(np.ones(3, np.float32))
    with nv.profile() as p:
        other = threading.Thread(target=lambda: nv.eval(nv.exp(x)))
        other.start()
        other.join()
        nv.eval(nv.sin(x))
    nv.eval(nv.cos(x))
    assert _names(p) == ["sin"]
    assert context.profiles == ()


def test_profiles_nest() -> None:
    x = nv.array(np.ones(3, np.float32))
    with nv.profile() as outer:
        nv.eval(nv.exp(x))
        with nv.profile() as inner:
            nv.eval(nv.sin(x))
        nv.eval(nv.cos(x))
    assert _names(outer) == ["exp", "sin", "cos"] and _names(inner) == ["sin"]


def test_an_exception_leaves_the_profile_usable_and_nothing_open() -> None:
    x = nv.array(np.arange(3, dtype=np.int32))
    p = nv.profile()

    def block():
        with p:
            nv.eval(nv.sin(x))
            nv.eval(x[nv.array(5) + x])

    with pytest.raises(IndexError):
        block()
    assert context.profiles == ()
    assert "sin" in _names(p) and "sin" in str(p) and p.trace()["traceEvents"]


def test_loops_and_branches_show_what_they_run() -> None:
    def body(c, _):
        return nv.tanh(c) * 2, None

    def function(x):
        c = nv.scan(body, x, None, length=3)[0]
        c = nv.while_loop(lambda c: nv.sum(c) < 50, lambda c: c + 1, c)
        return nv.cond(nv.sum(c) > 0, nv.exp, nv.sin, c)

    x = nv.array(np.ones(3, np.float32))
    expected = bits(function(x))
    for f in (function, nv.compile(function)):
        with nv.profile() as p, nv.config.override(passes=nv.config.passes - {"fuse"}):
            assert bits(f(x)) == expected
        names = _names(p)
        assert names.count("tanh") in (0, 3)  # a short scan may be unrolled, or a step fused
        assert "exp" in names and "sin" not in names and names.count("add") > 3
        whole = next(e for e in p.events if e.name == "while_loop")
        assert all(_inside(e, whole) for e in p.events if e.name == "add")
        assert whole.bytes == 0


def test_a_long_scan_records_each_step() -> None:
    def function(x):
        return nv.scan(lambda c, _: (nv.tanh(c) * c, nv.sin(c)), x, None, length=100)

    x = nv.array(np.ones(3, np.float32))
    f = nv.compile(function)
    before = [bits(a) for a in f(x)]
    with nv.profile() as p:
        during = [bits(a) for a in f(x)]
    assert before == during == [bits(a) for a in f(x)]
    assert _names(p).count("tanh") == _names(p).count("sin") == 100
    scan = next(e for e in p.events if e.name == "scan")
    assert all(_inside(e, scan) for e in p.events if e.name == "tanh")


def test_a_tile_loop_is_one_event_and_shows_its_threads() -> None:
    f = nv.compile(lambda x: nv.sum(nv.exp(x) * x, axis=1))
    x = nv.array(np.ones((4096, 512), np.float32))
    with nv.config.override(threads=2):
        expected = bits(f(x))
        with nv.profile() as p:
            assert bits(f(x)) == expected
    (loop,) = [e for e in p.events if e.kind == "compute"]
    assert loop.name.startswith("exp, multiply, sum (") and loop.name.endswith(" tiles)")
    assert loop.bytes == 4 * (4096 * 512 + 4096)
    shares = [e for e in p.events if e.kind == "tiles"]
    assert sum(int(e.name.split()[0]) for e in shares) == int(loop.name.split("(")[1].split()[0])
    assert all(_inside(e, loop) for e in shares) and "compute" not in {e.lane for e in shares}


def test_donated_arguments_are_written_over_all_the_same() -> None:
    f = nv.compile(lambda x: x * 2 + 1, donate_argnums=0)
    with nv.profile() as p:
        x = nv.array(np.ones((64, 64), np.float32)) + 0
        nv.eval(x)
        y = f(x)
    assert y.tolist() == np.full((64, 64), 3).tolist()
    with pytest.raises(nv.NuvecError, match="was donated"):
        x.tolist()
    call = next(e for e in p.events if e.kind == "program")
    assert any(_inside(e, call) for e in p.events if e.kind == "compute")


def test_an_error_in_a_recorded_program_names_the_line() -> None:
    f = nv.compile(lambda x, i: nv.exp(x[i]))
    with nv.profile(), pytest.raises(IndexError) as found:
        f(nv.array(np.ones(3, np.float32)), nv.array(7))
    assert any("test_profile.py" in note for note in found.value.__notes__)


def test_a_profile_is_opened_once_and_not_in_a_trace() -> None:
    p = nv.profile()
    with p:
        pass
    with pytest.raises(nv.NuvecError, match="opened before"), p:
        pass

    def function(x):
        with nv.profile():
            return x + 1

    with pytest.raises(nv.NuvecError, match="around the call"):
        nv.compile(function)(nv.ones(3))
    assert context.profiles == ()


@pytest.mark.parametrize("group", [3, "all", nv.distributed])
def test_group_must_be_a_group(group) -> None:
    with pytest.raises(nv.ArgumentError, match="should be a Group"):
        nv.profile(group)


def test_an_axis_is_no_group_of_ranks() -> None:
    def function(x):
        nv.profile(nv.distributed.axis_group("i"))
        return x

    with pytest.raises(nv.ArgumentError, match=r"AxisGroup.*should be a Group of ranks"):
        nv.vmap(function, axis_name="i")(nv.ones(3))


def test_trace_is_chromes_format(tmp_path) -> None:
    step = nv.compile(nv.value_and_grad(_loss))
    with nv.profile() as p:
        step(*_arguments())
    path = tmp_path / "trace.json"
    p.save(path)
    assert [f.name for f in tmp_path.iterdir()] == ["trace.json"]
    found = json.loads(path.read_text())
    assert found == p.trace()
    events = found["traceEvents"]
    assert {"process_name", "thread_name"} <= {e["name"] for e in events if e["ph"] == "M"}
    complete = [e for e in events if e["ph"] == "X"]
    assert len(complete) == len(p.events) > 5
    assert all(e["ts"] >= 0 and e["dur"] >= 0 and e["pid"] == 0 for e in complete)
    assert {e["tid"] for e in complete} <= {e["tid"] for e in events if e["ph"] == "M"}


def test_saving_where_there_is_no_folder_raises(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match=r"folder.*does not exist.*nowhere'$"):
        nv.profile().save(tmp_path / "nowhere" / "trace.json")


def _profile_of(*events: Event, end: int = 100) -> str:
    return table(events, {0: Span(0, end)})


def test_time_of_an_event_is_without_that_inside_it() -> None:
    outer, first, second = Event("o", "program", 0, 50), Event("a", "compute", 10, 20), None
    second = Event("b", "compute", 20, 45)
    deep = Event("c", "compute", 25, 30)
    after = Event("d", "compute", 60, 70)
    found = {e.name: pieces for e, pieces in own_pieces([after, deep, second, first, outer])}
    assert found == {
        "o": [(0, 10), (45, 50)], "a": [(10, 20)], "b": [(20, 25), (30, 45)], "c": [(25, 30)],
        "d": [(60, 70)],
    }  # fmt: skip
    assert common([(0, 10), (5, 20)], [(8, 12), (15, 40)]) == 4 + 5


def test_the_table_adds_up() -> None:
    text = _profile_of(
        Event("trace f", "trace", 0, 10),
        Event("compiled f", "program", 20, 80),
        Event("exp", "compute", 20, 40, bytes=4000),
        Event("all_sum", "communication", 30, 70, "communication", 800),
        Event("wait for all_sum", "wait", 40, 70),
        Event("barrier", "communication", 80, 90),
    )
    head, row = [line.split() for line in text.splitlines()[:2]]
    assert head[-5:] == ["compute", "communication", "tracing", "idle", "hidden"]
    # Of 50 ns of communication 10 ran beside exp; the time between steps is compute's.
    assert row[2:] == ["30.0", "%", "40.0", "%", "10.0", "%", "20.0", "%", "20.0", "%"]
    lines = {line[:44].strip(): line[44:].split() for line in text.splitlines()}
    assert lines["exp"][-1] == "200.00"  # bytes per nanosecond
    assert lines["compiled f"] == ["1", "0.000", "10.0", "%"]
    assert lines["all_sum"][0] == "1" and lines["all_sum"][-1] == "20.00"


def test_an_empty_profile_shows_nothing() -> None:
    p = Profile()
    assert p.events == [] and p.trace()["traceEvents"] == [] and "rank" in str(p)
    with p:
        assert "0.0 %" in str(p)  # while it is open
    assert repr(p) == "<Profile of 0 events>"
