"""Settings: the environment, validation, overriding, threads."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading

import pytest

from nuvec.core.config import PASSES, Config
from nuvec.core.errors import ConfigurationError

DEFAULTS = {
    "traceback": "filtered",
    "check_ir": False,
    "debug_nans": False,
    "threads": None,
    "disable_compile": False,
    "timeout": 300.0,
    "passes": frozenset(PASSES),
}


@pytest.fixture
def config(monkeypatch):
    """A Config of the test's own, in an environment without settings."""
    for name in DEFAULTS:
        monkeypatch.delenv(f"NUVEC_{name.upper()}", raising=False)
    return Config()


def test_defaults(config):
    assert {name: getattr(config, name) for name in DEFAULTS} == DEFAULTS
    assert repr(config).startswith("config(traceback='filtered', check_ir=False")
    assert set(DEFAULTS) <= set(dir(config))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("traceback", "full", "full"),
        ("traceback", "FULL", "full"),
        ("check_ir", "1", True),
        ("check_ir", "off", False),
        ("debug_nans", "True", True),
        ("disable_compile", "yes", True),
        ("threads", "3", 3),
        ("threads", "none", None),
        ("threads", "", None),
        ("timeout", "2.5", 2.5),
        ("timeout", " 1 ", 1.0),
        ("passes", "none", frozenset()),
        ("passes", "all", frozenset(PASSES)),
        ("passes", "fuse, arena", frozenset(("fuse", "arena"))),
    ],
)
def test_environment(config, monkeypatch, name, text, value):
    monkeypatch.setenv(f"NUVEC_{name.upper()}", text)
    assert getattr(config, name) == value


def test_environment_is_read_at_the_first_access_and_once(config, monkeypatch):
    monkeypatch.setenv("NUVEC_TIMEOUT", "7")
    assert config.timeout == 7.0
    monkeypatch.setenv("NUVEC_TIMEOUT", "8")
    assert config.timeout == 7.0
    del config.timeout
    assert config.timeout == 8.0


def test_an_assignment_beats_the_environment(config, monkeypatch):
    monkeypatch.setenv("NUVEC_THREADS", "nonsense")
    config.threads = 2
    assert config.threads == 2


BAD_ENVIRONMENT = [
    ("traceback", "short"), ("check_ir", "2"), ("threads", "0"), ("threads", "two"),
    ("timeout", "-1"), ("timeout", "nan"), ("timeout", "soon"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), BAD_ENVIRONMENT)
def test_bad_environment(config, monkeypatch, name, text):
    monkeypatch.setenv(f"NUVEC_{name.upper()}", text)
    with pytest.raises(ConfigurationError, match=f"NUVEC_{name.upper()} is '{text}', but {name}"):
        getattr(config, name)


BAD_VALUES = [
    ("traceback", True), ("traceback", "short"), ("traceback", []), ("check_ir", 1),
    ("check_ir", "yes"), ("threads", 0), ("threads", True), ("threads", 2.0), ("timeout", None),
    ("timeout", 0), ("timeout", math.nan), ("timeout", "3"), ("timeout", True),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD_VALUES)
def test_bad_assignment(config, name, value):
    with pytest.raises(ConfigurationError, match=f"config.{name} must be "):
        setattr(config, name, value)
    assert getattr(config, name) == DEFAULTS[name]


def test_unknown_settings(config):
    with pytest.raises(ConfigurationError, match=r"no setting 'chekc_ir'.*check_ir"):
        config.chekc_ir = True
    with pytest.raises(AttributeError, match="no setting 'chekc_ir'"):
        config.chekc_ir  # noqa: B018
    with pytest.raises(ConfigurationError, match="no setting"), config.override(nothing=1):
        pass
    assert not hasattr(config, "nothing")


def test_override_restores_on_exceptions(config):
    config.timeout = 5

    def run():
        with config.override(timeout=1, check_ir=True):
            assert (config.timeout, config.check_ir) == (1.0, True)
            with config.override(timeout=2):
                assert config.timeout == 2.0
            assert config.timeout == 1.0
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()
    assert (config.timeout, config.check_ir) == (5.0, False)


def test_override_with_a_bad_value_changes_nothing(config):
    with (
        pytest.raises(ConfigurationError, match="threads"),
        config.override(check_ir=True, threads=-1),
    ):
        pass
    assert (config.check_ir, config.threads) == (False, None)


def test_override_is_seen_by_every_thread(config):
    entered, checked, seen = threading.Event(), threading.Event(), []

    def earlier():
        entered.wait(10)
        seen.append(config.check_ir)
        checked.set()

    before = threading.Thread(target=earlier)
    before.start()
    with config.override(check_ir=True):
        entered.set()
        checked.wait(10)
        inside = threading.Thread(target=lambda: seen.append(config.check_ir))
        inside.start()
        inside.join()
    before.join()
    assert seen == [True, True]
    assert config.check_ir is False


def test_importing_reads_no_environment():
    program = (
        "import os\n"
        "reads = []\n"
        "get = os.environ.get\n"
        "os.environ.get = lambda name, *rest: reads.append(name) or get(name, *rest)\n"
        "from nuvec.core.config import config\n"
        "assert not [name for name in reads if name.startswith('NUVEC')], reads\n"
        "assert config.timeout == 9.0\n"
    )
    environment = {**os.environ, "NUVEC_TIMEOUT": "9", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
