"""PostgreSQL on virtual time: as the store of a cluster, and as one of two that play the same.

The time of the stores is a row that is brought up to date before each act. Notices come at once, to
all other stores of the namespace, since a life must be the same each time.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from unittest import mock

import psycopg
import trio

from tests.durable.in_loop import Shared, in_loop
from trio_lanes.durable import PostgresStore
from trio_lanes.durable._postgres.listener import Listener
from trio_lanes.durable._postgres.schema import prepare
from trio_lanes.durable._postgres.tables import PostgresTables

from .clock import EPOCH, TABLE

_numbers = itertools.count(1)


class Life:
    """The namespaces and the time of simulated lives on one server."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._connection.execute(f"CREATE TABLE IF NOT EXISTS {TABLE} (now double precision)")
        self._connection.execute(f"TRUNCATE {TABLE}")
        self._connection.execute(f"INSERT INTO {TABLE} VALUES ({EPOCH})")
        self._ahead = 0.0
        self._written = -1.0
        self._listeners: list[Listener] = []

    def close(self) -> None:
        """Close the connection to the server."""
        self._connection.close()

    def namespace(self) -> str:
        """Make a namespace whose time is Trio's."""
        namespace = f"life_{next(_numbers)}"
        prepare(self._connection, namespace, "the test's server", 1024 * 1024)
        self._connection.execute(
            f"CREATE OR REPLACE FUNCTION {namespace}.server_time() RETURNS double precision"
            f" LANGUAGE sql VOLATILE AS $$ SELECT now FROM {TABLE} $$".encode()
        )
        return namespace

    def store(self, namespace: str) -> PostgresStore:
        return PostgresStore(self._dsn, namespace=namespace)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Shared]:
        """Make the data of a cluster."""
        namespace = self.namespace()
        self._ahead, self._written = 0.0, -1.0

        def jump(seconds: float) -> None:
            self._ahead += seconds

        try:
            yield Shared(lambda: self.store(namespace), jump)
        finally:
            self._connection.execute(f"DROP SCHEMA {namespace} CASCADE".encode())

    @contextmanager
    def in_loop(self) -> Iterator[None]:
        """Let stores do each call in Trio's thread, on this time."""
        begin, commit = PostgresTables.begin, PostgresTables.commit
        life = self

        def begin_in_time(tables: PostgresTables, *args: Any, **options: Any) -> Any:
            life._bring_up_to_date()
            return begin(tables, *args, **options)

        def commit_and_tell(tables: PostgresTables, *args: Any) -> bool:
            more = commit(tables, *args)
            life._tell(tables._me, *args)
            return more

        async def listen(listener: Listener) -> None:
            await listener._link.call(listener._begin)
            life._listeners.append(listener)
            try:
                listener._look()
                listener._wake_waiters(None)
                await trio.sleep_forever()
            finally:
                life._listeners.remove(listener)

        with (
            in_loop(),
            mock.patch.object(PostgresTables, "begin", begin_in_time),
            mock.patch.object(PostgresTables, "commit", commit_and_tell),
            mock.patch.object(Listener, "listen", listen),
        ):
            yield

    def _bring_up_to_date(self) -> None:
        now = EPOCH + trio.current_time() + self._ahead
        if now != self._written:
            self._written = now
            self._connection.execute(f"UPDATE {TABLE} SET now = %s", (now,))

    def _tell(self, me: str, look: bool, ended: Any) -> None:
        for listener in self._listeners:
            if listener._me != me:
                if look or ended:
                    listener._hint(lock=False)
                if look:
                    listener._look()
                if ended:
                    listener._wake_waiters([id for id, _ in ended])
