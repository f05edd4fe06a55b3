"""The lock that gives a folder of transcripts to one store object of one process.

It is SQLite's lock on a small database in the folder. So it works in the same way on every system,
it ends with the process however that ends, and no child inherits it. The database has the id of the
owner's process, which others can read while they cannot write.

This process must not open the file in another way: on POSIX, closing it would end the lock.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

from .transcript import TranscriptLockedError

FILE: Final = ".owner"

LOCK_WAIT: Final = 0.2
"""Seconds for which the lock is tried: another store that is refused holds it for a moment, too."""


def lock_folder(folder: Path) -> sqlite3.Connection:
    """Lock ``folder``, which is made if there is none, until the connection is closed.

    Raises:
      TranscriptLockedError: if another object has it.
      OSError: if it cannot be made or locked.
    """
    folder.mkdir(0o700, parents=True, exist_ok=True)
    path = (folder / FILE).absolute()  # SQLite may read a relative one as a URI
    try:
        connection = sqlite3.connect(
            path, timeout=LOCK_WAIT, isolation_level=None, check_same_thread=False
        )
        try:
            _lock(connection, folder)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise OSError(f"{str(path)!r} cannot be locked: {error}") from error
    return connection


def _lock(connection: sqlite3.Connection, folder: Path) -> None:
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"PRAGMA user_version = {os.getpid()}")
        connection.execute("COMMIT")
        connection.execute("BEGIN IMMEDIATE")  # never committed: it is the lock
    except sqlite3.Error as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise
        (pid,) = connection.execute("PRAGMA user_version").fetchone()
        raise TranscriptLockedError(folder, pid or None) from None
