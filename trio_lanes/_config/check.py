"""Validators of user input: each returns the value, or raises an error that names the field."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NoReturn

import attrs
import trio

if TYPE_CHECKING:
    from datetime import tzinfo

# a whole number may be above it, and no time of a clock is
_MAX_SECONDS: Final = sys.float_info.max


def whole(field: str, value: Any, kind: str = "a whole number") -> int:
    """A whole number: an int that is no bool. ``kind`` names it in the error."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{field} must be {kind}, not {value!r}")
    if not isinstance(value, int):
        raise ValueError(f"{field} must be {kind}, not {value!r}")
    return value


def natural(field: str, value: Any, kind: str = "a whole number") -> int:
    """A whole number from 0 up. ``kind`` names it in the error."""
    if whole(field, value, kind) < 0:
        raise ValueError(f"{field} must not be negative, got {value!r}")
    return value  # type: ignore[no-any-return]  # whole() has checked it


def count(field: str, value: Any) -> int | float:
    """A number of jobs or tokens: a whole number from 0 up, or `math.inf`."""
    if isinstance(value, float) and value == math.inf:
        return value
    return natural(field, value, "a whole number or math.inf")


def positive_count(field: str, value: Any) -> int | float:
    """As `count`, from 1 up."""
    if count(field, value) < 1:
        raise ValueError(f"{field} must be at least 1, got {value!r}")
    return value  # type: ignore[no-any-return]  # count() has checked it


def seconds(field: str, value: Any) -> float:
    """A length of time from 0 up, `math.inf` included."""
    if type(value) is float and value >= 0:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{field} must be a number of seconds, not {value!r}")
    if not 0 <= value <= _MAX_SECONDS and value != math.inf:  # also true of NaN
        raise ValueError(f"{field} must be seconds from 0 up that fit a float, got {value!r}")
    return value


def or_inf(value: float | None) -> float:
    """`math.inf` for None: a timeout of None is none at all."""
    return math.inf if value is None else value


def timeout(field: str, value: Any) -> float:
    """A length of time from 0 up, or None, which is `math.inf`."""
    return seconds(field, or_inf(value))


def positive_seconds(field: str, value: Any) -> float:
    """A length of time above 0, `math.inf` included."""
    if seconds(field, value) == 0:
        raise ValueError(f"{field} must be above 0, got {value!r}")
    return value  # type: ignore[no-any-return]  # seconds() has checked it


def optional_seconds(field: str, value: Any) -> float | None:
    """A length of time, or None."""
    return None if value is None else seconds(field, value)


def finite_seconds(field: str, value: Any) -> float:
    """A length of time from 0 up that ends."""
    if seconds(field, value) == math.inf:
        raise ValueError(f"{field} must be finite, got {value!r}")
    return value  # type: ignore[no-any-return]  # seconds() has checked it


def time_zone(field: str, value: Any) -> tzinfo:
    """The zone of a name of the time zone database, such as ``"Europe/Berlin"``."""
    if not isinstance(value, str):
        raise TypeError(f"{field} must be the name of a time zone, not {value!r}")
    from datetime import UTC  # slow to import, and rarely needed
    from zoneinfo import ZoneInfo

    if value == "UTC":
        return UTC  # also where the machine has no database

    try:
        return ZoneInfo(value)
    except (KeyError, OSError, ValueError):  # unknown, a folder, not a path inside of it
        raise ValueError(
            f"{field} must be in the time zone database, as Europe/Berlin is, got {value!r}"
        ) from None


def boolean(field: str, value: Any) -> bool:
    """True or False, and no other truthy or falsy value."""
    if not isinstance(value, bool):
        raise TypeError(f"{field} must be True or False, not {value!r}")
    return value


def optional_callable(field: str, value: Any) -> object:
    """A callable, or None."""
    if value is not None and not callable(value):
        raise TypeError(f"{field} must be callable or None, not {value!r}")
    return value


def sync(field: str, value: Any) -> object:
    """A callable that is no coroutine function, and no object whose call is one."""
    is_async = inspect.iscoroutinefunction
    if not callable(value) or is_async(value) or is_async(value.__call__):
        raise TypeError(f"{field} must be a synchronous function, not {value!r}")
    return value


def optional_sync(field: str, value: Any) -> object:
    """A callable that is no coroutine function, or None."""
    return None if value is None else sync(field, value)


def optional_text(field: str, value: Any) -> object:
    """A string, or None."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{field} must be a string, not {value!r}")
    return value


def hashable(field: str, value: Any) -> object:
    """A value that can be the key of a dict."""
    try:
        hash(value)
    except TypeError as error:
        raise TypeError(f"{field} must be hashable, not {value!r}") from error
    return value


def optional_limiter(field: str, value: Any) -> object:
    """A `trio.CapacityLimiter`, or None."""
    if value is not None and not isinstance(value, trio.CapacityLimiter):
        raise TypeError(f"{field} must be a trio.CapacityLimiter or None, not {value!r}")
    return value


def field(check: Callable[[str, Any], object]) -> Callable[[Any, Any, Any], None]:
    """``check`` as a validator of an attrs field."""

    def validate(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        check(attribute.name, value)

    return validate


def unknown_option(name: str, known: Iterable[str]) -> TypeError:
    """The error for a keyword of a submission that is no option: the nearest one, and the cure."""
    from difflib import get_close_matches  # slow to import, and rarely needed

    nearest = get_close_matches(name, known, 1)
    meant = f"; did you mean {nearest[0]!r}?" if nearest else "."
    return TypeError(
        f"there is no option {name!r}{meant} "
        "Keyword arguments of the function itself are given by functools.partial"
    )


def refuse_like_trio(fn: object, returned: object = None) -> NoReturn:
    """Raise Trio's own `TypeError` for an ``fn`` that is no async function.

    ``fn`` cannot be called, or it was called and ``returned`` an object that is no coroutine.
    Trio's messages tell a coroutine object, a future and a plain function apart. Trio raises them
    before it starts a task.
    """
    refused: Any = _Called(fn, returned) if callable(fn) else fn
    refuse = trio.lowlevel.spawn_system_task if trio.lowlevel.in_trio_run() else trio.run
    refuse(refused)
    raise AssertionError(fn)  # pragma: no cover - for type checkers: Trio has raised


class _Called:
    """A stand-in for a function that was called before: a call returns the same object again."""

    def __init__(self, fn: object, returned: object) -> None:
        self.__qualname__ = getattr(fn, "__qualname__", fn)  # what Trio calls it by
        self._returned = returned

    def __call__(self) -> object:
        return self._returned


def lanes_of_trio(lanes: object) -> None:
    """Refuse lanes of asyncio, which have lanes of Trio underneath.

    Raises:
      TypeError: for them; it names the module for asyncio.
    """
    if hasattr(lanes, "trio"):
        raise TypeError(f"use trio_lanes.aio.agents: {lanes!r} are lanes of asyncio")
