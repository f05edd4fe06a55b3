"""The schema of a SQLite store, and what is asked of a file before anything is written to it.

A file tells whose it is by the ``application_id`` and ``user_version`` in its first 100 bytes.
They are read as those of a file that never changes, since opening a database is enough to change
it: what was left in its log would be moved into it. And it is SQLite that reads them: a process
that closes a file which it has opened by other means loses SQLite's locks on it; then the next to
close the store takes itself for the last, and throws away the log that this process writes to.

A new file is filled in one transaction before it is switched to write-ahead logging, so its header
is never in the log alone.

An index costs with every change of a job what its condition costs to work out, and ``IN`` costs
most of all; so there are few, with conditions that compare once.

The tables are the scheduler's whole state. A transaction that fails, or a process that dies, has
therefore nothing to undo but what SQLite undoes by itself, and opening reads no waiting job.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any, Final

from .._contract.errors import StoreError, StoreUnavailableError, StoreVersionError

APPLICATION_ID: Final = 0x744C6E73  # "tLns"
SCHEMA_VERSION: Final = 2
CHECKED_UP_TO: Final = 16 * 1024 * 1024
"""Files up to this size are looked through whenever they are opened."""

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

SCHEMA: Final = """
CREATE TABLE meta (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    epoch INTEGER NOT NULL,     -- +1 whenever a worker opens the file
    sequence INTEGER NOT NULL,  -- the last number that was given out; see `SqliteTables`
    clock REAL NOT NULL,        -- the store's time, as it was lately
    boot TEXT NOT NULL,         -- the start of the machine since which this holds:
    ahead REAL NOT NULL,        -- by how much the store's time is more than the machine's
    store TEXT NOT NULL DEFAULT '',  -- the identity of the store, which a copy of it shares
    result_ttl REAL,            -- the rules of the store; NULL: no worker has set them
    max_crashes,
    hold INTEGER
);
INSERT INTO meta (id, epoch, sequence, clock, boot, ahead) VALUES (1, 0, 0, 0.0, '', 0.0);
UPDATE meta SET store = lower(hex(randomblob(16)));

CREATE TABLE jobs (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    lane TEXT NOT NULL,
    session TEXT,
    priority INTEGER NOT NULL,
    payload TEXT NOT NULL,
    key TEXT,
    digest TEXT,
    timeout REAL NOT NULL,
    retry TEXT,
    state TEXT NOT NULL,
    place INTEGER,
    ready INTEGER,
    shelf INTEGER NOT NULL,
    due REAL,
    why TEXT,
    attempts INTEGER NOT NULL,
    crashes INTEGER NOT NULL,
    alone INTEGER NOT NULL DEFAULT 0,
    company INTEGER NOT NULL DEFAULT 0,
    fence INTEGER NOT NULL,
    instance TEXT,
    lent INTEGER NOT NULL,
    cancel TEXT,
    checkpoint TEXT,
    outcome TEXT,
    submitted_at REAL NOT NULL
);
CREATE UNIQUE INDEX jobs_key ON jobs (key) WHERE key IS NOT NULL;
CREATE INDEX jobs_line ON jobs (session, place, lane) WHERE place IS NOT NULL;
CREATE INDEX jobs_ready ON jobs (lane, priority, ready) WHERE ready IS NOT NULL AND shelf = 0;
CREATE INDEX jobs_unhandled ON jobs (name) WHERE shelf = 1;
CREATE INDEX jobs_due ON jobs (state, due) WHERE due IS NOT NULL;
CREATE INDEX jobs_delayed ON jobs (session) WHERE state = 'parked' AND place IS NULL;
CREATE INDEX jobs_running ON jobs (id) WHERE state = 'running';
CREATE INDEX jobs_dead ON jobs (lane) WHERE state = 'dead';

CREATE TABLE counts (           -- of jobs that have not ended
    lane TEXT NOT NULL,
    state TEXT NOT NULL,
    name TEXT NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (lane, state, name)
) WITHOUT ROWID;

CREATE TABLE lanes (
    name TEXT PRIMARY KEY,
    concurrency NOT NULL,
    max_waiting NOT NULL,
    paused_until REAL,
    rates TEXT NOT NULL,
    proposed INTEGER NOT NULL DEFAULT 0  -- 1: a worker that has this lane replaces the limits
) WITHOUT ROWID;
CREATE TABLE groups (name TEXT PRIMARY KEY, told TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE marks (            -- what rate limits remember
    meter TEXT NOT NULL,
    number INTEGER NOT NULL,
    time REAL NOT NULL,
    starts INTEGER NOT NULL,
    PRIMARY KEY (meter, number)
) WITHOUT ROWID;
CREATE TABLE pauses (session TEXT PRIMARY KEY, until REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE instances (
    id TEXT PRIMARY KEY,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    since REAL NOT NULL,
    lease_until REAL NOT NULL,
    names TEXT NOT NULL
) WITHOUT ROWID;
"""

MIGRATIONS: Final = {
    1: """
ALTER TABLE meta ADD COLUMN store TEXT NOT NULL DEFAULT '';
ALTER TABLE meta ADD COLUMN result_ttl REAL;
ALTER TABLE meta ADD COLUMN max_crashes;
ALTER TABLE meta ADD COLUMN hold INTEGER;
UPDATE meta SET store = lower(hex(randomblob(16)));
ALTER TABLE lanes ADD COLUMN proposed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN alone INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN company INTEGER NOT NULL DEFAULT 0;
"""
}
"""By schema version, what makes the next version of it."""


def translated(path: Path, error: sqlite3.Error) -> Exception:
    """What ``error`` means to users of the store; ``error`` itself, if it is a bug of ours."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    if code & 0xFF in _UNAVAILABLE:
        return StoreUnavailableError(f"{path}: {error}")
    if is_damage(error):
        return StoreError(f"{path} is damaged: {error}")
    return error


def is_damage(error: sqlite3.Error) -> bool:
    """Whether SQLite takes the file for damaged."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def looked_at_again(path: Path, error: sqlite3.Error) -> Exception:
    """What ``error`` means for a file that is in use, and was sound when it was opened.

    SQLite reports a read that failed with EIO as a damaged file. So a file is believed to be
    damaged only when a check, on a connection of its own, can read it and says so.
    """
    if not is_damage(error):
        return translated(path, error)
    try:
        found = _problems(path, "integrity_check")
    except sqlite3.Error as again:
        return StoreUnavailableError(f"{path} cannot be read: {again}")
    if found:
        return StoreError(f"{path} is damaged: {'; '.join(found)}")
    return StoreUnavailableError(f"{path} could not be read, though it is sound: {error}")


def check_place(path: Path) -> None:
    """Refuse a path at which there can be no store, whatever time goes by.

    Raises:
      StoreError: if it is a folder, or in none, or may not be written by this user.
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
        raise StoreError(f"{path}: this user may not write it, or not in its folder")


def examine(path: Path) -> int:
    """Return the schema version of the file; 0 if there is none yet, and it is to be filled.

    Changes nothing, but for undoing what a process had begun that died while it filled or migrated
    the file.

    Raises:
      StoreVersionError: if it is of a newer schema, or of another program.
      StoreError: if it is damaged, or ``path`` cannot be a file.
      StoreUnavailableError: if it cannot be read.
    """
    if not _size(path):
        return 0
    header = _header(path)
    if isinstance(header, sqlite3.Error) or header in _OURS:
        _let_it_be_made(path)
        if not _size(path):
            return 0
        header = _header(path)  # what made it unreadable may be over
    if isinstance(header, sqlite3.Error):
        raise StoreError(f"{path} is damaged, or no store: {header}") from header
    application, version = header
    if application != APPLICATION_ID:
        raise StoreVersionError(f"{path} belongs to another program (application_id {application})")
    if version != SCHEMA_VERSION and version not in MIGRATIONS:
        raise StoreVersionError(
            f"{path} has schema {version}; this version of trio_lanes knows {SCHEMA_VERSION}"
        )
    if _size(path) <= CHECKED_UP_TO:
        _look_through(path)
    return version


_OURS: Final = {(APPLICATION_ID, version) for version in (*MIGRATIONS, SCHEMA_VERSION)}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StoreUnavailableError(f"{path}: {error}") from error


def _header(path: Path) -> tuple[int, int] | sqlite3.Error:
    """Its application_id and user_version, whatever its log says; or why it has none."""
    question = "SELECT * FROM pragma_application_id, pragma_user_version"
    try:
        ((application, version),) = _ask(path, "mode=ro&immutable=1", question)
    except sqlite3.Error as error:
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise translated(path, error) from error
        try:
            # pages that are missing may be in the log: its maker died while it was moved
            ((application, version),) = _ask(path, "mode=ro", question)
        except sqlite3.Error:
            return error
    return application, version


def _let_it_be_made(path: Path) -> None:
    """Wait for a process that fills or migrates it; if that has died, undo what it had begun.

    Only while a store is filled or migrated has it a rollback journal, which SQLite plays back.
    """
    if Path(f"{path}-journal").exists():
        try:
            _ask(path, "mode=rw", "SELECT count(*) FROM sqlite_master")
        except sqlite3.Error as error:
            raise translated(path, error) from error


def _ask(path: Path, how: str, question: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, timeout=10)
    try:
        return connection.execute(question).fetchall()
    finally:
        connection.close()


def _look_through(path: Path) -> None:
    try:
        found = _problems(path, "quick_check")
    except sqlite3.Error as error:
        raise translated(path, error) from error
    if found:
        raise StoreError(f"{path} is damaged: {'; '.join(found)}")


def _problems(path: Path, check: str) -> list[str]:
    # read-only, so that closing it moves nothing from the log into the file
    found = [row[0] for row in _ask(path, "mode=ro", f"PRAGMA {check}(3)")]
    return [] if found == ["ok"] else found


def fill(connection: sqlite3.Connection) -> None:
    """Make the tables, unless somebody else has done so meanwhile."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            for statement in _statements(SCHEMA):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a file of an older schema to this version's.

    The file leaves write-ahead logging first, or its new version would be in the log alone. That
    needs every other connection to be closed; while there is one, SQLite says "locked".
    """
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        for older in range(version, SCHEMA_VERSION):
            for statement in _statements(MIGRATIONS[older]):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _statements(script: str) -> list[str]:
    statements, statement = [], ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            statements.append(statement)
            statement = ""
    return statements
