"""Every order of the trips of some instances to one namespace, with faults.

The namespace is on the tests' server. What is left out of an instance is the thread of its store
and its connections alone. Notices come at once, later or never. Who takes the lock lets the others
look, and not commit. Most stories bound how often an instance that could go on waits for others
(`Story.switches`); where nothing is bound, two trips in a row that change nothing are played in one
order.

At a commit a fault may happen: the answer is lost; or all is lost; or its copy arrives at any
later moment; or the instance dies before it or after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any
from unittest import mock

import attrs
import psycopg
from outcome import Value
from psycopg import sql

from tests.durable import orders
from tests.durable.orders import ROOM, Beat, Dead, Story
from trio_lanes.durable._contract.act import Act, Lookups
from trio_lanes.durable._postgres import tables as module
from trio_lanes.durable._postgres.batch import FUNCTIONS
from trio_lanes.durable._postgres.link import connect
from trio_lanes.durable._postgres.read_ahead import Asked
from trio_lanes.durable._postgres.schema import channel_of, naming, prepare
from trio_lanes.durable._rules.engine import Engine
from trio_lanes.durable._sql.act_thread import HandedAct
from trio_lanes.durable.acts.locks import Acquire, Release

EPOCH = 1_800_000_000.0
FAULTS = ("its answer is lost", "it is lost", "it comes late", "dies before it", "dies after it")
TABLES = (
    *("jobs", "counts", "settings", "lists", "requests", "marks", "answers", "steps"),
    *("deltas", "listeners"),
)
STATE = "SELECT " + ", ".join(
    f"(SELECT md5(string_agg({name}::text, ' ' ORDER BY {name}::text)) FROM {name})"
    for name in ("jobs", "counts", "settings", "requests")
)


@attrs.frozen
class Lock:
    """An instance asks for the lock ``k``."""


@attrs.frozen
class Unlock:
    """An instance ends its oldest request for it."""


@attrs.frozen
class Sql:
    """A transaction of the user's submits a job: a trip, and another for its commit."""

    label: str


class Wire:
    """A connection of an instance: each trip waits for its turn."""

    def __init__(self, instance: Instance, real: psycopg.Connection) -> None:
        self._instance = instance
        self._explorer = instance.explorer
        self._real = real
        self.closed = False
        self._piped = False
        self._began = False  # whether the pipeline has had its turn
        self._after: BaseException | None = None
        self._commits = False
        self._notices = False

    def execute(self, statement: Any, values: Any = ()) -> Any:
        text = statement if isinstance(statement, bytes) else statement.encode()
        if self._instance.dying:
            raise Dead
        if not self._began:
            self._began = self._piped
            self._turn(text, statement, values)
        if text == b"COMMIT" or b"put_batch(" in text:
            self._commits = True
        if b"pg_notify" in text:
            self._notices = True
        cursor = self._real.execute(statement, values)
        if not self._piped:
            self._done()
        return cursor

    @contextmanager
    def pipeline(self) -> Iterator[Any]:
        self._piped, self._began = True, False
        try:
            with self._real.pipeline() as pipeline:
                yield pipeline
        finally:
            self._piped = self._began = False
        self._done()

    def _turn(self, text: bytes, statement: Any, values: Any) -> None:
        explorer, instance = self._explorer, self._instance
        is_commit = b"put_batch(" in text
        if not explorer.playing or (self._real.info.transaction_status and not is_commit):
            return
        kind = "commit" if is_commit else "begin" if text == b"BEGIN" else "look"
        fault = instance.point(kind)
        if kind == "begin":
            explorer.owner = instance
        if fault == "dies before it":
            instance.dying = True
            raise Dead
        if fault in ("it is lost", "it comes late"):
            if fault == "it comes late":
                acts = [copy(act) for act in instance.sealed]  # as they were decided
                explorer.copies.append((instance, statement, values, acts))
            self.closed = True
            raise psycopg.OperationalError("lost")
        if fault:
            self._after = Dead() if fault == "dies after it" else psycopg.OperationalError("lost")

    def _done(self) -> None:
        explorer = self._explorer
        if self._commits:
            self._commits = False
            if not self._real.info.transaction_status and explorer.owner is self._instance:
                explorer.owner = None
            explorer.observe(self._instance, self._instance.sealed)
        if self._notices:
            self._notices = False
            explorer.notify(self._instance)
        after, self._after = self._after, None
        if after is not None:
            self._instance.dying = isinstance(after, Dead)
            self.closed = not self._instance.dying
            raise after

    def cursor(self, **options: Any) -> Any:
        return self._real.cursor(**options)

    def rollback(self) -> None:
        self._commits, self._after = False, None  # it was refused
        self._real.rollback()
        if self._explorer.owner is self._instance:
            self._explorer.owner = None


class Link:
    """Takes the place of a `PostgresLink`."""

    patience = 5.0

    def __init__(self, instance: Instance, real: psycopg.Connection) -> None:
        self._of = instance, real
        self._wire = Wire(*self._of)

    def connected(self) -> Wire:
        if self._wire.closed:
            self._wire = Wire(*self._of)
        return self._wire

    def close(self) -> None:
        self._wire.closed = True


class Instance(orders.Instance):
    """One instance, over a `Link`."""

    explorer: Explorer

    def __init__(self, explorer: Explorer, place: int, real: psycopg.Connection) -> None:
        super().__init__(explorer, place)
        self.real = real
        # {id: the fence; None: it waited}, of its requests that it was told of and has not ended
        self.requests: dict[int, float | None] = {}
        self._ticks = place

    def open(self) -> None:
        explorer = self.explorer
        named, channel = explorer.named, channel_of(explorer.namespace)
        link: Any = Link(self, self.real)
        self.tables = tables = module.PostgresTables(
            *(link, "it", named, channel, self.id, {"a"}, self._clock, lambda: None),
            works=False,
        )
        tables.begin([Lookups(room=ROOM)], write=True)
        tables.reads_homes = False
        engine = Engine(tables, explorer.opening)
        tables.commit(False, ())
        tables._locks = False  # but for what is submitted in SQL
        self.act_over(tables, engine)

    def _clock(self) -> float:
        return 1000.0 + self.explorer.time + self._ticks * 1e-5

    def know(self, other: Instance) -> None:
        super().know(other)
        self.requests = dict(other.requests)

    def died(self) -> None:
        self.real.rollback()
        if self.explorer.owner is self:
            self.explorer.owner = None

    # ---- acts

    def play(self, batches: Sequence[Sequence[Any]]) -> None:
        for batch in batches:
            if isinstance(batch[0], Sql):
                self._submit(batch[0])
            else:
                super().play([batch])

    def _submit(self, one: Sql) -> None:
        self.point("look")
        self.real.execute("BEGIN")
        submit = f"SELECT {self.explorer.namespace}.submit('a', payload => '\"{one.label}\"')"
        self.real.execute(submit.encode())
        self.point("look")
        self.real.execute("COMMIT")
        self.explorer.submitted.append(one.label)
        for other in self.explorer.instances:
            other.tables.hint(lock=True)

    def act_of(self, one: Any) -> Act[Any]:
        if isinstance(one, Lock):
            return Acquire("k", False)
        if isinstance(one, Unlock):
            return Release(next(iter(self.requests), 0), True)
        return super().act_of(one)

    def before_acts(self) -> None:
        self._ticks += 1 + self.place  # so that no two give the same numbers

    def told(self, asked: Any, act: HandedAct[Any], newest: int) -> None:
        super().told(asked, act, newest)
        if not isinstance(act.outcome, Value):
            return
        if isinstance(asked[0], Lock) and act.outcome.value is not None:
            id, fence = act.outcome.value
            self.requests[id] = fence
        elif isinstance(asked[0], Unlock) and self.requests:
            del self.requests[min(self.requests)]


class Explorer(orders.Explorer):
    """Plays a story in every order.

    Args:
      compare: compares the cache of an instance with the tables.
      change: a text of the functions of the schema, and what takes its place in each order.

    Attributes:
      owner: who has the lock.
      copies: the commits that may arrive yet: of whom, the statement, its values, its acts.
      submitted: the labels of the jobs that were submitted in SQL.
    """

    epoch = EPOCH
    instances: list[Instance]

    def __init__(
        self,
        dsn: str,
        namespace: str,
        story: Story,
        compare: Callable[[Any], None],
        broken: Callable[[], None] = lambda: None,
        change: tuple[str, str] | None = None,
    ) -> None:
        super().__init__(story, broken)
        self.namespace = namespace
        self.named = naming(namespace)
        self._compare = compare
        self._change = change
        self._reals = [connect(dsn, 5.0, made=lambda _: None) for _ in story.acts]
        self._observer = connect(dsn, 5.0, made=lambda _: None)

    def new(self) -> None:
        super().new()
        self.owner: Instance | None = None
        self.submitted: list[str] = []
        self._notified: list[Instance] = []  # whom notices are under way to
        self._requests: list[Any] = []
        self._fence = 0.0  # the newest of the lock
        self._newest: Any = None
        self._is_idle = False  # whether the last trip has changed nothing

    def close(self) -> None:
        """Close the connections."""
        for real in (*self._reals, self._observer):
            real.close()

    def explore(self, most: int = 100_000) -> int:
        with mock.patch.object(module, "LATE_IN_A_ROW", self.story.late):
            return super().explore(most)

    # ---- what is the same in each order

    def prepare(self) -> None:
        observer, namespace = self._observer, self.namespace
        prepare(observer, namespace, "the test's server", 1024 * 1024)
        saved = "".join(f"CREATE TABLE saved_{name} (LIKE {name});" for name in TABLES)
        restored = "".join(
            f"DELETE FROM {name}; INSERT INTO {name} SELECT * FROM saved_{name};" for name in TABLES
        )
        text = f"""
            SET search_path = {namespace};
            CREATE TABLE test_time (now double precision);
            INSERT INTO test_time VALUES ({EPOCH});
            CREATE OR REPLACE FUNCTION server_time() RETURNS double precision LANGUAGE sql VOLATILE
                AS $$ SELECT now FROM {namespace}.test_time $$;
            {saved}
            CREATE FUNCTION restore() RETURNS void LANGUAGE plpgsql
                SET search_path = {namespace} AS $$ BEGIN
                {restored} DELETE FROM submissions; UPDATE test_time SET now = {EPOCH};
                END $$;
        """
        observer.execute(text.encode())
        for place in range(len(self.story.acts)):
            observer.execute("INSERT INTO listeners VALUES (%s, 'infinity')", (f"me{place}",))
        super().prepare()
        for name in TABLES:
            observer.execute(f"INSERT INTO saved_{name} SELECT * FROM {name}".encode())
        if self._change is not None:
            assert self._change[0] in FUNCTIONS
            text = FUNCTIONS.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
            one: Any = text.replace(*self._change)
            observer.execute(sql.SQL(one).format(schema=sql.Identifier(namespace)))

    def new_instance(self, place: int) -> Instance:
        return Instance(self, place, self._reals[place % len(self._reals)])

    def restore(self) -> None:
        self._observer.execute(f"SELECT {self.namespace}.restore()".encode())
        super().restore()
        self._look_at_newest()
        self._where = self._newest, self.owner

    # ---- one order

    def play(self) -> bool:
        try:
            return super().play()
        finally:
            for real in self._reals:
                real.rollback()

    def is_known(self, before: Any, who: Any, what: str) -> bool:
        was, self._where = self._where, (self._newest, self.owner)
        was_idle = self._is_idle
        self._is_idle = was == self._where and isinstance(who, Instance) and what not in FAULTS
        is_bound = self.switches < math.inf
        # two trips that change nothing: it is the other order of the two
        return was_idle and self._is_idle and who.place < before.place and not is_bound

    def may_go(self, one: Instance) -> bool:
        return one.kind == "look" or self.owner in (None, one)

    @property
    def is_free(self) -> bool:
        return self.owner is None

    def faults_at(self, one: Instance) -> Sequence[str]:
        if one.kind != "commit":
            return ()
        return [of for of in FAULTS if self.owner is not one or of != "it comes late"]

    def arrive(self, *copy: Any) -> None:
        instance, statement, values, acts = copy
        self._observer.execute(statement, values)
        self.observe(instance, acts)

    def pass_time(self, seconds: float) -> None:
        super().pass_time(seconds)
        ahead = f"UPDATE {self.namespace}.test_time SET now = now + {seconds}"
        self._observer.execute(ahead.encode())

    def notify(self, sender: Instance) -> None:
        """Let the other instances know that one has written, now or later, if notices come."""
        if self.story.hints != "never" and self.playing:
            self._notified += [other for other in self.instances if other is not sender]
            if self.story.hints == "at once":
                self.hear("notices", "come")

    def hints_under_way(self) -> list[tuple[Any, str]]:
        return [("notices", "come")] if self._notified else []

    def hear(self, who: str, what: str) -> None:
        while self._notified:
            self._notified.pop().tables.hint(lock=False)

    # ---- promises

    def _look_at_newest(self) -> tuple[list[Any], dict[str, float]]:
        with self._observer.pipeline():
            newest = self._observer.execute("SELECT batch, id FROM deltas ORDER BY batch DESC")
            jobs = self._observer.execute(
                "SELECT id, state, session, lane, fence, instance, payload FROM jobs ORDER BY id"
            )
            requests = self._observer.execute(
                "SELECT id, instance, served FROM requests ORDER BY id"
            )
            leases = self._observer.execute(
                "SELECT name, (data::json -> 'v' ->> 4)::float8 FROM settings"
                " WHERE kind = 'instance'"
            )
        self._newest, self._requests = newest.fetchone(), requests.fetchall()
        return jobs.fetchall(), dict(leases.fetchall())

    def observe(self, writer: Instance, acts: Sequence[HandedAct[Any]]) -> None:
        before = self._newest
        rows, leases = self._look_at_newest()
        if self._newest == before:
            return
        if before is not None and self._newest[0] != before[0] + 1:
            self.note(f"the batch {self._newest[0]} follows {before[0]}")
        self.look_at(rows, leases, writer, acts)
        self._look_at_requests()

    def _look_at_requests(self) -> None:
        served = [fence for _, _, fence in self._requests if fence is not None]
        if self._requests and (len(served) != 1 or self._requests[0][2] is None):
            self.note(f"not the first one alone has the lock: {self._requests}")
        elif served and served[0] < self._fence and not self.gone_back:
            self.note(f"the fence {served[0]} comes after {self._fence}")
        self._fence = max([self._fence, *served])

    def look_at_end(self) -> None:
        if self.submitted:
            taker = self.instances[-1]
            taker.dying = False
            taker.tables.hint(lock=True)
            taker.play([[Beat()]])
            if sorted(self.submitted) != sorted(self.labels.values()):
                self.note(f"{self.submitted} were submitted, and {self.labels} are there")
        super().look_at_end()

    def look_at_known(self, one: Instance) -> None:
        super().look_at_known(one)
        asked = {id: fence for id, instance, fence in self._requests if instance == one.id}
        told = {id: asked.get(id) if f is None else f for id, f in one.requests.items()}
        if asked != told:
            self.note(f"{one.id} was told of the requests {told}, and has {asked}")

    def compare(self, one: Instance) -> None:
        if one.tables._version is not None and one.tables._look(Asked(())):
            self._compare(one.tables)

    def state_of_tables(self) -> Any:
        return self._observer.execute(STATE).fetchone()

    def look(self) -> tuple[Any, float]:
        tables = self.instances[0].tables
        tables.rollback()
        now, _ = tables.begin(write=False)
        return tables, now

    def look_at_rest(self) -> None:
        self.instances[0].tables.rollback()
        super().look_at_rest()
        if self._requests:
            self.note(f"requests of the dead are left: {self._requests}")
