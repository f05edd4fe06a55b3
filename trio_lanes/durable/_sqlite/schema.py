"""The schema of a SQLite store, and the examination of a file before the first write to it.

* The ``application_id`` and ``user_version`` in the first 100 bytes of a file say whether it is a
  store, and of which schema. They are read with ``immutable=1``, since opening a database can
  change it: the contents of its log would be moved into it.
* Only SQLite opens the file. A process that opens the file by other means and closes it loses
  SQLite's locks on it. The next process to close the store would then take itself for the last, and
  delete the log that this process writes to.
* A new file is filled in one transaction before it is switched to write-ahead logging, so its
  header is never in the log alone.
* The tables are the whole state of the rules. If a transaction fails, or a process dies, SQLite's
  rollback is the whole recovery, and opening a store reads no waiting job.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from .._contract.errors import (
    StoreError,
    StoreUnavailableError,
    StoreVersionError,
    other_schema,
)
from .._sql.schema import KEYED, TABLES

APPLICATION_ID: Final = 0x744C6E73  # "tLns"
SCHEMA_VERSION: Final = 3
CHECKED_UP_TO: Final = 16 * 1024 * 1024
"""Files up to this size are checked whenever they are opened."""
BUSY_TIMEOUT: Final = 4.0
"""Seconds for which an examination waits for another process that makes the file."""

_UNAVAILABLE: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_READONLY,
    }
)

SCHEMA: Final = (
    """
CREATE TABLE meta (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    epoch INTEGER NOT NULL,     -- +1 whenever a worker opens the file
    sequence INTEGER NOT NULL,  -- the last number that was given out; see `SqliteTables`
    clock REAL NOT NULL,        -- a recent value of the store's time
    boot TEXT NOT NULL,         -- the id of the machine's start for which `ahead` holds
    ahead REAL NOT NULL,        -- the store's time less the machine's monotonic clock
    store TEXT NOT NULL         -- the identity of the store, which a copy of it shares
);
INSERT INTO meta VALUES (1, 0, 0, 0.0, '', 0.0, lower(hex(randomblob(16))));
"""
    + TABLES.format(id="INTEGER")
    + "".join(
        f"CREATE TABLE {name} ({columns}, PRIMARY KEY ({key})) WITHOUT ROWID;\n"
        for name, (columns, key) in KEYED.items()
    )
    # few indexes, each with one comparison: a condition costs time with every change, `IN` most
    + """
CREATE UNIQUE INDEX jobs_key ON jobs (key) WHERE key IS NOT NULL;
CREATE INDEX jobs_line ON jobs (session, place, lane) WHERE place IS NOT NULL;
CREATE INDEX jobs_ready ON jobs (lane, priority, name, ring, ready)
    WHERE ready IS NOT NULL AND shelf = 0;
CREATE INDEX jobs_party ON jobs (lane, priority, party, shelf, name, ready)
    WHERE party IS NOT NULL;
CREATE INDEX jobs_due ON jobs (state, due) WHERE due IS NOT NULL;
CREATE INDEX jobs_expires ON jobs (expires) WHERE expires IS NOT NULL;
CREATE INDEX jobs_coalesce ON jobs (coalesce) WHERE coalesce IS NOT NULL;
CREATE INDEX jobs_delayed ON jobs (session) WHERE state = 'parked' AND place IS NULL;
CREATE INDEX jobs_running ON jobs (id) WHERE state = 'running';
CREATE INDEX jobs_suspected ON jobs (state, lane) WHERE crashed_with > 0;
CREATE INDEX jobs_name ON jobs (name);
CREATE INDEX jobs_letters ON jobs (id) WHERE error IS NOT NULL;
CREATE INDEX jobs_error ON jobs (error) WHERE error IS NOT NULL;
CREATE TRIGGER forget_lists AFTER DELETE ON jobs WHEN old.emitted > 0 OR old.sent > 0 BEGIN
    DELETE FROM lists WHERE list IN ('events ' || old.id, 'messages ' || old.id);
END;
"""
)

MIGRATIONS: Final[dict[int, str]] = {}
"""By schema version, the script that makes the next version."""


def translated(path: Path, error: sqlite3.Error) -> Exception:
    """Return the `StoreError` for an error of SQLite; the error itself, if it is a bug here."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    if code & 0xFF in _UNAVAILABLE:
        return StoreUnavailableError(f"{path}: {error}")
    if is_damage(error):
        return StoreError(f"{path} is damaged: {error}; restore a backup")
    return error


def is_damage(error: sqlite3.Error) -> bool:
    """Whether SQLite reports a damaged file."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def confirmed_error(path: Path, error: sqlite3.Error) -> Exception:
    """Return the `StoreError` for an error of a file that was sound when it was opened.

    SQLite reports a read that failed with EIO as a damaged file. So a file counts as damaged only
    if a check, on a connection of its own, can read the file and finds damage.
    """
    if not is_damage(error):
        return translated(path, error)
    try:
        found = _problems(path, "integrity_check")
    except sqlite3.Error as again:
        return StoreUnavailableError(f"{path} cannot be read: {again}")
    if found:
        return StoreError(f"{path} is damaged: {'; '.join(found)}; restore a backup")
    return StoreUnavailableError(f"a read of {path} failed, and a check found no damage: {error}")


def check_place(path: Path) -> None:
    """Refuse a path at which this user can never have a store.

    Raises:
      StoreError: if the path is a folder, its folder does not exist, or this user may not write.
    """
    real = os.path.realpath(path)
    folder = os.path.dirname(real)
    if os.path.isdir(real):
        raise StoreError(f"{path} is a folder, not a file")
    if not os.path.isdir(folder):
        raise StoreError(f"{path}: there is no folder {folder}")
    exists = os.path.exists(real)
    if (exists and not os.access(real, os.R_OK | os.W_OK)) or not os.access(
        folder, os.X_OK if os.path.exists(f"{real}-wal") else os.X_OK | os.W_OK
    ):
        raise StoreError(f"{path}: this user has no right to write the file or its folder")


def examine(path: Path) -> int:
    """Return the schema version of a file; 0 if the file does not exist or is to be filled.

    It changes nothing, except that it rolls back the transaction of a process that died while it
    filled or migrated the file.

    Raises:
      StoreVersionError: if the file has another schema, or belongs to another program.
      StoreError: if the file is damaged, or ``path`` is not a file.
      StoreUnavailableError: if the file cannot be read now.
    """
    if not _size(path):
        return 0
    header = _header(path)
    if isinstance(header, sqlite3.Error) or header[0] == APPLICATION_ID:
        _let_it_be_made(path)
        if not _size(path):
            return 0
        header = _header(path)  # another process may have finished making the file
    if isinstance(header, sqlite3.Error):
        raise StoreError(f"{path} is damaged, or is not a store: {header}") from header
    application, version = header
    if application != APPLICATION_ID:
        raise StoreVersionError(f"{path} belongs to another program (application_id {application})")
    if version != SCHEMA_VERSION and version not in MIGRATIONS:
        raise other_schema(str(path), version, SCHEMA_VERSION)
    if _size(path) <= CHECKED_UP_TO:
        _look_through(path)
    return version


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StoreUnavailableError(f"{path}: {error}") from error


def _header(path: Path) -> tuple[int, int] | sqlite3.Error:
    """Return the application_id and user_version in a file, without its log; or the error."""
    question = "SELECT * FROM pragma_application_id, pragma_user_version"
    try:
        ((application, version),) = _ask(path, "mode=ro&immutable=1", question)
    except sqlite3.Error as error:
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise translated(path, error) from error
        try:
            # missing pages may be in the log, if a process died while it moved the log to the file
            ((application, version),) = _ask(path, "mode=ro", question)
        except sqlite3.Error:
            return error
    return application, version


def _let_it_be_made(path: Path) -> None:
    """Wait for a process that fills or migrates a file; if it has died, undo its transaction.

    A store has a rollback journal only meanwhile. SQLite plays back the journal of a dead process.
    """
    if Path(f"{path}-journal").exists():
        try:
            _ask(path, "mode=rw", "SELECT count(*) FROM sqlite_master")
        except sqlite3.Error as error:
            raise translated(path, error) from error


def _ask(path: Path, how: str, question: str) -> list[tuple[Any, ...]]:
    uri = f"{path.absolute().as_uri()}?{how}"
    with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT)) as connection:
        return connection.execute(question).fetchall()


def _look_through(path: Path) -> None:
    try:
        found = _problems(path, "quick_check")
    except sqlite3.Error as error:
        raise translated(path, error) from error
    if found:
        raise StoreError(f"{path} is damaged: {'; '.join(found)}")


def _problems(path: Path, check: str) -> list[str]:
    # read-only, so that closing the connection does not move the log into the file
    found = [row[0] for row in _ask(path, "mode=ro", f"PRAGMA {check}(3)")]
    return [] if found == ["ok"] else found


def fill(connection: sqlite3.Connection) -> None:
    """Make the tables, unless another process has made them meanwhile."""
    with _one_transaction(connection):
        if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            _execute(connection, SCHEMA)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a file of an older schema to the schema of this version.

    The file leaves write-ahead logging first, so that its new version is not in the log alone. That
    needs every other connection to be closed; else SQLite raises "database is locked".
    """
    connection.execute("PRAGMA journal_mode = DELETE")
    with _one_transaction(connection):
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        for older in range(version, SCHEMA_VERSION):
            _execute(connection, MIGRATIONS[older])
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


@contextmanager
def _one_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _execute(connection: sqlite3.Connection, script: str) -> None:
    # not `executescript`, which commits first
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""
