"""What is particular to the local transport, and `run_local`."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nuvec.core.errors import ConfigurationError, MismatchError, PeerError
from nuvec.distributed import Group, default_group, init, run_local, set_default_group
from nuvec.distributed.transports import local
from tests.distributed.contract_tools import on_ranks
from tests.distributed.worlds import TRANSPORTS

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
