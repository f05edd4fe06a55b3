"""The exit codes, and the errors that lead to them."""

from __future__ import annotations

from typing import Final

from .. import LaneError
from ..durable import StoreError, StoreLockedError, StoreUnavailableError

DONE: Final = 0
"""Success; a worker has drained, and all its jobs have ended."""
NO: Final = 1
"""No job was concerned, the check found a problem, or a drain gave up a job."""
USAGE: Final = 2
"""The command line is wrong, or the application is not of the named form."""
STORE_UNUSABLE: Final = 3
"""The store cannot be used: it does not exist, is damaged, or has another version."""
STORE_LOCKED: Final = 4
"""Another worker has the store, which takes only one."""
STORE_UNAVAILABLE: Final = 5
"""The store cannot be used now: disk full, no connection. The command can be tried again later."""
CRASHED: Final = 70
"""An exception ended the application's lanes."""
INTERRUPTED: Final = 130
"""Ctrl-C."""


class CommandError(Exception):
    """An error that is reported in one line, with an exit code."""

    def __init__(self, message: str, code: int = USAGE) -> None:
        self.code: Final = code
        super().__init__(message)


def first_leaf(error: BaseException) -> BaseException:
    """Return the first exception inside of nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def exit_code(error: BaseException) -> int | None:
    """Return the exit code of an error whose message explains it; None if it needs a traceback."""
    if isinstance(error, CommandError):
        return error.code
    if isinstance(error, StoreLockedError):
        return STORE_LOCKED
    if isinstance(error, StoreUnavailableError):
        return STORE_UNAVAILABLE
    if isinstance(error, StoreError):
        return STORE_UNUSABLE
    return USAGE if isinstance(error, LaneError) else None


def one_line(error: BaseException) -> str:
    """Return the message of an error, in one line."""
    return " ".join(str(error).split()) or type(error).__name__
