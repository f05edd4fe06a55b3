"""Faults between an instance and its PostgreSQL server: nothing accepted is lost."""

import math
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest
import trio
import trio.testing

from tests.durable.cancelled import cancel_calls, cancel_open, submitted_at_last
from trio_lanes.durable import (
    DurableState,
    PostgresStore,
    StoreError,
    StoreUnavailableError,
    Submission,
    SubmittedJob,
    open_durable_lanes,
)
from trio_lanes.durable._postgres.batch import TABLE_LOCK
from trio_lanes.durable._postgres.link import PostgresLink
from trio_lanes.durable._postgres.listener import COMMITTED_WITHIN, Listener
from trio_lanes.durable._postgres.schema import channel_of, naming
from trio_lanes.durable._postgres.tables import PostgresTables
from trio_lanes.durable._rules.engine import MAX_FORGOTTEN
from trio_lanes.durable._rules.tables import PAUSES
from trio_lanes.durable.acts.jobs import Enqueue

from .server import Server

pytestmark = pytest.mark.real_processes


def pids(server: Server, namespace: str, kind: str = "%") -> list[int]:
    """The processes of the server that serve a namespace's connections."""
    of = "SELECT DISTINCT pid FROM pg_stat_activity WHERE application_name = 'trio_lanes'"
    return [row[0] for row in server.run(f"{of} AND query LIKE '{kind}'")]


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process of the server that stands still, as a network that carries nothing does."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Echo:
    """A handler that notes how often it ran each payload."""

    def __init__(self) -> None:
        self.ran = Counter[int]()

    async def __call__(self, payload: Any) -> Any:
        self.ran[payload] += 1
        await trio.lowlevel.checkpoint()
        return payload


async def submit_all(lanes: Any, numbers: range) -> list[Any]:
    """Submit jobs, each until it is accepted."""
    jobs = []
    for n in numbers:
        while True:
            try:
                jobs.append(await lanes.submit("echo", n, session=f"s{n % 3}", key=str(n)))
                break
            except StoreUnavailableError:
                await trio.sleep(0.02)
    return jobs


async def result_of(job: Any) -> Any:
    """Wait for a job, while the store may be away."""
    while True:
        try:
            return await job.wait()
        except StoreUnavailableError:
            await trio.sleep(0.02)


@pytest.mark.parametrize("how", ["terminate", "immediate", "kill"])
async def test_connections_and_servers_that_end_lose_nothing(
    own_server: Server, namespace: str, how: str
) -> None:
    server, echo = own_server, Echo()
    store = PostgresStore(server.dsn(), namespace=namespace)
    with trio.fail_after(120):
        async with open_durable_lanes(store, {"echo": echo}) as lanes:
            first = await submit_all(lanes, range(20))
            if how == "terminate":
                server.run(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = 'trio_lanes'"
                )
            else:
                server.stop(signal.SIGQUIT if how == "immediate" else signal.SIGKILL)
                await trio.to_thread.run_sync(server.start)
            second = await submit_all(lanes, range(20, 40))
            assert [await result_of(job) for job in first + second] == list(range(40))
            assert set(echo.ran) == set(range(40))
            assert (await lanes.check()).problems == ()
            assert [job for job in await lanes.jobs() if job.crashes] == []


async def test_an_answer_that_is_lost_in_the_commit_is_unknown_and_the_ticket_decides(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresStore(server.dsn(), namespace=namespace)
    real, lose = PostgresTables.commit, [False]

    def commit(self: PostgresTables, *args: Any) -> None:
        real(self, *args)
        if lose.pop():
            self._connection.close()
            raise psycopg.OperationalError("the connection was lost")

    async with open_durable_lanes(store, {}, worker=False) as lanes:
        await lanes.submit("a", 1, key="before")
        monkeypatch.setattr(PostgresTables, "commit", commit)
        lose[:] = [True]
        with pytest.raises(StoreUnavailableError) as caught:
            await store.do(Enqueue([SubmittedJob(name="a", key="k")]), "ticket")
        assert caught.value.unknown
        monkeypatch.undo()
        (id,) = await store.do(Enqueue([SubmittedJob(name="a", key="k")]), "ticket")
        assert [one.id for one in await lanes.jobs()][1:] == [id]


async def test_a_server_that_does_not_answer_is_left_after_the_patience(
    server: Server, namespace: str
) -> None:
    store = PostgresStore(server.dsn(), namespace=namespace, patience=2)
    async with open_durable_lanes(store, {}, worker=False) as lanes:
        await lanes.submit("a")
        (writer,) = pids(server, namespace, "COMMIT%")
        with stopped(writer), trio.fail_after(30):
            await unavailable(lanes)
        await submitted_at_last(lanes)


async def unavailable(lanes: Any, name: str = "a") -> None:
    with pytest.raises(StoreUnavailableError):
        await lanes.submit(name)


async def test_a_lock_that_another_client_holds_delays_calls_and_then_refuses_them(
    server: Server, namespace: str
) -> None:
    store = PostgresStore(server.dsn(), namespace=namespace, patience=3)
    async with open_durable_lanes(store, {}, worker=False) as lanes:
        with psycopg.connect(server.dsn()) as other:
            other.execute(f"SELECT pg_advisory_xact_lock{TABLE_LOCK}", (channel_of(namespace),))
            # the server says the first, unless the machine is so slow that patience ends before
            says = "lock timeout|has not answered within 3 s"
            with pytest.raises(StoreUnavailableError, match=says) as caught:
                await store.do(Enqueue([]), "t")
            assert not caught.value.unknown
            await unavailable(lanes)
            assert (await lanes.statistics()).waiting == 0  # reads need no lock
        await submitted_at_last(lanes)


TABLES = "SELECT table_name FROM information_schema.tables WHERE table_schema = "
WAITING = (
    "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    " AND application_name = 'trio_lanes'"
)


@pytest.mark.parametrize("how", ["lock timeout", "pg_cancel_backend", "pg_terminate_backend"])
async def test_a_read_that_fails_at_any_table_leaves_no_failed_connection_to_the_next(
    server: Server, namespace: str, how: str
) -> None:
    failed = Counter[str]()

    async def end_what_waits() -> None:
        while True:
            for (pid,) in await trio.to_thread.run_sync(server.run, WAITING):
                await trio.to_thread.run_sync(server.run, f"SELECT {how}({pid})")

    store = PostgresStore(server.dsn(), namespace=namespace, patience=1)
    async with open_durable_lanes(store, {}, worker=False) as lanes:
        reads = (lanes.statistics, lanes.jobs, lanes.health)
        await lanes.submit("a")
        for (table,) in server.run(f"{TABLES}'{namespace}'"):
            for read in reads[:1] if how == "lock timeout" else reads:
                with psycopg.connect(server.dsn()) as other:
                    other.execute(f"LOCK TABLE {namespace}.{table}".encode())
                    async with trio.open_nursery() as nursery:
                        if how != "lock timeout":
                            nursery.start_soon(end_what_waits)
                        try:
                            await read()
                        except StoreUnavailableError:
                            failed[table] += 1
                        nursery.cancel_scope.cancel()
                for good in reads:
                    await good()
    assert {"deltas", "jobs", "settings"} <= set(failed)


async def test_a_client_that_stands_still_in_a_transaction_is_ended_by_the_server(
    server: Server, namespace: str
) -> None:
    still, well = (PostgresStore(server.dsn(), namespace=namespace, patience=3) for _ in range(2))
    begun, go_on = trio.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()

    def stand_still(engine: Any) -> None:
        token.run_sync_soon(begun.set)
        trio.from_thread.run(go_on.wait, trio_token=token)
        engine.tables.put(PAUSES, "s", 1.0)

    async def stand() -> None:
        with pytest.raises(StoreUnavailableError):
            await still._transact(stand_still)

    async with open_durable_lanes(still, {}, worker=False):
        async with open_durable_lanes(well, {}, worker=False) as lanes:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stand)
                await begun.wait()
                await submitted_at_last(lanes)
                go_on.set()
            assert (await lanes.statistics()).waiting == 1


@pytest.mark.parametrize("code", ["disk_full", "io_error"])
async def test_a_full_disk_refuses_new_jobs_and_running_jobs_go_on(
    server: Server, namespace: str, code: str
) -> None:
    begun, gate = trio.Event(), trio.Event()

    async def wait(payload: Any) -> Any:
        begun.set()
        await gate.wait()
        return payload

    store = PostgresStore(server.dsn(), namespace=namespace)
    async with open_durable_lanes(store, {"wait": wait}) as lanes:
        job = await lanes.submit("wait", 7)
        await begun.wait()
        server.run(
            f"CREATE FUNCTION {namespace}.full() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN RAISE EXCEPTION 'no space' USING ERRCODE = '{code}'; END $$"
        )
        server.run(
            f"CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON {namespace}.jobs"
            f" EXECUTE FUNCTION {namespace}.full()"
        )
        gate.set()
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(unavailable, lanes, "wait")
        assert (await job.status()).state is DurableState.RUNNING
        server.run(f"DROP TRIGGER full_disk ON {namespace}.jobs")
        with trio.fail_after(60):
            assert await job.wait() == 7
        assert (await lanes.check()).problems == ()


async def test_a_dropped_schema_ends_the_lanes_with_an_error_that_names_the_cause(
    server: Server, namespace: str
) -> None:
    store = PostgresStore(server.dsn(), namespace=namespace)
    async with open_durable_lanes(store, {}, worker=False) as lanes:
        await lanes.submit("a")
        server.run(f"DROP SCHEMA {namespace} CASCADE")
        for call in (lambda: lanes.submit("a"), lanes.statistics):
            with pytest.raises(StoreError, match="was its schema dropped"):
                await call()


async def test_an_act_that_fails_halfway_is_undone_and_the_others_are_done(
    server: Server, namespace: str
) -> None:
    store = PostgresStore(server.dsn(), namespace=namespace)

    def halfway(engine: Any) -> None:
        engine.tables.put(PAUSES, "s", 1.0)
        raise ZeroDivisionError

    async def fail() -> None:
        with pytest.raises(ZeroDivisionError):
            await store._transact(halfway)

    async with open_durable_lanes(store, {}, worker=False) as lanes:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(fail)
                nursery.start_soon(lanes.submit, "a")
        assert (await lanes.statistics()).waiting == 3
        assert await store._read(lambda queues: queues.tables.of(PAUSES).get("s")) is None


async def test_an_error_of_the_program_is_not_taken_for_one_of_the_server(
    server: Server, namespace: str
) -> None:
    store = PostgresStore(server.dsn(), namespace=namespace)
    async with open_durable_lanes(store, {}, worker=False):
        with pytest.raises(psycopg.errors.SyntaxError):
            await store._transact(lambda engine: engine.tables._execute("SELEC"))
        with pytest.raises(psycopg.errors.SyntaxError):
            await store._read(lambda queues: queues.tables._execute("SELEC"), long=True)  # type: ignore[attr-defined]


async def test_check_finds_and_repairs_changes_from_outside(server: Server, namespace: str) -> None:
    store = PostgresStore(server.dsn(), namespace=namespace)
    async with open_durable_lanes(store, {}, worker=False) as lanes:
        await lanes.submit("a", key="k")
        await lanes.submit("a", key="l")
        server.run(f"UPDATE {namespace}.counts SET n = 7")
        server.run(f"UPDATE {namespace}.jobs SET key = 'k'")
        server.run(f"UPDATE {namespace}.deltas SET id = 'another'")
        report = await lanes.check(repair=True)
        assert set(report.problems) == {
            "the stored counts of jobs are wrong",
            "several jobs have the key 'k'",
        }
        assert report.repaired == 1
        assert (await lanes.statistics()).waiting == 2
        server.run(f"UPDATE {namespace}.jobs SET ready = NULL, key = NULL")
        server.run(f"UPDATE {namespace}.deltas SET id = 'another'")
        assert (await lanes.check(repair=True)).repaired == 2
        assert (await lanes.check()).problems == ()


async def test_notices_that_are_lost_are_covered_by_the_slow_look(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_lanes.durable._postgres.tables._notice", lambda *args: "x - 1")
    monkeypatch.setattr("trio_lanes.durable._postgres.listener.LOOKS_EVERY", (0.05, 0.1))
    echo = Echo()
    working, asking = (PostgresStore(server.dsn(), namespace=namespace) for _ in range(2))
    async with open_durable_lanes(working, {"echo": echo}):
        async with open_durable_lanes(asking, {}, worker=False) as lanes:
            with trio.fail_after(60):
                for n in range(3):
                    assert await (await lanes.submit("echo", n)).wait() == n


async def test_jobs_whose_time_is_over_leave_the_store_though_nothing_happens(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_lanes.durable._postgres.listener.LOOKS_EVERY", (0.05, 0.1))
    store, number = PostgresStore(server.dsn(), namespace=namespace), 2 * MAX_FORGOTTEN + 1
    async with open_durable_lanes(store, {"echo": Echo()}, result_ttl=1000) as lanes:
        jobs = await lanes.submit_many([Submission(name="echo") for _ in range(number)])
        for job in jobs:
            await job.wait()
        await lanes.wait_idle()
        with psycopg.connect(server.dsn(), autocommit=True) as other:
            count = f"SELECT count(*) FROM {namespace}.jobs"
            assert other.execute(count).fetchone() == (number,)
            soon = f"(SELECT {namespace}.store_time()) + 0.5"
            other.execute(f"UPDATE {namespace}.jobs SET due = {soon}".encode())
            with trio.fail_after(60):
                while other.execute(count).fetchone() != (0,):  # noqa: ASYNC110
                    await trio.sleep(0.05)


async def test_a_look_for_ended_jobs_begins_behind_the_time_at_which_there_was_none(
    server: Server, namespace: str
) -> None:
    store = PostgresStore(server.dsn(), namespace=namespace)

    def listener() -> Listener:
        link, named = PostgresLink(server.dsn(), 60), naming(namespace)
        hint, look = Mock(), Mock()
        return Listener("name", link, named, "channel", "me", hint, look, Mock())

    async with open_durable_lanes(store, {"echo": Echo()}) as lanes:
        await (await lanes.submit("echo")).wait()
    one, other = listener(), listener()
    assert not one._slow_look()[1]
    ago = f"UPDATE {namespace}.jobs SET due = (SELECT {namespace}.store_time()) - "
    server.run(f"{ago} {COMMITTED_WITHIN + 60}")
    assert not one._slow_look()[1]
    assert other._slow_look()[1]
    server.run(f"{ago} {COMMITTED_WITHIN / 2}")
    assert one._slow_look()[1]
    for each in (one, other):
        each._link.close()


LISTENS = -1


async def test_the_end_of_a_job_may_be_known_before_its_acceptance(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_lanes.durable._postgres.listener.LOOKS_EVERY", (3600.0, 3600.0))
    monkeypatch.setattr("trio_lanes.durable._contract.waiter.MAX_KNOWN", 1)
    working, asking = (PostgresStore(server.dsn(), namespace=namespace) for _ in range(2))
    late: list[Any] = []
    note, noted = trio.open_memory_channel[int](math.inf)
    wake = asking._wake_waiters

    def keep(*effects: Any) -> None:
        late.append(effects)

    def wake_and_note(ids: Iterable[int] | None = None) -> None:
        ended = None if ids is None else list(ids)
        wake(ended)
        for id in (LISTENS,) if ended is None else ended:
            note.send_nowait(id)

    announce = asking._announce
    monkeypatch.setattr(asking, "_announce", keep)
    monkeypatch.setattr(asking, "_wake_waiters", wake_and_note)
    async with open_durable_lanes(working, {"echo": Echo()}) as others:
        async with open_durable_lanes(asking, {}, worker=False) as lanes:
            with trio.fail_after(60):
                assert await noted.receive() == LISTENS
                for submitting in (others, lanes):  # the first is forgotten: one is remembered
                    job = await submitting.submit("echo", 7)
                    while await noted.receive() != job.id:
                        pass
                (effects,) = (effects for effects in late if job.id in effects[0])
                announce(*effects)
                assert await job.wait() == 7


async def test_a_transaction_that_began_before_a_client_listened_is_noticed(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_lanes.durable._postgres.listener.LOOKS_EVERY", (3600.0, 3600.0))
    working, asking = (PostgresStore(server.dsn(), namespace=namespace) for _ in range(2))
    committing, registered, read = threading.Event(), threading.Event(), threading.Event()
    may_end = trio.Event()
    commit, look, read_job = PostgresTables.commit, Listener._slow_look, asking._read

    def commit_late(tables: PostgresTables, more: bool, ended: Any) -> bool:
        if ended:
            committing.set()
            assert registered.wait(60)
            read.wait(0.5)  # at its registration, unless that waits for this transaction
        return commit(tables, more, ended)

    def look_late(listener: Listener) -> tuple[int, bool]:
        assert committing.wait(60)
        seen = look(listener)
        registered.set()
        return seen

    async def read_late(*what: Any, **how: Any) -> Any:
        began = registered.is_set()
        found = await read_job(*what, **how)
        if began:
            read.set()
        return found

    async def gated(payload: Any) -> Any:
        await may_end.wait()
        return payload

    with trio.fail_after(60):
        async with open_durable_lanes(working, {"gated": gated}) as lanes:
            id = (await lanes.submit("gated", 7)).id
            monkeypatch.setattr(PostgresTables, "commit", commit_late)
            monkeypatch.setattr(Listener, "_slow_look", look_late)
            monkeypatch.setattr(asking, "_read", read_late)
            async with open_durable_lanes(asking, {}, worker=False) as others:
                may_end.set()
                assert await others.job(id).wait() == 7


async def test_a_notice_names_no_job_if_very_many_have_ended(
    server: Server, namespace: str
) -> None:
    working, asking = (PostgresStore(server.dsn(), namespace=namespace) for _ in range(2))
    async with open_durable_lanes(working, {}, worker=False) as clearing:
        async with open_durable_lanes(asking, {}, worker=False) as lanes:
            async with trio.open_nursery() as nursery:
                for n in range(400):
                    nursery.start_soon(lanes.submit, "a", n)
            job = lanes.job((await lanes.jobs(limit=1))[0].id)

            async def wait() -> None:
                with pytest.raises(Exception, match=r"cleared|cancelled"):
                    await job.wait()

            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(wait)
                    await trio.testing.wait_all_tasks_blocked()
                    assert await clearing.clear("main", "cleared") == 400


async def test_calls_that_are_cancelled_are_done_as_a_whole_or_not_at_all(
    dsn: str, namespace: str
) -> None:
    await cancel_calls(PostgresStore(dsn, namespace=namespace))


@pytest.mark.parametrize("worker", [True, False])
def test_opening_that_is_cancelled_at_any_step_ends(
    server: Server, namespace: str, worker: bool
) -> None:
    cancel_open(lambda: PostgresStore(server.dsn(), namespace=namespace), worker=worker)


def test_opening_that_is_cancelled_while_the_server_stands_still_ends_within_the_patience(
    server: Server, namespace: str
) -> None:
    still: list[int] = []

    def stand_still() -> None:
        still.extend(pids(server, namespace))
        for pid in still:
            os.kill(pid, signal.SIGSTOP)

    def go_on() -> None:
        for pid in still:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        still.clear()

    cancel_open(
        lambda: PostgresStore(server.dsn(), namespace=namespace, patience=0.5),
        stand_still=stand_still,
        go_on=go_on,
    )


async def test_a_server_that_stands_still_when_it_is_connected_is_left_after_the_patience(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_cut, still = PostgresLink._let_cut, []

    def stand_still(link: PostgresLink, connection: psycopg.Connection) -> None:
        let_cut(link, connection)
        still.append(connection.info.backend_pid)
        os.kill(still[-1], signal.SIGSTOP)

    monkeypatch.setattr(PostgresLink, "_let_cut", stand_still)
    try:
        with trio.fail_after(30), pytest.raises(StoreUnavailableError):
            store = PostgresStore(server.dsn(), namespace=namespace, patience=0.3)
            async with open_durable_lanes(store, {}):
                raise AssertionError
    finally:
        for pid in still:
            os.kill(pid, signal.SIGCONT)


async def test_a_server_that_takes_no_connection_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dsn = f"postgresql://postgres@127.0.0.1:{silent.getsockname()[1]}/postgres"
        with trio.fail_after(30), pytest.raises(StoreUnavailableError):
            async with open_durable_lanes(PostgresStore(dsn, patience=0.3), {}):
                raise AssertionError
