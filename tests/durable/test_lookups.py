"""Lookups of tables at the edge: what is equal, what comes first, what is read anew from a file.

Each is looked up in the tables in memory, which define it, in those of a SQLite file, and over a
storage.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from trio_lanes.durable import DurableSchedule, DurableState
from trio_lanes.durable._chain.batches import StorageTables
from trio_lanes.durable._contract.records import SubmittedJob
from trio_lanes.durable._memory.tables import MemoryTables
from trio_lanes.durable._rules.job_record import JobRecord
from trio_lanes.durable._rules.request import Request
from trio_lanes.durable._rules.tables import ListItem
from trio_lanes.durable._sqlite.schema import fill
from trio_lanes.durable._sqlite.tables import SqliteTables
from trio_lanes.durable.storage import MemoryNamespace, MemoryStorage

Opened = Callable[[], Any]
"""Returns tables that have read nothing yet, where they are in a file."""


def over_storage() -> Opened:
    memory = MemoryNamespace(lambda: 1.0)
    last: list[StorageTables] = []

    def open() -> StorageTables:
        while last:
            last.pop().commit(look=False, news=())
        tables = StorageTables(MemoryStorage(memory), "me", lambda: 1.0, lambda: None)
        tables.begin(write=True)
        last.append(tables)
        return tables

    return open


@pytest.fixture(params=["memory", "sqlite", "storage"])
def opened(request: pytest.FixtureRequest) -> Iterator[Opened]:
    if request.param == "memory":
        kept = MemoryTables()
        yield lambda: kept
        return
    if request.param == "storage":
        yield over_storage()
        return
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        fill(connection)
        last: list[SqliteTables] = []

        def open() -> SqliteTables:
            while last:
                last.pop().commit(0.0)
            last.append(SqliteTables(connection, ":memory:"))
            last[0].begin()
            return last[0]

        yield open


def job(id: int, **changes: Any) -> JobRecord:
    plain: dict[str, Any] = {
        "id": id,
        "name": "echo",
        "lane": "main",
        "session": None,
        "priority": 0,
        "payload": "1",
        "timeout": 5.0,
        "state": DurableState.WAITING,
        "submitted_at": 0.0,
    }
    return JobRecord(**{**plain, **changes})


def running(id: int, **changes: Any) -> JobRecord:
    return job(id, state=DurableState.RUNNING, instance="me", **changes)


def test_a_schedule_is_due_at_its_time(opened: Opened) -> None:
    tables = opened()
    for id, due in ((1, 5.0), (2, 4.0), (3, 5.1)):
        submitted = SubmittedJob(name="echo", payload="1", lane="main", session=None)
        schedule = DurableSchedule(name=f"daily {id}", job=submitted, every=1.0, id=id, next=due)
        tables.put_schedule(schedule)
    assert [schedule.id for schedule in tables.schedules_due(5.0, 10)] == [2, 1]


def test_a_transaction_finds_the_schedules_that_it_has_put_and_dropped(opened: Opened) -> None:
    def put(id: int, next: float | None) -> None:
        submitted = SubmittedJob(name="echo", payload="1", lane="main", session=None)
        tables.put_schedule(
            DurableSchedule(name=f"s{id}", job=submitted, every=1.0, id=id, next=next)
        )

    def found(after: int = 0, limit: int = 9) -> list[int]:
        return [one.id for one in tables.schedules(after, limit)]

    def due(time: float, limit: int = 9) -> list[int]:
        return [one.id for one in tables.schedules_due(time, limit)]

    tables = opened()
    for id in range(1, 5):
        put(id, float(id))
    tables = opened()
    put(1, 9.0)
    put(2, None)
    put(5, 2.5)
    tables.drop_schedule(3)
    put(6, 6.0)
    tables.drop_schedule(6)
    for _ in range(2):
        assert (found(), found(1, 2), found(4)) == ([1, 2, 4, 5], [2, 4], [5])
        assert (due(9.0), due(9.0, 1), due(3.0)) == ([5, 4, 1], [5], [5])
        assert [tables.schedule(f"s{id}") is None for id in range(1, 8)] == [
            *[False, False, True, False, False],
            *[True, True],
        ]
        assert tables.schedule("s1").next == 9.0
        tables = opened()


def test_a_job_is_over_at_the_time_at_which_it_expires(opened: Opened) -> None:
    tables = opened()
    tables.insert(job(1, expires=5.0))
    tables.insert(job(2, expires=5.1))
    assert [found.id for found in tables.due(5.0, 10)] == [1]


def test_marks_are_forgotten_when_the_last_of_their_meter_is_replenished(opened: Opened) -> None:
    tables = opened()
    tables.put_marks("meter", [(0.0, 1)], 10, 5.0)
    tables.put_marks("meter", [(1.0, 1)], 10, 10.0)
    tables.forget_unused(7.0)
    assert list(tables.marks("meter")) == [(0.0, 1), (1.0, 1)]
    tables.forget_unused(10.0)
    assert list(tables.marks("meter")) == []


def test_a_lane_is_suspected_for_a_job_that_ran_in_one_crash(opened: Opened) -> None:
    tables = opened()
    tables.insert(job(1, lane="main", crashed_with=1))
    tables.insert(job(2, lane="side"))
    assert set(opened().suspected()) == {"main"}


def test_of_two_jobs_of_a_key_the_first_is_found(opened: Opened) -> None:
    tables = opened()
    for id, fence in ((1, 0), (2, 0), (3, 7), (4, 8)):
        tables.insert(job(id, coalesce="key", fence=fence))
    assert tables.coalesced("key", begun=False).id == 1
    assert tables.coalesced("key", begun=True).id == 3


def test_the_first_holder_of_a_lane_is_that_of_the_first_fence(opened: Opened) -> None:
    tables = opened()
    tables.insert(running(1, fence=9))
    tables.insert(running(2, fence=8))
    tables.insert(running(3, fence=7, lent=1))
    assert opened().first_holder("main").id == 2


def test_a_request_that_is_served_says_since_when(opened: Opened) -> None:
    tables = opened()
    tables.put_request(Request(1, "lock key", "me", "false", since=1.0))
    tables.put_request(Request(1, "lock key", "me", "false", served=3.0, since=2.0))
    request = opened().request(1)
    assert (request.served, request.since) == (3.0, 2.0)


def test_the_suspects_of_an_instance_are_read_from_the_file(opened: Opened) -> None:
    tables = opened()
    tables.insert(running(1, crashed_with=1))
    tables.insert(running(2))
    count, suspects = opened().runs().count_and_suspects("me")
    assert (count, [suspect.id for suspect in suspects]) == (2, [1])


def test_the_lists_of_a_job_go_with_it_in_the_transaction_that_adds_to_them(
    opened: Opened,
) -> None:
    tables = opened()
    one = job(1, emitted=1, sent=1)
    tables.insert(one)
    tables = opened()
    one = tables.get(1)
    tables.append(one.event_list, ListItem(2, "1"))
    tables.append(one.message_list, ListItem(1, "1", taken=False))
    tables.delete(one)
    tables = opened()
    assert tables.last_item(one.event_list) == tables.last_item(one.message_list) == 0


def test_the_lists_of_a_job_that_is_forgotten_at_once_go_with_it(opened: Opened) -> None:
    tables = opened()
    one = job(1, state=DurableState.SUCCEEDED, due=1.0, emitted=1)
    tables.insert(one)
    tables.append(one.event_list, ListItem(1, "1"))
    assert tables.forget_due(2.0, 9) == 1
    assert opened().last_item(one.event_list) == 0


def test_a_transaction_finds_what_it_has_put_into_lists_and_dropped_from_them(
    opened: Opened,
) -> None:
    def numbers(limit: int = 9, after: int = 0) -> list[tuple[int, bool]]:
        return [(item.number, item.taken) for item in tables.items("a", after, limit)]

    tables = opened()
    for number in range(1, 5):
        tables.append("a", ListItem(number, "1", taken=False))
        tables.append("b", ListItem(number, "1"))
    tables = opened()
    tables.append("a", ListItem(2, "1"))
    tables.append("a", ListItem(5, "1", taken=False))
    tables.append("b", ListItem(5, "1"), keep=4)
    assert numbers(3) == [(1, False), (2, True), (3, False)]
    assert numbers(9, after=3) == [(4, False), (5, False)]
    assert [item.number for item in tables.items("b", 0, 3)] == [2, 3, 4]
    assert tables.last_item("a") == 5
    tables.drop_items("a", taken=False)
    assert numbers() == [(2, True)]
    assert tables.last_item("a") == 2
    tables.append("a", ListItem(6, "1", taken=False))
    assert numbers() == [(2, True), (6, False)]
    tables = opened()
    assert numbers() == [(2, True), (6, False)]
    tables.drop_items("a", taken=True)
    tables.append("a", ListItem(7, "1", taken=False))
    tables.drop_items("a", taken=False)
    assert numbers() == []
    assert tables.last_item("a") == 0
    tables.append("a", ListItem(8, "1"))
    tables = opened()
    assert numbers() == [(8, True)]
    assert [item.number for item in tables.items("b", 0, 9)] == [2, 3, 4, 5]
