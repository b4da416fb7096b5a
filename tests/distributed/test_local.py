"""What is particular to the local transport, and `run_local`."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nuvec as nv
from nuvec.core.errors import (
    ArgumentError,
    ConcretizationError,
    ConfigurationError,
    DistributedError,
    MismatchError,
    PeerError,
)
from nuvec.distributed import Group, default_group, init, run_local, set_default_group
from nuvec.distributed.transports import local
from tests.distributed.processes import ROOT
from tests.distributed.worlds import TRANSPORTS, on_ranks

pytestmark = pytest.mark.timeout(30)


def test_a_silent_rank_raises_after_the_timeout() -> None:
    communicators = local.local_world(3, timeout=0.2)
    with pytest.raises(PeerError, match=r"NUVEC_TIMEOUT.*no word from ranks \[1, 2\]"):
        communicators[0].barrier()
    with pytest.raises(PeerError, match="broken since an earlier error"):
        communicators[1].barrier()


def test_a_slow_rank_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "WARN_AFTER", 0.05)
    communicators: list[Any] = local.local_world(2, timeout=5)

    def come_late() -> None:
        while 0 not in communicators[0]._world.waiting:
            time.sleep(0.01)
        time.sleep(0.3)
        communicators[1].barrier()

    late = threading.Thread(target=come_late)
    late.start()
    with caplog.at_level(logging.WARNING):
        communicators[0].barrier()
    late.join()
    assert "rank 0 has waited" in caplog.text and "[1]" in caplog.text


def test_ranks_are_numbered_and_are_the_threads_default() -> None:
    def program(group: Group) -> tuple[int, int, str]:
        assert default_group() is group and init() is group
        half = group.split(group.rank() % 2)
        set_default_group(half)
        assert default_group() is half
        group.barrier()
        return group.rank(), half.rank(), repr(group)

    assert run_local(program, 3) == [
        (0, 0, "Group(rank=0, size=3, transport=local)"),
        (1, 0, "Group(rank=1, size=3, transport=local)"),
        (2, 1, "Group(rank=2, size=3, transport=local)"),
    ]


def test_groups_are_keys_and_copies_are_the_group() -> None:
    import copy

    def program(group: Group) -> bool:
        return {group: 1}[copy.deepcopy(copy.copy(group))] == 1 and group.split(0) != group

    assert run_local(program, 2) == [True, True]


def test_the_first_error_is_raised_and_the_others_are_notes() -> None:
    def program(group: Group) -> None:
        if group.rank() == 1:
            time.sleep(0.05)
            raise ZeroDivisionError("on purpose")
        group.barrier()

    with pytest.raises(ZeroDivisionError, match="on purpose") as caught:
        run_local(program, 3)
    notes = "\n".join(caught.value.__notes__)
    assert "raised on rank 1 of 3" in notes
    assert "rank 0 raised PeerError" in notes and "rank 2 raised PeerError" in notes


def test_a_rank_that_returns_early_has_left() -> None:
    def program(group: Group) -> None:
        if group.rank() != 1:
            group.barrier()

    with pytest.raises(PeerError, match="rank 1 has left"):
        run_local(program, 2)


def test_a_mismatch_names_both_sides() -> None:
    def program(group: Group) -> None:
        if group.rank() == 0:
            group.barrier()
        else:
            group.communicator.all_gather([np.ones(2)])

    with pytest.raises(MismatchError, match=r"rank 0 is at barrier #0, rank 1 at all_gather #0"):
        run_local(program, 2)


def test_local_groups_are_made_by_run_local_only() -> None:
    with pytest.raises(ConfigurationError, match="run_local"):
        init(backend="local")
    with pytest.raises(ConfigurationError, match="unknown backend"):
        init(backend="carrier pigeon")  # type: ignore[arg-type]


def test_many_threads_many_calls() -> None:
    def body(c: local.LocalCommunicator) -> float:
        total = 0.0
        for i in range(200):
            total += c.all_reduce("sum", [np.array(float(i))])[0].item()
        return total

    results = on_ranks(TRANSPORTS["local"](10.0), 4, body)  # type: ignore[arg-type]
    assert results == [4.0 * sum(range(200))] * 4


def test_ctrl_c_ends_run_local() -> None:
    source = (
        "import time\n"
        "from nuvec.distributed import run_local\n"
        "def program(group):\n"
        "    if group.rank() == 0:\n"
        "        print('ready', flush=True)\n"
        "        time.sleep(60)\n"
        "    group.barrier()\n"
        "try:\n"
        "    run_local(program, 3)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", source],
        env=dict(os.environ, PYTHONPATH=str(Path(__file__).resolve().parents[2])),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=10)[0] == "interrupted\n"
    assert process.returncode == 0


def test_a_message_that_nobody_received_is_an_error() -> None:
    def program(group: Group) -> None:
        if group.rank() == 0:
            nv.distributed.send({"a": nv.ones(2), "b": nv.array([1])}, 2, group)
            nv.distributed.send(nv.ones(3), 2, group)
        group.barrier()
        if group.rank() == 2:
            nv.eval(nv.distributed.recv_like({"a": nv.ones(2), "b": nv.array([1])}, 0, group))

    says = r"never received: send #1 to rank 2 float32\[3\] by rank 0\. Each.*test_local\.py"
    with pytest.raises(DistributedError, match=says):
        run_local(program, 3)

    def split(group: Group) -> None:
        half = group.split(group.rank() % 2)
        if group.rank() == 1:
            nv.distributed.send(nv.ones(2), 1, half)
        group.barrier()

    with pytest.raises(DistributedError, match=r"to rank 3 float32\[2\] by rank 1"):
        run_local(split, 4)


def test_an_unreceived_message_does_not_hide_the_failure_of_a_rank() -> None:
    def program(group: Group) -> None:
        if group.rank() == 0:
            nv.eval(nv.distributed.send(nv.ones(2), 1, group))
        group.barrier()
        if group.rank() == 1:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_local(program, 2)


@pytest.mark.parametrize("size", [0, -1, 2.5, True, "2", None])
def test_a_size_that_is_none(size: Any) -> None:
    with pytest.raises(ArgumentError, match=r"at least 1, got .*test_local\.py"):
        run_local(lambda group: None, size)


def _total(x: Any) -> Any:
    return run_local(lambda group: nv.distributed.all_sum(x * x, group), 2)[0]


@pytest.mark.parametrize(
    ("transform", "name"),
    [
        (lambda f: nv.grad(f)(3.0), "grad"),
        (lambda f: nv.vjp(f, 3.0), "vjp"),
        (lambda f: nv.jvp(f, (3.0,), (1.0,)), "jvp"),
        (lambda f: nv.linearize(f, 3.0), "linearize"),
        (lambda f: nv.grad(nv.grad(f))(3.0), "grad"),
    ],
)
def test_derivatives_do_not_cross_run_local(transform: Any, name: str) -> None:
    says = rf"run_local inside {name} of .*derivatives cannot cross.*nv\.grad.*test_local\.py"
    with pytest.raises(DistributedError, match=says):
        transform(_total)


def test_derivatives_of_compiled_communications_do_not_cross_run_local() -> None:
    compiled = nv.compile(lambda x: nv.distributed.all_sum(x * x))
    with pytest.raises(DistributedError, match=r"its ranks have ended.*inside the func"):
        nv.eval(nv.grad(lambda x: run_local(lambda group: compiled(x), 2)[0])(3.0))


def test_what_has_no_derivative_may_be_communicated_inside_grad() -> None:
    def through(what: Any) -> float:
        def f(x: Any) -> Any:
            return x * run_local(lambda group: nv.distributed.all_sum(what(x), group), 2)[0]

        return nv.grad(f)(3.0).item()

    assert through(lambda x: nv.array(4)) == 8
    assert through(nv.stop_gradient) == 6  # a weak scalar too
    assert through(lambda x: nv.stop_gradient(x * nv.ones(()))) == 6
    assert nv.grad(lambda x: run_local(lambda group: x * x, 2)[1])(3.0).item() == 6


@pytest.mark.parametrize("transform", [nv.vmap, nv.compile])
def test_what_has_no_value_cannot_leave_a_rank(transform: Any) -> None:
    with pytest.raises(ConcretizationError) as caught:
        transform(_total)(nv.ones(3))
    text = str(caught.value)
    assert "run_local evaluates what its ranks return" in text and "None" not in text
    assert "argument 'x' of _total" in text and "inside the function that run_local calls" in text
    assert "test_local.py" in text


def test_a_compiled_function_forgets_ranks_that_have_ended() -> None:
    default = nv.compile(lambda x: nv.distributed.all_sum(x * 2))
    passed = nv.compile(lambda x, group: nv.distributed.all_sum(x, group), static_argnums=1)
    asked = nv.compile(lambda x, group: x * group.size(), static_argnums=1)
    groups: list[weakref.ref[Group]] = []

    def program(group: Group) -> None:
        groups.append(weakref.ref(group))
        kept = nv.compile(lambda x: nv.distributed.all_sum(x, group))
        nv.eval(default(nv.ones(2)), passed(nv.ones(2), group), asked(nv.ones(2), group))
        assert kept(nv.ones(2)).tolist() == [2, 2] == default(nv.ones(2) / 2).tolist()

    for _ in range(5):
        run_local(program, 2)
    gc.collect()
    assert sum(group() is not None for group in groups) <= 2
    assert all(len(f._cache) <= 2 for f in (default, passed, asked))


def test_the_worlds_of_the_tests_leave_no_directory(tmp_path: Path) -> None:
    program = "from tests.distributed.worlds import mesh_jobs; mesh_jobs(2, 'unix')"
    environment = dict(os.environ, TMPDIR=str(tmp_path), PYTHONPATH=str(ROOT))
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=30)
    assert list(tmp_path.iterdir()) == []
