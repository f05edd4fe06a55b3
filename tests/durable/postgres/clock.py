"""The clock of a test that is the time of the server's stores, too."""

from __future__ import annotations

from threading import Lock

import psycopg
import trio
import trio.testing

from trio_lanes.durable._postgres.schema import prepare

EPOCH = 1_800_000_000
"""The time of the stores at the beginning of a test."""
TABLE = "public.test_clock"


class StoreClock(trio.abc.Clock):
    """Virtual time, for Trio and for the stores in prepared namespaces of one server."""

    def __init__(self, dsn: str) -> None:
        self._mock = trio.testing.MockClock()
        self._jumping = Lock()  # no thread of a store sees one of the two times ahead of the other
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._connection.execute(f"CREATE TABLE IF NOT EXISTS {TABLE} (now double precision)")
        self._connection.execute(f"TRUNCATE {TABLE}")
        self._connection.execute(f"INSERT INTO {TABLE} VALUES ({EPOCH})")

    def prepare(self, namespace: str) -> None:
        """Make the tables of a namespace, and let them have the time of this clock."""
        prepare(self._connection, namespace, "the test's server", 1024 * 1024)
        self._connection.execute(
            f"CREATE OR REPLACE FUNCTION {namespace}.server_time() RETURNS double precision"
            f" LANGUAGE sql VOLATILE AS $$ SELECT now FROM {TABLE} $$".encode()
        )

    def start_clock(self) -> None:
        self._mock.start_clock()

    def current_time(self) -> float:
        with self._jumping:
            return self._mock.current_time()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return self._mock.deadline_to_sleep_time(deadline)

    def jump(self, seconds: float) -> None:
        """Let time pass."""
        with self._jumping:
            self._mock.jump(seconds)
            self._connection.execute(f"UPDATE {TABLE} SET now = now + %s", (seconds,))

    def close(self) -> None:
        """Close the connection to the server."""
        self._connection.close()
