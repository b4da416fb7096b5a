"""Random programs from the table of primitives: every transform, and every pair of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import nuvec as nv
from nuvec.core.primitive import TABLE, Primitive
from nuvec.testing import check_case, random_case, simulate
from nuvec.testing import strategies as ns
from nuvec.testing.operations import OPERATIONS, UNDRAWN
from nuvec.testing.program_checks import CHECKS, failure_of
from nuvec.testing.programs import Case

PROGRAMS, AT_ONCE = 200, 10
MORE = 2000  # with --slow
PLAIN, PAIRS = CHECKS[:4], CHECKS[4:]  # checkpoint and linearize are met among the pairs


def _some_pairs(seed: int, count: int) -> list[tuple[str, str]]:
    """Each program meets a few pairs, and any 13 programs in a row meet all."""
    return [PAIRS[(seed * count + k) % len(PAIRS)] for k in range(count)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(0, PROGRAMS, AT_ONCE))
def test_random_programs(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        check_case(random_case(seed), [*PLAIN, *_some_pairs(seed, 3)])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(PROGRAMS, PROGRAMS + MORE, 50))
def test_many_random_programs(first: int) -> None:
    for seed in range(first, first + 50):
        check_case(random_case(seed), [*PLAIN, *_some_pairs(seed, 12)])


def test_a_program_follows_from_its_seed() -> None:
    assert str(random_case(7)) == str(random_case(7)) != str(random_case(8))


def test_programs_have_the_size_and_the_ranks_asked_for() -> None:
    cases = [random_case(seed) for seed in range(60)]
    assert {c.ranks for c in cases} == {1, 2, 3, 4}
    assert min(c.program.size for c in cases) >= 10
    assert max(c.program.size for c in cases) <= 45  # the last step may hold a body
    assert random_case(0, ranks=3, sizes=(5, 5)).ranks == 3
    assert any(c.program.communicates for c in cases)


def test_the_whole_table_is_drawn_from() -> None:
    drawn: set[str] = set()
    for seed in range(PROGRAMS):
        drawn |= random_case(seed).program.covers
    mine = {
        name for name, p in TABLE.items() if p.lower.__module__.startswith("nuvec.")
    }  # not those that tests make
    assert mine - drawn - set(UNDRAWN) == set()


@pytest.mark.parametrize("seed", range(6))
def test_simulation_agrees_with_the_ranks(seed: int) -> None:
    case = random_case(seed, ranks=2 + seed % 3)

    def program(group: Any) -> Any:
        return case.program(group, *map(nv.array, case.points[0][group.rank()]))

    found = nv.distributed.run_local(program, case.ranks)
    expected = simulate(case.program, case.points[0])
    for outs, values in zip(found, expected, strict=True):
        for out, i in zip(outs, case.program.outputs, strict=True):
            np.testing.assert_allclose(np.asarray(out), values[i], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "check"),
    [("tanh", ("jvp", "")), ("dot_general", ("vjp", "")), ("concatenate", ("vmap", ""))],
)
def test_a_wrong_rule_is_shrunk_to_its_equation(
    name: str, check: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    primitive: Primitive = TABLE[name]
    rule = {"jvp": "derivatives", "vjp": "vjp", "vmap": "vmap"}[check[0]]
    right = getattr(primitive, rule)
    wrong: Any
    if rule == "derivatives":
        wrong = (lambda out, *xs: right[0](out, *xs) * 1.001,)
    elif rule == "vjp":
        wrong = lambda *args, **params: right(*args, **params) * 1.001  # noqa: E731
    else:

        def wrong(*args: Any, **params: Any) -> Any:
            out, axis = right(*args, **params)
            return out * 1.001, axis

    monkeypatch.setattr(primitive, rule, wrong)
    for seed in range(200):
        case = random_case(seed)
        if name in case.program.covers and failure_of(case, [check]) is not None:
            break
    with pytest.raises(AssertionError) as caught:
        check_case(case, [check])
    text = str(caught.value)
    assert "the smallest program that fails" in text
    smallest = text.split("the smallest program that fails:")[1]
    assert smallest.count(" = ") <= 8, text  # one step, and what the IR says of it
    assert f"the {check[0]} rule" in text
    left = text.rsplit("primitives: ", 1)[1].splitlines()[0].split(", ")
    # Operands of two dtypes are converted, and a stack reshapes what it joins.
    assert name in left and {*left} <= {name, "convert_dtype", "reshape"}, text


@settings(max_examples=10, deadline=None, derandomize=True, database=None)
@given(ns.programs(sizes=(3, 8)))
def test_hypothesis_draws_programs(case: Case) -> None:
    assert case.fits()
    check_case(case, PLAIN)


def test_operations_name_primitives_of_the_table() -> None:
    for operation in OPERATIONS:
        assert set(operation.covers) <= set(TABLE), operation.name
