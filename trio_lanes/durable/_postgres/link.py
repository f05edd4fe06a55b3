"""`PostgresLink`: a connection, made when it is needed, that can be cut from outside.

Every wait has an end:

* ``lock_timeout`` and ``statement_timeout``: the server ends a statement. Who has waited for the
  lock of a namespace for so long ends the session of a client that stands still: see `LockHolder`;
* ``idle_in_transaction_session_timeout`` and, from PostgreSQL 17 on, ``transaction_timeout``: the
  server ends the transaction of a client that stands still, also if nobody waits for the lock. The
  first does not do so in or after a pipeline;
* `PostgresLink.cut`: the client ends the wait for a server that does not answer.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Any, Final, TypeVar, final

import outcome
import psycopg
import trio
from psycopg import conninfo, sql

from .._contract.errors import StoreError

T = TypeVar("T")

APPLICATION: Final = "trio_lanes"
"""The ``application_name`` of a session, unless the connection string gives another."""
AT_REST: Final = psycopg.pq.TransactionStatus.IDLE  # a lost connection has no status
IDLE: Final = 0.4
"""The part of the store's patience after which the server ends an idle transaction, and for which a
statement waits for a lock."""
STILL: Final = 0.2
"""The part of the store's patience for which a session that is ended has waited for its client."""
LOCKED: Final = 0.8
"""The part of the store's patience for which an act waits for the lock, in several statements."""
TRANSACTION_TIMEOUT: Final = 170_000
"""The first version of the server that has ``transaction_timeout``."""
NOTICED: Final = 2.0
"""Seconds in which a notice of one connection reaches another through a pooler."""
CONNECTING: Final = 2
"""Seconds for which a connection to one address is tried; libpq takes no less."""


def connect(
    dsn: str,
    patience: float,
    *,
    made: Callable[[psycopg.Connection], None],
    long: bool = False,
) -> psycopg.Connection:
    """Return a new connection, which is in no transaction.

    Args:
      made: is called with the connection before its settings are sent.
      long: whether statements may last long, since they read every job.
    """
    defaults: dict[str, Any] = {
        "connect_timeout": CONNECTING,
        "application_name": APPLICATION,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": int(patience * 1000),
    }
    given = conninfo.conninfo_to_dict(dsn)
    connection = psycopg.connect(dsn, autocommit=True, **{**defaults, **given})
    try:
        made(connection)
        millis = int(patience * 1000)
        settings = {
            # each statement sees what those who had the lock before have committed: see `batch`
            "default_transaction_isolation": "read committed",
            "lock_timeout": int(millis * IDLE),
            "statement_timeout": 0 if long else millis,
            "idle_in_transaction_session_timeout": 0 if long else int(millis * IDLE),
            # each statement has an index; tables may have grown since they were analyzed
            "enable_seqscan": "on" if long else "off",
            "enable_hashjoin": "on" if long else "off",
            "enable_mergejoin": "on" if long else "off",
            "jit": "off",
            "client_encoding": "UTF8",
            "client_min_messages": "warning",
        }
        if connection.info.server_version >= TRANSACTION_TIMEOUT and not long:
            # not less: it counts also while the transaction waits for the lock
            settings["transaction_timeout"] = millis
        with connection.pipeline():
            for name, value in settings.items():
                connection.execute(
                    sql.SQL("SET {} = {}").format(sql.Identifier(name), sql.Literal(str(value)))
                )
    except BaseException:
        connection.close()
        raise
    return connection


def check_sessions(one: psycopg.Connection, other: psycopg.Connection, name: str) -> None:
    """Refuse a pooler in transaction mode: a connection gets no notice there.

    Each transaction may have another session of the server. An idle connection would listen
    in a session that no client has.

    Raises:
      StoreError: if ``one`` does not get the notice that ``other`` sends.
    """
    channel = f"trio_lanes_{uuid.uuid4().hex}"
    one.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
    other.execute("SELECT pg_notify(%s, '')", (channel,))
    if not list(one.notifies(timeout=NOTICED, stop_after=1)):
        raise StoreError(
            f"{name} is behind a pooler that gives a connection another session of the server for "
            "each transaction, such as PgBouncer with pool_mode=transaction: set "
            "pool_mode=session for this database, or connect to the server itself"
        )
    one.execute("UNLISTEN *")


@final
class PostgresLink:
    """One connection, used by one thread at a time."""

    def __init__(self, dsn: str, patience: float, *, long: bool = False) -> None:
        self._dsn: Final = dsn
        self.patience: Final = patience
        self._long: Final = long
        self._limiter: Final = trio.CapacityLimiter(1)
        self._lock: Final = Lock()
        self._socket: socket.socket | None = None
        self.connection: psycopg.Connection | None = None

    def connected(self) -> psycopg.Connection:
        """Return the connection, which is in no transaction.

        It is made if there is none, or if it is lost, or if whoever had it before left it in a
        transaction, of which nobody knows what has failed in it.
        """
        if self.connection is not None and self.connection.info.transaction_status == AT_REST:
            return self.connection
        self.close()
        try:
            self.connection = connect(self._dsn, self.patience, made=self._let_cut, long=self._long)
        except BaseException:
            self.close()  # the socket by which it could be cut
            raise
        return self.connection

    def _let_cut(self, connection: psycopg.Connection) -> None:
        with self._lock:
            self._socket = socket.socket(fileno=os.dup(connection.fileno()))

    def release(self) -> None:
        """Give back the locks of the session, then close it: the server ends it some time later."""
        if self.connection is not None and self.connection.info.transaction_status == AT_REST:
            with suppress(psycopg.Error):
                self.connection.execute("SELECT pg_advisory_unlock_all()")
        self.close()

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def cut(self) -> None:
        """End the connection from another thread: what waits for the server gets an error."""
        with self._lock:
            if self._socket is not None:
                with suppress(OSError):  # the server has ended it already
                    self._socket.shutdown(socket.SHUT_RDWR)

    async def call(self, work: Callable[[], T]) -> T:
        """Call ``work`` in a thread; cut the connection when the store's patience is over."""

        # a thread cannot be cancelled, so its patience must not be cancelled before it
        patience = trio.CancelScope(shield=True)

        async def lose_patience() -> None:
            with patience:
                await trio.sleep(self.patience)
                self.cut()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lose_patience)
            try:
                # captured, since the nursery would wrap an error in a group
                done = await trio.to_thread.run_sync(outcome.capture, work, limiter=self._limiter)
            finally:
                patience.cancel()
        return done.unwrap()
