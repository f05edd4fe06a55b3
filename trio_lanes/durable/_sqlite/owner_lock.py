"""The lock that allows one worker process to a SQLite store.

It is SQLite's exclusive lock on an empty database beside the store. So it works in the same way on
every system, it ends with the process however that ends, and no child inherits it. The contents of
the lock file do not matter, and the file may stay.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

LOCK_WAIT: Final = 0.2
"""Seconds for which a worker tries to take the lock.

Each worker has a shared lock for a moment before it takes the exclusive one. If each tried only
once, of two workers that start at the same time both could be refused. A worker whose file is taken
waits as long before it is refused.
"""


def is_taken(path: Path) -> bool:
    """Whether a process holds the lock.

    To see it, this takes a shared lock for a moment, for which a worker waits that starts just now.
    """
    if not path.exists():
        return False
    with closing(sqlite3.connect(path.absolute(), timeout=0, isolation_level=None)) as probe:
        try:
            probe.execute("SELECT 1 FROM sqlite_master").fetchone()
        except sqlite3.Error:
            return True
    return False


def take_lock(path: Path) -> sqlite3.Connection | None:
    """Take the lock until the connection is closed; None: another process has it."""
    lock = sqlite3.connect(
        path.absolute(),  # since SQLite may read a relative one as a URI
        timeout=LOCK_WAIT,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.Error as error:
        lock.close()
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            return None
        raise
    return lock
