"""Profiles of several ranks: communications beside the program, and one axis of time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import nuvec as nv
from nuvec.core import profile as profile_module
from nuvec.core import profiler
from nuvec.core.node import context
from nuvec.distributed import profile_ranks

ROOT = Path(__file__).resolve().parents[2]


def _late(group, x, w):
    y = nv.exp(x)
    z = nv.matmul(w, w)
    z = nv.matmul(z, z)
    return [nv.distributed.all_sum(y, group) * 2, z]


def _barriers_agree(p, slack: int = 0) -> None:
    """Nobody leaves a barrier before all have come."""
    ranks = sorted(p.spans)
    by_rank = {r: [e for e in p.events if e.rank == r and e.name == "barrier"] for r in ranks}
    assert len({len(found) for found in by_rank.values()}) == 1 and by_rank[0]
    for a in ranks:
        for b in ranks:
            off = p.spans[a].uncertainty + p.spans[b].uncertainty + slack
            for x, y in zip(by_rank[a], by_rank[b], strict=True):
                assert x.start <= y.end + off


def test_a_communication_is_shown_beside_the_program() -> None:
    def on_rank(group):
        f = nv.compile(lambda x, w: _late(group, x, w))
        x, w = nv.ones((256, 256)), nv.ones((384, 384)) / 384
        before = [np.asarray(a).tobytes() for a in f(x, w)]
        with nv.profile(group) as p:
            during = [np.asarray(a).tobytes() for a in f(x, w)]
        assert before == during
        return p

    p, other = nv.distributed.run_local(on_rank, 2)
    assert p.events == other.events and p.spans == other.spans
    for rank in (0, 1):
        events = [e for e in p.events if e.rank == rank]
        (sent,) = [e for e in events if e.kind == "communication"]
        assert (sent.name, sent.lane, sent.thread) == ("all_sum", *["communication"] * 2)
        assert sent.bytes == 256 * 256 * 4 and sent.details["group"] == 2
        waits = [e.name for e in events if e.kind == "wait"]
        assert waits == ["start all_sum", "wait for all_sum"]
        wait = next(e for e in events if e.name == "wait for all_sum")
        products = [e for e in events if e.name == "dot_general"]
        # It starts before the products end, and was over when the wait for it was.
        assert sent.start < products[-1].end <= wait.start and sent.end <= wait.end
        assert next(e for e in events if e.name == "exp").end <= sent.start


def test_lazy_communications_and_those_in_loops() -> None:
    def on_rank(group):
        with nv.profile(group) as p:
            x = nv.distributed.all_sum(nv.ones(3), group)
            nv.eval(nv.scan(lambda c, _: (nv.distributed.all_max(c, group), None), x, None, 50)[0])
            nv.distributed.all_gather(x, group)  # pending when the block is left
        return p

    p = nv.distributed.run_local(on_rank, 2)[0]
    for rank in (0, 1):
        names = [e.name for e in p.events if e.rank == rank and e.kind == "communication"]
        assert names == ["all_sum", *["all_max"] * 50, "all_gather"]
        scan = next(e for e in p.events if e.rank == rank and e.name == "scan")
        assert all(
            scan.start <= e.start <= e.end <= scan.end
            for e in p.events if e.rank == rank and e.name == "all_max"
        )  # fmt: skip
    (gathered, _) = [e for e in p.events if e.name == "all_gather"]
    assert gathered.bytes == 2 * 3 * 4 and "all_max" in str(p)


def test_clocks_that_differ_are_brought_to_one_axis(monkeypatch) -> None:
    own = threading.local()
    clock = profiler.clock

    def skewed() -> int:
        return clock() + getattr(own, "ahead", 0)

    for module in (profiler, profile_module, profile_ranks):
        monkeypatch.setattr(module, "clock", skewed)

    def on_rank(group):
        own.ahead = group.rank() * 10**12
        with nv.profile(group) as p:
            for _ in range(3):
                group.barrier()
        return p

    p = nv.distributed.run_local(on_rank, 3)[2]
    assert set(p.spans) == {0, 1, 2} and p.spans[0].uncertainty == 0
    assert all(0 < p.spans[r].uncertainty < 10**10 for r in (1, 2))
    assert max(e.end for e in p.events) < 10**11
    _barriers_agree(p)
    doubt = p.trace()["otherData"]["clock_uncertainty_us"]
    assert doubt["0"] == 0 and doubt["1"] == p.spans[1].uncertainty / 1000


def test_trace_has_a_process_for_every_rank(tmp_path) -> None:
    def on_rank(group):
        with nv.profile(group) as p:
            nv.eval(nv.distributed.all_sum(nv.exp(nv.ones(3)), group))
        p.save(tmp_path / "trace.json")  # all to one file: each is complete
        return p

    nv.distributed.run_local(on_rank, 2)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    assert names == {"rank 0": 0, "rank 1": 1}
    for rank in (0, 1):
        lanes = {
            e["args"]["name"]: e["tid"] for e in events
            if e["name"] == "thread_name" and e["pid"] == rank
        }  # fmt: skip
        complete = [e for e in events if e["ph"] == "X" and e["pid"] == rank]
        (sent,) = [e for e in complete if e["name"] == "all_sum"]
        assert sent["tid"] == lanes["communication"] and sent["args"]["group"] == 2
        assert all(e["ts"] >= 0 and e["dur"] >= 0 for e in complete)


def test_a_rank_that_fails_keeps_its_own_events() -> None:
    kept = {}

    def on_rank(group):
        p = kept[group.rank()] = nv.profile(group)
        with p:
            nv.eval(nv.exp(nv.ones(3)))
            raise ValueError("both ranks stop here")

    with pytest.raises(ValueError, match="stop here"):
        nv.distributed.run_local(on_rank, 2)
    for rank, p in kept.items():
        assert set(p.spans) == {rank} == {e.rank for e in p.events}
        assert "exp" in [e.name for e in p.events]
    assert context.profiles == ()


def test_a_communication_that_fails_on_leaving_closes_the_profile() -> None:
    def on_rank(group):
        p = nv.profile(group)
        try:
            with p:
                nv.distributed.all_sum(nv.ones(3 + group.rank()), group)
        finally:
            assert context.profiles == ()

    with pytest.raises(nv.MismatchError):
        nv.distributed.run_local(on_rank, 2)


def test_a_group_of_one() -> None:
    def on_rank(group):
        with nv.profile(group) as p:
            nv.eval(nv.exp(nv.ones(3)))
        return [e.name for e in p.events], p.spans[0].uncertainty

    assert nv.distributed.run_local(on_rank, 1) == [(["exp"], 0)]


SCRIPT = """
import sys
import nuvec as nv
group = nv.distributed.init(strict=True)
with nv.profile(group) as p:
    for _ in range(3):
        nv.distributed.barrier()
        nv.eval(nv.distributed.all_sum(nv.exp(nv.ones(1000)), group))
if group.rank() == 0:
    p.save(sys.argv[1])
"""


def test_processes_are_on_one_axis(tmp_path) -> None:
    script, path = tmp_path / "script.py", tmp_path / "trace.json"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "nuvec.launch", "-n", "2", str(script), str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())
    doubt = found["otherData"]["clock_uncertainty_us"]
    complete = [e for e in found["traceEvents"] if e["ph"] == "X"]
    mine, other = (
        [e for e in complete if e["name"] == "barrier" and e["pid"] == r] for r in (0, 1)
    )
    assert len(mine) == len(other) == 3
    off = doubt["1"]
    for a, b in zip(mine, other, strict=True):  # nobody leaves before the other has come
        assert a["ts"] <= b["ts"] + b["dur"] + off and b["ts"] <= a["ts"] + a["dur"] + off
