"""Errors that come late say where what failed was written."""

from __future__ import annotations

from pathlib import Path

import pytest

import nuvec as nv
from nuvec.core.traceback import note_source
from nuvec.distributed import Group, run_local
from tests.distributed.test_launch import launch

pytestmark = pytest.mark.timeout(60)


def run(tmp_path: Path, source: str, **variables: str) -> tuple[int, list[str]]:
    path = tmp_path / "script.py"
    path.write_text(source)
    done = launch("-n", "2", "--no-prefix", str(path), **variables)
    return done.returncode, done.stderr.splitlines()


AT_EXIT = """import nuvec as nv
group = nv.distributed.default_group()
def step():
    nv.distributed.send(nv.ones(2), 1 - group.rank())
    return nv.distributed.all_sum(nv.ones(2 + group.rank()))
result = step()
"""


def test_a_failure_at_exit_is_short_and_names_the_line(tmp_path: Path) -> None:
    code, lines = run(tmp_path, AT_EXIT)
    assert code == 1
    assert not any("nuvec/" in line for line in lines)
    expected = (
        "  a communication recorded at script.py:5 (in step) and never evaluated, run at exit"
    )
    assert lines.count(expected) == 2
    assert sum("MismatchError: rank 0 is at all_sum #0 float32[2]" in line for line in lines) == 2
    assert len(lines) <= 10
    code, lines = run(tmp_path, AT_EXIT, NUVEC_TRACEBACK="full")
    assert code == 1 and any("nuvec/distributed/group.py" in line for line in lines)


def test_a_failure_at_exit_of_what_a_transform_recorded(tmp_path: Path) -> None:
    """The backward pass records communications of its own, on no line of the user's."""
    source = """import nuvec as nv
group = nv.distributed.default_group()
x, pull = nv.vjp(nv.distributed.all_sum, nv.ones(2))
nv.eval(x)
if group.rank() == 0:
    pull(nv.ones(2))
else:
    nv.distributed.send(x, 0)
    nv.distributed.all_max(x)
"""
    code, lines = run(tmp_path, source)
    assert code == 1
    assert any("a communication recorded at a line that is not known" in line for line in lines)
    assert any("a communication recorded at script.py:9 (in <module>)" in line for line in lines)


def test_an_error_inside_a_compiled_program_names_the_line() -> None:
    def program(group: Group) -> None:
        def step(x: nv.Array) -> nv.Array:
            y = nv.sin(x)
            return nv.distributed.all_sum(y)  # the line

        compiled = nv.compile(step)
        with pytest.raises(nv.MismatchError) as caught:
            compiled(nv.ones(2 + group.rank()))
        (note,) = caught.value.__notes__
        line = step.__code__.co_firstlineno + 2
        assert note == f"recorded at test_sources.py:{line} (in step)"

    run_local(program, 2)


def test_so_does_one_under_a_transform_and_in_a_body() -> None:
    def step(x: nv.Array, i: nv.Array) -> nv.Array:
        return x[i]  # the line

    index = nv.array(7)
    line = step.__code__.co_firstlineno + 1
    compiled = nv.compile(step)

    def in_scan(x: nv.Array, i: nv.Array) -> nv.Array:
        def body(carry: nv.Array, _: nv.Array) -> tuple[nv.Array, nv.Array]:
            return carry, step(x, i)

        return nv.scan(body, nv.array(0.0), nv.zeros(2))[1]

    for call in (
        lambda: compiled(nv.ones(3), index),
        lambda: nv.compile(in_scan)(nv.ones(3), index),
        lambda: in_scan(nv.ones(3), index).tolist(),
    ):
        with pytest.raises(IndexError) as caught:
            call()
        notes = caught.value.__notes__
        assert notes == [f"recorded at test_sources.py:{line} (in step)"]
    # What a transform makes of a compiled function has the line that called it.
    for call in (
        lambda: nv.grad(lambda x: compiled(x, index))(nv.ones(3)).tolist(),
        lambda: nv.vmap(lambda x: compiled(x, index))(nv.ones((2, 3))).tolist(),
    ):
        with pytest.raises(IndexError) as caught:
            call()
        (note,) = caught.value.__notes__
        assert note.startswith("recorded at test_sources.py:") and note.endswith("(in <lambda>)")


def test_other_errors_get_no_note() -> None:
    error = ValueError("of the user's")
    note_source(error)
    assert not hasattr(error, "__notes__")
