"""The SQL function `submit`: a job that is accepted in the transaction of its submitter."""

import json
import math
from typing import Any

import psycopg
import pytest
import trio

from trio_lanes import LaneConfig, RateLimit
from trio_lanes.durable import (
    DurableLanes,
    DurableState,
    KeyConflictError,
    PostgresStore,
    RetryPolicy,
    open_durable_lanes,
)
from trio_lanes.durable._postgres.tables import PostgresTables

from .server import Server

pytestmark = pytest.mark.real_processes


@pytest.fixture
async def connection(server: Server, namespace: str) -> Any:
    """A user's connection to a database that has a store, and a table of the user's own."""
    async with open_durable_lanes(PostgresStore(server.dsn(), namespace=namespace), {}):
        pass
    with psycopg.connect(server.dsn()) as connection:
        connection.execute(f"SET search_path = {namespace}".encode())
        connection.execute("CREATE TABLE orders (id int)")
        connection.commit()
        yield connection


async def taken_in(connection: psycopg.Connection, lanes: DurableLanes) -> None:
    """Commit, and wait until the submissions have been taken in."""
    connection.commit()
    with trio.fail_after(60):
        while connection.execute("SELECT 1 FROM submissions").fetchall():
            await lanes.pause_for("main", 0)
    connection.commit()


async def test_the_row_and_the_job_are_there_or_neither(
    server: Server, namespace: str, connection: psycopg.Connection
) -> None:
    done = trio.Event()

    async def ship(payload: Any) -> None:
        assert payload == {"order": 2}
        done.set()

    store = PostgresStore(server.dsn(), namespace=namespace)
    async with open_durable_lanes(store, {"ship": ship}) as lanes:
        connection.execute("INSERT INTO orders VALUES (1)")
        connection.execute("""SELECT submit('ship', '{"order": 1}', session => 'alice')""")
        connection.rollback()
        connection.execute("INSERT INTO orders VALUES (2)")
        connection.execute("""SELECT submit('ship', '{"order": 2}', session => 'alice')""")
        assert not done.is_set()
        connection.commit()
        with trio.fail_after(60):
            await done.wait()
        assert (await lanes.statistics()).waiting == 0
    assert connection.execute("SELECT id FROM orders").fetchall() == [(2,)]


async def test_jobs_of_a_transaction_are_taken_in_in_order_with_all_their_options(
    server: Server, namespace: str, connection: psycopg.Connection
) -> None:
    retry = RetryPolicy(max_attempts=7).to_json()
    connection.execute("SELECT submit('a', '1', 's', 'cron', 1, 'k', 0, 9, %s)", (retry,))
    for n in range(20):
        connection.execute("SELECT submit('a', %s, session => 's')", (str(n),))
    connection.execute("SELECT submit('later', delay => 3600)")
    connection.commit()
    store = PostgresStore(server.dsn(), namespace=namespace)
    async with open_durable_lanes(store, {}, worker=False) as lanes:
        first = await lanes.submit("a", 1, session="s", lane="cron", priority=1, key="k")
        jobs = await lanes.jobs()
        assert jobs[0].id == first.id
        assert (jobs[0].name, jobs[0].session, jobs[0].lane, jobs[0].priority, jobs[0].key) == (
            ("a", "s", "cron", 1, "k")
        )
        assert [job.name for job in jobs[1:]] == ["a"] * 20 + ["later"]
        assert jobs[-1].state is DurableState.PARKED
    rows = connection.execute("SELECT payload, timeout, retry FROM jobs ORDER BY place").fetchall()
    assert [row[0] for row in rows[1:21]] == [str(n) for n in range(20)]
    assert rows[0] == ("1", 9, retry)


async def test_a_start_takes_the_cost_that_was_given_to_the_function(
    server: Server, namespace: str, connection: psycopg.Connection
) -> None:
    rates = [RateLimit(10), RateLimit(10, unit="tokens")]
    limits = {"main": LaneConfig(concurrency=0, rate=rates)}
    store = PostgresStore(server.dsn(), namespace=namespace)
    async with open_durable_lanes(store, {}, limits) as lanes:
        connection.execute("SELECT submit('a')")
        connection.execute("SELECT submit('a', cost => '3')")
        connection.execute("""SELECT submit('a', cost => '{"tokens": 5}')""")
        connection.execute("""SELECT submit('a', cost => '{"requests": 0, "no unit": 5}')""")
        await taken_in(connection, lanes)
        assert (await lanes.statistics()).waiting == 4
    costs = connection.execute("SELECT cost FROM jobs ORDER BY id").fetchall()
    assert [json.loads(cost) for (cost,) in costs] == [
        {"requests": 1},
        {"requests": 3},
        {"requests": 1, "tokens": 5},
        {"requests": 0, "no unit": 5},
    ]


async def test_a_job_for_a_lane_of_a_template_is_accepted(
    server: Server, namespace: str, connection: psycopg.Connection
) -> None:
    store = PostgresStore(server.dsn(), namespace=namespace)
    async with open_durable_lanes(store, {}, {"tenant:*": 1}) as lanes:
        connection.execute("SELECT submit('a', lane => 'tenant:a')")
        connection.commit()
        for lane in ("tenant:*", "tenant", "other"):
            with pytest.raises(psycopg.Error, match="there is no lane"):
                connection.execute("SELECT submit('a', lane => %s)", (lane,))
            connection.rollback()
        await lanes.pause_for("tenant:*", 0)
        assert (await lanes.statistics()).lanes["tenant:a"].waiting == 1


async def test_a_key_that_is_known_is_the_same_job_and_a_conflict_is_kept_for_a_person(
    server: Server, namespace: str, connection: psycopg.Connection
) -> None:
    store = PostgresStore(server.dsn(), namespace=namespace)
    async with open_durable_lanes(store, {}, worker=False) as lanes:
        job = await lanes.submit("a", 1, key="k")
        connection.execute("SELECT submit('a', '1', key => 'k')")
        connection.execute("SELECT submit('a', '2', key => 'k')")
        await taken_in(connection, lanes)
        assert [one.id for one in await lanes.jobs(states=[DurableState.WAITING])] == [job.id]
        (dead,) = await lanes.dead()
        assert dead.key is None
        assert KeyConflictError.__name__ in str(dead.error)
        assert (await lanes.statistics()).dead == 1
        assert (await lanes.check()).problems == ()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("NULL", "must not be NULL"),
        ("'a', NULL", "must not be NULL"),
        ("'a', '{'", "json"),
        ("'a', lane => 'nope'", "no lane 'nope'"),
        ("'a', priority => 2", "priority"),
        ("'a', delay => -1", "delay"),
        ("'a', delay => 'NaN'", "delay"),
        ("'a', timeout => 0", "timeout"),
        ("'a', cost => NULL", "cost"),
        ("'a', cost => '-1'", "cost"),
        ("'a', cost => '0.5'", "cost"),
        ("'a', cost => '[1]'", "cost"),
        ("""'a', cost => '{"tokens": "5"}'""", "cost"),
        ("'a', to_json(repeat('x', 1048576))", "more than 1048576"),
        ("''", "name must have from 1 to 1000 characters, got 0"),
        ("repeat('x', 1001)", "name must have from 1 to 1000 characters, got 1001: 'xxx"),
        ("'a', session => ''", "session must have from 1"),
        ("'a', session => repeat('x', 1001)", "session must have from 1"),
        ("'a', lane => repeat('x', 1001)", "lane must have from 1"),
        ("'a', key => repeat('x', 1001)", "key must have from 1"),
        ("'a', cost => json_build_object(repeat('x', 1001), 1)", "unit of cost must have from 1"),
        ("'a', '1e999'", "out of range"),
        ("""'a', '{"a": ["\\"", -1.5E+00309]}'""", "out of range"),
        ("'a', (repeat('9', 309) || '.0')::json", "out of range"),
    ],
)
async def test_a_bad_argument_fails_the_transaction_of_the_submitter(
    connection: psycopg.Connection, arguments: str, says: str
) -> None:
    with pytest.raises(psycopg.Error, match=says):
        connection.execute(f"SELECT submit({arguments})".encode())
    connection.rollback()
    assert connection.execute("SELECT count(*) FROM submissions").fetchall() == [(0,)]


@pytest.mark.parametrize(
    "payload", ['"1e999"', '["1e999", "\\\\1e999"]', "[1e-999, 1e308]", "9" * 400]
)
async def test_text_that_looks_like_a_large_number_and_whole_numbers_are_accepted(
    connection: psycopg.Connection, payload: str
) -> None:
    connection.execute("SELECT submit('a', %s)", (payload,))


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"name": "n" * 5_000}, "name must have at most 1,000 characters"),
        ({"session": "s" * 5_000}, "session must have"),
        ({"lane": "l" * 5_000}, "lane must have"),
        ({"key": "k" * 5_000}, "key must have"),
        ({"priority": 7}, "priority must be"),
        ({"timeout": math.nan}, "timeout must be"),
        ({"retry": "5"}, "TypeError"),
        ({"cost": "[1"}, "JSONDecodeError"),
        ({"cost": '{"tokens": -1}'}, "must not be negative"),
    ],
)
async def test_a_submission_that_cannot_be_taken_in_is_dead_and_stops_no_other_job(
    server: Server,
    namespace: str,
    connection: psycopg.Connection,
    columns: dict[str, Any],
    says: str,
) -> None:
    async def echo(payload: Any) -> Any:
        return payload

    row = {"name": "echo", "lane": "main", "priority": 0, "payload": "1", "timeout": 1.0}
    row |= {"cost": "{}", "due": 0.0, "delay": 0.0, **columns}  # as an older function wrote it
    named, values = ", ".join(row), ", ".join(["%s"] * len(row))
    insert = f"INSERT INTO submissions ({named}) VALUES ({values})"
    connection.execute(insert.encode(), list(row.values()))
    connection.execute("SELECT submit('echo', '2', key => 'k')")
    connection.commit()
    store = PostgresStore(server.dsn(), namespace=namespace)
    with trio.fail_after(60):
        async with open_durable_lanes(store, {"echo": echo}) as lanes:
            assert await (await lanes.submit("echo", 2, key="k")).wait() == 2
            (dead,) = await lanes.dead()
            assert says in str(dead.error)
            assert (dead.name, dead.lane) == ((columns.get("name") or "echo")[:1_000], "main")
            assert (await lanes.check()).problems == ()


async def test_a_role_that_may_only_call_the_function_can_submit(
    server: Server, namespace: str, connection: psycopg.Connection
) -> None:
    connection.execute("CREATE ROLE shop LOGIN")
    connection.execute(f"GRANT USAGE ON SCHEMA {namespace} TO shop".encode())
    connection.commit()
    with psycopg.connect(server.dsn(user="shop")) as shop:
        shop.execute(f"SELECT {namespace}.submit('a', %s)".encode(), (json.dumps({"n": 1}),))
        with pytest.raises(psycopg.errors.InsufficientPrivilege), shop.transaction():
            shop.execute(f"SELECT * FROM {namespace}.jobs".encode())
    store = PostgresStore(server.dsn(), namespace=namespace)
    async with open_durable_lanes(store, {}, worker=False) as lanes:
        await lanes.pause_for("main", 0)
        assert (await lanes.statistics()).waiting == 1


async def test_very_many_submissions_are_taken_in_in_portions_without_a_pause(
    server: Server,
    namespace: str,
    connection: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trio_lanes.durable._postgres.tables.MAX_TAKEN_IN", 2)
    monkeypatch.setattr("trio_lanes.durable._postgres.listener.LOOKS_EVERY", (3600.0, 3600.0))
    number, all_done = 7, trio.Event()
    done: list[Any] = []

    async def work(payload: Any) -> None:
        done.append(payload)
        if len(done) == number:
            all_done.set()

    store = PostgresStore(server.dsn(), namespace=namespace)
    async with open_durable_lanes(store, {"work": work}) as lanes:
        await lanes.wait_idle()
        for n in range(number):
            connection.execute("SELECT submit('work', %s)", (str(n),))
        connection.commit()
        with trio.fail_after(60):
            await all_done.wait()
    assert sorted(done) == [*range(number)]


async def test_a_submission_is_taken_in_though_the_first_try_to_get_the_lock_was_in_vain(
    server: Server,
    namespace: str,
    connection: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trio_lanes.durable._postgres.listener.LOOKS_EVERY", (3600.0, 3600.0))
    missed, refusals = PostgresTables._missed, [1]

    def refused_once(tables: PostgresTables, *, lock: bool) -> Any:
        if lock and refusals:
            refusals.pop()
            raise psycopg.errors.LockNotAvailable
        return missed(tables, lock=lock)

    connection.execute("SELECT submit('a')")
    connection.commit()
    async with open_durable_lanes(
        PostgresStore(server.dsn(), namespace=namespace), {}, worker=False
    ) as lanes:
        monkeypatch.setattr(PostgresTables, "_missed", refused_once)
        await lanes.submit("b")
        assert [job.name for job in await lanes.jobs()] == ["a", "b"]
    assert refusals == []
