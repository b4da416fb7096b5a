"""Checks for rules, collectives and programs, for whoever adds one of them.

Each raises AssertionError with the smallest facts that help: the program, the inputs, the two
values, how far they are apart, and which rule to look at.
"""

from nuvec.testing.batching import check_vmap
from nuvec.testing.collectives import check_collective
from nuvec.testing.communications import RecordingCommunicator, recorded
from nuvec.testing.contract import CONTRACT, communicator_contract
from nuvec.testing.derivatives import check_grads, check_jvp, check_second_order, check_vjp
from nuvec.testing.exchanges import EXCHANGES
from nuvec.testing.lowering import check_compile, check_lowering
from nuvec.testing.nested import NESTED  # importing it adds control flow to random programs
from nuvec.testing.operation import Operation
from nuvec.testing.operations import OPERATIONS
from nuvec.testing.program_checks import CHECKS, check_case
from nuvec.testing.programs import Case, Program, random_case, simulate

__all__ = [
    "CHECKS",
    "CONTRACT",
    "EXCHANGES",
    "NESTED",
    "OPERATIONS",
    "Case",
    "Operation",
    "Program",
    "RecordingCommunicator",
    "check_case",
    "check_collective",
    "check_compile",
    "check_grads",
    "check_jvp",
    "check_lowering",
    "check_second_order",
    "check_vjp",
    "check_vmap",
    "communicator_contract",
    "random_case",
    "recorded",
    "simulate",
]
