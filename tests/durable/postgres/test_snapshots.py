"""It is a problem that somebody keeps the database from forgetting rows that were changed since."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest
import trio

from trio_lanes import Problem
from trio_lanes.durable import DurableLanes, PostgresStore, open_durable_lanes
from trio_lanes.durable._lanes import verdicts

from .server import Server

pytestmark = pytest.mark.real_processes


async def snapshot(lanes: DurableLanes) -> Problem | None:
    problems = await lanes.health()
    return next((one for one in problems if one.kind == "snapshot"), None)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "HELD_FOR", 0.2)


async def test_a_session_that_holds_a_snapshot_is_named(
    dsn: str, namespace: str, at_once: None
) -> None:
    store = PostgresStore(dsn, namespace=namespace)
    with closing(psycopg.connect(dsn, application_name="the report")) as other:
        async with open_durable_lanes(store, {}, worker=False) as lanes:
            assert await snapshot(lanes) is None
            other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            other.execute("SELECT 1")
            await trio.sleep(0.3)
            problem = await snapshot(lanes)
            assert problem is not None
            pid = other.info.backend_pid
            assert problem.text.startswith(
                f"the session {pid} of 'the report' has held a snapshot for 0."
            )
            assert "first seen" not in problem.text
            assert problem.advice == f"end it: pg_terminate_backend({pid})"
            other.rollback()
            other.execute("SELECT 1")  # between two statements it holds none
            other.commit()
            assert await snapshot(lanes) is None


async def test_a_prepared_transaction_and_a_slot_are_named(
    server: Server, namespace: str, at_once: None
) -> None:
    own = Server(server._programs, max_prepared_transactions="5", wal_level="logical")
    try:
        own.start()
        store = PostgresStore(own.dsn(), namespace=namespace)
        async with open_durable_lanes(store, {}, worker=False) as lanes:
            own.run("BEGIN; CREATE TABLE t (); PREPARE TRANSACTION 'mine'")
            await trio.sleep(0.3)
            problem = await snapshot(lanes)
            assert problem is not None
            assert problem.text.startswith("the prepared transaction 'mine' has held a snapshot")
            assert problem.advice == "COMMIT PREPARED or ROLLBACK PREPARED 'mine'"
            own.run("ROLLBACK PREPARED 'mine'")
            assert await snapshot(lanes) is None
            own.run("SELECT pg_create_logical_replication_slot('its', 'test_decoding')")
            assert await snapshot(lanes) is None
            await trio.sleep(0.3)
            problem = await snapshot(lanes)
            assert problem is not None
            slot = "the replication slot 'its' of 'test_decoding' has held a snapshot for 0."
            assert problem.text.startswith(slot)
            assert "(since it was first seen here)" in problem.text
            own.run("BEGIN; CREATE TABLE t (); PREPARE TRANSACTION 'mine'")
            await trio.sleep(0.3)
            problem = await snapshot(lanes)
            assert problem is not None
            assert problem.text.endswith("; and 1 more do")
    finally:
        own.remove()


async def test_of_sessions_of_other_roles_it_is_known_since_when_they_were_seen(
    server: Server, namespace: str, at_once: None
) -> None:
    server.run(f"CREATE ROLE {namespace} LOGIN; GRANT CREATE ON DATABASE postgres TO {namespace}")
    store = PostgresStore(server.dsn(user=namespace), namespace=namespace)
    with closing(psycopg.connect(server.dsn())) as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        other.execute("SELECT 1")
        async with open_durable_lanes(store, {}, worker=False) as lanes:
            found = await lanes.health()
            assert found == ()
            assert found.sentence == (
                "healthy; not looked at: since when 1 sessions hold snapshots "
                "(pg_read_all_stats shows it)"
            )
            await trio.sleep(0.3)
            problem = await snapshot(lanes)
            assert problem is not None
            assert "(since it was first seen here)" in problem.text
            other.rollback()
            assert (await lanes.health()).sentence == "healthy"
