"""Exit codes, and the errors that lead to them."""

from __future__ import annotations

from typing import Final

from .._config.errors import LaneError
from ..durable import StoreError, StoreLockedError, StoreUnavailableError

DONE: Final = 0
"""Done; a worker has drained, and nothing is left behind."""
NO: Final = 1
"""There was nothing to do it to, the check found something, or a drain was not clean."""
USAGE: Final = 2
"""The command line is wrong, or the application is not what it says."""
STORE: Final = 3
"""The store cannot be used: it is not there, is damaged, or is of another version."""
LOCKED: Final = 4
"""Another process works with the store, and it takes only one."""
UNAVAILABLE: Final = 5
"""The store cannot be used now: no disk, no connection. Trying again later is right."""
CRASHED: Final = 70
"""The application's lanes ended by an exception."""
INTERRUPTED: Final = 130
"""Ctrl-C."""


class CommandError(Exception):
    """What is told in one line, and the code to exit with."""

    def __init__(self, message: str, code: int = USAGE) -> None:
        self.code: Final = code
        super().__init__(message)


def first_leaf(error: BaseException) -> BaseException:
    """What really happened, out of the groups that nurseries make."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def exit_code(error: BaseException) -> int | None:
    """The code for an error that is explained by its message; None if it needs a traceback."""
    if isinstance(error, CommandError):
        return error.code
    if isinstance(error, StoreLockedError):
        return LOCKED
    if isinstance(error, StoreUnavailableError):
        return UNAVAILABLE
    if isinstance(error, StoreError):
        return STORE
    return USAGE if isinstance(error, LaneError) else None


def one_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__
