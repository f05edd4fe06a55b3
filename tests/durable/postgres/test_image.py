"""Caches that deltas have brought up to date, against the tables."""

import math
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import attrs
import psycopg
import pytest
import trio

from trio_lanes import Coalesce, LaneFullError, RateLimit
from trio_lanes.durable import (
    Died,
    DurableState,
    Finish,
    LaneLimit,
    Opening,
    PostgresStore,
    SubmittedJob,
    Succeeded,
)
from trio_lanes.durable._contract.records import Selection
from trio_lanes.durable._contract.state import DEAD_LETTERS, ENDED
from trio_lanes.durable._postgres.batch import (
    DELTAS_KEPT,
    MAX_BEHIND,
    REMOVED_AT_ONCE,
    STEPS_KEPT,
    SUMMED_EVERY,
)
from trio_lanes.durable._postgres.image import HEAD, Image
from trio_lanes.durable._postgres.tables import PostgresTables
from trio_lanes.durable._rules.counts import Counts
from trio_lanes.durable._rules.running import Running
from trio_lanes.durable._sql.list_front import ListFront
from trio_lanes.durable._sql.rows import COLUMNS
from trio_lanes.durable._sql.small_tables import SELECT_REQUESTS, SETTINGS
from trio_lanes.durable._sql.tables import DUE, SPECIAL, SUSPECTED
from trio_lanes.durable._wire.codec import decode
from trio_lanes.durable.acts.inspection import AllStatistics, Check, Repair, StatusOf
from trio_lanes.durable.acts.jobs import Enqueue
from trio_lanes.durable.acts.locks import Acquire, Release
from trio_lanes.durable.acts.orders import Configure, Purge
from trio_lanes.durable.testing import Life, simulate

from . import in_loop
from .server import Server

pytestmark = pytest.mark.real_processes


def _cached(front: ListFront) -> list[int]:
    return [job.id for place, job in front._entries if front._place_of(job) == place]


def _shown(running: Running) -> Any:
    holding = {lane: ids for lane, ids in running._holding.items() if ids}
    not_lent = {instance: ids for instance, ids in running._not_lent.items() if ids}
    return holding, not_lent, set(running._special)


def compare(tables: Any) -> None:
    """Compare the cache with the tables, unless another instance has committed meanwhile."""
    try:
        compare_at_rest(tables)
    except AssertionError:
        if tables._execute(HEAD).fetchone()[0] == tables._version:
            raise


def compare_at_rest(tables: Any) -> None:
    cache, rows = tables._cache, tables._rows
    if cache.counts is not None:
        true = Counts(tables._live_counts().items())
        assert cache.counts.all() == true.all()
        assert cache.counts.waiting == true.waiting
        assert {k: n for k, n in cache.counts.bound.items() if n} == {
            k: n for k, n in true.bound.items() if n
        }
    if cache.runs is not None:
        fresh = Running(tables._execute(tables._sets()), rows.select(SPECIAL))
        assert _shown(cache.runs) == _shown(fresh)
    if cache.suspected is not None:
        assert set(cache.suspected) == {lane for (lane,) in tables._execute(SUSPECTED)}
    (due,) = tables._execute(DUE).fetchone()
    if due is not None and cache.parked_until is not None:
        assert cache.parked_until <= due
    settings: dict[str, dict[str, Any]] = {}
    for kind, name, data in tables._execute(SETTINGS):
        settings.setdefault(kind, {})[name] = decode(data)
    assert {kind: of for kind, of in tables._settings.items() if of} == settings
    found = tables._execute(f"{SELECT_REQUESTS}true ORDER BY id")
    assert [attrs.astuple(one) for one in tables.requests_of(None)] == list(found)
    for meter, marks in tables._marks.items():
        found = tables._execute(
            "SELECT time, starts FROM main.marks WHERE [meter] = :meter ORDER BY number",
            {"meter": meter},
        )
        assert list(map(tuple, marks)) == list(found)
    known = {id: job for id in [*rows._known._references] if (job := rows.known(id)) is not None}
    found = tables._execute(
        f"SELECT {', '.join(COLUMNS)} FROM main.jobs WHERE id = ANY(%s)", ([*known],)
    ).fetchall()
    gone = set(known) - {row[0] for row in found}
    assert all(known[id].state in ENDED for id in gone)  # they were forgotten
    for row in found:
        job = known[row[0]]
        assert [getattr(job, column) for column in COLUMNS] == [
            job.state.__class__(value) if column == "state" else value
            for column, value in zip(COLUMNS, row, strict=True)
        ]
    for session, front in cache.queues.items():
        where = "[session] = :session AND place IS NOT NULL ORDER BY place"
        _same(front, rows.select(where, {"session": session}))
    for (lane, priority, name, ring), front in cache.lists.items():
        where = (
            "[lane] = :lane AND priority = :priority AND [name] = :name AND [ring] = :ring"
            " AND ready IS NOT NULL AND shelf = 0 ORDER BY ready"
        )
        of = {"lane": lane, "priority": priority, "name": name, "ring": ring}
        _same(front, rows.select(where, of))


def _same(front: ListFront, jobs: list[Any]) -> None:
    cached, true = _cached(front), [job.id for job in jobs]
    assert cached == true[: len(cached)]
    assert cached == true or not front.complete


@pytest.fixture
def caught_up(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Compare after each look at deltas and each batch that was undone; note the looks: whether
    they brought the cache up to date."""
    looks: list[bool] = []
    catch_up: Callable[..., bool] = Image._catch_up

    def checked(tables: Any, found: Any, head: Any) -> bool:
        before = tables._version
        done = catch_up(tables, found, head)
        if before not in (None, head.batch):
            looks.append(done)
        if done and before != head.batch:
            compare(tables)
        return done

    def checked_undo(tables: Any) -> None:
        undo(tables)
        newest = tables._execute(HEAD).fetchone()
        if newest[0] == tables._version:
            compare(tables)

    undo = PostgresTables.undo
    monkeypatch.setattr(Image, "_catch_up", checked)
    monkeypatch.setattr(PostgresTables, "undo", checked_undo)
    return looks


@pytest.mark.seeds(4)
def test_a_cache_that_deltas_brought_up_to_date_has_what_the_tables_have(
    lives: in_loop.Life, caught_up: list[bool], seed: int
) -> None:
    with lives.in_loop():
        assert simulate(Life(seed), lives.open) == []
    assert caught_up.count(True) > 20


# By hand


def opening(worker: bool = True, hold: bool = False, **lanes: LaneLimit) -> Opening:
    return Opening(
        names=frozenset({"a"}),
        lanes={"main": LaneLimit(9), **lanes},
        max_crashes=3,
        hold=hold,
        result_ttl=100.0,
        lease_ttl=3600.0,
        worker=worker,
    )


@asynccontextmanager
async def opened(
    server: Server, namespace: str, number: int, hold: bool = False, **lanes: LaneLimit
) -> AsyncIterator[list[PostgresStore]]:
    """Open stores of a namespace, with an instance each, that listen to each other."""
    stores = [PostgresStore(server.dsn(), namespace=namespace) for _ in range(number)]
    listening = f"SELECT count(*) FROM {namespace}.listeners"
    async with AsyncExitStack() as stack:
        for place, store in enumerate(stores):
            await stack.enter_async_context(store.open(opening(hold=hold, **lanes)))
            await store.join(f"me{place}")
        with trio.fail_after(60):
            while server.run(listening) != [(number,)]:  # noqa: ASYNC110 - it tells nobody
                await trio.sleep(0.01)
        for store in (*stores, *stores):  # each has the cache of a batch that has a delta
            await store.do(Enqueue([SubmittedJob(name="none")]), "")
        yield stores


async def enqueue(store: PostgresStore, *jobs: SubmittedJob) -> list[int]:
    return [*await store.do(Enqueue(jobs), "")]


def job(lane: str = "main", **fields: Any) -> SubmittedJob:
    return SubmittedJob(name="a", lane=lane, **fields)


async def test_who_looks_after_many_batches_has_the_last_word_on_each_job(
    server: Server, namespace: str, caught_up: list[bool]
) -> None:
    async with opened(server, namespace, 3) as (one, two, three):
        await one.step(1, [], 0)
        ids = await enqueue(two, *[job(session=f"s{n % 2}") for n in range(6)])
        claims = (await two.step(1, [], 9)).claims
        assert [claim.id for claim in claims] == ids[:2]
        await two.leave()  # its claims are given back
        again = (await three.step(1, [], 9)).claims
        assert [claim.id for claim in again] == ids[:2]
        done = [Finish(again[0].id, again[0].fence, Succeeded("1"))]
        await three.step(2, done, 0)
        caught_up.clear()
        assert [claim.id for claim in (await one.step(2, [], 9)).claims] == [ids[2]]
        assert caught_up == [True]


async def test_a_dead_job_that_keeps_its_place_closes_its_session_on_other_instances_too(
    server: Server, namespace: str, caught_up: list[bool]
) -> None:
    async with opened(server, namespace, 2, hold=True) as (one, two):
        await enqueue(two, job(session="s"), job(session="s"))  # it knows the queue
        (claim,) = (await one.step(1, [], 9)).claims
        caught_up.clear()
        error = '{"type": "E", "message": "no", "traceback": ""}'
        await one.step(2, [Finish(claim.id, claim.fence, Died(error))], 0)
        await enqueue(two, job(session="s"))
        assert (await two.step(1, [], 9)).claims == ()
        assert caught_up[:1] == [True]
        assert (await two.look(Check())).problems == ()


async def test_what_another_instance_has_started_counts_for_the_rate_of_a_lane(
    server: Server, namespace: str, caught_up: list[bool]
) -> None:
    rated = LaneLimit(9, rates=(RateLimit(4, per=3600.0, algorithm="sliding"),))
    async with opened(server, namespace, 2, rated=rated) as (one, two):
        id, *_ = await enqueue(one, *[job("rated") for _ in range(9)])
        assert len((await one.step(1, [], 1)).claims) == 1
        caught_up.clear()
        assert len((await two.step(1, [], 2)).claims) == 2
        await one.look(StatusOf(id))  # so it hears of the starts before it charges its own
        assert len((await one.step(2, [], 9)).claims) == 1
        assert len((await two.step(2, [], 9)).claims) == 0
        more = LaneLimit(9, rates=(RateLimit(5, per=3600.0, algorithm="sliding"),))
        await one.do(Configure({"rated": more}, None, {}), "")
        assert len((await two.step(3, [], 9)).claims) == 1
        assert caught_up[:3] == [True] * 3


async def test_requests_for_a_lock_are_known_to_instances_that_have_not_made_them(
    server: Server, namespace: str, caught_up: list[bool]
) -> None:
    async with opened(server, namespace, 2) as (one, two):
        first, second = [await store.do(Acquire("k", False), "") for store in (one, two)]
        assert first is not None
        assert second is not None
        assert first[1] is not None
        assert second[1] is None
        later = PostgresStore(server.dsn(), namespace=namespace)
        async with later.open(opening()):
            (lock,) = (await later.look(AllStatistics())).locks
            assert (lock.holding, lock.waiting) == (1, 1)
        await one.do(Release(first[0], True), "")
        assert await two.served(second[0]) is not None
        assert caught_up
        assert all(caught_up)


async def test_jobs_that_ran_in_a_crash_elsewhere_are_known_as_suspects(
    server: Server, namespace: str, caught_up: list[bool]
) -> None:
    async with opened(server, namespace, 3, other=LaneLimit(9)) as (one, two, three):
        await one.step(1, [], 0)
        await enqueue(two, job(), job("other"))
        assert len((await two.step(1, [], 9)).claims) == 2
        await one.step(2, [], 0)
        await three.declare_dead("me1")
        caught_up.clear()
        assert (await one.step(3, [], 9)).claims
        assert caught_up == [True]


async def test_a_job_with_long_texts_is_read_by_who_wants_it(
    server: Server, namespace: str, caught_up: list[bool]
) -> None:
    text = f'"{"x" * 100_000}"'
    async with opened(server, namespace, 2) as (one, two):
        (first,) = await enqueue(one, job(session="s"))
        (held,) = (await one.step(1, [], 9)).claims
        assert held.id == first
        await two.step(1, [], 0)
        caught_up.clear()
        second, third = await enqueue(one, job(payload=text), job(payload=text, session="s"))
        (claim,) = (await two.step(2, [], 9)).claims
        assert (claim.id, claim.payload) == (second, text)
        assert (await one.step(2, [], 9)).claims == ()
        await two.step(3, [Finish(second, claim.fence, Succeeded("1"))], 0)
        await one.step(3, [Finish(first, held.fence, Succeeded("1"))], 0)
        assert [claim.id for claim in (await two.step(4, [], 9)).claims] == [third]
        assert (await one.step(4, [], 9)).claims == ()
        assert len(caught_up) >= 3
        assert all(caught_up)


async def test_what_comes_after_a_run_with_long_texts_is_taken_in_without_the_runs(
    server: Server, namespace: str, caught_up: list[bool]
) -> None:
    text = f'"{"x" * 100_000}"'
    async with opened(server, namespace, 2) as (one, two):
        await one.step(1, [], 0)
        await enqueue(two, job(payload=text), job())
        long, short = (await two.step(1, [], 9)).claims
        caught_up.clear()
        await enqueue(one, job(session="s"))
        await two.step(2, [Finish(short.id, short.fence, Succeeded("1"))], 0)
        await enqueue(one, job(session="s"))
        assert len((await one.step(2, [], 9)).claims) == 1
        await two.step(3, [Finish(long.id, long.fence, Succeeded("1"))], 0)
        await one.step(3, [], 0)
        assert len(caught_up) >= 3
        assert all(caught_up)


async def test_jobs_that_are_purged_elsewhere_are_gone(
    server: Server, namespace: str, caught_up: list[bool]
) -> None:
    error = '{"type": "ValueError", "message": "no", "traceback": ""}'
    async with opened(server, namespace, 2) as (one, two):
        await enqueue(one, job(session="s"), job(session="s"))
        (first,) = (await one.step(1, [], 9)).claims
        await one.step(2, [Finish(first.id, first.fence, Died(error))], 0)
        await two.step(1, [], 0)
        caught_up.clear()
        assert await one.do(Purge(Selection(states=DEAD_LETTERS)), "") == 1
        assert len((await two.step(2, [], 9)).claims) == 1
        assert caught_up == [True, True]


@pytest.mark.parametrize("bound", ["MAX_NAMED", "MAX_DELTA"])
async def test_who_is_not_told_all_reads_all_anew(
    server: Server,
    namespace: str,
    caught_up: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    bound: str,
) -> None:
    async with opened(server, namespace, 2) as (one, two):
        await two.step(1, [], 0)
        monkeypatch.setattr(f"trio_lanes.durable._postgres.delta.{bound}", 1)
        caught_up.clear()
        ids = await enqueue(one, job(), job())
        more = await enqueue(one, job())
        assert [claim.id for claim in (await two.step(2, [], 9)).claims] == ids + more
        assert caught_up[-1] is False


async def test_who_is_too_far_behind_reads_all_anew(
    server: Server, namespace: str, caught_up: list[bool]
) -> None:
    async with opened(server, namespace, 2) as (one, two):
        await two.step(1, [], 0)
        caught_up.clear()
        for _ in range(MAX_BEHIND + 2):
            await enqueue(one, job())
        assert len((await two.step(2, [], 9)).claims) == 9
        assert caught_up[-1] is False


async def test_a_repair_is_nothing_that_a_delta_says(server: Server, namespace: str) -> None:
    async with opened(server, namespace, 2) as (one, two):
        ids = await enqueue(one, job())
        await two.step(1, [], 0)
        await one.step(1, [], 0)
        server.run(f"UPDATE {namespace}.counts SET n = 7 WHERE name = 'a'")
        assert await one.do(Repair(), "") == 1
        assert [claim.id for claim in (await two.step(2, [], 9)).claims] == ids
        assert (await two.look(AllStatistics())).running == 1


async def test_a_cache_of_a_batch_that_the_server_has_lost_is_dropped(
    server: Server, namespace: str, caught_up: list[bool]
) -> None:
    """The server has gone back to older data, and has made as many batches as before."""
    async with opened(server, namespace, 2) as (one, two):
        await two.step(1, [], 0)
        await one.step(1, [], 0)
        await two.step(2, [], 0)
        server.run(
            f"UPDATE {namespace}.deltas SET id = 'of another time' WHERE batch ="
            f" (SELECT max(batch) FROM {namespace}.deltas)"
        )
        await enqueue(one, *[job() for _ in range(9)])
        server.run(
            f"UPDATE {namespace}.settings SET data = replace(data, '9', '8')"
            " WHERE kind = 'lane' AND name = 'main'"
        )
        assert len((await two.step(3, [], 9)).claims) == 8


async def test_deltas_and_steps_are_removed_in_portions_and_numbers_of_jobs_are_summed_up(
    server: Server, namespace: str
) -> None:
    def number(of: str) -> int:
        ((found,),) = server.run(f"SELECT count(*) FROM {namespace}.{of}")
        return int(found)

    store = PostgresStore(server.dsn(), namespace=namespace)
    async with store.open(opening()):
        await store.join("me")
        for step in range(1, 2 * STEPS_KEPT + 1):
            await store.step(step, [], 0)
        assert number("steps") == 1
        for _ in range(SUMMED_EVERY):
            await enqueue(store, job())
        assert number("counts") < SUMMED_EVERY
        assert (await store.look(AllStatistics())).waiting == SUMMED_EVERY
        while number("deltas WHERE batch = 0"):
            assert number("deltas") < DELTAS_KEPT + REMOVED_AT_ONCE
            await enqueue(store, job())
        assert DELTAS_KEPT <= number("deltas") < DELTAS_KEPT + REMOVED_AT_ONCE
        assert await store.do(Repair(), "") == 0


FORMER = """
DROP FUNCTION put_batch, missed, put, store_time CASCADE;
ALTER TABLE meta ADD notices bigint NOT NULL DEFAULT 0, ADD sequence bigint NOT NULL DEFAULT 0,
    ADD clock double precision NOT NULL DEFAULT 0, ADD ahead double precision NOT NULL DEFAULT 0;
UPDATE meta SET (version, sequence, clock, ahead) =
    (SELECT batch, sequence, clock, ahead FROM deltas ORDER BY batch DESC LIMIT 1);
CREATE FUNCTION store_time() RETURNS double precision LANGUAGE sql VOLATILE AS
    $$ SELECT greatest(clock, server_time() + ahead) FROM meta $$;
DROP TABLE deltas, steps;
CREATE TABLE numbers AS SELECT lane, state, name, sum(n)::bigint AS n FROM counts GROUP BY 1, 2, 3;
DROP TABLE counts;
ALTER TABLE numbers RENAME TO counts;
INSERT INTO settings VALUES ('step', 'gone', '{}');
"""
"""From the tables of today to those of schema 3 and 4."""


@pytest.mark.parametrize("schema", [3, 4])
async def test_a_store_of_a_former_schema_goes_on(
    server: Server, namespace: str, schema: int
) -> None:
    store = PostgresStore(server.dsn(), namespace=namespace)
    async with store.open(opening()):
        ids = await enqueue(store, job(), job(key="k"))
    deltas = "CREATE TABLE deltas (batch bigint);" if schema == 4 else ""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(f"SET search_path = {namespace}".encode())
        connection.execute((FORMER + deltas).encode())
        connection.execute("UPDATE meta SET schema_version = %s", (schema,))
    async with store.open(opening()):
        await store.join("me")
        assert await enqueue(store, job(key="k")) == ids[1:]
        assert [claim.id for claim in (await store.step(1, [], 9)).claims] == ids
        assert (await store.look(AllStatistics())).running == 2
        assert await store.do(Repair(), "") == 0


# ---- batches that come late


async def test_a_batch_that_came_late_has_changed_nothing_and_is_done_again(
    server: Server, namespace: str, caught_up: list[bool]
) -> None:
    """Each kind of change leaves the cache again: new and changed jobs, counts, settings, marks."""
    rated = {"rated": LaneLimit(9, rates=(RateLimit(9, per=100.0, algorithm="sliding"),))}
    async with opened(server, namespace, 2, **rated) as (one, two):
        for number in range(1, 4):
            ids = await enqueue(one, job(session="s"), job(lane="rated"), job(key=f"k{number}"))
            claims = (await two.step(2 * number, [], 9)).claims
            more = (await one.step(2 * number, [], 9)).claims
            assert sorted(claim.id for claim in (*claims, *more)) == sorted(ids)
            for store, claimed in ((two, claims), (one, more)):
                ended = [Finish(claim.id, claim.fence, Succeeded("1")) for claim in claimed]
                await store.step(2 * number + 1, ended, 0)
                await store.do(Configure({"main": 9 + number}, None, {}), "")
        assert (await one.look(AllStatistics())).running == 0
        assert any(store.activity().late for store in (one, two))


@pytest.mark.parametrize("guess", ["key", "session", "ticket"])
async def test_a_guess_that_is_wrong_is_looked_up(
    server: Server, namespace: str, caught_up: list[bool], guess: str
) -> None:
    async with opened(server, namespace, 2) as (one, two):
        await two.step(1, [], 0)
        (first,) = await one.do(Enqueue([job(key="k", session="s")]), "same")
        await two.do(Enqueue([job()]), "")  # has seen the batch, which had the job and no front
        if guess == "ticket":
            assert await two.do(Enqueue([job(key="k", session="s")]), "same") == (first,)
        elif guess == "key":
            assert await enqueue(two, job(key="k", session="s")) == [first]
        else:
            two._acts._cache.queues.clear()
            (second,) = await enqueue(two, job(session="s"))
            claims = (await two.step(2, [], 9)).claims
            assert first in [claim.id for claim in claims]
            assert second not in [claim.id for claim in claims]


async def test_a_refusal_that_rests_on_a_guess_is_looked_up_before_it_is_told(
    server: Server, namespace: str, caught_up: list[bool]
) -> None:
    async with opened(server, namespace, 2, full=LaneLimit(1, max_waiting=0)) as (one, two):
        await two.step(1, [], 0)
        with pytest.raises(LaneFullError):
            await two.do(Enqueue([job("full", session="s")]), "")
        assert await enqueue(one, job(key="k", session="s")) == await enqueue(
            two, job(key="k", session="s")
        )


async def test_a_guess_that_is_wrong_under_the_lock_leaves_the_cache_as_it_was(
    server: Server, namespace: str, caught_up: list[bool]
) -> None:
    async with opened(server, namespace, 2) as (one, two):
        (first,) = await enqueue(one, job(key="k", session="s"))
        await two.step(1, [], 0)
        two._acts.hint(lock=True)
        assert (await enqueue(two, job(), job(key="k", session="s")))[1] == first
        claims = (await two.step(2, [], 9)).claims
        assert len(claims) == 2
        assert claims[0].id == first


async def test_what_waits_takes_the_fields_of_the_last_submission_over(
    server: Server, namespace: str
) -> None:
    async with opened(server, namespace, 2) as (one, two):
        coalesce = Coalesce("k", keep="latest")
        ids = [await enqueue(one, job(payload=str(n), coalesce=coalesce)) for n in range(2)]
        assert ids[0] == ids[1]
        (claim,) = (await two.step(1, [], 9)).claims
        assert (claim.payload, claim.timeout) == ("1", math.inf)


async def test_a_question_is_answered_though_others_commit_between_any_two_of_its_reads(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    another = (
        f"INSERT INTO {namespace}.deltas"
        " SELECT batch + 1, 'other' || batch, sequence, clock, ahead, notices,"
        " '[[], [], [], [], [], [], [], false]'"
        f" FROM {namespace}.deltas ORDER BY batch DESC LIMIT 1"
    )
    look = PostgresTables._look

    def look_and_be_late(tables: PostgresTables, asked: Any) -> bool:
        found = look(tables, asked)
        server.run(another)
        return found

    async with opened(server, namespace, 2) as (one, two):
        (id,) = await enqueue(one, job())
        await two.step(1, [], 0)
        monkeypatch.setattr(PostgresTables, "_look", look_and_be_late)
        status = await two.look(StatusOf(id))
        assert status is not None
        assert status.state is DurableState.WAITING
        monkeypatch.undo()
        assert [claim.id for claim in (await two.step(2, [], 9)).claims] == [id]
