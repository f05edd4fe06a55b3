"""A random life of a store, with crashes anywhere, against a model that says what must be true.

The model is three facts for each job: where it stands in its session, whether it has been started,
and how it ended. It knows nothing of ready lists, places or SQL.
"""

import itertools
import json
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import hypothesis
import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.support.chaos import examples
from trio_lanes import LaneFullError
from trio_lanes.durable import KeyConflictError, SubmittedJob
from trio_lanes.durable._chain.batches import StorageTables
from trio_lanes.durable._contract.records import (
    Cancelled,
    Claim,
    Died,
    Failed,
    Finish,
    GroupLimit,
    LaneLimit,
    Opening,
    Postponed,
    Released,
    Selection,
    Step,
    Succeeded,
)
from trio_lanes.durable._memory.tables import MemoryTables
from trio_lanes.durable._rules.blockers import blockers
from trio_lanes.durable._rules.engine import Engine
from trio_lanes.durable._rules.tables import INSTANCES
from trio_lanes.durable._sqlite.schema import fill
from trio_lanes.durable._sqlite.tables import SqliteTables
from trio_lanes.durable.acts.inspection import Check
from trio_lanes.durable.acts.orders import Cancel, Clear, Configure, Pause, Purge, Requeue, Resume
from trio_lanes.durable.storage import MemoryNamespace, MemoryStorage

ERROR = json.dumps({"type": "ValueError", "message": "no", "traceback": ""})
SESSIONS = [None, "a", "b", "c"]
LANES = ["main", "cron"]
NAMES = [*LANES, "session:a", "session:b"]
ACTS = [
    *("submit", "step", "finish_some") * 4,
    *("time_goes_by", "the_process_dies", "the_process_dies_before_a_commit"),
    *("cancel", "clear", "pause", "pause", "configure", "deal_with_the_dead"),
]
ASKED = {"submit", "cancel", "clear", "pause", "configure", "deal_with_the_dead"}
SUBMITTED = st.tuples(
    st.sampled_from(SESSIONS),
    st.sampled_from(LANES),
    st.sampled_from([-1, 0, 1]),
    st.sampled_from([0.0, 0.0, 0.0, 5.0]),
    st.sampled_from([None, None, None, "k1", "k2"]),
)


@attrs.define
class Job:
    id: int
    session: str | None
    lane: str
    key: str | None
    delayed_until: float | None
    state: str = "waiting"
    crashes: int = 0
    crashes_alone: int = 0
    crashed_with: int = 0
    until: float = 0.0
    claim: Claim | None = None
    cancelling: bool = False


class StoreMachine(RuleBasedStateMachine):
    """The engine over the tables of a kind, asked at random."""

    hold = False
    together = 3
    """What the lanes may run at once, all in all."""

    def open_tables(self) -> Any:
        raise NotImplementedError

    def commit(self) -> None:
        """What was done is kept."""

    def crash_tables(self) -> None:
        """What was not committed is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.jobs: dict[int, Job] = {}
        self.lines: dict[str, list[int]] = defaultdict(list)  # the model's order of sessions
        self.limits = {"main": 3, "cron": 1}
        self.paused: set[str] = set()
        self.isolated_since: dict[int, float] = {}
        self.incarnations = 0
        self.tables = self.open_tables()
        self.start()

    def start(self) -> None:
        self.opening = Opening(
            names=frozenset({"echo"}),
            lanes={name: LaneLimit(limit, 12) for name, limit in self.limits.items()},
            groups={"g": GroupLimit(tuple(self.limits), self.together)},
            max_crashes=3,
            hold=self.hold,
            result_ttl=1e9,
            lease_ttl=30,
            worker=True,
        )
        self.engine = Engine(self.tables, self.opening)
        self.engine.now = self.now
        self.incarnations += 1
        self.instance = f"incarnation {self.incarnations}"
        for former in self.tables.of(INSTANCES):  # as a store does when it is opened
            self.engine.remove_instance(former)
        self.engine.join(self.instance, lease_until=float("inf"))
        self.steps = 0
        self.commit()

    # ---- the model

    def leave(self, job: Job, state: str) -> None:
        job.state = state
        job.claim = None
        held = state == "dead" and self.hold
        if job.session is not None and job.id in self.lines[job.session] and not held:
            self.lines[job.session].remove(job.id)

    def crashed(self, job: Job, crashed_with: int) -> None:
        job.crashes += 1
        job.crashes_alone += crashed_with == 1
        job.crashed_with = min(job.crashed_with or crashed_with, crashed_with)
        job.claim = None
        if job.cancelling:
            self.leave(job, "cancelled")
        elif job.crashes_alone >= 3:
            self.leave(job, "dead")
        else:
            job.state = "waiting"

    def pick(self, data: st.DataObject, state: str) -> Job | None:
        found = [job for job in self.jobs.values() if job.state == state]
        return data.draw(st.sampled_from(found)) if found else None

    # ---- what happens

    # One rule draws all of what happens: given many, Hypothesis leaves most of them out of most
    # lives, and hardly any job is ever finished.
    @rule(data=st.data(), acts=st.lists(st.sampled_from(ACTS), min_size=1, max_size=8))
    def live(self, data: st.DataObject, acts: list[str]) -> None:
        for act in acts:
            with self.by_another() if act in ASKED and data.draw(st.booleans()) else nullcontext():
                getattr(self, act)(data)
            self.is_right()

    def by_another(self) -> AbstractContextManager[None]:
        """What is done inside is asked for by another process, if there can be one."""
        return nullcontext()

    def submit(self, data: st.DataObject) -> None:
        for job in data.draw(st.lists(SUBMITTED, min_size=1, max_size=4)):
            self.submit_one(*job)

    def submit_one(
        self, session: str | None, lane: str, priority: int, delay: float, key: str | None
    ) -> None:
        one = SubmittedJob(
            name="echo",
            payload="1",
            session=session,
            lane=lane,
            priority=priority,
            delay=delay,
            key=key,
        )
        known = next((job for job in self.jobs.values() if key and job.key == key), None)
        bound = sum(
            job.lane == lane and job.state in ("waiting", "parked") for job in self.jobs.values()
        )
        if known is not None and (known.session, known.lane) != (session, lane):
            with pytest.raises(KeyConflictError):
                self.engine.enqueue([one])
        elif known is None and bound >= 12:
            with pytest.raises(LaneFullError):
                self.engine.enqueue([one])
        else:
            (id,) = self.engine.enqueue([one])
            self.commit()
            if known is not None:
                assert id == known.id
                return
            assert id not in self.jobs
            job = self.jobs[id] = Job(id, session, lane, key, self.now + delay if delay else None)
            if delay:
                job.state, job.until = "parked", self.now + delay
            elif session is not None:
                self.promote_session(session)
                self.lines[session].append(id)

    def promote(self) -> None:
        self.promote_some([job for job in self.jobs.values() if job.state == "parked"])

    def promote_session(self, session: str) -> None:
        """What is due joins its session's line before any other job does."""
        self.promote_some(
            [
                job
                for job in self.jobs.values()
                if job.state == "parked"
                and job.session == session
                and job.id not in self.lines[session]
            ]
        )

    def promote_some(self, parked: list[Job]) -> None:
        due = [job for job in parked if job.until <= self.now]
        for job in sorted(due, key=lambda job: (job.until, job.id)):
            job.state = "waiting"
            if job.session is not None and job.id not in self.lines[job.session]:
                self.lines[job.session].append(job.id)

    def take_step(self, finished: list[Finish], room: int) -> Step:
        self.steps += 1
        return self.engine.step(self.instance, self.steps, finished, room)

    def step(self, data: st.DataObject) -> None:
        room = data.draw(st.integers(1, 6))
        self.promote()
        self.engine.promote()
        reasons = {
            job.id: blockers(self.engine, job.id) or ()
            for job in self.jobs.values()
            if job.state == "waiting"
        }
        step = self.take_step([], room)
        self.commit()
        assert len(step.claims) <= room
        for claim in step.claims:
            job = self.jobs[claim.id]
            assert job.state == "waiting"
            assert not job.cancelling
            assert job.lane not in self.paused
            assert job.session is None or self.lines[job.session][0] == job.id
            assert job.session is None or f"session:{job.session}" not in self.paused
            assert claim.crashes == job.crashes
            job.state, job.claim = "running", claim
            self.isolated_since[job.id] = self.now
        everywhere = sum(job.state == "running" for job in self.jobs.values())
        assert everywhere <= self.together
        for claim in step.claims:
            # other jobs were before it in its lane at most, and were claimed with it
            assert {one.kind for one in reasons[claim.id]} <= {"order"}
        claimed = {claim.id for claim in step.claims}
        if len(claimed) < room and not self.suspects("running") and not self.suspects("waiting"):
            for id, found in reasons.items():
                if not found and id not in claimed:  # the other lane took the last slot
                    (reason,) = blockers(self.engine, id) or ()
                    assert (reason.kind, reason.lane) == ("group", "g")
                    assert self.jobs[reason.job or 0].state == "running"
        suspects = self.suspects("running")
        if step.claims and suspects:
            least = min(suspects, key=lambda job: job.crashed_with)
            in_time = self.now < self.isolated_since[least.id] + 15 * 2**least.crashes
            assert everywhere <= max(1, least.crashed_with // 2) or not in_time
        for lane, limit in self.limits.items():
            running = sum(j.lane == lane and j.state == "running" for j in self.jobs.values())
            claimed = any(claim.lane == lane for claim in step.claims)
            assert running <= limit or not claimed
            if suspects or self.suspects("waiting"):
                continue  # they keep others off, for a while
            may_start = running < limit and everywhere < self.together
            if may_start and len(step.claims) < room and lane not in self.paused:
                assert not self.startable(lane)  # no slot stays empty while somebody could run

    def suspects(self, state: str) -> list[Job]:
        return [
            job
            for job in self.jobs.values()
            if job.state == state and job.crashed_with and job.crashes >= 2
        ]

    def startable(self, lane: str) -> list[int]:
        return [
            job.id
            for job in self.jobs.values()
            if job.lane == lane
            and job.state == "waiting"
            and (
                job.session is None
                or (
                    self.lines[job.session][0] == job.id
                    and f"session:{job.session}" not in self.paused
                )
            )
        ]

    def finish_some(self, data: st.DataObject) -> None:
        for how in data.draw(st.lists(st.sampled_from("ssfdphrc"), min_size=1, max_size=3)):
            job = self.pick(data, "running")
            if job is not None:
                self.finish(job, how, data.draw(st.integers(0, 7)) == 0)

    def finish(self, job: Job, how: str, late: bool) -> None:
        assert job.claim is not None
        outcome = {
            "s": Succeeded("1"),
            "f": Failed(ERROR),
            "d": Died(ERROR),
            "p": Postponed(5.0, True, True),
            "h": Postponed(5.0, False, False),
            "r": Released(),
            "c": Cancelled(),
        }[how]
        self.promote()
        finish = Finish(job.id, job.claim.fence - late, outcome)
        step = self.take_step([finish], 0)
        self.commit()
        if late:
            assert step.stale == (finish.fence,)
            return
        assert step.stale == ()
        if how in "sfc":
            self.leave(job, {"s": "succeeded", "f": "failed", "c": "cancelled"}[how])
        elif how == "d":
            self.leave(job, "dead")
        elif job.cancelling:
            self.leave(job, "cancelled")
        elif how == "r":
            job.state, job.claim = "waiting", None
        else:
            job.state, job.until, job.claim = "parked", self.now + 5.0, None
            job.crashed_with = 0
            if how == "p" and job.session is not None:
                self.lines[job.session].remove(job.id)

    def time_goes_by(self, data: st.DataObject) -> None:
        self.now += data.draw(st.sampled_from([1.0, 5.0]))
        self.engine.now = self.now

    def cancel(self, data: st.DataObject) -> None:
        state = data.draw(st.sampled_from(["waiting", "parked", "running", "dead"]))
        job = self.pick(data, state)
        if job is None:
            return
        assert Cancel(job.id, "{}").apply(self.engine) is (state != "dead")
        self.commit()
        if state == "running":
            job.cancelling = True
        elif state != "dead":
            self.leave(job, "cancelled")

    def clear(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(NAMES))
        lane, session = (None, name[8:]) if name.startswith("session:") else (name, None)
        mine = [j for j in self.jobs.values() if session is None or j.session == session]
        mine = [j for j in mine if lane is None or j.lane == lane]
        gone = [j for j in mine if j.state in ("waiting", "parked")]
        clear = Clear(lane, session, "{}")
        number, before = clear.portion(self.engine, 3, None)
        while before is not None:  # others may do something in between, but nothing is lost
            self.commit()
            more, before = clear.portion(self.engine, 3, before)
            number += more
        assert number == len(gone)
        self.commit()
        for job in gone:
            self.leave(job, "cancelled")
        for job in mine:
            if session is not None and job.state == "dead" and job.id in self.lines[session]:
                self.lines[session].remove(job.id)

    def pause(self, data: st.DataObject) -> None:
        name, paused = data.draw(st.sampled_from(NAMES)), data.draw(st.booleans())
        lane, session = (None, name[8:]) if name.startswith("session:") else (name, None)
        if paused:
            Pause(lane, session, float("inf")).apply(self.engine)
            self.paused.add(name)
        else:
            Resume(lane, session).apply(self.engine)
            self.paused.discard(name)
        self.commit()

    def configure(self, data: st.DataObject) -> None:
        lane, limit = data.draw(st.sampled_from(LANES)), data.draw(st.integers(0, 5))
        Configure({lane: limit}, None, {}).apply(self.engine)
        self.limits[lane] = limit
        self.commit()

    def deal_with_the_dead(self, data: st.DataObject) -> None:
        job = self.pick(data, data.draw(st.sampled_from(["dead", "dead", "failed"])))
        if job is None:
            return
        if data.draw(st.booleans()):
            assert Purge(Selection(id=job.id)).apply(self.engine) == 1
            self.leave(job, "purged")
            del self.jobs[job.id]
        else:
            assert Requeue(Selection(id=job.id)).apply(self.engine) == 1
            job.state, job.crashes, job.cancelling = "waiting", 0, False
            job.crashes_alone = job.crashed_with = 0
            if job.session is not None and job.id not in self.lines[job.session]:
                self.promote_session(job.session)
                self.lines[job.session].append(job.id)
        self.commit()

    def the_process_dies(self, data: st.DataObject) -> None:
        self.crash_tables()
        running = [job for job in self.jobs.values() if job.state == "running"]
        for job in running:
            self.crashed(job, len(running))
        self.start()

    def the_process_dies_before_a_commit(self, data: st.DataObject) -> None:
        if isinstance(self.tables, SqliteTables):
            session = data.draw(st.sampled_from(SESSIONS))
            with suppress(LaneFullError):
                self.engine.enqueue([SubmittedJob(name="echo", payload="1", session=session)])
            self.take_step([], 4)
        self.the_process_dies(data)

    # ---- what is always true

    def is_right(self) -> None:
        self.nothing_contradicts_itself()
        self.every_accepted_job_is_where_it_should_be()

    def nothing_contradicts_itself(self) -> None:
        report = Check().answer(self.engine)
        assert report.problems == ()

    def every_accepted_job_is_where_it_should_be(self) -> None:
        for job in self.jobs.values():
            record = self.tables.get(job.id)
            assert record is not None
            assert record.state.value == job.state
            assert record.crashes == job.crashes
            assert (record.crashes_alone, record.crashed_with) == (
                job.crashes_alone,
                job.crashed_with,
            )
        for session, line in self.lines.items():
            there = [
                record.id
                for record in self.tables.all_live()
                if record.session == session and record.place is not None
            ]
            assert there == line


class OverMemory(StoreMachine):
    def open_tables(self) -> MemoryTables:
        return MemoryTables()


class OverMemoryHolding(OverMemory):
    hold = True


class OverSqlite(StoreMachine):
    """Every act is its own transaction; a crash rolls back, and opens the file anew."""

    def open_tables(self) -> SqliteTables:
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "jobs.db"
        connection = self.connect()
        fill(connection)
        tables = SqliteTables(connection, "jobs.db")
        tables.begin()
        return tables

    def connect(self) -> sqlite3.Connection:
        self.connection = sqlite3.connect(self.path, isolation_level=None)
        self.connection.execute("PRAGMA synchronous = OFF")
        return self.connection

    def commit(self) -> None:
        self.tables.commit(self.now)
        self.tables.begin()

    def crash_tables(self) -> None:
        self.connection.close()  # as the end of a process: what is open is rolled back
        self.tables = SqliteTables(self.connect(), "jobs.db")
        self.tables.begin()

    def teardown(self) -> None:
        self.connection.close()
        self.folder.cleanup()


class OverSqliteHolding(OverSqlite):
    hold = True


class OverSqliteAsked(OverSqlite):
    """Somebody else writes to the file as well; and hardly anything fits into memory."""

    def __init__(self) -> None:
        self.patches = (
            mock.patch.multiple(SqliteTables, _queue_front=2, _list_front=2),
            mock.patch.multiple("trio_lanes.durable._sql.tables", QUEUES_KEPT=2, PAYLOADS=9),
        )
        for patch in self.patches:
            patch.start()
        super().__init__()

    @contextmanager
    def by_another(self) -> Iterator[None]:
        mine = self.engine, self.tables
        self.tables.commit(self.now)
        connection = sqlite3.connect(self.path, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = OFF")
            self.tables = SqliteTables(connection, "jobs.db")
            self.tables.begin()
            self.engine = Engine(self.tables, self.opening)
            self.engine.now = self.now
            yield
            self.tables.commit(self.now)
        finally:
            connection.close()
            self.engine, self.tables = mine
            self.tables.begin()

    def teardown(self) -> None:
        for patch in self.patches:
            patch.stop()
        super().teardown()


class OverSqliteAskedHolding(OverSqliteAsked):
    hold = True


class OverStorage(StoreMachine):
    """Every act is a batch of its own; a crash leaves what is committed."""

    def open_tables(self) -> StorageTables:
        self.memory = MemoryNamespace(lambda: self.now)
        return self.open_another()

    def open_another(self) -> StorageTables:
        name = f"instance {next(self.names)}"
        storage = MemoryStorage(self.memory)
        self.memory.listeners[storage] = lambda hint: None  # so that batches say what they change
        tables = StorageTables(storage, name, lambda: self.now, lambda: None)
        tables.begin(write=True)
        return tables

    names = itertools.count()

    def commit(self) -> None:
        self.tables.commit(look=False, news=())
        self.tables.begin(write=True)

    def crash_tables(self) -> None:
        self.tables = self.open_another()


class OverStorageHolding(OverStorage):
    hold = True


class OverStorageAsked(OverStorage):
    """Another instance writes as well, and says what; and hardly anything fits into memory."""

    def __init__(self) -> None:
        self.patch = mock.patch.multiple(
            "trio_lanes.durable._chain.tables",
            QUEUE_FRONT=2,
            LIST_FRONT=2,
            PAGE=2,
            QUEUES_KEPT=2,
            PAYLOADS=9,
        )
        self.patch.start()
        super().__init__()

    def open_tables(self) -> StorageTables:
        tables = super().open_tables()
        self.other: StorageTables | None = None
        return tables

    @contextmanager
    def by_another(self) -> Iterator[None]:
        mine = self.engine, self.tables
        self.tables.commit(look=False, news=())
        if self.other is None:
            self.other = self.open_another()
        else:
            self.other.hear(None)
            self.other.begin(write=True)
        self.tables = self.other
        try:
            self.engine = Engine(self.tables, self.opening)
            self.engine.now = self.now
            yield
            self.tables.commit(look=False, news=())
        finally:
            self.engine, self.tables = mine
            self.tables.hear(None)
            self.tables.begin(write=True)

    def teardown(self) -> None:
        self.patch.stop()
        super().teardown()


class OverStorageAskedHolding(OverStorageAsked):
    hold = True


def lives(n: int) -> hypothesis.settings:
    return hypothesis.settings(max_examples=examples(n), stateful_step_count=12, deadline=None)


TestOverMemory = OverMemory.TestCase
TestOverMemory.settings = lives(100)
TestOverMemoryHolding = OverMemoryHolding.TestCase
TestOverMemoryHolding.settings = lives(100)
TestOverSqlite = OverSqlite.TestCase
TestOverSqlite.settings = lives(30)
TestOverSqliteHolding = OverSqliteHolding.TestCase
TestOverSqliteHolding.settings = lives(30)
TestOverSqliteAsked = OverSqliteAsked.TestCase
TestOverSqliteAsked.settings = lives(15)
TestOverSqliteAskedHolding = OverSqliteAskedHolding.TestCase
TestOverSqliteAskedHolding.settings = lives(15)
TestOverStorage = OverStorage.TestCase
TestOverStorage.settings = lives(30)
TestOverStorageHolding = OverStorageHolding.TestCase
TestOverStorageHolding.settings = lives(30)
TestOverStorageAsked = OverStorageAsked.TestCase
TestOverStorageAsked.settings = lives(30)
TestOverStorageAskedHolding = OverStorageAskedHolding.TestCase
TestOverStorageAskedHolding.settings = lives(30)
