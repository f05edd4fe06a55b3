"""The server comes back with older data: what runs and what is locked is soon agreed upon again."""

import random
import signal
from collections.abc import Iterator

import pytest
import trio

from tests.durable.older import agree_again
from tests.support.chaos import times
from tests.support.needs import need
from trio_lanes.durable import PostgresStore

from .server import Server, programs

pytestmark = pytest.mark.real_processes


@pytest.fixture
def primary() -> Iterator[Server]:
    need("PostgreSQL")
    found = programs()
    assert found is not None
    server = Server(found, wal_level="replica", max_wal_senders="4")
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(times(1)))
async def test_after_an_asynchronous_standby_was_promoted_store_and_workers_agree_within_a_lease(
    primary: Server, seed: int
) -> None:
    dice = random.Random(seed)
    found = programs()
    assert found is not None
    standby = Server(found, copy_of=primary, hot_standby="on")

    def promote() -> None:
        primary.stop(signal.SIGQUIT)
        standby.run("SELECT pg_promote()")

    async def fail_over() -> None:
        await trio.sleep(dice.random())
        standby.run("ALTER SYSTEM SET primary_conninfo = ''")  # from now on it is behind
        standby.run("SELECT pg_reload_conf()")
        await trio.sleep(0.2 + 2 * dice.random())
        await trio.to_thread.run_sync(promote)

    dsn = (
        f"postgresql://postgres@/postgres?host={primary.folder},{standby.folder}"
        "&target_session_attrs=read-write"
    )
    try:
        await trio.to_thread.run_sync(standby.start)
        print(await agree_again(lambda: PostgresStore(dsn), fail_over, seed))
    finally:
        standby.remove()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(times(1)))
async def test_after_a_crash_that_took_the_last_commits_store_and_workers_agree_within_a_lease(
    seed: int,
) -> None:
    need("PostgreSQL")
    found = programs()
    assert found is not None
    dice = random.Random(seed)
    server = Server(
        found,
        synchronous_commit="off",
        wal_writer_delay="10s",
        wal_writer_flush_after="1GB",
    )

    def crash() -> None:
        server.stop(signal.SIGQUIT)
        server.start()

    async def fail_over() -> None:
        await trio.sleep(dice.random() * 2)
        await trio.to_thread.run_sync(crash)

    try:
        server.start()
        print(await agree_again(lambda: PostgresStore(server.dsn()), fail_over, seed))
    finally:
        server.remove()
