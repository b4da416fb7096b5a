"""The settings of the process: one object, `config`.

Each setting is read from its environment variable the first time it is asked for (never at
import), may be assigned, and may be changed for the length of a `with` block::

    config.check_ir = True
    with config.override(traceback="full", threads=1):
        ...

A setting is one value for the whole process: what a thread assigns or overrides, every thread
sees, those started earlier too. Two threads that override the same setting at overlapping times
therefore see each other's value, and the one that leaves last restores what it found.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from nuvec.core.errors import ConfigurationError

__all__ = ["Config", "config"]


class Setting(NamedTuple):
    """One row of the table of settings. `read` and `check` raise ValueError for a bad value."""

    default: Any
    expects: str  # what a value must be, in words, for error messages
    check: Callable[[Any], Any]  # the value as it is kept
    read: Callable[[str], Any]  # the environment's text as a value, before `check`


def _traceback(value: Any) -> str:
    if not isinstance(value, str) or value not in ("filtered", "full"):
        raise ValueError
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _threads(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError
    if math.isnan(value) or value <= 0:
        raise ValueError
    return float(value)


PASSES = ("simplify", "unroll", "fuse", "partial_sums", "threads", "overlap", "in_place", "arena")


def _passes(value: Any) -> frozenset[str]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ValueError
    found = frozenset(value)
    if not found <= set(PASSES):
        raise ValueError
    return found


def _read_passes(text: str) -> list[str]:
    if text.lower() in ("all", "none"):
        return list(PASSES) if text.lower() == "all" else []
    return [name.strip() for name in text.split(",")]


def _read_flag(text: str) -> bool:
    spellings = {"1": True, "true": True, "yes": True, "on": True}
    spellings |= {"0": False, "false": False, "no": False, "off": False}
    try:
        return spellings[text.lower()]
    except KeyError:
        raise ValueError from None


def _read_threads(text: str) -> int | None:
    return None if text.lower() == "none" else int(text)


_FLAG_EXPECTS = "True or False (1 or 0 in the environment)"

_PASSES_EXPECTS = (
    f"a collection of names among {', '.join(PASSES)} (in the environment with commas between "
    "them, or all, or none)"
)

_SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        "traceback": Setting("filtered", '"filtered" or "full"', _traceback, str.lower),
        "check_ir": Setting(False, _FLAG_EXPECTS, _flag, _read_flag),
        "debug_nans": Setting(False, _FLAG_EXPECTS, _flag, _read_flag),
        "threads": Setting(None, "a positive integer or None", _threads, _read_threads),
        "disable_compile": Setting(False, _FLAG_EXPECTS, _flag, _read_flag),
        "passes": Setting(frozenset(PASSES), _PASSES_EXPECTS, _passes, _read_passes),
        "timeout": Setting(300.0, "a positive number of seconds", _seconds, float),
    }
)


def _setting(name: str) -> Setting:
    try:
        return _SETTINGS[name]
    except KeyError:
        raise ConfigurationError(
            f"there is no setting {name!r}; the settings are {', '.join(_SETTINGS)}."
        ) from None


def _variable(name: str) -> str:
    return f"NUVEC_{name.upper()}"


class Config:
    """The settings; use the one instance, `config`.

    >>> settings = Config()
    >>> with settings.override(check_ir=True):
    ...     settings.check_ir
    True
    """

    traceback: str
    """"filtered" (NUVEC_TRACEBACK): tracebacks show the user's frames only; "full": all."""
    check_ir: bool
    """Check every IR after recording and after every pass (NUVEC_CHECK_IR)."""
    debug_nans: bool
    """Raise NanError at the equation that makes the first NaN of operands that have none
    (NUVEC_DEBUG_NANS), also where what reads it would leave it out.  Compiled functions run one
    equation at a time meanwhile, and keep what they were donated."""
    threads: int | None
    """Threads that evaluation may use (NUVEC_THREADS); None: as many as there are cores.  From the
    first matrix product of more than a few thousand elements on, NumPy's BLAS has one of its own:
    nuvec shares out the work."""
    disable_compile: bool
    """Run compiled functions uncompiled, for debugging (NUVEC_DISABLE_COMPILE)."""
    passes: frozenset[str]
    """The passes that make programs of IRs (NUVEC_PASSES); leave one out to see what it buys:
    "simplify" rewrites, merges and leaves out equations; "unroll" adds up short axes element by
    element; "fuse" runs groups of equations tile by tile; "partial_sums" lets sums over a group's
    rows join it; "threads" runs tiles on several cores; "overlap" runs communications beside the
    program; "in_place" writes over dead operands; "arena" keeps temporaries' memory from run to
    run.  "partial_sums" adds up in another order, and the passes before it decide which sums; with
    it left out, none of the others changes a bit of any result."""
    timeout: float
    """Seconds that a communication waits for its peers (NUVEC_TIMEOUT)."""

    def __getattr__(self, name: str) -> Any:
        # Called only while the instance has no such attribute: after this it is a plain read.
        if name not in _SETTINGS:
            raise AttributeError(
                f"there is no setting {name!r}; the settings are {', '.join(_SETTINGS)}."
            )
        setting = _SETTINGS[name]
        text = os.environ.get(_variable(name), "").strip()
        value = setting.default
        if text:
            try:
                value = setting.check(setting.read(text))
            except ValueError:
                raise ConfigurationError(
                    f"the environment variable {_variable(name)} is {text!r}, "
                    f"but {name} must be {setting.expects}."
                ) from None
        # setdefault: an assignment by another thread since then must not be lost.
        return self.__dict__.setdefault(name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        setting = _setting(name)
        try:
            self.__dict__[name] = setting.check(value)
        except ValueError:
            raise ConfigurationError(
                f"config.{name} must be {setting.expects}, got {value!r}."
            ) from None

    def __delattr__(self, name: str) -> None:
        """Forget a setting's value, so that the environment is read again."""
        _setting(name)
        self.__dict__.pop(name, None)

    @contextlib.contextmanager
    def override(self, **settings: Any) -> Iterator[Config]:
        """Change settings inside a `with` block, for all threads; restored on exceptions too.

        Raises ConfigurationError, and changes nothing, if any name or value is wrong.
        """
        before = {name: getattr(self, name) for name in settings if _setting(name)}
        try:
            for name, value in settings.items():
                setattr(self, name, value)
            yield self
        finally:
            self.__dict__.update(before)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *_SETTINGS]

    def __repr__(self) -> str:
        return f"config({', '.join(f'{name}={getattr(self, name)!r}' for name in _SETTINGS)})"


config = Config()
