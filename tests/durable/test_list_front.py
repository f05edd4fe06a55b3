"""What a SQLite store keeps in memory of its lists is always what its tables say."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import given

from trio_lanes.durable import LaneLimit, Opening, SubmittedJob
from trio_lanes.durable._contract.state import WAITING
from trio_lanes.durable._rules.engine import Engine
from trio_lanes.durable._rules.job_record import JobRecord
from trio_lanes.durable._rules.tables import INSTANCES
from trio_lanes.durable._sql.list_front import ListFront
from trio_lanes.durable._sqlite.schema import fill
from trio_lanes.durable._sqlite.tables import SqliteTables


def job(id: int) -> JobRecord:
    return JobRecord(
        id=id,
        name="echo",
        lane="main",
        session=None,
        priority=0,
        payload="1",
        key=None,
        digest=None,
        timeout=1.0,
        retry=None,
        state=WAITING,
        submitted_at=0.0,
    )


class Listed:
    """A list in a "table", and a window that gets all that happens to it."""

    def __init__(self) -> None:
        self.window = ListFront(lambda job: job.place, 3)
        self.jobs = {id: job(id) for id in range(12)}
        self.number = 100

    def table(self) -> list[JobRecord]:
        there = [job for job in self.jobs.values() if job.place is not None]
        return sorted(there, key=lambda job: job.place or 0)

    def put(self, id: int, place: int) -> None:
        self.jobs[id].place = place
        self.window.add(place, self.jobs[id])

    def enter(self, id: int) -> None:
        self.number += 2
        self.put(id, self.number)

    def go_first(self, id: int) -> None:
        first = self.first(None, 1)
        place = first[0].place if first else None
        self.put(id, self.number if place is None else place - 1)

    def come_back(self, id: int) -> None:
        """It left, and has its place again."""
        place = self.jobs[id].place
        if place is not None:
            self.jobs[id].place = None
            self.put(id, place)

    def leave(self, id: int) -> None:
        self.jobs[id].place = None

    def first(self, after: int | None, limit: int) -> list[JobRecord]:
        while (found := self.window.first(after, limit)) is None:
            last = self.window.last()
            beyond = [job for job in self.table() if last is None or (job.place or 0) > last]
            self.window.extend(beyond[:2], complete=len(beyond) < 2)
        return found


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["enter", "enter", "go_first", "come_back", "leave", "first"]),
            st.integers(0, 11),
        ),
        max_size=60,
    )
)
def test_the_front_of_a_list_has_its_first_jobs(acts: list[tuple[str, int]]) -> None:
    listed = Listed()
    for act, number in acts:
        if act == "first":
            table = listed.table()
            assert listed.first(None, number) == table[:number]
            if table:
                after = table[len(table) // 2].place
                beyond = [job for job in table if (job.place or 0) > (after or 0)]
                assert listed.first(after, number) == beyond[:number]
        elif act == "leave" or (act == "come_back") == (listed.jobs[number].place is not None):
            getattr(listed, act)(number)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    connection = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    fill(connection)
    tables = SqliteTables(connection, "jobs.db")
    opening = Opening(
        names=frozenset({"echo"}),
        lanes={"main": LaneLimit(100)},
        max_crashes=3,
        hold=False,
        result_ttl=100.0,
        lease_ttl=100.0,
        worker=True,
    )
    with mock.patch.multiple(SqliteTables, _queue_front=2, _list_front=2):
        tables.begin()
        engine = Engine(tables, opening)
        engine.join("me", lease_until=float("inf"))
        yield engine
    connection.close()


def test_an_unwritten_job_is_found_beyond_the_cached_front(engine: Engine) -> None:
    assert engine.step("me", 1, [], 10).claims == ()  # its ready list is known, and empty
    ids = list(engine.enqueue([SubmittedJob(name="echo", payload="1") for _ in range(7)]))
    assert [claim.id for claim in engine.step("me", 2, [], 10).claims] == ids


def test_an_unwritten_job_is_found_in_a_queue_that_was_not_cached(engine: Engine) -> None:
    first, second = engine.enqueue([SubmittedJob(name="echo", payload="1", session="s")] * 2)
    tables = engine.tables
    assert isinstance(tables, SqliteTables)
    tables._cache.queues.clear()
    head = tables.head("s")
    assert head is not None
    assert head.id == first
    tables._cache.queues.clear()
    tables.update(head, place=None)
    head = tables.head("s")
    assert head is not None
    assert head.id == second


def test_an_act_that_was_undone_can_be_done_again(engine: Engine) -> None:
    tables = engine.tables
    assert isinstance(tables, SqliteTables)
    (id,) = engine.enqueue([SubmittedJob(name="new", payload="1")])
    assert engine.step("me", 1, [], 10).claims == ()
    tables.commit(0.0)
    tables.begin()
    later = Engine(tables, attrs.evolve(engine.opening, names=frozenset({"new"})))
    later.remove_instance("me")
    later.join("later", lease_until=float("inf"))
    tables.commit(0.0)
    for undone in (True, False):
        tables.begin()
        assert [claim.id for claim in later.step("later", 1, [], 10).claims] == [id]
        tables.rollback() if undone else tables.commit(0.0)
    for undone in (True, False):
        tables.begin()
        later.remove_instance("later")
        assert not tables.of(INSTANCES)
        tables.rollback() if undone else tables.commit(0.0)
