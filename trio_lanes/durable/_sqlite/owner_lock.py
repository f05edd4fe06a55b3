"""The lock that allows one worker process to a SQLite store.

It is SQLite's exclusive lock on an empty database beside the store. So it works in the same way on
every system, it ends with the process however that ends, and no child inherits it. The contents of
the lock file do not matter, and the file may stay.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final, final

LOCK_WAIT: Final = 0.2
"""Seconds for which a worker tries to take the lock.

Each worker has a shared lock for a moment before it takes the exclusive one. If each tried only
once, of two workers that start at the same time both could be refused. A worker whose file is taken
waits as long before it is refused.
"""


@final
class OwnerLock:
    """The worker's lock: held from `acquire` to `release`, or to the end of the process."""

    def __init__(self, path: Path) -> None:
        # an absolute path, since SQLite may read a relative one as a URI
        self._connection = sqlite3.connect(
            path.absolute(),
            timeout=LOCK_WAIT,
            isolation_level=None,
            check_same_thread=False,
        )

    def acquire(self) -> bool:
        """Take the lock; return False if another process holds it."""
        try:
            self._connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                return False
            self.release()
            raise
        return True

    def release(self) -> None:
        """Release the lock, if it was taken."""
        self._connection.close()
