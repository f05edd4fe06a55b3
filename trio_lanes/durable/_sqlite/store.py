"""`SqliteStore`: a store in one file, on one machine, without a server.

* One process is the worker: the holder of the lock file beside the store. The number `epoch` in the
  file is a fence in case a second worker gets past the lock.
* Any number of processes are clients (``worker=False``). They write their submissions and orders
  into the file in transactions of their own, by the same rules. So a job is accepted when `submit`
  returns, whether or not a worker lives.
* The worker polls once a second, at most, for changes by clients; a client that waits for a job
  polls as well.
* A process that opens the file as its worker or its host gives back what earlier ones ran. Of a
  host that has died, the workers may live on for a moment: see `life_lock`.
"""

from __future__ import annotations

import math
import os
import random
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeVar, final

import trio

from .._contract.errors import StoreError, StoreLockedError, StoreUnavailableError, older_schema
from .._contract.records import Ended, Opening
from .._rules import talk
from .._rules.engine import Engine
from .._rules.engine_store import MAX_PAYLOAD, PATIENCE, EngineStore
from .._rules.queues import Queues
from .._rules.tables import FIRES, INSTANCES
from .._sql.act_thread import ActThread
from .._sql.store import SqlStore
from .life_lock import ended_lives, forget_life
from .machine_time import Moment, this_moment
from .owner_lock import is_taken, take_lock
from .schema import (
    SCHEMA_VERSION,
    check_place,
    confirmed_error,
    examine,
    fill,
    migrate,
    translated,
)
from .tables import TOLERANCE, SqliteTables, owner_of

T = TypeVar("T")

BUSY_PART: Final = 0.8
"""The part of the store's patience for which a transaction waits while another process writes."""
WORKER_LOOKS_EVERY: Final = 1.0
"""Seconds, at most, between two polls of a worker for changes by clients."""
CLIENT_LOOKS_EVERY: Final = 0.25
"""Seconds, at most, between two polls of a client that waits for a job."""
OWNER_LOOKS_EVERY: Final = 1.0
"""Seconds after which a task that waits for a run looks whether the file has a worker at all."""


@final
class SqliteStore(SqlStore):
    """A store in one SQLite file, which is made if it does not exist.

    Args:
      path: the file. Beside it are its log (``-wal``, ``-shm``) and its lock (``.lock``), and one
        of each worker of ``trio-lanes worker --processes`` (``.life-...``). It must not be on a
        network file system. Only this user can read a file that is made.
      synchronous: ``"FULL"``: accepted jobs survive a loss of power. ``"NORMAL"``: a loss of power
        may lose the last moments; a crash of the process loses nothing.
      max_payload: the largest payload, result or checkpoint, in bytes of its JSON text.
      patience: seconds after which a call that got no answer raises `StoreUnavailableError`, also
        if the disk stands still.
      busy_timeout: seconds to wait while another process writes; by default, and at most, 0.8 of
        ``patience``.

    Raises:
      ValueError: if ``path`` is not the path of a file, or an argument has no such value.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Literal["FULL", "NORMAL"] = "FULL",
        max_payload: int = MAX_PAYLOAD,
        patience: float = PATIENCE,
        busy_timeout: float = math.inf,
    ) -> None:
        super().__init__(max_payload, patience)
        if synchronous not in ("FULL", "NORMAL"):
            raise ValueError(f"synchronous must be 'FULL' or 'NORMAL', not {synchronous!r}")
        if os.fspath(path) in ("", ":memory:"):
            raise ValueError(
                f"path must be the path of a file, got {path!r}; MemoryStore needs no file"
            )
        self._path: Final = Path(path)
        self._file: Final = os.path.abspath(path)  # SQLite never reads an absolute path as a URI
        self._log = ""
        self._files: list[tuple[int, int] | None] = []  # (device, inode) of the opened files
        self._synchronous: Final = synchronous
        self._busy_timeout: Final = min(busy_timeout, BUSY_PART * patience)
        self._reader: Queues | None = None
        self._offset = 0.0  # from Trio's clock to the store's
        self._seen = 0  # the last version of the file that `_look_out` saw
        self._of_machine = 0.0  # from the machine's monotonic clock to the store's
        self._ahead = math.inf  # the store's time less Unix time, as `_look_out` saw it last
        self._works = False  # whether it is the owner of the file
        self._orphans: set[str] = set()
        """The incarnations of workers of an earlier host whose processes may live."""
        self.guests: Final[list[EngineStore]] = []
        """The store objects of workers whose calls this one does; see `SqliteHost`."""
        self.leased = False

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def __repr__(self) -> str:
        return f"<trio_lanes.durable.SqliteStore {str(self._path)!r}>"

    # ---- opening

    @asynccontextmanager
    async def open(self, opening: Opening) -> AsyncIterator[None]:
        async with self.open_as(opening, owner=opening.worker):
            yield

    @asynccontextmanager
    async def open_as(self, opening: Opening, *, owner: bool) -> AsyncIterator[None]:
        """Open the file; an ``owner`` has its lock, also if it claims nothing itself."""
        if self._writer is not None:
            raise RuntimeError(f"{self!r} is open already; make a SqliteStore for each block")
        held = ExitStack()  # what must be kept until no thread writes any more
        writer: ActThread | None = None
        try:
            lock = await trio.to_thread.run_sync(self._lock, owner)
            if lock is not None:
                held.callback(lock.close)
            # the last connection to close moves the log into the file, which takes a moment
            reading, writing = await trio.to_thread.run_sync(self._connect, owner, held)
            writer = await self._prepare(opening, owner, writing, reading)
            self._works = owner
            async with self._working(writer, partial(self._look_out, owner)):
                if owner:
                    self._orphans.update(await self._transact(_instances))
                    await self._bury()
                yield
        finally:
            with trio.CancelScope(shield=True):
                if writer is None:
                    await trio.to_thread.run_sync(held.close)
                else:
                    await writer.at_end(held.close, self._one_reader)

    async def _prepare(
        self,
        opening: Opening,
        owner: bool,
        writing: sqlite3.Connection,
        reading: sqlite3.Connection,
    ) -> ActThread:
        tables = SqliteTables(writing, str(self._path), self._check_files)
        moment = this_moment()
        self._offset = -trio.current_time()
        engine, self._seen, now = await trio.to_thread.run_sync(
            self._begin, tables, opening, owner, moment
        )
        self._offset += now
        self._of_machine = now - moment.machine
        tables.ahead = now - moment.wall
        self._tables = SqliteTables(reading, str(self._path))
        self._tables.ahead = tables.ahead
        self._reader = Queues(self._tables, opening)
        return ActThread(str(self._path), tables, engine, self.patience, self._announce)

    def _lock(self, worker: bool) -> sqlite3.Connection | None:
        """Take the lock if this is a worker. Runs in a thread."""
        check_place(self._path)
        exists = examine(self._path)
        if not worker:
            return None
        try:
            path = self._lock_path
            lock = take_lock(path)
            if lock is not None:
                return lock
            path = self._path
            raise StoreLockedError(str(path), self._owner() if exists else "another process")
        except sqlite3.Error as error:
            raise translated(path, error) from error

    @property
    def _lock_path(self) -> Path:
        return Path(f"{os.path.realpath(self._path)}.lock")  # the same for all links to a file

    def _owner(self) -> str:
        uri = f"{self._path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=self._busy_timeout)) as connection:
            return owner_of(SqliteTables(connection, str(self._path)))

    def _connect(
        self, worker: bool, held: ExitStack
    ) -> tuple[sqlite3.Connection, sqlite3.Connection]:
        """Open two connections to the file, after making or migrating it. Runs in a thread."""
        try:
            version = examine(self._path)
            if version != SCHEMA_VERSION:
                if version:
                    self._migrate(version, worker)
                else:
                    self._make(fill)
            return self._connection(held), self._connection(held)
        except sqlite3.Error as error:
            raise translated(self._path, error) from error

    def _migrate(self, version: int, worker: bool) -> None:
        """Let a worker migrate the file."""
        what = str(self._path)
        if not worker:
            living = self._living()
            raise older_schema(what, version, SCHEMA_VERSION, living, works=False)
        try:
            self._make(migrate)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            living = "which have the file open"
            raise older_schema(what, version, SCHEMA_VERSION, living, works=True) from error

    def _living(self) -> str:
        """Describe the worker of the file; empty: there is none."""
        try:
            lock = self._lock(worker=True)
        except StoreLockedError as error:
            return error.owner
        assert lock is not None
        lock.close()
        return ""

    def _make(self, make: Callable[[sqlite3.Connection], None]) -> None:
        """Fill or migrate the file while it has no write-ahead log.

        With a log, its version would be in the log alone.
        """
        is_new = not os.path.exists(self._file)
        connection = sqlite3.connect(self._file, timeout=self._busy_timeout, isolation_level=None)
        with closing(connection):
            if is_new:
                with suppress(OSError):  # not every file system has rights
                    os.chmod(self._file, 0o600)
            make(connection)

    def _connection(self, held: ExitStack) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._file,
            timeout=self._busy_timeout,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        held.callback(connection.close)
        self._write_ahead(connection)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")  # on macOS, fsync() alone does not sync
        connection.execute("PRAGMA journal_size_limit = 67108864")
        return connection

    def _write_ahead(self, connection: sqlite3.Connection) -> None:
        """Switch the file to write-ahead logging; SQLite's own timeout does not cover this."""
        until = time.monotonic() + self._busy_timeout
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not busy or time.monotonic() > until:
                    raise
                time.sleep(0.01)

    def _begin(
        self, tables: SqliteTables, opening: Opening, owner: bool, moment: Moment
    ) -> tuple[Engine, int, float]:
        """Lock earlier workers out, and write the lanes that the store lacks. Runs in a thread."""
        try:
            if owner:
                now = tables.enter_epoch(moment)
                tables.begin()
            else:
                tables.begin()
                now = tables.set_clock(moment)
            engine = Engine(tables, opening)
            tables.commit(0.0)
            # only now, so that the epoch of a worker is on the disk in any case
            tables.set_synchronous(self._synchronous)
            self._log = f"{os.path.realpath(self._file)}-wal"
            self._files = self._present_files()
            return engine, tables.version(), now
        except sqlite3.Error as error:
            failed = translated(self._path, error)
            if failed is error:
                failed = StoreError(f"{self._path} does not have the tables of a store: {error}")
            raise failed from error

    def _present_files(self) -> list[tuple[int, int] | None]:
        """Return (device, inode) of the files at the path and at the path of the log."""
        files: list[tuple[int, int] | None] = []
        for path in (self._file, self._log):
            try:
                there = os.stat(path)
                files.append((there.st_dev, there.st_ino))
            except (FileNotFoundError, NotADirectoryError):
                files.append(None)
            except OSError as error:
                raise StoreUnavailableError(f"{path}: {error}") from error
        return files

    def _check_files(self) -> None:
        """Check that the path still leads to the file that this instance opened. Runs in a thread.

        Raises:
          StoreError: if it does not.
        """
        if self._present_files() != self._files:
            raise StoreError(
                f"{self._path} or its log was removed or replaced while this process had it open; "
                "end all processes that have it open before you move or restore it"
            )

    async def beat(self) -> bool:
        await trio.lowlevel.checkpoint()
        return True

    async def sent(self, id: int, number: int) -> bool:
        if self._works:
            return await super().sent(id, number)
        is_first = True

        async def ask() -> tuple[bool | None, float]:
            nonlocal is_first
            # before the question: what a worker does that ends after this is in the answer
            there = is_first or await trio.to_thread.run_sync(is_taken, self._lock_path)
            is_first = False
            taken, seconds = await self._read(lambda all: talk.sent(all, id, number))
            if taken is None and not there:
                return False, 0.0  # its run has died with the worker
            return taken, min(seconds, OWNER_LOOKS_EVERY)

        return await self._waiters.sent(id, ask)

    # ---- working

    def _announce(
        self, accepted: list[int], news: list[tuple[int, Ended | None]], look: bool
    ) -> None:
        super()._announce(accepted, news, look)
        for guest in self.guests:
            guest._announce(accepted, news, look)

    def _now(self) -> float:
        return trio.current_time() + self._offset

    def _look(self, look: Callable[[Queues], T]) -> T:
        reader = self._reader
        assert reader is not None
        assert isinstance(reader.tables, SqliteTables)
        self._check_files()
        try:
            try:
                reader.tables.begin(write=False)  # which may fail after its BEGIN
                reader.now = trio.from_thread.run_sync(self._now)
                return look(reader)
            finally:
                reader.tables.rollback()
        except sqlite3.Error as error:
            raise confirmed_error(self._path, error) from error

    async def _look_out(self, works: bool) -> None:
        """Poll for changes by other processes: a worker always, a client while a task waits."""
        every = WORKER_LOOKS_EVERY if works else CLIENT_LOOKS_EVERY
        while True:
            if not works:
                await self._waiters.come()
            try:
                if works:
                    await self._follow_wall_clock()
                if self._orphans:
                    await self._bury()
                now = await self._opened().act(_version, self._now(), write=False)
            except StoreUnavailableError:
                now = self._seen  # the next call to the store raises the error
            if now != self._seen:
                for store in (self, *self.guests):
                    store._look_again()
                    store._wake_waiters()
            self._seen = now
            await trio.sleep(every * random.uniform(0.5, 1.0))

    async def _bury(self) -> None:
        """Give back what workers of an earlier owner of the file ran that cannot run any more."""
        known = frozenset(self._orphans)
        ended = await trio.to_thread.run_sync(ended_lives, self._path, known)
        self._orphans = await self._transact(partial(_bury, known, ended))
        await trio.to_thread.run_sync(forget_life, self._path, *(known - self._orphans))

    async def _follow_wall_clock(self) -> None:
        """Move the jobs with a ``run_at`` if the wall clock was set, or the machine has slept."""
        # not by Trio's clock, which passes by itself in a test
        ahead = time.monotonic() + self._of_machine - time.time()
        if abs(ahead - self._ahead) > TOLERANCE:
            await self._transact(partial(_follow, ahead))
            self._ahead = self._tables.ahead = ahead


def _follow(ahead: float, engine: Engine) -> None:
    assert isinstance(engine.tables, SqliteTables)
    if engine.tables.follow_wall_clock(ahead) or engine.tables.of(FIRES):
        engine.work_ready = True


def _instances(engine: Engine) -> list[str]:
    return list(engine.tables.of(INSTANCES))


def _bury(known: Collection[str], ended: Collection[str], engine: Engine) -> set[str]:
    """Remove those of some instances that have ended; return the others that are known still."""
    there = engine.tables.of(INSTANCES)
    left = set()
    for id in there.keys() & known:
        # without a lease, it was the only worker itself, and would hold the lock of the file
        if id in ended or not engine.now < there[id].lease_until < math.inf:
            engine.remove_instance(id)
        else:
            left.add(id)
    return left


def _version(engine: Engine) -> int:
    assert isinstance(engine.tables, SqliteTables)
    return engine.tables.version()
