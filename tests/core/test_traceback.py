"""The user's frame, and tracebacks that end there."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import traceback

import pytest

import nuvec.core.errors
from nuvec.core.config import config
from nuvec.core.errors import ShapeError
from nuvec.core.traceback import filtered, format_user_frame, strip, strip_error, user_frame

PACKAGE = os.path.dirname(os.path.dirname(nuvec.core.errors.__file__))


def inside(source, place=("core", "made_up.py"), **names):
    """Run `source` as if it were a file of the package; returns its namespace."""
    names.update(filtered=filtered, user_frame=user_frame, ShapeError=ShapeError)
    exec(compile(source, os.path.join(PACKAGE, *place), "exec"), names)
    return names


INTERNAL = """\
def fail():
    raise ShapeError("no")

@filtered
def operation(callback=None):
    return callback() if callback else fail()

@filtered
def outer(callback=None):
    return operation(callback)

@filtered
def chained():
    try:
        fail()
    except ShapeError as error:
        raise ValueError("because") from error

def where():
    return user_frame()
"""


@pytest.fixture
def library():
    return inside(INTERNAL)


def functions(error):
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


# --- The user's frame


def test_user_frame_is_the_callers(library):
    filename, line, function = library["where"]()
    assert os.path.samefile(filename, __file__)
    assert function == "test_user_frame_is_the_callers"
    assert line == test_user_frame_is_the_callers.__code__.co_firstlineno + 1


def test_user_frame_skips_go_betweens(library):
    @contextlib.contextmanager
    def manager():
        yield library["where"]()

    with manager() as found:
        assert found[2] == "manager"

    class Lazy:
        value = functools.cached_property(lambda self: library["where"]())

    assert Lazy().value[2] == "<lambda>"


def test_user_frame_may_not_exist(library):
    found = []

    def run():
        found.append(library["where"]())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found[0][2] == "run"
    # A thread whose target is the library's own has no frame of the user at all.
    names = inside("found = []\ndef run():\n    found.append(user_frame())")
    thread = threading.Thread(target=names["run"])
    thread.start()
    thread.join()
    assert names["found"] == [None]


def test_format_user_frame():
    text = format_user_frame()
    assert text is not None
    name, rest = text.split(":")
    assert name == "test_traceback.py"
    assert rest.endswith(" (in test_format_user_frame)")


# --- Filtering


@pytest.mark.parametrize("name", ["operation", "outer"])
def test_internal_frames_are_dropped(library, name):
    with config.override(traceback="filtered"), pytest.raises(ShapeError) as caught:
        library[name]()
    assert functions(caught.value) == ["test_internal_frames_are_dropped"]


def test_full_keeps_them(library):
    with config.override(traceback="full"), pytest.raises(ShapeError) as caught:
        library["operation"]()
    assert functions(caught.value) == ["test_full_keeps_them", "wrapper", "operation", "fail"]


def test_the_users_frames_in_between_stay(library):
    def helper():
        raise KeyError("mine")

    def callback():
        library["operation"](helper)

    with config.override(traceback="filtered"), pytest.raises(KeyError) as caught:
        library["outer"](callback)
    me = "test_the_users_frames_in_between_stay"
    assert functions(caught.value) == [me, "callback", "helper"]


def test_causes_are_stripped_too(library):
    with config.override(traceback="filtered"), pytest.raises(ValueError, match="because") as error:
        library["chained"]()
    assert functions(error.value) == ["test_causes_are_stripped_too"]
    assert isinstance(error.value.__cause__, ShapeError)
    assert functions(error.value.__cause__) == []


def test_a_cycle_of_causes_ends():
    one, other = ValueError(), ValueError()
    one.__cause__, other.__cause__ = other, one
    strip_error(one)
    assert strip(None) is None


def test_line_numbers_survive(library):
    def callback():
        return 1 / 0

    with config.override(traceback="filtered"), pytest.raises(ZeroDivisionError) as caught:
        library["operation"](callback)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert last.lineno == callback.__code__.co_firstlineno + 1
    assert last.line == "return 1 / 0"


def test_the_testing_package_is_the_users_side():
    names = inside(
        "def check():\n    raise AssertionError('wrong')", place=("testing", "made_up.py")
    )
    library = inside(INTERNAL)
    with config.override(traceback="filtered"), pytest.raises(AssertionError) as caught:
        library["operation"](names["check"])
    assert functions(caught.value)[-1] == "check"


def test_filtered_passes_on_what_it_wraps():
    @filtered
    def add(x: int, *, y: int = 1) -> int:
        """Add."""
        return x + y

    assert add(1, y=2) == 3
    assert (add.__name__, add.__doc__) == ("add", "Add.")
