"""The table of backends: chosen by name or variable, never in silence another one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nuvec.core.errors import ConfigurationError
from nuvec.distributed import backends, init, is_available, run_local
from nuvec.distributed.backends import BACKENDS, Backend, join, needs_extra, requested

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).resolve().parents[2]


def run_program(source: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", source],
        env=dict(os.environ, PYTHONPATH=str(ROOT), **variables),
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("backend", ["ring", "mesh"])
@pytest.mark.parametrize("by_variable", [True, False])
def test_a_job_by_its_backend(backend: str, by_variable: bool, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    asked = "" if by_variable else f"backend={backend!r}"
    program.write_text(
        "import nuvec as nv, os\n"
        f"group = nv.distributed.init({asked})\n"
        "assert nv.distributed.init() is group\n"
        f"assert nv.distributed.init(backend={backend!r}) is group\n"
        "assert 'NUVEC_BACKEND' not in os.environ\n"
        "total = nv.distributed.all_sum(nv.arange(100_000.0))\n"
        "assert (total == 2 * nv.arange(100_000.0)).all()\n"
        "other = 'mesh' if group.communicator.name == 'ring' else 'ring'\n"
        "try:\n"
        "    nv.distributed.init(backend=other)\n"
        "except nv.ConfigurationError as error:\n"
        "    assert 'has joined its job already' in str(error)\n"
        "    print(group)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "nuvec.launch", "-n", "2", str(program)],
        env=dict(
            os.environ, PYTHONPATH=str(ROOT), **({"NUVEC_BACKEND": backend} if by_variable else {})
        ),
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"size=2, transport={backend}") == 2


def test_a_backend_that_was_asked_for_is_never_a_group_of_one() -> None:
    source = (
        "import nuvec as nv\n"
        "for call in (nv.distributed.init, nv.distributed.default_group):\n"
        "    try:\n"
        "        print(call())\n"
        "    except nv.ConfigurationError as error:\n"
        "        print('not started as a rank' in str(error) and 'NUVEC_RANK' in str(error))\n"
    )
    assert run_program(source, NUVEC_BACKEND="ring").split() == ["True", "True"]


@pytest.mark.parametrize("name", ["ring", "mesh"])
def test_the_ring_and_the_mesh_are_always_there(name: str) -> None:
    assert is_available(name) and requested(name, {}) == name
    assert requested("any", {"NUVEC_BACKEND": name}) == name
    assert requested("local", {"NUVEC_BACKEND": name}) == "local"
    assert is_available() and not is_available("carrier pigeon")


def test_unknown_backends_are_named() -> None:
    with pytest.raises(ConfigurationError, match=r"backend='carrier pigeon' .* unknown .*'ring'"):
        init(backend="carrier pigeon")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="NUVEC_BACKEND='pigeon' is an unknown backend"):
        requested("any", {"NUVEC_BACKEND": "pigeon"})


def test_a_missing_one_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Backend("pigeon", lambda timeout: None, needs_extra("birds", "no_such_module"))
    monkeypatch.setitem(BACKENDS, "pigeon", row)
    assert not is_available("pigeon")
    with pytest.raises(ConfigurationError, match=r"no_such_module: pip install 'nuvec\[birds\]'"):
        requested("pigeon", {})
    monkeypatch.setitem(BACKENDS, "pigeon", row._replace(missing=needs_extra("birds", "numpy")))
    assert is_available("pigeon") and join("pigeon", 1.0) is None


def test_any_is_the_backend_whose_launcher_started_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[float] = []
    row = Backend("pigeon", made.append, launched=lambda environment: "PIGEON" in environment)  # type: ignore[arg-type]
    monkeypatch.setitem(BACKENDS, "pigeon", row)
    assert join("any", 1.0) is None and made == []
    monkeypatch.setenv("PIGEON", "1")
    join("any", 2.0)
    assert made == [2.0]
    assert backends.BACKENDS is BACKENDS


def test_threads_are_no_backend_of_processes() -> None:
    with pytest.raises(ConfigurationError, match="run_local"):
        init(backend="local")
    assert run_local(lambda g: init(backend="local") is g, 2) == [True, True]
