"""`PostgresStore`: a store in a schema of a PostgreSQL database, for instances on many machines.

* Each instance has two connections: the writer's, in a thread, and a connection for notices, on
  which a task waits. A third is made for calls that read every job.
* All instances apply the same rules, in their own process. A batch of acts is committed if no other
  instance has committed since the batch on which it builds: see `batch` and `PostgresTables`. So
  several instances do not do more jobs in a second than one. Only who comes late again and again
  has the lock while it computes, and who does what `put` has no rows for. A client that stands
  still then holds it until another has waited for `link.IDLE` of the patience: see `LockHolder`.
* The server's clock decides. Each instance has a lease.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar, final

import psycopg
import trio
from psycopg import conninfo

from .._contract.records import Opening
from .._rules.engine import Engine
from .._rules.engine_store import MAX_PAYLOAD, PATIENCE
from .._rules.queues import Queues
from .._sql.act_thread import ActThread
from .._sql.batching import BatchingStore
from .errors import translated
from .link import PostgresLink, check_sessions
from .listener import Listener
from .schema import channel_of, check_server, naming, prepare
from .tables import PostgresTables

T = TypeVar("T")

_NAMESPACE: Final = re.compile("[a-z_][a-z0-9_]{0,39}")


@final
class PostgresStore(BatchingStore):
    """A store in a schema of a PostgreSQL database (13 or newer), which is made if it is missing.

    Args:
      dsn: the connection string, as libpq reads it: ``"postgresql://user@host/database"``. It must
        lead to the server itself, or to a pooler that keeps sessions; another one is refused.
      namespace: the name of the schema; lower-case letters, digits and ``_``. Each is a store of
        its own.
      patience: seconds after which a call that got no answer raises `StoreUnavailableError`. The
        session of an instance that stands still under the lock is ended by whoever has waited for
        0.4 of it.
      max_payload: the largest payload, result or checkpoint, in bytes of its JSON text.
      make: whether to make the schema and its tables if they are missing.

    Raises:
      ValueError: if ``dsn`` is not a connection string, or ``namespace`` has other characters.
    """

    def __init__(
        self,
        dsn: str,
        *,
        namespace: str = "lanes",
        patience: float = PATIENCE,
        max_payload: int = MAX_PAYLOAD,
        make: bool = True,
    ) -> None:
        super().__init__(max_payload, patience)
        where = _read(dsn)
        if not _NAMESPACE.fullmatch(namespace) or namespace.startswith("pg_"):
            raise ValueError(
                "namespace must be at most 40 lower-case letters, digits and _, not begin with a "
                f"digit or with pg_; got {namespace!r}"
            )
        self._dsn: Final = dsn
        self._namespace: Final = namespace
        self._make: Final = make
        database, host = where.get("dbname", "its default database"), where.get("host")
        self._name: Final = f"PostgreSQL, {database}" + (f" on {host}" if host else "")
        self._channel: Final = channel_of(namespace)
        self._named: Final = naming(namespace)
        self._acts: PostgresTables
        self._reader: PostgresLink

    def __repr__(self) -> str:
        return f"<trio_lanes.durable.PostgresStore {self._name}, namespace {self._namespace!r}>"

    # ---- opening

    @asynccontextmanager
    async def open(self, opening: Opening) -> AsyncIterator[None]:
        self._begin_open(opening)
        me = uuid.uuid4().hex[:16]
        link = PostgresLink(self._dsn, self.patience)
        listening = PostgresLink(self._dsn, self.patience)
        reader = self._reader = PostgresLink(self._dsn, self.patience, long=True)
        listener = Listener(
            self._name,
            listening,
            self._named,
            self._channel,
            me,
            self._hint,
            self._look_again,
            self._wake_waiters,
        )
        try:
            if await link.call(lambda: self._examine(link)):
                await listening.call(lambda: self._examine_pooler(listening, link))
            engine, tables = await link.call(lambda: self._begin(link, opening, me))
            writer = ActThread(self._name, tables, engine, self.patience, self._announce)
            async with self._working(writer, listener.listen):
                yield
        finally:
            with trio.CancelScope(shield=True):
                await listening.call(listener.forget)
                await link.call(link.release)
                await trio.to_thread.run_sync(reader.close, limiter=self._one_reader)

    def _examine(self, link: PostgresLink) -> bool:
        """Examine the server; return whether a pooler is before it. Runs in a thread."""
        with self._translating():
            return check_server(link.connected(), self._name)

    def _examine_pooler(self, listening: PostgresLink, link: PostgresLink) -> None:
        """Refuse a pooler that does not keep sessions. Runs in a thread."""
        with self._translating():
            check_sessions(listening.connected(), link.connected(), self._name)

    def _begin(
        self, link: PostgresLink, opening: Opening, me: str
    ) -> tuple[Engine, PostgresTables]:
        """Make what is missing. Runs in a thread."""
        with self._translating():
            connection = link.connected()
            namespace, works = self._namespace, opening.worker
            prepare(
                connection, namespace, self._name, self.max_payload, works=works, make=self._make
            )
            tables = self._tables(link, opening.names, me, works=works)
            tables.begin(write=True)
            tables.reads_homes = opening.affinity > 0
            engine = Engine(tables, opening)
            tables.commit(False, ())
            self._acts = tables
            return engine, tables

    def _hint(self, *, lock: bool) -> None:
        self._acts.hint(lock=lock)

    def _tables(
        self, link: PostgresLink, names: Collection[str], me: str = "", *, works: bool = False
    ) -> PostgresTables:
        of, clock = (self._name, self._named, self._channel, me), self._clock.current_time
        return PostgresTables(link, *of, names, clock, self._renew_soon, works)

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise translated(self._name, error) from error

    # ---- working

    def _look(self, look: Callable[[Queues], T]) -> T:
        with self._translating():
            try:
                tables = self._tables(self._reader, ())
                queues = Queues(tables, self._opening)
                queues.now, _ = tables.begin(write=False)
                found = look(queues)
                tables.rollback()
            except BaseException:
                # It may be in a failed transaction, and count statements as prepared that the
                # server has skipped after the one that failed.
                self._reader.close()
                raise
            return found


def _read(dsn: str) -> dict[str, Any]:
    """Return the parts of a connection string.

    Raises:
      ValueError: if it is none. Neither its text, nor that of libpq, is in the error: what is not
        understood may be the password.
    """
    try:
        found = conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        found = {"port": "?"}
    ports = str(found.get("port", "")).replace(",", "")
    # a password with a slash, as it is, would be read as a port and a database
    if (ports and not ports.isdigit()) or ("://" in dsn and "@" in str(found.get("dbname", ""))):
        raise ValueError(
            "dsn is not a connection string of PostgreSQL: use postgresql://USER@HOST:PORT/DATABASE"
            ", where signs such as / @ % of a password are encoded, or key=value"
        )
    return found
