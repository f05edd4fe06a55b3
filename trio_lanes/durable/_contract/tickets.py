"""Tickets: the names of acts that a store is asked for, also more than once."""

from __future__ import annotations

import os
from itertools import count

_numbers = count(1)
_process: tuple[int, str] = (0, "")  # (pid, what no other process has)


def new_incarnation() -> str:
    """Return the id of a new incarnation, which no other has. It is the ticket of a join, too."""
    return os.urandom(16).hex()


def new_ticket() -> str:
    """Return a string that no other act of any process has.

    There is no random number for each: the system call for it lets the writer's thread have the
    interpreter.
    """
    global _process
    if _process[0] != os.getpid():  # the first ticket, or the first after a fork
        _process = os.getpid(), os.urandom(16).hex()
    return f"{_process[1]}-{next(_numbers):x}"
