"""The lock that lets one process schedule a SQLite store.

It is SQLite's own exclusive lock, on an empty database beside the store: it is the same on every
system, it ends with the process however that ends, and no child inherits it. What is in the file
beside it does not matter, nor that it stays.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import final


@final
class OwnerLock:
    """Held from `acquire` to `release`, or to the end of the process."""

    def __init__(self, path: Path) -> None:
        # absolute, or SQLite may take it for a URI
        self._connection = sqlite3.connect(
            path.absolute(), timeout=0, isolation_level=None, check_same_thread=False
        )

    def acquire(self) -> bool:
        """Take it; False if somebody else has it."""
        try:
            self._connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                return False
            self.release()
            raise
        return True

    def release(self) -> None:
        """Let go of it, if it was taken."""
        self._connection.close()
