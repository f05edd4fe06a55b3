"""Who holds the lock and stands still is ended by those who wait, and nobody else is."""

import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import psycopg
import pytest
import trio

from tests.support.chaos import number
from tests.support.needs import need
from trio_lanes.durable import PostgresStore, StoreUnavailableError, open_durable_lanes
from trio_lanes.durable._postgres import link, lock_holder
from trio_lanes.durable._postgres.batch import TABLE_LOCK
from trio_lanes.durable._postgres.lock_holder import LockHolder
from trio_lanes.durable._postgres.schema import channel_of, naming, prepare

from .server import Server, programs
from .submitting import IN_FLIGHT, submit

pytestmark = pytest.mark.real_processes

PATIENCE = 1.5
"""Of stores whose calls are to be refused soon."""
HELD_UP = 4.0
"""Seconds for which a process that stands still may hold the others up, on a busy machine: some 2
are promised."""


def submitting(dsn: str, namespace: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.durable.postgres.submitting", dsn, namespace]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@contextmanager
def stopped(process: subprocess.Popen[str]) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


@pytest.mark.slow
async def test_a_process_that_is_stopped_at_any_moment_holds_the_others_up_for_some_two_seconds(
    dsn: str, namespace: str
) -> None:
    dice, held_up, stops = random.Random(1), list[float](), number("STOPS", 20)
    async with (
        open_durable_lanes(PostgresStore(dsn, namespace=namespace), {}) as lanes,
        trio.open_nursery() as nursery,
    ):
        for n in range(IN_FLIGHT):  # two that are busy take the lock
            nursery.start_soon(submit, lanes, n)
        with submitting(dsn, namespace) as other:
            assert other.stdout is not None
            try:
                await trio.to_thread.run_sync(other.stdout.readline)
                for _ in range(stops):
                    await trio.sleep(0.1 + 0.3 * dice.random())
                    with stopped(other):
                        began = trio.current_time()
                        await lanes.submit("work")
                        held_up.append(trio.current_time() - began)
            finally:
                other.kill()
        nursery.cancel_scope.cancel()
    many = sum(seconds > 1 for seconds in held_up)
    print(
        f"{stops} stops of a process, {many} of them while it held the lock; the longest held the"
        f" others up for {max(held_up):.2f} s"
    )
    assert many > 0  # else none of them has shown anything
    assert max(held_up) < HELD_UP


@pytest.fixture
def made(dsn: str, namespace: str) -> Iterator[psycopg.Connection]:
    """A connection of the library; the namespace has its tables."""
    with closing(library(dsn)) as connection:
        prepare(connection, namespace, "the server", 1024)
        yield connection


def library(dsn: str, patience: float = 60) -> psycopg.Connection:
    """Return a session as an instance has one."""
    return link.connect(dsn, patience, made=lambda connection: None)


def hold(connection: psycopg.Connection, namespace: str) -> None:
    connection.execute("BEGIN")
    connection.execute(f"SELECT pg_advisory_xact_lock{TABLE_LOCK}", (channel_of(namespace),))


def ends(connection: psycopg.Connection, namespace: str, still_for: float = 0) -> bool:
    """Let somebody who has waited for the lock look for its holder."""
    return LockHolder(
        "the store", naming(namespace), channel_of(namespace), still_for
    ).end_if_still(connection)


def is_alive(connection: psycopg.Connection) -> bool:
    try:
        connection.execute("SELECT 1")
        return True
    except psycopg.errors.AdminShutdown:
        return False


def test_a_session_of_the_library_that_stands_still_is_ended(
    made: psycopg.Connection, dsn: str, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(library(dsn)) as still:
        pid = still.info.backend_pid
        hold(still, namespace)
        assert ends(made, namespace)
        assert not is_alive(still)
        assert f"the session {pid} was ended" in caplog.text
    assert not ends(made, namespace)  # nobody holds it now


def test_a_session_in_the_middle_of_a_pipeline_is_ended(
    made: psycopg.Connection, dsn: str, namespace: str
) -> None:
    with closing(library(dsn)) as still, suppress(psycopg.Error), still.pipeline():
        hold(still, namespace)
        still.pgconn.send_flush_request()
        still.pgconn.flush()
        until = time.monotonic() + 20
        while not ends(made, namespace):  # the server may not have read the messages yet
            assert time.monotonic() < until
        raise psycopg.OperationalError("the pipeline is broken off")


def test_a_session_whose_connection_string_names_its_application_is_ended(
    made: psycopg.Connection, dsn: str, namespace: str
) -> None:
    own = f"{dsn}&application_name=shop"
    with closing(library(own)) as still, closing(library(own)) as waiting:
        hold(still, namespace)
        assert not ends(made, namespace)
        assert ends(waiting, namespace)
        assert not is_alive(still)


def test_a_session_that_has_said_something_just_now_is_not_ended(
    made: psycopg.Connection, dsn: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(library(dsn)) as busy:
        hold(busy, namespace)
        assert not ends(made, namespace, still_for=60)
        end = lock_holder._END
        monkeypatch.setattr(lock_holder, "_END", f"{end} AND pg_sleep(0) IS NULL")  # it went on
        assert not ends(made, namespace)
        assert is_alive(busy)


def test_a_session_of_a_user_is_not_ended_and_the_log_names_it_once(
    made: psycopg.Connection, dsn: str, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    holder = LockHolder("the store", naming(namespace), channel_of(namespace), 0)
    with psycopg.connect(dsn, autocommit=True, application_name="psql") as user:
        hold(user, namespace)
        assert not holder.end_if_still(made)
        assert not holder.end_if_still(made)
        assert is_alive(user)
        (record,) = caplog.records
        assert f"the session {user.info.backend_pid} (user postgres, application 'psql')" in (
            record.getMessage()
        )


async def test_waiters_dumps_and_migrations_are_not_ended(
    dsn: str, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    stores = [PostgresStore(dsn, namespace=namespace, patience=PATIENCE) for _ in range(2)]

    async def refused(lanes: Any) -> None:
        with pytest.raises(StoreUnavailableError):
            await lanes.submit("work")

    async with open_durable_lanes(stores[0], {}, worker=False) as one:
        async with open_durable_lanes(stores[1], {}, worker=False) as other:
            for lock in (
                f"LOCK TABLE {namespace}.jobs IN ACCESS EXCLUSIVE MODE",
                f"LOCK TABLE {namespace}.deltas IN ACCESS EXCLUSIVE MODE",
            ):
                with psycopg.connect(dsn, application_name="pg_dump") as user:
                    user.execute(lock.encode())
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(refused, one)
                        nursery.start_soon(refused, other)
                    assert is_alive(user)
                await one.submit("work")
                await other.submit("work")
    assert "was ended" not in caplog.text


@pytest.fixture(scope="module")
def standby() -> Iterator[Server]:
    """A server whose commits wait for a standby, when a test says so; it knows prepared ones."""
    need("PostgreSQL")
    found = programs()
    assert found is not None
    server = Server(found, max_prepared_transactions="2")
    try:
        server.start()
        yield server
    finally:
        server.remove()


def wait_for_standby(server: Server, name: str) -> None:
    server.run(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    server.run("SELECT pg_reload_conf()")


async def test_a_commit_that_waits_for_a_standby_is_not_ended(
    standby: Server, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    commits = PostgresStore(standby.dsn(), namespace=namespace, patience=60)
    waits = PostgresStore(standby.dsn(), namespace=namespace, patience=PATIENCE)
    done: list[Any] = []

    async def submit(lanes: Any) -> None:
        done.append(await lanes.submit("work"))

    async with open_durable_lanes(commits, {}, worker=False) as one:
        async with open_durable_lanes(waits, {}, worker=False) as other:
            wait_for_standby(standby, "nobody")
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(submit, one)
                    syncing = "SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
                    while not standby.run(syncing):  # noqa: ASYNC110 - the server knows it
                        await trio.sleep(0.02)
                    with pytest.raises(StoreUnavailableError):
                        await other.submit("work")
                    assert not done
                    wait_for_standby(standby, "")
            finally:
                wait_for_standby(standby, "")
            await other.submit("work")
            assert (await one.statistics()).waiting == 2
    assert "it waits for SyncRep, not for its client" in caplog.text
    assert "was ended" not in caplog.text


def test_a_prepared_transaction_is_not_ended(standby: Server, namespace: str) -> None:
    with closing(library(standby.dsn())) as made, closing(library(standby.dsn())) as other:
        prepare(made, namespace, "the server", 1024)
        hold(other, namespace)
        other.execute("PREPARE TRANSACTION 'p'")
        try:
            assert not ends(made, namespace)
            assert is_alive(other)
        finally:
            made.execute("ROLLBACK PREPARED 'p'")


@pytest.mark.parametrize(
    ("rights", "says"),
    [
        ("", "this role needs the rights pg_signal_backend and pg_read_all_stats"),
        ("pg_read_all_stats", "this role needs the right pg_signal_backend"),
    ],
)
def test_without_the_right_to_end_a_session_the_log_names_it(
    made: psycopg.Connection,
    server: Server,
    namespace: str,
    caplog: pytest.LogCaptureFixture,
    rights: str,
    says: str,
) -> None:
    role = f"app_{os.urandom(4).hex()}"
    server.run(f"CREATE ROLE {role} LOGIN {f'IN ROLE {rights}' if rights else ''}")
    server.run(f"GRANT USAGE ON SCHEMA {namespace} TO {role}")
    server.run(f"GRANT SELECT ON {namespace}.meta TO {role}")
    with closing(library(server.dsn(user=role))) as waiting:
        hold(made, namespace)
        until = time.monotonic() + 20
        while says not in caplog.text:  # the server may not wait for its client yet
            assert not ends(waiting, namespace)
            assert time.monotonic() < until
        assert is_alive(made)
        assert f"the session {made.info.backend_pid} " in caplog.text


def test_the_server_ends_long_transactions_itself_where_it_can(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(library(dsn, patience=7)) as connection:
        if connection.info.server_version >= link.TRANSACTION_TIMEOUT:
            assert connection.execute("SHOW transaction_timeout").fetchone() == ("7s",)
            return
    monkeypatch.setattr(link, "TRANSACTION_TIMEOUT", 0)
    with pytest.raises(psycopg.errors.UndefinedObject, match="transaction_timeout"):
        library(dsn)
    link.connect(dsn, 7, made=lambda connection: None, long=True).close()
