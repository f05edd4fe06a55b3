"""Trips to the server, connections, and what is read again when another instance has written."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic, sleep
from typing import Any
from unittest.mock import ANY

import attrs
import psycopg
import pytest
import trio
import trio.testing

from trio_lanes import Coalesce, RateLimit
from trio_lanes.durable import (
    DurableSchedule,
    DurableState,
    Finish,
    LaneLimit,
    Opening,
    PostgresStore,
    StoreUnavailableError,
    SubmittedJob,
    Succeeded,
    open_durable_lanes,
)
from trio_lanes.durable._postgres.link import PostgresLink
from trio_lanes.durable._postgres.tables import _PUT_BATCH, PostgresTables
from trio_lanes.durable._rules.engine import Engine
from trio_lanes.durable.acts.inspection import AllStatistics, StatusOf
from trio_lanes.durable.acts.jobs import Enqueue
from trio_lanes.durable.acts.locks import Acquire, Release, Spend
from trio_lanes.durable.acts.logs import WriteLog
from trio_lanes.durable.acts.orders import Clear, Configure
from trio_lanes.durable.acts.runs import LendSlot, RegainSlot, Send
from trio_lanes.durable.acts.schedules import DropSchedule, FireSchedule, PutSchedule, SchedulesOf

from .server import Server

pytestmark = pytest.mark.real_processes


def opening(worker: bool = True, names: frozenset[str] = frozenset({"a"})) -> Opening:
    return Opening(
        names=names,
        lanes={"main": LaneLimit(4)},
        max_crashes=3,
        hold=False,
        result_ttl=100.0,
        lease_ttl=3600.0,
        worker=worker,
    )


@asynccontextmanager
async def joined(server: Server, namespace: str, **other: Any) -> AsyncIterator[PostgresStore]:
    """A store that has joined, and listens; ``other``: what else its `opening` has."""
    store = PostgresStore(server.dsn(), namespace=namespace)
    async with store.open(attrs.evolve(opening(), **other)):
        await store.join("me")
        await trio.sleep(0.2)  # it listens by then
        yield store
        await store.leave()


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The trips of all connections: each pipeline is one, and each statement outside of one."""
    made: list[str] = []
    execute, pipeline = psycopg.Connection.execute, psycopg.Connection.pipeline

    def counted(self: Any, statement: Any, *args: Any, **options: Any) -> Any:
        if self._pipeline is None:
            made.append(str(statement))
        return execute(self, statement, *args, **options)

    def piped(self: Any) -> Any:
        made.append("pipeline")
        return pipeline(self)

    monkeypatch.setattr(psycopg.Connection, "execute", counted)
    monkeypatch.setattr(psycopg.Connection, "pipeline", piped)
    monkeypatch.setattr("trio_lanes.durable._postgres.listener.LOOKS_EVERY", (9e9, 9e9))
    return made


async def test_a_batch_takes_one_trip_and_one_more_when_another_instance_has_written(
    server: Server, namespace: str, trips: list[str]
) -> None:
    store, other = (PostgresStore(server.dsn(), namespace=namespace) for _ in range(2))
    batch = [SubmittedJob(name="a", session=f"s{n}", key=f"k{n}") for n in range(9)]
    async with other.open(opening(worker=False)), store.open(opening()):
        await store.join("me")
        await trio.sleep(0.2)  # both listen by then
        trips.clear()
        await store.do(Enqueue(batch), "t1")
        assert trips == ["pipeline"]  # with a notice for the other
        trips.clear()
        claims = (await store.step(1, [], 3)).claims
        finished = [Finish(claim.id, claim.fence, Succeeded("1")) for claim in claims]
        claims = (await store.step(2, finished, 3)).claims
        assert len(claims) == 3
        finished = [Finish(claim.id, claim.fence, Succeeded("1")) for claim in claims]
        await other.do(Enqueue([SubmittedJob(name="a", session="s8")]), "t2")
        trips.clear()
        assert len((await store.step(3, finished, 3)).claims) == 3
        assert len(trips) == 2  # the first came late, and its answer had what was missed


@pytest.fixture
def undone(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Why batches were done again."""
    errors: list[BaseException] = []
    undo = PostgresTables._undo_to_try_again

    def noted(self: PostgresTables, error: Any) -> None:
        errors.append(error)
        undo(self, error)

    monkeypatch.setattr(PostgresTables, "_undo_to_try_again", noted)
    return errors


async def test_a_lock_is_asked_for_waited_for_and_given_back_in_one_trip_each(
    server: Server, namespace: str, trips: list[str], undone: list[BaseException]
) -> None:
    async with joined(server, namespace) as store:
        await store.do(Enqueue([SubmittedJob(name="b")]), "t0")
        trips.clear()
        asked = [await store.do(Acquire("k", False), f"t{n}") for n in range(1, 5)]
        (first, *_), (second, *_), (third, *_), (fourth, *_) = [one or (0,) for one in asked]
        assert [one is not None and one[1] is not None for one in asked] == [True, *[False] * 3]
        await store.do(Release(third, True), "t5")
        await store.do(Release(first, True), "t6")
        assert len(trips) == 6
        fence = await store.served(second)
        assert fence is not None
        assert fence > second
        await store.do(Release(third, True), "t7")  # it has ended
        trips.clear()
        await store.do(Release(second, True), "t8")
        assert len(trips) == 1
        assert await store.served(fourth) is not None
        assert await store.served(second) is None
        assert undone == []


async def test_what_is_taken_from_a_quota_takes_one_trip(
    server: Server, namespace: str, trips: list[str], undone: list[BaseException]
) -> None:
    limits = [RateLimit(9, per=3600.0, algorithm="sliding")]
    async with joined(server, namespace) as store:
        await store.do(Spend("q", limits, {"requests": 1}), "t0")  # the marks are read
        trips.clear()
        at_once = await store.do(Spend("q", limits, {"requests": 1}), "t1")
        waits = await store.do(Spend("q", limits, {"requests": 8}), "t2")
        assert at_once is not None
        assert waits is not None
        assert (at_once[0], waits[1]) == (0, None)
        await store.do(Release(waits[0], False), "t3")
        assert len(trips) == 3
        assert undone == []


async def test_a_run_ends_in_one_trip_though_it_has_not_taken_all_messages(
    server: Server, namespace: str, trips: list[str], undone: list[BaseException]
) -> None:
    async with joined(server, namespace) as store:
        await store.do(Enqueue([SubmittedJob(name="a")]), "t0")
        (claim,) = (await store.step(1, [], 1)).claims
        trips.clear()
        for number in range(1, 4):
            message = Send(None, claim.id, str(number), None)
            assert await store.do(message, f"t{number}") == (claim.id, number)
        assert len(trips) == 3
        assert await store.receive(claim.id, claim.fence, 0) == (1, "1")
        trips.clear()
        await store.step(2, [Finish(claim.id, claim.fence, Succeeded("1"))], 0)
        assert len(trips) == 1
        assert await store.sent(claim.id, 1)
        assert not await store.sent(claim.id, 2)
        assert undone == []


async def test_a_claim_of_a_new_lane_reads_nothing_where_its_batch_has_made_all_its_jobs(
    server: Server, namespace: str, trips: list[str], undone: list[BaseException]
) -> None:
    async with joined(server, namespace, lanes={"t:*": LaneLimit(4)}) as store:
        await store.do(Enqueue([SubmittedJob(name="b", lane="t:0")]), "t0")
        await store.step(1, [], 0)
        trips.clear()
        batch = [SubmittedJob(name="a", lane="t:1", priority=n % 2) for n in range(3)]

        def submit_and_claim(engine: Engine) -> list[int]:
            (_, second, _), step = engine.enqueue(batch), engine.step(store.instance, 2, [], 2)
            return [claim.id - second for claim in step.claims]

        first, later = await store._transact(submit_and_claim)
        assert first == 0
        assert later < 0
        assert len((await store.step(3, [], 9)).claims) == 1
        assert len(trips) == 2
        assert undone == []


async def test_schedules_are_set_and_fire_without_the_lock(
    server: Server, namespace: str, trips: list[str], undone: list[BaseException]
) -> None:
    async with joined(server, namespace) as store:
        await store.do(Enqueue([SubmittedJob(name="b")]), "t0")
        of = DurableSchedule(name="s", job=SubmittedJob(name="a"), every=9.0, next=5.0)
        trips.clear()
        await store.do(PutSchedule(of), "t1")
        assert len(trips) == 3  # the schedule of this name, the first that is due, the commit
        _, (first,) = await store.look(SchedulesOf("s", None))
        trips.clear()
        fires = FireSchedule(
            *("s", first.version, 5.0, 14.0, 5.0, 0, "skip", "{}", None), (first.job,)
        )
        assert await store.do(fires, "t2")
        assert len(trips) == 3
        assert len((await store.step(1, [], 9)).claims) == 1
        assert await store.do(DropSchedule("s"), "t3")
        assert (await store.look(SchedulesOf("s", None)))[1] == []
        assert undone == []


async def test_slots_that_are_lent_are_known_when_another_instance_has_written(
    server: Server, namespace: str
) -> None:
    store, other = (PostgresStore(server.dsn(), namespace=namespace) for _ in range(2))
    async with other.open(opening(worker=False)), store.open(opening()):
        await store.join("me")
        await store.do(Enqueue([SubmittedJob(name="a")] * 9), "t1")
        claims = (await store.step(1, [], 9)).claims
        assert len(claims) == 4
        assert await store.do(LendSlot(claims[0].id, claims[0].fence), "t2")
        await other.do(Enqueue([SubmittedJob(name="a")]), "t3")
        more = (await store.step(2, [], 9)).claims
        assert len(more) == 1
        await other.do(Enqueue([SubmittedJob(name="a")]), "t4")
        assert await store.do(RegainSlot(claims[0].id, claims[0].fence), "t5") is False
        await other.do(Enqueue([SubmittedJob(name="a")]), "t6")
        done = [Finish(more[0].id, more[0].fence, Succeeded("1"))]
        assert (await store.step(3, done, 9)).claims == ()
        assert await store.do(RegainSlot(claims[0].id, claims[0].fence), "t7") is True
        await store.leave()


async def test_a_ticket_that_comes_twice_in_one_transaction_is_one_act(
    server: Server, namespace: str
) -> None:
    store = PostgresStore(server.dsn(), namespace=namespace)
    ids = []

    async def enqueue() -> None:
        ids.append(await store.do(Enqueue([SubmittedJob(name="a", key="k")]), "same"))

    async with store.open(opening(worker=False)):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.look, StatusOf(1))  # the writer is busy while the others come
            for _ in range(5):
                nursery.start_soon(enqueue)
        assert len({tuple(one) for one in ids}) == 1
        assert (await store.look(AllStatistics())).waiting == 1


async def test_a_batch_takes_no_lock_to_look_up_what_it_has_not_changed(
    server: Server, namespace: str, undone: list[BaseException]
) -> None:
    store = PostgresStore(server.dsn(), namespace=namespace)
    batch = [SubmittedJob(name="a", coalesce=Coalesce(str(n)), delay=0.01) for n in range(3)]
    async with store.open(opening()):
        await store.join("me")
        await store.do(Enqueue([SubmittedJob(name="a")]), "t0")
        assert len((await store.step(1, [], 1)).claims) == 1  # the list of the lane is known
        undone.clear()
        ids = await store.do(Enqueue(batch), "t1")

        async def write(log: str) -> None:
            await store.do(WriteLog(log, "1"), log)

        await trio.sleep(0.02)
        step = await store.step(2, [], 3)
        assert {claim.id for claim in step.claims} == set(ids)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.look, StatusOf(1))  # the writer is busy while the others come
            for log in ("a", "b"):
                nursery.start_soon(write, log)
    assert undone == []


async def test_a_pause_that_ends_is_no_setting_any_more(server: Server, namespace: str) -> None:
    async with open_durable_lanes(PostgresStore(server.dsn(), namespace=namespace), {}) as lanes:
        await lanes.pause("session:s")
        await lanes.resume("session:s")
        await lanes.resume("session:s")
    query = f"SELECT count(*) FROM {namespace}.settings WHERE kind = 'pause'"
    assert server.run(query) == [(0,)]


async def test_ended_jobs_are_forgotten_and_more_of_them_at_once(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_lanes.durable._rules.engine.MAX_FORGOTTEN", 2)
    store = PostgresStore(server.dsn(), namespace=namespace)
    async with store.open(opening()):
        await store.join("me")
        await store.do(Enqueue([SubmittedJob(name="a")] * 5), "t")
        await store.do(Clear("main", None, "{}"), "c")
        server.run(f"UPDATE {namespace}.jobs SET due = 0")
        for number in range(1, 4):
            await store.step(number, [], 0)
        assert server.run(f"SELECT count(*) FROM {namespace}.jobs") == [(0,)]
        await store.leave()


async def test_answers_are_forgotten_when_they_cannot_be_asked_for_any_more(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_lanes.durable._rules.engine.FORGET_LANES_EVERY", 0.0)
    store = PostgresStore(server.dsn(), namespace=namespace)
    async with store.open(opening()):
        await store.join("me")
        await store.do(Enqueue([SubmittedJob(name="b")]), "t")
        server.run(f"UPDATE {namespace}.answers SET until = 0 WHERE ticket = 't'")
        for number in (1, 2):
            await store.step(number, [], 0)
        assert server.run(f"SELECT ticket FROM {namespace}.answers WHERE until = 0") == []
        await store.leave()


async def test_the_cache_is_dropped_when_it_has_grown(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_lanes.durable._sql.tables.QUEUES_KEPT", 2)
    ran = []

    async def run(payload: Any) -> None:
        ran.append(payload)
        await trio.lowlevel.checkpoint()

    store = PostgresStore(server.dsn(), namespace=namespace)
    async with open_durable_lanes(store, {"a": run}) as lanes:
        jobs = [await lanes.submit("a", n, session=f"s{n % 5}") for n in range(20)]
        for job in jobs:
            await job.wait()
        for n in range(5):
            assert [p for p in ran if p % 5 == n] == [n, n + 5, n + 10, n + 15]
        assert (await jobs[0].status()).state is DurableState.SUCCEEDED


async def test_payloads_that_no_claim_has_room_for_are_not_read(
    server: Server, namespace: str
) -> None:
    store, other = (PostgresStore(server.dsn(), namespace=namespace) for _ in range(2))
    large = f'"{"x" * 1_000_000}"'
    async with other.open(opening(worker=False)), store.open(opening()):
        await store.join("me")
        await store.do(Configure({"main": 20}, None, {}), "c")
        await other.do(Enqueue([SubmittedJob(name="a", payload=large)] * 12), "t1")
        claims = (await store.step(1, [], 20)).claims
        assert len(claims) == 4
        assert len((await store.step(2, [], 20)).claims) == 4
        await store.leave()


async def test_acts_that_wait_behind_a_call_for_too_long_are_refused(
    server: Server, namespace: str
) -> None:
    store = PostgresStore(server.dsn(), namespace=namespace, patience=2)
    go_on = threading.Event()

    async def slow() -> None:
        with pytest.raises(StoreUnavailableError) as caught:
            await store._transact(lambda engine: go_on.wait(60))
        assert not caught.value.unknown

    async def behind() -> None:
        with pytest.raises(StoreUnavailableError, match="has not answered") as caught:
            await store.do(Enqueue([]), "t")
        assert not caught.value.unknown

    async with store.open(opening(worker=False)):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(slow)
            await trio.sleep(0.1)
            nursery.start_soon(behind)
        go_on.set()
        with trio.fail_after(60):
            while True:
                try:
                    await store.do(Enqueue([]), "t")
                    break
                except StoreUnavailableError:  # a slow machine
                    await trio.sleep(0.01)


async def test_a_call_on_a_connection_that_does_not_answer_is_cut(server: Server) -> None:
    link = PostgresLink(server.dsn(), 0.2, long=True)
    link.cut()  # there is no connection yet
    with pytest.raises(psycopg.OperationalError):
        await link.call(lambda: link.connected().execute("SELECT pg_sleep(60)"))
    link.cut()
    link.close()
    # the server does not see it: a session that holds a snapshot would be there for other tests
    sleeping = "FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)'"
    assert server.run(f"SELECT pg_terminate_backend(pid) {sleeping}") == [(True,)]


def test_a_connection_that_cannot_be_set_up_is_closed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_lanes.durable._postgres.link.IDLE", -1)
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        PostgresLink(server.dsn(), 5.0).connected()


async def test_the_connection_for_notices_is_made_again(
    own_server: Server, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = PostgresStore(own_server.dsn(), namespace=namespace)
    async with store.open(opening(worker=False)):
        own_server.stop()
        await logged(caplog, "connection for notices is lost")
        await trio.sleep(1.2)  # one more try fails, which is not logged
        caplog.set_level("INFO")
        await trio.to_thread.run_sync(own_server.start)
        await logged(caplog, "connection for notices is back")
    assert caplog.text.count("is lost") == 1


async def logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    """Wait until a text is in the log."""
    with trio.fail_after(60):
        while text not in caplog.text:  # noqa: ASYNC110 - the log has no event
            await trio.sleep(0.02)


async def test_an_idle_listener_changes_nothing(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_lanes.durable._postgres.listener.LOOKS_EVERY", (0.01, 0.02))
    store = PostgresStore(server.dsn(), namespace=namespace)
    query = f"SELECT max(batch) FROM {namespace}.deltas"
    async with open_durable_lanes(store, {"a": trio.sleep}):
        await trio.sleep(0.3)
        before = server.run(query)
        await trio.sleep(0.5)
        assert server.run(query) == before


async def test_a_claim_reads_the_homes_of_the_jobs_on_a_ready_list_in_one_trip(
    server: Server, namespace: str, trips: list[str]
) -> None:
    home, other = (PostgresStore(server.dsn(), namespace=namespace) for _ in range(2))
    batch = [SubmittedJob(name="a", session=f"s{n}") for n in range(4)]
    of = attrs.evolve(opening(), affinity=3600.0)
    async with home.open(of), other.open(of):
        await home.join("home")
        await other.join("other")
        await trio.sleep(0.2)  # both listen by then
        await home.do(Enqueue(batch), "t1")
        claims = (await home.step(1, [], 9)).claims
        assert len(claims) == 4
        await home.step(2, [Finish(one.id, one.fence, Succeeded("1")) for one in claims], 9)
        await home.do(Enqueue([*batch, SubmittedJob(name="a", session="new")]), "t2")
        await other.step(1, [], 0)
        await home.do(Enqueue([SubmittedJob(name="b")]), "t2b")
        await other.look(AllStatistics())  # it knows what was written
        trips.clear()
        assert (await other.step(2, [], 9)).claims == ()  # the four slots of the lane are kept
        # the ready list, which no claim of this instance has read, the homes, and the commit
        assert trips[-3:] == ["pipeline", "pipeline", ANY]
        await home.do(Enqueue([SubmittedJob(name="a")]), "t3")
        assert [one.session for one in (await home.step(3, [], 2)).claims] == ["s0", "s1"]
        await home.leave()
        assert len((await other.step(3, [], 9)).claims) == 4


class Beginning:
    """Holds a transaction of a store between its beginning and the acts that may join it."""

    def __init__(self, store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self._number = threading.Event(), 0
        self._writer = store._writer
        self._joining_at = PostgresTables.joining_at
        monkeypatch.setattr(PostgresTables, "joining_at", lambda tables: self._held(tables))

    def _held(self, tables: PostgresTables) -> float | None:
        if self._number:
            self.begun.set()
            until = monotonic() + 60
            while self._writer._handed_over.qsize() < self._number and monotonic() < until:
                sleep(0.001)
            self._number = 0
        return self._joining_at(tables)

    async def __call__(self, *calls: Any) -> list[Any]:
        """Make the calls: the others while the transaction of the first begins. Return answers."""
        answers: list[Any] = [None] * len(calls)
        self.begun.clear()
        self._number = len(calls) - 1

        async def call(place: int) -> None:
            answers[place] = await calls[place]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, 0)
            await trio.to_thread.run_sync(self.begun.wait, 60)
            for place in range(1, len(calls)):
                nursery.start_soon(call, place)
                await trio.testing.wait_all_tasks_blocked()
        return answers


async def test_a_claim_that_is_asked_for_while_a_transaction_begins_joins_it(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_lanes.durable._postgres.tables.JOINED_FOR", 60.0)
    store = PostgresStore(server.dsn(), namespace=namespace)
    version = f"SELECT max(batch) FROM {namespace}.deltas"
    one = [SubmittedJob(name="a")]
    async with store.open(opening()):
        await store.join("me")
        await store.step(1, [], 0)
        at_once = Beginning(store, monkeypatch)
        ((before,),) = server.run(version)
        (id,), step = await at_once(store.do(Enqueue(one), "t1"), store.step(2, [], 9))
        assert [claim.id for claim in step.claims] == [id]
        assert server.run(version) == [(before + 1,)]
        # no other act joins, nor a claim that comes after one
        ids, others, step = await at_once(
            store.do(Enqueue(one), "t2"), store.do(Enqueue(one), "t3"), store.step(3, [], 9)
        )
        assert [claim.id for claim in step.claims] == [*ids, *others]
        assert server.run(version) == [(before + 3,)]
        monkeypatch.setattr("trio_lanes.durable._postgres.tables.JOINED_FOR", -1.0)
        (id,), step = await at_once(store.do(Enqueue(one), "t4"), store.step(4, [], 9))
        assert [claim.id for claim in step.claims] == [id]
        assert server.run(version) == [(before + 5,)]


async def test_a_claim_that_has_joined_a_transaction_that_fails_is_made_in_one_of_its_own(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_lanes.durable._postgres.tables.JOINED_FOR", 60.0)
    commit_acts, failures = PostgresTables.commit_acts, [1]

    def fails_once(tables: PostgresTables, *args: Any) -> None:
        if failures and len(args[1]) == 2:
            failures.pop()
            raise psycopg.errors.SerializationFailure
        commit_acts(tables, *args)

    monkeypatch.setattr(PostgresTables, "commit_acts", fails_once)
    store = PostgresStore(server.dsn(), namespace=namespace)
    async with store.open(opening()):
        await store.join("me")
        at_once = Beginning(store, monkeypatch)
        enqueue = store.do(Enqueue([SubmittedJob(name="a")]), "t1")
        (id,), step = await at_once(enqueue, store.step(1, [], 9))
        assert [claim.id for claim in step.claims] == [id]
        assert failures == []


async def test_what_is_told_after_a_lost_commit_takes_its_place_though_nothing_has_changed(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_the_way: list[Any] = []

    def lose(tables: PostgresTables, values: Any, notice: str | None) -> list[Any]:
        on_the_way.extend(values)
        tables._connection.close()
        raise psycopg.OperationalError("the connection was lost")

    newest = f"SELECT max(batch) FROM {namespace}.deltas"
    store = PostgresStore(server.dsn(), namespace=namespace)
    async with store.open(opening(worker=False)):  # a worker writes to each new session
        await store.do(Enqueue([SubmittedJob(name="a")]), "t1")
        with monkeypatch.context() as patched:
            patched.setattr(PostgresTables, "_send_free", lose)
            with pytest.raises(StoreUnavailableError) as caught:
                await store.do(Enqueue([SubmittedJob(name="a")]), "t2")
        assert caught.value.unknown
        ((before,),) = server.run(newest)
        store.instance = "gone"  # so its step changes nothing
        assert (await store.step(1, [], 9)).claims == ()
        assert server.run(newest) == [(before + 1,)]
        with psycopg.connect(server.dsn(), autocommit=True) as late:
            statement = store._named(_PUT_BATCH)
            ((what, *_), *_) = late.execute(statement, on_the_way).fetchall()
        assert what == "late"
        await store.step(2, [], 9)
        assert server.run(newest) == [(before + 1,)]  # nothing is on the way any more
        assert (await store.look(AllStatistics())).waiting == 1
